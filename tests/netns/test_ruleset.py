"""What the rules say, word for word, and that nothing but numbers and addresses gets into them.

``python tests/netns/test_ruleset.py`` writes the expected texts anew; read the difference before you commit it.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns import ruleset
from stockade.netns.admission import Admission
from stockade.netns.ruleset import admit_text, beyond_reach, rules_text
from stockade.netns.ruletext import SIZES, shape
from stockade.policies.hosts import METADATA, HostRule, parse_rule

GOLDEN = Path(__file__).with_name("golden")
LISTED = (
    "a.example",
    "*.b.example:8000-8010",
    "udp://time.example:123",
    "192.0.2.0/25",
    "192.0.2.128/25",
    "192.0.2.7",
    "[2001:db8::/32]:443",
    "198.51.100.1:*",
)


def rules(*entries: str) -> list[HostRule]:
    return [parse_rule(entry) for entry in entries]


EDGE = rules("api.example", "*.api.example:8443", "udp://api.example:53")


def texts() -> dict[str, str]:
    ports = {"dns_port": 1053, "tcp_port": 65010, "udp_port": 65011}
    return {
        "allow": rules_text("allow", rules(*LISTED), private=False),
        "allow-nothing": rules_text("allow", [], private=False),
        "open": rules_text("open", [], private=False),
        "open-private": rules_text("open", [], private=True),
        "record": rules_text("record", [], private=False, **ports),
        "allow-relay": rules_text("allow", rules(*LISTED), private=False, edge=EDGE, relay_port=65012),
        "open-relay": rules_text("open", rules(*LISTED), private=False, edge=EDGE, relay_port=65012),
        "admit": admit_text(rules("a.example", "udp://time.example:123"), ["192.0.2.9", "2001:DB8::0:9"], 300),
        "admit-shared": shared(),
    }


def shared() -> str:
    """The second of two names that share an address, of which the first had it for itself."""
    first, second = listed = rules("a.example", "b.example:80")
    admission = Admission(listed, [], "auto", clock=lambda: 0.0)
    admission.keep(admission.plan([first], "a.example", ["192.0.2.9"], 300))
    return admission.plan([second], "b.example", ["192.0.2.9", "192.0.2.10"], 200).text


@pytest.mark.parametrize("name", texts())
def test_text_is_the_expected_one(name: str) -> None:
    assert texts()[name] == GOLDEN.joinpath(f"{name}.nft").read_text()


def test_metadata_is_all_of_it_in_every_form() -> None:
    plain = [ipaddress.ip_address(text) for text in METADATA]
    four = [int(address) for address in plain if address.version == 4]
    six = {ipaddress.IPv6Network(address) for address in plain if address.version == 6}
    for carrier in (0, 0xFFFF << 32, 0x64FF9B << 96):
        six |= {ipaddress.IPv6Network((carrier | number, 128)) for number in four}
    six |= {ipaddress.IPv6Network(((0x2002 << 112) | (number << 80), 48)) for number in four}
    listed4 = ruleset.METADATA4.strip("{} ").split(", ")
    listed6 = ruleset.METADATA6.strip("{} ").split(", ")
    assert sorted(int(ipaddress.IPv4Address(text)) for text in listed4) == sorted(four)
    assert {ipaddress.IPv6Network(text) for text in listed6} == six


@pytest.mark.parametrize("name", [name for name in texts() if "admit" not in name])
def test_every_text_drops_by_default_and_refuses_metadata_first(name: str) -> None:
    text = texts()[name]
    for hook in ("output", "input", "forward"):
        assert f"type filter hook {hook} priority filter; policy drop;" in text
    if name != "record":
        chain = text.partition("chain output {")[2]
        assert chain.index(ruleset.METADATA4) < chain.index("ct state established") < chain.index(ruleset.NEVER4)
        assert chain.index(ruleset.METADATA4) < chain.index("daddr @") if "daddr @" in chain else True
        assert "\t\tgoto refused\n\t}\n\tchain input" in text, "refusal is what the output chain ends with"


@pytest.mark.parametrize("name", ["allow-relay", "open-relay"])
def test_nothing_is_led_to_the_relay_but_addresses_of_edge_sets(name: str) -> None:
    chain = texts()[name].partition("chain divert {")[2].partition("\n\t}")[0].strip().splitlines()
    head, *accepts = [line.strip() for line in chain if "redirect" not in line]
    redirects = [line.strip() for line in chain if "redirect" in line]
    assert head == "type nat hook output priority -100; policy accept;"
    assert accepts == [f"{each} accept" for each in ruleset._UNDIVERTED]
    assert "redirect" not in "".join(chain[: len(accepts) + 1])
    for line in redirects:
        assert re.fullmatch(r"tcp dport [\d-]+ ip daddr @edge4_tcp_\d+_\d+ redirect to :65012", line)
    assert len(redirects) == (4 if name == "allow-relay" else 2) - (name == "allow-relay")


@pytest.mark.parametrize("kind", ["allow", "open"])
def test_a_relay_takes_nothing_from_the_other_rules(kind: str) -> None:
    plain = shape(rules_text(kind, rules(*LISTED), private=False))
    found = shape(rules_text(kind, rules(*LISTED), private=False, edge=EDGE, relay_port=65012))
    base, count = found.pop("output")
    assert (base, count - 1) == plain.pop("output")
    del found["divert"], found["astray"]
    assert found == plain


def test_an_empty_list_accepts_nothing_new() -> None:
    chain = texts()["allow-nothing"].partition("chain output {")[2].partition("\n\t}")[0]
    accepting = [line.strip() for line in chain.splitlines() if line.endswith(("accept", "goto reached"))]
    assert all(line.startswith('oif "lo"') or "ct state" in line for line in accepting)
    assert len(accepting) == 7


@pytest.mark.parametrize(
    ("kind", "ports"),
    [("none", {}), ("", {}), ("record", {}), ("record", {"tcp_port": 1, "udp_port": 70000}), ("ALLOW", {})],
)
def test_what_is_no_lease_is_refused(kind: str, ports: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="not a"):
        rules_text(kind, [], private=False, **ports)


@pytest.mark.parametrize(
    ("entry", "beyond"),
    [
        ("10.0.2.2", True),
        ("127.0.0.1:8080", True),
        ("169.254.1.0/24", True),
        ("239.0.0.1", True),
        ("[fe80::1]:443", True),
        ("[ff02::fb]:443", True),
        ("10.0.0.0/8", False),
        ("192.168.1.1", False),
        ("[fd00::1]:443", False),
        ("a.example", False),
    ],
)
def test_rules_that_can_t_be_honoured_are_told(entry: str, *, beyond: bool) -> None:
    assert beyond_reach(rules(entry)) == (tuple(rules(entry)) if beyond else ())


@pytest.mark.parametrize(
    ("entries", "addresses", "seconds"),
    [
        (["a.example"], ["192.0.2.1"], 0),
        (["a.example"], ["192.0.2.1"], 7 * 24 * 3600 + 1),
        (["a.example"], ["192.0.2.1"], True),
        (["a.example"], ["192.0.2.0/24"], 60),
        (["a.example"], ["fe80::1%eth0"], 60),
        (["a.example"], ["fe80::1%}; flush ruleset #"], 60),
        (["a.example"], ["::ffff:192.0.2.1"], 60),
        (["a.example"], ["192.0.2.1 }"], 60),
        (["a.example"], [""], 60),
        (["a.example"], [3221225985], 60),
        (["a.example"], [b"\xc0\x00\x02\x01"], 60),
        (["192.0.2.1"], ["192.0.2.1"], 60),
    ],
)
def test_what_can_t_be_admitted_is_refused(entries: list[str], addresses: list[str], seconds: int) -> None:
    with pytest.raises(ValueError, match=r"not a|does not appear|admits nothing"):
        admit_text(rules(*entries), addresses, seconds)


def test_nothing_to_admit_is_no_command() -> None:
    assert admit_text([], ["192.0.2.1"], 60) == ""
    assert admit_text(rules("a.example"), [], 60) == ""


def test_rules_and_addresses_that_repeat_are_written_once() -> None:
    once = admit_text(rules("a.example"), ["192.0.2.1"], 60)
    assert admit_text(rules("a.example", "*.example", "a.example"), ["192.0.2.1", "192.0.2.1"], 60) == once
    assert once.count("\n") == 3


def test_ranges_that_touch_or_overlap_become_one_element() -> None:
    text = rules_text("allow", rules("192.0.2.0/25", "192.0.2.128/25", "192.0.2.7"), private=False)
    assert "elements = { 192.0.2.0/24 }" in text


hostile = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "1.2.3.4 }",
            "fe80::%}\n\t}",
            "::1%;flush ruleset",
            "0.0.0.0/0\n",
            "@named4",
            "1.2.3.4/24",
            '"',
            "$x",
            "::/0",
        ]
    ),
    st.ip_addresses().map(str),
    st.integers(),
    st.binary(max_size=16),
)
WORDS = re.compile(r"[ -~\t\n]*\Z")


@given(hostile, hostile, st.one_of(hostile, st.sampled_from(["tcp", "udp"])), st.integers(-5, 70000), hostile)
def test_no_rule_writes_text_of_its_own(
    name: object, network: object, protocol: object, port: int, text: object
) -> None:
    rule = HostRule(name, False, network, protocol, port, port, text)  # type: ignore[arg-type]
    try:
        written = rules_text("allow", [rule], private=False, edge=[rule], relay_port=65012)
    except (ValueError, TypeError):
        return
    expected = shape(rules_text("allow", rules("192.0.2.1"), private=False, relay_port=65012))
    found = shape(written)
    assert found.keys() == expected.keys()
    assert found["output"][1] == expected["output"][1]
    assert written.count("{") == written.count("}")
    (elements,) = re.findall(r"elements = \{ ([^{}]*) \}", written)
    assert all(ipaddress.ip_network(each) for each in elements.split(", "))
    assert WORDS.match(written)


@given(st.lists(hostile, max_size=3), st.integers(-5, 700_000), st.one_of(hostile, st.just("tcp")))
def test_no_address_writes_text_of_its_own(addresses: list[str], seconds: int, protocol: str) -> None:
    rule = HostRule("a.example", False, None, protocol, 443, 443, "")
    try:
        written = admit_text([rule], addresses, seconds)
    except ValueError:
        return
    for line in written.splitlines():
        inner = re.fullmatch(
            r"(?:add|delete) element inet stockade named[46]_(?:tcp|udp)_443_443 \{ ([^{}]*) \}", line
        )
        assert inner
        assert all(ipaddress.ip_address(each.partition(" timeout ")[0]) for each in inner[1].split(", "))


def test_shape_counts_rules_of_chains_alone() -> None:
    found = shape(texts()["record"])
    assert found["divert"] == ("type nat hook output priority -100; policy accept;", 5)
    assert found["forward"] == ("type filter hook forward priority filter; policy drop;", 0)
    assert found["rejected"] == ("", 2)
    assert set(found) == {
        "rejected", "portless", "refused", "seen", "witness", "divert", "output", "input", "forward",
    }  # fmt: skip
    assert shape("add element inet stockade x { 192.0.2.1 }\n") == {}


def test_counted_sets_are_bounded() -> None:
    blocks = re.findall(
        r"\tset (\w+) \{\n(.*?)\t\}", "".join(texts()[name] for name in ("allow-relay", "record")), re.S
    )
    assert blocks
    for name, body in blocks:
        assert ("size " in body) is not name.startswith("fixed"), name
    assert max(SIZES.values()) <= 65536


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in texts().items():
        GOLDEN.joinpath(f"{name}.nft").write_text(text)
