"""The relay with real sockets: what passes arrives as it was sent, what is refused hears it, and nobody holds up others."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import resource
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading

import pytest
from relayrig import SECONDS, Running, all_of, relayed
from test_namecheck import AGAIN, FIRST, NORMAL, OTHER, SECOND, edge, head
from test_sniff import client_hello

from stockade.netns import relay as module
from stockade.netns.flowtable import PATIENCE, open_in_all
from stockade.netns.refusal import ALERT, never_dialled

GET = head("Host: a.example")
OTHER_GET = head("Host: b.example")
FOREIGN_GET = head("Host: c.example")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"


def echo(connection):
    while data := connection.recv(1 << 18):
        connection.sendall(data)


def answering(connection):
    """One answer for each empty line."""
    while data := connection.recv(1 << 16):
        connection.sendall(ANSWER * data.count(b"\r\n\r\n"))


def silent(connection):
    all_of(connection)


def received(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        assert piece, f"it ended after {found!r}"
        found += piece
    return found


def is_reset(connection):
    """Whether the other end is gone with an error and not a word."""
    try:
        heard = connection.recv(100)
    except ConnectionResetError:
        return True
    raise AssertionError(f"no reset, but {heard!r}")


def is_reset_at_once(running, data):
    """The same of a connection that may be gone before it was made."""
    try:
        with running.connect(data) as client:
            return is_reset(client)
    except ConnectionError:
        return True


# --- what passes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [FIRST, client_hello("b.example", alpn=["h2"]), GET], ids=["made", "openssl", "http"]
)
def test_what_was_read_arrives_and_all_that_follows(data):
    with relayed(echo) as running, running.connect() as client:
        for at in range(0, len(data), 50):
            client.sendall(data[at : at + 50])
        assert received(client, len(data)) == data
        client.sendall(GET)  # after its hello the echo is no ServerHello: everything passes
        assert received(client, len(GET)) == GET
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == b""
        seen = running.event()
        assert (seen.name, seen.address, seen.port) == (
            "b.example" if b"b.example" in data else "a.example",
            *running.target,
        )
        assert (seen.via, seen.allowed, seen.reason) == ("http" if data == GET else "tls", True, "")
        assert (seen.sent, seen.received) == (len(data + GET), len(data + GET))


def test_a_free_destination_is_dialled_without_a_word_of_the_client():
    def speaks_first(connection):
        connection.sendall(b"220 ready\r\n")
        assert connection.recv(100) == b"QUIT\r\n"
        connection.sendall(b"221 bye\r\n")

    with relayed(speaks_first) as running:
        running.free = {running.target}
        with running.connect() as client:
            assert received(client, 11) == b"220 ready\r\n"
            client.sendall(b"QUIT\r\n")
            assert all_of(client) == b"221 bye\r\n"
        seen = running.event()
        assert (seen.name, seen.via, seen.allowed, seen.sent, seen.received) == (None, "tcp", True, 6, 20)


def test_a_rule_by_address_lets_any_words_pass():
    with relayed(echo, rules=("127.0.0.0/8",)) as running, running.connect(b"\0\1\2") as client:
        assert received(client, 3) == b"\0\1\2"


@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_large_transfers_are_complete(direction):
    block = os.urandom(1 << 20)
    blocks = 24
    expected = hashlib.sha256(block * blocks).hexdigest()
    sums = {}

    def send(connection):
        for _ in range(blocks):
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)

    def take(connection, name):
        digest = hashlib.sha256()
        while piece := connection.recv(1 << 18):
            digest.update(piece)
        sums[name] = digest.hexdigest()

    def run(connection, name, sends, takes):
        sender = threading.Thread(target=send, args=(connection,))
        if sends:
            sender.start()
        else:
            connection.shutdown(socket.SHUT_WR)
        if takes:
            take(connection, name)
        if sends:
            sender.join()

    up, down = direction != "down", direction != "up"
    with relayed(lambda connection: run(connection, "server", down, up)) as running:
        running.free = {running.target}
        with running.connect() as client:
            run(client, "client", up, down)
            running.event()
        running.until(lambda: len(sums) == up + down)
    assert sums == {name: expected for name, wanted in (("server", up), ("client", down)) if wanted}


@pytest.mark.parametrize("chunked", [True, False])
def test_a_large_request_is_complete_though_it_is_read(chunked):
    block = os.urandom(300_001)
    count = 40
    coding = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(block) * count}"
    start = head("Host: a.example", coding, first="POST / HTTP/1.1")
    piece = b"%x;x=y\r\n%s\r\n" % (len(block), block) if chunked else block
    sent = start + piece * count + (b"0\r\n\r\n" if chunked else b"") + OTHER_GET

    def digests(connection):
        connection.sendall(hashlib.sha256(all_of(connection)).digest() + block * count)

    with relayed(digests) as running, running.connect(sent) as client:
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == hashlib.sha256(sent).digest() + block * count
        assert [event.name for event in (running.event(1), running.event(2))] == ["b.example", "a.example"]


@pytest.mark.parametrize("data", [FIRST, GET])
def test_a_client_that_sends_byte_by_byte(data):
    with relayed(echo) as running, running.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            client.send(data[at : at + 1])
        assert received(client, len(data)) == data


def test_a_sink_that_stalls_stops_its_source_and_nobody_else():
    go_on = threading.Event()

    def stalls(connection):
        if connection.recv(6) == b"stall\n":
            assert go_on.wait(SECONDS)
            connection.sendall(b"%d" % len(all_of(connection)))
        else:
            connection.sendall(b"here")

    with relayed(stalls) as running:
        running.free = {running.target}
        with running.connect(b"stall\n") as stalled, running.connect(b"hello\n") as honest:
            stalled.settimeout(0.0)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 1 << 28:
                    ready = select.poll()
                    ready.register(stalled, select.POLLOUT)
                    if not ready.poll(300):
                        break
                    sent += stalled.send(bytes(1 << 20))
            assert sent < 1 << 28, "everything was taken though nobody read it"
            assert all_of(honest) == b"here"
            go_on.set()
            stalled.settimeout(SECONDS)
            stalled.shutdown(socket.SHUT_WR)
            assert all_of(stalled) == b"%d" % sent


# --- ends --------------------------------------------------------------------------------------------------


def test_the_end_of_one_way_is_not_the_end_of_the_other():
    def waits_for_the_end(connection):
        connection.sendall(b"%d" % len(all_of(connection)))

    def ends_first(connection):
        connection.shutdown(socket.SHUT_WR)
        heard.append(all_of(connection))

    heard = []
    with relayed(waits_for_the_end) as running, running.connect(GET + GET) as client:
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == b"%d" % len(GET + GET)
    with relayed(
        lambda connection: (connection.shutdown(socket.SHUT_WR), heard.append(all_of(connection)))
    ) as running:
        running.free = {running.target}
        with running.connect(b"first") as client:
            assert all_of(client) == b""
            client.sendall(b"second")
        running.event()
        running.until(lambda: heard)
        assert heard == [b"firstsecond"]


def test_a_reset_is_passed_on():
    gone = []

    def resets(connection):
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def is_told(connection):
        connection.sendall(b"x")
        received(connection, 5)
        gone.append(is_reset(connection))

    with relayed(resets) as running:
        running.free = {running.target}
        with running.connect(b"x") as client:
            assert is_reset(client)
    with relayed(is_told) as running:
        running.free = {running.target}
        client = running.connect(b"hello")
        assert client.recv(1) == b"x"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        running.until(lambda: gone)
        assert gone == [True]
        assert running.event().allowed


def test_what_a_server_said_before_it_went_away_is_heard():
    def has_enough(connection):
        connection.recv(1)
        connection.sendall(ANSWER)  # and is closed with much that was not read: a reset

    with relayed(has_enough) as running:
        running.free = {running.target}
        for _ in range(20):
            with running.connect() as client:
                with contextlib.suppress(ConnectionError):
                    for _ in range(20):
                        client.sendall(bytes(1 << 16))
                assert received(client, len(ANSWER)) == ANSWER


def test_it_is_heard_too_where_writing_to_it_fails_first():
    with socket.socket() as listening, relayed(echo) as running:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        running.target = listening.getsockname()
        running.free = {running.target}
        client = running.connect()
        server, _peer = listening.accept()
        running.until(lambda: [flow.stage for flow in running.relay._table.flows] == ["carrying"])
        (flow,) = running.relay._table.flows
        running.stop_turning()
        server.sendall(ANSWER)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        client.sendall(b"more")
        running.relay._serve(flow, flow.client.fileno(), select.EPOLLIN)
        with client:
            assert received(client, len(ANSWER)) == ANSWER
            assert is_reset(client)


def test_what_has_hung_up_and_waits_for_others_costs_no_turn():
    go_on = threading.Event()
    with relayed(lambda connection: go_on.wait(SECONDS)) as running:
        running.free = {running.target}
        client = running.connect()
        client.settimeout(0.0)
        filled = select.poll()
        filled.register(client, select.POLLOUT)
        while filled.poll(300):
            client.send(bytes(1 << 20))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        busy = select.poll()
        busy.register(running.relay.fds()[0][0], select.POLLIN)
        running.until(lambda: -1 in next(iter(running.relay._table.flows)).masks.values())
        running.until(lambda: not busy.poll(0))
        go_on.set()
        assert running.event().allowed


def test_a_server_that_is_not_there():
    with relayed(echo) as running:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            running.target = unused.getsockname()
            assert is_reset_at_once(running, GET)
        seen = running.event()
        assert (seen.allowed, seen.reason, seen.name) == (
            True,
            "could not connect: Connection refused",
            "a.example",
        )


def test_a_connection_that_idles_is_not_ended_and_costs_no_turn():
    with relayed(echo) as running, running.connect(GET) as client:
        received(client, len(GET))
        assert running.relay.timeout(running.now()) is None
        running.pass_time(10_000)
        client.sendall(GET)
        assert received(client, len(GET)) == GET


def test_the_end_of_the_lease_records_what_is_open():
    with relayed(echo) as running, running.connect(GET) as client, running.connect(b"GET /") as undecided:
        received(client, len(GET))
        running.until(lambda: len(running.relay._table) == 2)
        running.until(lambda: running.relay._table.count("reading") == 1)
        running.stop()
        running.stop = lambda: None
        seen = {event.allowed: event for event in running.events}
        assert (seen[True].name, seen[True].sent) == ("a.example", len(GET))
        assert "when the run ended" in seen[False].reason
        assert all_of(client) == b""
        assert running.relay.fds() == []
        running.relay.close()
        del undecided


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "via", "reason"),
    [
        (client_hello("c.example"), "tls", "no rule allows c.example:"),
        (client_hello(None), "tls", "no server name"),
        (client_hello("unasked.example"), "tls", "unasked.example was not resolved to"),
        (b"\x16\3\1\0\0", "tls", "a malformed ClientHello"),
        (FOREIGN_GET, "http", "no rule allows c.example:"),
        (head("Host: a.example", "Host: c.example"), "http", "two Host headers"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http", "HTTP/2 without TLS"),
        (b"SSH-2.0-x\r\n", "tcp", "neither TLS nor HTTP/1"),
        (b"\x80\x2e\1\0\2", "tcp", "neither TLS nor HTTP/1"),
    ],
)
def test_what_is_refused_hears_it_and_reaches_nobody(data, via, reason):
    with relayed(echo) as running:
        if via == "tcp":
            assert is_reset_at_once(running, data)
        else:
            with running.connect(data) as client:
                answer = all_of(client)
                assert answer == ALERT if via == "tls" else answer.startswith(b"HTTP/1.1 403 ")
                assert via == "tls" or reason.encode() in answer
        seen = running.event()
        assert (seen.via, seen.allowed, seen.sent, seen.received) == (via, False, 0, 0)
        assert reason in seen.reason
        with running.connect(GET) as control:
            assert received(control, len(GET)) == GET
        assert running.server.accepted == 1


@pytest.mark.parametrize("later", [b"", b"x" * 500_000])
def test_no_reset_overtakes_the_answer(later):
    with relayed(echo) as running, running.connect(FOREIGN_GET) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(later)
        assert b" 403 " in all_of(client)


@pytest.mark.parametrize("data", [b"", b"GET /", FIRST[:20], b"\x16"])
def test_who_does_not_say_whom_it_is_for_is_refused_in_time(data):
    with relayed(echo) as running, running.connect(data) as client:
        running.until(lambda: running.relay._table.count("reading"))
        running.pass_time(PATIENCE["reading"] - 0.5)
        with running.connect(GET) as control:
            assert received(control, len(GET)) == GET
        assert not [event for event in running.events if not event.allowed]
        running.pass_time(1)
        if data == FIRST[:20]:
            assert all_of(client) == ALERT
        else:
            assert is_reset(client)
        running.until(lambda: any("within 5 s" in event.reason for event in running.events))


def test_who_leaves_before_is_recorded():
    with relayed(echo) as running:
        running.connect(FIRST[:20]).close()
        seen = running.event()
        assert (seen.via, seen.allowed) == ("tls", False)
        assert "ended before" in seen.reason
        assert running.server.accepted == 0


def test_the_relay_itself_is_no_destination():
    running = Running()
    try:
        assert is_reset_at_once(running, GET)
        assert "the relay itself" in running.event().reason
    finally:
        running.stop()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.2.2", "169.254.169.254", "168.63.129.16", "100.100.100.200",
        "224.0.0.1", "255.255.255.255", "::1", "::", "::ffff:127.0.0.1", "::7f00:1", "fe80::1", "ff02::1",
        "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fe80::1%lo", "", "a.example", "127.1",
    ],
)  # fmt: skip
def test_addresses_that_are_never_dialled(address):
    assert never_dialled(address)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0.0)
        place = (address, listening.getsockname()[1])
        running = Running(place, kind="open", free={place})
        try:
            assert is_reset_at_once(running, GET)
            assert "is never dialled" in running.event().reason
        finally:
            running.stop()
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.3.1", "100.64.0.1", "2001:db8::1", "fd00::1"])
def test_other_addresses_are_dialled(address):
    assert not never_dialled(address)
    assert ipaddress.ip_address(address)


# --- HTTP, request by request ------------------------------------------------------------------------------


def test_a_later_request_may_give_another_name_that_is_allowed():
    with relayed(answering) as running, running.connect(GET) as client:
        assert received(client, len(ANSWER)) == ANSWER
        client.sendall(OTHER_GET + GET)
        assert received(client, 2 * len(ANSWER)) == ANSWER * 2
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == b""
        assert running.again == [("b.example", *running.target)]
        assert [(event.name, event.allowed) for event in (running.event(1), running.event(2))] == [
            ("b.example", True),
            ("a.example", True),
        ]


def test_no_name_on_a_connection_stays_off_the_record():
    with relayed(answering, rules=["*.example"]) as running, running.connect(GET) as client:
        client.sendall(b"".join(head(f"Host: n{number}.example") for number in range(module.MOST_NAMES + 1)))
        text = all_of(client)
        assert text.count(b" 200 ") == 1 + module.MOST_NAMES
        assert b"too many names on one connection" in text
        running.until(lambda: any(event.name == "a.example" for event in running.events))
        passed = [event.name for event in running.events if event.allowed]
        assert sorted(passed) == sorted(
            ["a.example", *(f"n{number}.example" for number in range(module.MOST_NAMES))]
        )


@pytest.mark.parametrize("later", [b"", GET, b"x" * 500_000])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_later_request_with_a_foreign_name_is_refused_after_the_answers_before_it(at_once, later):
    got = []

    def keeps(connection):
        while data := connection.recv(1 << 16):
            got.append(data)
            connection.sendall(ANSWER * data.count(b"\r\n\r\n"))

    with relayed(keeps) as running, running.connect(GET + (FOREIGN_GET if at_once else b"")) as client:
        assert received(client, len(ANSWER)) == ANSWER
        with contextlib.suppress(ConnectionError):
            client.sendall((b"" if at_once else FOREIGN_GET) + later)
        answer = all_of(client)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"no rule allows c.example" in answer
        assert b"".join(got) == GET
        client.close()
        refused, passed = running.event(1), running.event(2)
        assert (refused.name, refused.allowed, refused.via) == ("c.example", False, "http")
        assert (passed.name, passed.allowed, passed.sent, passed.received) == (
            "a.example",
            True,
            len(GET),
            len(ANSWER),
        )


def test_a_server_that_keeps_the_connection_does_not_keep_the_refusal():
    over = threading.Event()

    def keeps(connection):
        connection.sendall(ANSWER)
        assert over.wait(SECONDS)

    with relayed(keeps) as running, running.connect(GET + FOREIGN_GET) as client:
        assert received(client, len(ANSWER)) == ANSWER
        running.until(lambda: running.relay._table.count("parting"))
        running.pass_time(PATIENCE["parting"] + 1)
        assert b" 403 " in all_of(client)
        over.set()


def test_a_malformed_request_later_is_a_reset():
    with relayed(answering) as running, running.connect(GET) as client:
        received(client, len(ANSWER))
        client.sendall(b"GET / HTTP/1.1\nHost: a.example\n\n")
        assert is_reset(client)
        refused = running.event()
        assert (refused.name, refused.allowed) == ("a.example", False)
        assert "CR LF" in refused.reason


@pytest.mark.parametrize("granted", [True, False])
def test_another_protocol_after_the_server_has_agreed(granted):
    asking = head("Host: a.example", "Connection: Upgrade", "Upgrade: websocket")
    frame = b"\x81\5hello"
    status = (
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" if granted else b"HTTP/1.1 400 no\r\nContent-Length: 0\r\n\r\n"
    )
    heard = []

    def agrees(connection):
        assert received(connection, len(asking)) == asking
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(SECONDS)
        connection.sendall(status)
        heard.append(all_of(connection))

    with relayed(agrees) as running, running.connect(asking + frame) as client:
        client.shutdown(socket.SHUT_WR)
        if granted:
            assert all_of(client) == status
            running.until(lambda: heard)
            assert heard == [frame]
        else:
            with contextlib.suppress(ConnectionResetError):
                all_of(client)
            running.until(lambda: heard or running.events)
            assert frame not in b"".join(heard)


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "passes"), [(SECOND, True), (OTHER, False)])
def test_a_second_hello_gives_the_same_name(second, passes):
    heard = []

    def asks_again(connection):
        heard.append(received(connection, len(FIRST)))
        connection.sendall(AGAIN)
        with contextlib.suppress(ConnectionError, AssertionError):
            heard.append(received(connection, len(second)))
            connection.sendall(NORMAL)
            heard.append(connection.recv(100))

    with relayed(asks_again) as running, running.connect(FIRST) as client:
        assert received(client, len(AGAIN)) == AGAIN
        client.sendall(second)
        if passes:
            assert received(client, len(NORMAL)) == NORMAL
            client.sendall(b"sealed")
            running.until(lambda: len(heard) == 3)
            assert heard == [FIRST, SECOND, b"sealed"]
        else:
            assert is_reset(client)
            assert heard == [FIRST]
            assert running.event().reason == "a second ClientHello names b.example"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    place = tmp_path_factory.mktemp("certificate")
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a.example"]
    argv += ["-addext", "subjectAltName=DNS:a.example", "-keyout", place / "key.pem", "-out", place / "cert.pem"]
    subprocess.run(argv, check=True, capture_output=True, env={"PATH": TOOLS})
    return place


def tls_server(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def serve(connection):
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1 << 16)
            wrapped.sendall(ANSWER)

    return serve


def curl(running, url, *arguments):
    host = url.split("/")[2]
    to = f"{host}:{80 if url.startswith('http:') else 443}:127.0.0.1:{running.place[1]}"
    argv = [shutil.which("curl", path=TOOLS), "-sS", "-k", "--max-time", "20", "--connect-to", to, *arguments, url]
    return subprocess.run(argv, capture_output=True, text=True, env={"PATH": TOOLS})


def test_curl_passes_and_is_refused(certificate):
    with relayed(tls_server(certificate)) as running:
        assert curl(running, "https://a.example/").stdout == "ok"
        refused = curl(running, "https://c.example/")
        assert refused.returncode == 35
        assert "unrecognized name" in refused.stderr
    with relayed(answering) as running:
        assert curl(running, "http://a.example/").stdout == "ok"
        assert curl(running, "http://a.example/", "-d", "@-").stdout == "ok"
        refused = curl(running, "http://c.example/", "-w", "%{http_code}")
        assert refused.stdout.startswith("stockade refused this request: no rule allows c.example:")
        assert refused.stdout.endswith("\n403")


@pytest.mark.parametrize("option", ["-tls1_2", "-tls1_3"])
def test_openssl_passes_and_is_refused(certificate, option):
    argv = [shutil.which("openssl", path=TOOLS), "s_client", "-quiet", option]
    with relayed(tls_server(certificate)) as running:
        place = ["-connect", f"127.0.0.1:{running.place[1]}"]
        for name, passes in (("a.example", True), ("c.example", False)):
            done = subprocess.run(
                [*argv, *place, "-servername", name],
                input=GET,
                capture_output=True,
                timeout=SECONDS,
                env={"PATH": TOOLS},
            )
            assert (b"200 OK" in done.stdout) == passes
            assert (b"unrecognized name" in done.stderr) != passes


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_python_passes_and_is_refused(certificate, version):
    context = ssl.create_default_context(cafile=certificate / "cert.pem")
    context.minimum_version = context.maximum_version = version
    with relayed(tls_server(certificate)) as running:
        with context.wrap_socket(running.connect(), server_hostname="a.example") as client:
            client.sendall(GET)
            assert received(client, len(ANSWER)) == ANSWER
        with running.connect() as plain, pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            context.wrap_socket(plain, server_hostname="c.example", do_handshake_on_connect=True)
    with relayed(answering) as running:
        import http.client

        connection = http.client.HTTPConnection(*running.place, timeout=SECONDS)
        for host, status in (("a.example", 200), ("b.example", 200), ("c.example", 403)):
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()


def test_openssl_asks_for_a_second_hello_and_it_passes(certificate):
    """A server whose group the client gave no share for."""
    openssl = shutil.which("openssl", path=TOOLS)
    serving = [
        openssl,
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-tls1_3",
        "-groups",
        "P-521",
        "-naccept",
        "1",
        "-www",
    ]
    serving += ["-cert", certificate / "cert.pem", "-key", certificate / "key.pem"]
    asking = [openssl, "s_client", "-msg", "-ign_eof", "-groups", "X25519:P-521", "-servername", "a.example"]
    quiet = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": {"PATH": TOOLS},
    }
    with subprocess.Popen(serving, **quiet) as server, relayed(echo) as running:
        try:
            line = b""
            while not line.startswith(b"ACCEPT "):
                line = server.stdout.readline()
                assert line, "the server did not start"
            running.target = ("127.0.0.1", int(line.rpartition(b":")[2]))
            asking += ["-connect", f"127.0.0.1:{running.place[1]}"]
            done = subprocess.run(
                asking, input=b"GET / HTTP/1.0\r\n\r\n", capture_output=True, timeout=SECONDS, env={"PATH": TOOLS}
            )
            assert done.stdout.count(b", ClientHello") == 2
            assert b"HTTP/1.0 200 ok" in done.stdout
        finally:
            server.kill()


def change_the_name_in_the_second_hello(place):
    """What a client of its own making could do: the bytes that a server gets are the same."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with socket.create_connection(place, timeout=SECONDS) as connection, contextlib.suppress(ConnectionError):
        for name in (b"a.example", b"b.example"):
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            hello = outgoing.read()
            assert b"a.example" in hello
            connection.sendall(hello.replace(b"a.example", name))
            incoming.write(connection.recv(1 << 16))


