"""What is fuzzed: one function per target, from bytes to nothing.

A target raises AssertionError for a broken promise and may raise what it declares; anything else is a finding. Those
that need structure take it from ``Choices``. Hypothesis (``test_fuzz``) and atheris (``scripts/fuzz``) both drive
these.
"""

from __future__ import annotations

import ipaddress
import json
import os
import string

import ceiling
import stacks
from choices import Choices

from stockade.netns import hello, httpguard, httphead, namecheck, names, sniff, upstream
from stockade.policies import hosts, units
from stockade.policies.errors import PolicyError, RequestError, StockadeError
from stockade.policies.fields import nested, render_values
from stockade.policies.model import parse_policy, parse_tree, parsed
from stockade.sandbox import globs, messages, status
from stockade.sandbox.hooks import (
    config,
    jsontext,
    patterns,
    permission,
    quoting,
    shelltext,
    source,
    tomltext,
    words,
)
from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.judge import judge
from stockade.sandbox.hooks.match import matches
from stockade.sandbox.hooks.merge import merge
from stockade.sandbox.hooks.model import VERDICTS, HookEvent, HookRun, HookSpec, ToolCall
from stockade.sandbox.hooks.source import HooksFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


DIALECTS = {name: dialect(name) for name in NAMES}


class Target:
    """A target, what it may raise, and words that its inputs are made of."""

    def __init__(
        self, function: Callable[[Any], None], structured: bool, allowed: tuple[type[Exception], ...], words: str
    ) -> None:
        self.name = function.__name__
        self.function, self.structured, self.allowed = function, structured, allowed
        self.words = tuple(word.encode() for word in words.split(" ") if word) + ((b" ", b"\n") if words else ())

    def judge(self, given: Any) -> None:
        """``given`` is bytes, or choices for a structured target. Raises for a finding alone."""
        try:
            self.function(given)
        except self.allowed as error:
            check_message(error)

    def run(self, data: bytes) -> None:
        self.judge(Choices(data) if self.structured else data)


TARGETS: dict[str, Target] = {}


