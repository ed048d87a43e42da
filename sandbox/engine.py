"""Run a job to its end: wire its streams, start it under a keeper, supervise it, hand back the evidence."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from stockade.policies.errors import StockadeError
from stockade.policies.record import Record
from stockade.sandbox import argv as lines
from stockade.sandbox.evidence import Bounds, Evidence
from stockade.sandbox.keeperlink import begin
from stockade.sandbox.launch import Launch
from stockade.sandbox.streams import Capture, Feed, FileFeed, Relay, open_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from stockade.netns.lease import Lease
    from stockade.sandbox.stopper import Stopper
    from stockade.sandbox.streams import Stream
    from stockade.sandbox.terminal import Terminal
    from stockade.sandbox.wires import Wires

    Job = Callable[[Launch], dict[str, Any]]
else:
    import _signal as signal  # ``signal`` itself costs as much as enum


class Io(Record):
    """Where the three streams go. ``stdin``: bytes to feed, a descriptor to hand on, or None for nothing."""

    stdin: bytes | int | None = None
    capture: bool = True
    cap: int | None = None
    """Bytes kept of each stream."""
    terminal: bool = False
    """Give the program a terminal of its own where the caller's streams are one."""
    wires: Wires | None = None


class Finished(Record):
    """The evidence and the captured streams (None where they were passed through)."""

    evidence: Evidence
    stdout: Capture | None
    stderr: Capture | None
    duration: float


class Wiring:
    """The streams of one run: what the child gets, and what the supervisor polls."""

    def __init__(self, io: Io, launch: Launch, *, confined: bool) -> None:
        self.io, self.launch, self.confined = io, launch, confined
        self.streams: list[Stream] = []
        self.captured: dict[int, Capture] = {}
        self.terminal: Terminal | None = None
        self.handlers: dict[int, Any] = {}
        self.relayed: int | None = None
        """The program's end of the pipe behind a relayed stdout."""

    def connect(self) -> None:
        if self.io.terminal:
            self._open_terminal()
        self._stdin()
        for number in (1, 2):
            self._output(number)
        if self.io.wires is not None:
            self.streams += self.io.wires.streams
            for fd, number in self.io.wires.descriptors:
                self.launch.give(fd, number, owned=False)

    def _open_terminal(self) -> None:
        """One pair for all of the caller's streams that are a terminal."""
        from stockade.sandbox.terminal import Terminal

        outer = next((fd for fd in (1, 2) if os.isatty(fd)), None)
        if outer is None:
            outer = 0
        keys = 0 if self.io.stdin == 0 and os.isatty(0) else None
        terminal = self.terminal = Terminal(keys, outer)
        terminal.__enter__()
        self._catch(signal.SIGWINCH, terminal.resize)
        self._catch(signal.SIGCONT, terminal.resume)

    def _catch(self, number: int, act: Callable[[], None]) -> None:
        self.handlers[number] = signal.signal(number, lambda _number, _frame: act())

    def _stdin(self) -> None:
        source = self.io.stdin
        if source is None:
            self.launch.give(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), 0)
        elif isinstance(source, bytes):
            read, write = open_pipe()
            self.launch.give(read, 0)
            self.streams.append(Feed(write, source))
        elif self.terminal is not None and os.isatty(source):
            self.launch.give(self.terminal.slave, 0, owned=False)
        elif may_not_pass(source):
            read, write = open_pipe()
            self.launch.give(read, 0)
            self.streams.append(Relay(source, write, ours=write))
        elif self.confined and only_read(source):
            feed = FileFeed(source)
            self.streams.append(feed)
            self.launch.give(feed.read, 0, owned=False)
        else:
            self.launch.give(os.dup(source), 0)

    def _output(self, number: int) -> None:
        if self.io.capture:
            read, write = open_pipe()
            self.launch.give(write, number)
            make = self.io.wires.capture if self.io.wires is not None else None
            self.captured[number] = Capture(read, self.io.cap) if make is None else make(number, read)
            self.streams.append(self.captured[number])
        elif self.terminal is not None and os.isatty(number):
            self.launch.give(self.terminal.slave, number, owned=False)
        elif may_not_pass(number) or (self.confined and is_file(number)):
            self._relay(number)
        else:
            self.launch.give(os.dup(number), number)

    def _relay(self, number: int) -> None:
        """What goes to one place goes by one pipe, so that the order of both streams is kept."""
        if self.relayed is not None and os.path.samestat(os.fstat(1), os.fstat(number)):
            self.launch.give(self.relayed, number, owned=False)
            return
        read, write = open_pipe()
        self.launch.give(write, number)
        self.streams.append(Relay(read, number, ours=read))
        self.relayed = write if number == 1 else None

    def close(self) -> None:
        for stream in self.streams:
            stream.finish()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if self.terminal is not None:
            self.terminal.drain(0.5)
            self.terminal.__exit__(None, None, None)


