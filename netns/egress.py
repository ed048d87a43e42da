"""Who was contacted, how, and how often (pure): names asked, packets counted and bytes recorded, made one list.

A ``Ledger`` takes events while the run lasts, within bounds; at the end the counters of the rules are merged in.
An attempt is one destination. Packet rules see addresses, not names: a host name here is the name that was asked
and led to the address, and where more than one did, ``shared`` says so. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.hosts import METADATA, parse_rule
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Protocol

    from stockade.netns.sinkhole import AttemptSeen

    class NameEvent(Protocol):
        """What the resolver tells of one question."""

        @property
        def name(self) -> str: ...
        @property
        def type(self) -> str: ...
        @property
        def outcome(self) -> str: ...
        @property
        def addresses(self) -> tuple[str, ...]: ...
        @property
        def time(self) -> float: ...

    class CounterRow(Protocol):
        """One destination that the packet rules counted: ``reached``, ``dropped`` or (recording) ``seen``."""

        @property
        def direction(self) -> str: ...
        @property
        def protocol(self) -> str: ...
        @property
        def address(self) -> str: ...
        @property
        def port(self) -> int: ...
        @property
        def packets(self) -> int: ...
        @property
        def bytes(self) -> int: ...


ANSWERED, REFUSED, REBINDING = "answered", "refused", "rebinding"
LED_NOWHERE = ("empty", "absent", "failed")
"""Outcomes of names that may be asked, and have no address."""
MOST_DESTINATIONS = 10_000
MOST_NAMES = 10_000
MOST_HOSTS = 32
"""Names kept of one destination."""
MOST_TEXT = 4096
RANK = {"tls": 2, "http": 2}


class EgressAttempt(Record):
    """One destination that was contacted, or tried; or a name that was asked, if nothing was contacted by it."""

    host: str
    """The name that was asked and led there, else the server name or Host header, else the address. A name that
    is none stands in quotes."""
    address: str
    """Empty for a name by which nothing was contacted."""
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
    """The first bytes as text (recorded runs); of a refused name, why it was refused if the list is not why."""
    shared: tuple[str, ...] = ()
    """All names known for this address, when there is more than one."""


class EgressDropped(Record):
    """Packets that were refused, over all destinations."""

    packets: int
    bytes: int


class Asked:
    """All questions for one name with one outcome."""

    __slots__ = ("addresses", "name", "outcome", "time", "times", "types")

    def __init__(self, event: NameEvent) -> None:
        self.name, self.outcome, self.time = event.name, event.outcome, event.time
        self.times = 0
        self.addresses: dict[str, None] = {}
        self.types: dict[str, None] = {}

    def add(self, event: NameEvent) -> None:
        self.times += 1
        self.types[event.type] = None
        if len(self.addresses) < MOST_HOSTS:
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
        self.packets += event.times
        self.bytes += event.bytes
        self.first = event.started if self.first is None else min(self.first, event.started)
        if RANK.get(event.sniffed.via, 1) > RANK.get(self.via, 1):
            self.via = event.sniffed.via
        for host in (event.name, event.sniffed.host):
            if host and len(self.hosts) < MOST_HOSTS:
                self.hosts[host] = None
        self._keep(event.sniffed.text)

    def _keep(self, text: str) -> None:
        """Different texts, as far as there is room."""
        text = text[: MOST_TEXT - self.size]
        if text and text not in self.texts:
            self.texts[text] = None
            self.size += len(text) + 1


class Ledger:
    """Takes events as they come; what exceeds the bounds is counted in ``lost``."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], Asked] = {}
        self.destinations: dict[tuple[str, str, int], Destination] = {}
        self.lost = 0

    def add_name(self, event: NameEvent) -> None:
        """Note one question."""
        key = (event.name, event.outcome)
        asked = self.names.get(key)
        if asked is None:
            if len(self.names) >= MOST_NAMES:
                self.lost += 1
                return
            asked = self.names[key] = Asked(event)
        asked.add(event)

    def add_seen(self, event: AttemptSeen) -> None:
        """Note one recorded connection or datagram."""
        key = (event.protocol, event.address, event.port)
        place = self.destinations.get(key)
        if place is None:
            if len(self.destinations) >= MOST_DESTINATIONS:
                self.lost += event.times
                return
            place = self.destinations[key] = Destination(event.protocol)
        place.add(event)

    def attempts(
        self, rows: Iterable[CounterRow] = (), names_of: Mapping[str, Iterable[str]] | None = None, *, began: float = 0.0
    ) -> tuple[EgressAttempt, ...]:
        """The list, in order of first sight; what only counters saw comes last.

        ``names_of`` adds to the names that are known to lead to an address. ``began`` is when the run began, on
        the clock of the events.
        """
        leads = self._leads(names_of or {})
        found = list(self._contacted(rows, leads))
        contacted = {host for each in found for host in (each.host, *each.shared)}
        for asked in self.names.values():
            if asked.name not in contacted or is_refused(asked.outcome):
                found.append(name_attempt(asked))
        found.sort(key=lambda each: float("inf") if each.first_seen is None else each.first_seen)
        return tuple(each if each.first_seen is None else since(each, began) for each in found)

    def notes(self) -> tuple[str, ...]:
        """What a reader of the list must know about it."""
        return (f"{self.lost} more attempts to other destinations are not listed",) if self.lost else ()

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

    def _contacted(
        self, rows: Iterable[CounterRow], leads: dict[str, dict[str, float | None]]
    ) -> Iterable[EgressAttempt]:
        counted = add_up(rows)
        for (protocol, address, port), place in self.destinations.items():
            packets, size = counted.pop((protocol, address, port, False), (place.packets, place.bytes))
            hosts = dict.fromkeys((*leads.get(address, {}), *place.hosts))
            data = "\n".join(place.texts)
            yield contact(
                hosts, address, port, protocol, False, packets, size, place.via, place.first, data
            )
        for (protocol, address, port, allowed), (packets, size) in counted.items():
            names = leads.get(address, {})
            times = [time for time in names.values() if time is not None]
            yield contact(
                names, address, port, protocol, allowed, packets, size, protocol, min(times, default=None), ""
            )


