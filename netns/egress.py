"""Who was contacted, how, and how often (pure): names asked, packets counted and bytes recorded, made one list.

A ``Ledger`` takes events while the run lasts, within bounds; at the end the counters of the rules are merged in.
An attempt is one destination. Packet rules see addresses, not names: a host name here is the name that was asked
and led to the address, and where more than one did, ``shared`` says so. What the relay carried has the name that was
read, and is no row of the rules. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from stockade.netns.relayed import Tallies, hint_of
from stockade.policies.errors import PolicyError
from stockade.policies.hosts import METADATA, parse_rule
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from stockade.netns.counters import Row
    from stockade.netns.lease import Report
    from stockade.netns.relay import RelayEvent
    from stockade.netns.resolver import NameEvent
    from stockade.netns.sinkhole import AttemptSeen

ANSWERED, REBINDING = "answered", "rebinding"
NEVER = "Cloud metadata addresses are refused in every network kind."
REBINDING_HINT = (
    "Whoever owns a name can point it to a private address (DNS rebinding). If it is meant to lead there, "
    "set network.private = true or allow the address itself too."
)
PRIVATE_HINT = "Private addresses are refused; network.private = true opens them."
LED_NOWHERE = ("empty", "absent", "failed")
"""Outcomes of names that may be asked, and have no address."""
UNLISTED = "(further destinations)"
"""Host of an entry that says that the list is not complete; its packets are the attempts that found no room, or 0
when nobody knows how many they are."""
UNKNOWN = "(unknown destination)"
"""Host of what was recorded without the kernel telling where it was meant to go."""
MOST_DESTINATIONS = 10_000
MOST_NAMES = 10_000
MOST_HOSTS = 8
"""Names kept of one destination; ``UNLISTED`` stands for others."""
MOST_ADDRESSES = 256
"""Addresses kept of one name."""
MOST_TEXT = 4096
RANK = {"tls": 2, "http": 2}


class EgressAttempt(Record):
    """One destination that was contacted, or tried; or a name that was asked, if nothing was contacted by it."""

    host: str
    """The name that was asked and led there, else the server name or Host header, else the address. A name that
    is none stands in quotes."""
    address: str
    """Empty for a name by which nothing was contacted, unless it was refused for where it leads: that is told here."""
    port: int
    """0 for a name by which nothing was contacted."""
    protocol: str
    """``tcp``, ``udp``, ``dns`` for a mere name, or what else the rules counted."""
    allowed: bool
    """Whether packets for it may leave. Nothing leaves a recorded run."""
    packets: int
    """Packets as counted by the rules; else connections and datagrams; of a name, how often it was asked."""
    bytes: int
    via: str
    """How it was recognised: ``dns``, ``tcp``, ``udp``, ``tls`` or ``http``."""
    first_seen: float | None
    """Seconds since the run began; None when only the counters saw it."""
    data: str = ""
    """The first bytes as text (recorded runs); of a name that was refused for it, where it leads."""
    shared: tuple[str, ...] = ()
    """All names known for this address, when there is more than one and which was meant is not known."""
    reason: str = ""
    """Of a connection whose name was read: why it was refused, or why it was looked at."""


class EgressDropped(Record):
    """Packets that were refused, over all destinations."""

    packets: int
    bytes: int


class Asked:
    """All questions for one name with one outcome."""

    __slots__ = ("addresses", "name", "outcome", "time", "times")

    def __init__(self, event: NameEvent) -> None:
        self.name, self.outcome, self.time = plain_name(event.name), event.outcome, event.time
        self.times = 0
        self.addresses: dict[str, None] = {}

    def add(self, event: NameEvent) -> None:
        self.times += 1
        if len(self.addresses) < MOST_ADDRESSES:
            self.addresses |= dict.fromkeys(event.addresses)


class Destination:
    """What is known of one protocol, address and port."""

    __slots__ = ("bytes", "first", "hosts", "packets", "size", "texts", "via")

    def __init__(self, via: str) -> None:
        self.via = via
        self.first: float | None = None
        self.packets = self.bytes = self.size = 0
        self.hosts: dict[str, None] = {}
        self.texts: dict[str, None] = {}

    def add(self, event: AttemptSeen) -> None:
        self.packets += 1
        self.bytes += event.bytes
        self.first = event.started if self.first is None else min(self.first, event.started)
        if RANK.get(event.sniffed.via, 1) > RANK.get(self.via, 1):
            self.via = event.sniffed.via
        for host in (event.name, event.sniffed.host):
            if host and host not in self.hosts:
                self.hosts[host if len(self.hosts) < MOST_HOSTS else UNLISTED] = None
        self._keep(event.sniffed.text)

    def text(self) -> str:
        return "\n".join(self.texts)

    def _keep(self, text: str) -> None:
        """Different texts, as far as there is room."""
        text = text[: max(0, MOST_TEXT - self.size)]
        if text and text not in self.texts:
            self.texts[text] = None
            self.size += len(text) + 1


class Ledger:
    """Takes events as they come; what exceeds the bounds is counted in ``lost``, or ``lost_allowed``.

    ``kind`` is the network kind. ``began`` is when the run began, a time of ``time.monotonic``, as in the events.
    """

    def __init__(self, kind: str, began: float = 0.0) -> None:
        self.kind, self.began = kind, began
        self.names: dict[tuple[str, str], Asked] = {}
        self.destinations: dict[tuple[str, str, int], Destination] = {}
        self.relayed = Tallies(MOST_DESTINATIONS)
        self.lost = self.lost_allowed = 0
        self._room = {True: MOST_NAMES, False: MOST_NAMES}
        """For names that were answered, and for others: a program can ask for any number of those."""

    def add_name(self, event: NameEvent) -> None:
        """Note one question."""
        key = (plain_name(event.name), event.outcome)
        asked = self.names.get(key)
        if asked is None:
            good = event.outcome == ANSWERED
            if not self._room[good]:
                self.lost += 1
                return
            self._room[good] -= 1
            asked = self.names[key] = Asked(event)
        asked.add(event)

    def add_seen(self, event: AttemptSeen) -> None:
        """Note one recorded connection or datagram."""
        key = (event.protocol, event.address, event.port)
        place = self.destinations.get(key)
        if place is None:
            if len(self.destinations) >= MOST_DESTINATIONS:
                self.lost += 1
                return
            place = self.destinations[key] = Destination(event.protocol)
        place.add(event)

    def add_relayed(self, event: RelayEvent) -> None:
        """Note one connection that came to the relay."""
        if self.relayed.add(event):
            return
        if event.allowed:
            self.lost_allowed += 1
        else:
            self.lost += 1

    def attempts(
        self,
        rows: Iterable[Row] = (),
        names_of: Mapping[str, Iterable[str]] | None = None,
        *,
        overflow: Iterable[str] = (),
    ) -> tuple[EgressAttempt, ...]:
        """The list, in order of first sight; what only counters saw comes last, then what found no room.

        ``names_of`` adds to the names that are known to lead to an address. ``overflow`` are the directions of
        which ``rows`` are not all.
        """
        found = list(self._contacted(rows, self._leads(names_of or {})))
        found += self._only_asked({host for each in found for host in (each.host, *each.shared)})
        found.sort(key=lambda each: float("inf") if each.first_seen is None else each.first_seen)
        found += [unlisted(direction == "reached", 0) for direction in overflow]
        if self.lost_allowed:
            found.append(unlisted(True, self.lost_allowed))
        if self.lost:
            found.append(unlisted(False, self.lost))
        return tuple(since(each, self.began) for each in found)

    def _leads(self, names_of: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float | None]]:
        """Address to the names that led there, in the order they were asked, with the time."""
        leads: dict[str, dict[str, float | None]] = {}
        for asked in self.names.values():
            for address in asked.addresses if asked.outcome == ANSWERED else ():
                leads.setdefault(address, {}).setdefault(asked.name, asked.time)
        for address, names in names_of.items():
            for name in names:
                leads.setdefault(address, {}).setdefault(name, None)
        return leads

    def _contacted(self, rows: Iterable[Row], leads: dict[str, dict[str, float | None]]) -> Iterator[EgressAttempt]:
        counted = add_up(rows)
        yield from self._carried(counted, leads)
        for (protocol, address, port), place in self.destinations.items():
            packets, size = counted.pop((protocol, address, port, False), (place.packets, place.bytes))
            host, shared = naming((*leads.get(address, {}), *place.hosts), address)
            yield EgressAttempt(
                host, address, port, protocol, False, packets, size, place.via, place.first, place.text(), shared
            )
        for (protocol, address, port, allowed), (packets, size) in counted.items():
            names = leads.get(address, {})
            first = min((time for time in names.values() if time is not None), default=None)
            host, shared = naming(names, address)
            yield EgressAttempt(
                host, address, port, protocol, allowed, packets, size, protocol, first, shared=shared
            )

    def _carried(
        self, counted: dict[tuple[str, str, int, bool], tuple[int, int]], leads: dict[str, dict[str, float | None]]
    ) -> Iterator[EgressAttempt]:
        """What came to the relay. What was counted for the first name of a place, before it was shared, goes with it."""
        for (address, port, host, allowed, reason), tally in self.relayed:
            packets, size = 0, 0
            if allowed and host == next(iter(leads.get(address, ())), None):
                packets, size = counted.pop(("tcp", address, port, True), (0, 0))
            yield EgressAttempt(
                host, address, port, "tcp", allowed, packets + tally.connections, size + tally.bytes,
                tally.via, tally.first, reason=reason,
            )  # fmt: skip

    def _only_asked(self, contacted: set[str]) -> Iterable[EgressAttempt]:
        """Names by which nothing was contacted, and those that were refused."""
        found: dict[tuple[str, str, bool], EgressAttempt] = {}
        for asked in self.names.values():
            if asked.name in contacted and not is_refused(asked.outcome):
                continue
            attempt = name_attempt(asked, self.kind)
            key = (attempt.host, attempt.address, attempt.allowed)
            before = found.get(key)
            found[key] = before.replace(packets=before.packets + attempt.packets) if before else attempt
        return found.values()


def merge(
    kind: str,
    names: Iterable[NameEvent],
    rows: Iterable[Row],
    seen: Iterable[AttemptSeen],
    names_of: Mapping[str, Iterable[str]] | None = None,
    *,
    began: float = 0.0,
) -> tuple[EgressAttempt, ...]:
    """The attempts that these events and counters tell of: a ``Ledger``, filled and read."""
    ledger = Ledger(kind, began)
    for event in names:
        ledger.add_name(event)
    for attempt in seen:
        ledger.add_seen(attempt)
    return ledger.attempts(rows, names_of)


def report_of(kind: str, ledger: Ledger, document: dict[str, Any]) -> Report:
    """What a lease tells at its end. ``document`` is libnftables' listing of its table; raises LeaseFailed for another."""
    from stockade.netns.counters import parse_sets
    from stockade.netns.lease import Report

    counters = parse_sets(document)
    attempts = ledger.attempts(counters.rows, overflow=counters.overflow)
    total = EgressDropped(counters.dropped_packets, counters.dropped_bytes)
    full = any(each.host == UNLISTED for each in attempts)
    notes = ("more was contacted or tried than could be listed: the egress list is not complete",) if full else ()
    return Report(attempts, total, notes)


