"""The resolver on real sockets: order of admission, floods, slow clients, and the programs people use."""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest
from dnsrig import SITE, SITE_PORT, Rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.netns import resolver as resolver_module
from stockade.netns import upstream as upstream_module
from stockade.netns.clients import MOST_PIPELINED, Stream
from stockade.netns.names import LARGEST_QUERY, load
from stockade.netns.resolver import SLACK
from stockade.netns.upstream import HostResolver, Lookup, Lookups, Synthetic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

load()
SECONDS = 20
RULES = ("good.test", "*.wild.test")
ANSWERS = {"good.test": ["203.0.113.80", "203.0.113.81"]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def udp_query(rig: Rig, name: str, kind: str = "A", **options: object) -> dns.message.Message:
    message = dns.message.make_query(name, kind, **options)
    return dns.query.udp(message, *rig.udp[:1], port=rig.udp[1], timeout=SECONDS)


def tcp_query(rig: Rig, name: str, kind: str = "A") -> dns.message.Message:
    message = dns.message.make_query(name, kind)
    return dns.query.tcp(message, rig.tcp[0], port=rig.tcp[1], timeout=SECONDS)


def answers(message: dns.message.Message) -> list[str]:
    return [str(item) for rrset in message.answer for item in rrset]


def rcode(message: dns.message.Message) -> str:
    return dns.rcode.to_text(message.rcode())


def pump(rig: Rig, until: Callable[[], object]) -> None:
    """The loop in this thread, as long as it takes; a fake clock stands still meanwhile."""
    for _ in range(1000):
        if until():
            return
        rig.step(0.02)
    raise AssertionError("what was waited for did not happen")


def readable(sock: socket.socket, seconds: float = 0) -> bool:
    return bool(select.select([sock], [], [], seconds)[0])


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        yield sock


# --- one question ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [udp_query, tcp_query])
def test_an_allowed_name_is_admitted_then_answered(ask: Callable[..., dns.message.Message]) -> None:
    with Rig(ANSWERS, RULES).serving() as rig:
        message = ask(rig, "good.test")
        assert answers(message) == ANSWERS["good.test"]
        assert message.answer[0].ttl == 60
        assert rig.admitted == [(("good.test",), tuple(ANSWERS["good.test"]), 60 + SLACK)]
        assert rig.events[0].addresses == tuple(ANSWERS["good.test"])
        assert rig.outcomes() == [("good.test", "A", "answered")]


@pytest.mark.parametrize("ask", [udp_query, tcp_query])
@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT", "MX", "ANY", "PTR"])
def test_no_query_leaves_for_what_is_not_allowed(ask: Callable[..., dns.message.Message], kind: str) -> None:
    with Rig(ANSWERS, RULES).serving() as rig:
        message = ask(rig, "c2VjcmV0.evil.test", kind)
        assert (rcode(message), answers(message)) == ("NXDOMAIN", [])
        assert rig.outcomes() == [("c2vjcmv0.evil.test", kind, "refused")]
        assert answers(ask(rig, "good.test")), "positive control"
        assert rig.upstream.asked == ["good.test"]
        assert [addresses for _, addresses, _ in rig.admitted] == [tuple(ANSWERS["good.test"])]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Lookup(error="unknown"), ("NXDOMAIN", "absent")),
        (Lookup(error="nodata"), ("NOERROR", "empty")),
        (Lookup(error="failed"), ("SERVFAIL", "failed")),
        (Lookup(), ("NOERROR", "empty")),
        (Lookup(("2001:db8::1",)), ("NOERROR", "empty")),
        (Lookup(("10.0.0.1", "127.0.0.1")), ("NOERROR", "rebinding")),
        (Lookup(("169.254.169.254",)), ("NOERROR", "rebinding")),
        (Lookup(("not an address",)), ("NOERROR", "rebinding")),
    ],
)
def test_what_leads_nowhere_admits_nothing(found: Lookup, expected: tuple[str, str]) -> None:
    with Rig({"good.test": found}, RULES).serving() as rig:
        message = udp_query(rig, "good.test")
        assert (rcode(message), answers(message)) == (expected[0], [])
        assert rig.outcomes() == [("good.test", "A", expected[1])]
        assert not rig.admitted


