"""HookRunner with functions: order, decisions, changes, failures. No process is started here."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import pytest

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.model import HookOutcome, HookSpec
from stockade.sandbox.hooks.runner import HookRunner, run_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BASH = {"tool_name": "Bash", "tool_input": {"command": "ls", "timeout": 5}}
NOUS = {"tool_name": "Bash", "arguments": {"command": "ls"}}


def bash(command: str = "ls", **more: Any) -> dict[str, Any]:
    return {"tool_name": "Bash", "tool_input": {"command": command, "timeout": 5}, **more}


def says(value: Any) -> Any:
    def handler(event: str, payload: Any) -> Any:
        return value

    return handler


def raises(error: BaseException) -> Any:
    def handler(event: str, payload: Any) -> Any:
        raise error

    return handler


def modify(**changes: Any) -> dict[str, Any]:
    return {"result": "modify", "changes": changes}


DENY = {"result": "deny", "reason": "no"}


# --- what functions may return --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, True, "allow", {"result": "allow"}, {"result": "allow", "reason": "fine"}])
def test_no_objection(value: Any) -> None:
    found = run_hooks([says(value)], "pre_tool", BASH)
    assert (found.decision, found.changes, found.merged.verdict) == ("allow", {}, "none")
    assert found.results[0].outcome.status == "ok"


@pytest.mark.parametrize("value", [False, "deny", {"result": "deny"}, DENY, HookOutcome("deny", reason="no")])
def test_a_deny(value: Any) -> None:
    found = run_hooks([says(value)], "PreToolUse", BASH)
    assert (found.decision, found.blocking) == ("deny", True)
    assert found.results[0].outcome.status == "blocked"
    assert found.results[0].cause == "it returned a deny"
    if value not in (False, "deny", {"result": "deny"}):
        assert found.reason == "no"


@pytest.mark.parametrize(
    "value",
    [
        0, 1, "", "yes", "modify", [], (), {}, b"allow", object(),
        {"result": "ask"}, {"result": True}, {"reason": "no"}, {"result": "deny", "colour": 1},
        {"result": "deny", "reason": 5}, {"result": "modify"}, {"result": "modify", "changes": []},
        {"result": "allow", "changes": {}}, HookOutcome("maybe"), HookOutcome("deny", update_mode="x"),
        HookOutcome("allow", reason=5), HookOutcome("allow", context="text"), HookOutcome("allow", halt=1),
    ],
)  # fmt: skip
def test_anything_else_is_that_hooks_failure(value: Any) -> None:
    assert run_hooks([says(value)], "pre_tool", BASH).decision == "allow"
    failed = run_hooks([says(value)], "pre_tool", BASH, on_failure="closed")
    assert failed.decision == "deny"
    assert failed.results[0].outcome.status == "failed"
    assert failed.results[0].cause == "what it returned is no answer"


def test_an_outcome_is_taken_as_it_is() -> None:
    given = HookOutcome("ask", reason="sure?", context=("a",), system_messages=("b",), extras=(("c", 1),))
    found = run_hooks([says(given)], "pre_tool", BASH)
    assert (found.merged.verdict, found.context, found.merged.extras) == ("ask", ("a",), (("c", 1),))


# --- decisions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "decision", "reason"),
    [
        (HookOutcome("ask", reason="sure?"), "deny", "a hook wants the user to be asked: sure?"),
        (HookOutcome("defer"), "deny", "a hook wants the call to be deferred"),
        (HookOutcome(halt=True, stop_reason="enough"), "deny", "enough"),
        (HookOutcome("allow", halt=True), "deny", "a hook halts the turn"),
        (HookOutcome("allow", reason="known"), "allow", "known"),
        (HookOutcome(updated_output="x"), "modify", ""),
    ],
)
def test_what_there_is_no_word_for_is_never_an_allow(outcome: HookOutcome, decision: str, reason: str) -> None:
    found = run_hooks([says(outcome)], "pre_tool", BASH)
    assert (found.decision, found.reason) == (decision, reason)
    assert found.halts_turn is outcome.halt
    assert found.merged.verdict == outcome.verdict


def test_without_handlers_it_is_allowed() -> None:
    found = HookRunner().run("pre_tool", BASH)
    assert (found.decision, found.results, found.merged.verdict) == ("allow", (), "none")


def test_the_strictest_wins_and_names_who_said_it() -> None:
    def guard(event: str, payload: Any) -> Any:
        return DENY

    found = run_hooks([says("allow"), guard, says(HookOutcome("ask"))], "pre_tool", BASH)
    assert found.decision == "deny"
    assert found.reason.endswith("guard: no")
    assert found.merged.winners == (1,)


# --- changes --------------------------------------------------------------------------------------------------


def test_changes_reach_the_caller_and_the_next_handler() -> None:
    seen: list[str] = []

    def again(event: str, payload: Any) -> Any:
        seen.append(payload["tool_input"]["command"])
        return modify(command=f"sudo {payload['tool_input']['command']}")

    given = bash()
    found = run_hooks([again, again, says(None)], "pre_tool", given)
    assert seen == ["ls", "sudo ls"]
    assert (found.decision, found.changes) == ("modify", {"command": "sudo sudo ls"})
    assert found.payload["tool_input"] == {"command": "sudo sudo ls", "timeout": 5}
    assert (found.merged.updated_input, found.merged.update_mode) == (found.payload["tool_input"], "replace")
    assert found.merged.conflicts == (), "who saw the earlier change overrides nothing"
    assert given == bash(), "the caller's own payload is as it was"


def test_the_change_of_an_earlier_hook_is_never_lost() -> None:
    found = run_hooks([says(modify(command="id")), says(modify(timeout=9)), says(None)], "pre_tool", BASH)
    assert found.changes == {"command": "id", "timeout": 9}
    for dialect, payload in (("nous", {"a": 1, "b": 2}), ("claude", {"prompt": "x"})):
        name = {"nous": "pre_request", "claude": "UserPromptSubmit"}[dialect]
        found = run_hooks([says(modify(a=3)), says(modify(b=4))], name, payload, dialect=dialect)
        assert found.changes == {"a": 3, "b": 4}
        assert found.payload.items() >= {"a": 3, "b": 4}.items()


def test_a_later_deny_drops_the_changes() -> None:
    found = run_hooks([says(modify(command="id")), says(DENY)], "pre_tool", BASH)
    assert (found.decision, found.changes) == ("deny", {})
    assert found.payload["tool_input"] == BASH["tool_input"]
    assert found.merged.updated_input is None


def test_a_handler_gets_a_copy() -> None:
    def spoil(event: str, payload: Any) -> None:
        payload["tool_input"]["command"] = "rm -rf /"
        payload.clear()

    given = bash()
    found = run_hooks([spoil, spoil], "pre_tool", given)
    assert (given, found.decision, found.payload["tool_input"]) == (bash(), "allow", bash()["tool_input"])


def test_what_a_handler_keeps_of_its_changes_changes_nothing_later() -> None:
    kept = modify(command="id", list=[1])

    def change(event: str, payload: Any) -> Any:
        return kept

    found = run_hooks([change], "pre_tool", BASH)
    kept["changes"]["list"].append(2)
    assert found.changes["list"] == [1]


@pytest.mark.parametrize(
    ("dialect", "event", "payload", "mode", "told"),
    [
        ("claude", "pre_tool", BASH, "replace", {"command": "id", "timeout": 5}),
        ("codex", "pre_tool", {**BASH, "turn_id": "1", "model": "m"}, "replace", {"command": "id", "timeout": 5}),
        ("gemini", "pre_tool", BASH, "merge", {"command": "id"}),
        ("cursor", "pre_tool", BASH, "replace", {"command": "id", "timeout": 5}),
        ("nous", "pre_tool", {"command": "ls"}, "merge", {"command": "id"}),
        ("agy", "pre_tool", {"toolCall": {"name": "sh", "args": {"command": "ls"}}}, "merge", {"command": "id"}),
    ],
)
def test_a_change_is_told_as_the_host_takes_it(
    dialect: str, event: str, payload: Any, mode: str, told: dict[str, Any]
) -> None:
    runner = HookRunner(dialect=dialect)
    runner.register(says(modify(command="id")))
    found = runner.run(event, payload)
    assert (found.decision, found.changes) == ("modify", {"command": "id"})
    assert (found.merged.update_mode, found.merged.updated_input) == (mode, told)
    name = found.results[0].outcome and next(
        name for name, rule in runner.language.EVENTS.items() if rule.kind == event
    )
    reply = runner.language.encode(name, found.merged)
    assert b'"id"' in reply.stdout
    assert b"deny" not in reply.stdout


def test_a_change_that_the_host_can_not_be_told_is_a_deny_to_it() -> None:
    runner = HookRunner()
    runner.register(says(modify(prompt="other")))
    found = runner.run("UserPromptSubmit", {"prompt": "this"})
    assert (found.decision, found.payload["prompt"]) == ("modify", "other")
    assert b"block" in runner.language.encode("UserPromptSubmit", found.merged).stdout


# --- order ----------------------------------------------------------------------------------------------------


def test_lower_priority_first_and_equal_ones_in_order_of_registration() -> None:
    order: list[str] = []
    runner = HookRunner()
    for name, priority in (("a", 0), ("b", 5), ("c", -5), ("d", 0), ("e", 5), ("f", -5)):
        runner.register(lambda event, payload, name=name: order.append(name), priority=priority, name=name)
    found = runner.run("pre_tool", BASH)
    assert order == list("cfadbe")
    assert [each.label for each in found.results] == list("cfadbe")


@pytest.mark.parametrize(
    ("dialect", "event", "payload", "stop", "ran"),
    [
        ("claude", "PreToolUse", BASH, None, "abc"),
        ("claude", "PreToolUse", BASH, True, "ab"),
        ("nous", "pre_tool_use", NOUS, None, "ab"),
        ("nous", "pre_request", {}, None, "ab"),
        ("nous", "post_tool_use", NOUS, None, "abc"),
        ("nous", "session_start", {}, True, "abc"),
        ("nous", "pre_tool_use", NOUS, False, "abc"),
        ("claude", "PostToolUse", {**BASH, "tool_response": {}}, True, "abc"),
        ("cursor", "preToolUse", BASH, None, "abc"),
    ],
)
def test_it_stops_at_the_first_deny_where_the_host_does(
    dialect: str, event: str, payload: Any, stop: bool | None, ran: str
) -> None:
    runner = HookRunner(dialect=dialect, stop_at_deny=stop)
    for name, value in (("a", None), ("b", DENY), ("c", modify(x=1))):
        runner.register(says(value), name=name)
    found = runner.run(event, payload)
    assert "".join(each.label for each in found.results) == ran
    assert found.decision == "deny"
    assert [(each.label, each.why) for each in found.skipped] == (
        [] if ran == "abc" else [("c", "b denied before it")]
    )


# --- what a handler is for ------------------------------------------------------------------------------------


def test_matchers_are_those_of_the_host() -> None:
    runner = HookRunner()
    for name, matcher in (("all", None), ("star", "*"), ("exact", "Bash"), ("list", "Edit|Bash"), ("part", "Bas"),
                          ("regex", "^Ba.h$"), ("other", "Write")):  # fmt: skip
        runner.register(says(None), matcher=matcher, name=name, event="PreToolUse")
    found = runner.run("PreToolUse", BASH)
    assert [each.label for each in found.results] == ["all", "star", "exact", "list", "regex"]
    assert [(each.label, each.why) for each in found.skipped] == [
        ("part", "its matcher 'Bas' does not match 'Bash'"),
        ("other", "its matcher 'Write' does not match 'Bash'"),
    ]


def test_a_kind_stands_for_all_events_of_it() -> None:
    runner = HookRunner(dialect="cursor")
    runner.register(says(None), event="pre_tool", name="kind")
    runner.register(says(None), event="preToolUse", name="native")
    runner.register(says(None), name="all")
    shell = runner.run("beforeShellExecution", {"command": "ls"})
    assert [each.label for each in shell.results] == ["kind", "all"]
    assert shell.skipped[0].why == "it is for preToolUse, not for beforeShellExecution"
    assert [each.label for each in runner.run("preToolUse", BASH).results] == ["kind", "native", "all"]
    assert [each.label for each in runner.run("stop", {}).results] == ["all"]


def test_modules_and_objects_with_handle() -> None:
    module = types.ModuleType("guards")
    module.handle = says(DENY)  # type: ignore[attr-defined]

    class Guard:
        def handle(self, event: str, payload: Any) -> Any:
            return False

    runner = HookRunner()
    assert runner.register(module) == "guards"
    assert runner.register(Guard()) == "Guard"
    found = runner.run("pre_tool", BASH)
    assert [each.outcome.verdict for each in found.results] == ["deny", "deny"]


def test_what_a_function_is_called_with() -> None:
    seen: list[Any] = []

    def take(event: str, payload: Any) -> None:
        seen.append((event, payload))

    run_hooks([take], "pre_tool", BASH)
    run_hooks([take], "pre_tool_use", NOUS, dialect="nous")
    run_hooks([take], "pre_tool_use", {"event": "pre_tool_use", "payload": NOUS}, dialect="nous")
    assert seen[0] == ("PreToolUse", {**BASH, "hook_event_name": "PreToolUse"})
    assert seen[1:] == [("pre_tool_use", NOUS)] * 2


def test_labels_differ() -> None:
    runner = HookRunner()
    assert [runner.register(says(None), name="a") for _ in range(3)] == ["a", "a (2)", "a (3)"]


async def coroutine(event: str, payload: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "cause"),
    [
        (5, {}, "it is int"),
        (None, {}, "it is NoneType"),
        ("", {}, "command is empty"),
        ([], {}, "not a list of texts"),
        (["a", 5], {}, "not a list of texts"),
        (types.ModuleType("empty"), {}, "no function handle"),
        (coroutine, {}, "coroutine function"),
        (says(None), {"event": "PreToolUsee"}, "has none of that name"),
        (says(None), {"event": "pre_tool_use"}, "has none of that name"),
        (says(None), {"event": "tool_selection"}, "none of that kind"),
        (says(None), {"event": "other"}, "has none of that name"),
        (says(None), {"event": "PreToolUse", "matcher": "("}, "matcher"),
        (says(None), {"event": "UserPromptSubmit", "matcher": "x"}, "does not look at the matcher"),
        (says(None), {"priority": "first"}, "priority"),
        (says(None), {"priority": True}, "priority"),
        (says(None), {"timeout": 0}, "timeout"),
        (says(None), {"timeout": -1}, "timeout"),
        (says(None), {"timeout": float("inf")}, "timeout"),
        (says(None), {"timeout": "5"}, "timeout"),
        (HookSpec("gemini", "BeforeTool", "pre_tool", "shell", "x"), {}, "it is one of gemini"),
        (HookSpec("claude", "PreToolUse", "pre_tool", "shell", "x"), {"event": "Stop"}, "says for itself"),
    ],
)  # fmt: skip
def test_what_can_not_be_registered_is_refused_at_once(handler: Any, options: dict[str, Any], cause: str) -> None:
    runner = HookRunner()
    with pytest.raises(RequestError, match=cause):
        runner.register(handler, **options)
    assert runner.registry.entries == []


def test_need_13_a_misspelt_event_is_told_with_the_right_name() -> None:
    with pytest.raises(RequestError, match=r"Did you mean PreToolUse\?"):
        HookRunner().register(says(None), event="preToolUse")
    with pytest.raises(RequestError, match=r"Did you mean PreToolUse\?"):
        HookRunner().run("PreTolUse", BASH)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"dialect": "emacs"}, "no such dialect"),
        ({"on_failure": "open"}, "on_failure"),
        ({"on_conflict": "first"}, "on_conflict"),
        ({"sandbox": "maybe"}, "sandbox"),
        ({"egress": ["x"]}, "egress"),
        ({"specs": ["x"]}, "not a HookSpec"),
    ],
)
def test_options_that_can_not_be_used(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(RequestError, match=cause):
        HookRunner(**options)


@pytest.mark.parametrize(
    ("event", "payload", "cause"),
    [
        ("PreToolUse", {"hook_event_name": "Stop"}, "one of 'Stop'"),
        ("PreToolUse", {}, "tool_name"),
        ("PreToolUse", {"tool_name": "Bash", "tool_input": "ls"}, "tool_input"),
        ("PreToolUse", [], "not a mapping or JSON"),
        ("PreToolUse", '{"a": ', "line 1"),
        ("PreToolUse", b"[]", "not an object"),
        ("PreToolUse", {**BASH, "cursor_version": "1"}, "cursor"),
        ("", {}, "has none of that name"),
        ("other", {}, "has none of that name"),
    ],
)
def test_events_that_can_not_be_used(event: str, payload: Any, cause: str) -> None:
    ran: list[int] = []
    runner = HookRunner()
    runner.register(lambda event, payload: ran.append(1))
    with pytest.raises(RequestError, match=cause):
        runner.run(event, payload)
    assert ran == []
    runner.run("PreToolUse", BASH)
    assert ran == [1]


def test_an_event_of_a_newer_release_is_taken_where_the_payload_names_it() -> None:
    found = run_hooks([says(None)], "BrandNew", {"hook_event_name": "BrandNew", "x": 1})
    assert (found.decision, found.blocking, found.payload["x"]) == ("allow", False, 1)


# --- failures (need 4) ----------------------------------------------------------------------------------------

FAILURES = [
    raises(ValueError("secret")), raises(SystemExit(0)), raises(KeyboardInterrupt()), raises(RecursionError()), says(5),
]  # fmt: skip


@pytest.mark.parametrize("handler", FAILURES)
def test_need_4_a_failure_is_handled_by_the_hooks_own_policy(handler: Any) -> None:
    runner = HookRunner()
    runner.register(handler, name="open")
    assert runner.run("pre_tool", BASH).decision == "allow"
    runner.register(handler, name="closed", fail_closed=True)
    found = runner.run("pre_tool", BASH)
    assert (found.decision, found.merged.winners) == ("deny", (1,))
    assert [each.outcome.status for each in found.results] == ["failed", "failed"]
    assert [each.outcome.source for each in found.results] == ["failure_policy"] * 2


def test_need_4_a_failure_of_one_hook_changes_nothing_for_the_others() -> None:
    found = run_hooks([raises(ValueError()), says(modify(command="id")), says(DENY)], "pre_tool", BASH)
    assert [each.outcome.verdict for each in found.results] == ["none", "none", "deny"]


def test_need_4_a_host_that_closes_by_itself_does_so_here() -> None:
    payload = {"toolCall": {"name": "sh", "args": {}}}
    assert run_hooks([raises(ValueError())], "PreToolUse", payload, dialect="agy").decision == "deny"
    assert run_hooks([says(None)], "PreToolUse", payload, dialect="agy").decision == "allow"


def test_the_cause_names_kind_and_place_and_the_reason_says_the_rest() -> None:
    found = run_hooks([raises(ValueError("what went wrong"))], "pre_tool", BASH, on_failure="closed")
    assert found.results[0].cause.startswith("ValueError at test_runner.py:")
    assert "what went wrong" in found.reason
    assert "what went wrong" not in found.results[0].cause


def test_a_function_that_does_not_return_in_time_is_left_to_itself() -> None:
    release, over = threading.Event(), threading.Event()

    def slow(event: str, payload: Any) -> Any:
        release.wait(20)
        over.set()
        return DENY

    runner = HookRunner()
    runner.register(slow, timeout=0.05, name="slow")
    found = runner.run("pre_tool", BASH)
    assert (found.decision, found.results[0].outcome.status) == ("allow", "timed_out")
    assert found.results[0].cause == "it did not return within 0.05 s"
    runner.register(slow, timeout=0.05, name="closed", fail_closed=True)
    assert runner.run("pre_tool", BASH).decision == "deny"
    release.set()
    assert over.wait(20)


def test_a_function_that_never_returns_does_not_keep_the_program() -> None:
    program = (
        "import threading\n"
        "from stockade.sandbox.hooks.runner import HookRunner\n"
        "runner = HookRunner(timeout=0.05)\n"
        "runner.register(lambda event, payload: threading.Event().wait())\n"
        f"print(runner.run('pre_tool', {BASH!r}).results[0].outcome.status)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed_out\n", "")


def test_the_context_of_the_caller_is_seen() -> None:
    import contextvars

    name = contextvars.ContextVar("name", default="")
    name.set("caller")
    seen: list[str] = []
    run_hooks([lambda event, payload: seen.append(name.get())], "pre_tool", BASH)
    assert seen == ["caller"]


def test_threads_may_share_a_runner() -> None:
    runner = HookRunner()
    runner.register(lambda event, payload: modify(command=payload["tool_input"]["command"] + "!"))
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = runner.run("pre_tool", bash(str(number))).changes["command"]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}!" for number in range(20)}
