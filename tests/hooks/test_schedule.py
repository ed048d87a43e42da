"""Which handlers run, in which steps: by tables. Also what is told to a host of a change. Nothing is run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.hooks import changes, schedule
from stockade.sandbox.hooks.commands import command_of, directory_of, root_of
from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.model import HookEvent, HookOutcome, HookSpec, MergedOutcome
from stockade.sandbox.hooks.registry import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def entry(label: str, priority: int = 0, *, together: bool = True, **fields: Any) -> Entry:
    given = {"dialect": "claude", "event": "PreToolUse", "kind": "pre_tool", "form": "shell", "command": label}
    return Entry(HookSpec(**{**given, "priority": priority, **fields}), label, together=together)


def event(name: str = "claude", event_name: str = "PreToolUse", kind: str = "pre_tool", **fields: Any) -> HookEvent:
    return HookEvent(name, event_name, kind, fields.pop("raw", {}), **fields)


def plan(entries: list[Entry], about: HookEvent | None = None, **options: Any) -> schedule.Plan:
    return schedule.plan(entries, about or event(), lambda _entry, _event: ("", ()), **options)


def shape(made: schedule.Plan) -> str:
    return " ".join("".join(each.label for each in step) for step in made.steps)


@pytest.mark.parametrize(
    ("name", "sequential", "wanted"),
    [
        ("claude", None, "abc"), ("codex", None, "abc"), ("gemini", None, "abc"), ("cursor", None, "a b c"),
        ("antigravity", None, "a b c"), ("agy", None, "a b c"), ("nous", None, "a b c"),
        ("claude", True, "a b c"), ("nous", False, "abc"),
    ],
)  # fmt: skip
def test_what_runs_at_once_is_the_hosts_business_or_an_option(
    name: str, sequential: bool | None, wanted: str
) -> None:
    entries = [entry(label, dialect=name) for label in "abc"]
    assert shape(plan(entries, event(name), sequential=sequential)) == wanted


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ([entry("a"), entry("b", 1), entry("c", -1), entry("d")], "c ad b"),
        ([entry("a"), entry("b", together=False), entry("c")], "a b c"),
        ([entry("a"), entry("b"), entry("c", together=False), entry("d", together=False)], "ab c d"),
        ([entry("a", 1, together=False), entry("b"), entry("c")], "bc a"),
        ([entry("a"), entry("b", asynchronous=True), entry("c")], "ac"),
        ([entry("a"), entry("b", enabled=False), entry("c", event="Stop"), entry("d", form="prompt")], "a"),
        ([], ""),
    ],
)
def test_steps(entries: list[Entry], wanted: str) -> None:
    assert shape(plan(entries)) == wanted


def test_one_sequential_group_of_gemini_makes_all_so() -> None:
    entries = [
        entry("a", dialect="gemini"),
        entry("b", dialect="gemini", sequential=True),
        entry("c", dialect="gemini"),
    ]
    assert shape(plan(entries, event("gemini"))) == "a b c"


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=12), st.booleans())
def test_every_handler_runs_once_by_priority_and_then_in_order(
    given: list[tuple[int, bool]], at_once: bool
) -> None:
    entries = [entry(f"{at}.", priority, together=together) for at, (priority, together) in enumerate(given)]
    made = plan(entries, sequential=not at_once)
    assert list(made.entries) == sorted(entries, key=lambda each: each.spec.priority)
    for step in made.steps:
        assert len(step) == 1 or all(each.together for each in step)
        assert len({each.spec.priority for each in step}) == 1


@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [
        ({}, {}, "a"),
        ({"timeout": 5.0}, {"timeout": 9.0}, "a"),
        ({}, {"command": "other"}, "ab"),
        ({}, {"form": "argv", "command": ("x",)}, "ab"),
        ({"form": "argv", "command": ("x", "1")}, {"form": "argv", "command": ("x", "2")}, "ab"),
        ({"form": "argv", "command": ("x", "1")}, {"form": "argv", "command": ("x", "1")}, "a"),
        ({"form": "http", "url": "https://a/"}, {"form": "http", "url": "https://b/"}, "ab"),
        ({"form": "http", "url": "https://a/"}, {"form": "http", "url": "https://a/"}, "a"),
        ({"provenance": "user"}, {"provenance": "project"}, "a"),
        ({"provenance": "plugin"}, {"provenance": "plugin"}, "ab"),
        ({"provenance": "project"}, {"provenance": "plugin"}, "ab"),
        ({"dialect": "codex"}, {"dialect": "codex"}, "ab"),
        ({"dialect": "gemini", "name": "n"}, {"dialect": "gemini", "name": "n"}, "a"),
        ({"dialect": "gemini", "name": "n"}, {"dialect": "gemini", "name": "m"}, "ab"),
    ],
)
def test_the_same_handler_runs_once_where_its_host_does_so(
    first: dict[str, Any], second: dict[str, Any], runs: str
) -> None:
    name = first.get("dialect", "claude")
    entries = [entry("a", **{"command": "x", **first}), entry("b", **{"command": "x", **second})]
    made = plan(entries, event(name), sequential=False)
    assert shape(made) == runs
    assert [each.why for each in made.skipped] == ([] if runs == "ab" else ["it is the same as a"])


def test_a_handler_that_was_registered_twice_runs_twice() -> None:
    entries = [entry("a", together=False, command="x"), entry("b", together=False, command="x")]
    assert shape(plan(entries)) == "a b"


# --- changes --------------------------------------------------------------------------------------------------

RAWS = {
    "claude": {"tool_input": {"a": 1, "b": 2}}, "codex": {"tool_input": {"a": 1, "b": 2}},
    "gemini": {"tool_input": {"a": 1, "b": 2}}, "cursor": {"tool_input": {"a": 1, "b": 2}},
    "antigravity": {"tool_call": {"name": "x", "args": {"a": 1, "b": 2}}},
    "agy": {"toolCall": {"name": "x", "args": {"a": 1, "b": 2}}},
    "nous": {"event": "pre_tool_use", "payload": {"a": 1, "b": 2}},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("new", "mode", "wanted"),
    [
        ({"a": 3}, "merge", {"a": 3, "b": 2}),
        ({"c": 3}, "merge", {"a": 1, "b": 2, "c": 3}),
        ({"a": 3}, "replace", {"a": 3}),
        ({}, "merge", {"a": 1, "b": 2}),
        ("text", "replace", "text"),
    ],
)
def test_a_change_stands_where_the_host_has_it(name: str, new: Any, mode: str, wanted: Any) -> None:
    before = event(name, raw=RAWS[name])
    kept = repr(RAWS[name])
    after = changes.rewritten(before, HookOutcome(updated_input=new, update_mode=mode))
    assert changes.current(after) == wanted
    assert repr(before.raw) == kept
    assert after.raw.keys() == before.raw.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_partial_change_is_told_whole_or_in_part(name: str) -> None:
    before = event(name, raw=RAWS[name])
    after = changes.rewritten(before, HookOutcome(updated_input={"a": 3}, update_mode="merge"))
    told = changes.fitted(MergedOutcome(updated_input={"a": 3}, update_mode="merge"), before, after)
    whole = name in ("claude", "codex", "cursor")
    assert (told.updated_input, told.update_mode) == (
        ({"a": 3, "b": 2}, "replace") if whole else ({"a": 3}, "merge")
    )
    assert told.verdict == ("allow" if name == "codex" else "none")


def test_a_replacement_that_leaves_something_out_can_not_be_laid_over() -> None:
    before = event("gemini", raw=RAWS["gemini"])
    for new, mode in (({"a": 3}, "replace"), ({"a": 3, "b": 2}, "merge")):
        after = changes.rewritten(before, HookOutcome(updated_input=new, update_mode="replace"))
        told = changes.fitted(MergedOutcome(updated_input=new), before, after)
        assert told.update_mode == mode
        assert told.updated_input == (new if mode == "replace" else {"a": 3})


# --- what is started, and where -------------------------------------------------------------------------------


def spec(name: str = "claude", command: Any = ("x",), **fields: Any) -> HookSpec:
    return HookSpec(name, "PreToolUse", "pre_tool", "argv", command, **fields)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (spec(command=("${CLAUDE_PLUGIN_ROOT}/x", "a ${CLAUDE_PROJECT_DIR} b"), root="/p q", provenance="plugin"),
         ("/p q/x", "a /proj b")),
        (spec(command=("$CLAUDE_PLUGIN_ROOT/x", "${HOME}"), root="/p", provenance="plugin"),
         ("$CLAUDE_PLUGIN_ROOT/x", "${HOME}")),
        (spec(command="${CLAUDE_PLUGIN_ROOT}/x", root="/p", provenance="plugin"), "${CLAUDE_PLUGIN_ROOT}/x"),
        (spec("codex", "${PLUGIN_ROOT}/x", root="/p", provenance="plugin"), "/p/x"),
        (spec("gemini", "${GEMINI_PROJECT_DIR}/x"), "${GEMINI_PROJECT_DIR}/x"),
    ],
)  # fmt: skip
def test_need_8_placeholders_are_filled_in_as_the_host_does(given: HookSpec, wanted: Any) -> None:
    about = event(given.dialect, cwd="/cwd", project_dir="/proj")
    assert command_of(given, about, dialect(given.dialect)) == wanted


def test_the_root_is_that_of_a_plugin() -> None:
    assert root_of(spec(root="/p", provenance="plugin")) == "/p"
    assert root_of(spec(root="/p", provenance="extension")) == "/p"
    assert root_of(spec(root="/p", provenance="project")) == ""


def test_where_a_handler_is_started(tmp_path: Path) -> None:
    for name in ("cwd", "project/.agents", "home/.cursor", "given"):
        (tmp_path / name).mkdir(parents=True)
    top = str(tmp_path)
    about = {"cwd": f"{top}/cwd", "project_dir": f"{top}/project"}
    agents = {"source": f"{top}/project/.agents/hooks.json", "provenance": "project", "root": f"{top}/project"}
    user = {"source": f"{top}/home/.cursor/hooks.json", "provenance": "user", "root": f"{top}/home/.cursor"}
    table = [
        ("claude", {}, "", f"{top}/cwd"),
        ("claude", {}, f"{top}/given", f"{top}/given"),
        ("agy", agents, "", f"{top}/project/.agents"),
        ("antigravity", agents, "", f"{top}/cwd"),
        ("cursor", agents, "", f"{top}/project"),
        ("cursor", user, "", f"{top}/home/.cursor"),
    ]
    for name, fields, chosen, wanted in table:
        assert directory_of(spec(name, **fields), event(name, **about), chosen) == wanted, (name, fields)
    assert directory_of(spec(), event(cwd=f"{top}/gone"), "") is None
