"""What becomes of one query: pure functions, by tables and by random bytes."""

from __future__ import annotations

import ipaddress

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns.names import (
    LARGEST_UDP,
    MOST_ADDRESSES,
    Question,
    Verdict,
    decide,
    fault,
    load,
    question,
    reply,
    screen,
)
from stockade.policies.hosts import METADATA, parse_rule

RULES = tuple(
    map(parse_rule, ["good.test", "*.wild.test:80", "bücher.test", "udp://time.test:123", "192.0.2.0/24"])
)
PUBLIC = ("203.0.113.80", "203.0.113.7")
TYPES = ["TXT", "MX", "SRV", "HTTPS", "SVCB", "ANY", "PTR", "NS", "SOA", "CNAME", "NULL", "AXFR", "TYPE65280"]


def query(name: str, kind: str = "A", rdclass: str = "IN", **options: object) -> bytes:
    return dns.message.make_query(name, kind, rdclass, **options).to_wire()


def ask(name: str, kind: str = "A", **options: object) -> Question:
    asked = question(query(name, kind, **options))
    assert asked is not None
    return asked


def parsed(wire: bytes) -> dns.message.Message:
    return dns.message.from_wire(wire)


def answers(message: dns.message.Message) -> list[str]:
    return [str(item) for rrset in message.answer for item in rrset]


# --- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "seen"),
    [
        ("good.test", "A", ("good.test", "A")),
        ("gOOd.TesT.", "AAAA", ("good.test", "AAAA")),
        ("xn--bcher-kva.test", "TXT", ("xn--bcher-kva.test", "TXT")),
        ("_dmarc.good.test", "TYPE65280", ("_dmarc.good.test", "TYPE65280")),
        (".", "NS", ("", "NS")),
        ("a\\.b.test", "A", ("a\\.b.test", "A")),
        ("a\\000b.test", "A", ("a\\000b.test", "A")),
    ],
)
def test_a_question_is_read_into_one_form(name: str, kind: str, seen: tuple[str, str]) -> None:
    load()
    asked = ask(name, kind)
    assert (asked.name, asked.type, asked.internet) == (*seen, True)


PLAIN = query("good.test")


def patched(offset: int, *values: int) -> bytes:
    return PLAIN[:offset] + bytes(values) + PLAIN[offset + len(values) :]


@pytest.mark.parametrize(
    ("wire", "rcode"),
    [
        pytest.param(b"", None, id="nothing"),
        pytest.param(PLAIN[:11], None, id="no header"),
        pytest.param(patched(2, 0x81), None, id="a reply"),
        pytest.param(PLAIN[:12], dns.rcode.FORMERR, id="header alone"),
        pytest.param(PLAIN[:-1], dns.rcode.FORMERR, id="cut"),
        pytest.param(PLAIN + b"\0", dns.rcode.FORMERR, id="trailing byte"),
        pytest.param(patched(4, 0, 0), dns.rcode.FORMERR, id="no question"),
        pytest.param(patched(4, 0, 2), dns.rcode.FORMERR, id="two questions"),
        pytest.param(patched(6, 0, 1), dns.rcode.FORMERR, id="an answer in it"),
        pytest.param(patched(10, 0, 9), dns.rcode.FORMERR, id="additional records missing"),
        pytest.param(patched(12, 0xC0, 12), dns.rcode.FORMERR, id="pointer to itself"),
        pytest.param(patched(12, 0x41), dns.rcode.FORMERR, id="unknown label type"),
        pytest.param(PLAIN + bytes(5000), dns.rcode.FORMERR, id="too long"),
        pytest.param(patched(2, 0x29), dns.rcode.NOTIMP, id="opcode update"),
        pytest.param(patched(2, 0x21), dns.rcode.NOTIMP, id="opcode notify"),
    ],
)
def test_what_is_no_question_gets_an_error_or_silence(wire: bytes, rcode: int | None) -> None:
    assert question(wire) is None
    complaint = fault(wire)
    if rcode is None:
        assert complaint is None
    else:
        assert complaint is not None
        message = parsed(complaint)
        assert (message.id, message.rcode()) == (int.from_bytes(wire[:2], "big"), rcode)
        assert message.flags & dns.flags.QR
        assert not message.question


def test_a_signed_query_is_refused_as_malformed() -> None:
    import dns.tsig

    message = dns.message.make_query("good.test", "A")
    message.use_tsig(dns.tsig.Key("key.", b"secret" * 6))
    assert question(message.to_wire()) is None