def test_of_a_mixed_answer_only_the_good_part_is_used() -> None:
    with Rig({"good.test": ["10.0.0.1", "203.0.113.9"]}, RULES).serving() as rig:
        assert answers(udp_query(rig, "good.test")) == ["203.0.113.9"]
        assert [event.outcome for event in rig.events] == ["rebinding", "answered"]
        assert [event.addresses for event in rig.events] == [("10.0.0.1",), ("203.0.113.9",)]
        assert [addresses for _, addresses, _ in rig.admitted] == [("203.0.113.9",)]


def test_private_addresses_are_answered_where_they_are_meant() -> None:
    with Rig({"good.test": ["10.0.0.1", "169.254.169.254"]}, RULES, private=True).serving() as rig:
        assert answers(udp_query(rig, "good.test")) == ["10.0.0.1"]
    with Rig({"good.test": ["10.0.0.1", "10.0.0.2"]}, (*RULES, "10.0.0.2:8443")).serving() as rig:
        assert answers(udp_query(rig, "good.test")) == ["10.0.0.2"]


def test_the_answer_waits_for_the_admission(client: socket.socket) -> None:
    early = []

    def admit(*_args: object) -> None:
        early.append(readable(client))

    rig = Rig(ANSWERS, RULES, admit=admit)
    for _ in range(2):  # the second one out of the cache
        client.sendto(dns.message.make_query("good.test", "A").to_wire(), rig.udp)
        pump(rig, lambda: readable(client))
        client.recv(4096)
    rig.resolver.close()
    assert early == [False, False]
    assert rig.upstream.asked == ["good.test"]


def test_who_cannot_be_admitted_is_not_answered() -> None:
    def admit(*_args: object) -> None:
        raise OSError("no such set")

    with Rig(ANSWERS, RULES, admit=admit).serving() as rig:
        for _ in range(2):
            message = udp_query(rig, "good.test")
            assert (rcode(message), answers(message)) == ("SERVFAIL", [])
        assert {outcome for _, _, outcome in rig.outcomes()} == {"failed"}


def test_an_upstream_that_breaks_is_a_failure() -> None:
    class Broken:
        def lookup(self, name: str) -> Lookup:
            raise RuntimeError(name)

    with Rig(ANSWERS, RULES, upstream=Broken()).serving() as rig:
        assert rcode(udp_query(rig, "good.test")) == "SERVFAIL"


@pytest.mark.parametrize("wire", [b"", b"\0" * 5, b"\x12\x34\x81" + bytes(9), b"\xff" * 3000])
def test_noise_is_survived(wire: bytes, client: socket.socket) -> None:
    with Rig(ANSWERS, RULES).serving() as rig:
        client.sendto(wire, rig.udp)
        with socket.create_connection(rig.tcp) as stream:
            stream.sendall(len(wire).to_bytes(2, "big") + wire)
            assert answers(udp_query(rig, "good.test"))
            assert answers(tcp_query(rig, "good.test"))
        assert not readable(client)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from(
            [dns.message.make_query(name, "A").to_wire() for name in ("good.test", "a.wild.test", "no.test")]
        ),
    ),
    st.lists(st.ip_addresses().map(str), max_size=5),
)
def test_only_what_was_admitted_is_ever_answered(client: socket.socket, wire: bytes, found: list[str]) -> None:
    rig = Rig({"good.test": found, "a.wild.test": found}, RULES)
    end = dns.message.make_query("end.of.test", "A")
    client.sendto(wire, rig.udp)
    pump(rig, lambda: not rig.resolver._waiting)
    client.sendto(end.to_wire(), rig.udp)
    allowed = {address for _, addresses, _ in rig.admitted for address in addresses}
    said: list[dns.message.Message] = []
    pump(rig, lambda: readable(client))
    while not said or said[-1].id != end.id:
        pump(rig, lambda: readable(client))
        said.append(dns.message.from_wire(client.recv(4096)))
    rig.resolver.close()
    assert {address for message in said for address in answers(message)} <= allowed
    assert allowed <= set(found)


