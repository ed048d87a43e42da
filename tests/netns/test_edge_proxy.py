"""The real proxy between programs and servers: what passes, what does not, and that the secret stays outside."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zlib
from urllib.parse import quote

import edgerig
import pytest
from edgerig import BASIC, BEARER, H2, SECRET, Edge, Forwarder, Program, ask, get, leaks, reply, rule, unframe

from stockade.netns.edge.bodies import frame

HOST, OTHER = "a.example", "b.example"


@pytest.fixture(scope="module")
def python():
    named = os.environ.get("STOCKADE_EDGE_PYTHON")
    if not named and importlib.util.find_spec("mitmproxy") is None:
        pytest.skip("mitmproxy is not installed, and STOCKADE_EDGE_PYTHON names no Python that has it")
    return named or sys.executable


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return edgerig.Certificates(tmp_path_factory.mktemp("edge"))


@pytest.fixture(scope="module")
def files(certificates):
    return certificates.leaf("site", "DNS:a.example,DNS:b.example,DNS:*.w.example")


@pytest.fixture(scope="module")
def edge(python):
    made = Edge(python)
    yield made
    assert made.close() == 0


@pytest.fixture(scope="module")
def standing(files):
    made = edgerig.Server(files)
    yield made
    made.close()


@pytest.fixture
def server(standing):
    standing.answer, standing.seen, standing.connections = edgerig.echo, [], 0
    return standing


@pytest.fixture
def opened(edge, certificates):
    """Sessions that are closed at the end."""
    made = []

    def make(*rules, secrets=(SECRET, BEARER), mask_queries=False, trust=certificates.bundle):
        made.append(edge.proxy.open(rules, list(secrets), mask_queries=mask_queries, trust=trust))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(opened, server):
    return opened(rule(HOST, server.port))


def at(server, host=HOST):
    return f"{host}:{server.port}"


def record(session, number=0):
    edgerig.until(lambda: len(session.requests()) > number)
    return session.requests()[number]


# --- what is put in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Authorization: mine"],
        ["authorization: mine"],
        ["AUTHORIZATION: mine", "Authorization: mine too"],
        ["Authorization : mine"],
        ["Authorization:"],
        ["authorization_: x", "Proxy-Authorization: mine"],
    ],
)
def test_the_header_is_put_in_once(session, server, lines):
    answer = ask(session, server, HOST, get("/x?q=1", at(server), *lines))
    if any(" :" in line for line in lines):
        assert (answer.status, server.seen) == (400, [])
        return
    assert answer.status == 200
    ((head, _body),) = server.seen
    assert head.count(f"Authorization: {BEARER}\r\n".encode()) == 1
    assert b"mine" not in head
    assert head.startswith(b"GET /x?q=1 HTTP/1.1\r\n")
    assert head.lower().count(b"\nhost:") == 1
    assert not leaks(answer.raw)
    assert b"Authorization: " + b"*" * len(BEARER) in answer.body
    found = record(session)
    assert (found.method, found.path, found.status, found.transformed) == ("GET", "/x?q=1", 200, True)
    assert (found.host, found.port, found.reason, found.bytes) == (HOST, server.port, "", len(answer.body))


def test_a_folded_header_is_refused(session, server):
    answer = ask(session, server, HOST, get("/", at(server), "X-A: 1\r\n Authorization: mine"))
    assert (answer.status, server.seen) == (400, [])


def test_underscores_are_no_way_around(opened, server):
    session = opened(rule(HOST, server.port, headers=[("X-Api-Key", SECRET)]))
    assert ask(session, server, HOST, get("/", at(server), "X_Api_Key: mine", "x-api_key: mine")).status == 200
    ((head, _body),) = server.seen
    assert b"mine" not in head
    assert head.count(f"X-Api-Key: {SECRET}\r\n".encode()) == 1


def test_the_first_rule_that_means_it_gives_the_header(opened, server):
    first = rule(HOST, server.port, methods=["GET"], paths=["/one/*"], headers=[("X-Key", "number one")])
    second = rule(HOST, server.port, headers=[])
    session = opened(first, second, secrets=["number one"])
    assert ask(session, server, HOST, get("/one/x", at(server))).status == 200
    assert ask(session, server, HOST, get("/two", at(server))).status == 200
    assert [b"number one" in head for head, _body in server.seen] == [True, False]
    assert [each.transformed for each in (record(session), record(session, 1))] == [True, False]


def test_hop_by_hop_fields_and_encodings_stay_behind(session, server):
    lines = [
        "TE: trailers",
        "Proxy-X: 1",
        "Keep-Alive: 5",
        "Upgrade: h2c",
        "HTTP2-Settings: x",
        "Accept-Encoding: br",
    ]
    assert ask(session, server, HOST, get("/", at(server), *lines)).status == 200
    ((head, _body),) = server.seen
    fields = edgerig.fields_of(head)
    assert not {b"te", b"proxy-x", b"keep-alive", b"upgrade", b"http2-settings"} & set(fields)
    assert fields[b"accept-encoding"] == b"identity"


def test_plain_http(opened):
    plain = edgerig.Server(None)
    try:
        session = opened(rule(HOST, plain.port, scheme="http"))
        raw = get("/p", at(plain))
        answer = ask(session, plain, HOST, raw[5:], tls=False, data=raw[:5])
        assert answer.status == 200
        assert BEARER.encode() in plain.seen[0][0]
        assert not leaks(answer.raw)
    finally:
        plain.close()


def test_a_connection_serves_many_requests(session, server):
    with Program(session, server, HOST) as program:
        for number in range(5):
            program.send(
                f"POST /{number} HTTP/1.1\r\nHost: {at(server)}\r\nContent-Length: 4\r\n\r\nend{number}".encode()
            )
            program.read_until(f"end{number}".encode())
    assert [body for _head, body in server.seen] == [f"end{number}".encode() for number in range(5)]
    assert server.connections == 1
    edgerig.until(lambda: session.ended)
    (ended,) = session.ended
    assert ended.connection == program.number
    assert ended.sent > 500
    assert ended.received > 1000


@pytest.mark.parametrize("size", [1, 5, 100, 4096])
def test_what_was_read_already_is_not_lost(session, server, size):
    own, given = socket.socketpair()
    context = ssl.create_default_context(cadata=session.ca)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        shaking.do_handshake()
    hello = outgoing.read()
    own.sendall(hello[size:])
    place = {"host": HOST, "address": "127.0.0.1", "port": server.port, "tls": True}
    session.take(given, hello[:size], **place, began=0.0)
    own.settimeout(edgerig.SECONDS)
    with own:
        while True:
            incoming.write(own.recv(65536))
            try:
                shaking.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        shaking.write(get("/", at(server)))
        own.sendall(outgoing.read())
        while not server.seen:
            assert own.recv(65536)
    assert BEARER.encode() in server.seen[0][0]


def test_a_program_of_http_1_0(session, server):
    server.answer = lambda _head, _body: reply(gzip.compress(BEARER.encode()), "Content-Encoding: gzip")
    answer = ask(session, server, HOST, f"GET / HTTP/1.0\r\nHost: {at(server)}\r\n\r\n".encode())
    assert (answer.status, answer.body) == (200, b"*" * len(BEARER))
    assert b"transfer-encoding" not in answer.fields
    assert server.seen[0][0].startswith(b"GET / HTTP/1.0\r\n")


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/ok/x", 200),
        ("/ok/x?a=../b&c=%2e", 200),
        ("/other", 403),
        ("/ok/../secret", 403),
        ("/ok/./x", 403),
        ("/ok/%2e%2e/x", 403),
        ("/ok/.%2E/x", 403),
        ("/ok/a%2fb", 403),
        ("/ok/a%5Cb", 403),
        ("/ok/a\\b", 403),
        ("/ok/a%00", 403),
        ("/ok/a%252fb", 403),
        ("/ok/..;/x", 403),
        ("/ok/a%zz", 403),
        ("/ok/a#b", 403),
        ("//ok/x", 403),
        ("*", 403),
        ("ok/x", 400),
        ("https://a.example:{port}/ok/x", 200),
        ("https://b.example:{port}/ok/x", 421),
        ("http://b.example/ok/x", 421),
        ("https://a.example:1/ok/x", 421),
        ("https://a.example@b.example/ok/x", 400),
    ],
)
def test_paths(opened, server, target, status):
    session = opened(rule(HOST, server.port, paths=["/ok/*"]))
    answer = ask(session, server, HOST, get(target.format(port=server.port), at(server)))
    assert answer.status == status
    assert len(server.seen) == (status == 200)
    assert server.connections == (status == 200)
    if status == 200:
        assert server.seen[0][0].startswith(b"GET /ok/x")
    if status in (403, 421):
        assert answer.body.startswith(b"stockade: ")
        assert record(session).reason == answer.body.decode().removeprefix("stockade: ").strip()
        assert record(session).status == status


@pytest.mark.parametrize(
    ("method", "status"),
    [("GET", 200), ("HEAD", 403), ("POST", 403), ("get", 400), ("CONNECT", 400), ("G\tET", 400), ("PRI", 403)],
)
def test_methods(opened, server, method, status):
    session = opened(rule(HOST, server.port, methods=["GET"]))
    assert ask(session, server, HOST, get("/", at(server), method=method)).status == status
    assert len(server.seen) == (status == 200)


def test_a_method_in_a_header_is_no_way_around(opened, server):
    session = opened(rule(HOST, server.port, methods=["POST"]))
    assert (
        ask(session, server, HOST, get("/", at(server), "X-HTTP-Method-Override: DELETE", method="POST")).status
        == 403
    )
    assert ask(session, server, HOST, get("/", at(server), method="POST")).status == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Host: a.example:{port}"], 200),
        (["Host: A.Example.:{port}"], 200),
        (["Host: b.example:{port}"], 421),
        (["Host: a.example"], 421),
        (["Host: a.example:1"], 421),
        (["Host: a.example:{port}", "Host: b.example:{port}"], 400),
        (["Host: a.example:{port}", "Host: a.example:{port}"], 400),
        ([], 400),
        (["Host:"], 421),
    ],
)
def test_hosts(session, server, lines, status):
    head = "\r\n".join(["GET / HTTP/1.1", "Connection: close", *lines]).format(port=server.port)
    assert ask(session, server, HOST, f"{head}\r\n\r\n".encode()).status == status
    assert len(server.seen) == (status == 200)


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\nTransfer_Encoding: identity",
        "Transfer-Encoding : chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length: 0x5",
        "X: 1\r\n Content-Length: 5",
    ],
)
def test_smuggling_shapes_reach_no_server(session, server, framing):
    raw = f"POST / HTTP/1.1\r\nHost: {at(server)}\r\n{framing}\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
    answer = ask(session, server, HOST, raw.encode())
    assert answer.status == 400
    assert (server.seen, server.connections) == ([], 0)


def test_a_bad_chunk_ends_the_connection(session, server):
    raw = f"POST / HTTP/1.1\r\nHost: {at(server)}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nGET /smuggled HTTP/1.1\r\n"
    ask(session, server, HOST, raw.encode())
    assert not [head for head, _body in server.seen if b"smuggled" in head]


def test_chunked_and_expected_bodies_pass(session, server):
    chunks = b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nAuthorization: mine\r\n\r\n"
    assert (
        ask(
            session, server, HOST, get("/", at(server), "Transfer-Encoding: chunked", method="POST") + chunks
        ).status
        == 200
    )
    with Program(session, server, HOST) as program:
        program.send(get("/", at(server), "Expect: 100-continue", "Content-Length: 3", method="PUT"))
        assert b"100 Continue" in program.read_until(b"\r\n\r\n")
        program.send(b"xyz")
        assert program.read_all().startswith(b"HTTP/1.1 200")
    assert [body for _head, body in server.seen] == [b"abcdefg", b"xyz"]
    assert b"xpect" not in server.seen[1][0]
    assert b"mine" not in server.seen[0][0]


def test_a_refused_request_is_answered_before_its_body_is_there(opened, server):
    session = opened(rule(HOST, server.port, methods=["GET"]))
    with Program(session, server, HOST) as program:
        program.send(get("/", at(server), "Content-Length: 1000000", "Expect: 100-continue", method="PUT"))
        head = program.read_until(b"on a.example\n")
    assert head.startswith(b"HTTP/1.1 403")
    assert b"100 Continue" not in head
    assert server.connections == 0


def test_a_refused_head_request_has_no_body(opened, server):
    session = opened(rule(HOST, server.port, methods=["GET"]))
    answer = ask(session, server, HOST, get("/", at(server), method="HEAD"))
    assert (answer.status, answer.body) == (403, b"")


def test_an_upload_learns_that_the_server_is_gone(opened, server):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    session = opened(rule(HOST, port))
    raw = get("/", f"{HOST}:{port}", "Expect: 100-continue", "Content-Length: 5", method="PUT")
    with Program(session, port, HOST) as program:
        program.send(raw)
        found = program.read_all()
    assert b"HTTP/1.1 502" in found
    assert record(session).status == 502


def test_a_head_without_an_end_is_cut_off(session, server):
    with Program(session, server, HOST) as program, pytest.raises((BrokenPipeError, ConnectionError, ssl.SSLError)):
        program.send(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000_000)
    assert ask(session, server, HOST, get("/", at(server), *["X: y"] * 300)).status == 431
    assert server.connections == 0
    assert ask(session, server, HOST, get("/", at(server))).status == 200


def test_a_name_that_is_not_the_one_looked_up(session, server):
    own, given = socket.socketpair()
    context = ssl.create_default_context(cadata=session.ca)
    with own:
        session.take(given, b"", host=HOST, address="127.0.0.1", port=server.port, tls=True, began=0.0)
        with pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(own, server_hostname=OTHER)
    assert server.connections == 0


def test_a_body_that_comes_with_the_handshake(session, server):
    body = os.urandom(3_000_000)
    answer = ask(session, server, HOST, get("/", at(server), method="POST", body=body))
    assert answer.status == 200
    assert server.seen[0][1] == body


# --- what comes back ---------------------------------------------------------------------------------------

RAW, OK = SECRET.encode(), b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
IN_BASE64 = b" ".join(base64.b64encode(b"xx"[:number] + RAW + b"y") for number in range(3))


def then_close(data):
    """Sent as it is, and the connection ends."""
    return lambda sock, _file: sock.sendall(data)


PASSED = {
    "a header": reply(b"ok", f"X-Echo: {BEARER}", f"X-{SECRET[:2]}: {SECRET}"),
    "the status line": reply(b"ok", status=f"200 {SECRET}"),
    "a redirect": reply(b"", f"Location: https://b.example/?t={quote(SECRET, safe='')}", status="302 Found"),
    "a cookie": reply(b"", f"Set-Cookie: s={base64.b64encode(RAW).decode()}"),
    "json": reply(json.dumps({"token": SECRET, "all": BEARER}).encode()),
    "base64": reply(IN_BASE64),
    "hex": reply(RAW.hex().encode()),
    "a folded header": OK + b"X-Fold: a\r\n " + RAW + b"\r\nContent-Length: 0\r\n\r\n",
    "pieces": [OK + b"Content-Length: %d\r\n\r\n" % len(RAW), *(bytes([byte]) for byte in RAW)],
    "chunks": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in RAW) + b"0\r\nX-Trailer: " + RAW + b"\r\n\r\n",
    "an early hint": b"HTTP/1.1 103 Early Hints\r\nLink: " + RAW + b"\r\n\r\n" + reply(b"<" + RAW + b">"),
    "an early hint, bit by bit": [bytes([byte]) for byte in b"HTTP/1.1 100 x\r\n\r\n" + reply(b"<" + RAW + b">")],
    "gzip": reply(gzip.compress(b"<" + BEARER.encode() + b">"), "Content-Encoding: gzip"),
    "deflate": reply(zlib.compress(BEARER.encode()), "Content-Encoding: deflate"),
    "to the end of the connection": then_close(OK + b"\r\n" + BEARER.encode()),
}
CUT = {
    "a bad chunk": CHUNKED + RAW + b"\r\n",
    "a short body": then_close(OK + b"Content-Length: 999\r\n\r\n" + RAW),
}
REFUSED = {
    "no HTTP at all": then_close(RAW + b"\r\n\r\n"),
    "a bad header": then_close(OK + RAW + b"\r\n\r\n"),
    "a bad length": OK + b"Content-Length: " + RAW + b"\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n" + RAW,
    "half a head": then_close(OK + b"X: " + RAW),
    "an unknown encoding": reply(BEARER.encode(), "Content-Encoding: br"),
    "two encodings": reply(BEARER.encode(), "Content-Encoding: gzip, gzip"),
    "a transfer encoding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + RAW,
    "half an early hint": then_close(b"HTTP/1.1 103 Early Hints\r\nLink: " + RAW),
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n" + RAW,
    "a false status": reply(b"", status=f"999 {SECRET}"),
    "a head without an end": then_close(OK + b"".join(b"X: " + RAW + b"\r\n" for _ in range(5000))),
}


@pytest.mark.parametrize("kind", [*PASSED, *CUT, *REFUSED])
def test_what_echoes_the_secret_is_masked(session, server, kind):
    server.answer = lambda _head, _body: {**PASSED, **CUT, **REFUSED}[kind]
    answer = ask(session, server, HOST, get("/", at(server)))
    assert BEARER.encode() in server.seen[0][0], "it was sent"
    assert not leaks(answer.raw)
    assert RAW[2:-2] not in answer.raw
    found = record(session)
    assert not leaks(repr(found).encode())
    assert answer.whole == (kind != "a bad chunk")
    if kind in REFUSED:
        assert (answer.status, found.status) == (502, 502)
    else:
        assert answer.status in (200, 302)
        assert b"*" * 6 in answer.raw or kind in ("chunks", *CUT)
    assert bool(found.reason) == (kind not in PASSED)


def test_an_answer_without_the_secret_is_not_touched(session, server):
    body = os.urandom(300_000) + b"k9/+=*"
    server.answer = lambda _head, _body: reply(body, "X-A: b", "Content-Type: application/x-y")
    answer = ask(session, server, HOST, get("/", at(server)))
    assert answer.body == body
    assert (answer.fields[b"x-a"], answer.fields[b"content-length"]) == (b"b", b"300006")
    server.answer = lambda _head, _body: reply(gzip.compress(body), "Content-Encoding: gzip")
    assert ask(session, server, HOST, get("/", at(server))).body == body


def test_what_comes_piece_by_piece_is_passed_on_at_once(session, server):
    turn = threading.Event()

    def events(sock, _file):
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        assert turn.wait(edgerig.SECONDS)
        sock.sendall(b"data: 2\n\n")

    server.answer = lambda _head, _body: events
    with Program(session, server, HOST) as program:
        program.send(get("/", at(server)))
        program.read_until(b"data: 1\n\n")
        turn.set()
        program.read_until(b"data: 2\n\n")


@pytest.mark.parametrize("piece", [b"1\r\nB\r\n", b"4\r\nBear\r\n"])
def test_an_answer_in_tiny_pieces_holds_up_nobody_else(opened, server, files, piece):
    """Each piece costs a thousand times what its bytes do. The others' handshakes would come too late."""
    other = edgerig.Server(files)
    busy, quiet = opened(rule(HOST, server.port)), opened(rule(OTHER, other.port))
    over = threading.Event()

    def pour(sock, _file):
        sock.sendall(CHUNKED)
        while not over.is_set():
            sock.sendall(piece * 10_000)

    server.answer = lambda _head, _body: pour
    with Program(busy, server, HOST) as program:
        program.send(get("/", at(server)))
        edgerig.in_thread(program.read_all)
        edgerig.until(lambda: server.seen)
        for _ in range(5):
            assert ask(quiet, other, OTHER, get("/", at(other, OTHER))).status == 200
        over.set()
    other.close()