def test_a_real_server_believes_the_second_hello_and_gets_none_with_another_name(certificate):
    names = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.set_ecdh_curve("secp521r1")
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    with relayed(lambda connection: context.wrap_socket(connection, server_side=True)) as running:
        change_the_name_in_the_second_hello(running.target)
        running.until(lambda: "b.example" in names)
        names.clear()
        change_the_name_in_the_second_hello(running.place)
        assert running.event().reason == "a second ClientHello names b.example"
        running.server.close()
        assert "b.example" not in names


# --- the edge ----------------------------------------------------------------------------------------------


def test_what_is_to_be_changed_is_handed_on():
    with relayed(echo, edges=[edge("e.example:*")]) as running:
        hello = client_hello("e.example")
        with running.connect(hello) as client:
            running.until(lambda: running.handed)
            ((taken, data, decision, *place),) = running.handed
            assert (data, decision.edge, tuple(place)) == (hello, 0, running.target)
            taken.setblocking(True)
            taken.sendall(b"mine now")
            assert received(client, 8) == b"mine now"
        seen = running.event()
        assert (seen.name, seen.allowed, seen.via) == ("e.example", True, "tls")
        assert running.server.accepted == 0


def test_without_an_edge_nothing_is_changed():
    with relayed(echo, edges=[edge("e.example:*")], transform=None) as running:
        with running.connect(client_hello("e.example")) as client:
            assert all_of(client) == ALERT
        assert "there is no edge" in running.event().reason
        assert running.server.accepted == 0


