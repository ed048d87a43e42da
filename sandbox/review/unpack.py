"""What is inside of bytes: percent signs, base64 and hexadecimal decoded, gzip and the like unpacked. Pure, bounded."""

from __future__ import annotations

import base64
import binascii
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEEPEST = 3
MOST_BYTES = 4 << 20
"""Of everything that is looked at for one piece of data."""
MOST_UNPACKED = 2 << 20
"""Of one compressed stream."""
MOST_RUNS = 64
"""Encoded runs looked into, and compressed streams, for each layer."""
RUN64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
RUN16 = re.compile(rb"[0-9A-Fa-f]{40,}")
SPELT = re.compile(rb"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")
PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
NUMBERS = re.compile(rb"(?:\d{1,3}[^0-9A-Za-z]{1,3}){16,}\d{1,3}")
SPACE = b"\r\n\t "
SEPARATORS = b":,;|.-_\0" + bytes(range(128, 256))
"""What may stand between letters or digits: also what UTF-16 and invisible characters put there."""


def layers(data: bytes) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """The data, and whatever is packed into it, with the names of the encodings from the outside in."""
    room = MOST_BYTES
    waiting: list[tuple[tuple[str, ...], bytes]] = [((), data)]
    while waiting and room > 0:
        names, piece = waiting.pop(0)
        piece = piece[:room]
        room -= len(piece)
        yield names, piece
        if len(names) < DEEPEST:
            waiting += [((*names, name), more) for name, more in inside(piece)]


def inside(data: bytes) -> Iterator[tuple[str, bytes]]:
    """One layer down."""
    spelt = unspelt(data)
    yield from compressed(data)
    if spelt is not data:
        yield from compressed(spelt)
    if b"%" in data:
        decoded = PERCENT.sub(lambda found: bytes((int(found[1], 16),)), data)
        if decoded != data:
            yield "url", decoded
    for text in views(data):
        yield from decoded_runs(text)
    for number, run in enumerate(NUMBERS.finditer(data)):
        if number >= MOST_RUNS:
            break
        yield "decimal", bytes(each for word in re.findall(rb"\d+", run[0]) if (each := int(word)) < 256)


def views(data: bytes) -> list[bytes]:
    """The bytes, and the same without line ends and blanks, where encoders wrap, and without what stands between digits."""
    squeezed = data.translate(None, SPACE).replace(b"\\n", b"")
    bare = squeezed.replace(b"0x", b"").translate(None, SEPARATORS)
    return list(dict.fromkeys((data, squeezed, bare)))


def decoded_runs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What stands in it in base64 or hexadecimal, wherever in a run of such letters it begins."""
    for name, pattern, decode, group in (("base64", RUN64, base64_of, 4), ("hex", RUN16, hex_of, 2)):
        for number, run in enumerate(pattern.finditer(data)):
            if number >= MOST_RUNS:
                break
            for shift in range(group):
                if decoded := decode(run[0][shift:]):
                    yield name, decoded


def unspelt(data: bytes) -> bytes:
    r"""With ``\xNN`` as the byte again that a recorder spelt out."""
    return SPELT.sub(byte_of, data) if b"\\" in data else data


def byte_of(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),)) if found[1] else chr(int(found[2], 16)).encode("utf-8", "replace")


def base64_of(run: bytes) -> bytes:
    text = run.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    text = text[: len(text) - (len(text) % 4 == 1)]
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def hex_of(run: bytes) -> bytes:
    return bytes.fromhex(run[: len(run) & ~1].decode("ascii"))


def compressed(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Streams that begin anywhere in the data."""
    for name, magic, opener in MAGIC:
        at, tried = data.find(magic), 0
        while at >= 0 and tried < MOST_RUNS:
            if unpacked := opened(opener(), data[at:]):
                yield name, unpacked
            at, tried = data.find(magic, at + 1), tried + 1


def opened(decoder: object, data: bytes) -> bytes:
    """As much as can be unpacked; a stream that is cut or broken gives what came before."""
    import lzma
    import zlib

    found = b""
    try:
        for start in range(0, len(data), 4096):
            found += decoder.decompress(data[start : start + 4096], MOST_UNPACKED - len(found))  # type: ignore[attr-defined]
            if len(found) >= MOST_UNPACKED or decoder.eof:  # type: ignore[attr-defined]
                break
    except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError):
        pass
    return found


def inflate(bits: int) -> Callable[[], object]:
    def made() -> object:
        import zlib

        return zlib.decompressobj(bits)

    return made


def bunzip() -> object:
    import bz2

    return bz2.BZ2Decompressor()


def unxz() -> object:
    import lzma

    return lzma.LZMADecompressor(memlimit=64 << 20)


MAGIC: tuple[tuple[str, bytes, Callable[[], object]], ...] = (
    ("gzip", b"\x1f\x8b\x08", inflate(31)),
    ("zlib", b"\x78\x01", inflate(15)),
    ("zlib", b"\x78\x9c", inflate(15)),
    ("zlib", b"\x78\xda", inflate(15)),
    ("zlib", b"\x78\x5e", inflate(15)),
    ("bzip2", b"BZh", bunzip),
    ("xz", b"\xfd7zXZ", unxz),
)
