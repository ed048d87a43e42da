"""What the relay of a lease let through or refused (pure): connections made a list of attempts, and a hint for each.

An attempt here is a name at an address: the relay has read it, so names that share an address are told apart.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.netns.relay import RelayEvent

RANK = {"tls": 2, "http": 2}
UNRESOLVED, NO_RULE, BY_SCHEME, DIALLED = "was not resolved to", "no rule allows", "the edge reaches", "was dialled"
"""Words of reasons that a hint goes by."""
RESOLVE = "Ask the run's own resolver for the name and connect to what it answers; an answer is good for a minute and a half."
NO_NAME = (
    'What carries no name can\'t be told apart: network.check = "address", or check=address after the entry, lets it '
    "through; a host of network.edge takes HTTP alone."
)
NOT_THERE = "Connect to the host itself: what is checked is led here without being asked."


class Tally:
    """All connections for one name at one place that ended the same way."""

    __slots__ = ("bytes", "connections", "first", "via")

    def __init__(self, via: str) -> None:
        self.via, self.connections, self.bytes = via, 0, 0
        self.first = float("inf")

    def add(self, event: RelayEvent) -> None:
        self.connections += 1
        self.bytes += event.sent
        self.first = min(self.first, event.started)
        if RANK.get(event.via, 1) > RANK.get(self.via, 1):
            self.via = event.via


Key = tuple[str, int, str, bool, str]
"""Address, port, host, whether it was let through, why."""


class Tallies:
    """At most ``most`` of what was let through, and as many of what was not: neither can crowd out the other."""

    def __init__(self, most: int) -> None:
        self._room = {True: most, False: most}
        self._found: dict[Key, Tally] = {}
        self._passed: dict[tuple[str, int, str], Tally] = {}

    def add(self, event: RelayEvent) -> bool:
        """False where there is no room."""
        key = (event.address, event.port, event.name or event.address, event.allowed, event.reason)
        tally = self._found.get(key)
        if tally is None:
            if not self._room[event.allowed]:
                return False
            self._room[event.allowed] -= 1
            tally = self._found[key] = Tally(event.via)
            if event.allowed:
                self._passed[key[:3]] = tally
        tally.add(event)
        return True

    def credit(self, address: str, port: int, host: str, size: int) -> None:
        """Bytes that were sent there by somebody else."""
        if tally := self._passed.get((address, port, host)):
            tally.bytes += size

    def __iter__(self) -> Iterator[tuple[Key, Tally]]:
        return iter(self._found.items())


def hint_of(reason: str, rule: str | None) -> str:
    """What would let a refused connection through. ``rule`` is the allow entry that would name its host, if one can."""
    if DIALLED in reason:
        return NOT_THERE
    if NO_RULE in reason:
        return f"--allow {rule} opens it." if rule else "No entry can name this host."
    if UNRESOLVED in reason:
        return RESOLVE
    if BY_SCHEME in reason:
        return "The entry of network.edge says by which scheme its host is reached."
    return NO_NAME