def denials(attempts: Iterable[EgressAttempt], kind: str) -> list[tuple[str, str, str]]:
    """Subject, detail and hint of what was refused. ``kind`` is the network kind: only allow and open refuse."""
    if kind not in ("allow", "open"):
        return []
    return [denial(attempt, kind) for attempt in attempts if not attempt.allowed]


def denial(attempt: EgressAttempt, kind: str) -> tuple[str, str, str]:
    if attempt.via == "dns":
        return name_denial(attempt)
    if attempt.host == UNLISTED:
        return UNLISTED, "more was refused than could be listed", "Allow or mend what is listed first."
    named = f" ({attempt.host})" if attempt.host != attempt.address else ""
    if attempt.reason:
        return relayed_denial(attempt, named)
    packets = "1 packet" if attempt.packets == 1 else f"{attempt.packets} packets"
    place = with_port(attempt.address, attempt.port)
    detail = f"refused {packets} by {attempt.protocol} to {place}{named}"
    return with_port(attempt.host, attempt.port), detail, address_hint(attempt, kind)


def relayed_denial(attempt: EgressAttempt, named: str) -> tuple[str, str, str]:
    connections = "1 connection" if attempt.packets == 1 else f"{attempt.packets} connections"
    place = with_port(attempt.address, attempt.port)
    detail = f"refused {connections} by {attempt.via} to {place}{named}: {attempt.reason}"
    hint = hint_of(attempt.reason, rule_for(attempt.host, attempt.port, "tcp"))
    return with_port(attempt.host, attempt.port), detail, hint