def test_chunks_are_put_together(session, server):
    """Those that came together go on together, and what is wrong after them is still told."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b"abcdefgh" * 500)
    server.answer = lambda _head, _body: CHUNKED + chunks + b"0\r\n\r\n"
    answer = ask(session, server, HOST, get("/", at(server)))
    assert (answer.body, answer.whole) == (b"abcdefgh" * 500, True)
    assert answer.raw.count(b"\r\n") < 500
    server.answer = lambda _head, _body: CHUNKED + chunks + b"zz\r\n"
    answer = ask(session, server, HOST, get("/", at(server)))
    assert (answer.body, answer.whole) == (b"abcdefgh" * 500, False)
    assert record(session, 1).reason


def test_a_bomb_is_not_unpacked(session, server):
    server.answer = lambda _head, _body: reply(gzip.compress(bytes(50 << 20)), "Content-Encoding: gzip")
    answer = ask(session, server, HOST, get("/", at(server)))
    assert len(answer.raw) < 20 << 20
    assert not answer.whole
    assert record(session).reason
    server.answer = edgerig.echo
    assert ask(session, server, HOST, get("/", at(server))).status == 200


def test_a_secret_of_digits_leaves_lengths_alone(opened, server):
    session = opened(rule(HOST, server.port, headers=[("X-Pin", "10000")]), secrets=["10000"])
    server.answer = lambda _head, _body: reply(b"<10000>" + b"x" * 9993, "X-Echo: 10000")
    answer = ask(session, server, HOST, get("/", at(server)))
    assert answer.body == b"<*****>" + b"x" * 9993
    assert answer.fields[b"x-echo"] == b"*****"


def test_the_record_hides_what_it_should(opened, server):
    session = opened(rule(HOST, server.port), mask_queries=True)
    ask(session, server, HOST, get(f"/p?a=1&token={quote(SECRET, safe='')}&flag", at(server)))
    assert record(session).path == "/p?a=…&token=…&…"
    session = opened(rule(HOST, server.port))
    ask(session, server, HOST, get(f"/p?a=1&token={quote(SECRET, safe='')}", at(server)))
    assert record(session).path == "/p?a=1&token=" + "*" * len(quote(SECRET, safe=""))


# --- websockets --------------------------------------------------------------------------------------------

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nX-Echo: " + RAW + b"\r\n"
ACCEPTED = SWITCHING + b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
WANTS = [
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Extensions: permessage-deflate",
]


def wants(server):
    return "\r\n".join(
        ["GET /ws HTTP/1.1", f"Host: {at(server)}", "Connection: Upgrade", "Upgrade: websocket", *WANTS, "", ""]
    ).encode()


def test_a_websocket_is_masked_in_every_kind_of_frame(session, server):
    half = len(SECRET) // 2
    frames = frame(1, RAW, final=True) + frame(1, RAW[:half], final=False) + frame(9, RAW, final=True)
    frames += (
        frame(0, RAW[half:], final=True)
        + frame(2, b"z" * 300, final=True)
        + frame(8, b"\x03\xe8" + RAW, final=True)
    )
    heard = []

    def talk(sock, file):
        heard.append(file.read(9))
        for byte in frames:
            sock.sendall(bytes([byte]))

    server.answer = lambda _head, _body: lambda sock, file: (sock.sendall(ACCEPTED), talk(sock, file))
    with Program(session, server, HOST) as program:
        program.send(wants(server))
        head = program.read_until(b"\r\n\r\n")
        program.send(b"\x81\x83abcd\x01\x02\x03")
        raw = head + program.read_all()
    assert head.startswith(b"HTTP/1.1 101")
    assert heard == [b"\x81\x83abcd\x01\x02\x03"], "what the program sends is passed as it is"
    fields = edgerig.fields_of(server.seen[0][0])
    assert fields[b"authorization"] == BEARER.encode()
    assert b"sec-websocket-extensions" not in fields
    assert not leaks(raw)
    stars = b"*" * len(RAW)
    assert unframe(raw[len(head) :]) == [
        (1, stars),
        (9, stars),
        (1, stars),
        (2, b"z" * 300),
        (8, b"\x03\xe8" + stars),
    ]
    assert record(session).status == 101


@pytest.mark.parametrize("data", [SWITCHING + b"\r\n", SWITCHING + b"Sec-WebSocket-Accept: x\r\n\r\n"])
def test_a_server_that_does_not_agree_to_a_websocket(session, server, data):
    server.answer = lambda _head, _body: lambda sock, file: (sock.sendall(data + RAW), file.read())
    with Program(session, server, HOST) as program:
        program.send(wants(server))
        found = program.read_all()
    assert found.startswith(b"HTTP/1.1 502")
    assert not leaks(found)


def test_a_websocket_is_no_way_for_a_second_request(session, server):
    heard = []
    server.answer = lambda _head, _body: lambda sock, file: (sock.sendall(ACCEPTED), heard.append(file.read()))
    with Program(session, server, HOST) as program:
        program.send(wants(server))
        program.read_until(b"\r\n\r\n")
        program.send(b"DELETE /all HTTP/1.1\r\n\r\n")
        program.read_all()
    edgerig.until(lambda: heard)
    assert heard == [b""]


@pytest.mark.parametrize("frame", [b"\xc1\x01x", b"\x81\x81abcdx", b"\x80\x01x", b"\x09\x01x", b"\x83\x01x"])
def test_a_frame_that_can_not_be_looked_into_ends_the_websocket(session, server, frame):
    server.answer = lambda _head, _body: (
        lambda sock, file: (sock.sendall(ACCEPTED), sock.sendall(frame + SECRET.encode()), file.read())
    )
    with Program(session, server, HOST) as program:
        program.send(wants(server))
        assert not leaks(program.read_all())


# --- servers that are not what they should be --------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [("good", ""), ("expired", "expired"), ("wrong name", "mismatch"), ("untrusted", "self"), ("nobody", "failed")],
)
def test_a_server_is_verified(opened, certificates, kind, words):
    made = {
        "good": lambda: certificates.leaf("good", "DNS:a.example"),
        "expired": lambda: certificates.leaf("expired", "DNS:a.example", days=-1),
        "wrong name": lambda: certificates.leaf("wrong", "DNS:b.example"),
        "untrusted": lambda: certificates.leaf("untrusted", "DNS:a.example", signed=False),
        "nobody": lambda: certificates.leaf("nobody", "DNS:a.example"),
    }[kind]()
    server = edgerig.Server(made)
    if kind == "nobody":
        server.close()
    try:
        session = opened(rule(HOST, server.port))
        answer = ask(session, server, HOST, get("/", at(server)))
        found = record(session)
        assert (answer.status, found.status) == ((200, 200) if kind == "good" else (502, 502))
        assert words in found.reason
        assert HOST in found.reason or kind == "good"
        assert len(server.seen) == (kind == "good"), "the secret is sent to nobody else"
    finally:
        server.close()


def test_a_bundle_without_certificates(edge, tmp_path):
    from stockade.netns.errors import LeaseFailed

    (tmp_path / "empty.pem").write_text("")
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(LeaseFailed) as caught:
            edge.proxy.open([rule(HOST, 443)], [], mask_queries=False, trust=str(path))
        assert caught.value.part == "edge"


def test_a_short_secret_is_an_error(edge, certificates):
    from stockade.netns.errors import LeaseFailed

    with pytest.raises(LeaseFailed, match="too short to be masked") as caught:
        edge.proxy.open([rule(HOST, 443)], ["xyz"], mask_queries=False, trust=certificates.bundle)
    assert "xyz" not in str(caught.value)


# --- sessions and their authorities ------------------------------------------------------------------------


def test_sessions_know_nothing_of_each_other(opened, server):
    one = opened(rule(HOST, server.port, headers=[("X-Key", "the first secret")]), secrets=["the first secret"])
    two = opened(rule(HOST, server.port, headers=[("X-Key", "the other secret")]), secrets=["the other secret"])
    assert b"*" * 16 in ask(one, server, HOST, get("/", at(server))).body
    assert b"*" * 16 in ask(two, server, HOST, get("/", at(server))).body
    assert [b"the first secret" in head for head, _body in server.seen] == [True, False]
    with pytest.raises(ssl.SSLCertVerificationError):
        Program(one, server, HOST, ca=two.ca)
    edgerig.until(lambda: len(one.requests()) == 2)
    assert "trust" in one.requests()[1].reason
    assert len(two.requests()) == 1


def verify(tmp_path, ca, leaf):
    (tmp_path / "ca").write_text(ca)
    (tmp_path / "leaf").write_text(leaf)
    command = ["openssl", "verify", "-CAfile", "ca", "-purpose", "sslserver", "leaf"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_the_authority_is_good_for_its_hosts_alone(python, tmp_path):
    program = (
        "import sys; sys.argv[0] = sys.argv[1]; sys.path.insert(0, sys.argv[1]);"
        "from stockade.netns.edge.ca import Authority; from cryptography.hazmat.primitives.serialization import Encoding;"
        "made = Authority(['a.example', 'w.example']);"
        "print('|'.join([made.pem, *(made.leaf(n).public_bytes(Encoding.PEM).decode() for n in sys.argv[2:])]))"
    )
    names = ["a.example", "x.w.example", "b.example", "aa.example", "example"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([python, "-B", "-c", program, root, *names], capture_output=True, text=True, check=True)
    ca, *leaves = done.stdout.split("|")
    found = [verify(tmp_path, ca, leaf) for leaf in leaves]
    assert [each.returncode == 0 for each in found] == [True, True, False, False, False]
    assert "permitted subtree violation" in found[2].stderr
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-text"], input=ca, capture_output=True, text=True, check=True
    ).stdout
    assert "CA:TRUE, pathlen:0" in text
    assert "X509v3 Name Constraints: critical" in text
    assert "IP:0.0.0.0/0.0.0.0" in text


def test_the_certificate_names_the_host(session, server):
    with Program(session, server, HOST) as program:
        told = program.sock.getpeercert()
    assert told["subjectAltName"] == (("DNS", HOST),)


def test_a_wildcard(opened, server):
    session = opened(rule("*.w.example", server.port))
    for host in ("one.w.example", "two.w.example"):
        assert ask(session, server, host, get("/", at(server, host))).status == 200


def test_a_closed_session_is_over(opened, server):
    session = opened(rule(HOST, server.port))
    program = Program(session, server, HOST)
    program.send(f"GET / HTTP/1.1\r\nHost: {at(server)}\r\n\r\n".encode())
    program.read_until(b"Authorization")
    session.close()
    assert program.sock.recv(65536) in (b"",) or program.read_all() is not None
    assert len(session.ended) == 1
    own, given = socket.socketpair()
    with own:
        assert session.take(given, b"", host=HOST, address="127.0.0.1", port=1, tls=True, began=0.0) is None
        assert own.recv(1) == b""
    program.sock.close()


# --- HTTP/2 ------------------------------------------------------------------------------------------------


@pytest.fixture
def h2(python, session, server, tmp_path):
    """Requests of a program that speaks HTTP/2, answered."""
    (tmp_path / "ca.pem").write_text(session.ca)

    def speak(*requests, port=None):
        with Forwarder(session, HOST, port or server.port) as way:
            command = [python, "-B", str(H2), "client", str(way.port), HOST, str(tmp_path / "ca.pem")]
            done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return speak


def head(server, path="/", method="GET", **other):
    named = {":method": method, ":scheme": "https", ":path": path, ":authority": at(server), **other}
    return [[name, value] for name, value in named.items() if value is not None]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, "200"),
        ({"path": "/%2e%2e/x"}, "403"),
        ({"path": "/a b"}, "403"),
        ({":authority": "b.example:443"}, "421"),
        ({":authority": None, "host": "b.example"}, "421"),
        ({"host": "b.example"}, None),
        ({"authorization": "mine", "x-a": "1"}, "200"),
        ({"method": "get"}, "400"),
        ({":scheme": "http"}, "200"),
        ({"x-line": "a\r\nauthorization: mine"}, "400"),
        ({"transfer-encoding": "chunked"}, None),
        ({"X-Upper": "1"}, None),
    ],
)
def test_requests_of_http2(h2, session, server, asked, status):
    (answer,) = h2({"headers": head(server, **asked)})
    assert answer["status"] in (status, None if status == "400" else status), "the library may refuse it itself"
    assert not leaks(json.dumps(answer).encode())
    assert len(server.seen) == (status == "200")
    if status == "200":
        assert server.seen[0][0].count(BEARER.encode()) == 1
        assert b"mine" not in server.seen[0][0]


def test_a_body_without_a_length_is_no_second_request(h2, session, server):
    body = f"GET /smuggled HTTP/1.1\r\nHost: {at(server)}\r\n\r\n"
    trailers = [["authorization", "mine"], ["x-t", "1"]]
    answers = h2(
        {"headers": head(server, method="POST"), "body": body, "trailers": trailers}, {"headers": head(server)}
    )
    assert [each["status"] for each in answers] == ["200", "200"]
    assert [found for _head, found in server.seen] == [body.encode(), b""]
    assert not [found for found, _body in server.seen if b"smuggled" in found or b"mine" in found]


@pytest.fixture
def h2_server(python, files):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [python, "-B", str(H2), "server", str(listening.fileno()), *files]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])
        yield listening.getsockname()[1]
        process.kill()
        process.wait()


def test_a_server_of_http2(h2, opened, session, h2_server, certificates, python, tmp_path, edge):
    own = opened(rule(HOST, h2_server))
    (tmp_path / "own.pem").write_text(own.ca)
    paths = ["/echo", "/split", "/trailers"]
    asked = [
        {
            "headers": [
                [":method", "POST"],
                [":scheme", "https"],
                [":path", path],
                [":authority", f"{HOST}:{h2_server}"],
                ["te", "trailers"],
            ],
            "body": "x" * 100,
        }
        for path in paths
    ]
    with Forwarder(own, HOST, h2_server) as way:
        command = [python, "-B", str(H2), "client", str(way.port), HOST, str(tmp_path / "own.pem")]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert not leaks(done.stdout.encode())
    told = json.loads(answers[0]["body"])
    assert told["authorization"] == hashlib.sha256(BEARER.encode()).hexdigest()
    assert (told["body"], told["te"], told["accept-encoding"]) == ("x" * 100, "trailers", "identity")
    assert answers[1]["body"] == "*" * len(BEARER)
    assert answers[2]["trailers"] == [["x-trailer", "*" * len(BEARER)]]
    assert all(["x-echo", "*" * len(BEARER)] in each["headers"] for each in answers)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl(session, server, tmp_path, version):
    (tmp_path / "ca.pem").write_text(session.ca)
    with Forwarder(session, HOST, server.port) as way:
        command = ["curl", "-sS", "-D", "-", version, "--cacert", "ca.pem", "--noproxy", "*"]
        command += [
            "--connect-to",
            f"{HOST}:{server.port}:127.0.0.1:{way.port}",
            "-T",
            "-",
            "-w",
            "%{http_version}",
        ]
        url = f"https://{HOST}:{server.port}/put?x=1"
        done = subprocess.run([*command, url], cwd=tmp_path, input=b"u" * 200_000, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"2" if version == "--http2" else b"1.1")
    ((found, body),) = server.seen
    assert found.startswith(b"PUT /put?x=1 HTTP/1.1")
    assert body == b"u" * 200_000
    assert not leaks(done.stdout)


# --- the process -------------------------------------------------------------------------------------------


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def listeners():
    """Inodes of the sockets of this network namespace that listen."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as file:
            found |= {row.split()[9] for row in file if row.split()[3] == "0A"}
    return found


