"""A client's HTTP stream, in any pieces: what is valid passes as it came, what could smuggle a request does not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_namecheck import AMBIGUOUS, head

from stockade.netns.hello import LIMIT
from stockade.netns.httpguard import HttpGuard, StatusLine

GET = head("Host: a.example")
POST = head("Host: a.example", "Content-Length: 5", first="POST /p HTTP/1.1") + b"hello"
CHUNKED = head("Host: a.example", "Transfer-Encoding: chunked", first="POST /c HTTP/1.1")
EMPTY = CHUNKED + b"0\r\n\r\n"
CHUNKS = CHUNKED + b'5\r\nhello\r\n00a;x=y;z="q"\r\n0123456789\r\n0\r\n\r\n'
TRAILED = CHUNKED + b"1\r\n\n\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n"
TRAFFIC = [GET, POST, EMPTY, CHUNKS, TRAILED, head("Host: a.example", "Content-Length: 0", "Expect: 100-continue")]
ASKS = head("Host: a.example", "Connection: Upgrade", "Upgrade: websocket")
ASKS_H2 = head("Host: a.example", "Connection: Upgrade", "Upgrade: foo, h2c", "HTTP2-Settings: AAMA")
ASKS_TLS = head("Host: a.example", "Connection: Upgrade", "Upgrade: TLS/1.2")
OTHER = head("Host: b.example")
YES, NO = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
FRAMES = b"\x81\x85\0\0\0\0hello" + OTHER


def only_a(found):
    return "" if found.name == "a.example" else f"{found.name} is not a.example"


def fed(*pieces, check=only_a):
    """What passed, and the guard. A piece is bytes of the client, or ("server", bytes)."""
    guard = HttpGuard(check)
    passed = [guard.heard(piece[1]) if isinstance(piece, tuple) else guard.feed(piece) for piece in pieces]
    return b"".join(passed), guard


def cut(data, cuts):
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


# --- what passes -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(TRAFFIC), min_size=1, max_size=5).map(b"".join), st.lists(st.integers(0), max_size=20)
)
def test_valid_traffic_passes_as_it_came(data, cuts):
    passed, guard = fed(*cut(data, cuts))
    assert (passed, guard.fault, guard.held) == (data, "", 0)


def test_valid_traffic_passes_byte_by_byte():
    data = b"".join(TRAFFIC)
    passed, guard = fed(*(data[at : at + 1] for at in range(len(data))))
    assert (passed, guard.fault) == (data, "")


def test_every_head_is_looked_at_and_a_body_is_none():
    seen = []
    text = b"a " + OTHER
    body = head("Host: a.example", f"Content-Length: {len(text)}") + text
    fed(GET + body + CHUNKS + POST, check=lambda found: seen.append((found.method, found.target)) or "")
    assert seen == [("GET", "/"), ("GET", "/"), ("POST", "/c"), ("POST", "/p")]


def test_a_head_is_held_until_it_is_whole_and_a_body_is_not():
    guard = HttpGuard(only_a)
    assert guard.feed(POST[:30]) == b""
    assert guard.held == 30
    assert guard.feed(POST[30:-3]) == POST[:-3]
    assert guard.feed(POST[-3:-1]) == POST[-3:-1]
    assert guard.feed(POST[-1:] + GET[:5]) == POST[-1:]
    assert guard.held == 5


def test_a_large_body():
    data = head("Host: a.example", f"Content-Length: {10 << 20}") + bytes(10 << 20) + GET
    passed, guard = fed(*(data[at : at + (256 << 10)] for at in range(0, len(data), 256 << 10)))
    assert (passed, guard.fault) == (data, "")


def test_many_small_requests_at_once():
    data = GET * 5000
    passed, guard = fed(data)
    assert (passed, guard.fault) == (data, "")


# --- what does not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", TRAFFIC)
def test_another_name_does_not_pass(before):
    passed, guard = fed(before + OTHER + GET)
    assert (passed, guard.fault) == (before, "b.example is not a.example")
    assert guard.refused.name == "b.example"
    assert guard.feed(GET) == b""


@pytest.mark.parametrize(("data", "fault"), [each for each in AMBIGUOUS if "neither" not in each[1]])
def test_heads_that_could_be_read_in_two_ways(data, fault):
    passed, guard = fed(GET + data + GET)
    assert passed == GET
    assert fault in guard.fault
    assert guard.refused is None


UNREAD = [
    OTHER,
    b"GET http://b.example/",
    b"GET http://b.example/ HTTP/1.1",
    b"POST /x HTTP/1.0\nHost: b.example\n\n",
    b" " + OTHER,
    b"\r\n\r\n\t" + OTHER,
    b"GET\t/x\x0bHTTP/1.1\r\n",
    b"GET\x85/x\xa0HTTP/1.1\r\n",
    b"GET /x\r\nHost: b.example\r\n\r\n",
    b"GET / HTTP/1.1\rHost: b.example\r\n\r\n",
    b"DELETE /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"BASELINE-CONTROL http://b.example/ HTTP/9 x\n",
]


@pytest.mark.parametrize("body", UNREAD)
@pytest.mark.parametrize("fields", [(), ("Expect: 100-continue",)])
def test_a_body_that_would_be_a_request_where_bodies_are_not_read(body, fields):
    """As by ``http.server``, whose methods have to read bodies themselves."""
    before = head("Host: a.example", *fields, f"Content-Length: {len(body)}")
    for pieces in ([before + body], [before, body], cut(before + body, range(0, len(before + body), 97))):
        passed, guard = fed(*pieces, GET)
        assert (passed, guard.fault) == (before, "a body that begins with a request")
        assert guard.refused is None


@pytest.mark.parametrize(
    "body",
    [
        b"GET",
        b"get / HTTP/1.1\r\n\r\n",
        b"\r\n \r\n",
        b"GET the milk, please\n",
        b"POST /x\nGET / HTTP/1.1\n",
        b'{"GET / HTTP/1.1": 1}\n',
        b"--boundary\r\n\r\n" + OTHER,
        b"-----BEGIN CERTIFICATE-----\nMIIB\n",
        b"A" * 25 + b" / HTTP/1.1\n",
        b"GET / " + b"x" * 70_000 + b" HTTP/1.1\n",
    ],
)
def test_other_bodies_pass(body):
    data = head("Host: a.example", f"Content-Length: {len(body)}") + body + GET
    for pieces in ([data], cut(data, range(0, len(data), 97))):
        passed, guard = fed(*pieces)
        assert (passed, guard.fault, guard.held) == (data, "", 0)


@pytest.mark.parametrize("body", [b"a", b"{}", b"x=1", b"Get /", b"\x00", bytes(100)])
def test_the_beginning_of_a_body_that_is_no_request_is_not_held(body):
    passed, _guard = fed(head("Host: a.example", "Content-Length: 1000") + body)
    assert passed.endswith(body)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"\r\n", "a malformed chunk size"),
        (b"x\r\n", "a malformed chunk size"),
        (b"5 \r\nhello\r\n", "a malformed chunk size"),
        (b" 5\r\nhello\r\n", "a malformed chunk size"),
        (b"+5\r\nhello\r\n", "a malformed chunk size"),
        (b"-5\r\nhello\r\n", "a malformed chunk size"),
        (b"0x5\r\nhello\r\n", "a malformed chunk size"),
        (b"1_0\r\n", "a malformed chunk size"),
        (b";x\r\n", "a malformed chunk size"),
        (b"0000000000000005\r\nhello\r\n", "a malformed chunk size"),
        (b"ffffffffffffffff\r\n", "a malformed chunk size"),
        (b"5\nhello\r\n", "does not end in CR LF"),
        (b"5\rX\r\nhello\r\n", "does not end in CR LF"),
        (b"5;x\nhello\r\n", "does not end in CR LF"),
        (b"5;\0\r\nhello\r\n", "malformed chunk extensions"),
        (b"A;b /x HTTP/1.1\r\n", "malformed chunk extensions"),
        (b"5;" + b"x" * 300 + b"\r\nhello\r\n", "a line that is too long"),
        ((b"1;" + b"x" * 200 + b"\r\nh\r\n") * 25, "malformed chunk extensions"),
        (b"5\r\nhello!\r\n", "a chunk longer than its size"),
        (b"5\r\nhello\n0\r\n\r\n", "a chunk longer than its size"),
        (b"5\r\nhello\r0\r\n\r\n", "a chunk longer than its size"),
        (b"5\r\nhello0\r\n\r\n", "a chunk longer than its size"),
        (b"0\r\n" + OTHER, "a malformed header line"),
        (b"0\r\n" + OTHER[16:], "says where a message ends or whom it is for"),
        (b"0\r\nX: 1\r\nContent-Length: 3\r\n\r\n", "says where a message ends"),
        (b"0\r\ntransfer_encoding: chunked\r\n\r\n", "says where a message ends"),
        (b"0\r\nX: 1\nY: 2\r\n\r\n", "does not end in CR LF"),
        (b"0\r\nX: 1\r\n Y: 2\r\n\r\n", "continued on another line"),
        (b"0\r\nX : 1\r\n\r\n", "a malformed header line"),
        (b"0\r\n\nGET", "does not end in CR LF"),
        (b"0\r\nX: 1\n\n", "does not end in CR LF"),
        (b"0\r\nX: " + b"1" * 5000, "a line that is too long"),
        (b"0\r\n" + b"X: 123456\r\n" * 500, "a trailer that is too long"),
    ],
)
def test_malformed_chunks(body, fault):
    passed, guard = fed(CHUNKED + body + GET)
    assert fault in guard.fault
    assert (CHUNKED + body).startswith(passed)
    for at in range(1, len(CHUNKED + body), 5):
        again, guard = fed((CHUNKED + body)[:at], (CHUNKED + body)[at:] + GET)
        assert guard.fault
        assert (CHUNKED + body).startswith(again)


def test_a_smuggled_request_is_seen():
    """The second head hides behind a length that another reader would take for the first one's end."""
    hidden = head("Host: a.example", "Content-Length: 4", first="POST / HTTP/1.1") + b"5c\r\n" + OTHER
    passed, guard = fed(hidden)
    assert passed == hidden[: -len(OTHER)]
    assert guard.refused.name == "b.example"


