"""The grammar of one ``network.allow`` entry (pure): parse it once, match names against it, compare two.

    [tcp:// | udp://] name | *.name | address | range [:port | :low-high | :*] [ check=KIND]

The default is TCP port 443. KIND says for one entry what ``network.check`` says for all.
Every refusal is a ``PolicyError`` that quotes the entry. Resolves nothing and opens nothing; its
counterparts are ``netns.names`` and ``netns.ruleset``.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.record import Record
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network
    from typing import NoReturn

METADATA = (
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "168.63.129.16", "100.100.100.200",
    "fd00:ec2::254", "fd00:ec2::23",
)  # fmt: skip
"""Where clouds hand out credentials: refused in every network kind, before any rule."""

WANTED = (
    "write a name (api.example.com), *.example.com, an address or a range (192.0.2.0/24); "
    "a port as :443, :8000-8010 or :*; an IPv6 address with a port as [2001:db8::1]:443; udp:// in front for UDP; "
    "check=name behind it (a.example check=name) for one whose name is always checked"
)
CHECKS = ("address", "auto", "name")
"""What ``check`` may say, from the loosest to the strictest."""
LONGEST_ENTRY = 300
LONGEST_NAME = 253
LETTERS_DIGITS_HYPHEN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
ASKED = LETTERS_DIGITS_HYPHEN | {"_"}
NEVER = frozenset("%@\\?#_\"'`<>{}|^,;&=+$!~()")
TOP_PORT = 65535


class HostRule(Record):
    """One entry of the allow list. Exactly one of ``name`` and ``network`` is set."""

    name: str | None
    """Lower case, A-labels, without the leading ``*.``."""
    wildcard: bool
    """One or more whole labels stand before ``name``; the name itself is not meant."""
    network: str | None
    """A range in CIDR form; one address has the full prefix length."""
    protocol: str
    """``tcp`` or ``udp``."""
    low: int
    high: int
    text: str
    """The entry in its shortest form; parsing it again gives an equal rule."""
    check: str | None = None
    """One of ``CHECKS`` if the entry says so itself; None: it follows ``network.check``."""


class _Fault(Exception):
    """Why an entry is refused; never leaves this module."""


def parse_rule(text: str, where: str = "the allow entry") -> HostRule:
    """The rule that ``text`` stands for. ``where`` names the setting in the ``PolicyError``."""
    try:
        return _checked(text)
    except _Fault as fault:
        raise PolicyError(f"could not use {where} {quoted(text)}: {fault}", remedy=WANTED) from None


def matches_name(rule: HostRule, name: str) -> bool:
    """Whether a name that was asked for is one the rule means; one trailing dot of ``name`` is ignored."""
    asked = name[:-1] if name.endswith(".") else name
    if rule.name is None or not asked.isascii() or len(asked) > LONGEST_NAME:
        return False
    asked = asked.lower()
    if not rule.wildcard:
        return asked == rule.name
    if not asked.endswith(f".{rule.name}"):
        return False
    return all(_asked_label(label) for label in asked[: -len(rule.name) - 1].split("."))


def effective_check(rule: HostRule, check: str) -> str:
    """How connections under a rule are told apart, given ``network.check``: addresses and UDP have no name to see."""
    return "address" if rule.name is None or rule.protocol == "udp" else rule.check or check


def reaches(rule: HostRule, name: str, port: int) -> bool:
    """Whether ``rule`` opens this TCP port of a name."""
    return rule.protocol == "tcp" and rule.low <= port <= rule.high and matches_name(rule, name)


def covers(outer: HostRule, inner: HostRule) -> bool:
    """Whether everything that ``inner`` allows is allowed by ``outer`` too, whatever ``network.check`` will be."""
    if not _as_strict(outer.check, inner.check):
        return False
    if outer.protocol != inner.protocol or not outer.low <= inner.low <= inner.high <= outer.high:
        return False
    if outer.network is not None and inner.network is not None:
        return _contains(outer.network, inner.network)
    if outer.name is None or inner.name is None:
        return False
    if outer.name == inner.name:
        return outer.wildcard == inner.wildcard
    return outer.wildcard and inner.name.endswith(f".{outer.name}")


def _as_strict(outer: str | None, inner: str | None) -> bool:
    """An entry that follows ``network.check`` may be made stricter than any value of it, but not tied to one."""
    if outer is None or inner is None:
        return outer is None and inner in (None, CHECKS[-1])
    return CHECKS.index(inner) >= CHECKS.index(outer)


def _checked(text: str) -> HostRule:
    """The rule with what it says of its check, if anything: a word of its own after one space."""
    entry, mark, kind = text.partition(" check=") if isinstance(text, str) else (text, "", "")
    rule = _parse(entry)
    if not mark:
        return rule
    if kind not in CHECKS:
        _refuse(f"check={quoted(kind)} is none of {', '.join(CHECKS)}")
    if rule.name is None or rule.protocol == "udp":
        if kind != "address":
            _refuse(
                f"no name can be seen {'under an address' if rule.name is None else 'in UDP'}: only check=address fits"
            )
        if rule.name is None:
            return rule
    return rule.replace(check=kind, text=f"{rule.text} check={kind}")


def _parse(text: str) -> HostRule:
    _check_characters(text)
    protocol, rest = _protocol(text)
    host, ports, bracketed = _split_port(rest)
    low, high = _ports(ports)
    if bracketed or ":" in host or "/" in host or _numeric(host.rpartition(".")[2]):
        name, wildcard, network = None, False, _network(host, bracketed)
    else:
        name, wildcard = _name(host)
        network = None
    shown = _shown(name, wildcard, network, protocol, low, high)
    return HostRule(name, wildcard, network, protocol, low, high, shown)


def _check_characters(text: str) -> None:
    if not isinstance(text, str):
        _refuse("it is not text")
    if not text:
        _refuse("it is empty")
    if len(text) > LONGEST_ENTRY:
        _refuse(f"it is longer than {LONGEST_ENTRY} characters")
    for letter in text:
        if letter <= " " or letter == "\x7f" or letter in NEVER:
            _refuse(f"the character {letter!r} is not allowed")


def _protocol(text: str) -> tuple[str, str]:
    head, mark, rest = text.partition("://")
    if not mark:
        return "tcp", text
    if head not in ("tcp", "udp"):
        _refuse(f"{quoted(head)} is not tcp or udp; an entry is a host, not a URL")
    return head, rest


def _split_port(rest: str) -> tuple[str, str, bool]:
    """Host, port text (empty: the default) and whether the host stood in brackets."""
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        if not closed or (tail and not tail.startswith(":")) or tail == ":":
            _refuse("brackets hold an IPv6 address, and only :port may follow them")
        return host, tail[1:], True
    if rest.count(":") != 1:
        return rest, "", False
    host, _, ports = rest.partition(":")
    if not ports:
        _refuse("the port after the colon is missing")
    return host, ports, False


def _ports(text: str) -> tuple[int, int]:
    if not text:
        return 443, 443
    if text == "*":
        return 1, TOP_PORT
    first, dash, last = text.partition("-")
    low = _port(first)
    high = _port(last) if dash else low
    if low > high:
        _refuse(f"the port range {low}-{high} is empty")
    return low, high


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or text[0] == "0" or int(text) > TOP_PORT:
        _refuse(f"{quoted(text)} is not a port between 1 and {TOP_PORT}")
    return int(text)


def _numeric(label: str) -> bool:
    """Whether a last label makes resolvers take the whole name for an IPv4 address."""
    return label.isdigit() or label.lower().startswith("0x")


def _network(host: str, bracketed: bool) -> str:
    import ipaddress

    prefix = host.partition("/")[2]
    if "/" in host and not (prefix.isascii() and prefix.isdigit()):
        _refuse("only a prefix length may follow the slash, as in 192.0.2.0/24; a URL path can't be allowed")
    try:
        network = ipaddress.IPv6Network(host) if ":" in host or bracketed else ipaddress.IPv4Network(host)
    except ValueError as error:
        _refuse(f"it is not an address or a range: {quoted(str(error))}")
    for forbidden in _metadata():
        if network.version == forbidden.version and network.overlaps(forbidden):
            _refuse(f"it reaches a cloud metadata address ({forbidden}), which is never allowed")
    if network.version == 6 and network.subnet_of(ipaddress.IPv6Network("::ffff:0:0/96")):
        _refuse("it is an IPv4 address in IPv6 dress: write the IPv4 address")
    return str(network)


def _metadata() -> list[IPv4Network | IPv6Network]:
    """The metadata addresses, and the IPv6 forms (mapped, compatible, NAT64, 6to4) that lead to them."""
    import ipaddress

    found: list[IPv4Network | IPv6Network] = []
    for text in METADATA:
        plain = ipaddress.ip_network(text)
        found.append(plain)
        if plain.version == 4:
            number = int(plain.network_address)
            carriers = (0xFFFF << 32, 0, 0x64FF9B << 96)
            found += [ipaddress.IPv6Network((carrier | number, 128)) for carrier in carriers]
            found.append(ipaddress.IPv6Network(((0x2002 << 112) | (number << 80), 48)))
    return found


def _name(host: str) -> tuple[str, bool]:
    wildcard = host.startswith("*.")
    bare = host[2:] if wildcard else host
    if bare.endswith("."):
        _refuse("a name is written without a dot at its end")
    if not bare:
        _refuse("the host is missing")
    name = ".".join(_label(label) for label in bare.split("."))
    if len(name) > LONGEST_NAME:
        _refuse(f"the name is longer than {LONGEST_NAME} characters")
    if _numeric(name.rpartition(".")[2]):
        _refuse("it looks like an address and is none")
    return name, wildcard


def _label(label: str) -> str:
    if label == "*":
        _refuse("a * can only be the whole first label, as in *.example.com")
    plain = label.lower() if label.isascii() else _ascii_label(label)
    if (
        not plain
        or len(plain) > 63
        or plain[0] == "-"
        or plain[-1] == "-"
        or not LETTERS_DIGITS_HYPHEN.issuperset(plain)
    ):
        _refuse(f"{quoted(label)} is not a label of letters, digits and inner hyphens")
    return plain


def _ascii_label(label: str) -> str:
    """The A-label; refused where the encoder would turn the text into another name (as with sharp s)."""
    import unicodedata
    from encodings import idna

    if odd := [letter for letter in label if letter != "-" and unicodedata.category(letter)[0] not in "LMN"]:
        _refuse(f"the character {odd[0]!r} is not allowed")
    try:
        encoded = idna.ToASCII(label).decode("ascii").lower()
        meant = idna.ToUnicode(encoded)
    except UnicodeError:
        _refuse(f"{quoted(label)} is not a valid international label")
    if meant != unicodedata.normalize("NFC", label.lower()):
        _refuse(
            f"{quoted(label)} would become {quoted(meant)}: write the name you mean, as an xn-- label if need be"
        )
    return encoded


def _asked_label(label: str) -> bool:
    return 0 < len(label) <= 63 and ASKED.issuperset(label)


def _shown(name: str | None, wildcard: bool, network: str | None, protocol: str, low: int, high: int) -> str:
    host = f"*.{name}" if wildcard else name or _short(network or "")
    if (low, high) == (443, 443):
        ports = ""
    elif (low, high) == (1, TOP_PORT):
        ports = ":*"
    else:
        ports = f":{low}" if low == high else f":{low}-{high}"
    if ports and ":" in host:
        host = f"[{host}]"
    return f"{'udp://' if protocol == 'udp' else ''}{host}{ports}"


def _short(network: str) -> str:
    address, _, prefix = network.partition("/")
    return address if prefix == ("128" if ":" in address else "32") else network


def _contains(outer: str, inner: str) -> bool:
    import ipaddress

    wide, narrow = ipaddress.ip_network(outer), ipaddress.ip_network(inner)
    if isinstance(wide, ipaddress.IPv4Network):
        return isinstance(narrow, ipaddress.IPv4Network) and narrow.subnet_of(wide)
    return isinstance(narrow, ipaddress.IPv6Network) and narrow.subnet_of(wide)


def _refuse(cause: str) -> NoReturn:
    raise _Fault(cause)