def raw(*allowed: type[Exception], words: str = "") -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """A target of bytes as they are."""

    def register(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[function.__name__] = Target(function, False, allowed, words)
        return function

    return register


def structured(*allowed: type[Exception]) -> Callable[[Callable[[Choices], None]], Callable[[Choices], None]]:
    """A target of choices."""

    def register(function: Callable[[Choices], None]) -> Callable[[Choices], None]:
        TARGETS[function.__name__] = Target(function, True, allowed, "")
        return function

    return register


def check_message(error: Exception) -> None:
    """What a person is shown: something, bounded, and nothing that a terminal obeys."""
    said = [error.message, error.remedy] if isinstance(error, StockadeError) else [str(error)]
    assert said[0], "an error without words"
    for text in said:
        assert len(text) < 20_000, len(text)
        assert all(letter.isprintable() or letter == "\n" for letter in text), text


def shown_safely(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


# --- policies ----------------------------------------------------------------------------------------------

POLICY_WORDS = (
    "extends mode filesystem. environment. network. limits. syscalls. process. root workspace write read hide protect home"
    ' toolchains pass set egress allow private connector timeout cpu memory processes file_size [ ] { } = , . # " \' """'
    " check edge mask_queries host methods paths headers from format env: literal: address name GET"
    " true none off auto open 0x 1e9 10s 2G inf nan 1979-05-27 \\u0000 **/.env* ../ ~/ api.example *."
)


@raw(PolicyError, words=POLICY_WORDS)
def policy_text(data: bytes) -> None:
    """A policy file: refused, or understood, and then it can be written out and means the same."""
    policy = parse_policy(data, "policy.toml")
    values = parsed(policy, "policy.toml")
    again = parse_tree(nested(render_values(values)), "again") if values else policy
    assert parsed(again, "again") == values


@structured(PolicyError)
def policy_layers(choices: Choices) -> None:
    """A stack of layers never grants more than its texts say, nor more than without the project's files."""
    stack = stacks.made(choices)
    found = stacks.resolved(stack)
    for projects in (True, False):
        try:
            top = stacks.ceiling(stack, projects=projects)
        except ceiling.Refused as error:
            raise AssertionError(
                f"accepted, and must be refused (projects: {projects}): {error}\n{stack}"
            ) from None
        too_much = ceiling.exceeding(found, top, stacks.reach_of(found), project=not projects)
        assert not too_much, f"grants too much (projects: {projects}): {too_much}\n{stack}\n{found}"
    keys = {key for key, _layer in found.origin}
    assert keys == {"mode", *ceiling.BASE}, keys


@raw(PolicyError, words="0 1 9 . - + e ms s m h d K M G T iB B none inf nan \u0663")
def amounts(data: bytes) -> None:
    """Times, sizes and counts: refused, or what the checker reads, and written back alike."""
    text = data.decode("utf-8", "replace")
    read = 0
    for key, parse, render in (
        ("limits.timeout", units.parse_duration, units.render_duration),
        ("limits.memory", units.parse_size, units.render_size),
        ("limits.processes", units.parse_count, units.render_count),
    ):
        for value in (text, number(text)):
            try:
                found = parse(value, key)
            except PolicyError as error:
                check_message(error)
                continue
            most = ceiling.amount(key, value)
            assert (float("inf") if found is None else found) <= most * (1 + 1e-12), (key, value, found, most)
            assert parse(render(found), key) == found
            read += 1
    if not read:
        raise PolicyError("could not read any of them")


def number(text: str) -> object:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return True


HOST_WORDS = (
    "api . example *. * - _ : / // udp:// tcp:// http:// [ ] 192.0.2.0 /24 169.254.169.254 ::ffff: 2001:db8:: fd00:ec2::254"
    " 0x7f 443 65535 -8010 :* :0 % @ xn-- \u00fc \u00df \u200d \u3002 \u0661 \uff0e bcher-kva"
)


@raw(PolicyError, words=HOST_WORDS)
def host_rule(data: bytes) -> None:
    """One entry of an allow list: refused, or it reaches only what the checker reads from the text."""
    text = data.decode("utf-8", "replace")
    rule = hosts.parse_rule(text)
    assert hosts.parse_rule(rule.text) == rule
    assert 1 <= rule.low <= rule.high <= 65535
    assert (rule.name is None) is (rule.network is not None)
    if rule.name is not None:
        assert set(rule.name) <= set(string.ascii_lowercase + string.digits + "-."), rule.name
    wanted = ceiling.destination(text)
    assert rule.check == (wanted.check if rule.name else None)
    for protocol, port, where in ceiling.probes([wanted, ceiling.destination(rule.text)]):
        if reaches(rule, protocol, port, **where):
            assert wanted.reaches(protocol, port, **where), (text, rule, protocol, port, where)


def reaches(rule: hosts.HostRule, protocol: str, port: int, *, name: str = "", address: Any = None) -> bool:
    if rule.protocol != protocol or not rule.low <= port <= rule.high:
        return False
    if address is not None:
        return rule.network is not None and address in ipaddress.ip_network(rule.network)
    return hosts.matches_name(rule, name)


@structured(PolicyError)
def host_pairs(choices: Choices) -> None:
    """If one entry covers another, whatever the inner one reaches is reached by the outer one."""
    kept = [text for text in stacks.HOSTS if isinstance(text, str)]
    texts = [choices.pick(kept) if choices.flag(3) else entry(choices) for _each in range(2)]
    outer, inner = (hosts.parse_rule(text) for text in texts)
    if not hosts.covers(outer, inner):
        return
    wide, narrow = map(ceiling.destination, texts)
    for protocol, port, where in ceiling.probes([wide, narrow]):
        assert not reaches(inner, protocol, port, **where) or reaches(outer, protocol, port, **where), texts
        for check in ceiling.CHECKS:
            least = ceiling.loosest([narrow], check, protocol, port, **where)
            assert least >= ceiling.loosest([wide], check, protocol, port, **where), (texts, check)


def entry(choices: Choices) -> str:
    labels = ("a", "b", "example", "x-y")
    host = choices.pick(("", "*.")) + ".".join(choices.pick(labels) for _each in range(1 + choices.number(2)))
    if choices.flag(3):
        host = f"10.{choices.number(3)}.{choices.number(1)}.0/{choices.pick((8, 15, 16, 23, 24))}"
    low = 1 + choices.number(4)
    ports = choices.pick(("", ":*", f":{low}", f":{low}-{low + choices.number(4)}"))
    check = choices.pick(("", "", "", " check=name", " check=auto", " check=address"))
    return choices.pick(("", "udp://", "tcp://")) + host + ports + check


# --- network -----------------------------------------------------------------------------------------------

RULES = tuple(
    map(hosts.parse_rule, ("api.example", "*.cdn.example", "udp://time.example:123", "192.0.2.0/24", "10.0.0.7"))
)


@raw()
def dns_message(data: bytes) -> None:
    """Any bytes as a query: no exception; only a name that is listed leads anywhere; every answer can be read."""
    answer_to(data)


@structured()
def dns_query(choices: Choices) -> None:
    """Well-formed queries with odd names, types, classes and options."""
    labels = (b"api", b"example", b"cdn", b"a", b"API", b"Example", b"", b"a.b", b"\0", b"*", b"\xff", b"x" * 63)
    name = (
        b"".join(bytes((len(each),)) + each for each in choices.some(lambda: choices.pick(labels), 5) if each)
        + b"\0"
    )
    if choices.flag(8):
        name = choices.pick((b"\xc0\x0c", b"\xc0\x00", b"\x40abc\0", b"\x05ab", b""))
    kind = choices.pick((1, 28, 1, 1, 255, 16, 65, 0, 6, 250, choices.number(65535)))
    cls = choices.pick((1, 1, 1, 3, 255, choices.number(65535)))
    extra = b"" if not choices.flag(3) else b"\0" + b"\0\x29" + choices.raw(30)
    head = bytes(
        (
            choices.number(255),
            choices.number(255),
            choices.pick((1, 0, 0x81, 0x79, 0x20)),
            choices.pick((0, 0x20, 0xFF)),
        )
    )
    counts = b"\0\1\0\0\0\0" + bytes((0, 1 if extra else 0))
    answer_to(head + counts + name + kind.to_bytes(2, "big") + cls.to_bytes(2, "big") + extra)


def answer_to(wire: bytes) -> None:
    import dns.message

    asked = names.question(wire)
    if asked is None:
        said = names.fault(wire)
        assert said is None or (len(said) == 12 and said[:2] == wire[:2] and said[2] & 0x80)
        return
    for kind in ("allow", "open", "record", "odd"):
        verdict = names.decide(asked, RULES, kind)
        if verdict.action == "resolve" and kind in ("allow", "odd"):
            name = asked.name
            assert name == "api.example" or name.endswith(".cdn.example") or name == "time.example", name
        for stream in (False, True):
            reply = names.reply(asked, verdict, addresses_for(asked), 60, stream=stream)
            assert reply[:2] == wire[:2]
            assert reply[2] & 0x80
            again = dns.message.from_wire(reply)
            assert verdict.action == "resolve" or not again.answer


def addresses_for(asked: names.Question) -> list[str]:
    return {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]}.get(asked.type, [])


ADDRESS_WORDS = (
    "10. 127. 169.254.169.254 192.168.0.1 192.0.2.1 :: ::1 ::ffff: 64:ff9b:: 2002: 2001:0: fe80:: fd00:ec2::254 % /"
    " 0 255 7f a9fe"
)


@raw(words=ADDRESS_WORDS)
def dns_answers(data: bytes) -> None:
    """Addresses that a resolver names: none that is not public leads on, whatever it is dressed as."""
    texts = data.decode("latin-1").split("\n")[:40]
    good, refused = names.screen(texts, RULES[:2], False)
    for each in good:
        address = ipaddress.ip_address(each)
        for one in (address, getattr(address, "ipv4_mapped", None), getattr(address, "sixtofour", None)):
            if one is not None:
                nowhere = (one.is_loopback, one.is_link_local, one.is_multicast, one.is_unspecified)
                assert not any(nowhere), each
                assert one not in ipaddress.ip_network("10.0.0.0/8" if one.version == 4 else "fc00::/7"), each
    for each in names.screen(texts, RULES, True)[0]:
        assert each not in hosts.METADATA
    assert len(good) + len(refused) <= len(texts)
    made = upstream.Synthetic()
    for text in texts:
        assert made.name_of(text) is None
        for kind in ("A", "AAAA"):
            assert [made.name_of(each) for each in made.addresses(text, kind)] == [text]


SNIFF_WORDS = (
    "GET / HTTP/1.1\r\n Host: host: \r\n \r\n\r\n CONNECT POST http:// https:// api.example :443 [::1] @ ? # PRI * HTTP/2.0"
    " SSH- \x00 \x16\x03\x01 \x01\x00 \x00\x00 a.b \x7f"
)


@raw(words=SNIFF_WORDS)
def first_bytes(data: bytes) -> None:
    """First bytes of a stream or a datagram: no exception, nothing that a terminal obeys, no name that is not there."""
    for protocol in ("tcp", "udp", "odd"):
        check_sniffed(sniff.sniff(data, protocol), data)
    sniff.needs_more(data)
    assert not sniff.needs_more(data.ljust(sniff.ENOUGH, b"x"))
    for end in range(min(len(data), 64)):
        check_sniffed(sniff.sniff(data[:end]), data[:end])
        sniff.needs_more(data[:end])


def check_sniffed(found: sniff.Sniffed, data: bytes) -> None:
    assert found.via in ("tls", "http", "tcp", "udp")
    for text in (found.text, found.target, found.method, found.host or "", *found.alpn):
        assert shown_safely(text), text
    for text in (found.target, found.method, found.host or "", *found.alpn):
        assert "\n" not in text
    host = found.host
    if host and not host.startswith(("'", '"')):
        there = records(data) if found.via == "tls" else data
        assert host.encode() in there.lower() or address(host), host


def records(data: bytes) -> bytes:
    """What TLS records carry, without their heads."""
    if len(data) < 5:
        return b""
    length = int.from_bytes(data[3:5], "big")
    return data[5 : 5 + length] + records(data[5 + length :])


def address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


@structured()
def tls_hello(choices: Choices) -> None:
    """ClientHellos, cut, split over records, with lengths that lie: the name is the one that stands there, or none."""
    name = choices.pick(
        (b"api.example", b"API.example", b"", b"a\0b", b"x" * 300, b"10.0.0.1", b"a b", b"-.", b"\xff")
    )
    entries = bytes((choices.pick((0, 0, 1)),)) + len(name).to_bytes(2, "big") + name
    extensions = [
        (0, len(entries).to_bytes(2, "big") + entries),
        (16, b"\0\x05\2h2\1\n"),
        (0xFE0D, b"x"),
        (choices.number(65535), choices.raw(9)),
    ]
    body = b"\3\3" + bytes(32) + bytes((0,)) + b"\0\2\x13\1" + b"\1\0"
    blob = b"".join(
        number.to_bytes(2, "big") + len(each).to_bytes(2, "big") + each
        for number, each in choices.some(lambda: choices.pick(extensions), 4)
    )
    body += len(blob).to_bytes(2, "big") + blob
    message = b"\1" + len(body).to_bytes(3, "big") + body
    data, size = b"", choices.pick((1 << 14, 1, 3, 40))
    for at in range(0, len(message), size):
        piece = message[at : at + size]
        data += b"\x16\3\1" + len(piece).to_bytes(2, "big") + piece
    wrong = bytearray(data[: len(data) - choices.pick((0, 0, 1, 40))])
    for _each in range(choices.pick((0, 0, 1, 3))):
        if wrong:
            wrong[choices.number(len(wrong) - 1)] = choices.number(255)
    first_bytes(bytes(wrong))


NAME_WORDS = (
    "\x16\x03\x01 \x01 GET / POST HTTP/1.1 HTTP/1.0 \r\n \r\n\r\n Host: Content-Length: Transfer-Encoding: chunked"
    " a.example b.example : ; , 0 5 http:// Upgrade: Connection: \t \0"
)
HTTP_PIECES = (
    b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\n", b"Host: a\r\n",
    b"\r\n", b"\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", b"abc", b"Transfer-Encoding: chunked\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: ws\r\n\r\n", b"2;x=y\r\n",
)  # fmt: skip
HTTP_ANSWERS = (
    b"",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 101 S\r\n\r\n",
    b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 101 S\r\n\r\n",
    b"x\n",
)


def made_hello(name: bytes) -> bytes:
    listed = b"\0" + len(name).to_bytes(2, "big") + name
    content = len(listed).to_bytes(2, "big") + listed
    extensions = b"\0\0" + len(content).to_bytes(2, "big") + content
    body = b"\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0" + len(extensions).to_bytes(2, "big") + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def made_answer(random: bytes) -> bytes:
    message = b"\2\0\0\x26\3\3" + random + b"\0\x13\1\0"
    return b"\x16\3\3" + len(message).to_bytes(2, "big") + message


HELLO_PIECES = (
    b"", made_hello(b"a.example"), made_hello(b"b.example"), made_answer(hello.RETRY), made_answer(bytes(32)),
    b"\x14\3\3\0\1\1", b"\x17\3\3\0\4seal", b"\x15\3\3\0\2\2\x70",
)  # fmt: skip


@raw(words=NAME_WORDS)
def name_check(data: bytes) -> None:
    """First bytes of a checked connection: no exception, a name or why there is none, and more bytes change no name."""
    found = namecheck.opening(data)
    assert found is not None or len(data) < hello.LIMIT
    if found is not None:
        check_opening(found, data)
    for end in range(1, min(len(data), 200)):
        part = namecheck.opening(data[:end])
        if part is not None:
            check_opening(part, data[:end])
            assert part.fault or part == found


def check_opening(found: namecheck.Opening, data: bytes) -> None:
    assert found.via in ("tls", "http", "tcp")
    assert bool(found.fault) == (found.name is None)
    assert shown_safely(found.fault + found.target + found.method)
    if found.name is not None:
        assert found.name == sniff.host_name(found.name)
        assert found.name.encode() in (records(data) if found.via == "tls" else data).lower()
        if found.via == "http":
            assert data.lower().partition(b"\r\n\r\n")[0].count(b"\nhost:") == 1


@structured()
def http_stream(choices: Choices) -> None:
    """A client's HTTP stream and what the server says meanwhile: what passes is a prefix, in any pieces the same."""
    data = b"".join(choices.some(lambda: choices.pick(HTTP_PIECES) or choices.raw(40), 12))
    answer = choices.pick(HTTP_ANSWERS)
    size = choices.pick((1, 2, 7, 100, 1 << 16))
    whole, pieces = httpguard.HttpGuard(only_a), httpguard.HttpGuard(only_a)
    passed = whole.feed(data) + whole.heard(answer)
    slowly = b"".join(pieces.feed(data[at : at + size]) for at in range(0, len(data), size)) + pieces.heard(answer)
    assert (passed, whole.fault, whole.raw) == (slowly, pieces.fault, pieces.raw)
    assert data.startswith(passed)
    assert shown_safely(whole.fault)
    assert not whole.fault or whole.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") == b""
    again = httpguard.HttpGuard(only_a)
    assert again.feed(passed) + again.heard(answer) == passed


def only_a(head: httphead.Head) -> str:
    return "" if head.name == "a" else "another"


@structured()
def second_hello(choices: Choices) -> None:
    """What a client and a server send after the first hello: nothing is raised, and what passes is a prefix."""
    guard, sent, passed = hello.HelloGuard("a.example"), b"", b""
    for _each in range(choices.number(8)):
        piece = choices.pick(HELLO_PIECES) or choices.raw(60)
        if choices.flag():
            passed += guard.heard(piece)
        else:
            sent += piece
            passed += guard.feed(piece)
        assert sent.startswith(passed)
        assert shown_safely(guard.fault)


# --- the runner --------------------------------------------------------------------------------------------


@raw(words='{ } : , " child-pid exit-code mnt-namespace 0 1 255 256 00 -1 true \\u002d \t')
def status_records(data: bytes) -> None:
    """bwrap's records, in any pieces: the same reading, codes in range, nothing that JSON would not say."""
    whole = status.StatusReader()
    whole.feed(data)
    pieces = status.StatusReader()
    for at in range(0, len(data), 3):
        pieces.feed(data[at : at + 3])
    for name in ("child_pid", "exit_code", "namespaces", "strange"):
        assert getattr(whole, name) == getattr(pieces, name)
    assert whole.exit_code is None or 0 <= whole.exit_code <= 255
    for line in data.split(b"\n"):
        record = status.parse_record(line)
        assert record is None or record == standard_json(line), line
    status.read_all(data)


@structured()
def keeper_messages(choices: Choices) -> None:
    """What the supervisor and the keeper say to each other arrives as it was sent."""
    message = {choices.pick(("type", "id", "x")): value(choices, 0) for _each in range(choices.number(4))}
    inner, outer = os.pipe()
    try:
        messages.send(outer, message)
        assert messages.receive(inner) == message
    finally:
        os.close(outer)
        assert messages.receive(inner) is None
        os.close(inner)


GLOB_LETTERS = (
    "*",
    "**",
    "?",
    "[",
    "]",
    "!",
    "^",
    "-",
    "\\",
    "a",
    "b",
    ".",
    ".env",
    "/",
    "..",
    "\0",
    "\u00fc",
    "\udcff",
)


@structured(PolicyError)
def hide_globs(choices: Choices) -> None:
    """What the fast walk hides is what a slow reading of the same patterns hides: nothing is left in view."""
    texts = choices.some(lambda: choices.text(GLOB_LETTERS, 6), 3)
    level = globs.Levels(texts).first
    path = choices.some(
        lambda: choices.text(("a", "b", ".", "-", "]", ".env", "\u00fc"), 4).replace("/", "") or "a", 4
    )
    for at, name in enumerate(path):
        for folder in (False, True):
            slow = any(slowly(text, path[: at + 1], folder) for text in texts)
            assert taken(level, os.fsencode(name), folder) is slow, (texts, path[: at + 1], folder)
        if taken(level, os.fsencode(name), True):
            return
        level = level.below(os.fsencode(name))


def taken(level: globs.Level, name: bytes, folder: bool) -> bool:
    """The walk's own question about one entry."""
    any_kind = name in level.exact or name.startswith(level.prefixes) or name.endswith(level.suffixes)
    return bool(
        any_kind
        or any(test(name) for test in level.other)
        or (folder and any(test(name) for test in level.directories))
    )


def slowly(pattern: str, path: list[str], folder: bool) -> bool:
    if pattern.endswith("/") and not folder:
        return False
    return components([each for each in pattern.split("/") if each not in ("", ".")], path)


def components(wanted: list[str], path: list[str]) -> bool:
    """``**`` is any number of directories, at the end at least one name."""
    if not wanted:
        return not path
    if wanted[0] == "**" and len(wanted) > 1:
        return any(components(wanted[1:], path[at:]) for at in range(len(path) + 1))
    if wanted[0] == "**":
        return bool(path)
    return bool(path) and letters(wanted[0], path[0]) and components(wanted[1:], path[1:])


def letters(wanted: str, name: str) -> bool:
    """One component, letter by letter."""
    if not wanted:
        return not name
    first, rest = wanted[0], wanted[1:]
    if first == "*":
        return any(letters(rest.lstrip("*"), name[at:]) for at in range(len(name) + 1))
    if first == "\\" and rest:
        return name[:1] == rest[0] and letters(rest[1:], name[1:])
    if first == "[":
        negated = rest[:1] in ("!", "^")
        body = rest[1:] if negated else rest
        end = body.index("]", 1)
        return bool(name) and (in_class(body[:end], name[0]) is not negated) and letters(body[end + 1 :], name[1:])
    return bool(name) and (first == "?" or first == name[0]) and letters(rest, name[1:])


def in_class(members: str, letter: str) -> bool:
    while members:
        if len(members) > 2 and members[1] == "-":
            if members[0] <= letter <= members[2]:
                return True
            members = members[3:]
        else:
            if members[0] == letter:
                return True
            members = members[1:]
    return False


# --- hooks: texts ------------------------------------------------------------------------------------------

JSON_WORDS = (
    '{ } [ ] : , " \\ \\u0000 \\ud800 true false null NaN Infinity -1 1e999 0.5 // /* */ # \ufeff hooks'
    " PreToolUse matcher command"
    " type timeout decision block deny allow hookSpecificOutput permissionDecision hookEventName reason"
    " continue version enabled"
)


@raw(words=JSON_WORDS)
def json_stream(data: bytes) -> None:
    """A hook's stdout: no exception; what is taken for JSON is what the standard reader makes of it."""
    found = jsontext.read(data)
    if found.form in ("object", "array", "scalar") and not found.has("invalid_utf8"):
        again = standard_json(data.decode().strip(jsontext.BLANK))
        assert same(found.value, again)
        if "inf" not in repr(again):  # 1e999 is JSON, and what it is read as is not
            assert same(standard_json(jsontext.dumps(found.value)), again)
            jsontext.dumps(found.value, ascii=False)
    elif not found.has("invalid_utf8"):
        assert found.value is None


def standard_json(text: str | bytes) -> Any:
    """The standard reader, which refuses integers of thousands of digits."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 400 else float(digits))


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) or len(repr(one)) > 4000


@raw(HooksFileError, words=JSON_WORDS)
def json_file(data: bytes) -> None:
    """A hooks file: strict means strict, and every node stands where it says."""
    for syntax in (source.STRICT, source.COMMENTS, source.RELAXED):
        try:
            found = source.parse_source(data, "hooks.json", syntax)
        except HooksFileError as error:
            check_message(error)
            placed = error.line > 0 and error.column > 0
            refused_rightly = syntax is not source.STRICT or not standard(data)
        else:
            placed = refused_rightly = True
            check_tree(found, data, syntax)
        assert placed, "an error without a place"
        assert refused_rightly, "standard JSON was refused"


def check_tree(found: source.Source, data: bytes, syntax: source.Syntax) -> None:
    assert found.text.encode() == data
    if syntax is source.STRICT:
        assert same(found.root.value, standard_json(found.text.removeprefix("\ufeff")))
    for node in every(found.root):
        piece = found.text[node.start : node.end]
        assert syntax is not source.STRICT or same(standard_json(piece), node.value)
    assert source.apply(found.text, [source.replace_value(found.root, "{}")])


def standard(data: bytes) -> bool:
    def constant(_name: str) -> Any:
        raise ValueError

    try:
        found = json.loads(data.decode(), parse_constant=constant, parse_int=float)
    except (ValueError, RecursionError):
        return False
    return jsontext.depth(found) < 100


def every(node: source.Node) -> Iterable[source.Node]:
    waiting = [node]
    while waiting and len(waiting) < 300:
        found = waiting.pop()
        yield found
        waiting += [*found.items, *(member.node for member in found.members)]


CONFIG_PATHS = (
    "/p/.claude/settings.json", "/p/.codex/hooks.json", "/p/.agents/hooks.json", "/p/.cursor/hooks.json",
    "/p/.gemini/settings.json", "/p/hooks/hooks.json", "/p/.claude-plugin/plugin.json",
)  # fmt: skip


@raw(HooksFileError, words=JSON_WORDS)
def hooks_file(data: bytes) -> None:
    """The same as whole files of every host, where they stand and by dialect: handlers or a message with a place."""
    read = 0
    for path in CONFIG_PATHS:
        read += loaded(data, path, None)
    for name in NAMES:
        read += loaded(data, "/p/some.json", name)
    if not read:
        raise HooksFileError("could not read any of them")


def loaded(data: bytes, path: str, name: str | None) -> int:
    try:
        found = config.read(data, path, name, config.settled(path, "", "", "/home/u"))
    except (HooksFileError, RequestError) as error:
        check_message(error)
        return 0
    for spec in found.specs:
        assert spec.timeout >= 0
    for problem in found.problems:
        assert shown_safely(problem.text), problem
    return 1


@raw(
    HooksFileError,
    words='[hooks] [[hooks.PreToolUse]] [[hooks.PreToolUse.hooks]] command type matcher timeout = " \' """ { } . , 1 true',
)
def hooks_toml(data: bytes) -> None:
    """Codex's config.toml."""
    if not loaded(data, "/p/.codex/config.toml", None):
        raise HooksFileError("could not read it")
    text = data.decode()
    for edit in tomltext.spans(text, "command", "x"):
        assert tomltext.decoded(text[edit.start : edit.end]) == "x"


