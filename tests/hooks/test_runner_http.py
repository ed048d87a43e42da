"""HTTP handlers in a runner: what an answer counts for, beside commands and functions."""

from __future__ import annotations

import json
import threading

import httpserver
import pytest
from boxes import own_state  # noqa: F401
from httpserver import HOST, Server, answer

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks import http
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.runner import HookRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

EVENT = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
DENY = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                               "permissionDecisionReason": "no"}}  # fmt: skip
REWRITE = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow",
                                  "updatedInput": {"command": "id"}}}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with httpserver.serving(str(tmp_path_factory.mktemp("server"))) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(server: Server) -> None:
    server.replies.clear()
    server.requests.clear()


def runner(server: Server, *paths: str, allow: Any = None, **options: Any) -> HookRunner:
    specs = [
        HookSpec("claude", "PreToolUse", "pre_tool", "http", url=server.url(path), timeout=20.0, timeout_given=True)
        for path in paths or ("/",)
    ]
    ways = http.Ways(lambda _host, _port: ["127.0.0.1"], lambda found: (tuple(found), ()), server.trust)
    egress = {"allow": [f"{HOST}:*"] if allow is None else allow}
    return HookRunner(specs, http=ways, egress=egress, **options)


@pytest.mark.parametrize(
    ("body", "decision", "status"),
    [
        (b"", "allow", "ok"),
        (b"  \n", "allow", "ok"),
        (b"{}", "allow", "ok"),
        (json.dumps(DENY).encode(), "deny", "blocked"),
        (json.dumps(REWRITE).encode(), "modify", "ok"),
        (b'{"continue": false, "stopReason": "enough"}', "deny", "ok"),
        (b"OK", "allow", "failed"),
        (b"[]", "allow", "failed"),
        (b"{", "allow", "failed"),
        (b'"deny"', "allow", "failed"),
        (json.dumps(DENY).encode() + b"x", "allow", "failed"),
        (b'{"decision": "perhaps"}', "allow", "failed"),
    ],
)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_what_a_2xx_counts_for(server: Server, body: bytes, decision: str, status: str, *, closed: bool) -> None:
    server.replies["/"] = answer(body)
    found = runner(server, on_failure="closed" if closed else "host").run("PreToolUse", EVENT)
    assert found.results[0].outcome.status == status
    assert found.decision == ("deny" if closed and status == "failed" else decision)
    assert json.loads(server.requests[0][2]) == {**EVENT, "hook_event_name": "PreToolUse"}


@pytest.mark.parametrize("status", ["302 Found", "403 Forbidden", "500 Oops"])
def test_need_4_a_status_alone_can_not_block_and_is_a_failure(server: Server, status: str) -> None:
    server.replies["/"] = answer(json.dumps(DENY).encode(), status)
    found = runner(server).run("PreToolUse", EVENT)
    assert (found.decision, found.results[0].outcome.status) == ("allow", "failed")
    assert found.results[0].cause.startswith(f"status {status[:3]}")
    assert runner(server, on_failure="closed").run("PreToolUse", EVENT).decision == "deny"


def test_a_timeout_is_a_failure(server: Server) -> None:
    server.replies["/"] = lambda _connection: server.release.wait(httpserver.SECONDS)
    made = runner(server)
    entry = made.registry.entries[0]
    made.registry.entries[0] = entry.replace(spec=entry.spec.replace(timeout=0.2))
    found = made.run("PreToolUse", EVENT)
    assert (found.decision, found.results[0].outcome.status) == ("allow", "timed_out")
    assert "no answer within 0.2 s" in found.results[0].cause


@pytest.mark.parametrize("trusted", [False, True], ids=["foreign", "trusted"])
def test_what_may_not_be_reached_is_a_deny_for_foreign_handlers(server: Server, *, trusted: bool) -> None:
    found = runner(server, allow=["elsewhere.example"], trusted=trusted).run("PreToolUse", EVENT)
    assert found.decision == ("allow" if trusted else "deny")
    assert found.results[0].outcome.status == "not_run"
    assert "not on the allowlist" in found.results[0].cause
    assert server.requests == []
    if not trusted:
        assert f"--allow {HOST}:{server.port}" in found.reason
    assert runner(server, trusted=trusted).run("PreToolUse", EVENT).decision == "allow"
    assert len(server.requests) == 1


