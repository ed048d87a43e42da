"""What the relay of one lease asks: the policy, the names that were answered, the edge and the record."""

from __future__ import annotations

import errno

from stockade.netns.admission import EDGE
from stockade.netns.namecheck import PASS, TRANSFORM, Opening, by_address, judge
from stockade.netns.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from stockade.netns.admission import Admission
    from stockade.netns.egress import Ledger
    from stockade.netns.lease import LeaseSpec
    from stockade.netns.namecheck import Decision
    from stockade.netns.parts import Edge
    from stockade.netns.relay import RelayEvent


MOST_GIVEN = 10_000


class Carrying:
    """All of it happens in the service thread."""

    def __init__(
        self, spec: LeaseSpec, admission: Admission, ledger: Ledger, edge: Callable[[], Edge | None]
    ) -> None:
        self._spec, self._admission, self._ledger, self._edge = spec, admission, ledger, edge
        self._given: dict[int, tuple[str, int, str]] = {}
        """Address, port and name of connections by the number that the edge gave them."""

    def relay(self, listening: socket.socket) -> Relay:
        """The relay on a socket that the holder made."""
        return Relay(
            listening,
            judge=self.judge,
            transform=self.hand_on if self._spec.edge else None,
            check_again=self.check_again,
            record=self.note,
            first_without_name=self.is_open,
        )

    def is_open(self, address: str, port: int) -> bool:
        """Whether a destination is allowed whatever is said; not where a request may be for an entry of the edge."""
        return by_address(address, port, self._spec.rules) and self._admission.reason(None, address, port) != EDGE

    def judge(self, opening: Opening, address: str, port: int) -> Decision:
        spec = self._spec
        return judge(
            opening,
            address,
            port,
            rules=spec.rules,
            edges=spec.edge,
            leads=self._admission.leads,
            kind=spec.kind,
        )

    def check_again(self, name: str, address: str, port: int) -> str:
        """Why a later request on a connection may not ask for ``name``; empty if it may."""
        decision = self.judge(Opening("http", name), address, port)
        if decision.action == TRANSFORM:
            return f"{name} is reached through the edge, and this connection is not"
        return "" if decision.action == PASS else decision.reason

    def hand_on(self, sock: socket.socket, data: bytes, decision: Decision, address: str, port: int) -> None:
        """Give a connection to the edge. Raises OSError where there is none."""
        edge = self._edge()
        if edge is None or decision.name is None or decision.edge is None:
            raise OSError(errno.ENOTCONN, "there is no edge")
        tls, began = self._spec.edge[decision.edge].scheme == "https", self._ledger.began
        number = edge.take(sock, bytes(data), host=decision.name, address=address, port=port, tls=tls, began=began)
        if number is not None and len(self._given) < MOST_GIVEN:
            self._given[number] = (address, port, decision.name)

    def settle(self) -> None:
        """Put on record what connections that the edge has ended carried. To be called once, at the end."""
        edge = self._edge()
        for each in edge.ended if edge is not None else ():
            if each.connection in self._given:
                self._ledger.relayed.credit(*self._given.pop(each.connection), each.sent)

    def note(self, event: RelayEvent) -> None:
        """On record with it is why it was looked at, if it was let through."""
        if event.allowed:
            why = self._admission.reason(event.name, event.address, event.port)
            event = event.replace(reason="; ".join(filter(None, (why, event.reason))))
        self._ledger.add_relayed(event)