def test_the_process_has_no_rights_and_shows_nothing(edge, session, server):
    assert ask(session, server, HOST, get("/", at(server))).status == 200
    pid = edge.process.pid
    told = status_of(pid)
    assert told["NoNewPrivs"] == "1"
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        assert not leaks(file.read())
    if os.geteuid() != 0:
        assert not os.access(f"/proc/{pid}/environ", os.R_OK), "it can't be dumped"
        return
    assert told["Uid"].split() == ["65534"] * 4
    assert told["Gid"].split() == ["65534"] * 4
    assert told["Groups"].split() == []
    assert int(told["CapEff"], 16) == int(told["CapPrm"], 16) == 0
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert file.read() == b""
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0, "it can't be dumped"
    listening = listeners()
    held = {each[8:-1] for each in edgerig.descriptors_of(pid) if each.startswith("socket:[")}
    assert held
    assert not held & listening
    opened = [
        each for each in edgerig.descriptors_of(pid) if each.startswith("/") and not each.startswith("/dev/null")
    ]
    assert [each for each in opened if "/edge/" not in each and "pytest" not in each] == []


def test_it_ends_with_the_link(python):
    made = Edge(python)
    assert made.proxy.alive()
    assert made.close() == 0
    assert not made.proxy.alive()


def test_it_says_so_when_it_is_gone(python, certificates):
    from stockade.netns.errors import LeaseFailed

    made = Edge(python)
    session = made.proxy.open([rule(HOST, 443)], [], mask_queries=False, trust=certificates.bundle)
    held = Program(session, 1, HOST, tls=True, data=b"\x16")
    made.process.kill()
    made.process.wait()
    edgerig.until(lambda: not made.proxy.alive())
    with pytest.raises(LeaseFailed) as caught:
        made.proxy.open([rule(HOST, 443)], [], mask_queries=False, trust=certificates.bundle)
    assert caught.value.part == "edge"
    assert held.sock.recv(1) == b"", "its connections are closed"
    edgerig.until(session.requests)
    assert "ended before" in session.requests()[0].reason
    held.sock.close()
    made.proxy.close()


