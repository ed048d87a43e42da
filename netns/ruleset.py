"""The packet rules of a lease (pure): one text for nft per kind, and the text that admits a name's addresses.

Reads no clock and opens nothing; ``netns.nft`` loads what is written here and ``netns.counters`` reads it back.
No text of a caller gets into the result: addresses go through ``ipaddress``, ports and protocols are checked, names
of hosts are not written at all.

Output of ``allow`` and ``open``, in order: loopback, metadata, misleading headers, what was accepted before, the
lease's own network and other places that are never meant, the kind's own rules, refusal with a count. Connection
tracking puts fragments together first; one that it was told to leave alone (IP_NODEFRAG) is refused and counted
without a port. Refusal of TCP is a reset, of all else an ICMP error: both fail at once.
"""

from __future__ import annotations

from stockade.netns.diverted import LET_THROUGH, divert
from stockade.netns.ruletext import (
    FAMILIES,
    FRAGMENT,
    KEYS,
    REJECTED,
    SIZES,
    TOP_PORT,
    Chain,
    Set,
    address_type,
    base_line,
    both,
    count,
    group_of,
    groups,
    port_number,
    refresh,
    refused,
    render,
    set_name,
)
from stockade.policies.hosts import METADATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.netns.ruletext import Group
    from stockade.policies.hosts import HostRule

LEASE = "10.0.2.0/24"
"""The connector: its gateway 10.0.2.2 may stand for the host, its resolver 10.0.2.3 forwards any name."""


def _carriers(address: str) -> tuple[str, ...]:
    """The IPv6 forms that may lead to an IPv4 address: compatible, mapped, NAT64, 6to4."""
    a, b, c, d = map(int, address.split("."))
    # nft takes dotted parts after :: and ::ffff: only.
    halves = f"{a << 8 | b:x}:{c << 8 | d:x}"
    return f"::{address}", f"::ffff:{address}", f"64:ff9b::{halves}", f"2002:{halves}::/48"


_V4 = tuple(sorted(text for text in METADATA if ":" not in text))
_V6 = tuple(sorted(text for text in METADATA if ":" in text))
METADATA4 = f"{{ {', '.join(_V4)} }}"
METADATA6 = f"{{ {', '.join((*_V6, *(form for text in _V4 for form in _carriers(text))))} }}"
NEVER4 = f"{{ 0.0.0.0/8, {LEASE}, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3 }}"
NEVER6 = "{ ::/8, fe80::/9, ff00::/8 }"
"""Unspecified, loopback, IPv4 in disguise; link-local and site-local; multicast."""
PRIVATE4 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
CARRIER4 = "100.64.0.0/10"
PUBLIC6 = "2000::/3"
PRIVATE6 = "fc00::/7"
TUNNELS6 = "{ 2001::/32, 2002::/16 }"

LONGEST_SECONDS = 7 * 24 * 3600
UDP_SECONDS = 120


def rules_text(
    kind: str,
    rules: Sequence[HostRule],
    *,
    private: bool,
    dns_port: int = 53,
    tcp_port: int = 0,
    udp_port: int = 0,
    edge: Sequence[HostRule] = (),
    relay_port: int = 0,
) -> str:
    """The nft text of one lease; to be loaded into a network namespace that has no table of ours yet.

    ``kind`` is allow, open or record. ``rules`` matter to allow only: ranges become part of the text, names get
    empty sets for ``admit_text``. ``private`` lets open reach private ranges. The ports are where record's redirects
    go on 127.0.0.1 and ::1: queries, TCP, other UDP. With a ``relay_port`` there is one on 127.0.0.1 for addresses
    whose name is checked, and names of TCP (those of ``edge`` too) get sets for them. ``ValueError`` for what can't be
    a rule.
    """
    if kind == "record":
        return _record_text(port_number(dns_port), port_number(tcp_port), port_number(udp_port))
    if kind not in ("allow", "open"):
        raise ValueError(f"not a kind of lease: {kind!r}")
    sets, accepting = _allow(rules) if kind == "allow" else ((), _open(private))
    if not relay_port:
        return _policing_text(sets, accepting)
    checked, chains = divert((*(rules if kind == "allow" else ()), *edge), port_number(relay_port), _UNDIVERTED)
    return _policing_text((*sets, *checked), accepting, chains)


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
    split = by_family(addresses)
    commands: list[str] = []
    for group in groups(matches):
        for family, texts in split.items():
            if texts:
                commands += refresh(set_name("named", family, group), texts, seconds)
    return "".join(f"{command}\n" for command in commands)


