"""Which addresses of a lease with a relay are let through as they are, and which only by name (pure).

One ``Admission`` a lease, used by its service thread. An answered name is planned (``plan``: text for nft), and kept
(``keep``) once that text has taken effect. Per address and range of ports the strictest owner decides:

    an edge entry, or an entry with check = name          through the relay
    else an entry with check = address                    let through as it is
    else (auto) one name alone has the address            let through as it is
    else (auto)                                           through the relay

What was led to the relay stays so for as long as it is remembered: by the time that the other name has run out,
its connections may still be there. Nothing here looks at a connection: ``netns.namecheck`` does.
"""

from __future__ import annotations

import time

from stockade.netns.diverted import closed_text, edge_text, named_text
from stockade.netns.ruleset import LONGEST_SECONDS, by_family
from stockade.netns.ruletext import group_of
from stockade.policies.hosts import effective_check
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stockade.netns.ruletext import Group
    from stockade.policies.edge import EdgeRule
    from stockade.policies.hosts import HostRule

MOST_LEADS = 1 << 15
"""Names with an address each, remembered at once."""
MOST_SHARERS, MOST_TOLD = 8, 3
"""Names remembered and told of an address that is shared."""
EDGE, CHECKED = "an edge entry", "network.check"

Need = tuple[str, tuple[str, int, int]]
"""``edge``, ``udp``, or a check (``name``, ``address``, ``auto``); and the ports."""
Wish = tuple[str, tuple[str, int, int], int, int]
"""``closed``, ``edge`` or ``named``, the ports, the family of addresses, for how many seconds."""


class AdmissionFull(Exception):
    """More names lead to more addresses than can be remembered."""


class Lead(Record):
    """A name that was answered with an address."""

    rules: tuple[HostRule, ...]
    """Those that mean the name, the hosts of edge entries among them."""
    deadline: float


class Place(Record):
    """One address. Its size goes by the policy, not by the names that lead there."""

    needs: tuple[tuple[Need, float], ...] = ()
    """Why it is reached on which ports, and until when."""
    latest: tuple[tuple[str, float], ...] = ()
    """The two names that lead there longest, and until when."""
    named: frozenset[Group] = frozenset()
    """Ports on which it was let through as it is, maybe still."""
    edge: frozenset[Group] = frozenset()
    sharers: tuple[str, ...] = ()
    """Names that it was seen to be shared by."""


class Plan(Record):
    """What is to be done for one answer."""

    text: str
    """For nft; may be empty."""
    name: str
    lead: Lead
    places: tuple[tuple[str, Place], ...]


