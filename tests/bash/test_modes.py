"""Modes: what a policy comes to, what one call may have instead, and who has to be asked."""

from __future__ import annotations

import asyncio
import os
import warnings

import pytest

import stockade
from stockade.policies.model import parse_tree
from stockade.policies.resolve import resolve
from stockade.sandbox.bash.modes import FULL_ACCESS, MODES, READ_ONLY, WORKSPACE_WRITE, in_mode, is_wider, mode_of

MARK = "echo here > marker"


def resolved(base="read-only", **options):
    return resolve(base=base, workspace="/srv", options=options, environ={}, discover_project=False).resolved


POLICIES = [
    ("read-only", {}, READ_ONLY),
    ("workspace-write", {}, WORKSPACE_WRITE),
    ("full-access", {}, FULL_ACCESS),
    ("hook", {}, READ_ONLY),
    ("build", {}, WORKSPACE_WRITE),
    ("read-only", {"filesystem.write": ["/srv/out"]}, WORKSPACE_WRITE),
    ("read-only", {"filesystem.workspace": "overlay"}, WORKSPACE_WRITE),
    ("read-only", {"filesystem.home": "/srv/home"}, WORKSPACE_WRITE),
    ("read-only", {"filesystem.workspace": "none"}, READ_ONLY),
    ("read-only", {"network.egress": "allow", "network.allow": ["example.org"]}, READ_ONLY),
]


@pytest.mark.parametrize(("base", "options", "mode"), POLICIES)
def test_the_mode_of_a_policy(base, options, mode):
    assert mode_of(resolved(base, **options)) == mode


@pytest.mark.parametrize("wanted", MODES)
@pytest.mark.parametrize(("base", "options", "mode"), POLICIES)
def test_a_policy_in_another_mode_has_that_mode(base, options, mode, wanted):
    policy = resolved(base, **options)
    changed = in_mode(policy, wanted)
    assert mode_of(changed) == wanted
    if wanted == mode:
        assert changed is policy
    if is_wider(mode, wanted):
        assert (changed.mode, changed.egress) != ("off", "open")
        assert changed.mode != "off"


def test_what_a_mode_does_not_speak_of_stays():
    policy = resolved(**{"filesystem.hide": ["secret"], "limits.memory": "1G", "network.egress": "record"})
    for wanted in (READ_ONLY, WORKSPACE_WRITE):
        changed = in_mode(policy, wanted)
        for name in ("hide", "memory", "egress", "protect", "env_pass", "syscalls", "timeout"):
            assert getattr(changed, name) == getattr(policy, name)
    assert dict(in_mode(policy, WORKSPACE_WRITE).origin)["filesystem.workspace"] == "mode of the call"
    assert in_mode(policy, FULL_ACCESS).egress == "none", "an unconfined run has the host's network"


def test_wider_goes_one_way():
    assert [(a, b) for a in MODES for b in MODES if is_wider(a, b)] == [
        (WORKSPACE_WRITE, READ_ONLY),
        (FULL_ACCESS, READ_ONLY),
        (FULL_ACCESS, WORKSPACE_WRITE),
    ]


# --- one call in another mode ----------------------------------------------------------------------------------


@pytest.fixture
def asked():
    return []


@pytest.fixture
def tool(place, asked):
    """A read-only tool whose user allows everything."""

    def approve(wish):
        asked.append(wish)
        return "allowed_once"

    with stockade.BashTool("read-only", cwd=place.ws, approve=approve) as made:
        yield made


@pytest.mark.kernel
def test_a_wider_mode_is_allowed_for_one_call(tool, place, asked):
    denied = tool.run(MARK)
    assert (denied.ok, denied.sandbox.mode, os.listdir(place.ws)) == (False, READ_ONLY, [])
    assert denied.sandbox.denied
    done = tool.run(MARK, mode=WORKSPACE_WRITE, justification="the build writes")
    assert (done.ok, done.sandbox.mode, done.sandbox.enforcement != "none") == (True, WORKSPACE_WRITE, True)
    assert os.listdir(place.ws) == ["marker"]
    os.remove(os.path.join(place.ws, "marker"))
    assert not tool.run(MARK).ok, "it was not remembered"
    assert os.listdir(place.ws) == []
    assert [tuple(wish) for wish in asked] == [(MARK, place.ws, WORKSPACE_WRITE, READ_ONLY, "the build writes")]
    assert tool.mode == READ_ONLY


