"""What the rules of ``netns.ruleset`` counted (pure): libnftables' JSON of our table made rows and totals.

Only elements are read here, never rules. A document that is not of our table, or an element that can't be read,
is an error and not an empty answer: "nothing was counted" must be true where it is said.
"""

from __future__ import annotations

from stockade.netns.errors import LeaseFailed
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmpv6", 132: "sctp", 136: "udplite"}
NAMES = {"ipv6-icmp": "icmpv6"}
"""Protocols that /etc/protocols calls otherwise, as an nft that can't print numbers would."""
FLOWS = {
    "reached": "reached",
    "dropped": "dropped",
    "dropped_other": "dropped",
    "seen": "seen",
    "seen_other": "seen",
}
UDP = {"udp4": 4, "udp6": 6}


class Row(Record):
    """One destination and what was sent there. Bytes are those of whole packets, headers included."""

    direction: str
    """``reached``, ``dropped`` or (recording) ``seen``."""
    protocol: str
    """``tcp``, ``udp``, ``icmp``...; a number as text where it has no name here."""
    address: str
    port: int
    """0 where the protocol has no ports, or the packet showed none."""
    packets: int
    bytes: int


class Counters(Record):
    """All that was counted in one lease."""

    rows: tuple[Row, ...]
    dropped_packets: int
    """All refused packets, also those of destinations for which there was no room."""
    dropped_bytes: int
    overflow: tuple[str, ...]
    """Of ``reached``, ``dropped``, ``seen``, ``seen_other``: those whose rows are not all, for want of room."""
    housekeeping: int
    """Packets of the kernel's own neighbour discovery, dropped; no attempt of the program."""
    udp: tuple[tuple[int, int, str, int], ...]
    """(4 or 6, source port, address, port) of recorded datagrams, the latest first."""


def parse_sets(document: dict[str, Any]) -> Counters:
    """The counters in the answer to ``list table inet stockade``. Raises LeaseFailed if it is none."""
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise LeaseFailed(
            f"could not read the packet counters: not the JSON that was expected: {error!r}", part="nft"
        ) from error


def _parse(document: dict[str, Any]) -> Counters:
    counters: dict[str, tuple[int, int]] = {}
    sets: dict[str, list[Any]] = {}
    for entry in document["nftables"]:
        if one := entry.get("counter"):
            counters[one["name"]] = one["packets"], one["bytes"]
        if one := entry.get("set"):
            sets[one["name"]] = one.get("elem", [])
    if not counters:
        raise ValueError("no counters")
    rows = tuple(row for name, elements in sets.items() for row in _rows(name, elements))
    packets, size = counters.get("dropped", (0, 0))
    suffix = "_overflow"
    overflow = tuple(
        name.removesuffix(suffix) for name, got in counters.items() if name.endswith(suffix) and got[0]
    )
    return Counters(rows, packets, size, overflow, counters.get("housekeeping", (0, 0))[0], _sources(sets))


def _rows(name: str, elements: list[Any]) -> Iterator[Row]:
    direction = FLOWS.get(name[:-1])
    if direction is None:
        return
    for element in elements:
        key, extra = _element(element)
        counter = extra["counter"]
        port = int(key[2]) if len(key) == 3 else 0
        yield Row(direction, _protocol(key[0]), key[1], port, int(counter["packets"]), int(counter["bytes"]))


def _sources(sets: dict[str, list[Any]]) -> tuple[tuple[int, int, str, int], ...]:
    found: list[tuple[int, tuple[int, int, str, int]]] = []
    for name, family in UDP.items():
        for element in sets.get(name, ()):
            key, extra = _element(element)
            found.append((extra.get("expires", 0), (family, int(key[0]), key[1], int(key[2]))))
    found.sort(key=lambda each: each[0], reverse=True)
    return tuple(source for _left, source in found)


def _element(element: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The parts of its key, and what belongs to it; nft leaves out the wrapper where nothing does."""
    extra = element.get("elem", {"val": element})
    return extra["val"]["concat"], extra


def _protocol(value: int | str) -> str:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return PROTOCOLS.get(value, str(value)) if isinstance(value, int) else NAMES.get(value, value)
