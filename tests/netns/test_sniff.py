"""Bytes in, what they are out: real ClientHellos, made-up heads, and everything hypothesis can think of."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns.sniff import ENOUGH, PREFACE, Sniffed, host_name, needs_more, printable, sniff


def client_hello(name="api.example.com", alpn=(), version=None):
    """What OpenSSL really sends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if version:
        context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def records(data, size):
    """The handshake message of a hello, cut into TLS records of ``size`` bytes."""
    message = data[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(data[:3] + struct.pack("!H", len(piece)) + piece for piece in pieces)


def extension(number, content):
    return struct.pack("!HH", number, len(content)) + content


def server_name(name):
    return extension(0, struct.pack("!HBH", len(name) + 3, 0, len(name)) + name)


def made_hello(*extensions, session=b"", length=None):
    tail = b"".join(extensions)
    ciphers = b"\x0a\x0a\x13\x01"  # the first is a GREASE value
    body = b"\x03\x03" + bytes(32) + bytes([len(session)]) + session + b"\0\x04" + ciphers + b"\1\0"
    body += struct.pack("!H", len(tail)) + tail
    message = b"\1" + (len(body) if length is None else length).to_bytes(3, "big") + body
    return b"\x16\3\1" + struct.pack("!H", len(message)) + message


GREASE = extension(0x0A0A, b"")
ALPN = extension(16, b"\0\x0c\x02h2\x08http/1.1")

# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_real_hello_tells_its_server_name_and_protocols(version):
    data = client_hello(alpn=["h2", "http/1.1"], version=version)
    seen = sniff(data)
    assert (seen.via, seen.host, seen.alpn) == ("tls", "api.example.com", ("h2", "http/1.1"))
    assert seen.text == "TLS ClientHello, server name api.example.com, ALPN h2 http/1.1"
    assert not needs_more(data)


@pytest.mark.parametrize("size", [1, 5, 100, 200])
def test_a_hello_may_be_split_over_records(size):
    data = records(client_hello(alpn=["h2"]), size)
    assert sniff(data[:ENOUGH]).host == "api.example.com"
    assert not needs_more(data)


def test_every_beginning_of_a_hello_needs_more_and_never_tells_half_a_name():
    data = client_hello()
    for length in range(len(data)):
        assert needs_more(data[:length]), length
        assert sniff(data[:length]).host in (None, "api.example.com")
    assert not needs_more(data)
    assert not needs_more(data + b"\x14\3\3\0\1\1")


def test_a_hello_without_a_name():
    seen = sniff(client_hello(name=None))
    assert (seen.via, seen.host, seen.text) == ("tls", None, "TLS ClientHello, no server name")


@pytest.mark.parametrize(
    ("data", "host", "alpn"),
    [
        (made_hello(GREASE, server_name(b"a.example"), ALPN), "a.example", ("h2", "http/1.1")),
        (made_hello(ALPN, GREASE, server_name(b"A.Example.")), "a.example", ("h2", "http/1.1")),
        (made_hello(server_name(b"first.example"), server_name(b"second.example")), "first.example", ()),
        (made_hello(server_name(b"192.0.2.7")), "192.0.2.7", ()),
        (made_hello(server_name(b"a\0.example")), "'a\\x00.example'", ()),
        (made_hello(server_name("bücher.example".encode())), "'b\\xc3\\xbccher.example'", ()),
        (made_hello(server_name(b"")), None, ()),
        (made_hello(extension(0, b"\0\x05\0\0\xffab")), None, ()),  # a name longer than its list
        (made_hello(extension(16, b"\0\x03\x05h2")), None, ("h2",)),
        (made_hello(extension(16, b"\0\x03\x02\x1b\n")), None, ("\\x1b\\n",)),
        (made_hello(session=bytes(32)), None, ()),
        (made_hello(), None, ()),
    ],
)
def test_extensions(data, host, alpn):
    seen = sniff(data)
    assert (seen.via, seen.host, seen.alpn) == ("tls", host, alpn)
    assert not needs_more(data)


def test_an_encrypted_hello_shows_its_outer_name():
    seen = sniff(made_hello(extension(0xFE0D, bytes(60)), server_name(b"front.example")))
    assert seen.host == "front.example"
    assert seen.text.endswith("encrypted inner hello")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\3\1\0\4\2\0\0\0",  # a ServerHello
        b"\x16\2\1\0\4\1\0\0\0",
        b"\x16\3\1\0\0",
        b"\x16\3\1\xff\xff\1\0\0\1\0",
        b"\x17\3\3\0\5hello",
        b"\x80\x2e\1\0\2",  # the form of SSL 2
    ],
)
def test_what_is_no_client_hello(data):
    assert (sniff(data).via, needs_more(data)) == ("tcp", False)


