"""A proxy that lies, stops, floods or dies: the supervisor's end keeps what is true and never hangs."""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import threading
import time

import pytest
from edgerig import SECONDS, until
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns.edge import link
from stockade.netns.edge.link import EdgeProxy, Ended
from stockade.netns.edge.messages import LARGEST, read_message, request_of, write_message
from stockade.netns.errors import LeaseFailed
from stockade.sandbox.messages import receive

RULES = [{"host": "a.example:443", "scheme": "https", "methods": [], "paths": [], "headers": [["X", "y"]]}]
REQUEST = {
    "session": 1, "connection": 1, "method": "GET", "host": "a.example", "port": 443, "path": "/", "status": 200,
    "bytes": 5, "duration": 0.5, "transformed": True, "reason": "", "time": 1.0,
}  # fmt: skip


class Fake:
    """The far end of the link, in the hands of the test."""

    def __init__(self, answers=True):
        self.sock, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(SECONDS)
        self.heard: list[dict] = []
        self.given: list[int] = []
        self.proxy = EdgeProxy(own)
        self.answers = answers
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, kind, **fields):
        self.sock.send(json.dumps({"type": kind, **fields}).encode())

    def _listen(self):
        try:
            while True:
                data, descriptors, _flags, _peer = socket.recv_fds(self.sock, LARGEST, 4)
                if not data:
                    return
                self.given += descriptors
                message = json.loads(data)
                self.heard.append(message)
                if self.answers and message["type"] == "open":
                    self.say("opened", session=message["session"], ca="PEM")
                if self.answers and message["type"] == "close":
                    self.say("closed", session=message["session"])
        except OSError:
            return

    def end(self):
        self.proxy.close()
        self.sock.close()
        for descriptor in self.given:
            os.close(descriptor)


@pytest.fixture
def fake():
    made = Fake()
    yield made
    made.end()


@pytest.fixture
def trust(tmp_path):
    path = tmp_path / "bundle.pem"
    path.write_text("a bundle")
    return str(path)


@pytest.fixture
def session(fake, trust):
    return fake.proxy.open(RULES, ["secret"], mask_queries=True, trust=trust)


def take(session, data=b"", began=0.0):
    own, given = socket.socketpair()
    with own:
        number = session.take(given, data, host="a.example", address="192.0.2.1", port=443, tls=True, began=began)
    assert given.fileno() == -1
    return number


def test_what_is_said_in_the_ordinary_case(fake, session):
    assert session.ca == "PEM"
    assert fake.heard[0] == {
        "type": "open",
        "session": 1,
        "rules": RULES,
        "secrets": ["secret"],
        "mask_queries": True,
    }
    with open(os.dup(fake.given[0])) as file:
        assert file.read() == "a bundle"
    began = time.monotonic() - 5
    assert take(session, b"\x16\x03", began) == 1
    until(lambda: len(fake.heard) == 2)
    place = {"host": "a.example", "address": "192.0.2.1", "port": 443, "tls": True}
    assert fake.heard[1] == {
        "type": "take",
        "session": 1,
        "connection": 1,
        "data": base64.b64encode(b"\x16\x03").decode(),
        **place,
    }
    fake.say("request", **REQUEST | {"time": began + 2})
    fake.say("ended", session=1, connection=1, sent=10, received=20)
    session.close()
    (found,) = session.requests()
    assert (found.method, found.path, found.status, found.bytes) == ("GET", "/", 200, 5)
    assert math.isclose(found.first_seen, 2, abs_tol=0.01)
    assert session.ended == (Ended(1, 10, 20),)
    assert fake.heard[2] == {"type": "close", "session": 1}


RUBBISH = [
    b"{", b"[]", b"1", b'"x"', b"null", b"\xff\xfe", b"{}", b'{"type": 5}', b'{"type": "unknown", "session": 1}',
    b"[" * 100_000,
    b'{"type": "opened", "session": 1}', b'{"type": "closed", "session": "1"}', b'{"type": "closed", "session": true}',
    b'{"type": "closed", "session": 1e0}', b'{"type": "closed", "session": 1, "x": 1}', b'{"type": "closed", "session": NaN}',
    b'{"type": "ended", "session": 1, "connection": 1, "sent": 1, "received": 99999999999999999999999999}',
    b'{"type": "closed", "session": ' + b"9" * 5000 + b"}", b'{"type": ["closed"], "session": 1}',
]  # fmt: skip


