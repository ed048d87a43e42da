"""All connections of a relay: which descriptor is whose, what each is polled for, and which stage lasts too long.

What is idle costs nothing: one epoll descriptor knows them all, and of each stage only the oldest is looked at.
"""

from __future__ import annotations

import select

from stockade.netns.flow import DIALING, ENDING, PARTING, READING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from stockade.netns.flow import Flow

PATIENCE = {READING: 5.0, DIALING: 60.0, PARTING: 5.0, ENDING: 2.0}
"""Seconds that a stage may take; the others may last."""
BROKEN = select.EPOLLERR | select.EPOLLHUP
UNPOLLED = -1
_tables: set[FlowTable] = set()


def open_in_all() -> int:
    """Connections of all relays of this process, whose descriptors they share."""
    return sum(map(len, tuple(_tables)))


class FlowTable:
    """Owns the epoll descriptor ``poll``; the sockets are their flows'."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.flows: dict[Flow, None] = {}
        self._ends: dict[int, Flow] = {}
        self._staged: dict[str, dict[Flow, None]] = {stage: {} for stage in PATIENCE}  # oldest first
        _tables.add(self)

    def close(self) -> None:
        """The sockets are closed by now."""
        self.poll.close()
        _tables.discard(self)

    def __len__(self) -> int:
        return len(self.flows)

    def __contains__(self, flow: Flow) -> bool:
        return flow in self.flows

    def add(self, flow: Flow, sock: socket.socket) -> None:
        """``sock`` is one of the flow's; what it is polled for is up to ``watch``."""
        self.flows[flow] = None
        self._ends[sock.fileno()] = flow

    def of(self, fd: int) -> Flow | None:
        """Whose the descriptor is; None for one that was closed meanwhile."""
        return self._ends.get(fd)

    def stage(self, flow: Flow, stage: str, now: float) -> None:
        """It is in this stage from now on."""
        self._unstage(flow)
        flow.stage = stage
        if stage in PATIENCE:
            flow.deadline = now + PATIENCE[stage]
            self._staged[stage][flow] = None

    def count(self, stage: str) -> int:
        return len(self._staged[stage])

    def oldest(self, stage: str) -> Flow | None:
        return next(iter(self._staged[stage]), None)

    def next_deadline(self) -> float | None:
        oldest = [flow for stage in PATIENCE if (flow := self.oldest(stage)) is not None]
        return min((flow.deadline for flow in oldest), default=None)

    def late(self, now: float) -> Iterator[Flow]:
        """Those whose stage has lasted too long; each must be moved on before the next is asked for."""
        for stage in PATIENCE:
            while (flow := self.oldest(stage)) is not None and flow.deadline <= now:
                yield flow

    def watch(self, flow: Flow, hung: int = -1) -> None:
        """Poll for what it wants now. ``hung`` is a descriptor that is always ready, though nothing is wanted of it."""
        for sock in (flow.client, flow.server):
            if sock is None:
                continue
            fd, wanted = sock.fileno(), flow.wanted(sock)
            known = flow.masks.get(fd)
            if not wanted and (fd == hung or known == UNPOLLED):
                wanted = UNPOLLED
            if known == wanted:
                continue
            if known is None or known == UNPOLLED:
                self.poll.register(fd, wanted)
            elif wanted == UNPOLLED:
                self.poll.unregister(fd)
            else:
                self.poll.modify(fd, wanted)
            flow.masks[fd] = wanted

    def drop_server(self, flow: Flow) -> None:
        """Close its server's end, of which no more is wanted."""
        if flow.server is not None:
            self._unwatch(flow, flow.server)
            flow.server.close()
            flow.server = None

    def forget(self, flow: Flow) -> None:
        """Before its sockets are closed, or become another's."""
        self._unstage(flow)
        self.flows.pop(flow, None)
        for sock in (flow.client, flow.server):
            if sock is not None:
                self._unwatch(flow, sock)

    def _unwatch(self, flow: Flow, sock: socket.socket) -> None:
        fd = sock.fileno()
        self._ends.pop(fd, None)
        if flow.masks.pop(fd, UNPOLLED) != UNPOLLED:
            self.poll.unregister(fd)

    def _unstage(self, flow: Flow) -> None:
        if flow.stage in PATIENCE:
            self._staged[flow.stage].pop(flow, None)