# --- many questions ----------------------------------------------------------------------------------------


def test_five_hundred_at_once() -> None:
    names = [f"n{number}.wild.test" for number in range(500)]
    rig = Rig({name: [f"203.0.113.{number % 250}"] for number, name in enumerate(names)}, RULES)
    wanted = {number: dns.message.make_query(name, "A", id=number).to_wire() for number, name in enumerate(names)}
    found: dict[int, list[str]] = {}
    clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(10)]
    with rig.serving():
        for _ in range(SECONDS):  # a full buffer loses datagrams; clients ask again
            for number in wanted.keys() - found.keys():
                clients[number % 10].sendto(wanted[number], rig.udp)
            while len(found) < 500 and (ready := select.select(clients, [], [], 1)[0]):
                for sock in ready:
                    message = dns.message.from_wire(sock.recv(4096))
                    found[message.id] = answers(message)
            if len(found) == 500:
                break
        threads = [thread for thread in threading.enumerate() if thread.name == "stockade-lookup"]
    for sock in clients:
        sock.close()
    assert found == {number: [f"203.0.113.{number % 250}"] for number in range(500)}
    assert len(threads) <= upstream_module.WORKERS
    assert rig.upstream.most_busy <= upstream_module.WORKERS
    assert sorted(rig.upstream.asked) == sorted(names), "each name once"


def test_the_same_name_is_looked_up_once_at_a_time(client: socket.socket) -> None:
    rig = Rig(ANSWERS, RULES)
    rig.upstream.gate.clear()
    for number in range(40):
        client.sendto(dns.message.make_query("GoOd.test", "A", id=number).to_wire(), rig.udp)
    pump(rig, lambda: len(rig.resolver._waiting.get("good.test", ())) == 40)
    rig.upstream.gate.set()
    seen = set()
    while len(seen) < 40:
        pump(rig, lambda: readable(client))
        seen.add(dns.message.from_wire(client.recv(4096)).id)
    rig.resolver.close()
    assert rig.upstream.asked == ["good.test"]
    assert len(rig.admitted) == 1