def merge(
    names: Iterable[NameEvent],
    rows: Iterable[CounterRow],
    seen: Iterable[AttemptSeen],
    names_of: Mapping[str, Iterable[str]] | None = None,
    *,
    began: float = 0.0,
) -> tuple[EgressAttempt, ...]:
    """The attempts that these events and counters tell of: a ``Ledger``, filled and read."""
    ledger = Ledger()
    for event in names:
        ledger.add_name(event)
    for attempt in seen:
        ledger.add_seen(attempt)
    return ledger.attempts(rows, names_of, began=began)


def dropped(rows: Iterable[CounterRow]) -> EgressDropped:
    """All that was refused."""
    refused = [row for row in rows if row.direction == "dropped"]
    return EgressDropped(sum(row.packets for row in refused), sum(row.bytes for row in refused))


def denials(attempts: Iterable[EgressAttempt], kind: str) -> list[tuple[str, str, str]]:
    """Subject, detail and hint of what was refused. ``kind`` is the network kind: only allow and open refuse."""
    if kind not in ("allow", "open"):
        return []
    return [denial(attempt, kind) for attempt in attempts if not attempt.allowed]


def denial(attempt: EgressAttempt, kind: str) -> tuple[str, str, str]:
    if attempt.via == "dns":
        return name_denial(attempt)
    place = f"[{attempt.address}]" if ":" in attempt.address else attempt.address
    subject = f"{attempt.host if attempt.host != attempt.address else place}:{attempt.port}"
    named = f" ({attempt.host})" if attempt.host != attempt.address else ""
    unit = "packet" if attempt.packets == 1 else "packets"
    detail = f"{attempt.packets} {attempt.protocol.upper()} {unit} to {place}:{attempt.port}{named} refused"
    return subject, detail, address_hint(attempt, kind)