@pytest.mark.kernel
def test_full_access_is_no_sandbox_and_says_so(tool, place):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tool.run("cat /proc/self/cgroup >/dev/null; readlink /proc/self/ns/pid", mode=FULL_ACCESS,
                          justification="look at the host")  # fmt: skip
    assert result.stdout.decode().strip() == os.readlink("/proc/self/ns/pid")
    assert (result.sandbox.mode, result.sandbox.enforcement) == (FULL_ACCESS, "none")
    assert tool.run("readlink /proc/self/ns/pid").stdout != result.stdout


@pytest.mark.kernel
def test_a_narrower_mode_asks_nobody(place):
    def never(_wish):
        raise AssertionError("nobody is asked for less")

    with stockade.BashTool("workspace-write", cwd=place.ws, approve=never) as tool:
        assert tool.run(MARK).ok
        assert tool.run("cat marker", mode=WORKSPACE_WRITE).ok
        result = tool.run("rm marker", mode=READ_ONLY)
        assert (result.ok, result.sandbox.mode) == (False, READ_ONLY)
    assert os.listdir(place.ws) == ["marker"]


@pytest.mark.kernel
def test_read_only_takes_away_every_grant(place):
    policy = parse_tree({"extends": "workspace-write", "filesystem": {"write": [place.path("other")]}}, "a test")
    there = place.path("other", "marker")
    with stockade.BashTool(policy, cwd=place.ws) as tool:
        assert tool.run(f"echo x > {there}").ok
        assert not tool.run(f"rm {there}", mode=READ_ONLY).ok
        assert os.path.exists(there)


REFUSING = [
    pytest.param(lambda _wish: "rejected", "it was rejected", id="rejected"),
    pytest.param(lambda _wish: True, "the answer True is not one", id="true"),
    pytest.param(lambda _wish: "allowed", "the answer 'allowed' is not one", id="another word"),
    pytest.param(lambda _wish: None, "the answer None is not one", id="none"),
    pytest.param(None, "the tool has read-only, and nobody to ask for more", id="nobody"),
]


@pytest.mark.parametrize(("approve", "cause"), REFUSING)
def test_what_is_not_allowed_is_not_run(place, approve, cause):
    with stockade.BashTool("read-only", cwd=place.ws, approve=approve) as tool:
        for attempt in (tool.run, tool.start, lambda *given, **named: asyncio.run(tool.arun(*given, **named))):
            with pytest.raises(stockade.EscalationRefused) as caught:
                attempt(MARK, mode=WORKSPACE_WRITE, justification="because")
            assert caught.value.message == f"could not run the command with mode workspace-write: {cause}"
            assert (caught.value.code, caught.value.mode) == ("ESCALATION_REFUSED", WORKSPACE_WRITE)
            assert caught.value.remedy
    assert os.listdir(place.ws) == []


@pytest.mark.parametrize("justification", ["", "  \n"])
def test_without_a_justification_nobody_is_asked(tool, asked, justification):
    with pytest.raises(stockade.EscalationRefused, match="there is no justification"):
        tool.run("true", mode=FULL_ACCESS, justification=justification)
    assert asked == []


def test_an_error_of_the_callback_is_its_own(place):
    def broken(_wish):
        raise LookupError("no terminal")

    with stockade.BashTool("read-only", cwd=place.ws, approve=broken) as tool, pytest.raises(LookupError):
        tool.run(MARK, mode=WORKSPACE_WRITE, justification="because")
    assert os.listdir(place.ws) == []


@pytest.mark.kernel
def test_the_callback_may_be_awaited(place):
    async def approve(wish):
        await asyncio.sleep(0)
        return "allowed_once" if wish.justification == "yes" else "rejected"

    with stockade.BashTool("read-only", cwd=place.ws, approve=approve) as tool:
        assert asyncio.run(tool.arun(MARK, mode=WORKSPACE_WRITE, justification="yes")).ok
        with pytest.raises(stockade.EscalationRefused):
            asyncio.run(tool.arun(MARK, mode=WORKSPACE_WRITE, justification="no"))
        with pytest.raises(stockade.RequestError, match="approve is asynchronous"):
            tool.run(MARK, mode=WORKSPACE_WRITE, justification="yes")


@pytest.mark.parametrize("mode", ["", "off", "Read-only", "danger", 3])
def test_an_unknown_mode_is_refused(tool, mode, asked):
    with pytest.raises(stockade.RequestError, match="could not use mode="):
        tool.run("true", mode=mode, justification="because")
    assert asked == []


