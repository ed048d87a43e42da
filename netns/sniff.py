"""What the first bytes of a conversation say about it (pure): a TLS ClientHello, an HTTP request, or plain text.

The bytes come from a program that nobody trusts. Nothing here raises or waits, what is read is bounded, a host
name is one of letters, digits and hyphens or it is quoted, and ``text`` never holds a control character.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ENOUGH = 4096
"""Bytes after which no more are waited for, nor looked at."""
LONGEST_TARGET = 1024
LONGEST_NAME = 253
LONGEST_METHOD = 24
LETTERS_DIGITS_HYPHEN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BANNER = b"SSH-"
HANDSHAKE, CLIENT_HELLO = 22, 1
SERVER_NAME, PROTOCOLS, ENCRYPTED_HELLO = 0, 16, 0xFE0D
LONGEST_RECORD = (1 << 14) + 2048


class Sniffed(Record):
    """What was recognised."""

    via: str
    """``tls``, ``http``, ``tcp`` (anything else in a stream) or ``udp``."""
    host: str | None
    """Server name, or the host that the request is meant for; quoted (``'...'``) when it is no valid name."""
    alpn: tuple[str, ...]
    method: str
    target: str
    text: str
    """The bytes as text that is safe to show, lines kept; of a ClientHello, what it says in words."""


def sniff(data: bytes, protocol: str = "tcp") -> Sniffed:
    """Recognise ``data``, the first bytes of a stream, or with ``protocol="udp"`` a datagram. Never raises."""
    data = bytes(data[:ENOUGH])
    if protocol == "udp":
        return Sniffed("udp", None, (), "", "", printable(data))
    return _tls(data) or _http(data) or Sniffed("tcp", None, (), "", "", printable(data))


def needs_more(data: bytes) -> bool:
    """Whether ``data`` may be the beginning of something that more bytes would tell better."""
    if len(data) >= ENOUGH:
        return False
    if not data or _is_beginning(data, PREFACE):
        return True
    if data.startswith(BANNER) or _is_beginning(data, BANNER):
        return b"\n" not in data
    if data[0] == HANDSHAKE:
        return _hello_is_short(data)
    return _head_is_short(data)


def printable(data: bytes) -> str:
    """Text on which a terminal does nothing odd: ``\\xNN`` for what is not printable, lines and tabs kept."""
    text = data.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _spelt(letter) for letter in text)


def one_line(data: bytes) -> str:
    """``printable``, on one line and without tabs."""
    return printable(data).replace("\n", "\\n").replace("\t", "\\t")


def host_name(text: str) -> str:
    """``text`` in its strict form (lower case, no dot at the end; an address canonical), or quoted if it has none."""
    bare = text[:-1] if text.endswith(".") else text
    labels = bare.lower().split(".")
    if bare.isascii() and len(bare) <= LONGEST_NAME and all(map(_is_label, labels)) and not _is_number(labels[-1]):
        return ".".join(labels)
    return _address(bare) or _quoted(text)


# --- TLS ---------------------------------------------------------------------------------------------------


def _tls(data: bytes) -> Sniffed | None:
    body = _hello(data)
    if body is None:
        return None
    extensions = dict(reversed(list(_extensions(body[0]))))
    name = _server_name(extensions.get(SERVER_NAME, b""))
    protocols = tuple(_protocols(extensions.get(PROTOCOLS, b"")))
    host = host_name(name.decode("latin-1")) if name else None
    words = ["TLS ClientHello", f"server name {host}" if host else "no server name"]
    if protocols:
        words.append(f"ALPN {' '.join(protocols)}")
    if ENCRYPTED_HELLO in extensions:
        words.append("encrypted inner hello")
    return Sniffed("tls", host, protocols, "", "", ", ".join(words))


def _hello(data: bytes) -> tuple[bytes, int] | None:
    """As much as there is of the ClientHello's body, and its full length; None if it is no ClientHello."""
    message = b""
    while len(data) >= 5 and data[0] == HANDSHAKE and data[1] == 3:
        length = int.from_bytes(data[3:5], "big")
        if not 0 < length <= LONGEST_RECORD:
            return None
        message += data[5 : 5 + length]
        data = data[5 + length :]
        if len(message) >= 4 and len(message) - 4 >= int.from_bytes(message[1:4], "big"):
            break
    if len(message) < 4 or message[0] != CLIENT_HELLO:
        return None
    length = int.from_bytes(message[1:4], "big")
    return message[4 : 4 + length], length