@pytest.mark.parametrize("data", RUBBISH)
def test_rubbish_is_nothing_that_a_proxy_says(data):
    assert read_message(data) is None


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(data):
    assert read_message(data) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING, st.sampled_from(sorted(REQUEST)))
def test_any_value_in_a_record_is_kept_or_dropped(value, name):
    message = read_message(json.dumps({"type": "request", **REQUEST, name: value}).encode())
    if message is not None:
        found = request_of(message, 1.0, 5.0)
        assert found is None or 0 <= found.first_seen <= 4
        assert found is None or "".join((found.method, found.host, found.path, found.reason)).isprintable()


def test_rubbish_changes_nothing(fake, session):
    take(session)
    for data in RUBBISH:
        if len(data) < LARGEST:
            fake.sock.send(data)
    fake.sock.send(b" " * (LARGEST + 1))
    for change in (
        {"session": 7},
        {"connection": 9},
        {"status": 99},
        {"status": 600},
        {"bytes": -1},
        {"status": True},
    ):
        fake.say("request", **REQUEST | change)
    fake.say("ended", session=1, connection=5, sent=1, received=1)
    fake.say("opened", session=1, ca="another")
    fake.say("failed", session=1, cause="x")
    fake.say("request", **REQUEST)
    until(session.requests)
    assert len(session.requests()) == 1
    assert session.ended == ()
    assert session.ca == "PEM"
    assert fake.proxy.alive()


def test_what_the_supervisor_knows_better_is_not_believed(fake, session):
    began = time.monotonic()
    take(session, began=began)
    lies = {"host": "evil\x1b[2J", "port": 1, "time": 1e8, "duration": -5.0, "path": "/\n\x1b", "reason": "a\r\nb"}
    fake.say("request", **REQUEST | lies)
    until(session.requests)
    (found,) = session.requests()
    assert (found.host, found.port) == ("a.example", 443)
    assert 0 <= found.first_seen <= time.monotonic() - began
    assert found.duration == 0
    assert (found.path, found.reason) == ("/??", "a??b")


def test_descriptors_that_come_are_not_kept(fake, session):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        socket.send_fds(fake.sock, [b"{}"], [0, 0])
    take(session)
    fake.say("ended", session=1, connection=1, sent=0, received=0)
    until(lambda: session.ended)
    until(lambda: len(fake.heard) == 2)
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the one that was taken is in the test's hands"


def test_a_flood_is_bounded(fake, session, monkeypatch):
    monkeypatch.setattr(link, "MOST_REQUESTS", 10)
    take(session)
    for _ in range(50):
        fake.say("request", **REQUEST)
    until(
        lambda: (
            session.requests()
            and session.requests()[-1].host == link.UNLISTED
            and "40" in session.requests()[-1].reason
        )
    )
    assert len(session.requests()) == 11


def test_a_proxy_that_refuses(trust):
    fake = Fake(answers=False)
    threading.Thread(
        target=lambda: (until(lambda: fake.heard), fake.say("failed", session=1, cause="no\x1b such")), daemon=True
    ).start()
    with pytest.raises(LeaseFailed, match="no\\? such") as caught:
        fake.proxy.open(RULES, [], mask_queries=False, trust=trust)
    assert caught.value.part == "edge"
    fake.end()