def test_without_an_allowlist_nothing_is_reached(server: Server) -> None:
    spec = HookSpec("claude", "PreToolUse", "pre_tool", "http", url=server.url())
    ways = http.Ways(lambda _host, _port: ["127.0.0.1"], lambda found: (tuple(found), ()), server.trust)
    found = HookRunner([spec], http=ways).run("PreToolUse", EVENT)
    assert (found.decision, server.requests) == ("deny", [])
    assert "network.egress is none" in found.reason


def test_the_real_ways_refuse_loopback(server: Server) -> None:
    spec = HookSpec("claude", "PreToolUse", "pre_tool", "http", url=f"https://127.0.0.1:{server.port}/")
    found = HookRunner([spec], egress={"allow": ["127.0.0.1:*"]}).run("PreToolUse", EVENT)
    assert (found.decision, server.requests) == ("deny", [])
    assert "which no handler may reach" in found.reason


def test_they_run_at_once_and_count_in_order(server: Server) -> None:
    """The first answers after the second; its rewrite still is the first."""
    second = threading.Event()

    def first(connection: Any) -> None:
        assert second.wait(httpserver.SECONDS)
        connection.sendall(answer(json.dumps(REWRITE).encode()))

    def other(connection: Any) -> None:
        second.set()
        again = json.loads(json.dumps(REWRITE).replace('"id"', '"who"'))
        connection.sendall(answer(json.dumps(again).encode()))

    server.replies |= {"/a": first, "/b": other}
    found = runner(server, "/a", "/b").run("PreToolUse", EVENT)
    assert (found.changes, len(found.merged.conflicts)) == ({"command": "who"}, 1)


def test_no_record_holds_headers_or_the_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[dict[str, Any]] = []
    monkeypatch.setenv("HOOK_TOKEN", "s3cret")
    made = runner(server, "/?key=k3y", log=records.append)
    entry = made.registry.entries[0]
    headers = {"headers": (("Authorization", "Bearer $HOOK_TOKEN"),), "header_variables": ("HOOK_TOKEN",)}
    made.registry.entries[0] = entry.replace(spec=entry.spec.replace(**headers))
    server.replies["/?key=k3y"] = answer(b"s3cret k3y", "500 s3cret")
    made.run("PreToolUse", EVENT)
    assert server.requests[0][1]["authorization"] == "Bearer s3cret"
    assert records[1]["outcome"] == "failed"
    assert not [each for each in ("s3cret", "k3y") if each in repr(records)]


def test_a_detached_request_is_ended_by_quiesce(server: Server) -> None:
    begun = threading.Event()

    def held(_connection: Any) -> None:
        begun.set()
        server.release.wait(httpserver.SECONDS)

    server.replies["/"] = held
    made = runner(server)
    entry = made.registry.entries[0]
    made.registry.entries[0] = entry.replace(spec=entry.spec.replace(asynchronous=True))
    assert made.run("PreToolUse", EVENT).detached == (entry.label,)
    assert begun.wait(20)
    assert [each.cause for each in made.quiesce(0)] == ["it was stopped"]


def test_antigravity_asks_with_its_own_payload(server: Server) -> None:
    spec = HookSpec("antigravity", "pre_tool_execution", "pre_tool", "http", url=server.url(), timeout=20.0)
    ways = http.Ways(lambda _host, _port: ["127.0.0.1"], lambda found: (tuple(found), ()), server.trust)
    made = HookRunner([spec], dialect="antigravity", http=ways, egress={"allow": [f"{HOST}:*"]})
    payload = {"tool_call": {"name": "code_execution", "args": {"code": "1"}}}
    server.replies["/"] = answer(b'{"decision": "deny", "reason": "no"}')
    assert made.run("pre_tool", payload).decision == "deny"
    assert json.loads(server.requests[0][2]) == payload
    server.replies["/"] = answer(b'{"decision": "deny"', "200 OK")
    assert made.run("pre_tool", payload).decision == "allow"


def test_a_policy_that_can_not_be_read_is_a_deny(server: Server) -> None:
    found = runner(server, policy="/no/such/policy.toml", trusted=True).run("PreToolUse", EVENT)
    assert found.decision == "deny"
    assert server.requests == []
    with pytest.raises(RequestError):
        runner(server).run("PreToolUse", "not json")