def _hello_is_short(data: bytes) -> bool:
    length = int.from_bytes(data[3:5], "big")
    if data[1:2] not in (b"", b"\3") or (len(data) >= 5 and not 0 < length <= LONGEST_RECORD):
        return False
    if len(data) < 6:
        return True
    found = _hello(data)
    if found is not None:
        return len(found[0]) < found[1]
    return data[5] == CLIENT_HELLO and len(data) < 4 * 6  # its length stands in up to four records


def _extensions(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each extension that is there as a whole: half a name would be another name."""
    at = 2 + 32
    for width in (1, 2, 1):  # session, cipher suites, compression methods
        at += width + int.from_bytes(body[at : at + width], "big")
    at += 2
    while at + 4 <= len(body):
        length = int.from_bytes(body[at + 2 : at + 4], "big")
        if at + 4 + length > len(body):
            return
        yield int.from_bytes(body[at : at + 2], "big"), body[at + 4 : at + 4 + length]
        at += 4 + length


def _server_name(content: bytes) -> bytes:
    at = 2
    while at + 3 <= len(content):
        length = int.from_bytes(content[at + 1 : at + 3], "big")
        if content[at] == 0:
            return content[at + 3 : at + 3 + length] if at + 3 + length <= len(content) else b""
        at += 3 + length
    return b""


def _protocols(content: bytes) -> Iterator[str]:
    at = 2
    while at < len(content):
        length = content[at]
        if name := content[at + 1 : at + 1 + length]:
            yield one_line(name)
        at += 1 + length


# --- HTTP --------------------------------------------------------------------------------------------------


def _http(data: bytes) -> Sniffed | None:
    if data.startswith(PREFACE[:16]):
        return Sniffed("http", None, (), "", "", printable(data))
    lines = data.split(b"\n")
    words = lines[0].rstrip(b"\r").split(b" ")
    if len(words) != 3 or not _is_method(words[0]) or not words[1] or not _is_version(words[2], len(lines) > 1):
        return None
    method, target = words[0].decode(), one_line(words[1])[:LONGEST_TARGET]
    named = _authority(method, words[1]) or _host_header(lines[1:-1])
    host = host_name(_without_port(named.decode("latin-1"))) if named else None
    return Sniffed("http", host, (), method, target, printable(data))


def _head_is_short(data: bytes) -> bool:
    line, ended, rest = data.partition(b"\n")
    words = line.rstrip(b"\r").split(b" ")
    if not ended:
        named = _is_method(words[0]) and words[0].isupper() and len(words) <= 3
        return named and (len(words) < 3 or _is_beginning(words[2], b"HTTP/") or words[2].startswith(b"HTTP/"))
    if len(words) != 3 or not _is_method(words[0]) or not _is_version(words[2], True):
        return False
    return not (rest.startswith((b"\n", b"\r\n")) or b"\n\r\n" in rest or b"\n\n" in rest)


def _is_method(word: bytes) -> bool:
    return 0 < len(word) <= LONGEST_METHOD and TOKEN.issuperset(word)


def _is_version(word: bytes, whole: bool) -> bool:
    return word.startswith(b"HTTP/1.") and (len(word) == 8 if whole else len(word) <= 8)


def _authority(method: str, target: bytes) -> bytes:
    """The host part of the request's target, where it has one."""
    if method == "CONNECT":
        return target
    scheme, mark, rest = target.partition(b"://")
    if not mark or not scheme.isalpha():
        return b""
    for end in (b"/", b"?", b"#"):
        rest = rest.partition(end)[0]
    return rest.rpartition(b"@")[2]


def _host_header(lines: list[bytes]) -> bytes:
    """Of lines that are there as a whole."""
    for line in lines:
        name, colon, value = line.partition(b":")
        if not line.strip():
            break
        if colon and name.lower() == b"host":
            return value.strip()
    return b""


def _without_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1]
    if not colon or (port and not (port.isascii() and port.isdigit())):
        return text
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


# --- names -------------------------------------------------------------------------------------------------


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and LETTERS_DIGITS_HYPHEN.issuperset(label) and "-" not in (label[0], label[-1])


def _is_number(label: str) -> bool:
    """Whether resolvers take a name that ends in this label for an IPv4 address."""
    return label.isdigit() or label.startswith("0x")


def _address(text: str) -> str:
    """The address in canonical form; empty if it is none."""
    import ipaddress

    try:
        return "" if "%" in text else str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def _quoted(text: str) -> str:
    return ascii(text[:LONGEST_NAME])


def _is_beginning(data: bytes, whole: bytes) -> bool:
    return len(data) < len(whole) and whole.startswith(data)


def _spelt(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return f"\\u{number:04x}" if number > 0xFF else f"\\x{number:02x}"
