"""Where tokens turn up in bytes: as they are, encoded, compressed, in pieces. Pure.

All comparisons ignore case: names and hexadecimal digits lose it, and a token is long enough without. What is
looked into is bounded; nothing here raises for what it is given.
"""

from __future__ import annotations

import base64
import re

from stockade.policies.record import Record
from stockade.sandbox.review import unpack
from stockade.sandbox.review.model import Sighting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AROUND = 48
"""Bytes of context on either side."""
GRAM = 5
"""The shortest piece of a token that counts as one."""
COVERED = 0.75
"""How much of a token its pieces must make up."""
MOST_PIECED = 1 << 18
"""Bytes that are searched for pieces."""


WORDS = re.compile(rb"[A-Za-z0-9]+")
MOST_ROWS, MOST_ROW, MOST_COLUMNS = 2000, 300, 12
"""Of texts that are put together word by word."""


class Hit(Record):
    """One token found."""

    name: str
    encoding: str
    excerpt: str = ""


class Searcher:
    """Looks for a set of tokens. Made once for a review; any thread may use it."""

    def __init__(self, tokens: Iterable[tuple[str, str]]) -> None:
        """``tokens``: names and letters (ASCII, 16 at least)."""
        self.patterns: list[tuple[bytes, str, str]] = []
        known = list(tokens)
        for name, token in known:
            self.patterns += [(text, name, encoding) for encoding, text in spellings(token.encode())]
        self.plain = {token.encode().lower() for _name, token in known}
        self.grams = grams_of(self.patterns)
        self.steps = [(steps(token.encode()), name) for name, token in known]

    def find(self, data: bytes) -> list[Hit]:
        """Every token that is in ``data``, each once, with how it is written."""
        found: dict[str, Hit] = {}
        for layers, piece in unpack.layers(data):
            for hit in self._plain(piece, layers):
                found.setdefault(hit.name, hit)
        return list(found.values())

    def sightings(self, data: bytes, where: str, place: str, known: Iterable[str] = ()) -> list[Sighting]:
        """The same as evidence; without those that are ``known`` to be there."""
        old = set(known)
        return [
            Sighting(hit.name, where, hit.encoding, place, hit.excerpt)
            for hit in self.find(data)
            if hit.name not in old
        ]

    def pieces(self, texts: Sequence[bytes], known: Iterable[str] = ()) -> list[Hit]:
        """Tokens that are in no text as a whole, but in several together; ``known`` ones are left out."""
        old = set(known)
        found = {hit.name: hit for hit in self._joined(texts) if hit.name not in old}
        for hit in self._covered(texts):
            if hit.name not in old:
                found.setdefault(hit.name, hit)
        return list(found.values())

    def _plain(self, data: bytes, layers: tuple[str, ...]) -> Iterable[Hit]:
        for text in unpack.views(data):
            low = text.lower()
            for pattern, name, encoding in self.patterns:
                at = low.find(pattern)
                if at >= 0:
                    written = "+".join((*layers, *((encoding,) if encoding != "plain" or not layers else ())))
                    yield Hit(name, written, excerpt(text, at, at + len(pattern), name))

        stepped = steps(data)
        for pattern, name in self.steps:
            at = stepped.find(pattern)
            # Steps are the same for the token itself, which is found above.
            if at >= 0 and data[at : at + len(pattern) + 1].lower() not in self.plain:
                yield Hit(name, "+".join((*layers, "xor")), "every byte changed by the same one")

    def _joined(self, texts: Sequence[bytes]) -> Iterable[Hit]:
        """What differs from one text to the next, put together in their order."""
        different = list(dict.fromkeys(texts))
        if len(different) < 2:
            return
        for whole in (b"".join(varying(different)), b"".join(different), *columns(different)):
            for hit in self.find(whole):
                yield hit.replace(encoding=split_of(hit.encoding))

    def _covered(self, texts: Sequence[bytes]) -> Iterable[Hit]:
        """Tokens most of whose letters are in the texts, in pieces from more than one of them."""
        seen: dict[int, set[int]] = {}
        sources: dict[int, set[int]] = {}
        room = MOST_PIECED
        for number, text in enumerate(dict.fromkeys(texts)):
            low = text[:room].lower()
            room -= len(low)
            for start in range(len(low) - GRAM + 1):
                for which, at in self.grams.get(low[start : start + GRAM], ()):
                    seen.setdefault(which, set()).update(range(at, at + GRAM))
                    sources.setdefault(which, set()).add(number)
        for which, places in seen.items():
            pattern, name, encoding = self.patterns[which]
            if len(sources[which]) > 1 and len(places) >= COVERED * len(pattern):
                about = f"{len(places)} of {len(pattern)} letters, in {len(sources[which])} pieces"
                yield Hit(name, split_of(encoding), about)