def test_rubbish_hurts_one_connection_at_most(session, server, edge):
    rubbish = [
        b"\x16\x03\x01\xff\xff" + b"\1" * 80_000,
        b"\x16\x03\x01\x00\x00",
        os.urandom(2000),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 70_000,
    ]
    programs = [Program(session, server, HOST, data=each[:20_000]) for each in rubbish]
    assert ask(session, server, HOST, get("/", at(server))).status == 200
    for program in programs:
        program.sock.close()
    edgerig.until(lambda: len(session.ended) == len(rubbish) + 1)
    assert edge.proxy.alive()


def test_what_comes_to_nothing_is_recorded(session, server):
    with Program(session, server, HOST) as program:
        program.send(b"rubbish\r\n\r\n")
        assert program.read_all().startswith(b"HTTP/1.1 400")
    assert record(session).reason == "no request came that is valid HTTP"
    assert record(session).host == HOST


STALLS = """
import asyncio, socket, sys
sys.path.insert(0, sys.argv[1])
from stockade.netns.edge import ca, carrier, flows, heads, session
carrier.HANDSHAKE_SECONDS = 0.2
told = []
asked = {"rules": [{"host": "a.example", "scheme": "https", "methods": [], "paths": [], "headers": []}]}
asked |= {"secrets": [], "mask_queries": False}
made = session.Session(asked, None, lambda **fields: told.append(fields["reason"]))
async def one(data, tls):
    own, given = socket.socketpair()
    given.setblocking(False)
    visit = flows.Visit(made, 1, heads.Place("a.example", "192.0.2.1", 443, tls))
    counts = await carrier.carry(given, data, carrier.make_options(), visit)
    return counts, own.recv(1)
async def main():
    return [await one(data, tls) for data, tls in ((b"", True), (b"\\x16", True), (b"GET / HT", False))]
print(asyncio.run(main()), told)
"""


