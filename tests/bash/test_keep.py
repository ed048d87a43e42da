"""The kept shell: what lives from call to call, what a call's output is, who can say that a command is through."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import warnings

import pytest
from boxes import IDENTITIES, PATIENCE, PYTHON, make_place, policy, processes_with, wait_until
from hypothesis import given
from hypothesis import strategies as st

import stockade
from stockade.policies.errors import RequestError, SandboxUnavailable
from stockade.sandbox.bash import feed
from stockade.sandbox.bash.exchange import CREDENTIALS, sender
from stockade.sandbox.bash.feed import End, frame, quoted, read_end, with_variables

kernel = pytest.mark.kernel
ENDED = "the kept shell ended with this command: the next call begins in a fresh one"
FRESH = "this shell is a fresh one, without its directory, variables and functions: the one before ended"
TOKEN = b"0123456789abcdef"


# --- what goes through the socket ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "end"),
    [
        (b"0 /\0", End(0, "/")),
        (b"255 /a b\nc\0", End(255, "/a b\nc")),
        (b"1 /\xff\0", End(1, "/\udcff")),
        (b"0 \0", End(0, "")),
        (b"0 relative\0", End(0, "")),
        (b"0\0", End(0, "")),
    ],
)
def test_the_end_of_a_command(told, end):
    whole = TOKEN + b" " + told
    assert read_end(whole, TOKEN) == end
    for cut in range(len(whole)):
        assert read_end(whole[:cut], TOKEN) is None


@pytest.mark.parametrize(
    "told",
    [
        b"\0",
        b"0 /\0",
        b"hello 0 /\0",
        TOKEN + b" 256 /\0",
        TOKEN + b" -1 /\0",
        TOKEN + b" 0001 /\0",
        TOKEN + b" x /\0",
        TOKEN + b"  /\0",
        TOKEN + b" 0 /\0more",
        TOKEN + b" 0 /\0\0",
        TOKEN.upper() + b" 0 /\0",
        b"x" * (feed.MOST_END + 1),
    ],
)
def test_what_is_no_end(told):
    with pytest.raises(ValueError, match="end of"):
        read_end(told, TOKEN)


@given(st.binary(max_size=80))
def test_nothing_else_comes_of_anything(data):
    try:
        end = read_end(data, TOKEN)
    except ValueError:
        return
    assert end is None or data.startswith(TOKEN)


def test_frames():
    assert frame("a\nb", TOKEN, bash=True) == b"3 " + TOKEN + b"\na\nb"
    assert frame("a\nb", TOKEN, bash=False) == b"2 " + TOKEN + b"\na\nb\n"
    assert frame("é\udcff", b"t", bash=True) == b"12 t\n\\xc3\\xa9\\xff"
    assert frame("\\c", b"t", bash=True) == b"3 t\n\\\\c"
    assert frame("é\\", b"t", bash=False) == b"1 t\n\xc3\xa9\\\n"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_quoting(text):
    assert shlex.split(quoted(text)) == [text]


def test_variables_of_one_command():
    assert with_variables("echo", []) == "echo"
    assert with_variables("it's", [("A", "x y"), ("_b1", "")]) == "A='x y' _b1='' command eval 'it'\\''s'"


@pytest.mark.parametrize("name", ["1A", "A.B", "a-b", "é", "A B", ""])
def test_a_name_that_no_shell_knows(name):
    with pytest.raises(RequestError, match="could not set"):
        with_variables("true", [(name, "x")])


def test_the_sender_of_a_message():
    import socket

    record = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, CREDENTIALS.pack(77, 1, 2))
    assert sender([record]) == 77
    assert sender([]) == 0
    assert sender([(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 3))]) == 0


# --- calls -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=IDENTITIES)
def identity(request):
    return request.param


@pytest.fixture(params=["bash", "sh"])
def shell(request):
    return request.param


@pytest.fixture
def ws(tmp_path):
    return make_place(tmp_path, "ws")


@pytest.fixture
def tool(identity, shell, ws):
    with stockade.BashTool(policy(identity), cwd=ws, shell=shell, keep=True) as made:
        yield made


@pytest.fixture
def bash(ws):
    with stockade.BashTool(cwd=ws, keep=True) as made:
        yield made


@pytest.fixture
def token():
    """Seconds to sleep that nobody else sleeps."""
    return f"78.{int.from_bytes(os.urandom(6), 'big')}"


def living(tool):
    """The shell that the tool has now."""
    shell = tool._kept._shell
    assert shell is not None
    return shell


@kernel
def test_what_lives_from_call_to_call(tool, ws):
    (ws / "below").mkdir()
    first = tool.run("cd below; x=1; export y=2; f() { echo f $x $y; }; umask 027")
    assert (first.cwd, first.outcome, first.exit_code, first.notes) == (f"{ws}/below", "exited", 0, ())
    second = tool.run("pwd; f; sh -c 'echo $x.$y'; umask; echo $$")
    lines = second.stdout.decode().splitlines()
    assert lines[:-1] == [f"{ws}/below", "f 1 2", ".2", "0027"]
    assert tool.run("echo $$").stdout.decode().split() == lines[-1:]
    assert (second.cwd, second.notes, second.run) == (f"{ws}/below", (), None)
    assert (second.sandbox.mode, second.sandbox.denied, second.sandbox.runner_failed) == (
        "workspace-write",
        False,
        False,
    )


@kernel
@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("echo out; echo err >&2; false", 1, b"out\n", b"err\n"),
        ("( exit 255 )", 255, b"", b""),
        (r"printf '\377\000\033[31m'", 0, b"\xff\x00\x1b[31m", b""),
        ("printf 'no end'", 0, b"no end", b""),
        ("cat <<X\none\n  two\\n\nX", 0, b"one\n  two\\n\n", b""),
        ("echo é \\\n next", 0, "é next\n".encode(), b""),
        ("cat", 0, b"", b""),
        ("exec >gone; echo lost", 0, b"", b""),
        ("break", 0, b"", b""),
        ("echo a; continue; echo b", 0, b"a\n", b""),
        ("for i in 1 2 3; do [ $i = 1 ] && continue; echo $i; break; done; echo after", 0, b"2\nafter\n", b""),
        ("# nothing", 0, b"", b""),
        ("exec 3>three; echo x >&3; exec 3>&-; cat three", 0, b"x\n", b""),
        ("set -u; set -f; IFS=xyz; set +u", 0, b"", b""),
    ],
)
def test_one_command_and_the_next(tool, command, code, out, err):
    result = tool.run(command)
    assert (result.exit_code, result.stdout, result.stderr, result.outcome) == (code, out, err, "exited")
    after = tool.run("echo next")
    assert (after.stdout, after.stderr, after.exit_code, after.notes) == (b"next\n", b"", 0, ())


@kernel
def test_a_syntax_error_ends_nothing(tool):
    result = tool.run("echo (")
    assert result.exit_code == 2
    assert b"yntax error" in result.stderr
    assert tool.run("echo next").notes == ()


@kernel
def test_a_child_that_is_killed(tool):
    result = tool.run("sh -c 'kill -9 $$'")
    assert (result.exit_code, result.signal, result.outcome) == (137, 9, "signalled")


@kernel
def test_tracing_does_not_show_what_is_ours(bash):
    bash.run("set -x; trap 'echo debug' DEBUG")
    result = bash.run("true")
    assert (result.stdout, result.stderr) == (b"debug\n", b"+++ echo debug\n++ true\n")


@kernel
def test_lines_are_counted_from_one(bash):
    assert bash.run("echo $LINENO\necho $LINENO").stdout == b"1\n2\n"
    assert b"line 2" in bash.run("true\nno-such-command").stderr


@kernel
def test_descriptors_that_a_command_opens_stay(bash):
    bash.run("exec 5>five 13>thirteen; exec {own}>own")
    bash.run("echo 5 >&5; echo 13 >&13; echo o >&$own")
    assert bash.run("cat five thirteen own").stdout == b"5\n13\no\n"


@kernel
def test_long_commands(tool):
    text = "é'\"$x\\ " * 4000
    result = tool.run(f"cat <<'X' | wc -c\n{text}\nX")
    assert result.stdout.strip() == str(len(text.encode()) + 1).encode()


@kernel
def test_long_output_is_spilled(tool):
    result = tool.run("yes | head -n 150000; echo end >&2")
    assert (result.stdout_bytes, result.stdout_truncated, result.stderr) == (300_000, True, b"end\n")
    assert os.path.getsize(result.stdout_file) == 300_000
    assert result.stdout.startswith(b"y\ny\n")
    assert tool.run("echo next").stdout == b"next\n"


@kernel
def test_both_streams_at_once(tool):
    result = tool.run("for i in 1 2 3 4; do head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; done")
    assert (result.stdout_bytes, result.stderr_bytes) == (400_000, 400_000)


@kernel
def test_variables_of_one_call(tool):
    assert tool.run("echo $K; sh -c 'echo $K'", env={"K": "a 'b'"}).stdout == b"a 'b'\na 'b'\n"
    assert tool.run("echo [$K]").stdout == b"[]\n"
    with pytest.raises(RequestError, match="could not set"):
        tool.run("true", env={"not.a.name": "x"})
    assert tool.run("echo next").notes == ()


@kernel
def test_the_directory_of_a_call(tool, ws):
    (ws / "with 'quotes'").mkdir()
    result = tool.run("pwd", cwd="with 'quotes'")
    assert (result.stdout.decode(), result.cwd) == (f"{ws}/with 'quotes'\n", f"{ws}/with 'quotes'")
    assert tool.run("pwd").cwd == f"{ws}/with 'quotes'"


@kernel
def test_a_directory_that_the_box_does_not_show(bash):
    with pytest.raises(RequestError, match="can't be entered"):
        bash.run("touch ran", cwd="/run/lock")
    assert bash.run("ls").stdout == b""


@kernel
def test_a_denial(tool):
    result = tool.run("touch /usr/from-a-kept-shell")
    assert (result.exit_code, result.sandbox.denied, result.sandbox.denials[0].certainty) == (1, True, "suspected")
    assert not os.path.exists("/usr/from-a-kept-shell")
    control = tool.run("touch here; ls")
    assert (control.sandbox.denied, control.stdout) == (False, b"here\n")


@kernel
def test_another_mode_has_a_shell_of_its_own(bash):
    bash.run("x=1")
    result = bash.run("echo [$x]; touch here", mode="read-only")
    assert (result.stdout, result.sandbox.denied) == (b"[]\n", True)
    assert bash.run("echo $x").stdout == b"1\n"


@kernel
def test_without_a_sandbox(ws):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with stockade.BashTool("full-access", cwd=ws, keep=True) as tool:
            tool.run("x=1")
            result = tool.run("echo $x; echo 'Read-only file system'; exit 4")
    assert (result.stdout, result.exit_code) == (b"1\nRead-only file system\n", 4)
    assert (result.sandbox.mode, result.sandbox.enforcement, result.sandbox.denied) == (
        "full-access",
        "none",
        False,
    )


@kernel
def test_two_calls_at_once(tool):
    results = {}

    def call(number):
        results[number] = tool.run(f"echo {number}; sleep 0.02; echo {number}").stdout

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n{number}\n".encode() for number in range(6)}


# --- the end of a shell ----------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize(
    ("command", "outcome", "code", "out"),
    [
        ("echo a; exit 3", "exited", 3, b"a\n"),
        ("exec sh -c 'echo b; exit 4'", "exited", 4, b"b\n"),
        ("set -e; (exit 5); echo no", "exited", 5, b""),
        ("trap 'echo trap' EXIT; exit 6", "exited", 6, b"trap\n"),
        ("echo c; kill -9 $$", "signalled", 137, b"c\n"),
    ],
)
def test_a_command_that_ends_the_shell(tool, ws, command, outcome, code, out):
    tool.run("x=1; cd /")
    result = tool.run(command)
    assert (result.outcome, result.exit_code, result.stdout) == (outcome, code, out)
    assert (ENDED in result.notes, result.cwd, result.run.outcome) == (True, str(ws), outcome)
    after = tool.run("echo [$x]; pwd")
    assert after.stdout.decode() == f"[]\n{ws}\n"
    assert after.notes == (f"{FRESH} ({result.reason})",)
    assert tool.run("true").notes == ()


@kernel
@pytest.mark.parametrize("deaf", ["", "trap '' TERM; "])
def test_a_timeout(tool, token, deaf):
    result = tool.run(f"{deaf}echo a; sleep {token}; sleep {token}", timeout=0.3)
    assert (result.timed_out, result.outcome, result.exit_code, result.stdout) == (True, "timed_out", None, b"a\n")
    assert result.reason == "timed out after 0.3 s"
    assert ENDED in result.notes
    assert not processes_with(token)
    assert tool.run("true").notes == (f"{FRESH} (timed out after 0.3 s)",)


@kernel
def test_a_shell_that_dies_between_calls(tool):
    tool.run("( sleep 0.05; kill -9 $$ ) &")
    wait_until(living(tool).has_ended, "the shell ended")
    (note,) = tool.run("echo next").notes
    assert note.startswith(FRESH)


@kernel
@pytest.mark.parametrize(("name", "why"), [("no-such-shell", "PATH"), ("cat", "before it took a command")])
def test_what_is_no_shell(ws, name, why):
    with stockade.BashTool(cwd=ws, shell=name, keep=True) as tool:
        with pytest.raises(SandboxUnavailable, match=why):
            tool.run("touch ran")
        assert not os.listdir(ws)


@kernel
def test_what_a_shell_writes_while_it_starts(ws):
    (ws / "noise").write_text("echo noise; echo more >&2; from_noise=1\n")
    with stockade.BashTool(cwd=ws, keep=True, env={"BASH_ENV": f"{ws}/noise"}) as tool:
        result = tool.run("echo $from_noise")
        assert (result.stdout, result.stderr) == (b"1\n", b"")
        assert result.notes == ("the shell wrote 11 bytes while it started, which are left out",)
        assert tool.run("true").notes == ()


@kernel
def test_what_goes_on_between_calls_is_counted(tool):
    tool.run("( while [ ! -e go ]; do sleep 0.01; done; echo late; touch gone ) &")
    during = tool.run("echo now")
    assert during.notes == ("what earlier commands left running may have written into this output",)
    shell = living(tool)
    with open(f"{tool.cwd}/go", "w"):
        pass
    wait_until(lambda: sum(tap.between for tap in shell.taps.values()) == 5, "it was read")
    wait_until(lambda: os.path.exists(f"{tool.cwd}/gone"), "it ended")
    result = tool.run("wait; echo next")
    assert result.stdout == b"next\n"
    assert "5 bytes are left out, written between calls by what earlier ones left running" in result.notes
    assert tool.run("true").notes == ()


@kernel
def test_a_flood_between_calls_keeps_nobody_waiting(bash):
    bash.run("yes &")
    result = bash.run("kill %1; wait; echo done")
    assert result.stdout.endswith(b"done\n")
    assert bash.run("echo next").stdout == b"next\n"


@kernel
def test_cancelling(tool, token):
    async def cancelled():
        tool.run("x=1")
        task = asyncio.ensure_future(tool.arun(f"sleep {token}"))
        while not processes_with(token):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not processes_with(token)
    result = tool.run("echo [$x]")
    assert result.stdout == b"[]\n"
    assert result.notes[0].startswith(FRESH)


@kernel
def test_an_interrupt_ends_what_runs(tool, token):
    main = threading.get_ident()

    def interrupt():
        wait_until(lambda: processes_with(token), "it runs")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tool.run(f"sleep {token}")
    thread.join()
    result = tool.run("echo next")
    assert (result.stdout, result.notes[0].startswith(FRESH)) == (b"next\n", True)
    assert not processes_with(token)


@kernel
def test_close_ends_the_shell_and_what_it_left(identity, ws, token):
    tool = stockade.BashTool(policy(identity), cwd=ws, keep=True)
    tool.run(f"sleep {token} & setsid sleep {token} &")
    wait_until(lambda: len(processes_with(token)) == 2, "both were there")
    kept = tool._shell()
    tool.close()
    assert not processes_with(token)
    assert kept.ended.outcome == "stopped"
    with pytest.raises(RequestError, match="closed"):
        tool.run("true")


@kernel
def test_close_while_a_call_goes_on(ws, token):
    tool = stockade.BashTool(cwd=ws, keep=True)
    results = []
    thread = threading.Thread(target=lambda: results.append(tool.run(f"sleep {token}")))
    thread.start()
    wait_until(lambda: processes_with(token), "it runs")
    tool.close()
    thread.join(PATIENCE)
    assert (results[0].outcome, processes_with(token)) == ("stopped", [])


@kernel
def test_no_descriptor_is_left(ws):
    with stockade.BashTool(cwd=ws, keep=True) as tool:
        tool.run("true")
        tool.run("exit")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            tool.run("echo x | cat")
            tool.run("exit 1")
        assert len(os.listdir("/proc/self/fd")) == before


@kernel
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_shell_dies_with_the_process(ws, token, number):
    text = f"""
