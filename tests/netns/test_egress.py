"""Events and counters in, attempts out; and the table and the denials that are made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns import egress as module
from stockade.netns.counters import Row
from stockade.netns.egress import UNKNOWN, UNLISTED, EgressAttempt, Ledger, denials, merge, report_of
from stockade.netns.resolver import NameEvent
from stockade.netns.sinkhole import AttemptSeen
from stockade.netns.sniff import sniff
from stockade.sandbox.cli import egresstable

BEGAN = 1000.0
HTTP = b"GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n"


def asked(name, *addresses, outcome="answered", time=BEGAN + 1, type="A"):
    return NameEvent(name, type, outcome, addresses, time)


def seen(address, port, data=b"", *, time=BEGAN + 2, protocol="tcp", name=None):
    return AttemptSeen(protocol, address, port, data, len(data), time, sniff(data, protocol), name)


def row(direction, address, port=443, protocol="tcp", packets=3, size=180):
    return Row(direction, protocol, address, port, packets, size)


def merged(kind="allow", names=(), rows=(), events=(), names_of=None):
    return merge(kind, names, rows, events, names_of, began=BEGAN)


def brief(attempts):
    return [(each.host, each.address, each.port, each.via, each.allowed, each.packets) for each in attempts]


# --- merging -----------------------------------------------------------------------------------------------


def test_nothing_is_nothing():
    assert merged() == ()


def test_a_name_that_led_somewhere_is_the_host_of_it():
    (attempt,) = merged(
        names=[
            asked("Api.Example.com.", "203.0.113.5", "203.0.113.6"),
            asked("api.example.com", outcome="empty", type="AAAA"),
        ],
        rows=[row("reached", "203.0.113.6", packets=7, size=900)],
    )
    assert attempt == EgressAttempt("api.example.com", "203.0.113.6", 443, "tcp", True, 7, 900, "tcp", 1.0)


def test_a_name_by_which_nothing_was_contacted_stands_for_itself():
    names = [
        asked("a.example", "203.0.113.5"),
        asked("a.example", type="AAAA", outcome="empty"),
        asked("gone.example", outcome="absent", time=BEGAN),
    ]
    assert merged(names=names) == (
        EgressAttempt("gone.example", "", 0, "dns", True, 1, 0, "dns", 0.0),
        EgressAttempt("a.example", "", 0, "dns", True, 2, 0, "dns", 1.0),
    )


@pytest.mark.parametrize("outcome", ["refused", "never heard of"])
def test_a_refused_name_is_an_attempt_each_asked_often(outcome):
    names = [
        asked("evil.example", outcome=outcome),
        asked("evil.example", outcome=outcome, type="AAAA", time=BEGAN + 5),
    ]
    assert merged(names=names) == (EgressAttempt("evil.example", "", 0, "dns", False, 2, 0, "dns", 1.0),)


def test_a_rebound_name_tells_where_it_leads_though_it_was_answered_too():
    names = [asked("a.example", "203.0.113.5"), asked("a.example", "10.0.0.1", "127.0.0.1", outcome="rebinding")]
    first, second = merged(names=names, rows=[row("reached", "203.0.113.5")])
    assert (first.address, first.allowed) == ("203.0.113.5", True)
    assert second == EgressAttempt(
        "a.example", "10.0.0.1", 0, "dns", False, 1, 0, "dns", 1.0, "leads to 10.0.0.1, 127.0.0.1"
    )


def test_an_address_without_a_name_is_its_own_host():
    rows = [
        row("dropped", "192.0.2.9", 8443),
        row("dropped", "2001:db8::1"),
        row("dropped", "192.0.2.9", 0, "icmp"),
    ]
    assert [(each.host, each.protocol, each.first_seen) for each in merged(rows=rows)] == [
        ("192.0.2.9", "tcp", None),
        ("2001:db8::1", "tcp", None),
        ("192.0.2.9", "icmp", None),
    ]


def test_names_that_share_an_address_are_all_told():
    names = [asked("a.example", "203.0.113.5", time=BEGAN + 2), asked("b.example", "203.0.113.5", time=BEGAN + 1)]
    (attempt,) = merged(names=names, rows=[row("reached", "203.0.113.5")])
    assert (attempt.host, attempt.shared, attempt.first_seen) == ("a.example", ("a.example", "b.example"), 1.0)


def test_a_given_map_adds_names():
    (attempt,) = merged(rows=[row("reached", "203.0.113.5")], names_of={"203.0.113.5": ["c.example"]})
    assert (attempt.host, attempt.shared, attempt.first_seen) == ("c.example", (), None)


def test_reached_and_dropped_are_two_attempts_and_rows_add_up():
    rows = [
        row("reached", "192.0.2.1"),
        row("dropped", "192.0.2.1"),
        row("dropped", "192.0.2.1", packets=2, size=20),
    ]
    assert [(each.allowed, each.packets, each.bytes) for each in merged(rows=rows)] == [
        (True, 3, 180),
        (False, 5, 200),
    ]


def test_recorded_connections_are_one_attempt_a_destination():
    events = [seen("203.0.113.7", 80, HTTP % (n % 2, b"api.example.com"), time=BEGAN + 4 - n) for n in range(3)]
    (attempt,) = merged("record", events=events)
    size = sum(event.bytes for event in events)
    assert attempt == EgressAttempt(
        "api.example.com", "203.0.113.7", 80, "tcp", False, 3, size, "http", 2.0, attempt.data
    )
    assert attempt.data.splitlines()[0] == "GET /0 HTTP/1.1"
    assert attempt.data.count("GET /0") == attempt.data.count("GET /1") == 1


def test_the_counters_of_a_recorded_destination_count_packets():
    (attempt,) = merged(
        "record", events=[seen("203.0.113.7", 22, b"x")], rows=[row("seen", "203.0.113.7", 22, packets=6, size=333)]
    )
    assert (attempt.packets, attempt.bytes, attempt.data) == (6, 333, "x")


@pytest.mark.parametrize(
    ("names", "event", "host", "shared"),
    [
        ([], seen("198.18.0.5", 22, name="n.example"), "n.example", ()),
        ([asked("n.example", "198.18.0.5")], seen("198.18.0.5", 22, name="n.example"), "n.example", ()),
        (
            [asked("n.example", "198.18.0.5")],
            seen("198.18.0.5", 80, HTTP % (1, b"front.example")),
            "n.example",
            ("n.example", "front.example"),
        ),
        ([], seen("203.0.113.7", 80, HTTP % (1, b"bad host")), "'bad host'", ()),
        ([], seen("203.0.113.7", 80, HTTP % (1, b"203.0.113.7")), "203.0.113.7", ()),
        ([], seen("203.0.113.7", 80), "203.0.113.7", ()),
        ([], seen("", 0, b"?", protocol="udp"), UNKNOWN, ()),
    ],
)
def test_the_host_of_a_recorded_destination(names, event, host, shared):
    (attempt,) = merged("record", names=names, events=[event])
    assert (attempt.host, attempt.shared) == (host, shared)


def test_recognised_outranks_plain():
    events = [
        seen("203.0.113.7", 443, b""),
        seen("203.0.113.7", 443, HTTP % (1, b"a.example")),
        seen("203.0.113.7", 443),
    ]
    assert [each.via for each in merged("record", events=events)] == ["http"]


def test_nothing_is_allowed_in_a_recorded_run():
    attempts = merged("record", names=[asked("a.example", "198.18.0.5")], events=[seen("192.0.2.1", 1)])
    assert [each.allowed for each in attempts] == [False, False]


def test_order_is_that_of_first_sight():
    attempts = merged(
        "record",
        names=[asked("late.example", time=BEGAN + 9), asked("early.example", time=BEGAN)],
        events=[seen("192.0.2.1", 1, time=BEGAN + 3)],
        rows=[row("seen", "192.0.2.2", 0, "icmp")],
    )
    assert [(each.host, each.first_seen) for each in attempts] == [
        ("early.example", 0.0),
        ("192.0.2.1", 3.0),
        ("late.example", 9.0),
        ("192.0.2.2", None),
    ]


# --- bounds ------------------------------------------------------------------------------------------------


def test_what_finds_no_room_is_said(monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 2)
    monkeypatch.setattr(module, "MOST_DESTINATIONS", 2)
    ledger = Ledger("record")
    for number in (1, 2, 3, 1):
        ledger.add_name(asked(f"n{number}.example"))
        ledger.add_seen(seen("192.0.2.1", number))
    assert [(each.host, each.packets) for each in ledger.attempts()][-1] == (UNLISTED, 2)
    assert len(ledger.attempts()) == 5


def test_names_that_were_refused_do_not_crowd_out_those_that_were_answered(monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 2)
    ledger = Ledger("allow")
    for number in range(4):
        ledger.add_name(asked(f"n{number}.example").replace(outcome="refused", addresses=()))
    ledger.add_name(asked("good.example", "203.0.113.5"))
    found = [(each.host, each.allowed, each.packets) for each in ledger.attempts()]
    assert ("good.example", True, 1) in found
    assert found[-1] == (UNLISTED, False, 2)


def test_names_and_texts_of_one_destination_are_bounded():
    ledger = Ledger("record")
    for number in range(1000):
        ledger.add_seen(seen("192.0.2.1", 80, HTTP % (number, b"n%d.example" % number)))
    (attempt,) = ledger.attempts()
    assert attempt.packets == 1000
    assert attempt.shared == (*(f"n{number}.example" for number in range(module.MOST_HOSTS)), UNLISTED)
    assert len(attempt.data) <= module.MOST_TEXT


def element(protocol, address, port, packets, size):
    return {"elem": {"val": {"concat": [protocol, address, port]}, "counter": {"packets": packets, "bytes": size}}}


def listing(overflow=0):
    return {
        "nftables": [
            {"counter": {"name": "dropped", "packets": 9, "bytes": 540}},
            {"counter": {"name": "dropped_overflow", "packets": overflow, "bytes": 0}},
            {"set": {"name": "dropped4", "elem": [element(6, "192.0.2.9", 443, 4, 240)]}},
            {"set": {"name": "reached4", "elem": [element("tcp", "203.0.113.5", 443, 5, 300)]}},
        ]
    }


def test_the_report_of_a_lease():
    ledger = Ledger("allow", BEGAN)
    ledger.add_name(asked("a.example", "203.0.113.5"))
    report = report_of("allow", ledger, listing())
    assert brief(report.egress) == [
        ("a.example", "203.0.113.5", 443, "tcp", True, 5),
        ("192.0.2.9", "192.0.2.9", 443, "tcp", False, 4),
    ]
    assert (report.dropped.packets, report.dropped.bytes, report.notes) == (9, 540, ())


def test_the_report_says_that_the_list_is_not_complete():
    report = report_of("allow", Ledger("allow"), listing(overflow=5))
    assert brief(report.egress)[-1] == (UNLISTED, "", 0, "other", False, 0)
    assert len(report.notes) == 1


ADDRESSES = st.sampled_from(["192.0.2.1", "203.0.113.5", "2001:db8::1"])
NAMES = st.sampled_from(["a.example", "b.example", "c.example."])
OUTCOMES = st.sampled_from(["answered", "empty", "absent", "refused", "rebinding", "failed", "?"])
ROWS = st.builds(row, st.sampled_from(["reached", "dropped", "seen"]), ADDRESSES, st.integers(1, 3))
SEEN = st.builds(seen, ADDRESSES, st.integers(1, 3), st.sampled_from([b"", b"x", HTTP % (1, b"a.example")]))


@given(
    st.sampled_from(["allow", "open", "record"]),
    st.lists(
        st.builds(lambda name, outcome, address: asked(name, address, outcome=outcome), NAMES, OUTCOMES, ADDRESSES)
    ),
    st.lists(ROWS),
    st.lists(SEEN),
)
def test_nothing_is_lost_and_nothing_is_told_twice(kind, names, rows, events):
    attempts = merged(kind, names, rows, events)
    places = [(each.host, each.address, each.port, each.protocol, each.allowed) for each in attempts]
    assert len(places) == len(set(places))
    for each in rows:
        assert any(
            (a.address, a.port, a.allowed) == (each.address, each.port, each.direction == "reached")
            for a in attempts
        )
    for each in events:
        assert any((a.address, a.port) == (each.address, each.port) for a in attempts)
    for each in names:
        plain = each.name.removesuffix(".")
        assert any(plain in (a.host, *a.shared) for a in attempts)
    times = [each.first_seen for each in attempts if each.first_seen is not None]
    assert times == sorted(times)
    if kind == "record":
        assert not any(each.allowed for each in attempts if each.via == "dns")
    denials(attempts, kind)
    assert all(line.isprintable() for line in egresstable.lines(attempts, False))


# --- denials -----------------------------------------------------------------------------------------------


def refused(host="", address="192.0.2.9", port=443, protocol="tcp", packets=3):
    return EgressAttempt(host or address, address, port, protocol, False, packets, 180, protocol, None)


@pytest.mark.parametrize(
    ("attempt", "kind", "subject", "hint"),
    [
        (refused(), "allow", "192.0.2.9:443", "--allow 192.0.2.9 opens it."),
        (refused(port=8443), "allow", "192.0.2.9:8443", "--allow 192.0.2.9:8443 opens it."),
        (refused("a.example", port=80), "allow", "a.example:80", "--allow a.example:80 opens it."),
        (
            refused("a.example", port=123, protocol="udp"),
            "allow",
            "a.example:123",
            "--allow udp://a.example:123 opens it.",
        ),
        (refused("'bad host'"), "allow", "'bad host':443", "--allow 192.0.2.9 opens it."),
        (refused(address="10.1.2.3"), "allow", "10.1.2.3:443", "--allow 10.1.2.3 opens it."),
        (refused(address="10.0.2.2"), "allow", "10.0.2.2:443", "This address is never let out."),
        (refused(address="2001:db8::1"), "allow", "[2001:db8::1]:443", "IPv6 does not leave"),
        (refused(address="169.254.169.254"), "allow", "169.254.169.254:443", "Cloud metadata"),
        (refused(address="169.254.169.254"), "open", "169.254.169.254:443", "Cloud metadata"),
        (refused(protocol="icmp", port=0), "allow", "192.0.2.9", "Only TCP and UDP"),
        (refused(address="10.1.2.3"), "open", "10.1.2.3:443", "network.private = true"),
        (refused(address="100.64.0.1"), "open", "100.64.0.1:443", "public addresses only"),
    ],
)
def test_what_would_let_it_out(attempt, kind, subject, hint):
    ((told, detail, advice),) = denials([attempt], kind)
    assert told == subject
    assert hint in advice
    assert detail.startswith("refused 3 packets by ")


def test_one_packet_is_one():
    assert denials([refused(packets=1)], "allow")[0][1] == "refused 1 packet by tcp to 192.0.2.9:443"


@pytest.mark.parametrize(
    ("event", "detail", "hint"),
    [
        (asked("evil.example", outcome="refused"), "not on the list", "--allow evil.example opens TCP port 443"),
        (asked("_a.example", outcome="refused"), "refused the name", "no host name that could be allowed"),
        (asked("", outcome="refused"), "refused the name .", "no host name"),
        (asked("a.example", "10.0.0.1", outcome="rebinding"), "it leads to 10.0.0.1", "DNS rebinding"),
        (asked("a.example", "169.254.169.254", outcome="rebinding"), "169.254.169.254", "Cloud metadata"),
    ],
)
def test_why_a_name_was_refused(event, detail, hint):
    ((_subject, told, advice),) = denials(merged(names=[event]), "allow")
    assert detail in told
    assert hint in advice


def test_only_what_was_refused_is_denied():
    attempts = merged(
        names=[asked("a.example", "192.0.2.1"), asked("b.example", outcome="absent")],
        rows=[row("reached", "192.0.2.1")],
    )
    assert denials(attempts, "allow") == []
    assert len(attempts) == 2


@pytest.mark.parametrize("kind", ["none", "record"])
def test_kinds_that_refuse_nothing(kind):
    assert denials([refused()], kind) == []
    assert len(denials([refused()], "allow")) == 1


def test_an_incomplete_list_is_a_denial_of_its_own():
    attempts = report_of("allow", Ledger("allow"), listing(overflow=5)).egress
    assert [subject for subject, _detail, _hint in denials(attempts, "allow")] == ["192.0.2.9:443", UNLISTED]


# --- the table ---------------------------------------------------------------------------------------------


def test_the_table():
    attempts = merged(
        "record",
        names=[asked("a.example", "198.18.0.5"), asked("tunnel.example", "198.18.0.6", time=BEGAN + 5)],
        events=[
            seen("198.18.0.5", 80, HTTP % (1, b"b.example")),
            seen("203.0.113.7", 53, b"\x1b[2J", protocol="udp"),
        ],
    )
    assert egresstable.lines(attempts, False) == [
        "stockade: egress: 3 destinations",
        "  HOST            ADDRESS     PORT  VIA   PACKETS  BYTES  FIRST",
        "  a.example       198.18.0.5  80    http  1        36     2.00 s",
        "    address shared by a.example, b.example",
        "    GET /1 HTTP/1.1",
        "  203.0.113.7     -           53    udp   1        4      2.00 s",
        "    \\x1b[2J",
        "  tunnel.example  -           -     dns   1        -      5.00 s",
    ]


def test_the_table_of_nothing():
    assert egresstable.lines((), True) == ["stockade: egress: nothing was contacted"]


def test_the_table_is_bounded_and_harmless():
    attempts = [
        EgressAttempt("x" * 300 + "\x1b", "192.0.2.1", n, "tcp", False, 1, 1, "tls", None, "y\u202e" * 300)
        for n in range(99)
    ]
    lines = egresstable.lines(attempts, False)
    assert lines[-1] == "  and 49 more (--json lists them all)"
    assert max(map(len, lines)) < 1000
    assert all(line.isprintable() for line in lines)


def test_colours_only_where_asked():
    attempts = [refused()]
    assert any("\x1b" in line for line in egresstable.lines(attempts, True))
    assert not any("\x1b" in line for line in egresstable.lines(attempts, False))
