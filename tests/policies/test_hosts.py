"""The allow-list grammar: tables, stability, and no exception but PolicyError."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.policies.hosts import CHECKS, METADATA, HostRule, covers, effective_check, matches_name, parse_rule

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAME = st.lists(LABEL, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "test"]))
PORTS = st.sampled_from(["", ":443", ":80", ":8000-8010", ":*", ":1-65535", ":7-7"])
CHECK = st.sampled_from(["", "", *(f" check={kind}" for kind in CHECKS)])
ENTRY = st.one_of(
    st.tuples(st.sampled_from(["", "tcp://", "udp://"]), st.sampled_from(["", "*."]), NAME, PORTS, CHECK).map(
        "".join
    ),
    st.tuples(st.ip_addresses(v=4).map(str), PORTS).map("".join),
    st.tuples(st.just("["), st.ip_addresses(v=6).map(str), st.just("]"), PORTS).map("".join),
    st.ip_addresses().map(str),
)
NOISE = st.text(alphabet=st.sampled_from("ab1.*:/-[]%@_ \0\r\nß\u3002\uff45xtcpud") | st.characters(), max_size=40)


def rule_or_fault(text: str) -> HostRule | PolicyError:
    try:
        return parse_rule(text)
    except PolicyError as error:
        return error


@pytest.mark.parametrize(
    ("text", "name", "wildcard", "network", "protocol", "low", "high", "shown"),
    [
        ("registry.npmjs.org", "registry.npmjs.org", False, None, "tcp", 443, 443, "registry.npmjs.org"),
        ("Registry.NPMjs.org", "registry.npmjs.org", False, None, "tcp", 443, 443, "registry.npmjs.org"),
        ("*.pythonhosted.org:443", "pythonhosted.org", True, None, "tcp", 443, 443, "*.pythonhosted.org"),
        ("udp://time.example:123", "time.example", False, None, "udp", 123, 123, "udp://time.example:123"),
        ("udp://quic.example", "quic.example", False, None, "udp", 443, 443, "udp://quic.example"),
        ("tcp://a.example:80", "a.example", False, None, "tcp", 80, 80, "a.example:80"),
        ("a.example:8000-8010", "a.example", False, None, "tcp", 8000, 8010, "a.example:8000-8010"),
        ("a.example:80-80", "a.example", False, None, "tcp", 80, 80, "a.example:80"),
        ("a.example:*", "a.example", False, None, "tcp", 1, 65535, "a.example:*"),
        ("localhost:3000", "localhost", False, None, "tcp", 3000, 3000, "localhost:3000"),
        ("192.0.2.0/24:8443", None, False, "192.0.2.0/24", "tcp", 8443, 8443, "192.0.2.0/24:8443"),
        ("192.0.2.7", None, False, "192.0.2.7/32", "tcp", 443, 443, "192.0.2.7"),
        ("[2001:db8::1]:80", None, False, "2001:db8::1/128", "tcp", 80, 80, "[2001:db8::1]:80"),
        ("2001:DB8:0::1", None, False, "2001:db8::1/128", "tcp", 443, 443, "2001:db8::1"),
        ("[2001:db8::1]", None, False, "2001:db8::1/128", "tcp", 443, 443, "2001:db8::1"),
        ("2001:db8::/32", None, False, "2001:db8::/32", "tcp", 443, 443, "2001:db8::/32"),
        ("udp://[2001:db8::/32]:53", None, False, "2001:db8::/32", "udp", 53, 53, "udp://[2001:db8::/32]:53"),
        ("Bücher.example", "xn--bcher-kva.example", False, None, "tcp", 443, 443, "xn--bcher-kva.example"),
        (
            "*.xn--strae-oqa.example",
            "xn--strae-oqa.example",
            True,
            None,
            "tcp",
            443,
            443,
            "*.xn--strae-oqa.example",
        ),
    ],
)
def test_entry(
    text: str, name: str, wildcard: bool, network: str, protocol: str, low: int, high: int, shown: str
) -> None:
    rule = parse_rule(text)
    assert tuple(rule) == (name, wildcard, network, protocol, low, high, shown, None)
    assert parse_rule(rule.text) == rule


@pytest.mark.parametrize(
    "text",
    ["", " ", "*", "*.", ".", "a.", "example.com.", ".example.com", "a..b", "*.*.example", "a.*.example",
     "a*.example", "*a", "a_b.example", "-a.example", "a-.example", "a b.example", "a\tb", "a\nb", "a\rb",
     "a\0.example", "a%00.example", "user@example.com", "example.com/path", "https://example.com",
     "http://example.com/x", "ftp://a", "UDP://a.example", "udp://", "tcp://tcp://a.example", "//a.example",
     "a.example:", "a.example:0", "a.example:70000", "a.example:65536", "a.example:http", "a.example:+80",
     "a.example:080", "a.example:9-8", "a.example:1-", "a.example:-1", "a.example:1-2-3",
     "a.example:\uff18\uff10", "a.example:80:90", "[a.example]:80", "[192.0.2.1]:80", "[2001:db8::1",
     "[2001:db8::1]x", "[2001:db8::1]:", "[]", "fe80::1%eth0", "192.0.2.1/24", "192.0.2.0/255.255.255.0",
     "192.0.2.0/0.0.0.255", "192.0.2.0/", "192.0.2.0/33", "192.0.2.0/+24", "2001:db8::1/32", "256.1.1.1",
     "1.2.3", "010.0.0.1", "1.2.3.4.", "0x7f.1", "a.0x7f", "12345", "a.123", "::ffff:192.0.2.1",
     "straße.example", "\uff45xample.com", "a\u3002example", "\u200da.example", "xn--\u00fc.example",
     "a" * 64 + ".example", ".".join(["a" * 60] * 5), "a" * 400, "ü" * 200, "\ud800.example", "example.com\\@x"]
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rule(text, "network.allow of here")
    assert caught.value.message.startswith(f"could not use network.allow of here {repr(text)[:120]}")
    assert caught.value.message.isprintable()
    assert "*.example.com" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "check", "shown"),
    [
        ("a.example check=name", "name", "a.example check=name"),
        ("A.example:443 check=name", "name", "a.example check=name"),
        ("*.a.example:80 check=auto", "auto", "*.a.example:80 check=auto"),
        ("a.example:* check=address", "address", "a.example:* check=address"),
        ("udp://a.example check=address", "address", "udp://a.example check=address"),
        ("192.0.2.1 check=address", None, "192.0.2.1"),
        ("udp://[2001:db8::1]:53 check=address", None, "udp://[2001:db8::1]:53"),
    ],
)
def test_check(text: str, check: str | None, shown: str) -> None:
    rule = parse_rule(text)
    assert (rule.check, rule.text) == (check, shown)
    assert parse_rule(rule.text) == rule
    assert rule.replace(check=None, text="") == parse_rule(text.partition(" ")[0]).replace(text="")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.example check=", "check='' is none of"),
        ("a.example check=Name", "check='Name' is none of"),
        ("a.example check=none", "address, auto, name"),
        ("a.example check=name ", "check='name ' is none of"),
        ("a.example check=name check=name", "is none of"),
        ("a.example  check=name", "' ' is not allowed"),
        ("a.example\tcheck=name", "is not allowed"),
        ("a.example name", "' ' is not allowed"),
        ("check=name", "'=' is not allowed"),
        (" check=name", "it is empty"),
        ("udp://a.example check=name", "in UDP: only check=address fits"),
        ("udp://a.example check=auto", "in UDP: only check=address fits"),
        ("192.0.2.1 check=name", "under an address: only check=address fits"),
        ("2001:db8::/32 check=auto", "under an address: only check=address fits"),
        ("169.254.169.254 check=address", "metadata"),
    ],
)
def test_check_refused(text: str, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rule(text)
    assert says in caught.value.message
    assert "check=name" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "network_check", "effective"),
    [
        ("a.example", "auto", "auto"),
        ("a.example", "name", "name"),
        ("a.example check=address", "name", "address"),
        ("a.example check=name", "address", "name"),
        ("udp://a.example", "auto", "address"),
        ("192.0.2.1", "name", "address"),
    ],
)
def test_effective_check(text: str, network_check: str, effective: str) -> None:
    assert effective_check(parse_rule(text), network_check) == effective


@pytest.mark.parametrize(
    "text",
    [*METADATA, "169.254.0.0/16", "168.63.129.0/24:80", "100.64.0.0/10", "0.0.0.0/0", "::/0", "fd00::/8",
     "[fd00:ec2::254]:80", "fd00:0ec2:0:0:0:0:0:254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
     "::169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "udp://169.254.169.254:53",
     "169.254.169.254:*"],
)  # fmt: skip
def test_metadata_is_never_listed(text: str) -> None:
    with pytest.raises(PolicyError, match="metadata"):
        parse_rule(text)


def test_beside_metadata_is_listed() -> None:
    assert parse_rule("169.254.169.253").network == "169.254.169.253/32"
    assert parse_rule("100.100.100.201").network == "100.100.100.201/32"


@pytest.mark.parametrize(
    ("entry", "name", "matched"),
    [
        ("a.example", "a.example", True),
        ("a.example", "A.EXAMPLE", True),
        ("a.example", "a.example.", True),
        ("a.example", "a.example..", False),
        ("a.example", "b.a.example", False),
        ("a.example", "xa.example", False),
        ("a.example", "a.example\0", False),
        ("a.example", "", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "b.a.example.com.", True),
        ("*.example.com", "_x.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", ".example.com", False),
        ("*.example.com", "a..example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "a.example.com.evil", False),
        ("*.example.com", "evil\0.example.com", False),
        ("*.example.com", "evil/.example.com", False),
        ("*.example.com", "\u212a.example.com", False),
        ("kelvin.example", "\u212aelvin.example", False),
        ("*.example.com", "a." * 130 + "example.com", False),
        ("192.0.2.1", "192.0.2.1", False),
    ],
)
def test_matches(entry: str, name: str, matched: bool) -> None:
    assert matches_name(parse_rule(entry), name) is matched


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        ("a.example", "a.example", True),
        ("a.example:*", "a.example:80-90", True),
        ("a.example:80-90", "a.example:80-91", False),
        ("a.example", "udp://a.example", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "*.a.example.com", True),
        ("*.example.com", "example.com", False),
        ("a.example.com", "*.example.com", False),
        ("*.a.example.com", "*.example.com", False),
        ("example.com", "*.example.com", False),
        ("192.0.2.0/24", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.0/24", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "192.0.2.1", False),
        ("192.0.2.0/24", "2001:db8::1", False),
        ("*.example.com", "192.0.2.1", False),
        ("192.0.2.1", "a.example", False),
        ("a.example", "a.example check=name", True),
        ("a.example", "a.example check=auto", False),
        ("a.example", "a.example check=address", False),
        ("a.example check=auto", "a.example", False),
        ("a.example check=auto", "a.example check=auto", True),
        ("a.example check=auto", "a.example check=name", True),
        ("a.example check=auto", "a.example check=address", False),
        ("a.example check=address", "a.example check=auto", True),
        ("a.example check=address", "a.example", False),
        ("a.example check=name", "a.example check=auto", False),
        ("*.example check=name", "a.example check=name", True),
        ("*.example check=name", "a.example", False),
    ],
)
def test_covers(outer: str, inner: str, covered: bool) -> None:
    assert covers(parse_rule(outer), parse_rule(inner)) is covered


@given(ENTRY)
def test_stable(entry: str) -> None:
    rule = rule_or_fault(entry)
    if isinstance(rule, PolicyError):
        return
    assert parse_rule(rule.text) == rule
    assert covers(rule, rule)


@given(NOISE | ENTRY | st.text())
def test_only_policy_errors(entry: str) -> None:
    rule = rule_or_fault(entry)
    if isinstance(rule, PolicyError):
        assert rule.message.isprintable()
        return
    assert rule.text.isascii()
    assert (rule.name is None) is not (rule.network is None)
    assert parse_rule(rule.text) == rule


@given(ENTRY | NOISE, st.text() | NAME)
def test_matching_never_raises_and_needs_the_name(entry: str, asked: str) -> None:
    rule = rule_or_fault(entry)
    if isinstance(rule, PolicyError):
        return
    if matches_name(rule, asked):
        assert rule.name is not None
        assert asked.lower().removesuffix(".").endswith(rule.name)


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_no_range_reaches_metadata(address: ipaddress.IPv4Address, prefix: int) -> None:
    network = ipaddress.ip_network((int(address), prefix), strict=False)
    reaches = any(ipaddress.ip_address(text) in network for text in METADATA)
    assert isinstance(rule_or_fault(str(network)), PolicyError) is reaches
