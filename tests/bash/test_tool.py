"""The tool's calls: what is run and how, what a result says, what is refused, and that a failure is never the command's."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import subprocess
import sys
import threading

import pytest
from boxes import PYTHON, processes_with, wait_until

import stockade
from stockade.policies.model import parse_tree
from stockade.sandbox import bwrap, engine, probe
from stockade.sandbox.bash import calls
from stockade.sandbox.bash.output import render
from stockade.sandbox.bash.spill import KEPT, SpillPlace
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.verdict import verdict

kernel = pytest.mark.kernel


@pytest.fixture
def tool(place):
    with stockade.BashTool("workspace-write", cwd=place.ws) as made:
        yield made


@pytest.fixture
def token():
    """A word for command lines that is nobody else's."""
    return f"token{os.getpid()}x{threading.get_native_id()}x{os.urandom(4).hex()}"


# --- calls -----------------------------------------------------------------------------------------------------


@kernel
def test_a_command_is_run_by_the_shell(tool, place):
    result = tool.run("echo out; echo err >&2; echo $0; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.outcome) == (
        b"out\nbash\n",
        b"err\n",
        3,
        "exited",
    )
    assert (result.timed_out, result.signal, result.ok, result.cwd) == (False, None, False, place.ws)
    assert (result.sandbox.mode, result.sandbox.denied, result.sandbox.runner_failed) == (
        "workspace-write",
        False,
        False,
    )
    assert result.run.argv == ("bash", "-c", "echo out; echo err >&2; echo $0; exit 3")
    assert result.timeout == 120.0


@kernel
@pytest.mark.parametrize("shell", ["sh", "bash", "/bin/dash"])
def test_other_shells(place, shell):
    with stockade.BashTool(cwd=place.ws, shell=shell) as tool:
        assert tool.run("echo $0").stdout.decode() == f"{shell}\n"


@kernel
@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("command", ["-x", "+x", "--version"])
def test_a_command_that_looks_like_an_option_is_a_command(place, shell, command):
    with stockade.BashTool(cwd=place.ws, shell=shell) as tool:
        result = tool.run(command)
        assert (result.exit_code, result.stdout) == (127, b"")


@kernel
def test_a_fresh_shell_for_every_call(tool, place):
    assert tool.run("echo x > /tmp/x; echo y > y; cd /usr; export A=1; f() { :; }").ok
    assert tool.run("pwd; echo ${A-none}; type -t f; ls /tmp; cat y").stdout.decode() == f"{place.ws}\nnone\ny\n"


@kernel
def test_where_a_call_begins(tool, place):
    os.mkdir(place.path("ws", "sub"), 0o755)
    os.chmod(place.path("ws", "sub"), 0o777)
    for cwd, where in (
        ("sub", "ws/sub"),
        (place.path("ws", "sub"), "ws/sub"),
        ("/usr", "/usr"),
        (".", "ws"),
    ):
        result = tool.run(f"pwd; echo x > file; echo y > {place.ws}/marker", cwd=cwd)
        assert (result.stdout.decode(), result.cwd) == (f"{place.path(where)}\n", place.path(where))
        assert os.path.exists(place.path("ws", "marker")), "the workspace stays that of the tool"
        os.remove(place.path("ws", "marker"))
    assert os.path.exists(place.path("ws", "sub", "file"))
    assert not os.path.exists("/usr/file")


@kernel
@pytest.mark.parametrize("cwd", ["/nonexistent", "", "file", "a\0b", 3])
def test_where_no_call_can_begin(tool, place, cwd):
    place.put("ws/file")
    with pytest.raises(stockade.RequestError):
        tool.run("touch marker", cwd=cwd)
    assert os.listdir(place.ws) == ["file"]


@kernel
def test_a_directory_that_is_not_visible_is_refused(tool, place):
    hidden = "/var/spool" if os.path.isdir("/var/spool") else "/run"
    policy = parse_tree({"extends": "workspace-write", "filesystem": {"root": "minimal"}}, "a test")
    with (
        stockade.BashTool(policy, cwd=place.ws) as small,
        pytest.raises(stockade.RequestError, match="not visible"),
    ):
        small.run("pwd", cwd=hidden)