def test_an_edge_that_fails_is_a_reset():
    def fails(*_arguments):
        raise BrokenPipeError(32, "gone")

    with relayed(echo, edges=[edge("e.example:*")], transform=fails) as running:
        assert is_reset_at_once(running, client_hello("e.example"))
        seen = running.event()
        assert (seen.allowed, seen.reason) == (False, "the edge could not take it: Broken pipe")


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.fixture
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors")
def test_five_hundred_that_stall_do_not_keep_an_honest_one():
    with relayed(echo) as running, contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(running.connect(b"GET /")) for _ in range(500)]
        with running.connect(GET) as honest:
            assert received(honest, len(GET)) == GET
            running.event(500 - module.MOST_UNDECIDED)
        assert all(
            "too many connections" in event.reason for event in running.events[: 500 - module.MOST_UNDECIDED]
        )
        assert is_reset(stalled[0])
        assert running.relay._table.count("reading") <= module.MOST_UNDECIDED
        assert running.server.accepted == 1


@pytest.mark.usefixtures("descriptors")
def test_no_more_than_the_bound_are_open_and_the_others_wait():
    with relayed(echo) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running.connect(GET)) for _ in range(module.MOST_OPEN + 3)]
        for client in clients[: module.MOST_OPEN]:
            assert received(client, len(GET)) == GET
        assert len(running.relay._table) == module.MOST_OPEN
        waiting = select.poll()
        for client in clients[module.MOST_OPEN :]:
            waiting.register(client, select.POLLIN)
        assert not waiting.poll(200)
        for client in clients[:3]:
            client.close()
        for client in clients[module.MOST_OPEN :]:
            assert received(client, len(GET)) == GET