def beyond_reach(rules: Iterable[HostRule]) -> tuple[HostRule, ...]:
    """The rules by address that an allow lease can never honour: all of their range is refused before they count."""
    found = []
    for rule in rules:
        if rule.network is not None and _never_reached(rule.network):
            found.append(rule)
    return tuple(found)


# --- allow and open ---------------------------------------------------------------------------------------------


def _policing_text(sets: Sequence[Set], accepting: Sequence[str], diverting: Sequence[Chain] = ()) -> str:
    own = (
        *both("reached", "port", SIZES["reached"]),
        *both("dropped", "port", SIZES["dropped"]),
        *both("dropped_other", "other", SIZES["other"]),
    )
    relayed = (LET_THROUGH,) if diverting else ()
    output = (*_GUARDS, *relayed, *_GOING_ON, *accepting, "goto refused")
    chains = (
        REJECTED,
        *refused("dropped"),
        Chain("reached", "", count("reached", "accept")),
        *diverting,
        Chain("output", base_line("filter", "output", "filter", "drop"), output),
        Chain("input", base_line("filter", "input", "filter", "drop"), _INPUT),
        Chain("forward", base_line("filter", "forward", "filter", "drop"), ()),
    )
    counters = ("dropped", "dropped_overflow", "reached_overflow", "housekeeping")
    return render(counters, (*own, *sets), chains)


# The reset or the ICMP error that answers a refused packet goes to the box's own address over lo, and is `related`.
# Over another link `related` is limited to ICMP, so that no helper's expectation can ever open a port.
_RELATED = (
    'oif "lo" ct state related accept',
    # About a packet that connection tracking made nothing of: only the kernel sends these.
    'oif "lo" icmp type { destination-unreachable, time-exceeded, parameter-problem } accept',
    'oif "lo" icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept',
    "ct state related meta l4proto { icmp, ipv6-icmp } accept",
)
_GUARDS = (
    'oif "lo" ip daddr 127.0.0.0/8 accept',
    'oif "lo" ip6 daddr ::1 accept',
    f"ip daddr {METADATA4} goto refused",
    f"ip6 daddr {METADATA6} goto refused",
    *_RELATED,
    # A fragment that is still one here was kept from being put together.
    f"{FRAGMENT} goto refused",
    "exthdr frag exists goto refused",
    # Options and routing headers can name another destination than the one that is looked at.
    "ip hdrlength > 5 goto refused",
    "exthdr rt exists goto refused",
)
_GOING_ON = (
    "ct state established goto reached",
    # The kernel's own neighbour discovery: dropped, but no attempt of the program.
    "icmpv6 type { mld-listener-report, mld2-listener-report, nd-router-solicit, nd-neighbor-solicit, "
    "nd-neighbor-advert } counter name housekeeping drop",
    f"ip daddr {NEVER4} goto refused",
    f"ip6 daddr {NEVER6} goto refused",
)
_UNDIVERTED = ("ip daddr 127.0.0.0/8", "ip6 daddr ::1", f"ip daddr {METADATA4}", f"ip daddr {NEVER4}")
_INPUT = (
    'iif "lo" accept',
    "ct state established accept",
    "ct state related meta l4proto { icmp, ipv6-icmp } accept",
)


