"""The shape of an nft text (pure): sets, chains and how they are written down. Its only user is ``netns.ruleset``.

It knows how packets are counted and refused, and nothing of what is allowed.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.policies.hosts import HostRule

TABLE = "inet stockade"
TOP_PORT = 65535
SIZES = {"named": 4096, "reached": 8192, "seen": 8192, "dropped": 4096, "other": 1024, "udp": 32768}
"""Elements a set may hold. A program can fill the counted ones: then a counter of overflow says so, and the verdict
on the packet stays what it was."""

KEYS = {
    "port": ("inet_proto . {address} . inet_service", "meta l4proto . {family} daddr . th dport"),
    "other": ("inet_proto . {address}", "meta l4proto . {family} daddr"),
    "source": ("inet_service . {address} . inet_service", "udp sport . {family} daddr . udp dport"),
}
FAMILIES = {4: "ip", 6: "ip6"}


Group = tuple[str, int, int]
"""Protocol and port range: rules that share them share their sets."""


class Set(Record):
    name: str
    key: str
    flags: str
    size: int = 0
    lifetime: int = 0
    elements: tuple[str, ...] = ()


class Chain(Record):
    name: str
    base: str
    """``type ... hook ... priority ...; policy ...;``, or nothing for a chain that is only jumped to."""
    rules: tuple[str, ...]


def shape(text: str) -> dict[str, tuple[str, int]]:
    """Chain -> (its base line, how many rules it has), of a text made here: what must be found in the kernel."""
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("\tchain "):
            name = words[1]
            found[name] = ("", 0)
        elif line == "\t}":
            name = ""
        elif name:
            base, count = found[name]
            found[name] = (line.strip(), count) if words[0] == "type" else (base, count + 1)
    return found


# By ICMP a blocking connect fails after a second: the error comes while the socket is in use, and is only taken
# seriously when the packet is sent again. A reset fails it at once, and is not limited in rate.
REJECTED = Chain(
    "rejected",
    "",
    ("meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"),
)
FRAGMENT = "ip frag-off & 0x3fff != 0"


def refused(direction: str) -> tuple[Chain, Chain]:
    """Chains that count a packet and reject it: by destination and port, or where it has no port by destination."""
    portless = f"{direction}_other" if direction == "dropped" else direction
    last = (
        *(_add(f"{portless}{family}", "other", family, "goto rejected") for family in FAMILIES),
        f"counter name {direction}_overflow",
        "goto rejected",
    )
    ported = count(direction, "goto rejected") if direction == "dropped" else ()
    # The kernel would read the port of a later fragment out of its data.
    first = (f"counter name {direction}", f"{FRAGMENT} goto portless", *ported, "goto portless")
    return Chain("portless", "", last), Chain("refused", "", first)


def count(name: str, verdict: str) -> tuple[str, ...]:
    """Where a set is full the rule ends before its verdict, and the next one counts that it was."""
    ported = "meta l4proto { tcp, udp }"
    last = f"counter name {name}_overflow {verdict}"
    return (
        *(f"{ported} {_add(f'{name}{family}', 'port', family, verdict)}" for family in FAMILIES),
        last if verdict == "accept" else f"{ported} th dport 1-{TOP_PORT} {last}",
    )


def _add(name: str, key: str, family: int, verdict: str) -> str:
    return f"add @{name} {{ {KEYS[key][1].format(family=FAMILIES[family])} counter }} {verdict}"


def both(name: str, key: str, size: int, lifetime: int = 0) -> tuple[Set, ...]:
    flags = "dynamic, timeout" if lifetime else "dynamic"
    return tuple(
        Set(f"{name}{family}", KEYS[key][0].format(address=address_type(family)), flags, size, lifetime)
        for family in FAMILIES
    )


def address_type(family: int) -> str:
    return f"ipv{family}_addr"


def base_line(type_: str, hook: str, priority: str, policy: str) -> str:
    return f"type {type_} hook {hook} priority {priority}; policy {policy};"


def render(counters: Iterable[str], sets: Iterable[Set], chains: Iterable[Chain]) -> str:
    blocks = [
        *(f"\tcounter {name} {{\n\t}}\n" for name in counters),
        *(_render_set(each) for each in sets),
        *(_render_chain(each) for each in chains),
    ]
    return f"table {TABLE} {{\n{''.join(blocks)}}}\n"


def _render_set(each: Set) -> str:
    lines = [f"type {each.key}", f"flags {each.flags}"]
    if each.size:
        lines.append(f"size {each.size}")
    if each.lifetime:
        lines.append(f"timeout {each.lifetime}s")
    if each.elements:
        lines.append(f"elements = {{ {', '.join(each.elements)} }}")
    return _block("set", each.name, lines)


def _render_chain(each: Chain) -> str:
    return _block("chain", each.name, ([each.base] if each.base else []) + list(each.rules))


def _block(word: str, name: str, lines: Iterable[str]) -> str:
    inner = "".join(f"\t\t{line}\n" for line in lines)
    return f"\t{word} {name} {{\n{inner}\t}}\n"


def set_name(use: str, family: int, group: Group) -> str:
    return f"{use}{family}_{group[0]}_{group[1]}_{group[2]}"


def refresh(name: str, addresses: Sequence[str], seconds: int) -> list[str]:
    """An ``add`` of what exists leaves the old time in place before Linux 6.12, a ``delete`` of what doesn't fails.

    The three take effect as one: no packet sees the address missing.
    """
    plain = ", ".join(addresses)
    timed = ", ".join(f"{address} timeout {seconds}s" for address in addresses)
    place = f"element {TABLE} {name}"
    return [f"add {place} {{ {plain} }}", f"delete {place} {{ {plain} }}", f"add {place} {{ {timed} }}"]


def groups(rules: Iterable[HostRule]) -> tuple[Group, ...]:
    return tuple(dict.fromkeys(group_of(rule) for rule in rules))


def group_of(rule: HostRule) -> Group:
    low, high = port_number(rule.low), port_number(rule.high)
    if rule.protocol not in ("tcp", "udp") or low > high:
        raise ValueError(f"not a rule: {rule!r}")
    return "tcp" if rule.protocol == "tcp" else "udp", low, high


def port_number(value: int) -> int:
    if type(value) is not int or not 1 <= value <= TOP_PORT:
        raise ValueError(f"not a port: {value!r}")
    return value