class Admission:
    """``rules`` and ``edge`` are the policy's, ``check`` its ``network.check``. ``clock`` gives seconds."""

    def __init__(
        self,
        rules: Sequence[HostRule],
        edge: Sequence[EdgeRule],
        check: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._check, self._clock = tuple(rules), check, clock
        self._hosts = tuple(each.host for each in edge)
        self._strict = frozenset(self._hosts)
        self._places: dict[str, Place] = {}
        self._leads: dict[tuple[str, str], Lead] = {}
        self._sweep_at = 0.0

    def rules(self) -> tuple[HostRule, ...]:
        """Everything that names are asked by: those of the list and those of edge entries."""
        return tuple(dict.fromkeys((*self._rules, *self._hosts)))

    def plan(self, rules: Sequence[HostRule], name: str, addresses: Sequence[str], seconds: int) -> Plan:
        """What lets ``addresses`` be reached by ``name``, which ``rules`` mean, for ``seconds`` from now.

        Raises AdmissionFull; ValueError as ``ruleset.admit_text`` does.
        """
        if type(seconds) is not int or not 1 <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"not a lifetime in seconds: {seconds!r}")
        now = self._clock()
        self._make_room(len(addresses), now)
        lead = Lead(tuple(rule for rule in rules if rule.network is None), now + seconds)
        wishes: dict[Wish, list[str]] = {}
        places: list[tuple[str, Place]] = []
        for address in (each for family in by_family(addresses).values() for each in family):
            before = self._places.get(address, Place())
            after = self._placed(before, name, lead, now)
            places.append((address, after))
            for wish in _wishes(before, after, lead, address, now):
                wishes.setdefault(wish, []).append(address)
        return Plan(_text(wishes), name, lead, tuple(places))

    def keep(self, plan: Plan) -> None:
        """Remember a plan whose text has taken effect, before another one is made."""
        for address, place in plan.places:
            self._places[address] = place
            known = self._leads.get((plan.name, address))
            if known is None or known.deadline < plan.lead.deadline:
                self._leads[plan.name, address] = plan.lead

    def leads(self, name: str, address: str) -> bool:
        """Whether ``name`` was answered with ``address``, and the answer still holds."""
        lead = self._leads.get((name, address))
        return lead is not None and lead.deadline > self._clock()

    def reason(self, name: str | None, address: str, port: int) -> str:
        """Why a connection went to the relay rather than straight to its address. ``name`` is what it gave, if any."""
        place, lead = self._places.get(address, Place()), self._leads.get((name or "", address))
        needs = map(self._need, lead.rules) if lead is not None else (need for need, _until in place.needs)
        kinds = {kind for kind, (protocol, low, high) in needs if protocol == "tcp" and low <= port <= high}
        if "edge" in kinds:
            return EDGE
        if "name" in kinds:
            return CHECKED
        others = [each for each in place.sharers if each != name]
        if not others:
            return ""
        more = f" and {len(others) - MOST_TOLD} more" if len(others) > MOST_TOLD else ""
        return f"its address is shared with {', '.join(others[:MOST_TOLD])}{more}"

    def _need(self, rule: HostRule) -> Need:
        group = group_of(rule)
        if group[0] == "udp":
            return "udp", group
        return "edge" if rule in self._strict else effective_check(rule, self._check), group

    def _placed(self, before: Place, name: str, lead: Lead, now: float) -> Place:
        needs = {need: until for need, until in before.needs if until > now}
        for need in map(self._need, lead.rules):
            needs[need] = max(needs.get(need, 0.0), lead.deadline)
        names = {each: until for each, until in before.latest if until > now}
        if any(rule.protocol == "tcp" for rule in lead.rules):
            names[name] = max(names.get(name, 0.0), lead.deadline)
        shared = names if len(names) > 1 else {}
        named, edge = sorted_out(needs, before.edge, shared=bool(shared))
        return Place(
            tuple(needs.items()),
            tuple(sorted(names.items(), key=lambda each: each[1])[-2:]),
            (before.named | named) - edge,
            edge,
            tuple(dict.fromkeys((*before.sharers, *shared)))[:MOST_SHARERS],
        )

    def _make_room(self, count: int, now: float) -> None:
        """Forget names that are over, and the addresses to which none leads any more, when there are many."""
        if len(self._leads) + count <= MOST_LEADS:
            return
        if now >= self._sweep_at:
            self._sweep_at = now + 1.0
            self._leads = {key: lead for key, lead in self._leads.items() if lead.deadline > now}
            led = {address for _name, address in self._leads}
            self._places = {address: place for address, place in self._places.items() if address in led}
        if len(self._leads) + count > MOST_LEADS:
            raise AdmissionFull


def sorted_out(
    needs: Iterable[Need], edge: Iterable[Group], *, shared: bool
) -> tuple[frozenset[Group], frozenset[Group]]:
    """Ports to let through as they are, and ports to lead to the relay.

    ``edge`` are those that are led there already, ``shared`` says whether several names have the address.
    """
    kinds: dict[str, set[Group]] = {"edge": set(edge), "name": set(), "address": set(), "auto": set(), "udp": set()}
    for kind, group in needs:
        kinds[kind].add(group)
    through = kinds["edge"] | kinds["name"]
    if shared:
        through |= {group for group in kinds["auto"] if not any(overlap(group, each) for each in kinds["address"])}
    rest = (kinds["address"] | kinds["auto"]) - through
    # A redirect is by port: what overlaps goes the same way.
    while more := {group for group in rest if any(overlap(group, each) for each in through)}:
        through |= more
        rest -= more
    return frozenset(rest | kinds["udp"]), frozenset(through)


def overlap(one: Group, other: Group) -> bool:
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def _wishes(before: Place, after: Place, lead: Lead, address: str, now: float) -> Iterator[Wish]:
    """What leads from ``before`` to ``after``.

    The relay reads IPv4 only: an address of IPv6 that would have to go there stays closed.
    """
    family = 6 if ":" in address else 4
    if family == 4:
        for group in sorted(before.named & after.edge):
            yield "closed", group, family, 0
        for group in sorted(after.edge):
            if ends := _ends(after, group):
                yield "edge", group, family, _seconds(max(ends) - now)
    for group in sorted({group_of(rule) for rule in lead.rules} - after.edge):
        yield "named", group, family, _seconds(max(_ends(after, group)) - now)


def _ends(place: Place, group: Group) -> list[float]:
    """Until when these ports are needed, for each reason."""
    return [until for (_kind, ports), until in place.needs if ports == group]


def _text(wishes: Mapping[Wish, list[str]]) -> str:
    """One transaction: there is no moment at which an address is in both sets or in neither."""
    texts = []
    for (what, group, family, seconds), addresses in sorted(wishes.items()):
        if what == "closed":
            texts.append(closed_text(group, addresses))
        elif what == "edge":
            texts.append(edge_text(group, addresses, seconds))
        else:
            texts.append(named_text(group, family, addresses, seconds))
    return "".join(texts)


def _seconds(left: float) -> int:
    return max(1, -int(-left // 1))
