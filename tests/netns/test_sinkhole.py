"""The recorder: alone on loopback with a clock of ours, then behind a redirect in a namespace with nothing but ``lo``."""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time

import pytest

from stockade.netns import sinkhole as module
from stockade.netns.sinkhole import Sinkhole, parse_sockaddr, plain_address, told_destination

PATIENCE = 60
TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"
HEAD = b"GET /path HTTP/1.1\r\nHost: api.example.com\r\n\r\n"


class Driven:
    """A sinkhole, its events, and a clock that runs by itself and can be set forward."""

    def __init__(self, tcp4=None, tcp6=None, udp4=None, udp6=None, **options):
        self.events = []
        self.ahead = 0.0
        self.asked = []
        self.table = {}
        options = {"name_of": {"198.18.0.5": "named.example"}.get, "udp_destination": self.find} | options
        self.sink = Sinkhole(tcp4, tcp6, udp4, udp6, record=self.events.append, clock=self.now, **options)

    def now(self):
        return time.monotonic() + self.ahead

    def find(self, family, port):
        self.asked.append((family, port))
        return self.table.get((family, port))

    def turn(self, milliseconds=0):
        """One round of a poll loop; the number of descriptors that were ready."""
        poll = select.poll()
        for fd, events in self.sink.fds():
            poll.register(fd, events)
        ready = poll.poll(milliseconds)
        for fd, events in ready:
            self.sink.handle(fd, events)
        self.sink.tick(self.now())
        return len(ready)

    def settle(self):
        while self.turn():
            pass
        self.ahead += module.PLACE_AFTER
        self.turn()

    def serve(self, done):
        """Until ``done()``; fails rather than wait for ever."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"still waiting, after {self.events}"
            self.turn(20)

    def silence(self):
        self.ahead += 1.01
        self.settle()


@pytest.fixture
def loopback():
    """Makes a Driven on 127.0.0.1; ``connect`` and ``send_to`` are its clients."""
    made = Loopback()
    yield made
    made.close()


class Loopback:
    def __init__(self):
        self.sockets = []
        self.driven = None

    def start(self, **options):
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        self.sockets += [tcp, udp]
        for sock in (tcp, udp):
            sock.bind(("127.0.0.1", 0))
        tcp.listen(512)
        self.tcp, self.udp = tcp.getsockname(), udp.getsockname()
        self.driven = Driven(tcp, None, udp, None, **options)
        return self.driven

    def connect(self, data=b""):
        client = socket.create_connection(self.tcp)
        self.sockets.append(client)
        client.setblocking(False)
        if data:
            client.send(data)
        return client

    def send_to(self, data):
        client = socket.socket(type=socket.SOCK_DGRAM)
        self.sockets.append(client)
        client.sendto(data, self.udp)
        return client.getsockname()[1]

    def close(self):
        if self.driven:
            self.driven.sink.close()
        for sock in self.sockets:
            sock.close()


def heard(client):
    """What came until the end; an assertion if the end has not come."""
    found = b""
    try:
        while piece := client.recv(4096):
            found += piece
    except BlockingIOError:
        raise AssertionError(f"the connection is still open, after {found!r}") from None
    return found


# --- answers -----------------------------------------------------------------------------------------------


def test_http_is_told_that_nobody_serves_it(loopback):
    driven = loopback.start()
    before = time.monotonic()
    client = loopback.connect(HEAD)
    driven.settle()
    answer = heard(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Content-Length: 0\r\n" in answer
    client.close()
    driven.settle()
    (event,) = driven.events
    assert (event.protocol, event.address, event.port) == ("tcp", *loopback.tcp)
    assert (event.data, event.bytes) == (HEAD, len(HEAD))
    assert (event.sniffed.via, event.sniffed.host, event.sniffed.target) == ("http", "api.example.com", "/path")
    assert before <= event.started <= time.monotonic()


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"\0\1\2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_others_get_the_end_of_the_stream_at_once(loopback, data):
    driven = loopback.start()
    client = loopback.connect(data)
    driven.settle()
    assert heard(client) == b""
    client.close()
    driven.settle()
    assert [event.data for event in driven.events] == [data]


def test_a_head_may_come_in_pieces(loopback):
    driven = loopback.start()
    client = loopback.connect(HEAD[:7])
    driven.settle()
    for at in range(7, len(HEAD)):
        assert driven.events == []
        client.send(HEAD[at : at + 1])
        driven.settle()
    assert b" 503 " in heard(client)


def test_what_follows_the_head_is_evidence_too(loopback):
    driven = loopback.start()
    client = loopback.connect(b"POST / HTTP/1.1\r\nHost: a.example\r\n\r\n")
    driven.settle()
    client.send(b"secret=1")
    driven.settle()
    assert b" 503 " in heard(client)  # unread bytes would have made a reset of it
    client.close()
    driven.settle()
    assert driven.events[0].data.endswith(b"\r\n\r\nsecret=1")


def test_a_client_that_waits_for_the_server_to_speak_is_closed_after_a_second(loopback):
    driven = loopback.start()
    client = loopback.connect()
    driven.settle()
    assert 0.0 < driven.sink.timeout(driven.now()) <= 1.0
    with pytest.raises(BlockingIOError):
        client.recv(1)
    driven.silence()
    assert heard(client) == b""
    assert [(event.data, event.bytes, event.sniffed.via) for event in driven.events] == [(b"", 0, "tcp")]
    assert driven.sink.timeout(driven.now()) is None


def test_half_a_head_is_closed_when_the_rest_does_not_come(loopback):
    driven = loopback.start()
    client = loopback.connect(b"GET / HT")
    driven.settle()
    driven.silence()
    assert heard(client) == b""
    assert driven.events == [], "it may still say more"
    driven.silence()
    assert [event.data for event in driven.events] == [b"GET / HT"]


@pytest.mark.parametrize("data", [b"", b"GET / HT"])
def test_half_open_and_reset_clients_are_recorded(loopback, data):
    driven = loopback.start()
    loopback.connect(data).shutdown(socket.SHUT_WR)
    driven.settle()
    gone = loopback.connect(data)
    driven.settle()
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    driven.settle()
    assert [event.data for event in driven.events] == [data, data]


# --- bounds ------------------------------------------------------------------------------------------------


def test_the_first_bytes_are_kept_and_all_are_counted(loopback):
    driven = loopback.start(per_attempt=10)
    client = loopback.connect(b"x" * 5000)
    client.shutdown(socket.SHUT_WR)
    driven.settle()
    loopback.send_to(b"y" * 5000)
    driven.settle()
    assert [(event.data, event.bytes) for event in driven.events] == [(b"x" * 10, 5000), (b"y" * 10, 5000)]


def test_a_run_keeps_so_many_bytes_and_no_more(loopback):
    driven = loopback.start(per_run=len(HEAD) + 3)
    for _ in range(3):
        client = loopback.connect(HEAD)
        client.shutdown(socket.SHUT_WR)
        driven.settle()
        assert b" 503 " in heard(client)
    assert [event.data for event in driven.events] == [HEAD, HEAD[:3], b""]
    assert [event.bytes for event in driven.events] == [len(HEAD)] * 3
    assert [event.sniffed.host for event in driven.events] == ["api.example.com"] * 3
    assert sum(len(event.sniffed.text) for event in driven.events) <= len(HEAD) + 3


def send_until_cut(client, driven, most):
    sent = 0
    while sent < most:
        try:
            sent += client.send(bytes(65536))
        except BlockingIOError:
            driven.turn()
        except OSError:  # reset or broken pipe
            return True
    return False


def test_a_client_that_never_stops_is_cut(loopback):
    driven = loopback.start()
    client = loopback.connect()
    assert send_until_cut(client, driven, 64 * module.MOST_READ)
    (event,) = driven.events
    assert module.MOST_READ <= event.bytes < 2 * module.MOST_READ
    assert len(event.data) == 4096


def test_the_oldest_client_makes_room(loopback):
    driven = loopback.start()
    clients = [loopback.connect(b"GET /%d" % number) for number in range(module.MOST_OPEN)]
    driven.settle()
    assert driven.events == []
    loopback.connect(b"GET /last")
    driven.settle()
    assert [event.data for event in driven.events] == [b"GET /0"]
    assert heard(clients[0]) == b""
    assert len(driven.sink.fds()) == module.MOST_OPEN + 2


def test_closing_takes_what_still_waits(loopback):
    driven = loopback.start()
    served = loopback.connect(b"GET /served")
    driven.settle()
    waiting = [loopback.connect(b"waiting %d" % number) for number in range(100)]
    served.send(b"/more")
    loopback.send_to(b"datagram")
    driven.sink.close()
    driven.sink.close()
    found = sorted(event.data for event in driven.events)
    assert found == sorted([b"GET /served/more", b"datagram", *(b"waiting %d" % n for n in range(len(waiting)))])
    assert driven.sink.fds() == []


class Full(socket.socket):
    """A listener in a process without a descriptor to spare."""

    full = True

    def accept(self):
        if self.full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_descriptors_it_rests_until_the_next_tick():
    with Full() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        driven = Driven(listening)
        client.connect(listening.getsockname())
        client.send(b"later")
        driven.sink.handle(listening.fileno(), select.POLLIN)
        assert driven.sink.fds() == [], "poll would say for ever that somebody waits"
        assert driven.sink.timeout(driven.now()) is not None
        driven.sink.tick(driven.now())
        listening.full = False
        driven.settle()
        driven.sink.close()
        assert [event.data for event in driven.events] == [b"later"]


def test_a_descriptor_that_is_gone_is_ignored(loopback):
    driven = loopback.start()
    driven.sink.handle(12345, select.POLLIN)
    assert driven.events == []


# --- datagrams ---------------------------------------------------------------------------------------------


def test_datagrams_are_recorded_and_not_answered(loopback):
    driven = loopback.start()
    port = loopback.send_to(b"ping")
    loopback.send_to(b"")
    driven.table[4, port] = ("198.18.0.5", 123)
    driven.settle()
    first, second = driven.events
    assert (first.protocol, first.address, first.port, first.name) == ("udp", "198.18.0.5", 123, "named.example")
    assert (first.data, first.bytes, first.sniffed.via) == (b"ping", 4, "udp")
    assert (second.address, second.port, second.bytes) == ("", 0, 0), "the kernel could not say"
    with pytest.raises(BlockingIOError):
        loopback.sockets[-1].recv(1, socket.MSG_DONTWAIT)


V4 = struct.pack("=H", socket.AF_INET) + b"\x03\xe7" + bytes((203, 0, 113, 7)) + bytes(8)
V6 = struct.pack("=H", socket.AF_INET6) + b"\x03\xe6" + bytes(4) + socket.inet_pton(10, "2001:db8::9") + bytes(4)
MAPPED = (
    struct.pack("=H", socket.AF_INET6) + b"\0\x50" + bytes(4) + socket.inet_pton(10, "::ffff:192.0.2.1") + bytes(4)
)


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (V4, ("203.0.113.7", 999)),
        (V6, ("2001:db8::9", 998)),
        (MAPPED, ("192.0.2.1", 80)),
        (b"", None),
        (V6[:20], None),
        (bytes(16), None),
    ],
)
def test_socket_addresses(raw, found):
    assert parse_sockaddr(raw) == found


@pytest.mark.parametrize(
    ("address", "plain"),
    [("::ffff:192.0.2.1", "192.0.2.1"), ("::1", "::1"), ("::ffff:1", "::ffff:1"), ("1.2.3.4",) * 2],
)
def test_mapped_addresses(address, plain):
    assert plain_address(address, 1) == (plain, 1)


def at(address, port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([(socket.SOL_IP, 20, V4)], ("203.0.113.7", 999)),
        ([(socket.IPPROTO_IPV6, 74, V6)], ("2001:db8::9", 998)),
        ([(socket.SOL_IP, 20, at("127.0.0.1", 4000))], None),
        ([(socket.SOL_IP, 20, at("203.0.113.7", 4000))], ("203.0.113.7", 4000)),
        ([(socket.SOL_IP, 8, V4)], None),
        ([], None),
    ],
)
def test_what_a_datagram_tells_of_its_destination(told, found):
    assert told_destination(told, 4000) == found


# --- in a namespace ----------------------------------------------------------------------------------------

REDIRECTED = """
table inet recorder {
 chain divert {
  type nat hook output priority -100; policy accept;
  ip daddr 127.0.0.0/8 accept
  ip6 daddr ::1 accept
  meta l4proto tcp redirect to :4000
  meta l4proto udp redirect to :4001
 }
}
"""
PROXIED = """
table inet recorder {
 chain divert {
  type nat hook output priority -100; policy accept;
  ip daddr 127.0.0.0/8 accept
  ip6 daddr ::1 accept
  meta l4proto tcp redirect to :4000
 }
 chain proxy {
  type filter hook prerouting priority -150; policy accept;
  ip daddr 127.0.0.0/8 accept
  ip6 daddr ::1 accept
  meta nfproto ipv4 meta l4proto udp tproxy ip to 127.0.0.1:4001 accept
  meta nfproto ipv6 meta l4proto udp tproxy ip6 to [::1]:4001 accept
 }
}
"""
INNER = """
import shutil, socket, subprocess, sys
def run(name, *arguments, text=None):
    program = shutil.which(name, path=sys.argv[2])
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
control = socket.socket(fileno=int(sys.argv[1]))
run("ip", "link", "set", "lo", "up")
run("ip", "route", "add", "local", "default", "dev", "lo")
run("ip", "-6", "route", "add", "local", "default", "dev", "lo")
run("nft", "-f", "-", text=sys.argv[3])
made = []
for family, kind, address, port in (
    (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 4000), (socket.AF_INET6, socket.SOCK_STREAM, "::1", 4000),
    (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1", 4001), (socket.AF_INET6, socket.SOCK_DGRAM, "::1", 4001),
):
    sock = socket.socket(family, kind)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if kind == socket.SOCK_DGRAM:  # IP_TRANSPARENT, IPV6_TRANSPARENT: what tproxy delivers to
        sock.setsockopt(*((0, 19, 1) if family == socket.AF_INET else (socket.IPPROTO_IPV6, 75, 1)))
    sock.bind((address, port))
    if kind == socket.SOCK_STREAM:
        sock.listen(256)
    made.append(sock)
socket.send_fds(control, [b"ready"], [sock.fileno() for sock in made])
for sock in made:
    sock.close()
control.recv(1)
"""


class Namespace(Driven):
    """The recorder here, its sockets and the clients in there; a pipe holds the namespace."""

    def __init__(self, rules):
        ours, theirs = socket.socketpair()
        with theirs:
            argv = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-I", "-c", INNER]
            argv += [str(theirs.fileno()), TOOLS, rules]
            self.holder = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        self.control = ours
        self.clients = []
        ours.settimeout(PATIENCE)
        _ready, fds, _flags, _address = socket.recv_fds(ours, 16, 4)
        assert len(fds) == 4, self.holder.communicate()[1]
        super().__init__(*[socket.socket(fileno=fd) for fd in fds])

    def start(self, *argv):
        inside = ["nsenter", "--user", "--net", "--preserve-credentials", "--target", str(self.holder.pid), "--"]
        client = subprocess.Popen(
            [*inside, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        self.clients.append(client)
        return client

    def run(self, *argv):
        """Serve until the client has ended; its exit code and what it printed."""
        client = self.start(*argv)
        self.serve(lambda: client.poll() is not None)
        self.settle()
        return client.returncode, client.stdout.read()

    def python(self, program):
        return self.run(sys.executable, "-I", "-c", "import socket, os\n" + program)

    def close(self):
        self.sink.close()
        self.control.close()
        for client in self.clients:
            if client.poll() is None:
                client.kill()
            client.communicate(timeout=PATIENCE)
        self.holder.communicate(timeout=PATIENCE)


@pytest.fixture
def inside(request):
    made = Namespace(getattr(request, "param", REDIRECTED))
    yield made
    made.close()


def told(driven):
    return [(event.protocol, event.address, event.port, event.sniffed.via) for event in driven.events]


def curl(*arguments):
    program = shutil.which("curl", path=TOOLS)
    if program is None:
        pytest.skip("curl is not installed")
    return [program, "--silent", "--show-error", "--noproxy", "*", "--output", "/dev/null", *arguments]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("url", "address", "host"),
    [
        ("http://203.0.113.7/a", "203.0.113.7", "203.0.113.7"),
        ("http://[2001:db8::9]/a", "2001:db8::9", "2001:db8::9"),
        ("http://named.example/a", "198.18.0.5", "named.example"),
    ],
)
def test_curl_by_http(inside, url, address, host):
    resolve = ["--resolve", "named.example:80:198.18.0.5"]
    code, output = inside.run(*curl(*resolve, "--write-out", "%{http_code}", "--data", "secret", url))
    assert (code, output) == (0, "503")
    (event,) = inside.events
    assert told(inside) == [("tcp", address, 80, "http")]
    assert (event.sniffed.method, event.sniffed.target, event.sniffed.host) == ("POST", "/a", host)
    assert event.name == ("named.example" if address == "198.18.0.5" else None)
    assert event.data.endswith(b"\r\n\r\nsecret")


@pytest.mark.kernel
@pytest.mark.parametrize("address", ["198.18.0.5", "fd00::5"])
def test_curl_by_https(inside, address):
    shown = f"[{address}]" if ":" in address else address
    code, output = inside.run(*curl("--resolve", f"named.example:443:{shown}", "https://named.example/a"))
    assert code == 35, output  # the handshake failed
    assert told(inside) == [("tcp", address, 443, "tls")]
    assert inside.events[0].sniffed.host == "named.example"
    assert "h2" in inside.events[0].sniffed.alpn


@pytest.mark.kernel
def test_raw_sockets_of_both_families(inside):
    code, output = inside.python("""
for target in (("203.0.113.7", 22), ("2001:db8::9", 25)):
    with socket.create_connection(target) as client:
        client.sendall(b"raw\\0bytes")
        assert client.recv(10) == b""
mapped = socket.socket(socket.AF_INET6)
with mapped:
    mapped.connect(("::ffff:203.0.113.8", 22))
    mapped.sendall(b"mapped")
    assert mapped.recv(10) == b""
""")
    assert code == 0, output
    assert told(inside) == [
        ("tcp", "203.0.113.7", 22, "tcp"),
        ("tcp", "2001:db8::9", 25, "tcp"),
        ("tcp", "203.0.113.8", 22, "tcp"),
    ]
    assert [event.data for event in inside.events] == [b"raw\0bytes", b"raw\0bytes", b"mapped"]


SEND_DATAGRAMS = """
for number, target in enumerate((("203.0.113.7", 123), ("203.0.113.7", 4001), ("2001:db8::9", 53))):
    with socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind(("", 41000 + number))
        client.sendto(b"to %d" % target[1], target)
"""


@pytest.mark.kernel
@pytest.mark.parametrize("inside", [REDIRECTED, PROXIED], ids=["redirect", "tproxy"], indirect=True)
def test_datagrams_of_both_families(inside):
    targets = [("203.0.113.7", 123), ("203.0.113.7", 4001), ("2001:db8::9", 53)]
    proxied = "tproxy" in os.environ["PYTEST_CURRENT_TEST"]
    if not proxied:
        inside.table = {(6 if ":" in target[0] else 4, 41000 + n): target for n, target in enumerate(targets)}
    code, output = inside.python(SEND_DATAGRAMS)
    assert code == 0, output
    assert sorted(told(inside)) == sorted(("udp", *target, "udp") for target in targets)
    assert all(event.data == b"to %d" % event.port for event in inside.events)
    assert len(inside.asked) == (0 if proxied else 3)


@pytest.mark.kernel
@pytest.mark.parametrize("inside", [PROXIED], ids=["tproxy"], indirect=True)
def test_one_socket_may_send_to_many(inside):
    """A source port alone would not tell these apart."""
    code, output = inside.python("""
with socket.socket(type=socket.SOCK_DGRAM) as client:
    for number in range(1, 101):
        client.sendto(b"%d" % number, (f"203.0.113.{number}", number))
""")
    assert code == 0, output
    assert [(event.address, event.port, event.data) for event in inside.events] == [
        (f"203.0.113.{number}", number, b"%d" % number) for number in range(1, 101)
    ]


@pytest.mark.kernel
def test_three_hundred_silent_connections_at_once(inside):
    client = inside.start(
        sys.executable,
        "-I",
        "-c",
        """
import socket
made = [socket.create_connection(("203.0.113.7", 1000 + n)) for n in range(300)]
print("connected", flush=True)
assert all(each.recv(10) == b"" for each in made)
""",
    )
    inside.serve(lambda: select.select([client.stdout], [], [], 0)[0])
    assert client.stdout.readline() == "connected\n", client.stdout.read()
    inside.settle()
    assert len(inside.events) >= 300 - module.MOST_OPEN
    assert len(inside.sink.fds()) <= module.MOST_OPEN + 4
    inside.silence()
    inside.serve(lambda: client.poll() is not None)
    assert client.returncode == 0, client.stdout.read()
    assert sorted(event.port for event in inside.events) == list(range(1000, 1300))


@pytest.mark.kernel
def test_what_was_sent_last_is_recorded_though_nobody_served_it(inside):
    client = inside.start(
        sys.executable, "-I", "-c", 'import socket; socket.create_connection(("203.0.113.7", 9)).send(b"bye")'
    )
    assert client.wait(PATIENCE) == 0
    inside.sink.close()
    assert [(event.address, event.port, event.data) for event in inside.events] == [("203.0.113.7", 9, b"bye")]


@pytest.mark.kernel
def test_nothing_leaves_and_loopback_is_its_own(inside):
    """The host's listener is reached from here, not from there; in there only ``lo`` exists."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
        listener.setblocking(False)
        code, output = inside.python(f"""
print(socket.if_nameindex())
for address in ("127.0.0.1", "10.0.2.2"):
    try:
        socket.create_connection((address, {port})).send(b"x")
        print("connected", address)
    except ConnectionRefusedError:
        print("refused", address)
""")
        assert code == 0, output
        assert "[(1, 'lo')]" in output
        assert "refused 127.0.0.1" in output
        assert "connected 10.0.2.2" in output
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert told(inside) == [("tcp", "10.0.2.2", port, "tcp")]