def leaves_while_it_is_read(client):
    client.close()


def is_refused(client):
    client.sendall(FOREIGN_GET)
    assert b" 403 " in all_of(client)
    client.close()


def is_handed_on(client):
    client.sendall(client_hello("e.example"))


def passes(client):
    client.sendall(GET)
    assert received(client, len(GET)) == GET
    client.close()


@pytest.mark.parametrize("goes", [leaves_while_it_is_read, is_refused, is_handed_on, passes])
def test_who_goes_makes_room_for_the_next(goes):
    with relayed(echo, edges=[edge("e.example:*")]) as running:
        running.relay._most = 1
        with running.connect() as first, running.connect(GET) as second:
            running.until(lambda: len(running.relay._table) == 1)
            goes(first)
            assert received(second, len(GET)) == GET


EMPTY_HANDED = """
import os, resource, sys
sys.path.insert(0, {here!r})
from relayrig import *
from test_relay import GET, echo, received
with relayed(echo, still=True) as running:
    assert running.relay._most == 512
    first = running.connect(GET)
    assert received(first, len(GET)) == GET
    waiting = [socket.socket() for _ in range(3)]
    kept = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 40, 4096))
    try:
        while True:
            kept.append(os.dup(0))
    except OSError:
        pass
    for each in waiting:
        each.settimeout(SECONDS)
        each.connect(running.place)
        each.sendall(GET)
    running.until(lambda: running.relay._rests_until is not None)
    first.sendall(GET)
    assert received(first, len(GET)) == GET
    for fd in kept:
        os.close(fd)
    running.pass_time(2)
    for each in waiting:
        assert received(each, len(GET)) == GET
        each.close()
    first.close()
print("done")
"""


