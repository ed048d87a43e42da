"""Tokens are found in every spelling, packed or in pieces; and nothing is found where there is none."""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import urllib.parse
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.review.canary import make_bait
from stockade.sandbox.review.search import Searcher, spellings, varying

BAIT = make_bait()
TOKENS = {each.name: each.token for each in BAIT.canaries}
SEARCHER = Searcher(TOKENS.items())
NAME = "ssh-key"
TOKEN = TOKENS[NAME].encode()

ENCODERS = {
    "plain": lambda data: data,
    "upper": bytes.upper,
    "reversed": lambda data: data[::-1],
    "base64": base64.b64encode,
    "base64 for addresses": base64.urlsafe_b64encode,
    "base64 without padding": lambda data: base64.b64encode(data).rstrip(b"="),
    "wrapped base64": base64.encodebytes,
    "base64 twice": lambda data: base64.b64encode(base64.b64encode(data)),
    "base64 reversed": lambda data: base64.b64encode(data)[::-1],
    "reversed, then base64": lambda data: base64.b64encode(data[::-1]),
    "base32": base64.b32encode,
    "base32 in lower case": lambda data: base64.b32encode(data).lower(),
    "hex": lambda data: data.hex().encode(),
    "upper hex": lambda data: data.hex().upper().encode(),
    "hex with blanks": lambda data: data.hex(" ").encode(),
    "hex with colons": lambda data: data.hex(":").encode(),
    "a list of hex": lambda data: ", ".join(f"0x{each:02x}" for each in data).encode(),
    "a list of numbers": lambda data: ", ".join(map(str, data)).encode(),
    "letters with dots between": lambda data: b".".join(data[at : at + 1] for at in range(len(data))),
    "every byte changed, in base64": lambda data: base64.b64encode(bytes(each ^ 0x5A for each in data)),
    "every byte changed, in hex": lambda data: bytes(each ^ 7 for each in data).hex().encode(),
    "escapes": lambda data: b"".join(b"\\x%02x" % each for each in data),
    "percent signs everywhere": lambda data: b"".join(b"%%%02X" % each for each in data),
    "percent signs where needed": lambda data: urllib.parse.quote_from_bytes(data).encode(),
    "rot13": lambda data: __import__("codecs").encode(data.decode("latin-1"), "rot13").encode("latin-1"),
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "gzip in base64": lambda data: base64.b64encode(gzip.compress(data)),
    "gzip in wrapped base64": lambda data: base64.encodebytes(gzip.compress(data)),
    "gzip in hex": lambda data: gzip.compress(data).hex().encode(),
    "base64 in percent signs": lambda data: urllib.parse.quote(base64.b64encode(data)).encode(),
    "base64 in gzip": lambda data: gzip.compress(base64.b64encode(data)),
}
AROUND = st.binary(max_size=300)


def names(data: bytes) -> set[str]:
    return {hit.name for hit in SEARCHER.find(data)}


@pytest.mark.parametrize("encoder", ENCODERS)
@given(before=AROUND, behind=AROUND)
@settings(max_examples=25, deadline=None)
def test_each_encoding_is_found_wherever_it_stands(encoder: str, before: bytes, behind: bytes) -> None:
    inside = before + TOKEN + behind
    if encoder == "rot13":
        inside = TOKEN
    assert NAME in names(b"POST /v1 " + ENCODERS[encoder](inside) + b" end")
    assert names(ENCODERS[encoder](before.replace(TOKEN, b""))) == set()


@given(st.binary(max_size=20_000))
@settings(max_examples=50, deadline=None)
def test_nothing_is_found_in_random_data(data: bytes) -> None:
    assert SEARCHER.find(data) == []
    assert SEARCHER.pieces([data[at : at + 500] for at in range(0, len(data), 500)]) == []


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", max_size=20_000))
@settings(max_examples=50, deadline=None)
def test_nothing_is_found_in_random_letters(text: str) -> None:
    data = text.encode()
    assert SEARCHER.find(data) == []
    assert SEARCHER.pieces([data[at : at + 40] for at in range(0, len(data), 40)]) == []


