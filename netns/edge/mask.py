"""Secrets taken out of what comes back (pure): every form of them that servers echo, replaced by as many ``*``.

The length stays, so that what counts bytes still holds. A stream holds back no more than what may be the beginning
of a secret. A server that is told to change a secret beyond these forms can't be stopped here.
"""

from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Octets = bytes
"""The type; ``Masker`` has a method of that name."""
SHORTEST = 4
"""Bytes. What is shorter would be found everywhere."""
STAR = b"*"
HEAD = 4
LOOK = 64
SMALL = 512
"""Bytes up to which one look for all beginnings is faster than one for each secret."""
LEFT_BY_QUOTING = ("", "/", "*", "!'()*", "!*'();:@&=+$,/?#[]", "-._~/:@")
"""What different libraries leave as it is."""


class Masker:
    """``secrets`` are texts; a ``ValueError`` names none of them and says that one is too short to be masked."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found: dict[Octets, None] = {}
        for secret in secrets:
            found |= dict.fromkeys(forms(secret))
        self.patterns = tuple(sorted(found, key=len, reverse=True))
        self.longest = len(self.patterns[0]) if self.patterns else 0
        self._by_head: dict[Octets, list[Octets]] = {}
        for pattern in self.patterns:
            self._by_head.setdefault(pattern[:HEAD], []).append(pattern)
        # One look for all of them: a server decides how small the pieces are, and each costs one.
        self._heads = re.compile(b"(?=(%s))" % b"|".join(map(re.escape, self._by_head)))
        self._begun = {head[:size] for head in self._by_head for size in range(1, HEAD)}

    def bytes(self, data: Octets) -> Octets:
        """``data`` with the secrets replaced."""
        return cover(data, self.spans(data))

    def text(self, text: str) -> str:
        """``text`` with the secrets replaced: as many stars as the secret has bytes in UTF-8."""
        if not self.patterns:
            return text
        return self.bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> Stream:
        """For a body that comes in pieces."""
        return Stream(self)

    def spans(self, data: Octets) -> list[tuple[int, int]]:
        """Where secrets stand, overlaps included."""
        found = []
        if len(data) > SMALL:
            for pattern in self.patterns:
                place = data.find(pattern)
                while place >= 0:
                    found.append((place, place + len(pattern)))
                    place = data.find(pattern, place + 1)
            return found
        for match in self._heads.finditer(data) if self.patterns else ():
            place = match.start()
            found += [
                (place, place + len(pattern))
                for pattern in self._by_head[match[1]]
                if data.startswith(pattern, place)
            ]
        return found

    def open_end(self, data: Octets) -> int:
        """Where the longest end of ``data`` begins that may be the beginning of a secret; its length if none is."""
        if not self.patterns:
            return len(data)
        for match in self._heads.finditer(data, max(0, len(data) - self.longest + 1)):
            place = match.start()
            if any(begins(data, place, pattern) for pattern in self._by_head[match[1]]):
                return place
        last = range(max(0, len(data) - HEAD + 1), len(data))
        return next((place for place in last if data[place:] in self._begun), len(data))


class Stream:
    """The state between pieces."""

    def __init__(self, masker: Masker) -> None:
        self.masker = masker
        self._held = b""
        self._covered = 0
        """Bytes at the front of what is held that belong to a secret already found."""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now."""
        return self._take(self._held + chunk, self.masker.open_end(self._held + chunk))

    def end(self) -> bytes:
        """What was held back."""
        return self._take(self._held, len(self._held))

    def _take(self, data: bytes, cut: int) -> bytes:
        spans = [(0, self._covered), *self.masker.spans(data)]
        self._held = data[cut:]
        self._covered = max(0, max(end for _start, end in spans) - cut)
        return cover(data[:cut], spans)


def begins(data: bytes, place: int, pattern: bytes) -> bool:
    """Whether ``data`` from ``place`` on is the beginning of ``pattern``, and not the whole."""
    size = len(data) - place
    # The short look first: the other one copies, and a server can have it done at every fourth byte.
    return (
        size < len(pattern)
        and data.startswith(pattern[: min(size, LOOK)], place)
        and pattern.startswith(data[place:])
    )


def cover(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """``data`` with stars in the spans, which may overlap and reach over its end."""
    changed = None
    for start, end in spans:
        end = min(end, len(data))
        if start < end:
            changed = bytearray(data) if changed is None else changed
            changed[start:end] = STAR * (end - start)
    return data if changed is None else bytes(changed)


def forms(secret: str) -> set[bytes]:
    """The secret as servers write it: raw, in URLs, JSON, HTML, base64 (wherever in a text it stands), hex, and UTF-16."""
    raw = secret.encode("utf-8", "surrogatepass")
    if len(raw) < SHORTEST:
        raise ValueError(f"a secret of less than {SHORTEST} bytes is too short to be masked")
    found = {raw, raw.lower(), raw.upper()} if raw.isascii() else {raw}
    found |= set(_quoted(raw)) | set(_escaped(secret)) | set(_base64(raw))
    found |= {raw.hex().encode(), raw.hex().upper().encode()}
    found |= {secret.encode(code, "surrogatepass") for code in ("utf-16-le", "utf-16-be")}
    return {each for each in found if len(each) >= SHORTEST}


def _quoted(raw: bytes) -> Iterator[bytes]:
    texts = [quote(raw, safe=left) for left in LEFT_BY_QUOTING]
    texts += [quote_plus(raw, safe=left) for left in LEFT_BY_QUOTING]
    texts += [text.replace("~", "%7E") for text in texts]
    texts.append("".join(f"%{byte:02X}" for byte in raw))
    for text in texts:
        yield text.encode()
        head, *escapes = text.split("%")
        yield "%".join([head, *(each[:2].lower() + each[2:] for each in escapes)]).encode()


def _escaped(secret: str) -> Iterator[bytes]:
    for text in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        for each in (text, safe, safe.replace("'", "\\u0027"), safe.replace("+", "\\u002b")):
            yield each.encode("utf-8", "surrogatepass")
            yield each.replace("/", "\\/").encode("utf-8", "surrogatepass")
    marked = html.escape(secret)
    for each in (html.escape(secret, quote=False), marked, marked.replace("&#x27;", "&#39;"), repr(secret)[1:-1]):
        yield each.encode("utf-8", "surrogatepass")


def _base64(raw: bytes) -> Iterator[bytes]:
    """Whole, and what of it does not depend on the bytes around it, in each of the three places of a group."""
    texts = [base64.b64encode(raw), base64.b64encode(raw).rstrip(b"=")]
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw)
        left, over = (0, 2, 3)[before], (before + len(raw)) % 3
        texts.append(text[left : len(text) - (0, 3, 2)[over]])
    for each in texts:
        yield each
        yield each.translate(bytes.maketrans(b"+/", b"-_"))
