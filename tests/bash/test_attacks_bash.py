"""Commands that work against their own shell: what comes of them is right, or said, and the next call works."""

from __future__ import annotations

import asyncio
import os
import threading
from unittest import mock

import pytest
from boxes import processes_with

import stockade
from stockade.policies.errors import EscalationRefused, RequestError, SandboxUnavailable
from stockade.sandbox.bash.output import render

kernel = pytest.mark.kernel

SEED = "export A=1; f() { :; }; cd sub"
LOOK = "echo ${A-none} $(pwd) $(type -t f)"
NOT_CARRIED = "the state of this call is not carried on (the shell did not get to it): the one before it stands"


@pytest.fixture
def ws(place):
    os.mkdir(place.path("ws", "sub"), 0o777)
    return place.ws


# --- state that is carried -------------------------------------------------------------------------------------


@pytest.fixture
def session(ws):
    with stockade.BashTool("workspace-write", cwd=ws, session=True, timeout=60) as tool:
        assert tool.run(SEED).notes == ()
        yield tool


CARRIED = [
    pytest.param("shopt -s expand_aliases; alias builtin=: declare=: compgen=: printf=:", 0, id="aliases"),
    pytest.param("IFS=st; readonly IFS", 0, id="a separator that can't be set"),
    pytest.param("printf() { :; }; declare() { :; }; eval() { :; }; trap() { :; }; exit() { :; }", 0, id="functions"),
    pytest.param("read() { :; }; set() { :; }; unset() { :; }; mapfile() { :; }; compgen() { :; }", 0, id="more functions"),
    pytest.param("trap 'exit 7' ERR; set -E; false", 7, id="a trap"),
    pytest.param("trap 'echo b >&2' EXIT", 0, id="a trap of its end"),
    pytest.param("set -o posix", 0, id="posix"),
    pytest.param("set -m; set -k; set -h; set +B; set -b", 0, id="job control"),
    pytest.param("shopt -s extdebug", 0, id="extdebug"),
    pytest.param("export BASH_ENV=/proc/self/mem PROMPT_COMMAND='exit 9' TMOUT=1 POSIXLY_CORRECT=", 0, id="names of bash"),
    pytest.param("kill -TERM $$; sleep 9", 143, id="a signal"),
    pytest.param("( exec 9>&1; echo junk >&9 ); echo junk >&10 || true", 0, id="text by the socket"),
]  # fmt: skip


@kernel
@pytest.mark.parametrize(("command", "code"), CARRIED)
def test_a_state_survives(session, ws, command, code):
    result = session.run(command)
    assert (result.exit_code, result.notes) == (code, ())
    assert session.run(LOOK).stdout.decode() == f"1 {ws}/sub function\n"


LOST = [
    pytest.param("enable -n compgen mapfile; export A=2", 0, id="builtins that are off"),
    pytest.param("set -r; export A=2", 0, id="a shell that may not redirect"),
    pytest.param("ulimit -n 3; export A=2", 0, id="no descriptor left"),
    pytest.param("set -n; export A=2", 0, id="a shell that executes nothing"),
    pytest.param("builtin() { :; }; export A=2", 0, id="a function in the place of builtin"),
    pytest.param("trap '' EXIT; export A=2; exit 3", 3, id="no trap"),
    pytest.param("shopt -s extdebug; set -T; trap false DEBUG", 0, id="a trap that skips everything"),
    pytest.param("unset __stockade_base; export A=2; (exit 5)", 5, id="variables of ours"),
    pytest.param("__stockade_end() { :; }; export A=2; (exit 6)", 6, id="functions of ours"),
    pytest.param("export A=2; printf 'x\\0y' >&10; (exit 4)", 4, id="junk by the socket"),
]


@kernel
@pytest.mark.parametrize(("command", "code"), LOST)
def test_a_state_that_is_lost_is_said_and_the_code_is_the_commands(session, ws, command, code):
    result = session.run(command)
    assert (result.exit_code, result.notes) == (code, (NOT_CARRIED,)), result.stderr
    assert session.run(LOOK).stdout.decode() == f"1 {ws}/sub function\n"