# --- facts before any call -------------------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("mode", MODES)
def test_facts_are_there_before_any_call(place, mode):
    with stockade.BashTool(mode, cwd=place.ws) as tool:
        before = (tool.mode, tool.enforcement)
        result = tool.run("true")
        assert before == (result.sandbox.mode, result.sandbox.enforcement)
        assert before[0] == mode
        assert (before[1] == "none") == (mode == FULL_ACCESS)


def test_a_host_that_can_not_is_said_before_any_call(place, monkeypatch):
    from stockade.sandbox import conduct

    def refuse(_order):
        raise stockade.SandboxUnavailable("could not confine: x", mode="auto")

    monkeypatch.setattr(conduct, "judge", refuse)
    with stockade.BashTool("read-only", cwd=place.ws) as tool:
        assert tool.enforcement == "unavailable"
        assert "unavailable" in tool.describe()
        with pytest.raises(stockade.SandboxUnavailable) as caught:
            tool.run("true")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        with stockade.BashTool("full-access", cwd=place.ws) as wide:
            assert wide.mode == FULL_ACCESS


def test_a_variable_that_turns_the_sandbox_off_shows(place, monkeypatch):
    monkeypatch.setenv("STOCKADE_MODE", "off")
    monkeypatch.setattr("stockade.sandbox.conduct._warned", False)
    with stockade.BashTool("read-only", cwd=place.ws) as tool:
        assert (tool.mode, tool.enforcement) == (FULL_ACCESS, "none")
        with pytest.warns(RuntimeWarning, match="runs without a sandbox"):
            tool.run("true")


def test_a_policy_is_read_once(place):
    """What a command, or a colleague, writes later changes nothing for a tool that is there."""
    path = place.put("policy.toml", 'extends = "read-only"\n')
    with stockade.BashTool(path, cwd=place.ws) as tool:
        place.put("policy.toml", 'extends = "full-access"\n')
        assert tool.mode == READ_ONLY
    with stockade.BashTool(path, cwd=place.ws) as tool:
        assert tool.mode == FULL_ACCESS


# --- the description -------------------------------------------------------------------------------------------


DESCRIPTIONS = [
    (
        {"policy": "read-only"},
        ["read-only", "Nothing of the host can be written", "There is no network", "fresh shell"],
    ),
    ({"policy": "workspace-write"}, ["Writable: the workspace.", "Never writable: .git/hooks", "Hidden: **/.env*"]),
    ({"policy": "full-access"}, ["There is no sandbox (full-access)"]),
    ({"policy": "read-only", "session": True}, ["carry over to the next call"]),
    ({"policy": "read-only", "keep": True}, ["One shell serves all calls"]),
    ({"policy": "read-only", "timeout": 7}, ["7 seconds", "up to 600"]),
    ({"policy": "read-only"}, ["the first and the last 32 kB"]),
    ({"policy": "read-only", "options": {"limits.output": "1k"}}, ["the first and the last 512 bytes"]),
    ({"policy": "hook"}, ["A call has 10 seconds. "]),
    ({"policy": "read-only", "options": {"limits.timeout": 300}}, ["120 seconds", "up to 300."]),
    (
        {"policy": "read-only", "options": {"filesystem.write": [f"/srv/{n}" for n in range(14)]}},
        ["/11 and 2 more."],
    ),
    (
        {"policy": "workspace-write", "options": {"filesystem.workspace": "overlay"}},
        ["the next call does not see it"],
    ),
    (
        {"policy": "read-only", "approve": lambda _wish: "rejected"},
        ["workspace-write or full-access", "justification"],
    ),
]


@pytest.mark.parametrize(("options", "words"), DESCRIPTIONS)
def test_the_description_says_what_is_allowed(place, options, words):
    with stockade.BashTool(cwd=place.ws, **options) as tool:
        text = tool.describe()
    assert [word for word in words if word not in text] == []
    assert ("do not retry" in text) == (options["policy"] != "full-access")
    assert ("and a justification" in text) == ("approve" in options)


def test_the_description_names_hosts_and_is_harmless(place):
    network = {"egress": "allow", "allow": ["example.org"]}
    policy = parse_tree(
        {"extends": "read-only", "network": network, "filesystem": {"hide": ["a\x1b[2Jb"], "write": ["/srv"]}},
        "a test",
    )
    with stockade.BashTool(policy, cwd=place.ws) as tool:
        text = tool.describe()
    assert "The network reaches these hosts alone: example.org." in text
    assert "Writable: /srv." in text
    assert "\x1b" not in text