@kernel
def test_variables_of_the_tool_and_of_a_call(place):
    with stockade.BashTool("workspace-write", cwd=place.ws, env={"A": "tool", "B": "tool"}) as tool:
        assert tool.run("echo $A $B", env={"A": "call"}).stdout == b"call tool\n"
        assert tool.run("echo $A $B").stdout == b"tool tool\n"


@kernel
def test_standard_input_is_empty(tool):
    assert tool.run("cat; readlink /proc/self/fd/0").stdout == b"/dev/null\n"


@kernel
def test_a_denial_is_a_fact_beside_the_code(tool):
    denied = tool.run("echo x > /usr/marker; false")
    assert (denied.exit_code, denied.sandbox.denied) == (1, True)
    assert denied.sandbox.denials[0].kind == "filesystem"
    assert "allowed by filesystem.write" in render(denied)
    assert not os.path.exists("/usr/marker")
    plain = tool.run("false")
    assert (plain.exit_code, plain.sandbox.denied) == (1, False)


@kernel
def test_a_timeout_is_a_fact(tool, token):
    result = tool.run(f"echo before; sleep 300; : {token}", timeout=0.5)
    assert (result.timed_out, result.outcome, result.stdout, result.timeout) == (
        True,
        "timed_out",
        b"before\n",
        0.5,
    )
    assert render(result).endswith("[stockade] timed out after 0.5 s\n")
    assert processes_with(token) == []


@kernel
def test_the_shorter_of_two_timeouts_holds(place):
    policy = parse_tree({"extends": "workspace-write", "limits": {"timeout": "500ms"}}, "a test")
    with stockade.BashTool(policy, cwd=place.ws) as tool:
        result = tool.run("sleep 300", timeout=100)
        assert (result.timed_out, result.timeout) == (True, 0.5)
    with stockade.BashTool(cwd=place.ws, timeout=0.4) as tool:
        assert tool.run("sleep 300").timeout == 0.4


@kernel
def test_a_signal(tool):
    result = tool.run("kill -9 $$")
    assert (result.signal, result.exit_code, result.outcome) == (9, 137, "signalled")
    assert render(result) == "[stockade] killed by signal 9 (SIGKILL)\n[stockade] exit code 137\n"


# --- output ----------------------------------------------------------------------------------------------------


@kernel
def test_binary_output_is_exact(tool):
    data = bytes(range(256)) * 4
    result = tool.run(f"echo {base64.b64encode(data).decode()} | base64 -d")
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated, result.stdout_file) == (
        data,
        1024,
        False,
        None,
    )
    assert "\\x00\\x01" in render(result)
    assert base64.b64decode(result.to_json()["stdout_base64"]) == data


@kernel
def test_long_output_is_cut_and_whole_in_a_private_file(tool):
    result = tool.run("seq 1 40000; seq 1 20 >&2")
    whole = "".join(f"{number}\n" for number in range(1, 40001)).encode()
    assert (result.stdout_truncated, result.stdout_bytes, result.stderr_truncated) == (True, len(whole), False)
    assert len(result.stdout) <= KEPT
    assert whole.startswith(result.stdout[: result.stdout_cut])
    assert whole.endswith(result.stdout[result.stdout_cut :])
    with open(result.stdout_file, "rb") as file:
        assert file.read() == whole
    assert result.stderr_file is None
    assert f"bytes are left out here; the whole is in {result.stdout_file}" in render(result)
    tool.close()
    assert not os.path.exists(result.stdout_file)


@kernel
def test_both_streams_can_be_long(tool):
    result = tool.run("head -c 200000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2")
    assert (result.stdout_bytes, result.stderr_bytes) == (200_000, 300_000)
    assert (os.path.getsize(result.stdout_file), os.path.getsize(result.stderr_file)) == (200_000, 300_000)


