"""The fuzzing targets under hypothesis, the committed corpus, large inputs, and the checker's own teeth.

What is found by chance, here or by ``scripts/fuzz``, goes to ``corpus/`` and is tried each time from then on.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import ceiling
import pytest
import stacks
from choices import Choices
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import EVIL, TARGETS, try_pattern

from stockade.policies import hosts, layers, narrow
from stockade.policies.errors import PolicyError
from stockade.policies.model import parse_policy
from stockade.policies.toml import MOST_PARTS, loads
from stockade.sandbox.hooks.patterns import BadPattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from targets import Target

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(str(path.relative_to(CORPUS)) for path in CORPUS.glob("*/*"))
RAW = [name for name, target in TARGETS.items() if not target.structured]
STRUCTURED = [name for name, target in TARGETS.items() if target.structured]
SLOW = {"policy_layers": 150, "evil_pattern": 60, "pattern_text": 60}
"""Fewer examples where one costs more."""


class Drawn(Choices):
    """Choices that hypothesis makes, and can make smaller."""

    def __init__(self, draw: Any) -> None:
        super().__init__(b"")
        self._draw = draw

    def number(self, most: int) -> int:
        return int(self._draw(st.integers(0, most)))

    def raw(self, most: int) -> bytes:
        return bytes(self._draw(st.binary(max_size=most)))


def seeds(target: Target) -> list[bytes]:
    folder = CORPUS / target.name
    return [path.read_bytes()[:2000] for path in sorted(folder.iterdir())]


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Any bytes, sequences of the target's words, and kept inputs with other bytes put over a part of them."""
    kept = st.builds(
        lambda seed, at, length, put: seed[: at % (len(seed) + 1)] + put + seed[at % (len(seed) + 1) + length :],
        st.sampled_from(seeds(target)),
        st.integers(0, 2000),
        st.integers(0, 8),
        st.one_of(st.binary(max_size=8), st.sampled_from(target.words or (b"",))),
    )
    words = st.lists(st.one_of(st.sampled_from(target.words or (b"",)), st.binary(max_size=3)), max_size=30).map(
        b"".join
    )
    return st.one_of(st.binary(max_size=200), words, kept)


def bounded(name: str) -> settings:
    few = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=SLOW.get(name, 150), deadline=None, suppress_health_check=few)


@pytest.mark.parametrize("name", RAW)
def test_bytes(name: str) -> None:
    target = TARGETS[name]

    @bounded(name)
    @given(inputs(target))
    def judge(data: bytes) -> None:
        target.run(data)

    judge()


@pytest.mark.parametrize("name", STRUCTURED)
def test_structures(name: str) -> None:
    target = TARGETS[name]

    @bounded(name)
    @given(st.data())
    def judge(data: st.DataObject) -> None:
        target.judge(Drawn(data.draw))

    judge()


@pytest.mark.parametrize("name", STRUCTURED)
def test_structures_of_bytes(name: str) -> None:
    """The other way to the same structures, as atheris goes it."""
    target = TARGETS[name]

    @settings(bounded(name), max_examples=40)
    @given(st.binary(min_size=20, max_size=200))
    def judge(data: bytes) -> None:
        target.run(data)

    judge()