@raw(
    HooksFileError,
    words="---\n hooks: PreToolUse: - matcher: command: type: \" ' # | > [ { & * ! %  \t true 1 ~ ...\n",
)
def hooks_frontmatter(data: bytes) -> None:
    """A skill's frontmatter."""
    if not loaded(data, "/p/.claude/skills/x/SKILL.md", None):
        raise HooksFileError("could not read it")


# --- hooks: events and answers -----------------------------------------------------------------------------


@raw(
    RequestError,
    words=JSON_WORDS
    + " hook_event_name tool_name tool_input cwd session_id tool_call conversationId event payload /w",
)
def hook_event_text(data: bytes) -> None:
    """A payload on stdin."""
    try:
        raw_event, _odd = jsontext.parse(data.decode("utf-8", "replace"))
    except jsontext.NotJson as error:
        check_message(error)
        return
    read_everywhere(raw_event)


@structured(RequestError)
def hook_event(choices: Choices) -> None:
    """Payloads with the fields that hosts send, of right and wrong types."""
    keys = ("hook_event_name", "tool_name", "tool_input", "tool_use_id", "cwd", "session_id", "transcript_path", "tool_call",
        "conversationId", "toolCall", "event", "payload", "cursor_version", "workspace_roots", "command", "effort",
        "timestamp", "turn_id", "model", "name", "input")  # fmt: skip
    read_everywhere({choices.pick(keys): value(choices, 0) for _each in range(choices.number(8))})