@kernel
def test_the_spilled_file_is_out_of_sight(tool):
    """Nothing in the next box can read, or change, what an earlier command wrote."""
    result = tool.run("seq 1 40000")
    assert os.path.exists(result.stdout_file)
    assert tool.run(f"cat {result.stdout_file}").exit_code == 1


@pytest.mark.parametrize("grant", ["workspace", "write", "home"])
def test_what_is_kept_is_where_no_command_can_change_it(place, monkeypatch, grant):
    """Also where the place for temporary files is one that commands write."""
    import tempfile

    inside = place.ws if grant == "workspace" else place.path("other")
    filesystem = {"write": {"write": [inside]}, "home": {"home": inside}}.get(grant, {})
    policy = parse_tree({"extends": "workspace-write", "filesystem": filesystem}, "a test")
    monkeypatch.setattr(tempfile, "tempdir", inside)
    with pytest.raises(stockade.RequestError, match="change what is kept"):
        stockade.BashTool(policy, cwd=place.ws, spill_dir=inside)
    with stockade.BashTool(policy, cwd=place.ws) as tool:
        path, fd = tool.prepare("true").spills.open("stdout")
        os.close(fd)
        assert os.path.dirname(os.path.dirname(path)) == "/var/tmp"
    assert os.listdir(inside) == []


@kernel
def test_much_output_takes_little_memory(place):
    """100 MB in a process of its own: the peak of memory is looked at there."""
    program = (
        "import resource, stockade\n"
        "with stockade.BashTool('workspace-write', spill_dir='..') as tool:\n"
        "    tool.run('true')\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    result = tool.run('head -c 100000000 /dev/zero')\n"
        "    print(result.stdout_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8192)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=place.ws, timeout=60, check=True
    )
    assert done.stdout == "100000000 True\n"
    assert os.listdir(place.ws) == []


@kernel
def test_a_full_disk_is_said(tool, monkeypatch):
    def full(_name):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpillPlace, "open", lambda _self, name: full(name))
    result = tool.run("seq 1 40000")
    assert (result.exit_code, result.stdout_truncated, result.stdout_file) == (0, True, None)
    assert result.notes == ("the whole of stdout could not be kept: no space left on device",)


@kernel
def test_a_policy_may_keep_less(place):
    policy = parse_tree({"extends": "workspace-write", "limits": {"output": 1000}}, "a test")
    with stockade.BashTool(policy, cwd=place.ws) as tool:
        result = tool.run("seq 1 1000")
        assert len(result.stdout) <= 1000
        assert os.path.getsize(result.stdout_file) == result.stdout_bytes


# --- a box is a bare place --------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("session", [False, True])
def test_unset_home_and_a_deleted_tmpdir(place, session):
    with stockade.BashTool(cwd=place.ws, session=session) as tool:
        assert tool.run("unset HOME TMPDIR; cat <<< x; rm -rf /tmp/*; exit 0").stdout == b"x\n"
        assert tool.run("export TMPDIR=/tmp/gone; mkdir -p $TMPDIR; rmdir $TMPDIR; cat <<< y").stdout == b"y\n"


@kernel
def test_what_a_command_leaves_running_ends(tool, token):
    result = tool.run(f"setsid sh -c 'sleep 300; : {token}' & echo done")
    assert (result.stdout, result.exit_code) == (b"done\n", 0)
    assert processes_with(token) == []


# --- what is refused -------------------------------------------------------------------------------------------


BAD_CALLS = [
    ({"command": ""}, "it is empty"),
    ({"command": " \n\t"}, "it is empty"),
    ({"command": "a\0b"}, "NUL"),
    ({"command": "a\ud800"}, "lone surrogate"),
    ({"command": None}, "NoneType, not text"),
    ({"command": ["ls"]}, "list, not text"),
    ({"command": "x" * 140_000}, "the kernel takes"),
    ({"command": "true", "timeout": 0}, "above 0 and no more than 600"),
    ({"command": "true", "timeout": -1}, "above 0"),
    ({"command": "true", "timeout": 600.5}, "no more than 600"),
    ({"command": "true", "timeout": float("nan")}, "above 0"),
    ({"command": "true", "timeout": float("inf")}, "no more than 600"),
    ({"command": "true", "timeout": "5"}, "not a number"),
    ({"command": "true", "timeout": True}, "not a number"),
    ({"command": "true", "env": {"A=B": "x"}}, "no '='"),
    ({"command": "true", "env": {"A": 1}}, "not text"),
    ({"command": "true", "env": ["A"]}, "not a mapping"),
]