def with_port(host: str, port: int) -> str:
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") if port else host


def name_denial(attempt: EgressAttempt) -> tuple[str, str, str]:
    host = attempt.host
    if attempt.address in METADATA:
        return host, f"refused the name {host}: it {attempt.data}", NEVER
    if attempt.address:
        return host, f"refused the name {host}: it {attempt.data}", REBINDING_HINT
    rule = rule_for(host, 443, "tcp")
    if rule is None:
        return host, f"refused the name {host}", "It is no host name that could be allowed."
    hint = f"--allow {rule} opens TCP port 443 there, --allow {rule}:PORT another."
    return host, f"refused the name {host}: it is not on the list", hint


def address_hint(attempt: EgressAttempt, kind: str) -> str:
    """What would let it out. The rules look at addresses in this order too."""
    if attempt.address in METADATA:
        return NEVER
    if attempt.protocol not in ("tcp", "udp") or not attempt.port:
        return "Only TCP and UDP can be allowed."
    if ":" in attempt.address:
        return "IPv6 does not leave a leased network: use an IPv4 address of that host."
    if kind == "open":
        return PRIVATE_HINT if is_private(attempt.address) else 'egress = "open" reaches public addresses only.'
    rule = rule_for(attempt.host, attempt.port, attempt.protocol)
    rule = rule or rule_for(attempt.address, attempt.port, attempt.protocol)
    return f"--allow {rule} opens it." if rule else "This address is never let out."