def test_no_descriptor_left_is_waited_out():
    code = EMPTY_HANDED.format(here=os.path.dirname(os.path.abspath(__file__)))
    setup = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(7)[1]))\n"
    done = subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr


def test_one_relay_does_not_take_what_others_of_the_process_need():
    with relayed(echo) as greedy, relayed(echo) as modest, contextlib.ExitStack() as stack:
        for each in (greedy, modest):
            each.relay._most_in_all = 20
        many = [stack.enter_context(greedy.connect(GET)) for _ in range(22)]
        for client in many[:20]:
            assert received(client, len(GET)) == GET
        few = [stack.enter_context(modest.connect(GET)) for _ in range(module.SURE + 1)]
        for client in few[: module.SURE]:
            assert received(client, len(GET)) == GET
        assert (len(greedy.relay._table), len(modest.relay._table)) == (20, module.SURE)
        for client in many[:20]:
            client.close()
        greedy.until(lambda: len(greedy.relay._table) <= 2)
        for each in (greedy, modest):
            each.pass_time(module.REST)
        for client in (*many[20:], few[-1]):
            assert received(client, len(GET)) == GET
    assert open_in_all() == 0


@pytest.mark.parametrize(
    ("descriptors", "most"),
    [
        (1, (1, 1)),
        (256, (64, 64)),
        (1024, (256, 256)),
        (2048, (512, 512)),
        (1 << 20, (512, 1 << 18)),
        (resource.RLIM_INFINITY, (512, float("inf"))),
    ],
)
def test_few_descriptors_mean_few_connections(descriptors, most):
    assert module.most_open(descriptors) == most


