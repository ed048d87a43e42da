"""What the relay carried and refused, in the list of attempts and as denials."""

from __future__ import annotations

import pytest

from stockade.netns import namecheck
from stockade.netns.counters import Row
from stockade.netns.egress import UNLISTED, EgressAttempt, Ledger, denials
from stockade.netns.relay import RelayEvent
from stockade.netns.relayed import NO_NAME, NOT_THERE, RESOLVE, Tallies, hint_of
from stockade.netns.resolver import NameEvent
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import parse_rule
from stockade.sandbox.cli import egresstable

A, BEGAN = "192.0.2.1", 100.0
WHY = "its address is shared with b.example"


def event(name="a.example", *, allowed=True, reason=WHY, via="tls", sent=500, started=101.0, address=A, port=443):
    return RelayEvent(name, address, port, via, allowed, reason, sent, 900, started)


def answered(name, *addresses, time=100.5):
    return NameEvent(name, "A", "answered", addresses or (A,), time)


def listed(*events, names=(), rows=(), kind="allow"):
    ledger = Ledger(kind, BEGAN)
    for each in names:
        ledger.add_name(each)
    for each in events:
        ledger.add_relayed(each)
    return ledger.attempts(rows)


def reached(packets=7, size=900, direction="reached", port=443):
    return Row(direction, "tcp", A, port, packets, size)


def test_connections_for_one_name_are_one_attempt():
    (attempt,) = listed(
        event(started=103.0), event(sent=20), names=[answered("a.example"), answered("b.example")][:1]
    )
    assert attempt == EgressAttempt("a.example", A, 443, "tcp", True, 2, 520, "tls", 1.0, reason=WHY)


def test_names_at_one_address_are_attempts_of_their_own():
    names = [answered("a.example"), answered("b.example")]
    found = listed(
        event(), event("b.example", started=102.0, reason="its address is shared with a.example"), names=names
    )
    assert [(each.host, each.packets, each.shared) for each in found] == [
        ("a.example", 1, ()),
        ("b.example", 1, ()),
    ]


def test_what_was_refused_stands_beside_what_was_not():
    found = listed(event(), event(allowed=False, reason="no rule allows a.example:443", sent=0))
    assert [(each.allowed, each.reason) for each in found] == [(True, WHY), (False, "no rule allows a.example:443")]


def test_who_gave_no_name_is_listed_by_address():
    (attempt,) = listed(event(None, allowed=False, reason=namecheck.NEITHER, via="tcp"))
    assert (attempt.host, attempt.address, attempt.via) == (A, A, "tcp")


def test_what_the_rules_counted_before_goes_with_the_name_that_had_the_address():
    names = [answered("a.example"), answered("b.example", time=105.0)]
    (first, second) = listed(
        event("b.example", started=106.0), event("a.example", started=107.0), names=names, rows=[reached()]
    )
    assert (second.host, second.packets, second.bytes) == ("a.example", 8, 1400)
    assert (first.host, first.packets, first.bytes) == ("b.example", 1, 500)


def test_what_nobody_came_with_stays_a_row():
    """The first name was used only before its address was shared: its row is the rules'."""
    names = [answered("a.example"), answered("b.example", time=105.0)]
    found = listed(
        event("b.example", started=106.0), names=names, rows=[reached(), reached(direction="dropped", port=80)]
    )
    assert [(each.host, each.port, each.allowed, each.packets, each.reason) for each in found] == [
        ("a.example", 443, True, 7, ""),
        ("a.example", 80, False, 7, ""),
        ("b.example", 443, True, 1, WHY),
    ]


def test_a_name_that_was_refused_is_not_taken_for_unused():
    found = listed(event("b.example", allowed=False, reason="x"), names=[answered("b.example")])
    assert [(each.via, each.host) for each in found] == [("tls", "b.example")]


def test_the_list_is_bounded():
    tallies = Tallies(2)
    assert [tallies.add(event(f"{name}.example")) for name in "abac"] == [True, True, True, False]
    ledger = Ledger("allow")
    ledger.relayed = Tallies(1)
    for name in "abc":
        ledger.add_relayed(event(f"{name}.example"))
    assert [(each.host, each.packets) for each in ledger.attempts()] == [("a.example", 1), (UNLISTED, 2)]


def test_what_was_refused_does_not_crowd_out_what_was_not():
    ledger = Ledger("allow")
    ledger.relayed = Tallies(2)
    for name in "abcd":
        ledger.add_relayed(event(f"{name}.example", allowed=False, reason="x"))
    for name in "efg":
        ledger.add_relayed(event(f"{name}.example"))
    found = [(each.host, each.allowed, each.packets) for each in ledger.attempts()]
    assert found[2:] == [("e.example", True, 1), ("f.example", True, 1), (UNLISTED, True, 1), (UNLISTED, False, 2)]


def refused(name, reason, via="tls", address=A, port=443):
    return listed(event(name, allowed=False, reason=reason, via=via, address=address, port=port))


@pytest.mark.parametrize(
    ("name", "reason", "hint"),
    [
        ("c.example", "no rule allows c.example:443", "--allow c.example opens it."),
        ("c.example", f"c.example was not resolved to {A}", RESOLVE),
        (None, namecheck.NEITHER, NO_NAME),
        (None, "its ClientHello has no server name", NO_NAME),
        ("c.example", "the edge reaches c.example by https alone", "network.edge"),
        (None, "no destination: the relay itself was dialled", NOT_THERE),
    ],
)
def test_a_refusal_is_a_denial_with_its_reason_and_what_would_help(name, reason, hint):
    ((subject, detail, told),) = denials(refused(name, reason), "allow")
    assert subject == f"{name or A}:443"
    assert detail == f"refused 1 connection by tls to {A}:443{f' ({name})' if name else ''}: {reason}"
    assert hint in told


def test_hints_go_by_the_words_of_real_reasons():
    """So that neither changes without the other."""
    opening = namecheck.Opening("tls", "c.example")
    given = {"rules": [parse_rule("c.example")], "edges": [], "kind": "allow"}
    unresolved = namecheck.judge(opening, A, 443, leads=lambda *_: False, **given)
    unlisted = namecheck.judge(opening, A, 80, leads=lambda *_: True, **given)
    plain = EdgeRule(parse_rule("c.example"), "http", (), (), ())
    schemed = namecheck.judge(opening, A, 443, leads=lambda *_: True, rules=[], edges=[plain], kind="allow")
    assert hint_of(unresolved.reason, None) == RESOLVE
    assert hint_of(unlisted.reason, "c.example:80") == "--allow c.example:80 opens it."
    assert "scheme" in hint_of(schemed.reason, None)


def test_what_was_let_through_is_no_denial():
    assert denials(listed(event()), "allow") == []


def test_the_table_tells_the_reason():
    lines = egresstable.lines(listed(event(), event(None, allowed=False, reason="\x1b[2J" + "x" * 300)), False)
    assert lines[3] == f"    {WHY}"
    assert all(line.isprintable() and len(line) < 200 for line in lines)
