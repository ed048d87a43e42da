"""Which addresses are let through as they are and which by name alone, and that an answer is what opens them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns import admission as module
from stockade.netns.admission import CHECKED, EDGE, Admission, AdmissionFull
from stockade.netns.diverted import needs_relay
from stockade.netns.lease import LeaseSpec
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import matches_name, parse_rule

A, B = "192.0.2.1", "192.0.2.2"
HOUR = 3600


def edge(*hosts):
    return tuple(EdgeRule(parse_rule(host), "https", (), (), ()) for host in hosts)


class Lease:
    """What the sets of one lease hold, by the commands that were planned."""

    def __init__(self, *entries, edges=(), check="auto"):
        self.now = 1000.0
        self.admission = Admission(list(map(parse_rule, entries)), edge(*edges), check, clock=lambda: self.now)
        self.sets = {}

    def answer(self, name, *addresses, seconds=90):
        rules = [rule for rule in self.admission.rules() if matches_name(rule, name)]
        plan = self.admission.plan(rules, name, addresses, seconds)
        self.carry_out(plan.text)
        self.admission.keep(plan)
        return self.where()

    def carry_out(self, text):
        for line in text.splitlines():
            verb, place, inner = re.fullmatch(r"(add|delete) element inet stockade (\w+) \{ (.*) \}", line).groups()
            held = self.sets.setdefault(place, {})
            for each in inner.split(", "):
                address, _word, seconds = each.partition(" timeout ")
                if verb == "delete":
                    del held[address]  # what is not there can't be deleted
                elif address not in held:
                    held[address] = self.now + int(seconds[:-1]) if seconds else float("inf")
        assert all(until < float("inf") for held in self.sets.values() for until in held.values())

    def where(self):
        """Set to the addresses that it holds now."""
        found = {
            name: sorted(a for a, until in held.items() if until > self.now) for name, held in self.sets.items()
        }
        return {name: addresses for name, addresses in found.items() if addresses}


# --- which sets --------------------------------------------------------------------------------------------


def test_an_address_of_one_name_is_let_through_as_it_is():
    lease = Lease("a.example", "b.example")
    assert lease.answer("a.example", A) == {"named4_tcp_443_443": [A]}
    assert lease.answer("b.example", B) == {"named4_tcp_443_443": [A, B]}


def test_an_address_that_turns_out_to_be_shared_is_moved():
    lease = Lease("a.example", "b.example:80")
    lease.answer("a.example", A, seconds=90)
    assert lease.answer("b.example", A, B, seconds=30) == {
        "edge4_tcp_443_443": [A],
        "edge4_tcp_80_80": [A],
        "named4_tcp_80_80": [B],
    }
    assert lease.sets["edge4_tcp_443_443"][A] == lease.now + 90, "with the time that is left to it"
    assert lease.admission.reason("a.example", A, 443) == "its address is shared with b.example"
    assert lease.admission.reason("b.example", A, 80) == "its address is shared with a.example"
    assert lease.admission.reason("b.example", B, 80) == ""
    assert lease.admission.reason(None, A, 443) == "its address is shared with a.example, b.example"


def test_one_name_of_several_entries_shares_with_nobody():
    lease = Lease("a.example", "a.example:22", "*.example:80")
    assert lease.answer("a.example", A) == {
        "named4_tcp_443_443": [A], "named4_tcp_22_22": [A], "named4_tcp_80_80": [A],
    }  # fmt: skip
    assert lease.answer("a.example", A, B)["named4_tcp_22_22"] == [A, B]


def test_addresses_of_one_answer_are_admitted_together():
    lease = Lease("a.example", "b.example")
    rules = [parse_rule("a.example")]
    many = [f"192.0.2.{number}" for number in range(32)]
    assert lease.admission.plan(rules, "a.example", many, 90).text.count("\n") == 3
    lease.answer("b.example", *many[:3])
    assert lease.admission.plan(rules, "a.example", many, 90).text.count("\n") == 2 + 3 + 3


def test_names_of_one_wildcard_share():
    lease = Lease("*.example")
    lease.answer("a.example", A)
    assert lease.answer("b.a.example", A) == {"edge4_tcp_443_443": [A]}


def test_what_was_shared_is_never_let_through_as_it_is_again():
    lease = Lease("a.example", "b.example")
    lease.answer("a.example", A)
    lease.answer("b.example", A)
    lease.now += HOUR
    assert lease.where() == {}
    assert lease.answer("a.example", A) == {"edge4_tcp_443_443": [A]}
    assert lease.admission.reason("a.example", A, 443) == "its address is shared with b.example"


def test_a_name_that_is_over_shares_nothing():
    lease = Lease("a.example", "b.example")
    lease.answer("a.example", A)
    lease.now += HOUR
    assert lease.answer("b.example", A) == {"named4_tcp_443_443": [A]}


@pytest.mark.parametrize(
    ("entries", "edges", "check", "reason"),
    [
        (["a.example check=name"], [], "auto", CHECKED),
        (["a.example"], [], "name", CHECKED),
        ([], ["a.example"], "address", EDGE),
        ([], ["*.example"], "auto", EDGE),
        (["a.example check=address"], ["a.example"], "auto", EDGE),
        (["a.example"], ["a.example"], "name", EDGE),
    ],
)
def test_what_needs_the_relay_is_never_let_through_as_it_is(entries, edges, check, reason):
    lease = Lease(*entries, edges=edges, check=check)
    assert lease.answer("a.example", A) == {"edge4_tcp_443_443": [A]}
    assert lease.admission.reason("a.example", A, 443) == reason
    lease.now += HOUR
    assert lease.answer("a.example", A) == {"edge4_tcp_443_443": [A]}


def test_an_entry_may_be_left_out_of_the_check():
    lease = Lease("a.example check=address", "b.example check=address", "c.example:22")
    lease.answer("a.example", A)
    assert lease.answer("b.example", A) == {"named4_tcp_443_443": [A]}
    assert lease.answer("c.example", A) == {"named4_tcp_443_443": [A], "edge4_tcp_22_22": [A]}


def test_who_is_not_checked_opens_its_ports_for_others_too():
    """A check on ports that are open anyway would only break what is no TLS."""
    lease = Lease("a.example:* check=address", "b.example")
    lease.answer("b.example", A)
    assert lease.answer("a.example", A) == {"named4_tcp_1_65535": [A], "named4_tcp_443_443": [A]}


def test_the_stricter_entry_decides_for_all_ports_that_it_overlaps():
    lease = Lease("a.example:400-500 check=address", "a.example:22 check=address", "b.example:443 check=name")
    assert lease.answer("a.example", A) == {"named4_tcp_400_500": [A], "named4_tcp_22_22": [A]}
    assert lease.answer("b.example", A) == {
        "edge4_tcp_443_443": [A], "edge4_tcp_400_500": [A], "named4_tcp_22_22": [A],
    }  # fmt: skip


def test_udp_is_not_checked():
    lease = Lease("udp://a.example:53", "b.example", "c.example", check="auto")
    lease.answer("a.example", A)
    assert lease.answer("b.example", A) == {"named4_udp_53_53": [A], "named4_tcp_443_443": [A]}
    assert lease.answer("c.example", A) == {"named4_udp_53_53": [A], "edge4_tcp_443_443": [A]}


def test_ipv6_is_never_led_to_the_relay():
    lease = Lease("a.example", "b.example", "c.example check=name")
    six = "2001:db8::1"
    assert lease.answer("a.example", six) == {"named6_tcp_443_443": [six]}
    assert lease.answer("c.example", "2001:db8::3") == {"named6_tcp_443_443": [six]}


def test_in_an_open_network_only_hosts_of_the_edge_go_to_the_relay():
    lease = Lease(edges=["a.example"])
    assert lease.answer("other.example", A) == {}
    assert lease.admission.leads("other.example", A)
    assert lease.answer("a.example", A) == {"edge4_tcp_443_443": [A]}
    assert lease.answer("other.example", A) == {"edge4_tcp_443_443": [A]}


def test_an_answer_does_not_shorten_what_another_left():
    lease = Lease("a.example check=address", "b.example check=address")
    lease.answer("a.example", A, seconds=90)
    lease.answer("b.example", A, seconds=30)
    assert lease.sets["named4_tcp_443_443"][A] == lease.now + 90
    lease.answer("b.example", A, seconds=120)
    assert lease.sets["named4_tcp_443_443"][A] == lease.now + 120


def test_any_number_of_names_at_one_address_is_cheap():
    """What is kept of an address goes by the policy: the names of a wildcard are anybody's to make up."""
    lease = Lease("*.example", "*.example:80", "b.example:*")
    for number in range(300):
        lease.answer(f"a{number}.example", A)
        lease.now += 0.1
    place = lease.admission._places[A]
    assert len(place.needs) == 2
    assert len(place.latest) == 2
    assert len(place.sharers) == module.MOST_SHARERS
    told = lease.admission.reason("a299.example", A, 443)
    assert told == "its address is shared with a0.example, a1.example, a2.example and 5 more"