def test_too_many_at_once_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MOST_PENDING", 3)
    rig = Rig({}, RULES)
    rig.upstream.gate.clear()
    with rig.serving(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(3):
            sock.sendto(dns.message.make_query(f"n{number}.wild.test", "A").to_wire(), rig.udp)
        assert rcode(udp_query(rig, "good.test")) == "SERVFAIL"
        assert rcode(udp_query(rig, "evil.test")) == "NXDOMAIN", "what needs no lookup is served"
        assert not readable(sock)
        rig.upstream.gate.set()
        assert {rcode(dns.message.from_wire(sock.recv(4096))) for _ in range(3)} == {"NXDOMAIN"}


def test_a_lookup_that_takes_too_long_fails_and_its_answer_is_of_use_later(client: socket.socket) -> None:
    clock = Clock()
    rig = Rig(ANSWERS, RULES, clock=clock)
    rig.upstream.gate.clear()
    query = dns.message.make_query("good.test", "A").to_wire()
    client.sendto(query, rig.udp)
    pump(rig, lambda: rig.upstream.asked)
    clock.now += resolver_module.DEADLINE
    pump(rig, lambda: readable(client))
    assert rcode(dns.message.from_wire(client.recv(4096))) == "SERVFAIL"
    assert not rig.admitted
    rig.upstream.gate.set()
    pump(rig, lambda: rig.resolver._lookups.cached("good.test"))
    client.sendto(query, rig.udp)
    pump(rig, lambda: readable(client))
    assert answers(dns.message.from_wire(client.recv(4096))) == ANSWERS["good.test"]
    rig.resolver.close()
    assert rig.upstream.asked == ["good.test"]


def test_changed_addresses_are_admitted_anew(client: socket.socket) -> None:
    clock = Clock()
    rig = Rig({"good.test": Lookup(("203.0.113.1",), ttl=100)}, RULES, clock=clock)
    query = dns.message.make_query("good.test", "A").to_wire()
    seen = []
    for passes in (0, 40, 61):
        clock.now += passes
        client.sendto(query, rig.udp)
        pump(rig, lambda: readable(client))
        message = dns.message.from_wire(client.recv(4096))
        seen.append((answers(message), message.answer[0].ttl))
        rig.upstream.answers["good.test"] = Lookup(("203.0.113.2",), ttl=100)
    rig.resolver.close()
    assert seen == [(["203.0.113.1"], 100), (["203.0.113.1"], 60), (["203.0.113.2"], 100)]
    assert [(one[1], one[2]) for one in rig.admitted] == [
        (("203.0.113.1",), 100 + SLACK), (("203.0.113.1",), 60 + SLACK), (("203.0.113.2",), 100 + SLACK),
    ]  # fmt: skip


def test_closing_records_what_was_left_open(client: socket.socket) -> None:
    rig = Rig(ANSWERS, RULES)
    rig.upstream.gate.clear()
    client.sendto(dns.message.make_query("good.test", "A").to_wire(), rig.udp)
    pump(rig, lambda: rig.upstream.asked)
    rig.resolver.close()
    rig.upstream.gate.set()
    assert rig.outcomes() == [("good.test", "A", "failed")]
    assert not readable(client)


# --- TCP ---------------------------------------------------------------------------------------------------


def framed(name: str, number: int) -> bytes:
    wire = dns.message.make_query(name, "A", id=number).to_wire()
    return len(wire).to_bytes(2, "big") + wire


def read_answers(stream: socket.socket, count: int) -> dict[int, list[str]]:
    data = bytearray()
    found: dict[int, list[str]] = {}
    stream.settimeout(SECONDS)
    while len(found) < count:
        piece = stream.recv(65536)
        assert piece, "closed early"
        data += piece
        while len(data) >= 2 and len(data) >= 2 + (length := int.from_bytes(data[:2], "big")):
            message = dns.message.from_wire(bytes(data[2 : 2 + length]))
            found[message.id] = answers(message)
            del data[: 2 + length]
    return found


def test_many_queries_on_one_connection_even_half_closed() -> None:
    names = [f"n{number}.wild.test" for number in range(200)]
    rig = Rig({name: ["203.0.113.5"] for name in names}, RULES)
    with rig.serving(), socket.create_connection(rig.tcp) as stream:
        stream.sendall(b"".join(framed(name, number) for number, name in enumerate(names)))
        stream.shutdown(socket.SHUT_WR)
        assert read_answers(stream, 200) == {number: ["203.0.113.5"] for number in range(200)}
        assert stream.recv(1) == b""


def test_a_query_byte_by_byte() -> None:
    with Rig(ANSWERS, RULES).serving() as rig, socket.create_connection(rig.tcp) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed("good.test", 7):
            stream.sendall(bytes([byte]))
        assert read_answers(stream, 1) == {7: ANSWERS["good.test"]}


def test_a_client_that_promises_too_much_is_closed() -> None:
    with Rig(ANSWERS, RULES).serving() as rig, socket.create_connection(rig.tcp) as stream:
        stream.settimeout(SECONDS)
        stream.sendall((LARGEST_QUERY + 1).to_bytes(2, "big"))
        assert stream.recv(1) == b""
        assert answers(tcp_query(rig, "good.test"))


@pytest.mark.parametrize("size", [20, 60000])
def test_a_client_that_does_not_read_is_not_read_from(size: int) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = Stream(ours, 0.0)
    with theirs:
        theirs.sendall(b"\0\1x" * 300)
        unanswered = 0
        while stream.wants() & select.POLLIN:
            unanswered += len(stream.receive(0.0))
            while size > 20 and unanswered:
                stream.send(bytes(size))
                unanswered -= 1
        assert stream.pending < MOST_PIPELINED + LARGEST_QUERY
        assert stream.wants() == (select.POLLOUT if size > 20 else 0)
        stream.close()


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MOST_STREAMS", 4)
    with Rig(ANSWERS, RULES).serving() as rig:
        idle = [socket.create_connection(rig.tcp) for _ in range(12)]
        assert answers(tcp_query(rig, "good.test"))
        assert len(rig.resolver._streams) <= 4
        assert len([one for one in idle if readable(one)]) >= 8, "the longest idle ones were closed"
        for one in idle:
            one.close()


def test_idle_connections_are_closed() -> None:
    clock = Clock()
    rig = Rig(ANSWERS, RULES, clock=clock)
    with socket.create_connection(rig.tcp) as slow, socket.create_connection(rig.tcp) as busy:
        pump(rig, lambda: len(rig.resolver._streams) == 2)
        clock.now += resolver_module.IDLE - 1
        slow.sendall(framed("good.test", 1)[:-1])
        busy.sendall(framed("good.test", 2))
        pump(rig, lambda: readable(busy))
        clock.now += 2
        pump(rig, lambda: readable(slow))
        assert slow.recv(1) == b""
        assert read_answers(busy, 1) == {2: ANSWERS["good.test"]}
        assert len(rig.resolver._streams) == 1
    rig.resolver.close()


def test_clients_that_vanish_are_forgotten() -> None:
    rig = Rig(ANSWERS, RULES)
    rig.upstream.gate.clear()
    for _ in range(5):
        stream = socket.create_connection(rig.tcp)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stream.sendall(framed("good.test", 1))
        pump(rig, lambda: rig.resolver._waiting)
        stream.close()
        pump(rig, lambda: not rig.resolver._streams)
    rig.upstream.gate.set()
    pump(rig, lambda: not rig.resolver._waiting)
    rig.resolver.close()


# --- recording ---------------------------------------------------------------------------------------------


def test_a_recording_network_makes_up_addresses() -> None:
    with Rig({}, (), kind="record").serving() as rig:
        names = ["good.test", "evil.test", "GOOD.test", "xn--bcher-kva.test", "localhost"]
        four = [answers(udp_query(rig, name))[0] for name in names]
        six = [answers(udp_query(rig, name, "AAAA"))[0] for name in names]
        assert four == ["198.18.0.1", "198.18.0.2", "198.18.0.1", "198.18.0.3", "198.18.0.4"]
        assert [rig.resolver.name_of(address) for address in (*four, *six)] == [name.lower() for name in names] * 2
        assert all(address.startswith("fd00:") for address in six)
        message = udp_query(rig, "good.test", "TXT")
        assert (rcode(message), answers(message)) == ("NOERROR", [])
        assert not rig.admitted
        assert not rig.upstream.asked
        assert rig.outcomes()[0] == ("good.test", "A", "answered")
        assert rig.events[0].addresses == ("198.18.0.1",)


def test_synthetic_addresses_end_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "POOL", 3)
    shared = Synthetic()
    with Rig({}, (), kind="record", synthetic=shared).serving() as rig:
        assert [rcode(udp_query(rig, f"n{number}.test")) for number in range(3)] == [
            "NOERROR",
            "NOERROR",
            "SERVFAIL",
        ]
        assert answers(udp_query(rig, "n1.test")) == ["198.18.0.2"]
    assert shared.name_of("198.18.0.2") == "n1.test"