def read_everywhere(raw_event: Any) -> None:
    read = 0
    for name in NAMES:
        host = DIALECTS[name]
        try:
            event = host.read_event(raw_event)
        except RequestError as error:
            check_message(error)
            continue
        read += 1
        assert event.kind == host.rule(event.name).kind
        assert standard_json(host.payload(event)) is not None
        for variable, text in host.variables(event, "/root").items():
            assert isinstance(text, str), (name, variable, text)
            assert b"\0" not in os.fsencode(text), (name, variable, text)
    if not read:
        raise RequestError("could not read it as an event of any host")


def value(choices: Choices, deep: int) -> Any:
    """Any JSON value."""
    kind = choices.number(9 if deep < 3 else 6)
    if kind < 4:
        return choices.pick((
            "", "/w", "deny", "allow", "ask", "block", "approve", "PreToolUse", "BeforeTool", "preToolUse",
            "pre_tool_call", "Bash",
            "beforeShellExecution", "UserPromptSubmit", "Stop", "x\0", "\ud800", "stop", "proceed", "force_ask",
            "Write", "\x1b[31m",
        ))  # fmt: skip
    if kind < 7:
        return choices.pick((None, True, False, 0, 1, -1, 0.5, 2**70))
    if kind == 7:
        return choices.some(lambda: value(choices, deep + 1), 3)
    keys = (*ANSWER_KEYS, "command", "file_path", "level")
    return {choices.pick(keys): value(choices, deep + 1) for _each in range(choices.number(4))}