@given(st.binary(max_size=600))
def test_random_bytes_never_raise(wire: bytes) -> None:
    check_any(wire)


@given(st.binary(max_size=60), st.binary(max_size=40), st.integers(0, 3))
def test_random_bodies_behind_a_good_header_never_raise(name: bytes, rest: bytes, additional: int) -> None:
    check_any(b"\x12\x34\x01\0\0\1\0\0\0\0\0" + bytes([additional]) + name + rest)


@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 255))
def test_a_changed_byte_never_raises(offset: int, value: int) -> None:
    check_any(patched(offset, value))


def check_any(wire: bytes) -> None:
    """Whatever is said parses, answers this query, and holds addresses only for what may be resolved."""
    asked = question(wire)
    if asked is None:
        complaint = fault(wire)
        assert complaint is None or parsed(complaint).id == int.from_bytes(wire[:2], "big")
        return
    for kind in ("allow", "open", "record"):
        verdict = decide(asked, RULES, kind)
        message = parsed(reply(asked, verdict, PUBLIC if asked.type == "A" else (), 30))
        assert message.id == asked.message.id
        assert message.flags & dns.flags.QR
        assert message.question == asked.message.question
        assert bool(message.answer) == (verdict.action == "resolve" and asked.type == "A")


# --- deciding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("good.test", "resolve"),
        ("GOOD.TEST.", "resolve"),
        ("www.good.test", "refuse"),
        ("test", "refuse"),
        ("xgood.test", "refuse"),
        ("good.test.evil.test", "refuse"),
        ("good.test.corp.example", "refuse"),
        ("good\\.test", "refuse"),
        ("good.test\\000.evil", "refuse"),
        ("good.test\\010", "refuse"),
        ("wild.test", "refuse"),
        ("a.wild.test", "resolve"),
        ("a.b.wild.test", "resolve"),
        ("a\\.b.wild.test", "refuse"),
        ("\\195\\188.wild.test", "refuse"),
        ("xn--bcher-kva.test", "resolve"),
        ("XN--BCHER-KVA.test", "resolve"),
        ("b\\195\\188cher.test", "refuse"),
        ("time.test", "resolve"),
        ("192.0.2.1", "refuse"),
        ("1.2.0.192.in-addr.arpa", "refuse"),
        (".", "refuse"),
    ],
)
def test_only_listed_names_are_resolved(name: str, action: str) -> None:
    assert decide(ask(name), RULES, "allow").action == action


def test_the_verdict_names_the_rules_of_the_name() -> None:
    rules = tuple(map(parse_rule, ["good.test", "good.test:80", "*.test", "other.test"]))
    assert decide(ask("good.test"), rules, "allow").rules == rules[:3]


def test_a_name_and_what_is_below_it_are_two_things() -> None:
    rules = (parse_rule("good.test"), parse_rule("*.good.test"))
    for name in ("good.test", "www.good.test"):
        assert [decide(ask(name), (rule,), "allow").action for rule in rules].count("resolve") == 1
        assert decide(ask(name), rules, "allow").action == "resolve"


@pytest.mark.parametrize("kind", TYPES)
def test_other_types_are_empty_for_listed_names_and_refused_for_others(kind: str) -> None:
    assert decide(ask("good.test", kind), RULES, "allow").action == "empty"
    assert decide(ask("evil.test", kind), RULES, "allow").action == "refuse"
    assert decide(ask("any.test", kind), RULES, "record").action == "empty"


@pytest.mark.parametrize(("kind", "action"), [("allow", "empty"), ("open", "empty"), ("record", "resolve")])
def test_ipv6_is_answered_only_where_it_is_made_up(kind: str, action: str) -> None:
    assert decide(ask("good.test", "AAAA"), RULES, kind).action == action


@pytest.mark.parametrize("kind", ["allow", "open", "record"])
def test_an_empty_list_allows_nothing_where_a_list_counts(kind: str) -> None:
    assert decide(ask("good.test"), (), kind).action == ("refuse" if kind == "allow" else "resolve")


def test_a_kind_that_nobody_knows_allows_what_the_list_names() -> None:
    assert decide(ask("evil.test"), RULES, "opne").action == "refuse"


@pytest.mark.parametrize("kind", ["allow", "open", "record"])
def test_other_classes_and_versions_lead_nowhere(kind: str) -> None:
    chaos = question(query("good.test", "TXT", "CH"))
    assert chaos is not None
    assert decide(chaos, RULES, kind).action == "refuse"
    new = ask("good.test", use_edns=1)
    assert decide(new, RULES, kind).action == "version"
    assert parsed(reply(new, Verdict("version"))).rcode() == dns.rcode.BADVERS