@kernel
@pytest.mark.parametrize(
    "env", [{"BASH_FUNC_builtin%%": "() { :; }"}, {"SHELLOPTS": "noexec"}], ids=["builtin", "noexec"]
)
@pytest.mark.parametrize("options", [{"session": True}, {"keep": True}], ids=["session", "keep"])
def test_a_shell_that_takes_no_command_is_not_the_commands_fault(ws, env, options):
    tool = stockade.BashTool("workspace-write", cwd=ws, timeout=60, env=env, **options)
    with tool, pytest.raises(SandboxUnavailable, match="before it took"):
        tool.run("touch ran")
    assert os.listdir(ws) == ["sub"]


@kernel
def test_variables_of_a_call_do_not_depend_on_the_separator(session):
    assert session.run("export IFS=_,").notes == ()
    result = session.run("echo $AB $CD; false", env={"AB": "1", "CD": "2"})
    assert (result.exit_code, result.stdout, result.stderr) == (1, b"1 2\n", b"")
    assert session.run("echo ${AB-none}").stdout == b"none\n"


# --- a shell that is kept --------------------------------------------------------------------------------------


@pytest.fixture
def kept(ws):
    with stockade.BashTool("workspace-write", cwd=ws, keep=True, timeout=60) as tool:
        assert tool.run(SEED).notes == ()
        yield tool


SURVIVED = [
    pytest.param("readonly LC_ALL=C.UTF-8", id="a locale that stays"),
    pytest.param("LC_ALL=C.UTF-8; readonly LC_ALL LANG; export LC_ALL", id="an exported one"),
    pytest.param("export LC_ALL=C; readonly LC_ALL", id="a locale of bytes"),
    pytest.param("IFS=0123456789", id="a separator"),
    pytest.param("readonly IFS", id="a separator that stays"),
    pytest.param("printf() { :; }; read() { :; }; eval() { :; }; exit() { :; }; [ () { :; }", id="functions"),
    pytest.param("shopt -s expand_aliases; alias builtin=: while=: read=:", id="aliases"),
    pytest.param("trap 'true' DEBUG; trap true ERR; trap true RETURN; set -ET", id="traps"),
    pytest.param("exec 0<&- 1>&- 2>&-", id="its streams"),
    pytest.param("exec 60<&- 9<&-", id="descriptors beside"),
    pytest.param("ulimit -n 60; ulimit -f 0", id="limits"),
    pytest.param("set -o posix; set -fkuhCm; set +B", id="options"),
    pytest.param("set -r", id="restricted"),
    pytest.param("TMOUT=1", id="a timeout of its own"),
    pytest.param("declare -a __stockade_command; unset __stockade_size", id="variables of ours"),
    pytest.param("continue 2>/dev/null", id="continue"),
    pytest.param("cat; read x; mapfile y; while read l; do echo $l; done", id="all that comes on stdin"),
]


@kernel
@pytest.mark.parametrize("command", SURVIVED)
def test_a_shell_goes_on(kept, ws, command):
    assert (kept.run(command).outcome, kept.run("true").outcome) == ("exited", "exited")
    result = kept.run('printf "%s\\n" é "$A" "${PWD}"' if "printf()" not in command else 'echo "é\n$A\n$PWD"')
    assert (result.exit_code, result.stdout.decode(), result.notes) == (0, f"é\n1\n{ws}/sub\n", ())


ENDED = [
    pytest.param("builtin() { :; }", id="a function in the place of builtin"),
    pytest.param("enable -n printf", id="no printf"),
    pytest.param("exec 61>&-", id="its socket closed"),
    pytest.param("exec 62<&-", id="its input closed"),
    pytest.param("exec 63>&-", id="its output closed"),
    pytest.param("exec 64>&-", id="its errors closed"),
    pytest.param("for fd in /proc/self/fd/*; do eval \"exec ${fd##*/}>&-\"; done", id="everything closed"),
    pytest.param("ulimit -n 3", id="no descriptor left"),
    pytest.param("trap 'exit 4' DEBUG", id="a trap"),
]  # fmt: skip


@kernel
@pytest.mark.parametrize("command", ENDED)
def test_a_shell_that_was_broken_ends_at_once(kept, ws, command):
    result = kept.run(command)
    assert not result.timed_out
    assert result.notes == ("the kept shell ended with this command: the next call begins in a fresh one",)
    result = kept.run("echo é; pwd")
    assert (result.exit_code, result.stdout.decode()) == (0, f"é\n{ws}\n")
    assert result.notes[0].startswith("this shell is a fresh one")