ANSWER_KEYS = (
    "decision", "reason", "permissionDecision", "permissionDecisionReason", "hookSpecificOutput", "hookEventName", "continue",
    "stopReason", "systemMessage", "updatedInput", "additionalContext", "permission", "user_message", "agent_message",
    "behavior", "message", "result", "suppressOutput", "action", "allow_tool", "deny_reason", "modified_input",
    "context", "updated_input",
)  # fmt: skip


@structured()
def hook_answer(choices: Choices) -> None:
    """How a hook ends and what it answers: no exception in any dialect; confined, only a good end is a consent."""
    run = ended(choices)
    for name in NAMES:
        host = DIALECTS[name]
        event = choices.pick((*host.EVENTS, "Nope"))
        outcome = host.decode(event, run)
        assert outcome.verdict in VERDICTS
        counted = judge(outcome, run)
        if run.enforcement != "none" or run.runner_failed:
            assert counted.verdict == "deny" or consents(run, event), (name, event, run, counted)
        else:
            assert counted == outcome or counted.verdict == "deny"
        closed = judge(outcome, run, fail_closed=True)
        assert VERDICTS.index(closed.verdict) <= VERDICTS.index(outcome.verdict)
        told_back(host, event, counted, choices)


def told_back(host: Any, event: str, outcome: Any, choices: Choices) -> None:
    """The merged answer in the host's words; a deny of what it blocks is one that the host obeys."""
    merged = merge([outcome, *([outcome.replace(verdict="allow")] if choices.flag() else [])])
    assert VERDICTS.index(merged.verdict) <= VERDICTS.index(outcome.verdict)
    reply = host.encode(event, merged)
    if outcome.verdict == "deny" and host.rule(event).blocks:
        again = host.decode(event, HookRun(exit_code=reply.exit_code, stdout=reply.stdout, stderr=reply.stderr))
        assert again.verdict == "deny" or again.halt, (host.NAME, event, outcome, reply, again)


