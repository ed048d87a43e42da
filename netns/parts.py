"""What a lease asks of its parts: the types alone, which nothing imports while it runs."""

from __future__ import annotations

from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from stockade.netns.edge.link import Ended
    from stockade.netns.edge.requests import EgressRequest


class Edge(Protocol):
    """Where requests are judged and completed; outside of the lease."""

    def take(
        self, sock: socket.socket, data: bytes, *, host: str, address: str, port: int, tls: bool, began: float
    ) -> int | None:
        """Own an accepted connection of which ``data`` was read. Never waits for long. Its number in ``ended``."""

    def requests(self) -> tuple[EgressRequest, ...]: ...

    def close(self) -> None:
        """Cut what it still has. Waits a while for the last records; may be called twice."""

    @property
    def ended(self) -> Sequence[Ended]: ...

    @property
    def events(self) -> int:
        """Like that of a part: it says nothing but that the edge is gone."""

    @property
    def lost(self) -> bool:
        """Whether it went before it was closed."""

    @property
    def unheard(self) -> bool:
        """Whether its records may not be all, because nothing was heard of it when it was closed."""


class Part(Protocol):
    """A process of the lease, run by the keeper."""

    events: int
    """Says ``started``, then ``ended``; closed when the keeper is gone."""

    def ended(self) -> bool:
        """Whether it is gone by now."""

    def close(self) -> None:
        """Nobody needs it any more."""


class Spawner(Protocol):
    """Starts the processes of a lease."""

    def holder(self, job: dict[str, Any], control: int) -> Part: ...

    def program(
        self, argv: Sequence[str], fds: Sequence[tuple[int, int]], *, as_caller: bool, leash: int | None
    ) -> Part:
        """``leash``: one of the numbers, a pipe; the program is killed when its other end is closed."""