def test_a_connection_that_stalls_is_closed(python):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([python, "-B", "-c", STALLS, root], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ended = [((0, 0), b""), ((1, 0), b""), ((8, 0), b"")]
    assert done.stdout.startswith(f"{ended} ")
    assert "no request" in done.stdout


def test_who_does_not_read_holds_up_who_sends(session, server):
    """Also of a body nothing is kept but what is in flight."""
    sent, over = [0], threading.Event()

    def pour(sock, _file):
        sock.settimeout(0.5)
        try:
            sock.sendall(reply(b"")[:17] + b"\r\n")
            for _ in range(1000):
                sock.sendall(bytes(1 << 18))
                sent[0] += 1 << 18
        except TimeoutError:
            over.set()

    server.answer = lambda _head, _body: pour
    with Program(session, server, HOST) as program:
        program.send(get("/", at(server)))
        assert over.wait(edgerig.SECONDS)
    assert 0 < sent[0] < 64 << 20
    release = threading.Event()
    server.answer = lambda _head, _body: lambda _sock, _file: release.wait(edgerig.SECONDS)
    taken = 0
    with Program(session, server, HOST) as program:
        program.send(f"GET / HTTP/1.1\r\nHost: {at(server)}\r\n\r\n".encode())
        program.sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while taken < 64 << 20:  # requests that come before their turn
                program.send(bytes(1 << 16))
                taken += 1 << 16
    release.set()
    assert taken < 16 << 20


FAULT = """
import asyncio, socket, sys
sys.path.insert(0, sys.argv[1])
from stockade.netns.edge import ca, carrier, flows, heads, session
asked = {"rules": [{"host": "a.example", "scheme": "http", "methods": [], "paths": [], "headers": []}]}
asked |= {"secrets": [], "mask_queries": False}
made = session.Session(asked, None, lambda **fields: None)
got = []
async def serve(reader, writer):
    got.append(await reader.read(1000))
    writer.close()
async def one(port, broken):
    own, given = socket.socketpair()
    given.setblocking(False)
    visit = flows.Visit(made, 1, heads.Place("a.example", "127.0.0.1", port, False))
    head = f"GET / HTTP/1.1\\r\\nHost: a.example:{port}\\r\\n\\r\\n".encode()
    if broken:
        visit.requestheaders = None
    carried = asyncio.wait_for(carrier.carry(given, head, carrier.make_options(), visit), 20)
    await carried
    return own.recv(10)
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.rules = (made.rules[0].replace(host=made.rules[0].host.replace(low=port, high=port)),)
    for broken in (False, True):
        got.clear()
        print(await one(port, broken), b"".join(got)[:5])
asyncio.run(main())
"""


def test_a_fault_of_ours_lets_nothing_pass(python):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([python, "-B", "-c", FAULT, root], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'HTTP/1.1 5' b'GET /'\nb'' b''\n"


NO_ROOM = """
import asyncio, json, socket, sys
sys.path.insert(0, sys.argv[1])
from stockade.netns.edge.child import Server
async def main():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server(near)
    server._hear({"type": "open", "session": 3}, [])
    server._hear({"type": "take", "session": 3, "connection": 4}, [])
    await asyncio.sleep(0)
    server._write()
    print(json.dumps([json.loads(far.recv(9999)) for _ in range(2)]))
asyncio.run(main())
"""


def test_what_came_without_its_descriptor_is_answered(python):
    """The kernel drops one that there is no room for; nobody is to wait for it."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([python, "-B", "-c", NO_ROOM, root], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    failed, ended = json.loads(done.stdout)
    assert (failed["type"], failed["session"]) == ("failed", 3)
    assert "open files" in failed["cause"]
    assert ended == {"type": "ended", "session": 3, "connection": 4, "sent": 0, "received": 0}


CROWD = """
import sys
sys.path.insert(0, sys.argv[1])
from stockade.netns.edge import heads, session
asked = {"rules": [{"host": "a.example", "scheme": "http", "methods": [], "paths": [], "headers": []}]}
made = session.Session({**asked, "secrets": [], "mask_queries": False}, None, lambda **fields: None)
place = heads.Place("a.example", "192.0.2.1", 443, False)
many = [session.Pending(made, 1, place) for _ in range(40)]
print([each.cost(1 << 20) for each in many].count(True))
for each in many:
    each.tell()
    each.tell()
print(made.waiting, many[0].cost(1))
"""


def test_requests_that_wait_are_counted(python):
    """Their heads are kept until they are answered, which the server need not do."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([python, "-B", "-c", CROWD, root], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.returncode) == (["32", "0", "True"], 0), done.stderr


def test_hundreds_that_stall_do_not_hinder_one_that_does_not(opened, server):
    session = opened(rule(HOST, server.port))
    programs = [Program(session, server, HOST, data=b"\x16") for _ in range(500)]
    assert ask(session, server, HOST, get("/", at(server))).status == 200
    for program in programs[:20]:
        program.sock.close()
    more = [Program(session, server, HOST, data=b"\x16") for _ in range(40)]
    edgerig.until(lambda: any("more than 512" in each.reason for each in session.requests()))
    for program in programs + more:
        program.sock.close()
    edgerig.until(lambda: len(session.ended) == 541)
    assert ask(session, server, HOST, get("/", at(server))).status == 200


def test_openssl_is_there():
    assert shutil.which("openssl")
    assert shutil.which("curl")
    assert BASIC.startswith("Basic ")