@pytest.mark.parametrize(("options", "cause"), BAD_CALLS)
def test_a_bad_call_runs_nothing(tool, options, cause):
    with pytest.raises(stockade.RequestError, match=cause):
        tool.run(**options)
    with pytest.raises(stockade.RequestError, match=cause):
        asyncio.run(tool.arun(**options))


@pytest.mark.parametrize("timeout", [0, float("inf"), float("nan"), 1e9, "5"])
def test_a_job_may_take_long_but_not_any_time(tool, timeout):
    with pytest.raises(stockade.RequestError, match="could not use timeout"):
        tool.start("true", timeout=timeout)


BAD_TOOLS = [
    ({"shell": ""}, "not a program"),
    ({"shell": "-x"}, "not a program"),
    ({"shell": "a\0"}, "NUL"),
    ({"shell": None}, "not text"),
    ({"timeout": 0}, "above 0"),
    ({"timeout": 601}, "no more than 600"),
    ({"env": {"": "x"}}, "not empty"),
    ({"cwd": "/nonexistent"}, "could not use the directory"),
    ({"cwd": "/"}, "whole file system"),
    ({"jobs": -1}, "not a number of jobs"),
    ({"jobs": "many"}, "not a number of jobs"),
    ({"spill_dir": "/nonexistent"}, "not a directory"),
    ({"spill_dir": "/var/tmp", "cwd": "/var"}, "change what is kept"),
    ({"session": True, "keep": True}, "session and keep together"),
]


@pytest.mark.parametrize(("options", "cause"), BAD_TOOLS)
def test_a_bad_tool_is_not_made(place, options, cause):
    with pytest.raises(stockade.RequestError, match=cause):
        stockade.BashTool(**{"cwd": place.ws, **options})


def test_a_broken_policy_makes_no_tool(place):
    for policy in ("no-such-preset", place.put("bad.toml", "mode = 3\n")):
        with pytest.raises(stockade.PolicyError):
            stockade.BashTool(policy, cwd=place.ws)


def test_a_closed_tool_takes_no_calls(tool):
    tool.close()
    tool.close()
    for attempt in (tool.run, tool.start):
        with pytest.raises(stockade.RequestError, match="it is closed"):
            attempt("true")


@kernel
def test_a_workspace_that_has_gone_is_an_error_of_the_call(place):
    os.mkdir(place.path("ws", "sub"))
    with stockade.BashTool(cwd=place.path("ws", "sub")) as tool:
        os.rmdir(place.path("ws", "sub"))
        with pytest.raises(stockade.RequestError, match="no such file"):
            tool.run("true")


# --- a broken sandbox ------------------------------------------------------------------------------------------


@pytest.fixture
def break_bwrap(place, monkeypatch):
    """Has the host found able, and then a bubblewrap that fails in its place."""
    path = place.put("bwrap", f'#!/bin/sh\nexec env -i {bwrap.locate()} "$@"\n', 0o755)
    probe.forget()
    monkeypatch.setattr(bwrap, "locate", lambda configured=None: path)

    def fail() -> None:
        place.put("bwrap", f'#!/bin/sh\ncase "$*" in *--help*) exec {path}.real --help;; esac; exit 1\n', 0o755)

    yield fail
    probe.forget()


@kernel
def test_a_broken_sandbox_is_never_a_failing_command(place, tool, break_bwrap):
    assert tool.run("true").ok
    break_bwrap()
    with pytest.raises(stockade.SandboxUnavailable) as caught:
        tool.run("touch marker")
    error = caught.value
    assert (error.code, error.result.sandbox.runner_failed) == ("SANDBOX_UNAVAILABLE", True)
    assert (error.result.exit_code, error.result.outcome) == (None, "runner_failed")
    assert "the sandbox failed" in render(error.result)
    with pytest.raises(stockade.SandboxUnavailable):
        asyncio.run(tool.arun("touch marker"))
    assert os.listdir(place.ws) == []