def test_an_empty_line_before_a_request():
    assert "request line" in fed(POST + b"\r\n" + GET)[1].fault


def test_a_head_that_never_ends():
    guard = HttpGuard(only_a)
    assert guard.feed(GET + b"GET / HTTP/1.1\r\n") == GET
    for _ in range(LIMIT // 8):
        assert guard.feed(b"A: bcd\r\n") == b""
    assert "not whole within" in guard.fault
    assert guard.held == 0


# --- another protocol --------------------------------------------------------------------------------------


def test_after_an_upgrade_everything_passes():
    guard = HttpGuard(only_a)
    assert guard.feed(ASKS + FRAMES) == ASKS
    assert guard.waiting
    assert guard.feed(FRAMES) == b""
    assert guard.heard(YES[:12]) == b""
    assert guard.heard(YES[12:] + b"frames") == FRAMES * 2
    assert (guard.raw, guard.feed(FRAMES), guard.fault) == (True, FRAMES, "")


@pytest.mark.parametrize("asking", [ASKS, ASKS_H2, ASKS_TLS])
def test_an_upgrade_that_is_not_granted(asking):
    passed, guard = fed(
        asking + GET, ("server", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nA: b\r\n\r\n" + NO), POST + OTHER
    )
    assert (passed, guard.fault) == (asking + GET + POST, "b.example is not a.example")


@pytest.mark.parametrize("asking", [ASKS_H2, ASKS_TLS])
def test_an_upgrade_to_what_hides_further_names(asking):
    passed, guard = fed(asking + FRAMES, ("server", YES), FRAMES)
    assert passed == asking
    assert "a change to HTTP/2 or TLS" in guard.fault


def test_an_upgrade_waits_for_its_body_and_for_the_answer():
    asking = head("Host: a.example", "Upgrade: foo", "Content-Length: 3")
    passed, guard = fed(asking, ("server", YES), b"ab", b"c" + FRAMES, FRAMES)
    assert (passed, guard.fault) == (asking + b"abc" + FRAMES * 2, "")
    passed, guard = fed(asking, ("server", NO), b"ab", b"c" + OTHER)
    assert (passed, guard.fault) == (asking + b"abc", "b.example is not a.example")


def test_a_later_request_for_another_protocol_is_read_on():
    passed, guard = fed(GET + ASKS + POST, ("server", NO + YES), b"\x81\x85\0\0\0\0hello\r\n\r\n")
    assert passed == GET + ASKS + POST
    assert guard.fault


def test_an_answer_that_is_none():
    passed, guard = fed(ASKS + FRAMES, ("server", b"SSH-2.0-x\r\n"))
    assert passed == ASKS
    assert "a malformed answer" in guard.fault


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (NO, 200), (YES, 101), (b"HTTP/1.0 404\r\n", 404), (b"HTTP/1.1 200 OK\n", 200), (b"HTTP/1.1 200", None),
        (b"HTTP/1.1 100 C\r\n\r\n", None), (b"HTTP/1.1 100 C\r\n\r\n" + YES, 101), (b"HTTP/1.1 100 C\r\nA: b\n\n" + NO, 200),
        (b"HTTP/2 200\r\n", 0), (b"\r\n", 0), (b"HTTP/1.1 2000\r\n", 0), (b"HTTP/1.1\r\n", 0), (b"x" * 70_000, 0),
    ],
)  # fmt: skip
def test_status_lines(data, status):
    assert StatusLine().feed(data) == status
    reader = StatusLine()
    if len(data) < 100:
        found = [reader.feed(data[at : at + 1]) for at in range(len(data))]
        assert next((each for each in found if each is not None), None) == status


# --- any bytes ---------------------------------------------------------------------------------------------

PARTS = [
    *TRAFFIC,
    ASKS,
    ASKS_H2,
    OTHER,
    CHUNKED,
    b"5\r\n",
    b"\r\n",
    b"0\r\n\r\n",
    *(data for data, _ in AMBIGUOUS if len(data) < 99),
]


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(PARTS)), max_size=6).map(b"".join),
    st.lists(st.integers(0), max_size=8),
)
def test_what_passes_is_a_prefix_however_it_comes(data, cuts):
    whole, guard = fed(data)
    pieces, other = fed(*cut(data, cuts))
    assert data.startswith(whole)
    assert data.startswith(pieces)
    assert (guard.fault, guard.waiting) == (other.fault, other.waiting)
    assert whole == pieces
    assert b"Host: b.example\r\n" not in whole or fed(whole)[0] == whole