@pytest.mark.parametrize("path", KEPT)
def test_corpus(path: str) -> None:
    TARGETS[os.path.dirname(path)].run((CORPUS / path).read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {os.path.dirname(path) for path in KEPT} == set(TARGETS)


# --- the targets can fail ------------------------------------------------------------------------------------


def stacks_with_projects(seed: int) -> Iterator[stacks.Stack]:
    chance = random.Random(seed)
    for _each in range(4000):
        stack = stacks.made(Choices(chance.randbytes(160)))
        if {"outer", "inner"} & set(stack.texts):
            yield stack


def found_by_checker(stack: stacks.Stack) -> bool:
    try:
        found = stacks.resolved(stack)
    except PolicyError:
        return False
    try:
        top = stacks.ceiling(stack, projects=False)
        stacks.ceiling(stack)
    except ceiling.Refused:
        return True
    return bool(ceiling.exceeding(found, top, stacks.reach_of(found), project=True))


def test_stacks_are_accepted_often_enough_to_mean_something() -> None:
    accepted = with_hosts = 0
    for stack in stacks_with_projects(1):
        try:
            found = stacks.resolved(stack)
        except PolicyError:
            continue
        accepted += 1
        with_hosts += bool(found.allow)
        if accepted >= 20 and with_hosts:
            return
    pytest.fail(f"only {accepted} stacks with a project were accepted, {with_hosts} of them with hosts")


def widening(texts: dict[str, str], preset: str = "read-only", **options: Any) -> stacks.Stack:
    base = "" if "base" in texts else preset
    return stacks.Stack({role: stacks.world().filled(text) for role, text in texts.items()}, base, None, options)


ALLOW = '[network]\negress = "allow"\nallow = ["a.example"]\n'
SETS = '[environment]\nset = { LC_ALL = "x" }\n'
TRIED: dict[str, tuple[dict[str, Any], str, Any]] = {
    "workspace": ({"inner": '[filesystem]\nworkspace = "read-write"\n'}, "layers.check_narrowing", lambda *_: None),
    "hosts": ({"base": ALLOW, "inner": '[network]\nallow = ["b.example"]\n'}, "narrow.covers", lambda *_: True),
    "link": (
        {"base": 'extends = "workspace-write"\n', "inner": '[filesystem]\nwrite = ["link"]\n'},
        "narrow._outside", lambda *_: None,
    ),
    "pass": ({"inner": '[environment]\npass = ["AWS_*"]\n'}, "narrow._passed", lambda *_: True),
    "path": ({"inner": '[environment]\nset = { PATH = "/w/evil" }\n'}, "narrow.OURS", ()),
    "hidden-workspace": ({"inner": '[filesystem]\nworkspace = "none"\n'}, "layers._still_hidden", lambda merged, *_: merged),
    "hidden-read": (
        {"base": '[filesystem]\nread = ["{outside}"]\n', "inner": "[filesystem]\nread = []\n"},
        "layers._still_hidden", lambda merged, *_: merged,
    ),
    "confined": (
        {"user": '[network]\negress = "record"\n', "inner": '[network]\negress = "none"\n'},
        "layers._still_confined", lambda merged, _below: merged,
    ),
    "confined-overlay": (
        {"user": '[filesystem]\nworkspace = "overlay"\n', "inner": '[filesystem]\nworkspace = "none"\n'},
        "layers._still_confined", lambda merged, _below: merged,
    ),
    "check": (
        {"base": f'{ALLOW}check = "name"\n', "inner": '[network]\ncheck = "address"\n'},
        "layers.check_narrowing", lambda *_: None,
    ),
    "own-check": (
        {"base": ALLOW, "inner": '[network]\nallow = ["a.example check=address"]\n'}, "hosts._as_strict", lambda *_: True,
    ),
    "tied-check": (
        {"base": ALLOW, "inner": '[network]\nallow = ["a.example check=auto"]\n'}, "hosts._as_strict", lambda *_: True,
    ),
    "edge": ({"base": ALLOW, "inner": '[[network.edge]]\nhost = "a.example"\n'}, "narrow.NEVER", ()),
    "edge-given-up": (
        {"base": f'{ALLOW}[[network.edge]]\nhost = "a.example"\n', "inner": "[network]\nedge = []\n"}, "narrow.NEVER", (),
    ),
    "queries": (
        {"user": "[network]\nmask_queries = true\n", "inner": "[network]\nmask_queries = false\n"},
        "layers.check_narrowing", lambda *_: None,
    ),
}  # fmt: skip
"""What a project tries, and the part of the product without which it would come through."""


@pytest.mark.parametrize("name", TRIED)
def test_the_checker_finds_a_product_that_widens(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    texts, place, stand_in = TRIED[name]
    assert not found_by_checker(widening(texts))
    module, _, attribute = place.partition(".")
    if module == "narrow" and attribute == "NEVER":
        monkeypatch.setitem(narrow._LISTED, "network.edge", lambda *_: None)
    monkeypatch.setattr({"layers": layers, "narrow": narrow, "hosts": hosts}[module], attribute, stand_in)
    assert found_by_checker(widening(texts))


@pytest.mark.parametrize(
    ("texts", "preset"),
    [
        ({"outer": "[environment]\npass = []\n", "inner": SETS}, "read-only"),
        ({"user": '[network]\negress = "record"\n', "inner": '[network]\negress = "none"\n'}, "full-access"),
    ],
    ids=["one-project-makes-room-for-another", "a-project-mends-a-contradiction"],
)
def test_refused_without_a_project_is_refused_with_it(texts: dict[str, str], preset: str) -> None:
    with pytest.raises(PolicyError):
        stacks.resolved(widening(texts, preset))
    alone = {role: text for role, text in texts.items() if role not in ("outer", "user")}
    stacks.resolved(widening(alone if preset != "read-only" else {"outer": texts["outer"]}, preset))


def test_hidden_by_the_call_stays_hidden_where_a_project_gives_up_the_workspace() -> None:
    texts = {"inner": '[filesystem]\nworkspace = "none"\n'}
    found = stacks.resolved(widening(texts, **{"filesystem.hide": ["key"]}))
    assert f"{stacks.world().work}/key" in found.hide
    without = stacks.resolved(widening({}, **{"filesystem.hide": ["key"]}))
    assert without.hide == ("**/.env*", "key")


WIDER = {
    "mode": "off", "root": "host", "workspace": "read-write", "write": ("/etc",), "read": ("/root",), "home": "/home/other",
    "env_pass": ("AWS_*",), "env_set": (("LD_PRELOAD", "x"),), "egress": "open", "private": True, "connector": "pasta",
    "timeout": None, "memory": 1 << 50, "processes": None, "output": 1 << 40, "hide": (), "protect": (), "syscalls": "off",
    "user": "caller", "toolchains": "auto", "check": "auto", "mask_queries": False,
    "edge": ('{"host": "a.example", "scheme": "https", "methods": [], "paths": [], "headers": []}',),
}  # fmt: skip


@pytest.mark.parametrize("field", WIDER)
def test_the_checker_sees_every_field(field: str) -> None:
    text = (
        'mode = "strict"\n[filesystem]\nroot = "minimal"\ntoolchains = "none"\n[limits]\ntimeout = "1s"\n'
        '[process]\nuser = "unprivileged"\n[network]\ncheck = "name"\nmask_queries = true\n'
    )
    stack = stacks.Stack({"base": text}, "", None, {})
    found, top = stacks.resolved(stack), stacks.ceiling(stack)
    assert not ceiling.exceeding(found, top, stacks.reach_of(found))
    assert ceiling.exceeding(found.replace(**{field: WIDER[field]}), top, stacks.reach_of(found))


@pytest.mark.parametrize(
    "extra",
    ["b.example", "*.a.example", "a.example:80", "udp://a.example", "192.0.2.0/24", "a.example check=address"],
)
def test_the_checker_sees_hosts(extra: str) -> None:
    text = '[network]\negress = "allow"\nallow = ["a.example", "192.0.2.7"]\n'
    stack = stacks.Stack({"base": text}, "", None, {})
    found, top = stacks.resolved(stack), stacks.ceiling(stack)
    assert not ceiling.exceeding(found, top, stacks.reach_of(found))
    wide = found.replace(allow=(*found.allow, extra))
    assert ceiling.exceeding(wide, top, stacks.reach_of(wide))


def test_an_undeclared_exception_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["policy_text"]

    def broken(_data: bytes) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(target, "function", broken)
    with pytest.raises(ValueError, match="a fault"):
        target.run(b"")


# --- large inputs come to an end -----------------------------------------------------------------------------

MANY = 8_000
LARGE: dict[str, list[bytes]] = {
    "policy_text": [
        b"a." * MANY, b"[" * MANY, b"[[a]]\n" * MANY, b'"' * MANY, b'x = "' + b"\\" * MANY, b"#" * MANY, b"a={" * MANY,
        b"x = [" + b"'" * MANY, b'x = """' + b'\\"' * MANY,
    ],
    "host_rule": [b"a." * MANY, b"[" * MANY, b":" * MANY, b"9" * MANY],
    "amounts": [b"9" * MANY, b"0." + b"0" * MANY, b"." * MANY],
    "status_records": [b"{" * MANY, b'{ "a": 1 }\n' * MANY, b'{"a":' + b"9" * MANY, b'{"a":1,' * MANY, b"\n" * MANY],
    "json_stream": [b"[" * MANY, b'{"a":1,' * MANY, b'"' * MANY, b"\n{" * MANY, b"9" * MANY,
    b"{" + b'"a":3,' * MANY + b'"a":4}'],
    "json_file": [
        b"[" * MANY, b"{" + b'"a":1,' * MANY + b'"a":1}', b"[" + b'"a",' * MANY + b"1]", b"//\n" * MANY, b"/*" * MANY,
        b"{" + b'"a":1,\n' * MANY + b"//\n" * MANY + b'"a":1}',
    ],
    "hooks_file": [
        b'{"hooks":{' + b",".join(b'"k%d":[]' % number for number in range(MANY // 4)) + b"}}",
        b'{"hooks":{"PreToolUse":[{"hooks":[{' + b",".join(b'"k%d":1' % number for number in range(MANY // 4)) + b"}]}]}}",
        b'{"hooks":{"PreToolUse":[' + b",".join([b'{"hooks":[]}'] * (MANY // 4)) + b"]}}",
    ],
    "hooks_toml": [
        b"[[hooks.PreToolUse]]\n[[hooks.PreToolUse.hooks]]\ncommand = 'x'\n" * (MANY // 10), b"hooks." + b"a." * MANY,
    ],
    "hooks_frontmatter": [
        b"---\nhooks:\n" + line * MANY + b"---\n" for line in (b"- x\n", b"- a: x\n", b"- ", b"a: 1\n", b"-\n")
    ],
    "shell_text": [
        part * MANY
        for part in (
            b"$(", b"`", b"'", b"a;", b"<<A\n", b"1", b"$", b"${", b"eval ", b"sh -c '", b'"$(', b"hook -- ",
            b"$(a) ", b"$X ",
        )
    ],
    "shell_quoting": [b"'" * MANY, b"STOCKADE\n" * 500, b"\\" * MANY, b"\n" * MANY],
    "dns_answers": [b"::" * MANY, b"1." * MANY],
    "name_check": [
        b"A" * MANY, b"\x16\3\1\0\1\1" * MANY, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * MANY, b"GET / HTTP/1.1\r\n" + b"\n" * MANY,
    ],
    "http_stream": [b"\x0c\0\x05" + b"\1" * MANY],
    "first_bytes": [b"A" * MANY, b"\x16\3\1\0\1\1" * MANY, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * MANY],
    "hook_event_text": [b'{"cwd":' * MANY, b'{"hook_event_name":"Stop","cwd":"/' + b"w" * MANY + b'"}'],
    "pattern_text": [b"(" * 2000, b"(?=" * 600, b"[" * 2000, b"a{9}" * 490, b"(?:" * 400 + b"a" + b")?" * 400 + b"(?=b)"],
}  # fmt: skip
"""Repetitions that readers like to read again and again."""


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, group in LARGE.items() for at in range(len(group))])
def test_large_inputs_end(name: str, at: int) -> None:
    """What takes time by the square of its input takes minutes here."""
    TARGETS[name].run(LARGE[name][at])


@pytest.mark.parametrize("text", ["a" * 40 + "c", "a" * 2000 + "c", "ab" * 500 + "!"])
@pytest.mark.parametrize("pattern", EVIL)
def test_evil_patterns_end(pattern: str, text: str) -> None:
    """An engine that goes back and forth would not."""
    try:
        try_pattern(pattern, text)
    except BadPattern:
        pass  # refused: that is an end, too


@pytest.mark.parametrize("text", ["{}", "[{}]", "x = {{ {} = 1 }}", 'y = """a""""\n{}', "# '\n{}", "z = 'a\\'\n{}"])
def test_long_keys_are_refused_before_they_cost(text: str) -> None:
    long, short = (".".join(["a"] * count) for count in (MOST_PARTS + 1, MOST_PARTS))
    end = "" if text.endswith(("]", "}}")) else " = 1"
    with pytest.raises(ValueError, match="more than 32 parts"):
        loads(text.format(long) + end)
    loads(text.format(short) + end)
    with pytest.raises(PolicyError, match="more than 32 parts"):
        parse_policy(text.format(long) + end, "it")


def test_dots_in_texts_are_no_keys() -> None:
    dots = ".".join(["a"] * 100)
    text = f'x = "{dots}" # {dots}\ny = \'{dots}\'\nz = \'\'\'\n{dots}\n\'\'\'\n"{dots}" = """{dots}"""\n'
    assert loads(text)["z"] == f"{dots}\n"