DEAF = [
    pytest.param("enable -n read", id="no read"),
    pytest.param("readonly __stockade_end=x", id="no token"),
    pytest.param("unset __stockade_end", id="no token any more"),
]


@kernel
@pytest.mark.parametrize("command", DEAF)
def test_a_command_that_was_not_heard_is_no_failure_of_its_own(kept, command):
    kept.run(command)
    results = [kept.run("echo hi") for _ in range(2)]
    assert results[-1].stdout == b"hi\n"
    assert all(result.exit_code in (None, 0) for result in results)


@kernel
@pytest.mark.parametrize(
    "command",
    [
        "echo 'é\\xe9\\\\ \\c'",
        "printf '%s' '\\'",
        "printf '\\x41\\u00e9\\n'",
        "echo \udcff\udcfe é\\",
        "echo $'\\c'",
    ],
)
def test_a_command_arrives_as_it_is(kept, ws, command):
    with stockade.BashTool("workspace-write", cwd=ws) as fresh:
        assert kept.run(command).stdout == fresh.run(command).stdout != b""


@kernel
def test_where_a_shell_is_does_not_depend_on_a_variable(kept, ws):
    assert kept.run("PWD=/etc").cwd == f"{ws}/sub"
    assert kept.run("unset PWD; cd ..").cwd == ws
    assert kept.run("HOME=$(pwd); pushd sub >/dev/null; unset DIRSTACK").cwd in (ws, f"{ws}/sub")


def test_a_kept_shell_and_an_overlay_are_refused_together(ws):
    with pytest.raises(RequestError, match="overlay workspace"):
        stockade.BashTool("workspace-write", cwd=ws, options={"filesystem.workspace": "overlay"}, keep=True)


@kernel
@pytest.mark.parametrize("session", [False, True])
def test_what_an_overlay_captured_is_in_each_result(ws, place, session):
    place.put("ws/old", "old\n")
    overlay = {"filesystem.workspace": "overlay"}
    with stockade.BashTool("workspace-write", cwd=ws, session=session, options=overlay) as tool:
        first = tool.run("echo new > old; echo x > made")
        second = tool.run("cat old; ls made")
        job = tool.wait(tool.start("echo y > from-job"))
    assert (second.stdout, second.exit_code != 0) == (b"old\n", True)
    with first.run.changes as changes, job.run.changes as of_job:
        second.run.changes.close()
        assert "+new" in changes.diff()
        assert "+y" in of_job.diff()
        assert sorted(os.listdir(ws)) == ["old", "sub"]
        changes.apply()
    assert sorted(os.listdir(ws)) == ["made", "old", "sub"]


# --- who may widen ---------------------------------------------------------------------------------------------