@pytest.mark.parametrize(
    ("address", "name"),
    [("198.18.0.1", "a.test"), ("::ffff:198.18.0.1", "a.test"), ("fd00:cade::1", "a.test"), ("198.18.0.0", None),
     ("198.18.0.2", None), ("fd00:cade::", None), ("203.0.113.1", None), ("", None), ("a.test", None)],
)  # fmt: skip
def test_the_name_of_a_synthetic_address(address: str, name: str | None) -> None:
    synthetic = Synthetic()
    assert synthetic.addresses("a.test", "A") == ("198.18.0.1",)
    assert synthetic.addresses("a.test", "AAAA") == ("fd00:cade::1",)
    assert synthetic.name_of(address) == name


# --- upstream ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "kept"), [(None, 60), (0, 30), (29, 30), (300, 300), (86400, 3600)])
def test_lifetimes_are_clamped(told: int | None, kept: int) -> None:
    class One:
        def lookup(self, name: str) -> Lookup:
            return Lookup(("203.0.113.1",), told)

    clock = Clock()
    lookups = Lookups(One(), clock=clock)
    assert lookups.start("good.test")
    select.select([lookups.fileno()], [], [], SECONDS)
    assert lookups.collect() == [("good.test", Lookup(("203.0.113.1",), kept))]
    clock.now += kept - 1
    assert lookups.cached("good.test") == Lookup(("203.0.113.1",), 1)
    clock.now += 1
    assert lookups.cached("good.test") is None
    lookups.close()
    lookups.close()


