"""Nothing of a secret passes, however it is cut; and nothing else is touched."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from edgerig import unframe
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.netns.edge.bodies import Body, Decoder, Frames, Sent, Unreadable, accept_of, frame, without_interim
from stockade.netns.edge.mask import SMALL, Masker, forms

SECRET = 'k9/+="Zq7&x~w'
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=4, max_size=30)


def written(secret):
    """Forms that servers make, by the libraries that they use."""
    raw = secret.encode()
    yield from (raw, raw.hex().encode(), raw.hex().upper().encode())
    yield from (quote(secret).encode(), quote(secret, safe="").encode(), quote_plus(secret).encode())
    yield from (json.dumps(secret)[1:-1].encode(), json.dumps(secret, ensure_ascii=False)[1:-1].encode())
    yield from (base64.b64encode(raw), base64.urlsafe_b64encode(raw))


def inner(before, raw, after):
    """What of the base64 of a longer text depends on ``raw`` alone."""
    text = base64.b64encode(before + raw + after)
    first, last = -(-len(before) * 8 // 6), (len(before) + len(raw)) * 8 // 6
    return text, first, last


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def streamed(masker, pieces):
    stream = masker.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.end()])


@given(TEXT, st.binary(max_size=20), st.binary(max_size=20), st.lists(st.integers(0, 400), max_size=6))
def test_every_form_is_masked_however_it_is_cut(secret, before, after, places):
    masker = Masker([secret])
    for form in written(secret):
        if len(form) < 4:
            continue
        data = before + form + after
        found = masker.bytes(data)
        assert len(found) == len(data)
        assert form not in found or set(form) == {ord("*")}
        assert found[len(before) : len(before) + len(form)] == b"*" * len(form)
        assert streamed(masker, cut(data, places)) == found


@given(TEXT, st.binary(max_size=8), st.binary(max_size=8))
def test_base64_is_masked_wherever_the_secret_stands_in_it(secret, before, after):
    raw = secret.encode()
    text, first, last = inner(before, raw, after)
    found = Masker([secret]).bytes(text)
    assert set(found[first:last]) <= {ord("*")}
    other = text.translate(bytes.maketrans(b"+/", b"-_"))
    assert set(Masker([secret]).bytes(other)[first:last]) <= {ord("*")}


@given(
    st.lists(st.text("ab*", min_size=4, max_size=9), min_size=1, max_size=4),
    st.text("ab*x", max_size=60),
    st.data(),
)
@settings(max_examples=200)
def test_secrets_that_overlap(secrets, text, data):
    """The letters are few, so that secrets share beginnings, ends and middles."""
    masker = Masker(secrets)
    plain = b"." * data.draw(st.sampled_from([0, SMALL])) + text.encode()
    wanted = bytearray(plain)
    for pattern in {form for secret in secrets for form in forms(secret)}:
        for place in range(len(plain)):
            if plain.startswith(pattern, place):
                wanted[place : place + len(pattern)] = b"*" * len(pattern)
    assert masker.bytes(plain) == bytes(wanted)
    places = data.draw(st.lists(st.integers(0, len(plain)), max_size=10))
    assert streamed(masker, cut(plain, places)) == bytes(wanted)
    assert streamed(masker, [bytes([byte]) for byte in plain]) == bytes(wanted)


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6))
def test_what_is_no_secret_is_not_touched(data, places):
    masker = Masker(["correct horse battery staple", SECRET])
    assert masker.bytes(data) == data
    assert streamed(masker, cut(data, places)) == data


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_a_stream_holds_back_no_more_than_a_beginning(pieces):
    masker = Masker([SECRET])
    stream, came, went = masker.stream(), 0, 0
    for piece in pieces:
        came += len(piece)
        went += len(stream.feed(piece))
        assert came - masker.longest < went <= came


def test_what_can_not_begin_a_secret_goes_at_once():
    stream = Masker([SECRET]).stream()
    assert stream.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert stream.feed(b"data: k9") == b"data: "
    assert stream.feed(b"!") == b"k9!"


JSON = SECRET.replace('"', '\\"')


@pytest.mark.parametrize(
    "form",
    [
        f"Bearer {SECRET}",
        SECRET.lower(),
        SECRET.upper(),
        JSON.replace("/", "\\/"),
        JSON.replace("&", "\\u0026"),
        SECRET.replace("&", "&amp;").replace('"', "&quot;"),
        "".join(f"%{byte:02x}" for byte in SECRET.encode()),
        re.sub("%..", lambda found: found[0].lower(), quote(SECRET, safe="")),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        SECRET.encode("utf-16-le").decode("ascii"),
        SECRET.encode("utf-16-be").decode("ascii"),
    ],
)
def test_further_forms(form):
    found = Masker([SECRET]).text(f"<{form}>")
    assert "Zq7" not in found.replace("\0", "")
    assert "*" * 10 in found
    assert len(found) == len(form) + 2


def test_texts_that_are_not_ascii():
    masker = Masker(["pässwörd"])
    assert masker.text("a pässwörd b") == "a " + "*" * 10 + " b"
    assert masker.text("p\\u00e4ssw\\u00f6rd") == "*" * 18
    assert masker.text("\udce9 ok") == "\udce9 ok"


@pytest.mark.parametrize("secret", ["", "a", "abc", "é!"])
def test_short_secrets_are_an_error(secret):
    with pytest.raises(ValueError, match="too short to be masked") as caught:
        Masker(["long enough", secret])
    assert not secret or f"{secret!r}" not in str(caught.value)


def test_no_secrets():
    masker = Masker([])
    assert masker.bytes(b"abc") == b"abc"
    assert masker.text("abc") == "abc"
    assert masker.stream().feed(b"abc") == b"abc"


# --- bodies ------------------------------------------------------------------------------------------------


def bodied(coding, data, places=()):
    body = Body(Masker([SECRET]), coding)
    out = [piece for given in cut(data, places) if given for piece in body(given)]
    out += body(b"")
    assert all(out), "an empty piece ends a chunked body"
    assert body.size == sum(map(len, out))
    return b"".join(out)


RAW_DEFLATE = zlib.compressobj(wbits=-15)
PLAIN = b"a" * 5000 + SECRET.encode() + b"z"
MASKED = b"a" * 5000 + b"*" * len(SECRET) + b"z"


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("", PLAIN),
        ("gzip", gzip.compress(PLAIN)),
        ("x-gzip", gzip.compress(PLAIN[:77]) + gzip.compress(PLAIN[77:])),
        ("deflate", zlib.compress(PLAIN)),
        ("deflate", RAW_DEFLATE.compress(PLAIN) + RAW_DEFLATE.flush()),
    ],
)
@given(places=st.lists(st.integers(0, 6000), max_size=5))
@settings(max_examples=25)
def test_bodies(coding, data, places):
    assert bodied(coding, data, places) == MASKED


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", PLAIN),
        ("gzip", gzip.compress(PLAIN)[:-3]),
        ("gzip", gzip.compress(PLAIN) + b"rest"),
        ("deflate", b"\xff" * 50),
        ("deflate", zlib.compress(PLAIN) + b"rest"),
        ("gzip", gzip.compress(bytes(20 << 20))),
    ],
)
def test_bodies_that_can_not_be_read(coding, data):
    with pytest.raises(Unreadable):
        bodied(coding, data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    decoder = Decoder("gzip")
    try:
        decoder.feed(data)
        decoder.end()
    except Unreadable:
        pass


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n"),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 100\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n"),
        (b"HTTP/1.1 101 Switching\r\n\r\nx", b"HTTP/1.1 101 Switching\r\n\r\nx"),
        (b"HTTP/1.1 1000 x\r\n\r\nx", b"HTTP/1.1 1000 x\r\n\r\nx"),
        (b"", b""),
    ],
)
def test_interim_answers(data, left):
    assert without_interim(data) == left


# --- websockets --------------------------------------------------------------------------------------------


PARTS = [b"", b"x", SECRET[:5].encode(), SECRET[5:].encode(), SECRET.encode(), b"y" * 200]
MESSAGE = st.tuples(st.sampled_from([1, 2]), st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))


@given(st.lists(MESSAGE, max_size=4), st.lists(st.integers(0, 2000), max_size=8))
def test_frames(messages, places):
    sent, wanted, masker = b"", [], Masker([SECRET])
    for kind, parts in messages:
        for number, part in enumerate(parts):
            sent += frame(0 if number else kind, part, final=number == len(parts) - 1)
        wanted.append((kind, masker.bytes(b"".join(parts))))
    frames = Frames(masker)
    got = b"".join(frames.feed(piece) for piece in cut(sent, places))
    assert [each for each in unframe(got) if each[0] < 8] == wanted


def test_control_frames_between_fragments():
    frames = Frames(Masker([SECRET]))
    sent = frame(1, b"ab" + SECRET[:4].encode(), final=False) + frame(9, SECRET.encode(), final=True)
    sent += frame(0, SECRET[4:].encode(), final=True) + frame(8, b"\x03\xe8", final=True)
    masked = b"*" * len(SECRET)
    assert unframe(frames.feed(sent)) == [(9, masked), (1, b"ab" + masked), (8, b"\x03\xe8")]


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1\0",
        b"\x91\0",
        b"\x81\x80",
        b"\x80\0",
        b"\x01\0\x01\0",
        b"\x09\0",
        b"\x89\x7e\0\x7e",
        b"\x83\0",
        b"\x01\0\x82\0",
    ],
)
def test_frames_that_can_not_be_read(data):
    with pytest.raises(Unreadable):
        Frames(Masker([SECRET])).feed(data)


@given(st.binary(max_size=100))
def test_any_frames_are_read_or_refused(data):
    try:
        Frames(Masker([SECRET])).feed(data)
    except Unreadable:
        pass


def test_large_frames():
    for size in (125, 126, 65535, 65536, 200_000):
        assert unframe(Frames(Masker([SECRET])).feed(frame(2, b"q" * size, final=True))) == [(2, b"q" * size)]


@given(st.lists(st.binary(max_size=300), max_size=4), st.lists(st.integers(0, 1500), max_size=6))
def test_what_the_program_sends_is_passed_as_it_is(payloads, places):
    sent = b""
    for payload in payloads:
        made = frame(2, payload, final=True)
        size = len(made) - len(payload)
        sent += made[:1] + bytes([made[1] | 128]) + made[2:size] + b"mask" + payload
    way = Sent()
    assert b"".join(way.feed(piece) for piece in cut(sent, places)) == sent


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"0\r\n", b"\x81\x01x", b"\x82\x80mask" + b"PUT /", b"\x89\xfe\0\x7e"]
)
def test_what_is_no_frame_of_a_program(data):
    with pytest.raises(Unreadable):
        Sent().feed(data)


def test_the_answer_to_a_key():
    assert accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