def is_private(address: str) -> bool:
    import ipaddress

    from stockade.netns.ruleset import PRIVATE4

    return any(ipaddress.ip_address(address) in ipaddress.ip_network(each) for each in PRIVATE4)


def rule_for(host: str, port: int, protocol: str) -> str | None:
    """The shortest allow entry for one destination; None when none would help."""
    from stockade.netns.ruleset import beyond_reach

    try:
        rule = parse_rule(f"{protocol}://{with_port(host, port)}")
    except PolicyError:
        return None
    return None if beyond_reach([rule]) else rule.text


def name_attempt(asked: Asked, kind: str) -> EgressAttempt:
    """A name by which nothing was contacted."""
    held = tuple(asked.addresses) if asked.outcome == REBINDING else ()
    why = f"leads to {', '.join(held)}" if held else ""
    allowed = kind != "record" and not is_refused(asked.outcome)
    address = held[0] if held else ""
    return EgressAttempt(asked.name or ".", address, 0, "dns", allowed, asked.times, 0, "dns", asked.time, why)


def is_refused(outcome: str) -> bool:
    """An outcome that is not known here counts as a refusal: it is shown rather than hidden."""
    return outcome != ANSWERED and outcome not in LED_NOWHERE


def unlisted(allowed: bool, count: int) -> EgressAttempt:
    return EgressAttempt(UNLISTED, "", 0, "other", allowed, count, 0, "other", None)


def naming(names: Iterable[str], address: str) -> tuple[str, tuple[str, ...]]:
    """The host to show for an address, and all of its names if they are more than one."""
    different = tuple(dict.fromkeys(names))
    return different[0] if different else address or UNKNOWN, different if len(different) > 1 else ()


def plain_name(name: str) -> str:
    return name.removesuffix(".").lower()


def since(attempt: EgressAttempt, began: float) -> EgressAttempt:
    first = attempt.first_seen
    return attempt if first is None else attempt.replace(first_seen=max(0.0, first - began))


def add_up(rows: Iterable[Row]) -> dict[tuple[str, str, int, bool], tuple[int, int]]:
    """Packets and bytes by protocol, address, port and whether they may leave."""
    total: dict[tuple[str, str, int, bool], tuple[int, int]] = {}
    for row in rows:
        key = (row.protocol, row.address, row.port, row.direction == "reached")
        packets, size = total.get(key, (0, 0))
        total[key] = packets + row.packets, size + row.bytes
    return total