def split_of(encoding: str) -> str:
    return "split" if encoding == "plain" else f"split+{encoding}"


def grams_of(patterns: Sequence[tuple[bytes, str, str]]) -> dict[bytes, list[tuple[int, int]]]:
    """Short pieces, and where they stand in which pattern."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for number, (pattern, _name, _encoding) in enumerate(patterns):
        for at in range(len(pattern) - GRAM + 1):
            found.setdefault(pattern[at : at + GRAM], []).append((number, at))
    return found


# --- spellings -----------------------------------------------------------------------------------------------


def spellings(token: bytes) -> list[tuple[str, bytes]]:
    """Names of encodings and what a token looks like in them, in lower case."""
    found = [("plain", token), ("reversed", token[::-1]), ("rot13", rot13(token))]
    found += [("hex", token.hex().encode()), ("hex", b"".join(b"\\x%02x" % each for each in token))]
    found += [("url", b"".join(b"%%%02x" % each for each in token))]
    for shift in range(3):
        plain = inner(base64.b64encode, token, shift, 6)
        safe = plain.translate(bytes.maketrans(b"+/", b"-_"))
        found += [("base64", plain)] + ([("base64", safe)] if safe != plain else [])
        found.append(("reversed+base64", inner(base64.b64encode, token[::-1], shift, 6)))
        found.append(("base64+reversed", plain[::-1]))
    found += [("base32", inner(base64.b32encode, token, shift, 5)) for shift in range(5)]
    return [(name, text.lower()) for name, text in found]


def inner(encode: object, token: bytes, shift: int, bits: int) -> bytes:
    """The letters that depend on the token alone, when ``shift`` bytes stand before it."""
    text = bytes(encode(b"\0" * shift + token))  # type: ignore[operator]
    start, end = -(-8 * shift // bits), 8 * (shift + len(token)) // bits
    return text[start:end]


def steps(data: bytes) -> bytes:
    """What each byte differs by from the one before, which stays the same when all are changed by one byte."""
    if len(data) < 2:
        return b""
    number = int.from_bytes(data, "big")
    return (number ^ (number >> 8)).to_bytes(len(data), "big")[1:]


def rot13(token: bytes) -> bytes:
    import codecs

    return codecs.encode(token.decode("ascii"), "rot13").encode()


# --- pieces and excerpts -------------------------------------------------------------------------------------


def varying(texts: Sequence[bytes]) -> list[bytes]:
    """The texts without what all of them begin and end with."""
    first, last = min(texts), max(texts)
    head = common(first, last)
    rest = [text[head:] for text in texts]
    back = [text[::-1] for text in rest]
    tail = common(min(back), max(back))
    return [text[: len(text) - tail] for text in rest]


def columns(texts: Sequence[bytes]) -> Iterable[bytes]:
    """Each word of texts of one build (``0-4a6f.t.example``, ``1-...``) put together down the texts: in their order, and in
    that of a number beside it."""
    rows = [WORDS.findall(text[:MOST_ROW]) for text in texts[:MOST_ROWS]]
    width = max(map(len, rows), default=0)
    rows = [row for row in rows if len(row) == width]
    down = [list(each) for each in zip(*rows, strict=True)][:MOST_COLUMNS]
    numbered = [each for each in down if all(word.isdigit() for word in each) and len(set(each)) == len(each)]
    for each in down:
        if len(set(each)) > 1 and each not in numbered:
            yield b"".join(each)
            for numbers in numbered:
                yield b"".join(word for _number, word in sorted(zip(map(int, numbers), each, strict=True)))


def common(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    number = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        number += 1
    return number


def excerpt(data: bytes, start: int, end: int, name: str) -> str:
    """What is around a token, in one printable line, the token itself replaced by its name."""
    before = printable(data[max(0, start - AROUND) : start])
    return f"{before}[canary {name}]{printable(data[end : end + AROUND])}"


def printable(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return re.sub(
        r"\s+", " ", "".join(each if each.isprintable() or each.isspace() else "\N{MIDDLE DOT}" for each in text)
    )
