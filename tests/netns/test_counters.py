"""libnftables' JSON made rows. The documents have the shape that nft 1.0.6 prints; the kernel tests read real ones."""

from __future__ import annotations

from typing import Any

import pytest

from stockade.netns.counters import Counters, Row, parse_sets
from stockade.netns.errors import LeaseFailed


def counter(name: str, packets: int = 0, size: int = 0) -> dict[str, Any]:
    entry = {"family": "inet", "name": name, "table": "stockade", "handle": 4, "packets": packets, "bytes": size}
    return {"counter": entry}


def listed(name: str, *elements: object) -> dict[str, Any]:
    entry: dict[str, Any] = {"family": "inet", "name": name, "table": "stockade", "type": [], "size": 8}
    return {"set": entry | ({"elem": list(elements)} if elements else {})}


def element(*key: object, packets: int = 1, size: int = 60, **extra: object) -> dict[str, Any]:
    return {"elem": {"val": {"concat": list(key)}, "counter": {"packets": packets, "bytes": size}, **extra}}


def document(*entries: dict[str, Any]) -> dict[str, Any]:
    head = {"metainfo": {"version": "1.0.6", "json_schema_version": 1}}
    return {"nftables": [head, {"table": {"family": "inet", "name": "stockade"}}, *entries]}


def test_everything_that_was_counted_is_told() -> None:
    found = parse_sets(
        document(
            counter("dropped", 5, 300),
            counter("dropped_overflow", 1, 60),
            counter("reached_overflow"),
            counter("housekeeping", 3, 200),
            listed("reached4", element(6, "192.0.2.1", 443, packets=12, size=9000)),
            listed("reached6"),
            listed("dropped4", element(17, "192.0.2.2", 53)),
            listed("dropped6", element(6, "2001:db8::1", 80, packets=2, size=160)),
            listed("dropped_other4", element(1, "192.0.2.3"), element(132, "192.0.2.3")),
            listed("named4_tcp_443_443", {"elem": {"val": "192.0.2.1", "timeout": 60, "expires": 9}}),
            {"rule": {"chain": "output", "expr": [{"counter": "dropped"}]}},
        )
    )
    assert found == Counters(
        rows=(
            Row("reached", "tcp", "192.0.2.1", 443, 12, 9000),
            Row("dropped", "udp", "192.0.2.2", 53, 1, 60),
            Row("dropped", "tcp", "2001:db8::1", 80, 2, 160),
            Row("dropped", "icmp", "192.0.2.3", 0, 1, 60),
            Row("dropped", "sctp", "192.0.2.3", 0, 1, 60),
        ),
        dropped_packets=5,
        dropped_bytes=300,
        overflow=("dropped",),
        housekeeping=3,
        udp=(),
    )


def test_a_recording_lease_tells_where_datagrams_went_the_latest_first() -> None:
    found = parse_sets(
        document(
            counter("seen_other", 1, 84),
            counter("seen_other_overflow"),
            counter("seen_overflow", 2, 2),
            listed("seen4", element(17, "192.0.2.1", 123)),
            listed("seen_other6", element("ipv6-icmp", "2001:db8::1")),
            listed(
                "udp4",
                {"elem": {"val": {"concat": [40001, "192.0.2.1", 123]}, "expires": 7}},
                {"elem": {"val": {"concat": [40001, "192.0.2.2", 123]}, "expires": 90}},
            ),
            listed("udp6", {"concat": [40002, "2001:db8::1", 53]}),
        )
    )
    assert found.rows == (
        Row("seen", "udp", "192.0.2.1", 123, 1, 60),
        Row("seen", "icmpv6", "2001:db8::1", 0, 1, 60),
    )
    assert found.overflow == ("seen",)
    assert found.udp == (
        (4, 40001, "192.0.2.2", 123),
        (4, 40001, "192.0.2.1", 123),
        (6, 40002, "2001:db8::1", 53),
    )
    assert (found.dropped_packets, found.dropped_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("number", "name"), [(6, "tcp"), ("6", "tcp"), ("udp", "udp"), (58, "icmpv6"), (253, "253"), ("253", "253")]
)
def test_protocols_have_their_names(number: object, name: str) -> None:
    found = parse_sets(document(counter("dropped"), listed("dropped_other4", element(number, "192.0.2.1"))))
    assert [row.protocol for row in found.rows] == [name]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nftables": []},
        {"nftables": None},
        document(),
        document(counter("dropped"), listed("dropped4", {"elem": {"val": {"concat": [6, "192.0.2.1", 443]}}})),
        document(counter("dropped"), listed("dropped4", element(6, "192.0.2.1", "https"))),
        document(counter("dropped"), listed("dropped4", {"elem": {"val": "192.0.2.1", "counter": {}}})),
        document(counter("dropped"), listed("dropped4", "192.0.2.1")),
        document({"counter": {"name": "dropped"}}),
    ],
)
def test_what_can_t_be_read_is_no_empty_answer(wrong: dict[str, Any]) -> None:
    with pytest.raises(LeaseFailed, match="could not read the packet counters") as caught:
        parse_sets(wrong)
    assert caught.value.part == "nft"