def ended(choices: Choices) -> HookRun:
    answer = {choices.pick(ANSWER_KEYS): value(choices, 0) for _each in range(choices.number(4))}
    text = jsontext.dumps(answer).replace(b"0.5", choices.pick((b"0.5", b"1e999", b"-0.0")))
    broken = (text + b" x", b"hello " + text, b"\xef\xbb\xbf" + text, text[:-1], text + text, b"\xff" + text)
    stdout = choices.pick((text, text, text, b"", choices.raw(20), *broken))
    return HookRun(
        exit_code=choices.pick((0, 0, 0, 2, 1, 127, 137, None)),
        signal=choices.pick((None, None, None, None, 9)),
        timed_out=choices.flag(12),
        stdout=stdout,
        stderr=choices.pick((b"", b"why", b"\x1b[31mno", text, b"\xff")),
        stdout_truncated=choices.flag(12),
        started=not choices.flag(12),
        runner_failed=choices.flag(12),
        enforcement=choices.pick(("full", "full", "partial", "none")),
        denied=choices.flag(6),
    )


def consents(run: HookRun, event: str) -> bool:
    """Whether a confined run may count as anything but a deny: a good end, and nothing or one object on stdout (a
    path, where the host asks for one)."""
    good = run.exit_code == 0 and run.signal is None and not run.timed_out and run.started
    if not good or run.runner_failed or run.stdout_truncated:
        return False
    text = run.stdout.strip()
    if event == "WorktreeCreate":
        return bool(text)
    if not text.startswith(b"{"):
        return b'{"' not in text
    try:
        standard_json(text.decode())
    except ValueError:
        return False
    return True