def _allow(rules: Sequence[HostRule]) -> tuple[tuple[Set, ...], tuple[str, ...]]:
    sets: list[Set] = []
    accepting: list[str] = []
    named = groups(rule for rule in rules if rule.network is None)
    fixed = groups(rule for rule in rules if rule.network is not None)
    ranges = _ranges(rules)
    for group in dict.fromkeys((*fixed, *named)):
        for family in FAMILIES:
            added = []
            if elements := ranges.get((group, family)):
                added.append(
                    Set(set_name("fixed", family, group), address_type(family), "interval", elements=elements)
                )
            if group in named:
                name = set_name("named", family, group)
                added.append(Set(name, address_type(family), "timeout", SIZES["named"]))
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

    found4: dict[Group, list[ipaddress.IPv4Network]] = {}
    found6: dict[Group, list[ipaddress.IPv6Network]] = {}
    for rule in listed:
        network = ipaddress.ip_network(_text(rule.network))
        if isinstance(network, ipaddress.IPv4Network):
            found4.setdefault(group_of(rule), []).append(network)
        else:
            found6.setdefault(group_of(rule), []).append(network)
    merged = {(group, 4): tuple(map(str, ipaddress.collapse_addresses(each))) for group, each in found4.items()}
    return merged | {
        (group, 6): tuple(map(str, ipaddress.collapse_addresses(each))) for group, each in found6.items()
    }


def _never_reached(network: str) -> bool:
    import ipaddress

    asked = ipaddress.ip_network(network)
    if isinstance(asked, ipaddress.IPv4Network):
        return any(asked.subnet_of(ipaddress.IPv4Network(each)) for each in _listed(NEVER4))
    return any(asked.subnet_of(ipaddress.IPv6Network(each)) for each in _listed(NEVER6))


def _listed(anonymous: str) -> list[str]:
    return anonymous.strip("{} ").split(", ")


# --- record -----------------------------------------------------------------------------------------------------


def _record_text(dns_port: int, tcp_port: int, udp_port: int) -> str:
    sets = (
        *both("seen", "port", SIZES["seen"]),
        *both("seen_other", "other", SIZES["other"]),
        *both("udp", "source", SIZES["udp"], UDP_SECONDS),
    )
    divert = (
        *_LOCAL,
        f"udp dport 53 redirect to :{dns_port}",
        f"meta l4proto tcp redirect to :{tcp_port}",
        f"meta l4proto udp redirect to :{udp_port}",
    )
    chains = (
        REJECTED,
        *refused("seen_other"),
        Chain("seen", "", count("seen", "accept")),
        # Before dstnat (-100), which replaces the destination, and after conntrack (-200).
        Chain("witness", base_line("filter", "output", "mangle", "drop"), _WITNESS),
        Chain("divert", base_line("nat", "output", "-100", "accept"), divert),
        Chain("output", base_line("filter", "output", "filter", "drop"), ('oif "lo" accept',)),
        Chain("input", base_line("filter", "input", "filter", "drop"), ('iif "lo" accept',)),
        Chain("forward", base_line("filter", "forward", "filter", "drop"), ()),
    )
    return render(("seen_other", "seen_other_overflow", "seen_overflow"), sets, chains)


_LOCAL = ("ip daddr 127.0.0.0/8 accept", "ip6 daddr ::1 accept")
_WITNESS = (
    *_LOCAL,
    "ct direction reply accept",
    *_RELATED,
    f"{FRAGMENT} goto refused",
    "exthdr frag exists goto refused",
    *(
        f"meta l4proto udp update @udp{family} {{ {KEYS['source'][1].format(family=word)} }}"
        for family, word in FAMILIES.items()
    ),
    f"meta l4proto {{ tcp, udp }} th dport 1-{TOP_PORT} goto seen",
    "goto refused",
)


# --- parts ------------------------------------------------------------------------------------------------------


def by_family(addresses: Iterable[str]) -> dict[int, list[str]]:
    """The addresses, each once and in canonical form. ``ValueError`` for what can't be admitted."""
    import ipaddress

    split: dict[int, dict[str, None]] = {4: {}, 6: {}}
    for text in addresses:
        address = ipaddress.ip_address(_text(text))
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            raise ValueError(f"not an address to admit: {text!r}")
        split[address.version][str(address)] = None
    return {family: list(texts) for family, texts in split.items()}


def _text(value: object) -> str:
    """``ipaddress`` takes numbers and bytes for addresses too, and nearly any text after a ``%``."""
    if type(value) is not str or "%" in value:
        raise ValueError(f"not an address: {value!r}")
    return value