def test_what_was_ready_for_a_connection_that_is_gone_is_not_told_to_the_next():
    """A descriptor's number is used again at once, maybe before the rest of what poll said is looked at."""
    with relayed(echo) as running, running.connect(b"GET /") as client:
        running.until(lambda: running.relay._table.count("reading") == 1)
        running.stop_turning()
        (old,) = running.relay._table.flows
        fd, new, served = old.client.fileno(), object(), []

        class Both:
            closed = False

            def poll(self, *_bounds):
                return [(fd, select.EPOLLIN), (fd, select.EPOLLIN)]

        def serve(flow, number, _events):
            served.append((flow, number))
            running.relay._table._ends[fd] = new

        kept = running.relay._poll
        running.relay._poll, running.relay._serve = Both(), serve
        running.relay.handle(-1, select.POLLIN)
        running.relay._poll, running.relay._table._ends[fd] = kept, old
        assert served == [(old, fd)]
        assert client.fileno() >= 0


def floods(connection):
    all_of_it = bytes(1 << 20)
    while True:
        connection.sendall(all_of_it)


@pytest.mark.parametrize("flags", [0, socket.MSG_NOSIGNAL])
def test_a_client_that_goes_does_not_signal_the_process(flags, monkeypatch):
    """Whoever uses us may have SIGPIPE end the process, as programs for the command line do."""
    heard = []
    monkeypatch.setattr(socket, "MSG_NOSIGNAL", flags)
    kept = signal.signal(signal.SIGPIPE, lambda *_about: heard.append(1))
    try:
        with relayed(floods) as running:
            for count in range(1, 4):
                client = running.connect(GET)
                assert client.recv(1000)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                running.event(count)
    finally:
        signal.signal(signal.SIGPIPE, kept)
    assert bool(heard) == (flags == 0)