# --- hooks: shell and patterns -----------------------------------------------------------------------------

SHELL_WORDS = (
    "'  \" \\ $ ${ } $( ) ` | || && ; & < > << <<EOF EOF 2>&1 # ~ ~/ * ? [ ] { ! if then fi do done while env"
    " FOO=1 sh -c bash -lc"
    " eval python3 -m script.py node -e stockade hook -- $HOME ${X:-y} $1 \t \x00 \u00fc"
)


@raw(words=SHELL_WORDS)
def shell_text(data: bytes) -> None:
    """A shell's text, read to judge it and to know what it starts: no exception, no hang, bounded."""
    text = data.decode("utf-8", "replace")
    env = {"HOME": "/home/u", "X": "a b", "EMPTY": ""}
    found = shelltext.commands(text, env)
    assert all(isinstance(each.name, str) and each.texts() is not None for each in found)
    shelltext.unfinished(text)
    words.simple_words(text, env)
    words.target(["/bin/sh", "-c", text], env)
    words.target(text.split(" "), env)
    again = quoting.split(text)
    assert again is None or quoting.split(quoting.join(again)) == again
    apart = quoting.taken_apart(text)
    assert apart is None or apart.rest in text


@raw(ValueError, words=SHELL_WORDS)
def shell_quoting(data: bytes) -> None:
    """Whatever is wrapped is read back as it was, by us and by a reader of shell words."""
    text = data.decode("utf-8", "replace")
    head = ("stockade", "hook")
    for as_literal in (False, True):
        line = quoting.wrapped(head, "/bin/sh", text, as_literal=as_literal)
        apart = quoting.taken_apart(line)
        assert apart is not None
        assert apart.head == head
        assert apart.inner == ("/bin/sh", "-c", text), (text, apart)
    expected = (*head, "--", "/bin/sh", "-c", text)
    assert quoting.split(quoting.wrapped(head, "/bin/sh", text)) == expected
    import shlex

    assert tuple(shlex.split(quoting.wrapped(head, "/bin/sh", text), posix=True)) == expected


