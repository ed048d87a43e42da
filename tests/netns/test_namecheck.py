"""Names to the letter: real ClientHellos in any pieces, hellos and heads that two servers could read in two ways, and
the list of decisions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sniff import GREASE, client_hello, extension, made_hello, records, server_name

from stockade.netns.hello import LIMIT, MOST_RECORDS, RETRY, HelloGuard
from stockade.netns.namecheck import ENCRYPTED, NEITHER, Decision, Opening, judge, opening
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import parse_rule

A, B = "192.0.2.10", "192.0.2.11"
HELLO = client_hello("api.example.com", alpn=["h2"])
SEEN = Opening("tls", "api.example.com")


def entries(*pairs):
    """A server_name extension with these (type, name)."""
    listed = b"".join(struct.pack("!BH", kind, len(name)) + name for kind, name in pairs)
    return extension(0, struct.pack("!H", len(listed)) + listed)


def head(*lines, first="GET / HTTP/1.1"):
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


# --- TLS ---------------------------------------------------------------------------------------------------


def test_every_beginning_of_a_real_hello_needs_more():
    for end in range(len(HELLO)):
        assert opening(HELLO[:end]) is None, end
    assert opening(HELLO) == SEEN
    assert opening(HELLO + b"\x14\3\3\0\1\1\x17\3\3") == SEEN


@settings(deadline=None)
@given(st.lists(st.integers(1, len(HELLO) - 6), max_size=MOST_RECORDS - 2, unique=True).map(sorted))
def test_a_hello_may_lie_in_several_records(cuts):
    message = HELLO[5:]
    pieces = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
    data = b"".join(b"\x16\3\1" + struct.pack("!H", len(piece)) + piece for piece in pieces)
    assert opening(data) == SEEN
    for end in range(0, len(data), 7):
        assert opening(data[:end]) is None


@pytest.mark.parametrize("name", ["A.Example", "xn--bcher-kva.example", "a-b.c1.example", "x" * 63 + ".example"])
def test_real_hellos_with_other_names(name):
    assert opening(client_hello(name)) == Opening("tls", name.lower())


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (client_hello(None), "no server name"),
        (made_hello(), "no server name"),
        (made_hello(GREASE), "no server name"),
        (made_hello(server_name(b"a.example"), server_name(b"a.example")), "two server names"),
        (made_hello(server_name(b"a.example"), server_name(b"b.example")), "two server names"),
        (made_hello(entries((0, b"a.example"), (0, b"b.example"))), "two server names"),
        (made_hello(entries((0, b"a.example"), (1, b"b.example"))), "two server names"),
        (made_hello(entries((1, b"a.example"))), "a malformed server name"),
        (made_hello(entries()), "a malformed ClientHello"),
        (made_hello(entries((0, b""))), "a malformed server name"),
        (made_hello(extension(0, b"")), "a malformed ClientHello"),
        (made_hello(extension(0, b"\0\5\0\0\xffab")), "a malformed ClientHello"),
        (made_hello(extension(0, b"\0\5\0\0\2ab\0")), "a malformed server name"),
        (made_hello(extension(0, b"\0\6\0\0\2ab\0")), "two server names"),
        (made_hello(server_name(b"a.example\0")), "is not a valid name"),
        (made_hello(server_name(b"a\0.example")), "is not a valid name"),
        (made_hello(server_name(b"a_b.example")), "is not a valid name"),
        (made_hello(server_name(b"*.example")), "is not a valid name"),
        (made_hello(server_name(b"a..example")), "is not a valid name"),
        (made_hello(server_name(b"a.example..")), "is not a valid name"),
        (made_hello(server_name(b".")), "is not a valid name"),
        (made_hello(server_name(b"a.example:443")), "is not a valid name"),
        (made_hello(server_name("bücher.example".encode())), "is not a valid name"),
        (made_hello(server_name(b"x" * 64 + b".example")), "is not a valid name"),
        (made_hello(server_name(b"192.0.2.7")), "is an address"),
        (made_hello(server_name(b"::1")), "is an address"),
        (made_hello(server_name(b"0x7f.1")), "is not a valid name"),
        (made_hello(GREASE, server_name(b"a.example"), GREASE), "an extension twice"),
        (made_hello(server_name(b"a.example"), b"\0"), "a length that does not fit"),
        (made_hello(server_name(b"a.example")[:-1]), "a length that does not fit"),
        (made_hello(server_name(b"a.example"), session=bytes(33)), "a malformed ClientHello"),
        (b"\x16\3\1\0\4\2\0\0\0", "no ClientHello"),
        (b"\x16\3\1\0\0", "the length of a record"),
        (b"\x16\3\1\x40\1\1\0\0\1\0", "the length of a record"),
        (b"\x16\3\1\0\4\1\0\0\0", "a malformed ClientHello"),
        (records(HELLO, 1), "in too many pieces"),
        (HELLO[:3] + struct.pack("!H", len(HELLO) - 4) + HELLO[5:] + b"\0", "more follows in its record"),
        (HELLO[:3] + b"\0\x64" + HELLO[5:105] + b"\x17\3\3\0\1x", "something else stands within it"),
    ],
)
def test_hellos_without_a_name_to_rely_on(data, fault):
    found = opening(data)
    assert (found.via, found.name) == ("tls", None)
    assert fault in found.fault


@pytest.mark.parametrize("number", [0xFE0D, 0xFFCE])
def test_an_encrypted_hello_is_told(number):
    found = opening(made_hello(extension(number, bytes(60)), server_name(b"front.example.")))
    assert found == Opening("tls", "front.example", encrypted=True)


def test_a_hello_that_never_ends():
    data = b"".join(
        b"\x16\3\1\x04\0" + (b"\1\xff\xff\xff" + bytes(1020) if not at else bytes(1024)) for at in range(20)
    )
    for end in range(LIMIT - 100, LIMIT):
        assert opening(data[:end]) is None
    assert "not whole within" in opening(data[:LIMIT]).fault
    assert "not whole within" in opening(data).fault


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x2e\1\0\2", b"\x16\2", b"\x17\3\3\0\5hello", b"\0", b" ", b"\r\n", b"\xff", b"EHLO a.example\r\n",
        b"SSH-2.0-x\r\n", b"GET / \r\n", b"GET /\n", b"GET  / FTP/1.1\r\n", b"x" * 25,
    ],
)  # fmt: skip
def test_what_is_neither(data):
    assert opening(data) == Opening("tcp", None, NEITHER)
    assert opening(data + b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").name is None


# --- the second hello --------------------------------------------------------------------------------------


def from_server(random=bytes(32), kind=2):
    body = b"\3\3" + random + b"\0\x13\1\0\0\0"
    message = bytes((kind,)) + len(body).to_bytes(3, "big") + body
    return b"\x16\3\3" + struct.pack("!H", len(message)) + message


NORMAL, AGAIN = from_server(), from_server(RETRY)
CHANGE, SEALED = b"\x14\3\3\0\1\1", b"\x17\3\3\0\4seal"
SECOND, OTHER = made_hello(server_name(b"a.example"), GREASE), made_hello(server_name(b"b.example"))
ENDLESS = b"\x16\3\3\x40\0" + b"\2\xff\xff\xff" * (1 << 12)
FIRST = made_hello(server_name(b"a.example"))


def guarded(*steps):
    """What passed, and the guard. A step is bytes of the client, or ("server", bytes)."""
    guard, passed = HelloGuard("a.example"), b""
    for step in steps:
        passed += guard.heard(step[1]) if isinstance(step, tuple) else guard.feed(step)
    return passed, guard


@pytest.mark.parametrize(
    ("steps", "passed"),
    [
        ((FIRST,), FIRST),
        ((FIRST, SEALED), FIRST),
        ((FIRST + SEALED, ("server", NORMAL)), FIRST + SEALED),
        ((FIRST, ("server", NORMAL[:9]), SEALED, ("server", NORMAL[9:]), b"any"), FIRST + SEALED + b"any"),
        ((FIRST, ("server", b"\x15\3\3\0\2\1\x70" + NORMAL), SEALED), FIRST + SEALED),
        ((FIRST, ("server", AGAIN), CHANGE, SECOND[:50]), FIRST + CHANGE),
        ((FIRST, ("server", AGAIN + CHANGE), CHANGE + SECOND), FIRST + CHANGE + SECOND),
        ((FIRST, ("server", AGAIN), SECOND, OTHER), FIRST + SECOND),
        ((FIRST, ("server", AGAIN + CHANGE), CHANGE, SECOND, ("server", NORMAL), SEALED), FIRST + CHANGE + SECOND + SEALED),
        ((FIRST + CHANGE + SEALED + SECOND, ("server", AGAIN), ("server", NORMAL)), FIRST + CHANGE + SEALED + SECOND),
    ],
)  # fmt: skip
def test_a_second_hello_with_the_same_name_passes(steps, passed):
    found, guard = guarded(*steps)
    assert (found, guard.fault) == (passed, "")


@pytest.mark.parametrize(
    ("steps", "passed"),
    [
        ((FIRST, ("server", AGAIN), OTHER), FIRST),
        ((FIRST, ("server", AGAIN), CHANGE + OTHER), FIRST + CHANGE),
        ((FIRST + OTHER, ("server", AGAIN)), FIRST),
        ((FIRST, ("server", AGAIN), SEALED + CHANGE, OTHER[:20], OTHER[20:]), FIRST + SEALED + CHANGE),
        ((FIRST, ("server", AGAIN), SECOND, ("server", AGAIN), OTHER), FIRST + SECOND),
        ((FIRST, ("server", AGAIN), made_hello()), FIRST),
        ((FIRST, ("server", AGAIN), b"GET / HTTP/1.1\r\n\r\n"), FIRST),
        ((FIRST, *[("server", ENDLESS)] * 5), FIRST),
        ((FIRST, ("server", b"220 x ESMTP\r\n"), b"EHLO b.example\r\n"), FIRST),
        ((FIRST + b"EHLO b.example\r\n", ("server", b"HTTP/1.1 400 Bad Request\r\n\r\n")), FIRST),
        ((FIRST, ("server", AGAIN + b"220 x ESMTP\r\n"), SECOND, ("server", b"250 x\r\n"), b"QUIT\r\n"), FIRST + SECOND),
    ],
)  # fmt: skip
def test_a_second_hello_with_another_name_does_not(steps, passed):
    found, guard = guarded(*steps)
    assert guard.fault
    assert found == passed
    assert guard.feed(b"more") == b""
    assert guard.heard(NORMAL) == b""


# --- HTTP --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name", "method", "target"),
    [
        (head("Host: a.example"), "a.example", "GET", "/"),
        (head("host:A.Example.:8080", first="POST /x?y HTTP/1.0"), "a.example", "POST", "/x?y"),
        (head("Host: a.example:"), "a.example", "GET", "/"),
        (head("X: 1", "Host: \t a.example \t"), "a.example", "GET", "/"),
        (head("Host: a.example", first="OPTIONS * HTTP/1.1"), "a.example", "OPTIONS", "*"),
        (head("Host: a.example", first="GET http://A.example:80/x HTTP/1.1"), "a.example", "GET", "http://A.example:80/x"),
        (head("Host: a.example:8080", first="GET HTTP://a.example:8080 HTTP/1.1"), "a.example", "GET", "HTTP://a.example:8080"),
        (head("Host: a.example", "Transfer-Encoding: chunked"), "a.example", "GET", "/"),
        (head("Host: a.example", "Content-Length: 5"), "a.example", "GET", "/"),
        (head("Host: a.example", "X: \xff\xfe"), "a.example", "GET", "/"),
    ],
)  # fmt: skip
def test_heads(data, name, method, target):
    for end in range(len(data)):
        assert opening(data[:end]) is None
    assert opening(data) == Opening("http", name, method=method, target=target)
    assert opening(data + b"Host: b.example\r\n\r\n") == opening(data)


AMBIGUOUS = [
    (head(), "no Host header"),
    (head(first="GET / HTTP/1.0"), "no Host header"),
    (head(first="GET http://a.example/ HTTP/1.1"), "no Host header"),
    (head("Host: a.example", "Host: a.example"), "two Host headers"),
    (head("Host: a.example", "hOST: b.example"), "two Host headers"),
    (head("Host:"), "is empty"),
    (head("Host: :80"), "is empty"),
    (head("Host: a.example, b.example"), "is not a valid name"),
    (head("Host: a.example b.example"), "is not a valid name"),
    (head("Host: u@a.example"), "is not a valid name"),
    (head("Host: a_b.example"), "is not a valid name"),
    (head("Host: a.example/"), "is not a valid name"),
    (head("Host: \xe4.example"), "is not a valid name"),
    (head("Host: a.example:x"), "a malformed port"),
    (head("Host: a.example:80:80"), "a malformed port"),
    (head("Host: a.example:65536"), "a malformed port"),
    (head("Host: 192.0.2.7"), "is an address"),
    (head("Host: [::1]:80"), "is an address"),
    (head("Host: a.example", first="GET http://b.example/ HTTP/1.1"), "names another host"),
    (head("Host: a.example", first="GET http://a.example:81/ HTTP/1.1"), "names another host"),
    (head("Host: a.example", first="GET http://u@a.example/ HTTP/1.1"), "is not a valid name"),
    (head("Host: a.example", first="GET http:// HTTP/1.1"), "is empty"),
    (head("Host: a.example", first="GET https://a.example/ HTTP/1.1"), "a malformed request target"),
    (head("Host: a.example", first="GET a.example HTTP/1.1"), "a malformed request target"),
    (head("Host: a.example", first="GET * HTTP/1.1"), "a malformed request target"),
    (head("Host: a.example", first="CONNECT a.example:80 HTTP/1.1"), "a CONNECT request"),
    (head("Host: a.example", first="GET /\t HTTP/1.1"), "a malformed request target"),
    (head("Host: a.example", first="GET  / HTTP/1.1"), "a malformed request line"),
    (head("Host: a.example", first="GET / x HTTP/1.1"), "a malformed request line"),
    (head("Host: a.example", first="GET / HTTP/1.2"), "a version of HTTP"),
    (head("Host: a.example", first="GET / HTTP/2.0"), "a version of HTTP"),
    (head("Host: a.example", first="GET / HTTP/1.1 "), "neither"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 without TLS"),
    (head("X: 1", " Host: b.example", "Host: a.example"), "continued on another line"),
    (head("Host: a.example", "\tb.example"), "continued on another line"),
    (head("Host : a.example"), "a malformed header line"),
    (head("Host: a.example", ": x"), "a malformed header line"),
    (head("Host: a.example", "x"), "a malformed header line"),
    (head("Host: a.example", "X\xff: 1"), "a malformed header line"),
    (head("Host: a.example", "X: a\0b"), "a control character"),
    (head("Host: a.example", "X: a\x0bb"), "a control character"),
    (head("Host: a.example\0"), "a control character"),
    (head("Host: a.example", "X: a\rHost: b.example"), "does not end in CR LF"),
    (head("Host: a.example", "X: a\nHost: b.example"), "does not end in CR LF"),
    (b"GET / HTTP/1.1\nHost: a.example\n\n", "does not end in CR LF"),
    (b"GET / HTTP/1.1\r\nHost: a.example\r\n\n", "does not end in CR LF"),
    (b"GET / HTTP/1.1\r\nHost: a.example\n\r\n", "does not end in CR LF"),
    (head("Host: a.example", "Host_: x", "Content_Length: 3"), "a header named content_length"),
    (head("Host: a.example", "Transfer_Encoding: chunked"), "a header named transfer_encoding"),
    (head("Host: a.example", "Content-Length: 3", "Transfer-Encoding: chunked"), "both Transfer-Encoding"),
    (head("Host: a.example", "Content-Length: 3", "Content-Length: 3"), "two Content-Length"),
    (head("Host: a.example", "Content-Length: 3, 3"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length: +3"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length: -1"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length: 0x3"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length: 1_0"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length:"), "a malformed Content-Length"),
    (head("Host: a.example", "Content-Length: " + "9" * 30), "a malformed Content-Length"),
    (head("Host: a.example", "Transfer-Encoding: gzip, chunked"), "other than chunked"),
    (head("Host: a.example", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), "other than chunked"),
    (head("Host: a.example", "Transfer-Encoding: xchunked"), "other than chunked"),
    (head("Host: a.example", "Transfer-Encoding: \x0bchunked"), "a control character"),
    (head("Host: a.example", "Transfer-Encoding: chunked", first="POST / HTTP/1.0"), "other than chunked"),
    (head("Host: a.example", "X: " + "x" * LIMIT), "not whole within"),
    (b"GET /" + b"x" * LIMIT, "not whole within"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "fault"), AMBIGUOUS)
def test_heads_that_could_be_read_in_two_ways(data, fault):
    found = opening(data)
    assert found.name is None
    assert fault in found.fault


def test_a_head_ends_by_itself():
    data = b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4000
    assert opening(data[: LIMIT - 1]) is None
    assert "not whole within" in opening(data[:LIMIT]).fault


# --- any bytes ---------------------------------------------------------------------------------------------

PARTS = [
    HELLO,
    SECOND,
    *(data for data, _fault in AMBIGUOUS if len(data) < 200),
    head("Host: a.example"),
    b"\x16\3\1",
]


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(PARTS)), max_size=4).map(b"".join), st.data())
def test_nothing_is_raised_and_more_bytes_change_nothing(data, draw):
    found = opening(data)
    assert (found is None) or (bool(found.fault) == (found.name is None))
    end = draw.draw(st.integers(0, len(data)))
    before = opening(data[:end])
    if before is not None and not before.fault:
        assert found == before
    if found is not None and not found.fault:
        assert found.name in data.decode("latin-1").lower()


@settings(deadline=None)
@given(st.integers(0, len(HELLO) - 1), st.integers(0, 255))
def test_a_hello_with_a_wrong_byte_never_tells_a_name_that_is_not_there(at, byte):
    wrong = bytearray(HELLO)
    wrong[at] = byte
    found = opening(wrong)
    assert found is None or found.name is None or found.name.encode() in bytes(wrong).lower()


# --- the decision ------------------------------------------------------------------------------------------


def edge(host, scheme="https"):
    return EdgeRule(parse_rule(host), scheme, (), (), ())


TLS = {name: Opening("tls", f"{name}.example") for name in "abeh"}
HTTP = {name: Opening("http", f"{name}.example") for name in "abeh"}
RULES = [
    parse_rule(text)
    for text in ("a.example", "*.w.example:80", "a.example:80", "192.0.2.64/28:22", "udp://u.example")
]
EDGES = [
    edge("e.example"),
    edge("h.example:80", "http"),
    edge("h.example", "http"),
    edge("h.example:443"),
    edge("*.x.example"),
]
PASS = Decision("pass", "a.example")


def decide(
    found, address=A, port=443, *, kind="allow", leads=lambda _name, _address: True, rules=RULES, edges=EDGES
):
    return judge(found, address, port, rules=rules, edges=edges, leads=leads, kind=kind)


@pytest.mark.parametrize(
    ("found", "port", "action", "index"),
    [
        (TLS["a"], 443, "pass", None),
        (HTTP["a"], 80, "pass", None),
        (HTTP["a"], 443, "pass", None),
        (TLS["a"], 8443, "refuse", None),
        (TLS["b"], 443, "refuse", None),
        (Opening("tls", "u.example"), 443, "refuse", None),
        (Opening("http", "x.w.example"), 80, "pass", None),
        (Opening("http", "w.example"), 80, "refuse", None),
        (TLS["e"], 443, "transform", 0),
        (HTTP["e"], 443, "refuse", None),
        (HTTP["h"], 80, "transform", 1),
        (TLS["h"], 443, "transform", 3),
        (HTTP["h"], 443, "transform", 2),
        (TLS["h"], 80, "refuse", None),
        (Opening("tls", "q.x.example"), 443, "transform", 4),
        (Opening("tls", None, "no server name"), 443, "refuse", None),
        (Opening("tcp", None, NEITHER), 443, "refuse", None),
    ],
)
def test_what_the_rules_say(found, port, action, index):
    decision = decide(found, port=port)
    assert (decision.action, decision.edge) == (action, index)
    assert bool(decision.reason) == (action == "refuse")


def test_a_rule_by_address_comes_first():
    fault = Opening("tcp", None, NEITHER)
    assert decide(fault, "192.0.2.65", 22) == Decision("pass", None)
    assert decide(fault, "192.0.2.65", 23).action == "refuse"
    assert decide(fault, "192.0.2.80", 22).action == "refuse"
    assert decide(fault, "2001:db8::1", 22).action == "refuse"


def test_what_an_edge_entry_means_goes_there_though_its_address_is_open():
    rules = [parse_rule("192.0.2.0/24")]
    assert decide(TLS["e"], rules=rules).action == "transform"
    assert decide(HTTP["e"], rules=rules).action == "refuse"
    assert decide(TLS["a"], rules=rules).action == "pass"
    assert decide(TLS["e"], rules=rules, leads=lambda _name, _address: False).action == "pass"
    assert decide(Opening("tls", None, "no server name"), rules=rules).action == "pass"


def test_a_name_counts_only_where_it_leads():
    told = lambda name, address: (name, address) == ("a.example", A)  # noqa: E731
    assert decide(TLS["a"], leads=told) == PASS
    assert "was not resolved to" in decide(TLS["a"], B, leads=told).reason
    assert "was not resolved to" in decide(TLS["e"], leads=told).reason


def test_open_lets_every_name_pass_that_was_asked():
    assert decide(TLS["b"], kind="open", rules=()) == Decision("pass", "b.example")
    assert decide(TLS["e"], kind="open", rules=()).action == "transform"
    assert decide(TLS["b"], kind="open", leads=lambda *_: False).action == "refuse"
    assert decide(Opening("tls", None, "no server name"), kind="open").reason == "no server name"


def test_a_hidden_name_is_told():
    hidden = TLS["a"].replace(encrypted=True)
    assert decide(hidden) == Decision("pass", "a.example", ENCRYPTED)