def test_two_names_are_two_whichever_was_asked_last():
    lease = Lease("*.example")
    lease.answer("a.example", A, seconds=90)
    lease.answer("b.example", B, seconds=90)
    lease.now += 80
    lease.answer("c.example", B, seconds=5)
    assert lease.answer("c.example", A, seconds=5) == {"edge4_tcp_443_443": [A, B]}


# --- what leads where --------------------------------------------------------------------------------------


def test_a_name_leads_where_it_was_answered_until_its_time_is_over():
    lease = Lease("a.example", "b.example")
    lease.answer("a.example", A, seconds=90)
    assert lease.admission.leads("a.example", A)
    assert not lease.admission.leads("a.example", B)
    assert not lease.admission.leads("b.example", A)
    lease.now += 90
    assert not lease.admission.leads("a.example", A)


def test_a_plan_that_did_not_take_effect_is_not_remembered():
    lease = Lease("a.example")
    lease.admission.plan([parse_rule("a.example")], "a.example", [A], 90)
    assert not lease.admission.leads("a.example", A)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_LEADS", 4)
    lease = Lease("*.example")
    for number in range(4):
        lease.answer(f"a{number}.example", f"192.0.2.{number}")
    with pytest.raises(AdmissionFull):
        lease.answer("b.example", B)
    assert not lease.admission.leads("b.example", B)
    lease.now += HOUR
    lease.answer("b.example", B)
    assert lease.admission.leads("b.example", B)