@kernel
def test_a_broken_sandbox_settles_a_job(place, tool, break_bwrap):
    job = tool.start("true")
    assert tool.wait(job, 60).exit_code == 0
    break_bwrap()
    for _ in range(2):  # the run that fails, and one that is refused for it
        result = tool.wait(tool.start("touch marker"), 60)
        assert (result.sandbox.runner_failed, result.exit_code, result.outcome) == (True, None, "runner_failed")
        assert "the sandbox failed" in render(result)
    assert os.listdir(place.ws) == []


@kernel
@pytest.mark.parametrize("shell", ["no-such-shell", "/etc/passwd", "/nonexistent/bash"])
def test_a_shell_that_is_not_there_is_not_the_commands_fault(place, shell):
    with stockade.BashTool(cwd=place.ws, shell=shell) as tool:
        with pytest.raises(stockade.SandboxUnavailable, match="the shell was not executed") as caught:
            tool.run("true")
        assert caught.value.remedy == "Name a shell that is visible inside."
        result = tool.wait(tool.start("true"), 60)
        assert (result.sandbox.runner_failed, result.exit_code, result.outcome) == (True, None, "not_executed")


ROWS = [
    ({"keeper_lost": True}, "runner_failed", True),
    ({"keeper_lost": True, "released": True}, "lost", False),
    ({"lease_failure": "why"}, "runner_failed", True),
    ({"lease_lost": "resolver", "released": True, "exit_code": 1}, "runner_failed", True),
    ({"failed_step": "limits", "failed_errno": errno.EPERM}, "runner_failed", True),
    ({"gate_failure": "why", "killed": True}, "runner_failed", True),
    ({"deadline_passed": True, "released": True, "killed": True}, "timed_out", False),
    ({"cpu_spent": 1.0, "released": True, "killed": True}, "timed_out", False),
    ({"stop_signal": 15, "released": True, "exit_code": 143}, "stopped", False),
    ({"garbled": True, "released": True}, "lost", False),
    ({"released": True, "exit_code": 0}, "exited", False),
    ({"released": True, "exit_code": 3}, "exited", False),
    ({"released": True, "exit_code": 137}, "signalled", False),
    ({"exit_code": 1}, "runner_failed", True),
    ({"wait_status": 9}, "runner_failed", True),
    ({"wait_status": 9, "released": True}, "lost", False),
    ({"wait_status": 9, "released": True, "counted": (("oom_kill", 1), ("oom", 1))}, "signalled", False),
    ({"wait_status": 256, "released": True}, "runner_failed", True),
]
"""Evidence, the outcome of a run, and whether it says nothing of the command."""


def judged(tool, monkeypatch, evidence):
    """The tool with runs that end as ``evidence`` says."""
    from stockade.sandbox import conduct

    def run(order, **_options):
        settled, _host = conduct.judge(order)
        finished = engine.Finished(Evidence(**evidence), None, None, 0.1)
        from stockade.sandbox.program import diagnose

        return verdict(
            order, finished, diagnose("bash", path="/bin", cwd="/", view=lambda path: path), settled=settled, notes=(),
            before=None, start=None,
        )  # fmt: skip

    monkeypatch.setattr(conduct, "carry_out", run)


@kernel
@pytest.mark.parametrize(("evidence", "outcome", "broken"), ROWS)
def test_every_row_of_classification(tool, monkeypatch, evidence, outcome, broken):
    judged(tool, monkeypatch, evidence)
    settled = tool.wait(tool.start("true"), 60)
    assert (settled.outcome, settled.sandbox.runner_failed) == (outcome, broken)
    assert (settled.exit_code is None) == (broken or outcome in ("lost", "timed_out"))
    if broken:
        with pytest.raises(stockade.SandboxUnavailable) as caught:
            tool.run("true")
        assert caught.value.result.outcome == outcome
        assert render(settled).startswith("[stockade] the sandbox failed")
    else:
        result = tool.run("true")
        assert result.outcome == outcome
        assert "the sandbox failed" not in render(result)