def test_a_hello_that_never_ends_is_not_waited_for_for_ever():
    data = made_hello(server_name(b"a.example"), length=0xFFFFFF)
    assert needs_more(data)
    assert not needs_more(data + bytes(ENOUGH))
    assert sniff(data + bytes(1 << 20)).host == "a.example"


# --- HTTP --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "method", "target", "host"),
    [
        ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET", "/", "a.example"),
        ("GET /x?y HTTP/1.0\r\nhost:A.Example:8080\r\n\r\n", "GET", "/x?y", "a.example"),
        ("GET / HTTP/1.1\nHost: a.example\n\n", "GET", "/", "a.example"),
        ("POST / HTTP/1.1\r\nX: 1\r\nHost: a.example\r\n\r\nHost: body.example\r\n", "POST", "/", "a.example"),
        ("POST / HTTP/1.1\r\nX: 1\r\n\r\nHost: body.example\r\n", "POST", "/", None),
        ("GET http://b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET", "http://b.example/x", "b.example"),
        ("GET http://user@b.example:81?q HTTP/1.1\r\n\r\n", "GET", "http://user@b.example:81?q", "b.example"),
        ("CONNECT c.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", "CONNECT", "c.example:443", "c.example"),
        ("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\n", "CONNECT", "[2001:db8::1]:443", "2001:db8::1"),
        ("GET / HTTP/1.1\r\nHost: [2001:DB8::1]\r\n\r\n", "GET", "/", "2001:db8::1"),
        ("GET / HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n", "GET", "/", "192.0.2.1"),
        ("GET / HTTP/1.1\r\nHost: evil example\r\n\r\n", "GET", "/", "'evil example'"),
        ("GET / HTTP/1.1\r\nHost: a@b/c\r\n\r\n", "GET", "/", "'a@b/c'"),
        ("GET / HTTP/1.1\r\nHost: a.example:http\r\n\r\n", "GET", "/", "'a.example:http'"),
        ("GET / HTTP/1.1\r\nHost: 0x7f.0x1\r\n\r\n", "GET", "/", "'0x7f.0x1'"),
        ("GET /\x1b[2J HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET", "/\\x1b[2J", "a.example"),
        ("GET / HTTP/1.1\r\n\r\n", "GET", "/", None),
        ("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", "OPTIONS", "*", None),
        ("M-SEARCH * HTTP/1.1\r\nHost: 239.255.255.250:1900\r\n\r\n", "M-SEARCH", "*", "239.255.255.250"),
    ],
)
def test_request_heads(head, method, target, host):
    seen = sniff(head.encode())
    assert (seen.via, seen.method, seen.target, seen.host) == ("http", method, target, host)
    assert not needs_more(head.encode())


def test_every_beginning_of_a_head_needs_more_and_never_tells_half_a_name():
    head = b"POST /path HTTP/1.1\r\nAccept: */*\r\nHost: a.example\r\n\r\n"
    for length in range(len(head)):
        assert needs_more(head[:length]), head[:length]
        assert sniff(head[:length]).host in (None, "a.example")
    assert not needs_more(head)