@pytest.mark.parametrize("name", ["127.0.0.1", "2130706433", "0x7f.1", "a.0x7f", "a\\000b.test", "a b.test", "."])
def test_open_resolves_host_names_only(name: str) -> None:
    assert decide(ask(name), (), "open").action == "refuse"
    assert decide(ask("some-where.xn--p1ai"), (), "open").action == "resolve"


# --- replying ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "rcode"),
    [("resolve", "NOERROR"), ("empty", "NOERROR"), ("refuse", "NXDOMAIN"), ("unknown", "NXDOMAIN"),
     ("fail", "SERVFAIL"), ("a new one", "SERVFAIL")],
)  # fmt: skip
def test_replies_by_action(action: str, rcode: str) -> None:
    message = parsed(reply(ask("good.test"), Verdict(action), PUBLIC, 30))
    assert dns.rcode.to_text(message.rcode()) == rcode
    assert answers(message) == (list(PUBLIC) if action == "resolve" else [])
    assert message.flags & dns.flags.RA  # Go takes an empty answer without it for a lame server
    assert not message.flags & dns.flags.AA


def test_the_spelling_of_the_question_comes_back() -> None:
    wire = reply(ask("gOOd.tESt"), Verdict("resolve"), PUBLIC, 30)
    assert b"\x04gOOd\x04tESt\x00" in wire
    message = parsed(wire)
    assert {rrset.name.to_text() for rrset in (*message.question, *message.answer)} == {"gOOd.tESt."}


def test_addresses_keep_their_order_and_lifetime() -> None:
    many = [f"203.0.113.{number}" for number in (9, 1, 200, 3, 77, 4)]
    for _ in range(5):
        message = parsed(reply(ask("good.test"), Verdict("resolve"), many, 77))
        assert answers(message) == many
        assert message.answer[0].ttl == 77
    message = parsed(reply(ask("good.test", "AAAA"), Verdict("resolve"), ["fd00::2", "fd00::1"], 1))
    assert answers(message) == ["fd00::2", "fd00::1"]


@pytest.mark.parametrize("payload", [None, 0, 512, 1232, 4096, 65535])
@pytest.mark.parametrize("count", [0, 1, 20, MOST_ADDRESSES, MOST_ADDRESSES + 1])
@pytest.mark.parametrize("name", ["a.test", f"{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 60}.test"])
def test_what_is_too_large_for_udp_is_cut_and_says_so(name: str, count: int, payload: int | None) -> None:
    asked = ask(name) if payload is None else ask(name, use_edns=0, payload=payload)
    many = [f"203.0.113.{number}" for number in range(count)]
    wire = reply(asked, Verdict("resolve"), many, 30)
    limit = min(max(payload or 512, 512), LARGEST_UDP)
    whole = reply(asked, Verdict("resolve"), many, 30, stream=True)
    shown = answers(parsed(wire))
    assert len(wire) <= limit
    assert answers(parsed(whole)) == many[:MOST_ADDRESSES]
    assert not parsed(whole).flags & dns.flags.TC
    assert bool(parsed(wire).flags & dns.flags.TC) == (len(whole) > limit)
    assert shown == many[: len(shown)]
    assert len(whole) <= limit or len(wire) + 16 > limit, "more would have fitted"


@pytest.mark.parametrize(("action", "code"), [("refuse", 15), ("fail", 0), ("empty", 0)])
def test_the_reason_goes_to_clients_that_speak_edns(action: str, code: int) -> None:
    verdict = Verdict(action, why="because")
    options = parsed(reply(ask("evil.test", use_edns=0), verdict)).options
    assert [(int(one.code), one.text) for one in options if isinstance(one, dns.edns.EDEOption)] == [
        (code, "because")
    ]
    silent = parsed(reply(ask("evil.test"), verdict))
    assert silent.edns == -1


def test_edns_is_spoken_only_to_those_who_do() -> None:
    asked = ask("good.test", use_edns=0, payload=1232, options=[dns.edns.GenericOption(12, b"\0" * 30)])
    message = parsed(reply(asked, Verdict("resolve"), PUBLIC, 30))
    assert (message.edns, message.payload) == (0, LARGEST_UDP)
    assert len(message.to_wire()) < 512, "no padding"
    assert parsed(reply(ask("good.test"), Verdict("resolve"), PUBLIC, 30)).edns == -1


