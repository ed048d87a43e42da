"""The packet rules of a lease (pure): one text for nft per kind, and the text that admits a name's addresses.

Reads no clock and opens nothing; ``netns.nft`` loads what is written here and ``netns.counters`` reads it back.
No text of a caller gets into the result: addresses go through ``ipaddress``, ports and protocols are checked, names
of hosts are not written at all.

Output of ``allow`` and ``open``, in order: loopback, metadata, misleading headers, what was accepted before, the
lease's own network and other places that are never meant, the kind's own rules, refusal with a count. Connection
tracking puts fragments together first; a fragment that it was told to leave alone carries no port, matches no
accepting rule and is refused as ``*_other``.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.policies.hosts import HostRule

TABLE = "inet stockade"
KINDS = ("allow", "open", "record")
LEASE = "10.0.2.0/24"
"""slirp4netns: its gateway 10.0.2.2 may stand for the host, its resolver 10.0.2.3 forwards any name."""

METADATA4 = "{ 100.100.100.200, 168.63.129.16, 169.254.169.254 }"
METADATA6 = (
    "{ ::100.100.100.200, ::168.63.129.16, ::169.254.169.254, ::ffff:100.100.100.200, ::ffff:168.63.129.16, "
    "::ffff:169.254.169.254, 64:ff9b::6464:64c8, 64:ff9b::a83f:8110, 64:ff9b::a9fe:a9fe, 2002:6464:64c8::/48, "
    "2002:a83f:8110::/48, 2002:a9fe:a9fe::/48, fd00:ec2::254 }"
)
"""Written out, so that no run pays for computing them; the tests compute them from ``policies.hosts.METADATA``."""
NEVER4 = f"{{ 0.0.0.0/8, {LEASE}, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3 }}"
NEVER6 = "{ ::/8, fe80::/9, ff00::/8 }"
"""Unspecified, loopback, IPv4 in disguise; link-local and site-local; multicast."""
PRIVATE4 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
CARRIER4 = "100.64.0.0/10"
PUBLIC6 = "2000::/3"
PRIVATE6 = "fc00::/7"
TUNNELS6 = "{ 2001::/32, 2002::/16 }"

TOP_PORT = 65535
LONGEST_SECONDS = 7 * 24 * 3600
SIZES = {"named": 4096, "reached": 8192, "seen": 8192, "dropped": 4096, "other": 1024, "udp": 32768}
"""Elements a set may hold. A program can fill the counted ones: then a counter of overflow says so, and the verdict
on the packet stays what it was."""
UDP_SECONDS = 120

KEYS = {
    "port": ("inet_proto . {address} . inet_service", "meta l4proto . {family} daddr . th dport"),
    "other": ("inet_proto . {address}", "meta l4proto . {family} daddr"),
    "source": ("inet_service . {address} . inet_service", "udp sport . {family} daddr . udp dport"),
}
FAMILIES = {4: "ip", 6: "ip6"}


class _Set(Record):
    name: str
    key: str
    flags: str
    size: int = 0
    lifetime: int = 0
    elements: tuple[str, ...] = ()


class _Chain(Record):
    name: str
    base: str
    """``type ... hook ... priority ...; policy ...;``, or nothing for a chain that is only jumped to."""
    rules: tuple[str, ...]


Group = tuple[str, int, int]
"""Protocol and port range: rules that share them share their sets."""


def rules_text(
    kind: str,
    rules: Sequence[HostRule],
    *,
    private: bool,
    dns_port: int = 53,
    tcp_port: int = 0,
    udp_port: int = 0,
) -> str:
    """The nft text of one lease; to be loaded into a network namespace that has no table of ours yet.

    ``kind`` is allow, open or record. ``rules`` matter to allow only: ranges become part of the text, names get
    empty sets for ``admit_text``. ``private`` lets open reach private ranges. The ports are where record's redirects
    go on 127.0.0.1 and ::1: queries, TCP, other UDP. ``ValueError`` for what can't be a rule.
    """
    if kind == "record":
        return _record_text(_port(dns_port), _port(tcp_port), _port(udp_port))
    if kind == "allow":
        sets, accepting = _allow(rules)
        return _policing_text(sets, accepting)
    if kind == "open":
        return _policing_text((), _open(private))
    raise ValueError(f"not a kind of lease: {kind!r}")


def admit_text(matches: Sequence[HostRule], addresses: Sequence[str], seconds: int) -> str:
    """Commands that let ``addresses`` be reached as each rule of ``matches`` says, for ``seconds`` from now.

    ``matches`` are rules by name that ``rules_text`` was given. An address that is admitted already starts its time
    anew, in the same transaction. Empty if there is nothing to admit. ``ValueError`` for an address that is none, is
    scoped or is IPv4 in IPv6 dress, for a rule by address, and for a time that is not 1 second to 7 days.
    """
    if type(seconds) is not int or not 1 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"not a lifetime in seconds: {seconds!r}")
    if any(rule.name is None for rule in matches):
        raise ValueError("a rule by address admits nothing: its range is in the rules already")
    split = _by_family(addresses)
    commands: list[str] = []
    for group in _groups(matches):
        for family, texts in split.items():
            if texts:
                commands += _refresh(_set_name("named", family, group), texts, seconds)
    return "".join(f"{command}\n" for command in commands)


def beyond_reach(rules: Iterable[HostRule]) -> tuple[HostRule, ...]:
    """The rules by address that an allow lease can never honour: all of their range is refused before they count."""
    found = []
    for rule in rules:
        if rule.network is not None and _never_reached(rule.network):
            found.append(rule)
    return tuple(found)


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


# --- allow and open ---------------------------------------------------------------------------------------------


def _policing_text(sets: Sequence[_Set], accepting: Sequence[str]) -> str:
    own = (
        *_both("reached", "port", SIZES["reached"]),
        *_both("dropped", "port", SIZES["dropped"]),
        *_both("dropped_other", "other", SIZES["other"]),
    )
    chains = (
        _REJECTED,
        _refused("dropped"),
        _Chain("reached", "", _count("reached", "accept")),
        _Chain("output", _base("filter", "output", "filter", "drop"), (*_GUARDS, *accepting, "goto refused")),
        _Chain("input", _base("filter", "input", "filter", "drop"), _INPUT),
        _Chain("forward", _base("filter", "forward", "filter", "drop"), ()),
    )
    counters = ("dropped", "dropped_overflow", "reached_overflow", "housekeeping")
    return _render(counters, (*own, *sets), chains)


# An ICMP error about a refused or a finished packet goes back over lo to the address that sent it: that is the
# `related` rule, which is limited to ICMP so that no helper's expectation can ever open a port.
_GUARDS = (
    'oif "lo" ip daddr 127.0.0.0/8 accept',
    'oif "lo" ip6 daddr ::1 accept',
    f"ip daddr {METADATA4} goto refused",
    f"ip6 daddr {METADATA6} goto refused",
    # Options and routing headers can name another destination than the one that is looked at.
    "ip hdrlength > 5 goto refused",
    "exthdr rt exists goto refused",
    "ct state related meta l4proto { icmp, ipv6-icmp } accept",
    "ct state established goto reached",
    # The kernel's own neighbour discovery: dropped, but no attempt of the program.
    "icmpv6 type { mld-listener-report, mld2-listener-report, nd-router-solicit, nd-neighbor-solicit, "
    "nd-neighbor-advert } counter name housekeeping drop",
    f"ip daddr {NEVER4} goto refused",
    f"ip6 daddr {NEVER6} goto refused",
)
_INPUT = (
    'iif "lo" accept',
    "ct state established accept",
    "ct state related meta l4proto { icmp, ipv6-icmp } accept",
)


def _allow(rules: Sequence[HostRule]) -> tuple[tuple[_Set, ...], tuple[str, ...]]:
    sets: list[_Set] = []
    accepting: list[str] = []
    named = _groups(rule for rule in rules if rule.network is None)
    fixed = _groups(rule for rule in rules if rule.network is not None)
    ranges = _ranges(rules)
    for group in dict.fromkeys((*fixed, *named)):
        for family in FAMILIES:
            added = []
            if elements := ranges.get((group, family)):
                added.append(_Set(_set_name("fixed", family, group), _address(family), "interval", elements=elements))
            if group in named:
                name = _set_name("named", family, group)
                added.append(_Set(name, _address(family), "timeout", SIZES["named"]))
            sets += added
            accepting += [_accepting(group, family, each.name) for each in added]
    return tuple(sets), tuple(accepting)


def _open(private: bool) -> tuple[str, ...]:
    closed4 = ", ".join((CARRIER4,) if private else sorted((*PRIVATE4, CARRIER4)))
    within6 = f"{{ {PUBLIC6}, {PRIVATE6} }}" if private else PUBLIC6
    ported = f"meta l4proto {{ tcp, udp }} th dport 1-{TOP_PORT}"
    return (
        f"{ported} ip daddr != {{ {closed4} }} goto reached",
        f"{ported} ip6 daddr {within6} ip6 daddr != {TUNNELS6} goto reached",
    )


def _accepting(group: Group, family: int, name: str) -> str:
    protocol, low, high = group
    ports = str(low) if low == high else f"{low}-{high}"
    return f"{protocol} dport {ports} {FAMILIES[family]} daddr @{name} goto reached"


def _ranges(rules: Iterable[HostRule]) -> dict[tuple[Group, int], tuple[str, ...]]:
    """The ranges of each group, merged: nft refuses elements that overlap."""
    listed = [rule for rule in rules if rule.network is not None]
    if not listed:
        return {}
    import ipaddress

    found: dict[tuple[Group, int], list[ipaddress.IPv4Network | ipaddress.IPv6Network]] = {}
    for rule in listed:
        network = ipaddress.ip_network(_text(rule.network))
        found.setdefault((_group(rule), network.version), []).append(network)
    return {key: tuple(str(each) for each in ipaddress.collapse_addresses(all_)) for key, all_ in found.items()}  # type: ignore[type-var]


def _never_reached(network: str) -> bool:
    import ipaddress

    asked = ipaddress.ip_network(network)
    never = (NEVER4 if asked.version == 4 else NEVER6).strip("{} ").split(", ")
    return any(asked.subnet_of(ipaddress.ip_network(each)) for each in never)  # type: ignore[arg-type]


# --- record -----------------------------------------------------------------------------------------------------


def _record_text(dns_port: int, tcp_port: int, udp_port: int) -> str:
    sets = (
        *_both("seen", "port", SIZES["seen"]),
        *_both("seen_other", "other", SIZES["other"]),
        *_both("udp", "source", SIZES["udp"], UDP_SECONDS),
    )
    divert = (
        *_LOCAL,
        f"udp dport 53 redirect to :{dns_port}",
        f"meta l4proto tcp redirect to :{tcp_port}",
        f"meta l4proto udp redirect to :{udp_port}",
    )
    chains = (
        _REJECTED,
        _refused("seen_other"),
        _Chain("seen", "", _count("seen", "accept")),
        # Before dstnat (-100), which replaces the destination, and after conntrack (-200).
        _Chain("witness", _base("filter", "output", "mangle", "drop"), _WITNESS),
        _Chain("divert", _base("nat", "output", "-100", "accept"), divert),
        _Chain("output", _base("filter", "output", "filter", "drop"), ('oif "lo" accept',)),
        _Chain("input", _base("filter", "input", "filter", "drop"), ('iif "lo" accept',)),
        _Chain("forward", _base("filter", "forward", "filter", "drop"), ()),
    )
    return _render(("seen_other", "seen_other_overflow", "seen_overflow"), sets, chains)


_LOCAL = ("ip daddr 127.0.0.0/8 accept", "ip6 daddr ::1 accept")
_WITNESS = (
    *_LOCAL,
    "ct direction reply accept",
    "ct state related meta l4proto { icmp, ipv6-icmp } accept",
    *(
        f"meta l4proto udp update @udp{family} {{ {KEYS['source'][1].format(family=word)} }}"
        for family, word in FAMILIES.items()
    ),
    f"meta l4proto {{ tcp, udp }} th dport 1-{TOP_PORT} goto seen",
    "goto refused",
)


# --- parts ------------------------------------------------------------------------------------------------------

_REJECTED = _Chain("rejected", "", ("reject with icmpx admin-prohibited",))


def _refused(direction: str) -> _Chain:
    """Counts a packet, then rejects it: by destination and port, by destination where it has no port, or neither."""
    counted = () if direction == "seen_other" else _count(direction, "goto rejected")
    other = direction if direction == "seen_other" else f"{direction}_other"
    lines = (
        f"counter name {direction}",
        *counted,
        *(_add(f"{other}{family}", "other", family, "goto rejected") for family in FAMILIES),
        f"counter name {direction}_overflow",
        "goto rejected",
    )
    return _Chain("refused", "", lines)


def _count(name: str, verdict: str) -> tuple[str, ...]:
    """Where a set is full the rule ends before its verdict, and the next one counts that it was."""
    ported = "meta l4proto { tcp, udp }"
    last = f"counter name {name}_overflow {verdict}"
    return (
        *(f"{ported} {_add(f'{name}{family}', 'port', family, verdict)}" for family in FAMILIES),
        last if verdict == "accept" else f"{ported} th dport 1-{TOP_PORT} {last}",
    )


def _add(name: str, key: str, family: int, verdict: str) -> str:
    return f"add @{name} {{ {KEYS[key][1].format(family=FAMILIES[family])} counter }} {verdict}"


def _both(name: str, key: str, size: int, lifetime: int = 0) -> tuple[_Set, ...]:
    flags = "dynamic, timeout" if lifetime else "dynamic"
    return tuple(
        _Set(f"{name}{family}", KEYS[key][0].format(address=_address(family)), flags, size, lifetime)
        for family in FAMILIES
    )


def _address(family: int) -> str:
    return f"ipv{family}_addr"


def _base(type_: str, hook: str, priority: str, policy: str) -> str:
    return f"type {type_} hook {hook} priority {priority}; policy {policy};"


def _set_name(use: str, family: int, group: Group) -> str:
    return f"{use}{family}_{group[0]}_{group[1]}_{group[2]}"


def _refresh(name: str, addresses: Sequence[str], seconds: int) -> list[str]:
    """An ``add`` of what exists leaves the old time in place before Linux 6.12, a ``delete`` of what doesn't fails.

    The three take effect as one: no packet sees the address missing.
    """
    plain = ", ".join(addresses)
    timed = ", ".join(f"{address} timeout {seconds}s" for address in addresses)
    place = f"element {TABLE} {name}"
    return [f"add {place} {{ {plain} }}", f"delete {place} {{ {plain} }}", f"add {place} {{ {timed} }}"]


def _by_family(addresses: Iterable[str]) -> dict[int, list[str]]:
    import ipaddress

    split: dict[int, dict[str, None]] = {4: {}, 6: {}}
    for text in addresses:
        address = ipaddress.ip_address(_text(text))
        if isinstance(address, ipaddress.IPv6Address) and (address.scope_id is not None or address.ipv4_mapped):
            raise ValueError(f"not an address to admit: {text!r}")
        split[address.version][str(address)] = None
    return {family: list(texts) for family, texts in split.items()}


def _groups(rules: Iterable[HostRule]) -> tuple[Group, ...]:
    return tuple(dict.fromkeys(_group(rule) for rule in rules))


def _group(rule: HostRule) -> Group:
    low, high = _port(rule.low), _port(rule.high)
    if rule.protocol not in ("tcp", "udp") or low > high:
        raise ValueError(f"not a rule: {rule!r}")
    return "tcp" if rule.protocol == "tcp" else "udp", low, high


def _port(value: int) -> int:
    if type(value) is not int or not 1 <= value <= TOP_PORT:
        raise ValueError(f"not a port: {value!r}")
    return value


def _text(value: object) -> str:
    """``ipaddress`` takes numbers and bytes for addresses too."""
    if type(value) is not str:
        raise ValueError(f"not an address: {value!r}")
    return value


def _render(counters: Iterable[str], sets: Iterable[_Set], chains: Iterable[_Chain]) -> str:
    blocks = [
        *(f"\tcounter {name} {{\n\t}}\n" for name in counters),
        *(_render_set(each) for each in sets),
        *(_render_chain(each) for each in chains),
    ]
    return f"table {TABLE} {{\n{''.join(blocks)}}}\n"


def _render_set(each: _Set) -> str:
    lines = [f"type {each.key}", f"flags {each.flags}"]
    if each.size:
        lines.append(f"size {each.size}")
    if each.lifetime:
        lines.append(f"timeout {each.lifetime}s")
    if each.elements:
        lines.append(f"elements = {{ {', '.join(each.elements)} }}")
    return _block("set", each.name, lines)


def _render_chain(each: _Chain) -> str:
    return _block("chain", each.name, ([each.base] if each.base else []) + list(each.rules))


def _block(word: str, name: str, lines: Iterable[str]) -> str:
    inner = "".join(f"\t\t{line}\n" for line in lines)
    return f"\t{word} {name} {{\n{inner}\t}}\n"