def test_the_cache_and_the_queue_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "MOST_CACHED", 2)
    monkeypatch.setattr(upstream_module, "MOST_IN_FLIGHT", 3)
    rig = Rig({name: ["203.0.113.1"] for name in "abcd"})
    rig.upstream.gate.clear()
    lookups = rig.resolver._lookups
    assert [lookups.start(name) for name in "aabcd"] == [True, True, True, True, False]
    rig.upstream.gate.set()
    pump(rig, lambda: not lookups._in_flight)
    assert [name for name in "abc" if lookups.cached(name)] == [name for name in "abc" if name in lookups._cache]
    assert len(lookups._cache) == 2
    rig.resolver.close()


def test_without_threads_lookups_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Rig(ANSWERS, RULES).serving() as rig:
        with monkeypatch.context() as patch:
            patch.setattr(upstream_module.threading.Thread, "start", refuse)
            assert rcode(udp_query(rig, "good.test")) == "SERVFAIL"
        assert answers(udp_query(rig, "good.test")) == ANSWERS["good.test"]


@pytest.mark.parametrize(
    ("code", "error"),
    [("EAI_NONAME", "unknown"), ("EAI_NODATA", "nodata"), ("EAI_AGAIN", "failed"), ("EAI_FAIL", "failed"),
     ("EAI_SYSTEM", "failed")],
)  # fmt: skip
def test_what_the_host_says_is_understood(monkeypatch: pytest.MonkeyPatch, code: str, error: str) -> None:
    def fail(*_args: object) -> None:
        raise socket.gaierror(getattr(socket, code), code)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert HostResolver().lookup("good.test") == Lookup(error=error)


