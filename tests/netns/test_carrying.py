"""What a relay asks is answered from the policy of its lease, and what it tells is put on record with its cause."""

from __future__ import annotations

import socket

import pytest

from stockade.netns.admission import Admission
from stockade.netns.carrying import Carrying
from stockade.netns.edge.link import Ended
from stockade.netns.egress import Ledger
from stockade.netns.lease import LeaseSpec
from stockade.netns.namecheck import Opening
from stockade.netns.relay import RelayEvent
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import matches_name, parse_rule

A = "192.0.2.1"


class Edge:
    """Remembers what it was given."""

    def __init__(self):
        self.taken, self.ended = [], ()

    def take(self, sock, data, **told):
        self.taken.append((data, told))
        sock.close()
        return len(self.taken)


class World:
    def __init__(self, *entries, edges=(), kind="allow", check="auto"):
        rules = tuple(map(parse_rule, entries))
        edges = tuple(EdgeRule(parse_rule(host), scheme, (), (), ()) for host, scheme in edges)
        spec = LeaseSpec(kind, rules, False, None, None, "", None, False, (0, 0), check=check, edge=edges)
        self.admission = Admission(rules, edges, check)
        self.ledger = Ledger(kind, 100.0)
        self.edge = None
        self.carrying = Carrying(spec, self.admission, self.ledger, lambda: self.edge)

    def answer(self, name, *addresses):
        matching = [rule for rule in self.admission.rules() if matches_name(rule, name)]
        self.admission.keep(self.admission.plan(matching, name, addresses or [A], 90))

    def judge(self, name, port=443, via="tls"):
        return self.carrying.judge(Opening(via, name), A, port)


def test_judged_by_what_was_answered_and_what_is_listed():
    world = World("a.example", "b.example:80")
    assert world.judge("a.example").action == "refuse"
    world.answer("a.example")
    assert world.judge("a.example").action == "pass"
    assert world.judge("a.example", port=80).reason == "no rule allows a.example:80"
    assert world.judge("b.example", port=80).reason == f"b.example was not resolved to {A}"


def test_an_open_address_is_read_where_an_edge_entry_leads_to_it():
    world = World("192.0.2.0/24", edges=[("c.example", "https")])
    assert world.carrying.is_open(A, 443)
    assert not world.carrying.is_open("198.51.100.1", 443)
    world.answer("c.example")
    assert not world.carrying.is_open(A, 443)
    assert world.carrying.is_open("192.0.2.99", 443)


def test_a_later_request_is_judged_alike_and_never_gets_to_the_edge():
    world = World("a.example:80", "b.example:80", edges=[("c.example:80", "http")])
    for name in ("a.example", "c.example"):
        world.answer(name)
    again = world.carrying.check_again
    assert again("a.example", A, 80) == ""
    assert again("b.example", A, 80) == f"b.example was not resolved to {A}"
    assert again("d.example", A, 80) == "no rule allows d.example:80"
    assert "edge" in again("c.example", A, 80)


@pytest.mark.parametrize(("scheme", "tls"), [("https", True), ("http", False)])
def test_what_is_for_the_edge_is_given_to_it(scheme, tls):
    world = World(edges=[("a.example", scheme)])
    world.answer("a.example")
    decision = world.judge("a.example", via="tls" if tls else "http")
    assert decision.action == "transform"
    world.edge = Edge()
    ours, theirs = socket.socketpair()
    with ours:
        world.carrying.hand_on(theirs, b"first bytes", decision, A, 443)
        assert ours.recv(1) == b""
    expected = {"host": "a.example", "address": A, "port": 443, "tls": tls, "began": 100.0}
    assert world.edge.taken == [(b"first bytes", expected)]


def test_an_edge_that_is_not_there_is_an_error():
    world = World(edges=[("a.example", "https")])
    world.answer("a.example")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(OSError, match="there is no edge"):
        world.carrying.hand_on(theirs, b"", world.judge("a.example"), A, 443)


def test_what_the_edge_carried_is_counted():
    world = World(edges=[("a.example", "https")])
    world.answer("a.example")
    world.edge = Edge()
    ours, theirs = socket.socketpair()
    ours.close()
    world.carrying.settle()
    world.carrying.hand_on(theirs, b"", world.judge("a.example"), A, 443)
    assert told(world, "a.example") == "an edge entry"
    world.edge.ended = (Ended(1, 700, 5000), Ended(2, 7, 7))
    for _ in range(2):
        world.carrying.settle()
        assert [each.bytes for each in world.ledger.attempts()] == [701], "once, and what was not given by us never"


def told(world, name, reason="", *, allowed=True):
    world.carrying.note(RelayEvent(name, A, 443, "tls", allowed, reason, 1, 1, 101.0))
    return world.ledger.attempts()[-1].reason


def test_why_it_was_looked_at_is_on_record():
    world = World("a.example", "b.example")
    world.answer("a.example")
    world.answer("b.example")
    assert told(world, "a.example") == "its address is shared with b.example"
    assert told(World("a.example", check="name"), "a.example") == "", "nothing is known of what was not answered"


def test_what_is_to_be_known_beside_that_is_too():
    world = World("a.example", check="name")
    world.answer("a.example")
    assert told(world, "a.example", "something more") == "network.check; something more"


def test_a_refusal_has_its_own_reason_alone():
    world = World("a.example", check="name")
    world.answer("a.example")
    assert told(world, "a.example", "why", allowed=False) == "why"