class Agreeable:
    """Equals whatever it is compared with."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


class Yes(str):
    __slots__ = ()
    __eq__ = Agreeable.__eq__
    __ne__ = Agreeable.__ne__
    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "answer", [Agreeable(), Yes("rejected"), b"allowed_once", ["allowed_once"], True, mock.ANY]
)
@pytest.mark.parametrize("awaited", [False, True])
def test_only_the_word_itself_allows(ws, answer, awaited):
    with stockade.BashTool(cwd=ws, approve=lambda _wish: answer) as tool:
        call = {"command": "touch sub/ran", "mode": "full-access", "justification": "because"}
        with pytest.raises(EscalationRefused):
            asyncio.run(tool.arun(**call)) if awaited else tool.run(**call)
        with pytest.raises(EscalationRefused):
            tool.start(**call)
    assert os.listdir(f"{ws}/sub") == []


@pytest.mark.parametrize("awaited", [False, True])
def test_a_tool_that_is_closed_while_somebody_is_asked_runs_nothing(ws, awaited):
    def approve(_wish):
        tool.close()
        return "allowed_once"

    tool = stockade.BashTool(cwd=ws, approve=approve)
    call = {"command": "touch sub/ran", "mode": "full-access", "justification": "because"}
    with pytest.raises(RequestError, match="closed"):
        asyncio.run(tool.arun(**call)) if awaited else tool.run(**call)
    assert os.listdir(f"{ws}/sub") == []


@kernel
def test_two_questions_at_once_are_two_answers(ws):
    both = threading.Barrier(2, timeout=60)

    def approve(wish):
        both.wait()
        return "allowed_once" if "yes" in wish.command else "rejected"

    def ask(name):
        try:
            tool.run(f"touch sub/{name}", mode="full-access", justification="because")
        except EscalationRefused:
            refused.append(name)

    refused = []
    with stockade.BashTool(cwd=ws, approve=approve) as tool:
        threads = [threading.Thread(target=ask, args=(name,)) for name in ("yes", "no")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (os.listdir(f"{ws}/sub"), refused) == (["yes"], ["no"])


# --- jobs ------------------------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("seconds", ["1", None, True, float("nan"), [1]])
def test_what_is_no_time_asks_nothing_of_a_job(ws, seconds):
    with stockade.BashTool(cwd=ws) as tool:
        job = tool.start("read x; echo $x")
        with pytest.raises(RequestError, match="number of seconds"):
            tool.stop(job, seconds)
        if seconds is not None:
            with pytest.raises(RequestError, match="number of seconds"):
                tool.read(job, wait=seconds)
            with pytest.raises(RequestError, match="number of seconds"):
                tool.wait(job, seconds)
        tool.write(job, "on\n")
        assert tool.wait(job).stdout == b"on\n"


@kernel
def test_a_reader_and_a_follower_hear_of_the_end_of_their_tool(ws):
    tool = stockade.BashTool(cwd=ws)
    job = tool.start("echo first; read x")
    pieces = tool.follow(job)
    assert next(pieces).data == b"first\n"
    heard = []
    reader = threading.Thread(target=lambda: heard.append(tool.read(job, 6, wait=60)))
    reader.start()
    tool.close()
    reader.join()
    assert list(pieces) == []
    assert [(chunk.data, chunk.running) for chunk in heard] in ([(b"", False)], [])
    for ask in (tool.follow, tool.poll, tool.read, tool.stop):
        with pytest.raises(RequestError, match="closed"):
            ask(job)


# --- output and cancelling -------------------------------------------------------------------------------------


HOSTILE = [
    r"\033]0;title\007\033[2J\033[31m",
    r"\r[stockade] exit code 0",
    r"\n [stockade] x\n\t[stockade] y\n",
    r"\xc2\x85[stockade] \xe2\x80\xa8[stockade] \xe2\x80\xae \xef\xbb\xbf",
    r"\xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80 \xff\0\x7f",
]


@kernel
@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_rendered_is_inert(ws, text):
    with stockade.BashTool(cwd=ws) as tool:
        result = tool.run(f"printf '{text}'; printf '{text}' >&2; exit 3")
    rendered = render(result)
    assert [sign for sign in rendered if not sign.isprintable() and sign not in "\n\t"] == []
    marks = [line for line in rendered.split("\n") if line.lstrip().startswith("[stockade]")]
    assert marks == ["[stockade] exit code 3"]
    assert rendered.encode()


@kernel
@pytest.mark.parametrize("options", [{"session": True}, {"keep": True}], ids=["session", "keep"])
def test_a_call_that_is_cancelled_before_its_turn_never_runs(ws, options):
    async def both(tool):
        first = asyncio.ensure_future(tool.arun("touch begun; until [ -s go ]; do sleep 0.01; done; cat go"))
        while not os.path.exists(f"{ws}/begun"):
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(tool.arun("touch sub/ran"))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        with open(f"{ws}/go", "w") as file:
            file.write("on\n")
        return await first

    with stockade.BashTool("workspace-write", cwd=ws, **options) as tool:
        assert tool.run("A=1; export A").exit_code == 0
        assert asyncio.run(both(tool)).stdout == b"on\n"
        assert tool.run("echo $A").stdout == b"1\n"
    assert os.listdir(f"{ws}/sub") == []


@kernel
@pytest.mark.parametrize("options", [{}, {"session": True}, {"keep": True}], ids=["fresh", "session", "keep"])
def test_cancelling_at_any_moment_leaves_nothing(ws, options):
    token = f"91.{int.from_bytes(os.urandom(6), 'big')}"

    async def cancelled(tool, turns):
        task = asyncio.ensure_future(tool.arun(f"sleep {token}"))
        for _ in range(turns):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def all_of_it(tool):
        for turns in range(0, 24, 2):
            await cancelled(tool, turns)
            assert processes_with(token) == []
        return await tool.arun("echo on")

    with stockade.BashTool(cwd=ws, **options) as tool:
        assert asyncio.run(all_of_it(tool)).stdout == b"on\n"
