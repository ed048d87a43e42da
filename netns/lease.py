"""A lease: a network namespace with rules, names and, where the policy lets something out, a connector.

Building, in this order; a step that fails ends the lease, and nothing runs:
    1  holder       namespaces, rules (read back), sockets; from here on nothing can leave
    2  service      a thread that answers names and records attempts, on the holder's sockets
    3  connector    allow, open: slirp4netns or pasta attaches a link to the holder; ready by descriptor
The program enters by the holder's two namespace descriptors, below a user namespace of its own.

Tearing down, every step attempted whatever the one before did:
    1  service      stopped and joined, its sockets closed; what it gave to the edge is cut
    2  counters     read from the holder's rules (``finish`` only)
    3  connector    its exit descriptor closed; it takes tens of milliseconds to go, and is not waited for
    4  holder       its socket closed: it ends, and with the last process the kernel takes the namespaces
All of it also happens when this process dies: every part hangs on a descriptor that only it holds.
"""

from __future__ import annotations

import marshal
import os
import select
import time

from stockade.netns.errors import LeaseFailed, LeaseLate
from stockade.netns.rights import received, space
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from stockade.netns.edge.requests import EgressRequest
    from stockade.netns.egress import EgressAttempt, EgressDropped
    from stockade.netns.parts import Edge, Part, Spawner
    from stockade.netns.service import Service
    from stockade.netns.upstream import Upstream
    from stockade.policies.edge import EdgeRule
    from stockade.policies.hosts import HostRule
else:
    import _socket as socket  # ``socket`` itself pulls in enum and selectors, which costs milliseconds


READY_SECONDS = 10.0
STOPPED = 1.0
"""Seconds that a holder which is stopped is waited for when a run ends or begins: that may last for ever."""
TCP_PORT, UDP_PORT = 65010, 65011
"""Where a recording lease's traffic is redirected to."""
READY_FD, EXIT_FD = 11, 12
LINK = "tap0"
EDGE = "the edge's proxy"
SILENT_EDGE = "what went through the edge may not be all: its proxy did not answer"
MTU = 65520


class LeaseSpec(Record):
    """What a lease is to be. ``kind`` is allow, open or record."""

    kind: str
    rules: tuple[HostRule, ...]
    private: bool
    nft: str | None
    """Path of the nft binary, used where the library is not there."""
    site: str | None
    """Directory of the Python binding of libnftables."""
    connector: str
    """``slirp4netns`` or ``pasta``; empty where nothing is let out."""
    program: str | None
    """Path of the connector."""
    as_caller: bool
    """Only the caller can open /dev/net/tun: the connector keeps the caller's uid."""
    ids: tuple[int, int]
    """The uid and gid of the connector."""
    check: str = "auto"
    """``network.check`` of the policy."""
    edge: tuple[EdgeRule, ...] = ()
    mask_queries: bool = False


class Report(Record):
    """What was tried, reached and refused."""

    egress: tuple[EgressAttempt, ...]
    dropped: EgressDropped
    notes: tuple[str, ...]
    requests: tuple[EgressRequest, ...] = ()
    """What went through the edge, request by request."""


