"""The two records of a handler: that they are complete, in pairs, and hold nothing of what was told or said."""

from __future__ import annotations

import json
import threading

import pytest
from boxes import PYTHON, own_state  # noqa: F401

from stockade.sandbox.hooks.model import HookOutcome
from stockade.sandbox.hooks.runner import HookRunner, run_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECRET = "s3cret-t0ken"
EVENT = {"tool_name": "Bash", "tool_input": {"command": f"curl -H 'X: {SECRET}'"}, "session_id": "s1"}


def leak(event: str, payload: Any) -> Any:
    raise ValueError(json.dumps(payload))


def deny(event: str, payload: Any) -> Any:
    return {"result": "deny", "reason": payload["tool_input"]["command"]}


def change(event: str, payload: Any) -> Any:
    return {"result": "modify", "changes": {"command": SECRET}}


def tell(event: str, payload: Any) -> Any:
    return HookOutcome(
        "ask", reason=SECRET, context=(SECRET,), system_messages=(SECRET,), extras=((SECRET, SECRET),)
    )


def odd(event: str, payload: Any) -> Any:
    return {SECRET: SECRET}


def test_two_records_for_each_invocation() -> None:
    records: list[dict[str, Any]] = []
    run_hooks([change, deny], "PreToolUse", EVENT, log=records.append)
    assert [(each["record"], each["hook"].rpartition(".")[2]) for each in records] == [
        ("invoked", "change"),
        ("result", "change"),
        ("invoked", "deny"),
        ("result", "deny"),
    ]
    for first, second in (records[:2], records[2:]):
        assert first["id"] == second["id"]
        assert first["time"] <= second["time"]
    common = {"schema", "record", "id", "time", "hook", "event", "kind", "dialect", "form"}
    assert set(records[0]) == common
    more = {"duration", "outcome", "decision", "halt", "changed", "source", "cause", "problems", "exit_code", "signal",
            "enforcement", "detached"}  # fmt: skip
    assert set(records[1]) == common | more
    assert {each["schema"] for each in records} == {"stockade.hooklog/1"}
    assert (records[1]["outcome"], records[1]["changed"], records[1]["decision"]) == ("ok", True, None)
    assert (records[3]["outcome"], records[3]["cause"], records[3]["decision"]) == (
        "blocked",
        "it returned a deny",
        "deny",
    )
    assert records[0]["event"] == "PreToolUse"
    assert records[3]["duration"] >= 0
    json.dumps(records)


@pytest.mark.parametrize("handler", [leak, deny, change, tell, odd])
def test_no_record_holds_what_a_handler_was_told_or_said(handler: Any) -> None:
    records: list[dict[str, Any]] = []
    found = run_hooks([handler], "PreToolUse", EVENT, log=records.append, on_failure="closed")
    assert len(records) == 2
    assert SECRET not in repr(records)
    assert SECRET in repr(found), "the caller is told, the log is not"


HOOKS = {
    "reason on stderr": f"import sys; sys.stderr.write('{SECRET}'); sys.exit(2)",
    "odd answer": f"print('{{\"{SECRET}\": 1}}')",
    "not json": f"print('{{{SECRET}')",
    "deny": f"import json; print(json.dumps({{'decision': 'block', 'reason': '{SECRET}'}}))",
    "crash": f"raise ValueError('{SECRET}')",
    "exit": "import sys; sys.exit(3)",
    "wrong verdict": f"import json; print(json.dumps({{'decision': '{SECRET}'}}))",
}


@pytest.mark.parametrize("how", HOOKS)
@pytest.mark.parametrize("trusted", [True, False], ids=["direct", "confined"])
def test_no_record_holds_a_commands_streams(place: Any, how: str, *, trusted: bool) -> None:
    records: list[dict[str, Any]] = []
    runner = HookRunner(cwd=place.ws, log=records.append, trusted=trusted)
    runner.register([PYTHON, "-c", HOOKS[how]], name="hook")
    runner.run("PreToolUse", EVENT)
    assert [each["record"] for each in records] == ["invoked", "result"]
    assert SECRET not in repr(records)
    assert records[1]["exit_code"] is not None
    assert records[1]["enforcement"] == "none" if trusted else records[1]["enforcement"] != "none"
    assert bool(records[1]["cause"]) is (records[1]["outcome"] != "ok")


def test_a_command_line_is_in_no_record(place: Any) -> None:
    records: list[dict[str, Any]] = []
    runner = HookRunner(cwd=place.ws, log=records.append, trusted=True)
    runner.register(f"true {SECRET}")
    runner.register(["true", SECRET])
    runner.register(["env", "-u", SECRET, "no-such-program-here"], fail_closed=True)
    runner.run("PreToolUse", EVENT)
    assert len(records) == 6
    assert SECRET not in repr(records)


def test_a_log_that_fails_changes_no_decision_and_is_told() -> None:
    def broken(record: dict[str, Any]) -> None:
        raise OSError(SECRET)

    found = run_hooks([deny, change], "PreToolUse", EVENT, log=broken)
    assert found.decision == "deny"
    assert found.notes == ("the log failed: OSError",)
    assert run_hooks([change], "PreToolUse", EVENT, log=broken).decision == "modify"


def test_records_come_one_at_a_time() -> None:
    inside = threading.Lock()
    ids: list[str] = []

    def log(record: dict[str, Any]) -> None:
        assert inside.acquire(blocking=False)
        ids.append(record["id"])
        inside.release()

    runner = HookRunner(log=log)
    runner.register(change)
    threads = [threading.Thread(target=runner.run, args=("PreToolUse", EVENT)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runner.log.faults == []
    assert sorted(ids.count(each) for each in set(ids)) == [2] * 20
