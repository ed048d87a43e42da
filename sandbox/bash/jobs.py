"""Background jobs: each a run of its own in a thread of its own, which sleeps until its program writes or ends.

A job outlives the thread that started it and no more: it ends with ``close`` and with the process, also when that is
killed (the keeper sees to it). What is decided about a call was decided before it came here.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.bash.backlog import Backlog, patience
from stockade.sandbox.bash.calls import Taken, carry, refused
from stockade.sandbox.bash.ending import end_at_exit
from stockade.sandbox.bash.result import Chunk, JobState
from stockade.sandbox.bash.spill import Spill
from stockade.sandbox.stopper import Stopper
from stockade.sandbox.streams import open_pipe
from stockade.sandbox.wires import Wires

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.bash.calls import Call
    from stockade.sandbox.bash.result import BashResult
    from stockade.sandbox.bash.spill import SpillPlace
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

MOST = 16
"""Jobs that may run at once, where the tool says nothing else."""

REMEMBERED = 32
"""Jobs that have ended and can still be asked for."""

GRACE = 2.0
"""Seconds between asking a job to stop and killing it."""

WRITE_SECONDS = 10.0
"""How long a write waits for a program that does not read its input."""

SAMPLE = 0.5
"""Seconds between two looks at the processes of a job."""

SMALL, PAUSE, OFTEN = 4096, 0.05, 10
"""A stream that was read this many times in a row with few bytes and less than the pause (seconds) between is let
gather for that long: twenty jobs that write a line every few milliseconds would keep this process busy."""

LAST_WAIT = 5.0
"""Seconds that ``close`` waits for killed jobs; one that hangs in the kernel is left to the keeper."""


class Heard(Spill):
    """A captured stream that also goes to a backlog."""

    def __init__(self, fd: int, name: str, place: SpillPlace, kept: int, backlog: Backlog) -> None:
        super().__init__(fd, name, place, kept)
        self.backlog = backlog
        self._often = 0
        self._last = 0.0

    def handle(self, fd: int, events: int) -> None:
        before = self.total
        super().handle(fd, events)
        quick = time.monotonic() - self._last < PAUSE and self.total - before < SMALL
        self._often = self._often + 1 if quick else 0
        if self._often >= OFTEN:
            time.sleep(PAUSE)
        self._last = time.monotonic()

    def keep(self, data: bytes) -> None:
        super().keep(data)
        self.backlog.keep(data)


class Listening(Taken):
    """The captured streams of a job."""

    def __init__(self, call: Call, backlog: Backlog) -> None:
        super().__init__(call)
        self.backlog = backlog

    def make(self, number: int, fd: int) -> Spill:
        name = "stdout" if number == 1 else "stderr"
        self.streams[number] = Heard(fd, name, self.spills, self.kept, self.backlog)
        return self.streams[number]


class Job:
    """One job: started when made, settled when ``result`` is there."""

    def __init__(self, name: str, call: Call, leases: LeasePool | None) -> None:
        """Raises StockadeError when this process has no descriptor or thread left."""
        self.name, self.call, self.leases = name, call, leases
        self.began = time.monotonic()
        self.backlog = Backlog()
        self.result: BashResult | None = None
        self._settled = threading.Condition(threading.Lock())
        self._writing = threading.Lock()
        self._stdin = -1
        try:
            self._source, self._stdin = open_pipe()
        except OSError as error:
            raise not_started(error) from None
        try:
            self._stopper = Stopper()
            os.set_blocking(self._stdin, False)
            threading.Thread(target=self._work, name=f"stockade-{name}", daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._close_descriptors()
            raise not_started(error) from None

    def _work(self) -> None:
        call = self.call.replace(order=self.call.order.replace(stdin=self._source))
        try:
            taken = Listening(call, self.backlog)
            result = carry(call, stopper=self._stopper, leases=self.leases, taken=taken, wires=Wires(sample=SAMPLE))
        except StockadeError as error:
            result = refused(call, error)
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            result = refused(call, StockadeError(f"could not run the job: {type(error).__name__}: {error}"))
        self._settle(result.replace(job=self.name))

    def _settle(self, result: BashResult) -> None:
        with self._settled:
            self._close_descriptors()
            self.result = result
            self.backlog.close()
            self._settled.notify_all()

    def _close_descriptors(self) -> None:
        os.close(self._source)
        self._close_stdin()
        if hasattr(self, "_stopper"):
            self._stopper.close()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def state(self) -> BashResult | JobState:
        with self._settled:
            return self.result or self._running()

    def _running(self) -> JobState:
        seconds = time.monotonic() - self.began
        return JobState(self.name, self.call.command, self.call.mode, seconds, self.backlog.total)

    def wait(self, timeout: float | None) -> BashResult | None:
        """The result once it is there; None when the time (seconds; None for no end) was over before."""
        seconds = None if timeout is None else patience(timeout)
        with self._settled:
            self._settled.wait_for(lambda: self.result is not None, seconds)
            return self.result

    def read(self, since: int, wait: float | None) -> Chunk:
        piece = self.backlog.read(since, wait)
        return Chunk(self.name, piece.data, piece.since, piece.next, piece.dropped, piece.open)

    def ask(self, number: int) -> None:
        """Pass a signal on; nothing to do for a job that has ended."""
        with self._settled:
            if self.result is None:
                self._stopper.request(number)

    def write(self, data: bytes, *, end: bool) -> None:
        """Feed standard input. Raises RequestError when it is closed, or not read."""
        with self._writing:
            self._feed(data)
            if end:
                with self._settled:
                    self._check_input()
                    self._close_stdin()

    def _feed(self, data: bytes) -> None:
        with self._settled:
            self._check_input()
            fd = os.dup(self._stdin)  # the job may end meanwhile, and its own be closed
        try:
            taken = write_all(fd, data, time.monotonic() + WRITE_SECONDS)
        except BrokenPipeError:
            raise self._no_input("it has ended") from None
        finally:
            os.close(fd)
        if taken < len(data):
            raise self._no_input(f"it took {taken} of {len(data)} bytes in {WRITE_SECONDS:g} seconds")

    def _check_input(self) -> None:
        """Called with the lock."""
        if self.result is not None:
            raise self._no_input("it has ended")
        if self._stdin < 0:
            raise self._no_input("its input was closed")

    def _no_input(self, cause: str) -> RequestError:
        return RequestError(f"could not write to {self.name}: {cause}")


class Jobs:
    """The jobs of one tool. For many threads."""

    def __init__(self, most: int = MOST, leases: LeasePool | None = None) -> None:
        """``most``: how many may run at once. Raises RequestError."""
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise RequestError(f"could not use jobs={most!r}: it is not a number of jobs")
        self.most, self.leases = most, leases
        self._jobs: dict[str, Job] = {}
        self._count = 0
        self._closed = False
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def start(self, call: Call) -> str:
        """Start a call, with an open standard input. Returns the id of its job. Raises RequestError at the limit."""
        with self._lock:
            self._check_start()
            self._count += 1
            job = Job(f"job-{self._count}", call, self.leases)
            self._jobs[job.name] = job
            self._forget()
        end_at_exit(self)
        return job.name

    def _check_start(self) -> None:
        if self._closed:
            raise RequestError("could not start a job: the tool is closed")
        running = [job.name for job in self._jobs.values() if job.result is None]
        if len(running) >= self.most:
            raise RequestError(
                f"could not start a job: {len(running)} are running, and {self.most} may",
                remedy="Stop one, wait until one has ended, or make the tool with a larger jobs=.",
            )

    def _forget(self) -> None:
        settled = [name for name, job in self._jobs.items() if job.result is not None]
        for name in settled[: max(0, len(settled) - REMEMBERED)]:
            del self._jobs[name]

    def find(self, job: str) -> Job:
        """Raises RequestError for an id that nobody has."""
        if os.getpid() != self._owner:
            raise RequestError(
                f"could not use job {job!r}: it belongs to process {self._owner}, which forked this one"
            )
        with self._lock:
            found = self._jobs.get(job) if isinstance(job, str) else None
            if found is not None:
                return found
            known = ", ".join(self._jobs)
        raise RequestError(
            f"could not find job {job!r}: there is none with that id",
            remedy=f"Known are {known}." if known else "Start one first.",
        )

    def poll(self, job: str) -> BashResult | JobState:
        """How it stands; its result once it has settled."""
        return self.find(job).state()

    def wait(self, job: str, timeout: float | None = None) -> BashResult | JobState:
        """``poll``, after it has settled or the time (seconds; None for no end) is over."""
        found = self.find(job)
        return found.wait(timeout) or found.state()

    def read(self, job: str, since: int = 0, *, wait: float | None = None) -> Chunk:
        """What it wrote from a place on. ``wait``: seconds to wait for more when there is nothing yet."""
        return self.find(job).read(since, wait)

    def follow(self, job: str, since: int = 0) -> Iterator[Chunk]:
        """What it writes, as it comes, up to its end."""
        return followed(self.find(job), since)

    def write(self, job: str, data: bytes | str, *, end: bool = False) -> None:
        """Feed standard input; ``end`` closes it. Raises RequestError when it has ended, or does not read."""
        found = self.find(job)
        if not isinstance(data, bytes | bytearray | memoryview | str):
            raise RequestError(f"could not write to {job}: {type(data).__name__} is neither bytes nor text")
        found.write(as_bytes(data), end=end)

    def stop(self, job: str, grace: float = GRACE) -> BashResult:
        """Ask it to stop, kill it when ``grace`` seconds have passed. Returns its result, also if it had ended before."""
        found = self.find(job)
        patience(grace)  # checked before anything is asked
        found.ask(signal.SIGTERM)
        result = found.wait(grace)
        while result is None:
            found.ask(signal.SIGKILL)
            result = found.wait(None)
        return result

    def list(self) -> tuple[BashResult | JobState, ...]:
        """Every job that is known, the oldest first."""
        with self._lock:
            jobs = list(self._jobs.values())
        return tuple(job.state() for job in jobs)

    def close(self) -> None:
        """Kill what runs. No job can be started from here on; those that are known can still be asked."""
        if os.getpid() != self._owner:
            return  # a fork: what it copied is another process's to end
        with self._lock:
            self._closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            job.ask(signal.SIGKILL)
        until = time.monotonic() + LAST_WAIT
        for job in jobs:
            job.wait(max(0.0, until - time.monotonic()))


def followed(job: Job, since: int) -> Iterator[Chunk]:
    while True:
        chunk = job.read(since, math.inf)
        if chunk.data or chunk.dropped:
            yield chunk
        if not chunk.running:
            return
        since = chunk.next


def write_all(fd: int, data: bytes, until: float) -> int:
    """Write to a pipe that may be full, until a time of ``time.monotonic``. Returns how many bytes it took."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0:
                break
            poll.poll(left * 1000 + 1)
    return len(data) - len(view)


def as_bytes(data: bytes | str) -> bytes:
    if isinstance(data, str):
        from stockade.sandbox.order import encoded

        return encoded(data)
    return bytes(data)


def not_started(error: Exception) -> StockadeError:
    cause = getattr(error, "strerror", None) or str(error)
    return StockadeError(f"could not start a job: {cause.lower()}")