class Lease:
    """A context manager. ``start`` begins, ``wait_ready`` completes: what lies between can be used otherwise.

    ``wait_ready`` is ``wait_rules``, from where on the lease can be entered and nothing leaves it that should not,
    and ``wait_attached``, before which nothing leaves it at all.
    """

    def __init__(self, spec: LeaseSpec, spawner: Spawner, *, upstream: Upstream | None = None) -> None:
        self.spec = spec
        self.spawner = spawner
        self.upstream = upstream
        self.parts: dict[str, Part] = {}
        self.control: socket.socket | None = None
        self.namespaces: tuple[int, int] | None = None
        self.network = ""
        """The name that the kernel gives the network namespace (``net:[...]``)."""
        self.service: Service | None = None
        self.edge: Edge | None = None
        """Takes the connections that entries of the edge mean; to be set before a program begins. Closed with the lease."""
        self._handed: list[socket.socket] = []
        self._exit = self._ready = -1
        self._deadline = 0.0
        self._holder = 0
        self._ending = False
        self._mute = ""
        """Why the holder is asked nothing more: an answer that comes late would pass for that to the next question."""

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> None:
        """Have the holder started; nothing to do for one that was."""
        if self.parts:
            return
        from stockade.netns.diverted import RELAY_PORT, needs_relay
        from stockade.netns.ruleset import rules_text

        spec = self.spec
        relay = RELAY_PORT if needs_relay(spec) else 0
        edge = tuple(each.host for each in spec.edge)
        ports = {"tcp_port": TCP_PORT, "udp_port": UDP_PORT, "relay_port": relay}
        text = rules_text(spec.kind, spec.rules, private=spec.private, edge=edge, **ports)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        try:
            job = {
                "kind": spec.kind,
                "rules": text,
                "relay": relay > 0,
                "site": spec.site,
                "nft": spec.nft,
                "sockets": sockets_of(spec.kind, relay),
            }
            self.parts["holder"] = self.spawner.holder(job, theirs.fileno())
        finally:
            theirs.close()

    def wait_ready(self) -> None:
        """Wait until the lease can be used. Raises LeaseFailed, naming the part."""
        self.wait_rules()
        self.wait_attached()

    def wait_rules(self, until: float | None = None) -> None:
        """Wait for the holder, start service and connector; no longer than ``until``, a time of ``time.monotonic``.

        Raises LeaseFailed, naming the part.
        """
        if self.service is not None:
            return
        latest = time.monotonic() + READY_SECONDS
        self._deadline = latest if until is None else min(until, latest)
        # While the holder is being made: threads alone take 2 ms to load.
        from stockade.netns import service  # noqa: F401

        answer, fds = self._hear("holder", self._deadline)
        self._handed = [socket.socket(fileno=fd) for fd in fds]
        if not answer["ready"]:
            raise failed(answer["part"], answer["cause"])
        self._take(answer["pid"])
        part = self.spec.connector
        try:
            if self.spec.kind != "record":
                self._attach(answer["pid"])
            part = "the name service"
            self._serve()
        except OSError as error:  # no more descriptors
            raise failed(part, (error.strerror or f"{error}").lower()) from error

    def wait_attached(self) -> None:
        """Wait until the connector's link is there. Raises LeaseFailed."""
        if self._ready < 0:
            return
        wait_readable(self._ready, self._deadline, self.spec.connector)
        if not self._attached(os.read(self._ready, 32)):
            # Without a holder there is nothing to attach to.
            part = "holder" if self._hung_up() else self.spec.connector
            raise failed(part, "it ended before the link was there")
        os.close(self._ready)
        self._ready = -1

    def begin(self) -> None:
        """A run begins in a lease that was made before: what it tries is timed from now on."""
        if self.service is not None:
            self.service.restart()

    def command(self, text: str, *, patient: bool = True) -> dict[str, Any]:
        """Run nft commands in the lease; text that begins with ``?`` is a query. Raises LeaseFailed.

        ``patient``: also with a holder that somebody stopped, who may let it go on, until the run ends.
        """
        assert self.control is not None
        if self._mute:
            raise failed("holder", self._mute)
        try:
            self.control.send(text.encode())
        except ConnectionError:
            raise failed("holder", "it ended") from None
        self._mute = self._silence(patient)
        if self._mute:
            raise failed("holder", self._mute)
        answer, _fds = self._hear("holder", time.monotonic())
        if "error" in answer:
            raise failed("nft", answer["error"])
        found: dict[str, Any] = answer["ok"]
        return found

    def lost(self) -> str:
        """Which part is gone, or broke in this process; empty as long as all are there.

        To be asked once the program has ended: it may have done so before anybody noticed that its network had.
        """
        gone = next((name for name, part in self.parts.items() if part.ended()), "")
        if not gone and self.edge is not None and self.edge.lost:
            gone = EDGE
        if gone or self.service is None:
            return gone
        if self.service.error:
            return f"the name service ({self.service.error})"
        if self._hung_up():
            return "holder"
        if self.spec.kind == "record":
            return ""
        from stockade.netns.errors import LeaseFailed

        # A connector that is killed takes its link along first; the keeper hears of its end much later.
        try:
            return "" if self.command(f"link {LINK}", patient=False)["up"] else self.spec.connector
        except LeaseFailed as error:
            return error.part

    def watched(self) -> dict[int, str]:
        """Event descriptors to watch during the run, and the part that each stands for."""
        edge = {self.edge.events: EDGE} if self.edge is not None else {}
        return {part.events: name for name, part in self.parts.items()} | edge

    def finish(self) -> Report:
        """Stop serving and tell what was seen. Raises LeaseFailed when the counters can't be read."""
        from stockade.netns.egress import report_of

        assert self.service is not None
        self._ending = True
        seen = self.service.stop()
        self._close_edge()
        self.service.settle()
        document = self.command("?list table inet stockade")
        report = report_of(self.spec.kind, seen, document)
        requests = self.edge.requests() if self.edge is not None else ()
        silent = (SILENT_EDGE,) if self.edge is not None and self.edge.unheard else ()
        return report.replace(notes=(*report.notes, *idle_entries(self.spec), *silent), requests=requests)

    def close(self) -> None:
        """Take everything down. What fails does not keep the rest from being tried."""
        self._ending = True
        parts = [part.close for part in reversed(self.parts.values())]
        steps = [self._stop_service, self._close_edge, self._close_fds, *parts]
        self.parts = {}
        for step in steps:
            try:
                step()
            except OSError:
                pass  # it is gone already

    def _serve(self) -> None:
        from stockade.netns.service import Service

        service = Service(self.spec, self._handed, self.command, self.upstream, edge=lambda: self.edge)
        self.service, self._handed = service, []
        try:
            service.start()
        except RuntimeError as error:  # no more threads
            raise failed("the name service", f"{error}") from error

    def _stop_service(self) -> None:
        for each in self._handed:
            each.close()
        self._handed = []
        if self.service is not None:
            self.service.stop()
            self.service.close()

    def _close_edge(self) -> None:
        """After the service, which gives it connections. A second time does nothing."""
        if self.edge is not None:
            self.edge.close()

    def _close_fds(self) -> None:
        for fd in (self._exit, self._ready, *(self.namespaces or ())):
            if fd >= 0:
                os.close(fd)
        self._exit = self._ready = -1
        self.namespaces = None
        if self.control is not None:
            self.control.close()

    def _take(self, pid: int) -> None:
        """Hold the holder's namespaces by descriptor. The pid can't be another's: its socket is still open."""
        self._holder = pid
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            user = os.open(f"/proc/{pid}/ns/user", flags)
            try:
                self.namespaces = user, os.open(f"/proc/{pid}/ns/net", flags)
            except OSError:
                os.close(user)
                raise
            self.network = os.readlink(f"/proc/{pid}/ns/net")
        except OSError as error:
            raise failed("holder", f"its namespaces can't be held: {(error.strerror or '').lower()}") from error

    def _attach(self, pid: int) -> None:
        spec = self.spec
        assert spec.program is not None
        self._ready, ready_write = os.pipe()
        try:
            exit_read, self._exit = os.pipe()
        except OSError:
            os.close(ready_write)
            raise
        numbers, leash = (READY_FD, EXIT_FD), None
        try:
            if spec.connector == "pasta":
                from stockade.netns import pasta

                argv = pasta.pasta_argv(spec.program, pid, LINK, MTU, spec.ids)
                numbers, leash = (pasta.READY_FD, pasta.EXIT_FD), pasta.EXIT_FD
                os.fchmod(ready_write, 0o622)  # it is opened anew, maybe under another uid
            else:
                argv = slirp_argv(spec.program, pid)
            fds = list(zip((ready_write, exit_read), numbers, strict=True))
            self.parts[spec.connector] = self.spawner.program(argv, fds, as_caller=spec.as_caller, leash=leash)
        finally:
            os.close(ready_write)
            os.close(exit_read)

    def _attached(self, said: bytes) -> bool:
        """Whether the connector says that its link is there."""
        if self.spec.connector != "pasta":
            return said == b"1"
        from stockade.netns.pasta import is_ready

        return is_ready(said)

    def _hung_up(self) -> bool:
        assert self.control is not None
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        return any(events & select.POLLHUP for _fd, events in poll.poll(0))

    def _silence(self, patient: bool) -> str:
        """Wait for an answer of the holder. Why none comes; empty once one is there."""
        assert self.control is not None
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        deadline = time.monotonic() + READY_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(min(left, STOPPED) * 1000):
                return ""
            if (self._ending or not patient) and is_stopped(self._holder):
                return "it is stopped"
        return f"it did not answer within {READY_SECONDS:g} s"

    def _hear(self, part: str, deadline: float) -> tuple[dict[str, Any], list[int]]:
        assert self.control is not None
        wait_readable(self.control.fileno(), deadline, part)
        try:
            body, ancillary, flags, _address = self.control.recvmsg(1 << 16, space(16), socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            raise failed(part, "it ended") from None
        fds = received(ancillary)
        if flags & socket.MSG_CTRUNC:  # the kernel drops what there is no room for
            for fd in fds:
                os.close(fd)
            raise failed(part, "too many open files")
        if not body:
            raise failed(part, "it ended")
        if body == b"a":
            with open(fds.pop(), "rb") as file:
                file.seek(0)
                return marshal.loads(file.read()), fds  # noqa: S302  (from our own holder)
        return marshal.loads(body[1:]), fds  # noqa: S302


def sockets_of(kind: str, relay: int = 0) -> list[tuple[int, int, str, int]]:
    """Family, type, address and port of the sockets that the holder opens, in the order the service expects.

    ``relay`` is the port of the relay, or 0.
    """
    names = [
        (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1", 53),
        (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 53),
    ]
    if relay:
        names.append((socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", relay))
    if kind != "record":
        return [(int(family), int(kind_), address, port) for family, kind_, address, port in names]
    sinks = [
        (socket.AF_INET6, socket.SOCK_DGRAM, "::1", 53),
        (socket.AF_INET6, socket.SOCK_STREAM, "::1", 53),
        (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", TCP_PORT),
        (socket.AF_INET6, socket.SOCK_STREAM, "::1", TCP_PORT),
        (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1", UDP_PORT),
        (socket.AF_INET6, socket.SOCK_DGRAM, "::1", UDP_PORT),
    ]
    return [(int(family), int(kind_), address, port) for family, kind_, address, port in (*names, *sinks)]


def idle_entries(spec: LeaseSpec) -> tuple[str, ...]:
    """A note for each allow entry that opens nothing: its addresses are refused in every lease, or it is IPv6."""
    from stockade.netns.ruleset import beyond_reach

    never = beyond_reach(spec.rules) if spec.kind == "allow" else ()
    return tuple(f"allow entry {rule.text!r} opens nothing: a lease can't reach it" for rule in never)


def slirp_argv(program: str, pid: int) -> list[str]:
    """slirp4netns(1): its own sandbox and filter on, the host's loopback out of reach, no IPv6."""
    return [
        program,
        "--configure",
        f"--mtu={MTU}",
        "--disable-host-loopback",
        "--disable-dns",
        "--enable-sandbox",
        "--enable-seccomp",
        f"--ready-fd={READY_FD}",
        f"--exit-fd={EXIT_FD}",
        str(pid),
        LINK,
    ]


def wait_readable(fd: int, deadline: float, part: str) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left = max(0.0, deadline - time.monotonic())
    if not poll.poll(left * 1000):
        raise failed(part, f"it was not ready within {left:.3g} s", LeaseLate)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def failed(part: str, cause: str, kind: type[LeaseFailed] = LeaseFailed) -> LeaseFailed:
    return kind(f"could not lease a network: {part}: {cause}", part=part, remedy="Run `stockade doctor`.")
