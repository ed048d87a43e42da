"""The service thread of a lease: answers names and, where everything is recorded, every address.

One thread, one poll loop, on the sockets that the holder handed over. The parts decide; this file only runs
them. DNS messages cost 50 ms to import, so that happens here, when somebody asks or once the program was
started without being slowed down; questions that come meanwhile wait in their socket.
"""

from __future__ import annotations

import os
import select
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any

    from stockade.netns.admission import Admission
    from stockade.netns.carrying import Carrying
    from stockade.netns.egress import Ledger
    from stockade.netns.lease import LeaseSpec
    from stockade.netns.parts import Edge
    from stockade.netns.relay import Relay
    from stockade.netns.resolver import Resolver
    from stockade.netns.sinkhole import Sinkhole
    from stockade.netns.upstream import Synthetic, Upstream
    from stockade.policies.hosts import HostRule

QUIET = 0.06
"""Seconds that the start of a program has the interpreter for itself, unless somebody asks before."""
NAMES = 2
"""Sockets that names are asked on, in a lease that lets something out."""
LAST_TURNS = 8
"""Rounds for what was sent before the program ended."""


class Service:
    """Owns the handed-over sockets, in the order of ``lease.sockets_of``."""

    def __init__(
        self,
        spec: LeaseSpec,
        sockets: Sequence[socket.socket],
        command: Callable[[str], dict[str, Any]],
        upstream: Upstream | None,
        *,
        edge: Callable[[], Edge | None] = lambda: None,
    ) -> None:
        """``command`` runs nft text in the lease; only the service thread calls it until ``stop`` has returned.

        ``edge`` is asked when a connection is for it.
        """
        self.spec, self.sockets, self.command, self.upstream = spec, list(sockets), command, upstream
        self.parts: list[Resolver | Sinkhole | Relay] = []
        self.admission: Admission | None = None
        """Only where a relay is, as the next."""
        self.carrying: Carrying | None = None
        self._edge = edge
        self.ledger: Ledger | None = None
        self.error = ""
        """Why the thread ended early; empty as long as it did not."""
        self._wake_read, self._wake = os.pipe()
        self._guard = threading.Lock()
        self._stopping = self._loading = self._abandoned = False
        self._flows: dict[tuple[int, int], set[tuple[str, int]]] = {}
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="stockade-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def restart(self) -> None:
        """The run begins now."""
        self._began = time.monotonic()
        if self.ledger is not None:
            self.ledger.began = self._began

    def stop(self) -> Ledger:
        """Take what is still in the sockets, end the thread, and return what was seen.

        A thread that still loads what nobody asked for is left to itself: it ends with that, and touches nothing.
        """
        if not self._stopping:
            with self._guard:
                self._stopping = True
                self._abandoned = self._loading and not self._asked()
            os.write(self._wake, b"s")
            if self._thread.ident is not None and not self._abandoned:  # else it could not be started, or is left
                self._thread.join()
        if self.ledger is None:
            from stockade.netns.egress import Ledger

            self.ledger = Ledger(self.spec.kind, self._began)
        return self.ledger

    def settle(self) -> None:
        """Once stopped, and once the edge has ended its connections: put on record what those carried."""
        if self.carrying is not None:
            self.carrying.settle()

    def close(self) -> None:
        """Close every socket, once stopped."""
        for part in self.parts:
            part.close()
        for each in self.sockets:
            each.close()
        for fd in (self._wake_read, self._wake):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake = -1

    def _run(self) -> None:
        try:
            if self._wait_for_work() and self._load():
                self._make_parts()
                while not self._stopping:
                    self._turn(self._patience())
                self._last_look()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _wait_for_work(self) -> bool:
        """False when the run is over and nobody has asked anything."""
        poll = select.poll()
        for fd in (self._wake_read, *(each.fileno() for each in self.sockets)):
            poll.register(fd, select.POLLIN)
        poll.poll(QUIET * 1000)
        return not self._stopping or self._asked()

    def _asked(self) -> bool:
        """Whether something came in that nobody has taken yet."""
        poll = select.poll()
        for each in self.sockets:
            poll.register(each, select.POLLIN)
        return bool(poll.poll(0))

    def _load(self) -> bool:
        """Import what takes long. False when the run ended meanwhile and nobody had asked anything."""
        with self._guard:
            self._loading = True
        from stockade.netns import names

        names.load()
        if self._relayed():
            from stockade.netns import carrying  # noqa: F401
        with self._guard:
            self._loading = False
            return not self._abandoned

    def _last_look(self) -> None:
        """Take what is still in the sockets, and record what was not finished."""
        for _ in range(LAST_TURNS):
            self._turn(0.0)
        # Here, so that clients that are still open get into the record.
        for part in self.parts:
            part.close()

    def _turn(self, seconds: float) -> None:
        owners = {fd: (events, part) for part in self.parts for fd, events in part.fds() if events}
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for fd, (events, _part) in owners.items():
            poll.register(fd, events)
        for fd, events in poll.poll(seconds * 1000):
            if fd in owners:
                owners[fd][1].handle(fd, events)

    def _patience(self) -> float:
        """Seconds until a part has something to do by itself; lets those do it that have it to do now."""
        from stockade.netns.resolver import Resolver

        waits = [60.0]
        for part in self.parts:
            if isinstance(part, Resolver):
                waits.append(part.tick())
            else:
                now = time.monotonic()
                part.tick(now)
                waits.append(60.0 if (left := part.timeout(now)) is None else left)
        return max(0.0, min(waits))

    def _make_parts(self) -> None:
        import socket

        from stockade.netns.egress import Ledger
        from stockade.netns.upstream import HostResolver, Synthetic

        self.ledger = Ledger(self.spec.kind, self._began)
        # What was handed over knows only descriptors: the parts accept and receive.
        self.sockets = [socket.socket(fileno=each.detach()) for each in self.sockets]
        synthetic = Synthetic()
        udp, tcp, *rest = self.sockets
        if self._relayed():
            self._add_relay(rest[0])
        self.parts.append(self._resolver(udp, tcp, synthetic, self.upstream or HostResolver()))
        if self.spec.kind == "record":
            udp6, tcp6, *sinks = rest
            self.parts.append(self._resolver(udp6, tcp6, synthetic, self.upstream or HostResolver()))
            self.parts.append(self._sinkhole(sinks, synthetic))

    def _relayed(self) -> bool:
        return self.spec.kind != "record" and len(self.sockets) > NAMES

    def _add_relay(self, listening: socket.socket) -> None:
        """Where the names of connections are read, before anybody is told an address that leads there."""
        from stockade.netns.admission import Admission
        from stockade.netns.carrying import Carrying

        assert self.ledger is not None
        self.admission = Admission(self.spec.rules, self.spec.edge, self.spec.check)
        self.carrying = Carrying(self.spec, self.admission, self.ledger, self._edge)
        self.parts.append(self.carrying.relay(listening))

    def _resolver(
        self, udp: socket.socket, tcp: socket.socket, synthetic: Synthetic, upstream: Upstream
    ) -> Resolver:
        from stockade.netns.resolver import Resolver

        assert self.ledger is not None
        return Resolver(
            udp,
            tcp,
            rules=self.admission.rules() if self.admission is not None else self.spec.rules,
            kind=self.spec.kind,
            admit=self._admit,
            upstream=upstream,
            record=self.ledger.add_name,
            private=self.spec.private,
            synthetic=synthetic,
        )

    def _sinkhole(self, sinks: Sequence[socket.socket], synthetic: Synthetic) -> Sinkhole:
        from stockade.netns.sinkhole import Sinkhole

        assert self.ledger is not None
        tcp4, tcp6, udp4, udp6 = sinks
        return Sinkhole(
            tcp4,
            tcp6,
            udp4,
            udp6,
            name_of=synthetic.name_of,
            udp_destination=self._udp_destination,
            look=self._look_at_flows,
            record=self.ledger.add_seen,
        )

    def _admit(self, rules: Sequence[HostRule], name: str, addresses: Sequence[str], seconds: int) -> None:
        from stockade.netns.ruleset import admit_text

        plan = None
        if self.admission is not None:
            plan = self.admission.plan(rules, name, addresses, seconds)
        text = admit_text(rules, addresses, seconds) if plan is None else plan.text
        if text:
            self.command(text)
        if self.admission is not None and plan is not None:
            self.admission.keep(plan)

    def _look_at_flows(self) -> None:
        """Where each source port has sent datagrams, by the rules' own record."""
        from stockade.netns.counters import parse_sets

        self._flows = {}
        for family, source, address, port in parse_sets(self.command("?list table inet stockade")).udp:
            self._flows.setdefault((family, source), set()).add((address, port))

    def _udp_destination(self, family: int, port: int) -> tuple[str, int] | None:
        """None also for a port that has sent to several: which of them a datagram was meant for is not known."""
        places = self._flows.get((family, port), set())
        return next(iter(places)) if len(places) == 1 else None