def test_a_refusal_settles_as_a_failure_of_the_runner(tool):
    call = tool.prepare("true")
    result = calls.refused(call, stockade.SandboxUnavailable("could not x: y", mode="auto", remedy="z"))
    assert (result.sandbox.runner_failed, result.reason, result.exit_code) == (True, "could not x: y z", None)
    with pytest.raises(stockade.SandboxUnavailable):
        calls.raise_if_broken(result)


# --- asynchronous, and many at once ------------------------------------------------------------------------------


@kernel
def test_an_awaited_call(tool):
    async def both():
        return await asyncio.gather(tool.arun("echo 1; exit 1"), tool.arun("echo 2"))

    one, two = asyncio.run(both())
    assert (one.stdout, one.exit_code, two.stdout, two.exit_code) == (b"1\n", 1, b"2\n", 0)


@kernel
@pytest.mark.parametrize("session", [False, True])
def test_cancelling_ends_the_tree(place, token, session):
    async def cancelled(tool):
        task = asyncio.create_task(tool.arun(f"setsid sh -c 'sleep 300; : {token}' & sleep 300; : {token}"))
        await asyncio.to_thread(wait_until, lambda: len(processes_with(token)) >= 1, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with stockade.BashTool(cwd=place.ws, session=session) as tool:
        asyncio.run(cancelled(tool))
        assert processes_with(token) == []
        assert tool.run("echo on").stdout == b"on\n"


@kernel
def test_a_killed_caller_leaves_nothing(place, token):
    program = (
        "import stockade\n"
        "tool = stockade.BashTool('workspace-write', spill_dir='..')\n"
        f"tool.run('seq 1 40000; sleep 300; : {token}')\n"
    )
    os.chmod(place.top, 0o777)
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=place.ws)
    wait_until(
        lambda: [name for name in os.listdir(place.top) if name.startswith("stockade-bash-")], "it has spilled"
    )
    caller.kill()
    caller.wait()
    wait_until(lambda: processes_with(token) == [], "the box is gone")
    with stockade.BashTool(cwd=place.ws, spill_dir=place.top) as tool:
        path = tool.run("seq 1 40000").stdout_file
        left = [name for name in os.listdir(place.top) if name.startswith("stockade-bash-")]
        assert [os.path.dirname(path)] == [place.path(name) for name in left], "what it left was swept"


@kernel
def test_many_threads_share_a_tool(tool):
    found = {}

    def call(number):
        found[number] = tool.run(f"seq 1 {number * 4000} | tail -1")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: result.stdout for number, result in found.items()} == {
        n: b"%d\n" % (n * 4000) for n in range(1, 9)
    }


# --- descriptors into the box ------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("mode", ["workspace-write", "full-access"])
def test_extra_descriptors_reach_the_program_and_nothing_else_does(place, mode):
    """The hook that session and keep stand on."""
    import socket

    from stockade.sandbox.conduct import carry_out
    from stockade.sandbox.wires import Wires

    listing = "import os; print(sorted(int(each) for each in os.listdir('/proc/self/fd'))); os.write(7, b'told')"
    ours, theirs = socket.socketpair()
    with ours, theirs, stockade.BashTool(mode, cwd=place.ws) as tool:
        extra = os.dup(0)
        os.set_inheritable(extra, True)
        try:
            order = tool.order([PYTHON, "-I", "-c", listing])
            wired = order.replace(wires=Wires(descriptors=((theirs.fileno(), 7),)))
            result = carry_out(wired, capture=True)
            assert (result.exit_code, result.stdout) == (0, b"[0, 1, 2, 3, 7]\n"), result.stderr
            theirs.close()
            assert ours.recv(100) == b"told"
            assert ours.recv(100) == b"", "nobody else has the other end"
            plain = carry_out(order, capture=True)
            assert plain.stdout == b"[0, 1, 2, 3]\n"
        finally:
            os.close(extra)