@pytest.mark.parametrize("name", ["a" * 64 + ".test", "\udcff.test", "a..test", ""])
def test_the_host_is_never_asked_in_a_way_that_raises(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_args: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert HostResolver().lookup(name).error == "failed"


def test_the_hosts_own_names_resolve() -> None:
    assert HostResolver().lookup("localhost").addresses == ("127.0.0.1",)


# --- real clients ------------------------------------------------------------------------------------------

PYTHON = "import socket, sys; print(sorted({entry[4][0] for entry in socket.getaddrinfo(sys.argv[1], 80)}))"
NODE = "dns.lookup(process.argv[1], {all: true}, show)"
C_ARES = "dns.resolve4(process.argv[1], show)"
SHOW = "const dns = require('dns'); const show = (e, a) => { console.log(e ? e.code : a); process.exitCode = e ? 1 : 0 };"
CLIENTS = {
    "getent": (["getent", "ahosts", "{}"], ""),
    "python": ([sys.executable, "-c", PYTHON, "{}"], "Name or service not known"),
    "node": (["node", "-e", f"{SHOW} {NODE}", "{}"], "ENOTFOUND"),
    "c-ares": (["node", "-e", f"{SHOW} {C_ARES}", "{}"], "ENOTFOUND"),
    "curl": (["curl", "-sS", f"http://{{}}:{SITE_PORT}/page"], "Could not resolve host"),
    "git": (["git", "ls-remote", f"http://{{}}:{SITE_PORT}/repo.git"], "Could not resolve host"),
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What the allowed server serves; the text is what a successful client prints."""
    path = tmp_path / "site"
    (path / "repo.git" / "info").mkdir(parents=True)
    (path / "page").write_text(SITE)
    (path / "repo.git" / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "repo.git" / "info" / "refs").write_text(f"{'1' * 40}\trefs/heads/{SITE}\n")
    return path


def in_namespace(tmp_path: Path, site: Path, commands: list[list[str]], **job: object) -> dict[str, object]:
    """Runs the commands where this resolver is the only one, and loopback the only link."""
    files = {
        "resolv.conf": f"nameserver 127.0.0.1\n{job.pop('resolv', '')}",
        "nsswitch.conf": "hosts: files dns\n",
        "hosts": "127.0.0.1 localhost\n",
    }
    mounts = []
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        mounts.append(f'mount --bind "$0/{name}" /etc/{name} && ')
    job = {"rules": ["good.test"], "answers": {"good.test": [SITE]}, "commands": commands, "site": str(site), **job}
    rig = [sys.executable, str(Path(__file__).with_name("dnsrig.py")), json.dumps(job)]
    script = "".join(mounts) + 'exec "$@"'
    argv = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", script, str(tmp_path), *rig]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.kernel
@pytest.mark.parametrize("client_name", CLIENTS)
def test_a_real_client(client_name: str, tmp_path: Path, site: Path) -> None:
    argv, complaint = CLIENTS[client_name]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    commands = [
        [word.replace("{}", name) if "{}" in word else word for word in argv] for name in ("good.test", "evil.test")
    ]
    seen = in_namespace(tmp_path, site, commands)
    good, evil = seen["done"]
    assert (good["code"], SITE in good["text"]) == (0, True), good
    assert ["good.test", "A", "answered"] in good["events"]
    assert evil["code"] != 0
    assert complaint in evil["text"], evil
    assert {outcome for _, _, outcome in evil["events"]} == {"refused"}
    assert len(evil["events"]) <= 2, "it is not asked again"
    assert seen["asked"] == ["good.test"]
    assert seen["links"] == ["lo"]


@pytest.mark.kernel
def test_search_domains_are_walked_past(tmp_path: Path, site: Path) -> None:
    resolv = "search corp.example lab.example\noptions ndots:5\n"
    seen = in_namespace(tmp_path, site, [["getent", "ahostsv4", "good.test"]], resolv=resolv)
    (good,) = seen["done"]
    assert (good["code"], SITE in good["text"]) == (0, True)
    refused = [name for name, _, outcome in good["events"] if outcome == "refused"]
    assert refused == ["good.test.corp.example", "good.test.lab.example"]
    assert seen["asked"] == ["good.test"]


@pytest.mark.kernel
def test_a_long_answer_comes_by_tcp(tmp_path: Path, site: Path) -> None:
    many = [f"203.0.113.{number}" for number in range(1, 101)]
    seen = in_namespace(tmp_path, site, [["getent", "ahostsv4", "good.test"]], answers={"good.test": many})
    (good,) = seen["done"]
    assert {line.split()[0] for line in good["text"].splitlines()} == set(many[:32])
    assert len(good["events"]) == 2, "once by UDP, once by TCP"
    assert seen["admitted"][0][1] == many[:32]