import stockade, sys
tool = stockade.BashTool(cwd={str(ws)!r}, keep=True)
tool.run("sleep {token} &")
print("ready", flush=True)
tool.run("sleep {token}")
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: len(processes_with(token)) >= 3, "both sleep")  # and the program, which names it too
        process.send_signal(number)
        process.wait(PATIENCE)
    wait_until(lambda: not processes_with(token), "nothing was left")


@kernel
def test_what_was_contacted_is_told_at_the_end(ws):
    recording = policy(network={"egress": "record"})
    with stockade.BashTool(recording, cwd=ws, keep=True) as tool:
        result = tool.run(f"{PYTHON} -c 'import socket; print(socket.gethostbyname(\"example.test\"))'")
        assert result.exit_code == 0, result.stderr
        assert "what was contacted is known when the kept shell has ended" in result.sandbox.notes
        last = tool.run("exit")
        assert [attempt.host for attempt in last.run.egress] == ["example.test"]


# --- who can say that a command is through ----------------------------------------------------------------------

IMITATES = r"""
import ctypes, json, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
shell, told = int(sys.argv[1]), b"%s 77 /imitated\0"
own, opened, taken, claimed = [], [], [], []
def write(fd, where):
    for token in (b"hello", b"0" * 16):
        try:
            os.write(fd, told % token)
            where.append("written")
        except OSError as error:
            where.append(error.errno)
for fd in range(3, 256):
    write(fd, own)
for number in os.listdir(f"/proc/{shell}/fd"):
    path = f"/proc/{shell}/fd/{number}"
    if not os.readlink(path).startswith("socket:"):
        continue
    try:
        write(os.open(path, os.O_RDWR), opened)
    except OSError as error:
        opened.append(error.errno)
    fd = libc.syscall(438, os.pidfd_open(shell), int(number), 0)  # pidfd_getfd
    if fd < 0:
        taken.append(ctypes.get_errno())
        continue
    write(fd, taken)
    end = socket.socket(fileno=fd)
    try:
        end.sendmsg([told % b"hello"], [(socket.SOL_SOCKET, 2, struct.pack("iII", shell, os.getuid(), os.getgid()))])
        claimed.append("sent")
    except OSError as error:
        claimed.append(error.errno)
print(json.dumps([own, opened, taken, claimed]))
"""