@pytest.mark.parametrize("text", ["192.0.2.0/24", "fe80::1%eth0", "::ffff:192.0.2.1", "192.0.2.1 }", "", "x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match=r"not an? address|does not appear"):
        Lease("a.example").answer("a.example", text)


@pytest.mark.parametrize("seconds", [0, 7 * 24 * HOUR + 1, True, 1.5])
def test_what_is_no_lifetime_is_refused(seconds):
    with pytest.raises(ValueError, match="not a lifetime"):
        Lease("a.example").answer("a.example", A, seconds=seconds)


NAMES = ["a.example", "b.example", "c.example", "d.c.example"]
ENTRIES = [
    "a.example", "a.example:22", "a.example:400-500 check=address", "b.example", "b.example:443 check=name",
    "b.example:*", "*.c.example", "c.example:443 check=address", "udp://a.example:443", "192.0.2.0/24:8443",
]  # fmt: skip
STEPS = st.tuples(st.sampled_from(NAMES), st.sampled_from([A, B]), st.integers(1, 90), st.integers(0, 60))


@given(
    st.lists(st.sampled_from(ENTRIES), unique=True),
    st.lists(st.sampled_from(["a.example", "*.example:440-450"]), unique=True),
    st.sampled_from(["auto", "name", "address"]),
    st.lists(STEPS, max_size=12),
)
def test_no_port_of_an_address_is_both_let_through_and_led_to_the_relay(entries, edges, check, steps):
    lease = Lease(*entries, edges=edges, check=check)
    once = set()
    for name, address, seconds, pause in steps:
        lease.now += pause
        for place, addresses in lease.answer(name, address, seconds=seconds).items():
            use, protocol, low, high = place.split("_")[0][:-1], *place.split("_")[1:]
            for each in addresses if protocol == "tcp" else ():
                ports = set(range(int(low), int(high) + 1)) & {22, 400, 443, 450, 9000}
                if use == "edge":
                    once |= {(each, port) for port in ports}
                else:
                    assert not once & {(each, port) for port in ports}
        assert lease.admission.leads(name, address)


# --- whether there is one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "entries", "edges", "check", "needed"),
    [
        ("allow", [], [], "auto", False),
        ("allow", ["a.example"], [], "auto", False),
        ("allow", ["a.example", "a.example:22", "192.0.2.0/24"], [], "auto", False),
        ("allow", ["a.example", "udp://b.example:53"], [], "auto", False),
        ("allow", ["a.example", "b.example"], [], "auto", True),
        ("allow", ["a.example", "b.example"], [], "address", False),
        ("allow", ["a.example check=address", "b.example check=address"], [], "auto", False),
        ("allow", ["a.example check=address", "b.example"], [], "auto", True),
        ("allow", ["*.example"], [], "auto", True),
        ("allow", ["*.example"], [], "address", False),
        ("allow", ["a.example"], [], "name", True),
        ("allow", ["192.0.2.0/24", "udp://a.example:53 check=address"], [], "name", False),
        ("allow", ["a.example check=name"], [], "address", True),
        ("allow", [], ["a.example"], "address", True),
        ("open", [], [], "name", False),
        ("open", [], ["a.example"], "auto", True),
        ("record", ["a.example", "b.example"], ["a.example"], "name", False),
    ],
)
def test_a_relay_is_there_only_where_a_name_may_have_to_be_read(kind, entries, edges, check, *, needed):
    rules = tuple(map(parse_rule, entries))
    spec = LeaseSpec(kind, rules, False, None, None, "", None, False, (0, 0), check=check, edge=edge(*edges))
    assert needs_relay(spec) is needed