def test_a_proxy_that_does_not_answer(trust, monkeypatch):
    monkeypatch.setattr(link, "OPEN_SECONDS", 0.1)
    fake = Fake(answers=False)
    with pytest.raises(LeaseFailed, match="does not answer"):
        fake.proxy.open(RULES, [], mask_queries=False, trust=trust)
    until(lambda: len(fake.heard) == 2)
    assert fake.heard[1] == {"type": "close", "session": 1}, "it need not keep the secrets"
    assert not fake.proxy.alive(), "one that hangs is not asked again"
    fake.say("opened", session=1, ca="late")
    fake.end()


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_proxy_that_dies(trust, when):
    fake = Fake(answers=False)
    if when == "before":
        fake.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: not fake.proxy.alive())
    else:
        threading.Thread(
            target=lambda: (until(lambda: fake.heard), fake.sock.shutdown(socket.SHUT_RDWR)), daemon=True
        ).start()
    with pytest.raises(LeaseFailed, match="gone") as caught:
        fake.proxy.open(RULES, [], mask_queries=False, trust=trust)
    assert "STOCKADE_EDGE_PYTHON" in caught.value.remedy
    assert not fake.proxy.alive()
    fake.end()


def test_what_a_dead_proxy_had_is_recorded(fake, session):
    assert take(session) == 1
    fake.sock.shutdown(socket.SHUT_RDWR)
    until(lambda: len(session.requests()) == 1)
    assert "ended before" in session.requests()[0].reason
    assert take(session) is None
    assert "could not be handed" in session.requests()[1].reason
    assert [each.host for each in session.requests()] == ["a.example"] * 2
    assert receive(session.events) is None, "who watches the run is told"
    session.close()
    session.close()
    assert (session.lost, session.unheard, session.events) == (True, False, -1)


def test_a_proxy_that_dies_is_seen_at_once(fake, session, monkeypatch):
    """The reader may be late; a run that ends at that moment must not be told as whole."""
    monkeypatch.setattr(fake.proxy, "_gone", threading.Event())
    monkeypatch.setattr(session, "_lose", lambda **_how: None)
    fake.sock.shutdown(socket.SHUT_RDWR)
    assert not fake.proxy.alive()
    session.close()
    assert session.lost


def test_a_session_that_closes_is_not_lost(fake, session):
    before = len(os.listdir("/proc/self/fd"))
    session.close()
    assert (session.lost, session.unheard, session.events) == (False, False, -1)
    assert len(os.listdir("/proc/self/fd")) == before - 2
    fake.sock.shutdown(socket.SHUT_RDWR)
    until(lambda: not fake.proxy.alive())
    assert not session.lost, "the proxy may end after it"


def test_a_link_that_is_full_does_not_hold_up_the_caller(trust, monkeypatch):
    monkeypatch.setattr(link, "TAKE_SECONDS", 0.1)
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proxy = EdgeProxy(own)
    threading.Thread(
        target=lambda: (theirs.recv(LARGEST), theirs.send(write_message("opened", session=1, ca="PEM"))),
        daemon=True,
    ).start()
    session = proxy.open(RULES, [], mask_queries=False, trust=trust)
    numbers = [take(session, b"x" * 16_000) for _ in range(20)]
    assert None in numbers
    assert numbers[0] == 1
    assert any("could not be handed" in each.reason for each in session.requests())
    proxy.close()
    theirs.close()


def test_first_bytes_that_are_too_many_are_refused(fake, session):
    assert take(session, b"x" * LARGEST) is None
    assert fake.proxy.alive()


def test_entries_that_are_too_large(fake, trust):
    with pytest.raises(LeaseFailed, match="too large"):
        fake.proxy.open(RULES, ["s" * LARGEST], mask_queries=False, trust=trust)


def test_a_session_that_does_not_close(trust, monkeypatch):
    monkeypatch.setattr(link, "CLOSE_SECONDS", 0.1)
    fake = Fake(answers=False)
    threading.Thread(
        target=lambda: (until(lambda: fake.heard), fake.say("opened", session=1, ca="PEM")), daemon=True
    ).start()
    session = fake.proxy.open(RULES, [], mask_queries=False, trust=trust)
    take(session)
    session.close()
    assert "ended before" in session.requests()[0].reason
    assert (session.lost, session.unheard) == (False, True)
    fake.say("request", **REQUEST)
    assert take(session) is None
    fake.end()


def test_a_proxy_is_closed_twice(fake, session):
    fake.proxy.close()
    fake.proxy.close()
    assert not fake.proxy.alive()
    assert take(session) is None
    session.close()