@given(st.binary(max_size=400), st.sampled_from([b"\x1f\x8b\x08", b"\x78\x9c", b"BZh", b"\xfd7zXZ\0"]))
@settings(max_examples=100, deadline=None)
def test_broken_streams_do_no_harm(data: bytes, magic: bytes) -> None:
    assert names(data + magic + data) == set()


def test_a_bomb_is_not_unpacked_whole() -> None:
    assert names(gzip.compress(b"\0" * (64 << 20))) == set()


@pytest.mark.parametrize("size", [6, 8, 11, 16])
@pytest.mark.parametrize("encode", [lambda data: data, base64.b64encode, lambda data: data.hex().encode()])
def test_pieces_over_several_requests_are_put_together(size: int, encode) -> None:
    written = encode(TOKEN)
    parts = [written[at : at + size] for at in range(0, len(written), size)]
    texts = [
        b"GET /p?n=%d&d=%s HTTP/1.1\nHost: c.example\nUser-Agent: x\n\n" % (i, part) for i, part in enumerate(parts)
    ]
    assert names(texts[0]) == set()
    assert [hit.name for hit in SEARCHER.pieces(texts)] == [NAME]
    assert SEARCHER.pieces(texts)[0].encoding.startswith("split")
    assert SEARCHER.pieces(texts[:1]) == []
    assert SEARCHER.pieces(texts, known=[NAME]) == []


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_short_pieces_are_found_in_their_order(size: int) -> None:
    parts = [TOKEN[at : at + size] for at in range(0, len(TOKEN), size)]
    texts = [part.lower() + b".exfil.example" for part in parts if part]
    found = SEARCHER.pieces(texts)
    # Equal pieces are asked for once, by whoever resolves names: nobody can tell what two of them were.
    assert len(set(texts)) < len(texts) or [hit.name for hit in found] == [NAME]


@pytest.mark.parametrize("encode", [lambda data: data, base64.b32encode, lambda data: data.hex().encode()])
@pytest.mark.parametrize("shuffle", [list, lambda names: names[::-1], sorted])
def test_short_pieces_with_their_number_are_found_in_any_order(encode, shuffle) -> None:
    written = encode(TOKEN)
    parts = [written[at : at + 4].lower() for at in range(0, len(written), 4)]
    texts = shuffle([b"%d-%s.t.example" % (number, part) for number, part in enumerate(parts)])
    assert [hit.name for hit in SEARCHER.pieces(texts)] == [NAME]
    assert SEARCHER.pieces([text for text in texts if not text.startswith((b"1", b"2"))]) == []


def test_an_excerpt_has_its_surroundings_and_never_the_token() -> None:
    (hit,) = SEARCHER.find(b"POST /collect\r\n\r\nkey=" + TOKEN + b"&host=\x1b[31mme")
    assert hit.excerpt == f"POST /collect key=[canary {NAME}]&host=\N{MIDDLE DOT}[31mme"
    assert TOKEN.decode() not in hit.excerpt


def test_a_sighting_says_where_and_leaves_out_what_was_there_before() -> None:
    (seen,) = SEARCHER.sightings(b"x" + TOKEN, "file", "~/copy")
    assert (seen.canary, seen.where, seen.encoding, seen.place) == (NAME, "file", "plain", "~/copy")
    assert SEARCHER.sightings(TOKEN, "file", "~/copy", known=[NAME]) == []


def test_layers_are_named_from_the_outside_in() -> None:
    assert [hit.encoding for hit in SEARCHER.find(base64.b64encode(gzip.compress(b"a" * 40 + TOKEN)))] == [
        "base64+gzip"
    ]


def test_spellings_are_long_enough_to_be_told_from_chance() -> None:
    assert all(len(text) >= 30 for _encoding, text in spellings(TOKEN))


@given(
    st.lists(st.binary(min_size=1, max_size=8), min_size=2, max_size=6),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
@settings(deadline=None)
def test_what_varies_is_what_is_left_without_the_frame(middles: list[bytes], head: bytes, tail: bytes) -> None:
    texts = [head + each + tail for each in middles]
    for text, part in zip(texts, varying(texts), strict=True):
        assert part in text
        assert len(part) <= len(text) - min(len(head), len(text)) or not head
