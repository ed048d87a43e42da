"""Which connections of a lease are led to its relay (pure): whether it has one, and this part of the packet rules.

An address whose connections are to be looked at is in an *edge set* of its ports, and in no set that lets packets
pass by themselves: where nobody listens at the other end of the redirect, it is closed. Who gets into which set is
decided in ``netns.admission``, and whether a connection may go on in ``netns.namecheck``.
"""

from __future__ import annotations

from stockade.netns.ruletext import (
    FAMILIES,
    SIZES,
    TABLE,
    Chain,
    Set,
    address_type,
    base_line,
    groups,
    refresh,
    set_name,
)
from stockade.policies.hosts import effective_check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.netns.lease import LeaseSpec
    from stockade.netns.ruletext import Group
    from stockade.policies.hosts import HostRule

RELAY_PORT = 65012
"""Where the relay listens, on 127.0.0.1."""
# The interface is still the one that the packet would have left by.
LET_THROUGH = "meta l4proto tcp ct status dnat accept"
# A socket that is bound to a link keeps to it after the redirect: 127.0.0.1 would be the host's there.
_ASTRAY = 'oif != "lo" ip daddr 127.0.0.0/8'
_MEANT = "meta l4proto . ct original ip daddr . ct original proto-dst"
ASTRAY = Chain(
    "astray",
    base_line("filter", "postrouting", "filter", "accept"),
    (
        f"{_ASTRAY} meta l4proto tcp counter name dropped add @dropped4 {{ {_MEANT} counter }} drop",
        f"{_ASTRAY} counter name dropped_overflow drop",
    ),
)


def needs_relay(spec: LeaseSpec) -> bool:
    """Whether the name of some connection may have to be read."""
    if spec.kind not in ("allow", "open"):
        return False
    named = [rule for rule in spec.rules if rule.name is not None and rule.protocol == "tcp"]
    checks = {effective_check(rule, spec.check) for rule in named}
    if spec.edge or "name" in checks:
        return True
    several = len({rule.name for rule in named}) > 1 or any(rule.wildcard for rule in named)
    return several and "auto" in checks


def divert(
    rules: Iterable[HostRule], port: int, never: Sequence[str]
) -> tuple[tuple[Set, ...], tuple[Chain, Chain]]:
    """Empty edge sets for the names of TCP in ``rules``, and the chains that lead what is in them to ``port``.

    ``never`` are conditions: what fits one is left to the rules that refuse it.
    """
    listed = groups(rule for rule in rules if rule.name is not None and rule.protocol == "tcp")
    sets = tuple(Set(set_name("edge", 4, group), address_type(4), "timeout", SIZES["named"]) for group in listed)
    chain = Chain(
        "divert",
        base_line("nat", "output", "-100", "accept"),
        (*(f"{each} accept" for each in never), *(_redirect(group, port) for group in listed)),
    )
    return sets, (chain, ASTRAY)


def edge_text(group: Group, addresses: Sequence[str], seconds: int) -> str:
    """Commands that lead connections to ``addresses`` (IPv4) on these ports to the relay, for ``seconds`` from now."""
    return _lines(refresh(set_name("edge", 4, group), addresses, seconds))


def named_text(group: Group, family: int, addresses: Sequence[str], seconds: int) -> str:
    """Commands that let ``addresses`` be reached on these ports, for ``seconds`` from now."""
    return _lines(refresh(set_name("named", family, group), addresses, seconds))


def closed_text(group: Group, addresses: Sequence[str]) -> str:
    """Commands after which none of ``addresses`` (IPv4) is let through on these ports, whether it was or not."""
    place = f"element {TABLE} {set_name('named', 4, group)} {{ {', '.join(addresses)} }}"
    return _lines([f"add {place}", f"delete {place}"])


def _redirect(group: Group, port: int) -> str:
    _protocol, low, high = group
    ports = str(low) if low == high else f"{low}-{high}"
    return f"tcp dport {ports} {FAMILIES[4]} daddr @{set_name('edge', 4, group)} redirect to :{port}"


def _lines(commands: Iterable[str]) -> str:
    return "".join(f"{command}\n" for command in commands)