EVIL = (
    "(a|a)*b", "(a+)+$", "(a*)*b", "(?=(a+)+b)", r"(a|aa)+\1b", "(.*)(.*)(.*)(.*)(.*)b", "(?:a?){9}" * 4 + "a",
    "a{1,1000}" * 3,
    "(((a*)*)*)*b", "(?!x)(a|b|ab)*c", r"^(\w+\s?)*$", "(a{0,9}){0,9}" * 2 + "(?=b)", "(x+x+)+y",
    r"(?<=a)(a|a)*b", "a*" * 30 + "(?=b)",
    r"(\w*\d*)*!(?!x)", "(" * 300 + "a" + ")*" * 300, r"(a)\1*" * 9 + "b", "[" * 50, "(?P<x>a)(?P<x>b)", r"(?:(?=a)a|a)*b",
)  # fmt: skip


@structured(patterns.BadPattern)
def evil_pattern(choices: Choices) -> None:
    """Patterns of third parties on texts of third parties: refused, or an answer in bounded time."""
    pieces = ("a", "b", ".", "*", "+", "?", "{1,9}", "{10,}", "(", ")", "|", "[", "]", "^", "$", "\\1", "\\w",
        "\\d", "(?=", "(?!", "(?<=",
        "(?:", "(?<x>", "\\k<x>", "\\u{61}", "\\", "-", "\\b", "\\p", ",", " ")  # fmt: skip
    pattern = choices.pick(EVIL) if choices.flag(3) else choices.text(pieces, 16)
    if choices.flag(4):
        pattern = choices.pick(("(?:{})*(?=b)", "({})+\\1", "(?!{})a*b", "{}|{}|{}")).replace("{}", pattern)
    text = choices.pick(("a", "ab", "aab", "x", "a ", "\u00fc", "\n")) * choices.pick(
        (0, 1, 20, 40, 300, 2000)
    ) + choices.pick(("", "c", "b"))
    try_pattern(pattern, text)


@raw(
    patterns.BadPattern,
    words="a b . * + ? {1,9} {10,} ( ) | [ ] ^ $ \\1 \\w (?= (?! (?<= (?: (?<x> \\k<x> \\u{61} \\ - git Bash( :* ** /",
)
def pattern_text(data: bytes) -> None:
    """The same of any text."""
    text = data.decode("utf-8", "replace")
    try_pattern(text, "a" * 40 + "c")


def try_pattern(pattern: str, text: str) -> None:
    tried = 0
    for made in (patterns.js_pattern, patterns.rust_pattern, patterns.re2_pattern):
        try:
            assert made(pattern).found_in(text) in (True, False)
            tried += 1
        except patterns.BadPattern as error:
            check_message(error)
    for name in NAMES:
        event = next(event for event, rule in DIALECTS[name].EVENTS.items() if rule.kind == "pre_tool")
        spec = HookSpec(name, event, "pre_tool", "shell", "true", matcher=pattern, condition=f"Bash({pattern})")
        about = HookEvent(
            name, event, "pre_tool", {"tool_name": text}, cwd="/w", tool=ToolCall(text, {"command": text})
        )
        for problem in matches(spec, about).problems:
            assert shown_safely(problem.text)
        bash = about.replace(tool=ToolCall("Bash", {"command": text, "file_path": text}))
        permission.condition_holds(spec, bash)
        permission.condition_holds(
            spec.replace(condition=f"Read({pattern})"), bash.replace(tool=ToolCall("Read", {"file_path": text}))
        )
    if not tried:
        raise patterns.BadPattern("no host takes it")