# --- screening ---------------------------------------------------------------------------------------------

INSIDE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.0.2.2", "10.0.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.1.1",
    "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.168.1.1", "198.18.0.1", "198.19.255.255", "224.0.0.251",
    "239.1.1.1", "240.0.0.1", "255.255.255.255",
]  # fmt: skip
INSIDE_6 = ["::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00::1", "ff02::1", "100::1", "64:ff9b:1::a00:1"]
OUTSIDE = ["1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
           "192.0.2.1", "198.17.255.255", "198.20.0.0", "198.51.100.1", "203.0.113.1", "223.255.255.255",
           "2001:db8::1", "2606:4700::1111"]  # fmt: skip
DRESSES = {
    "mapped": "::ffff:{v4}",
    "compatible": "::{v4}",
    "translated": "::ffff:0:{v4}",
    "nat64": "64:ff9b::{v4}",
    "6to4": "2002:{hex}::1",
    "teredo server": "2001:0:{hex}::cb00:7101",
    "teredo client": "2001:0:cb00:7101::{inverse}",
    "isatap": "2001:db8::5efe:{v4}",
    "isatap global": "2001:db8::200:5efe:{v4}",
}


def dressed(form: str, v4: str) -> str:
    number = int(ipaddress.IPv4Address(v4))
    halves = [f"{value >> 16:x}:{value & 0xFFFF:x}" for value in (number, number ^ 0xFFFFFFFF)]
    return DRESSES[form].format(v4=v4, hex=halves[0], inverse=halves[1])


@pytest.mark.parametrize("address", INSIDE + INSIDE_6)
def test_what_is_not_public_is_held_back_unless_meant(address: str) -> None:
    assert screen([address], RULES, False) == ((), (address,))
    assert screen([address], RULES, True) == ((address,), ())
    listed = (*RULES, parse_rule(f"[{address}]" if ":" in address else address))
    assert screen([address], listed, False) == ((address,), ())


@pytest.mark.parametrize("address", OUTSIDE)
def test_what_is_public_may_be_led_to(address: str) -> None:
    assert screen([address], (), False) == ((address,), ())


@pytest.mark.parametrize("form", DRESSES)
def test_an_inner_address_in_ipv6_dress_is_held_back(form: str) -> None:
    for inner in ("127.0.0.1", "10.0.2.2", "192.168.1.1", "169.254.3.4"):
        address = str(ipaddress.ip_address(dressed(form, inner)))
        assert screen([address], (), False) == ((), (address,)), inner
        assert screen([address], (), True) == ((address,), ())
    public = str(ipaddress.ip_address(dressed(form, "203.0.113.80")))
    assert screen([public], (), False) == ((public,), ())


@pytest.mark.parametrize("metadata", METADATA)
def test_metadata_is_held_back_whatever_is_listed(metadata: str) -> None:
    forms = [metadata] if ":" in metadata else [metadata, *(dressed(form, metadata) for form in DRESSES)]
    wide = [parse_rule("192.0.2.1").replace(network=network) for network in ("0.0.0.0/0", "::/0")]
    for form in forms:
        for private in (False, True):
            assert screen([form], wide, private) == ((), (str(ipaddress.ip_address(form)),))


@pytest.mark.parametrize(
    "text", ["", "good.test", "fe80::1%eth0", "1.2.3", "01.2.3.4", "::ffff:1.2.3.4.5", "1.2.3.4\n"]
)
def test_what_is_no_address_is_held_back(text: str) -> None:
    assert screen([text], RULES, True) == ((), (text,))


def test_screening_keeps_the_order_and_takes_each_once() -> None:
    mixed = ["203.0.113.9", "10.0.0.1", "203.0.113.1", "203.0.113.9", "10.0.0.1", "2001:DB8:0::9"]
    assert screen(mixed, (), False) == (("203.0.113.9", "203.0.113.1", "2001:db8::9"), ("10.0.0.1",))


@given(st.lists(st.one_of(st.ip_addresses().map(str), st.text(max_size=20))), st.booleans())
def test_screening_loses_nothing(addresses: list[str], private: bool) -> None:
    good, held = screen(addresses, RULES, private)
    assert not set(good) & set(held)
    assert len({*good, *held}) <= len(set(addresses))
    assert not set(good) & set(METADATA)
    assert all(address in held or str(ipaddress.ip_address(address)) in {*good, *held} for address in addresses)