def may_not_pass(fd: int) -> bool:
    """A socket would carry data out of the box; a terminal could be read, and set, through any of its descriptors."""
    return stat.S_ISSOCK(os.fstat(fd).st_mode) or os.isatty(fd)


def is_file(fd: int) -> bool:
    """A regular file: a program could open it anew, read what stands in it, and take it back."""
    return stat.S_ISREG(os.fstat(fd).st_mode)


def only_read(fd: int) -> bool:
    """A file that was opened for reading alone."""
    mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    return stat.S_ISREG(os.fstat(fd).st_mode) and mode == os.O_RDONLY


def execute(
    make_job: Job,
    io: Io,
    *,
    confined: bool,
    deadline: float | None = None,
    stopper: Stopper | None = None,
    process_limit: int | None = None,
    bounds: Bounds | None = None,
    meanwhile: Callable[[], None] | None = None,
    lease: Lease | None = None,
    confirm: Callable[[int], str] | None = None,
) -> Finished:
    """Run one job. Returns when nothing of it is left.

    ``deadline`` is a time of ``time.monotonic``. ``bounds`` are watched from outside.
    ``meanwhile`` is called once while the program is being started, ``confirm`` before it is let go.
    """
    began = time.monotonic()
    launch = Launch()
    wiring = Wiring(io, launch, confined=confined)
    status = gate = -1
    try:
        if confined:
            status = give_status(launch)
            gate = give_gate(launch)
        wiring.connect()
        job = make_job(launch)
        if wiring.terminal is not None and not confined:
            job["terminal"] = launch.number_of(wiring.terminal.slave)
        orders, events = begin({**job, "numbers": launch.numbers}, launch.fds)
    except BaseException as error:
        for fd in (status, gate):
            if fd >= 0:
                os.close(fd)
        launch.close()
        wiring.close()
        if isinstance(error, OSError):
            raise not_started(error) from None
        raise
    launch.close()
    if wiring.terminal is not None:
        wiring.terminal.release_slave()
    try:
        # Here, and not above: the box is being set up on another processor.
        from stockade.sandbox.supervise import SAMPLE, Supervisor

        if meanwhile is not None:
            meanwhile()
        held = "" if lease is None else why_held(lease)
    except BaseException:
        for fd in (orders, events, status, gate):
            if fd >= 0:
                os.close(fd)
        wiring.close()
        raise
    try:
        evidence = Supervisor(
            orders=orders,
            events=events,
            status=status,
            gate=gate,
            streams=wiring.streams,
            terminal=wiring.terminal,
            stopper=stopper,
            deadline=deadline,
            process_limit=process_limit,
            bounds=bounds,
            network=lease.network if lease is not None else "",
            lease=lease.watched() if lease is not None else None,
            held=held,
            confirm=confirm,
            sample=SAMPLE if io.wires is None else io.wires.sample,
        ).watch()
    finally:
        wiring.close()
    if evidence.keeper_lost:
        clear_after_keeper(evidence.cgroup, job["stubs"])
    return Finished(evidence, wiring.captured.get(1), wiring.captured.get(2), time.monotonic() - began)


def clear_after_keeper(group: str, places: list[bytes]) -> None:
    """What a keeper that was killed could not take away any more: the cgroup and the stand-ins of its run."""
    from stockade.sandbox.processes import has_cgroups

    if has_cgroups():
        from stockade.sandbox import cgroup

        cgroup.clear_away(group)
    if places:
        from stockade.sandbox import stubs

        stubs.clear(places)


def why_held(lease: Lease) -> str:
    """Wait for the way out of a lease while the box is being set up. Why the program may not start without it."""
    from stockade.netns.errors import LeaseFailed

    try:
        lease.wait_attached()
    except LeaseFailed as error:
        return error.message
    return ""


def not_started(error: OSError) -> StockadeError:
    """The caller has run out of something, descriptors most likely, or what was there at the plan is there no more."""
    full = error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
    where = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    cause = "it vanished" if where and error.errno == errno.ENOENT else (error.strerror or str(error)).lower()
    return StockadeError(
        f"could not start the run: {where}{cause}",
        remedy="Close files that are not needed, or raise the limit (ulimit -n)." if full else "",
    )


def give_status(launch: Launch) -> int:
    """The pipe of bwrap's records: the child's end goes into ``launch``, ours is returned."""
    status, status_write = os.pipe()
    launch.give(status_write, lines.STATUS_FD)
    return status


def give_gate(launch: Launch) -> int:
    """The pipe that holds the program back: the child has both ends, and so have we the one that opens it."""
    gate_read, gate = os.pipe()
    launch.give(gate_read, lines.BLOCK_FD)
    launch.give(gate, lines.SYNC_FD, owned=False)
    return gate