def name_denial(attempt: EgressAttempt) -> tuple[str, str, str]:
    host = attempt.host
    if attempt.data:
        return host, f"the name {host} was refused: {attempt.data}", rebinding_hint(attempt.data)
    rule = rule_for(host, 443, "tcp")
    if rule is None:
        return host, f"the name {host} was refused", "It is not a host name that could be allowed."
    hint = f"--allow {rule} opens TCP port 443 there, --allow {rule}:PORT another."
    return host, f"the name {host} was refused: it is not on the list", hint


def rebinding_hint(why: str) -> str:
    """A name that leads to the inside could be anybody's, pointed there on purpose (DNS rebinding)."""
    if any(address in why.replace(",", " ").split() for address in METADATA):
        return "Cloud metadata addresses are refused in every network kind."
    if "leads to" not in why:
        return "Names are asked for their addresses only (types A and AAAA)."
    return (
        "Whoever owns a name can point it at a private address (DNS rebinding). If that is meant, "
        "set network.private = true, or allow the address itself."
    )


def address_hint(attempt: EgressAttempt, kind: str) -> str:
    if attempt.address in METADATA:
        return "Cloud metadata addresses are refused in every network kind."
    if attempt.protocol not in ("tcp", "udp"):
        return "Only TCP and UDP can be allowed."
    if ":" in attempt.address:
        return "IPv6 does not leave a leased network: use the host's IPv4 address."
    rule = rule_for(attempt.host, attempt.port, attempt.protocol)
    rule = rule or rule_for(attempt.address, attempt.port, attempt.protocol)
    if rule is None:
        return "This destination can't be allowed."
    if kind == "open":
        return f"Private and local addresses are refused: network.private = true opens them, egress = allow with --allow {rule} this one."
    return f"--allow {rule} opens it."


def rule_for(host: str, port: int, protocol: str) -> str | None:
    """The shortest allow entry for one destination; None when there can be none."""
    bracketed = f"[{host}]" if ":" in host else host
    try:
        return parse_rule(f"{protocol}://{bracketed}:{port}").text
    except PolicyError:
        return None


def name_attempt(asked: Asked) -> EgressAttempt:
    """A name by which nothing was contacted."""
    why = ""
    if asked.outcome == REBINDING:
        why = f"it leads to {', '.join(asked.addresses) or 'a private address'}"
    elif is_refused(asked.outcome) and asked.outcome != REFUSED:
        why = f"{asked.outcome}, type {', '.join(asked.types)}"
    allowed = not is_refused(asked.outcome)
    return EgressAttempt(asked.name, "", 0, "dns", allowed, asked.times, 0, "dns", asked.time, why)


def is_refused(outcome: str) -> bool:
    """An outcome that is not known here counts as a refusal: it is shown rather than hidden."""
    return outcome != ANSWERED and outcome not in LED_NOWHERE


def contact(
    hosts: Iterable[str],
    address: str,
    port: int,
    protocol: str,
    allowed: bool,
    packets: int,
    size: int,
    via: str,
    first: float | None,
    data: str,
) -> EgressAttempt:
    names = tuple(hosts)
    shared = names if len(names) > 1 else ()
    host = names[0] if names else address
    return EgressAttempt(host, address, port, protocol, allowed, packets, size, via, first, data, shared)


def since(attempt: EgressAttempt, began: float) -> EgressAttempt:
    return attempt.replace(first_seen=max(0.0, (attempt.first_seen or 0.0) - began))


def add_up(rows: Iterable[CounterRow]) -> dict[tuple[str, str, int, bool], tuple[int, int]]:
    """Packets and bytes by protocol, address, port and whether they may leave."""
    total: dict[tuple[str, str, int, bool], tuple[int, int]] = {}
    for row in rows:
        key = (row.protocol, row.address, row.port, row.direction == "reached")
        packets, size = total.get(key, (0, 0))
        total[key] = packets + row.packets, size + row.bytes
    return total