def may_trace_parents():
    """Yama, where a host has it, keeps a child from its parent's descriptors at all."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            return file.read().strip() == "0"
    except FileNotFoundError:
        return True


@kernel
def test_no_child_can_end_a_command(tool, ws):
    """One that takes the shell's own descriptor is heard, and known for what it is; and it can't claim to be the shell."""
    import errno
    import json

    (ws / "imitate.py").write_text(IMITATES)
    result = tool.run(f"{PYTHON} imitate.py $$; echo after; (exit 5)")
    said, after = result.stdout.splitlines()
    own, opened, taken, claimed = json.loads(said)
    assert set(own) == {errno.EBADF}
    assert opened == [errno.ENXIO]
    free = may_trace_parents()
    assert (taken, claimed) == ((["written", "written"], [errno.EPERM]) if free else ([errno.EPERM], []))
    assert (after, result.exit_code, result.cwd) == (b"after", 5, str(ws))
    ignored = "another process than the shell told that the command was through: it was ignored"
    assert result.notes == ((ignored,) if free else ())
    assert tool.run("echo next").stdout == b"next\n"


@kernel
def test_a_part_of_the_shell_is_not_the_shell(bash):
    """A subshell has the descriptor, since nothing was executed."""
    result = bash.run("( printf 'hello 9 /\\0%s 9 /\\0' \"$__stockade_end\" >&61 ); (exit 5)")
    assert (result.exit_code, result.stderr) == (5, b"")
    assert "it was ignored" in result.notes[0]


@kernel
@pytest.mark.parametrize("told", ["hello 0 /\\0", "%s 0 /\\0more", "\\0"])
def test_a_command_that_speaks_for_its_shell_has_lost_it(bash, told):
    """It runs in the shell: nothing can keep it from saying something, but nothing that it says comes true later."""
    result = bash.run(f"printf '{told}' \"$__stockade_end\" >&61; sleep 60")
    assert (result.outcome, result.exit_code, result.sandbox.runner_failed) == ("lost", None, False)
    assert ENDED in result.notes
    assert bash.run("echo next").stdout == b"next\n"


@kernel
def test_output_is_output(tool):
    """The words of an end, on every descriptor that a command has."""
    result = tool.run("printf '%s 9 /\\0' \"$__stockade_end\" hello | tee /dev/stderr; (exit 5)")
    assert result.exit_code == 5
    assert result.stdout == result.stderr
    assert result.stdout.endswith(b" 9 /\0")


@kernel
def test_programs_have_three_descriptors(tool):
    found = tool.run(f"{PYTHON} -I -S -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'")
    assert found.stdout == b"[0, 1, 2, 3]\n"  # the last one reads the directory


@kernel
def test_the_shell_is_told_by_name_to_be_one_program(bash):
    """What is written down as a limit: a child may take over what the next command runs in."""
    bash.run("mkdir bin; printf '#!/bin/sh\\necho replaced\\n' >bin/date; chmod +x bin/date; PATH=$PWD/bin:$PATH")
    assert bash.run("date").stdout == b"replaced\n"
    with stockade.BashTool(cwd=bash.cwd) as fresh:
        assert fresh.run("date").stdout != b"replaced\n"