def test_http2_by_prior_knowledge():
    seen = sniff(PREFACE + b"\0\0\x12\4\0")
    assert (seen.via, seen.host, seen.method) == ("http", None, "")
    assert needs_more(PREFACE[:20])
    assert not needs_more(PREFACE)


def test_a_long_target_is_cut():
    assert len(sniff(b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\n\r\n").target) == 1024


# --- the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text", "more"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2\n", False),
        (b"SSH-2.0-Open", "SSH-2.0-Open", True),
        (b"EHLO mail.example\r\n", "EHLO mail.example\n", False),
        (b"hello", "hello", False),
        (b"GET /", "GET /", True),
        (b"GET a b c", "GET a b c", False),
        (b"", "", True),
        (b"\0\1\xff", "\\x00\\x01\\xff", False),
        ("grün\t\u202e\U000e0001".encode(), "grün\t\\u202e\\U000e0001", False),
        (b"a\rb\x1b]0;x\a", "a\\x0db\\x1b]0;x\\x07", False),
    ],
)
def test_anything_else_is_text(data, text, more):
    assert sniff(data) == Sniffed("tcp", None, (), "", "", text)
    assert needs_more(data) is more


def test_a_datagram_is_a_datagram_whatever_it_holds():
    assert sniff(b"GET / HTTP/1.1\r\n\r\n", "udp") == Sniffed("udp", None, (), "", "", "GET / HTTP/1.1\n\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a.example", "a.example"),
        ("A.EXAMPLE.", "a.example"),
        ("localhost", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "'fe80::1%eth0'"),
        ("a_b.example", "'a_b.example'"),
        ("-a.example", "'-a.example'"),
        ("a-.example", "'a-.example'"),
        ("a..example", "'a..example'"),
        (".", "'.'"),
        ("1.2.3", "'1.2.3'"),
        ("\u0130.example", "'\\u0130.example'"),
        ("x" * 64 + ".example", repr("x" * 64 + ".example")),
        (".".join(["abcd"] * 60), repr(".".join(["abcd"] * 60)[:253])),
    ],
)
def test_host_names_are_strict_or_quoted(text, shown):
    assert host_name(text) == shown


def harmless(text):
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


SHAPED = st.one_of(
    st.binary(max_size=6000),
    st.binary(max_size=300).map(lambda tail: b"\x16\3\1" + tail),
    st.lists(st.binary(max_size=40), max_size=5).map(
        lambda parts: made_hello(
            *(extension(number, part) for number, part in zip((0, 16, 0, 16, 9), parts, strict=False))
        )
    ),
    st.binary(max_size=300).map(lambda tail: b"GET / HTTP/1.1\r\nHost: " + tail + b"\r\n\r\n"),
    st.binary(max_size=60).map(lambda target: b"CONNECT " + target + b" HTTP/1.1\r\n\r\n"),
)


@given(SHAPED, st.sampled_from(["tcp", "udp"]))
def test_nothing_raises_and_nothing_odd_is_shown(data, protocol):
    seen = sniff(data, protocol)
    assert seen.via in ("tls", "http", "tcp", "udp")
    assert all(map(harmless, (seen.text, seen.method, seen.target, *seen.alpn)))
    assert not {"\n", "\t"} & set("".join((seen.method, seen.target, *seen.alpn)))
    if seen.host is not None:
        assert seen.host.isascii()
        assert seen.host.isprintable()
        assert seen.host == host_name(seen.host) or seen.host[0] in "'\""
    assert isinstance(needs_more(data), bool)
    assert not (len(data) >= ENOUGH and needs_more(data))


@given(st.integers(0, 600), st.binary(min_size=1, max_size=8))
def test_a_damaged_hello_does_no_harm(at, damage):
    data = made_hello(GREASE, server_name(b"a.example"), ALPN, session=bytes(32))
    at %= len(data)
    assert harmless(sniff(data[:at] + damage + data[at + len(damage) :]).text)


@given(st.binary(max_size=200))
def test_printable_keeps_lines(data):
    assert harmless(printable(data))
    assert printable(data).count("\n") == data.count(b"\n")
