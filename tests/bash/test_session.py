"""State from call to call: what is carried, what is not, and that nothing but the shell itself can say it."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from boxes import PYTHON

import stockade
from stockade.sandbox.bash import session
from stockade.sandbox.bash.session import Drain, ShellState, read_told

STATE = [b"hBc", b"set +o a\n", b"shopt -s b\n", b"/ws\n", b"/old", b"declare -x A=1\n", b"f () { :; }\n"]
WHOLE = b"\0".join([b"whole", *STATE, b"end", b""])
NOT_CARRIED = "the state of this call is not carried on"


# --- pure ------------------------------------------------------------------------------------------------------


def test_a_whole_state_is_read():
    told = read_told(WHOLE)
    assert told.health == b"whole"
    assert told.state == ShellState(b"/ws", b"/old", *STATE[:3], *STATE[5:])


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_state_that_is_cut_short_is_none(cut):
    assert read_told(WHOLE[:cut]).state is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"whole", WHOLE + b"more", WHOLE + b"\0", WHOLE + WHOLE, WHOLE.replace(b"/ws", b"ws"), b"\0" * 9],
)
def test_anything_else_is_none(data):
    assert read_told(data).state is None


@pytest.mark.parametrize(("most", "kept", "too_much"), [(10, 10, True), (100, 100, False), (99, 99, True)])
def test_the_size_of_a_state_is_bounded(most, kept, too_much):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        drain = Drain(ours, most)
        theirs.sendall(b"x" * 100)
        drain.finish()
        drain.finish()
        assert (len(drain.data), drain.too_much) == (kept, too_much)


def test_a_flood_is_drained_and_forgotten():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        drain = Drain(ours, 10)
        for _ in range(50):
            theirs.sendall(b"x" * 10_000)
            drain.handle(ours.fileno(), 1)
        theirs.shutdown(socket.SHUT_WR)
        drain.finish()
        assert (len(drain.data), drain.interest()) == (10, [])


def test_descriptors_that_are_sent_along_are_dropped():
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    with ours, theirs:
        socket.send_fds(theirs, [b"x"], [0, 1])
        Drain(ours).finish()
        assert len(os.listdir("/proc/self/fd")) == before


# --- kernel ----------------------------------------------------------------------------------------------------

kernel = pytest.mark.kernel


@pytest.fixture
def tool(place):
    os.mkdir(place.path("ws", "sub"), 0o777)
    with stockade.BashTool("workspace-write", cwd=place.ws, session=True) as made:
        yield made


def told(tool, command, **options):
    """What a command printed, with everything else as it should be."""
    result = tool.run(command, **options)
    assert (result.exit_code, result.notes) == (0, ()), (result.stderr, result.notes)
    return result.stdout.decode()


CARRIED = [
    pytest.param(["cd sub", "pwd"], "{ws}/sub\n", id="directory"),
    pytest.param(["cd sub; cd /usr", "cd - >/dev/null; pwd"], "{ws}/sub\n", id="the directory before"),
    pytest.param(["export A=1", "sh -c 'echo $A'"], "1\n", id="variable"),
    pytest.param(["export A=1", "A=2", "echo $A"], "2\n", id="changed variable"),
    pytest.param(["export A=1", "unset A", "echo ${A-none}"], "none\n", id="unset variable"),
    pytest.param(["unset LANG HOME", "true", "echo ${HOME-none}"], "none\n", id="unset HOME"),
    pytest.param(["export PATH=$PATH:/new", "echo ${PATH##*:}"], "/new\n", id="PATH"),
    pytest.param(["export -n HOME", "sh -c 'echo ${HOME-none}'"], "none\n", id="not exported any more"),
    pytest.param(["export A=$'x\\n\\t\"$(id)\\'`\\\\ é'", "printf %s \"$A\""], "x\n\t\"$(id)'`\\ é", id="any text"),
    pytest.param(["A=1", "echo ${A-none}"], "none\n", id="only exported variables"),
    pytest.param(["f() { echo f:$1; }", "f 2"], "f:2\n", id="function"),
    pytest.param(["f() { echo x; }; export -f f", "bash -c f"], "x\n", id="exported function"),
    pytest.param(["f() { echo x; }", "unset -f f", "type -t f || echo gone"], "gone\n", id="unset function"),
    pytest.param(["shopt -s extglob; e() { [[ ab == @(ab|c) ]] && echo y; }", "e"], "y\n", id="extglob function"),
    pytest.param(["h() { cat <<'X'\na'b\"\nX\n}", "h"], "a'b\"\n", id="function with a here-document"),
    pytest.param(["set -u -o pipefail", "echo $-; shopt -o pipefail"], "huBc\npipefail       \ton\n", id="set"),
    pytest.param(["shopt -s nullglob failglob", "shopt nullglob"], "nullglob       \ton\n", id="shopt"),
    pytest.param(["shopt -s nocasematch; export A=a", "A=A", "echo $A"], "A\n", id="nocasematch"),
    pytest.param(["set -o posix", "shopt -o posix"], "posix          \ton\n", id="posix"),
    pytest.param(["set -f -C -a; B=2", "echo * $B"], "* 2\n", id="noglob, noclobber, allexport"),
    pytest.param(["IFS=,; export C=a,b", "echo $C"], "a,b\n", id="IFS is not exported"),
    pytest.param(["readonly R=1; export R", "echo $R", "declare -p R"], 'declare -rx R="1"\n', id="read-only variable"),
    pytest.param(["export UID EUID SHELLOPTS BASHOPTS PPID SHLVL", "echo ok"], "ok\n", id="special variables"),
    pytest.param(["export A=1; exit 0", "echo $A"], "1\n", id="exit"),
    pytest.param(["f() { export A=1; exit 0; }; f", "echo $A"], "1\n", id="exit in a function"),
    pytest.param(["export A=1; (cd sub; export A=2; exit 0)", "echo $A; pwd"], "1\n{ws}\n", id="a subshell's is its own"),
    pytest.param(["trap 'export A=2' EXIT; export A=1", "echo $A"], "1\n", id="own EXIT trap"),
    pytest.param(["trap 'echo d' DEBUG; export A=1", "echo $A"], "1\n", id="own DEBUG trap"),
    pytest.param(["exec 3>&1 >/dev/null; export A=1", "echo $A"], "1\n", id="exec with redirections"),
    pytest.param(["exec 9>lock; flock 9; export A=1", "echo $A; cat lock"], "1\n", id="own descriptor 9"),
    pytest.param(["f() { exit 0; }; exec 9>lock; export A=1; f", "echo $A; cat lock"], "1\n", id="own 9 and exit"),
    pytest.param(["exec 10>lock; export A=1", "echo $A"], "1\n", id="own descriptor 10"),
    pytest.param(["exec >&- 2>&-; export A=1", "echo $A"], "1\n", id="closed streams"),
    pytest.param(["export TMPDIR=/tmp/t; mkdir /tmp/t; rm -rf /tmp/t; export A=1", "echo $A"], "1\n", id="no TMPDIR"),
    pytest.param(["declare() { echo bad; }; printf() { :; }; cd() { :; }; export A=1", "echo $A"], "1\n",
                 id="functions with the names of builtins"),
    pytest.param(["export BIG=$(head -c 90000 /dev/zero | tr '\\0' x)", "echo ${#BIG}"], "90000\n", id="big variable"),
    pytest.param(["f() { :; }; " + "".join(f"f{n}() {{ echo {'y' * 400}; }}; " for n in range(400)), "f399 | wc -c"],
                 "401\n", id="state larger than a command line's argument"),
]  # fmt: skip


@kernel
@pytest.mark.parametrize(("commands", "output"), CARRIED)
def test_what_is_carried(tool, place, commands, output):
    *before, last = commands
    for command in before:
        result = tool.run(command)
        assert (result.outcome, result.notes) == ("exited", ()), (result.stderr, result.notes)
    assert told(tool, last) == output.format(ws=place.ws)


FAILING = [
    pytest.param("export A=1; false", 1, id="a failing command"),
    pytest.param("set -e; export A=1; false; export A=2", 1, id="set -e"),
    pytest.param("set -eu; export A=1; echo $nothing; export A=2", 1, id="set -u"),
    pytest.param("export A=1; exit 7", 7, id="exit"),
    pytest.param("set -o posix; export A=1; readonly X=1; X=2", 127, id="an error of posix mode"),
    pytest.param("export A=1; kill -TERM $$", 143, id="a signal that bash hears"),
    pytest.param("export A=1\nif", 2, id="a syntax error"),
]


@kernel
@pytest.mark.parametrize(("command", "code"), FAILING)
def test_a_failure_carries_what_was_there(tool, command, code):
    result = tool.run(command)
    assert result.exit_code == code or code == 1
    assert result.exit_code != 0
    assert result.notes == ()
    assert told(tool, "set +eu; echo $A") == "1\n"


NOT_CAPTURED = [
    pytest.param("export A=2; exec true", id="exec"),
    pytest.param("export A=2; kill -9 $$", id="a killed shell"),
    pytest.param("export A=2; trap 'true' EXIT; exit 3", id="exit with an EXIT trap of its own"),
    pytest.param(
        'export A=2; for fd in /proc/self/fd/*; do eval "exec ${fd##*/}>&-"; done; exec 10>&-', id="closed"
    ),
    pytest.param("unset __stockade_base; export A=2", id="tampered"),
    pytest.param("builtin() { :; }; export A=2", id="no builtin"),
    pytest.param('builtin() { command builtin "$@"; }; export A=2', id="another builtin"),
    pytest.param("export A=2; ulimit -c 0; kill -ILL $$", id="a fatal signal"),
]


@kernel
@pytest.mark.parametrize("command", NOT_CAPTURED)
def test_what_was_not_captured_is_said_and_the_state_before_stands(tool, place, command):
    assert told(tool, "export A=1; cd sub") == ""
    result = tool.run(command)
    if result.notes == ():  # bash heard it
        assert told(tool, "echo $A") == "2\n"
        return
    assert result.notes[0].startswith(NOT_CARRIED)
    assert result.cwd == place.path("ws", "sub")
    assert told(tool, "echo $A; pwd") == f"1\n{place.ws}/sub\n"


@kernel
def test_exec_is_the_control(tool):
    assert tool.run("exec true").notes != ()
    assert tool.run("true").notes == ()


@kernel
def test_a_timeout_keeps_what_was_there(tool):
    assert told(tool, "export A=1") == ""
    result = tool.run("export A=2; sleep 60; sleep 60", timeout=0.5)
    assert result.timed_out
    assert told(tool, "echo $A").strip() in ("1", "2")


@kernel
def test_too_much_state_is_not_carried(tool, monkeypatch):
    monkeypatch.setattr(session, "MOST_STATE", 4000)
    monkeypatch.setattr(Drain.__init__, "__defaults__", (4000,))
    assert told(tool, "export A=1") == ""
    result = tool.run("export B=$(head -c 5000 /dev/zero | tr '\\0' x)")
    assert (result.exit_code, result.notes) == (
        0,
        (f"{NOT_CARRIED} (it has more than 4000 bytes): the one before it stands",),
    )
    assert told(tool, "echo $A ${B-none}") == "1 none\n"


@kernel
def test_the_command_has_neither_descriptor(tool):
    names = told(tool, "for each in 3 4 5 6 7 8 9; do { : >&$each; } 2>/dev/null && echo $each; done; true")
    assert names == ""
    inside = told(tool, f"{PYTHON} -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'")
    assert inside == "[0, 1, 2, 3]\n", "3 is the directory that is being listed"


FORGER = r"""
import os
forged = b"\0".join([b"whole", b"hBc", b"", b"", b"/usr\n", b"", b"declare -x A=forged\n", b"", b"end", b""])
done = []
for number in range(3, 300):
    try:
        os.write(number, forged)
        done.append(("own", number))
    except OSError:
        pass
for process in (os.getppid(), 1):
    for number in os.listdir(f"/proc/{process}/fd"):
        if int(number) < 3:
            continue
        try:
            fd = os.open(f"/proc/{process}/fd/{number}", os.O_WRONLY)
            os.write(fd, forged)
            done.append((process, number))
        except OSError:
            pass
print(done)
"""


@kernel
def test_a_child_can_not_forge_the_state(tool, place):
    place.put("ws/forger.py", FORGER)
    assert told(tool, "export A=honest") == ""
    assert told(tool, f"{PYTHON} forger.py") == "[]\n"
    assert told(tool, f"{PYTHON} forger.py | cat; {PYTHON} forger.py & wait") == "[]\n[]\n"
    assert told(tool, "echo $A; pwd") == f"honest\n{place.ws}\n"


@kernel
def test_output_is_never_taken_for_state(tool, place):
    text = WHOLE.replace(b"\0", b"\\0").replace(b"\n", b"\\n").decode()
    tool.run(f"printf '{text}'; printf '{text}' >&2")
    assert told(tool, "echo ${A-none}; pwd") == f"none\n{place.ws}\n"


@kernel
def test_traces_show_the_command_alone(tool):
    assert tool.run("set -x; :").stderr == b"++ :\n"
    result = tool.run("true\nexit 0")
    assert result.stderr == b"++ true\n++ exit 0\n"
    result = tool.run("set +x")
    assert result.stderr == b"++ set +x\n"
    assert tool.run("true").stderr == b""


@kernel
def test_nothing_is_printed_beside_the_command(tool):
    """Whatever is restored, and whatever the traps of the command are."""
    tool.run("set -euo pipefail; shopt -s nullglob; trap 'echo dbg' DEBUG; export A=1; f() { :; }")
    result = tool.run("echo one")
    assert (result.stdout, result.stderr) == (b"one\n", b"")


@kernel
def test_lines_are_counted_from_the_command(tool):
    assert tool.run("true\nnosuchthing").stderr == b"bash: line 2: nosuchthing: command not found\n"


@kernel
def test_a_directory_that_is_gone_is_said(tool, place):
    assert told(tool, "mkdir /tmp/x; cd /tmp/x; export A=1") == ""
    result = tool.run("pwd; echo $A")
    assert result.stdout.decode() == f"{place.ws}\n1\n"
    assert result.notes == (f"the directory of the session is not there (any more): /tmp/x; began in {place.ws}",)
    assert tool.run("pwd").notes == ()


@kernel
def test_what_one_call_is_given_is_of_that_call_alone(tool, place):
    assert told(tool, "export A=session; cd sub") == ""
    assert told(tool, "echo $A $B; pwd", cwd="/usr", env={"A": "call", "B": "call"}) == "call call\n/usr\n"
    assert told(tool, "echo $A ${B-none}; pwd") == f"session none\n{place.ws}/sub\n"
    assert told(tool, "cd lib; export B=kept", cwd="/usr", env={"A": "call", "B": "call"}) == ""
    assert told(tool, "echo $A $B; pwd") == "session kept\n/usr/lib\n"


@kernel
def test_the_result_says_where_the_shell_is(tool, place):
    assert tool.run("true").cwd == place.ws
    assert tool.run("cd sub").cwd == place.path("ws", "sub")
    assert tool.run("cd /usr; exit 1").cwd == "/usr"


@kernel
def test_a_call_of_a_wider_mode_has_a_shell_of_its_own(place, monkeypatch):
    """What was allowed is one command: nothing that earlier ones left may run with it, and it leaves nothing."""
    monkeypatch.setenv("HOST_SECRET", "secret-of-the-host")
    asked = []

    def approve(wish):
        asked.append(wish.cwd)
        return "allowed_once"

    os.mkdir(place.path("ws", "sub"), 0o777)
    with stockade.BashTool("workspace-write", cwd=place.ws, session=True, approve=approve) as tool:
        trap = "pwd() { echo trapped; }; export PATH=$PWD:$PATH B=1; export -f pwd; set -e; cd sub"
        assert told(tool, trap) == ""
        wide = tool.run("pwd; export A=$HOST_SECRET B=2; cd /", mode="full-access", justification="test")
        assert (wide.exit_code, wide.stdout.decode(), wide.notes) == (0, f"{place.ws}/sub\n", ())
        assert (wide.cwd, asked) == (f"{place.ws}/sub", [f"{place.ws}/sub"])
        assert told(tool, "builtin pwd; echo ${A-none} $B; pwd") == f"{place.ws}/sub\nnone 1\ntrapped\n"


@kernel
def test_a_call_of_a_narrower_mode_leaves_nothing_to_a_wider_one(place):
    with stockade.BashTool("full-access", cwd=place.ws, session=True) as tool:
        assert told(tool, "export A=1; cd /usr") == ""
        assert told(tool, "pwd; echo() { ls; }; export B=1; cd /; pwd", mode="read-only") == "/usr\n/\n"
        assert told(tool, "echo $A ${B-none}; pwd") == "1 none\n/usr\n"


@kernel
def test_each_call_is_its_own_sandbox(tool):
    there = "until grep -q sleep /proc/[0-9]*/comm; do :; done"
    assert told(tool, f"sleep 1000 & touch /tmp/left; {there}; ls /tmp") == "left\n"
    assert told(tool, "ls /tmp; grep -l sleep /proc/[0-9]*/comm || true") == ""


@kernel
def test_a_noisy_profile_changes_nothing(place):
    noise = "echo NOISE; echo NOISE >&2; export A=profile; cd /usr; set -x; exec 9>&-\n"
    for name in (".bashrc", ".bash_profile", ".profile"):
        place.put(f"home/{name}", noise)
    policy = {"HOME": place.home, "SSH_CLIENT": "x", "SSH2_CLIENT": "x"}
    with stockade.BashTool("full-access", cwd=place.ws, session=True, env=policy) as tool:
        assert told(tool, "export B=1") == ""
        assert told(tool, "echo $B ${A-none}; pwd") == f"1 none\n{place.ws}\n"


@kernel
def test_a_startup_file_that_prints_does_not_touch_the_state(place):
    """BASH_ENV is read by every bash that runs a command: what it prints is output, and no state."""
    place.put("ws/env.sh", "echo NOISE\n")
    with stockade.BashTool(
        "workspace-write", cwd=place.ws, session=True, env={"BASH_ENV": place.path("ws", "env.sh")}
    ) as tool:
        assert tool.run("export B=1").stdout == b"NOISE\n"
        assert told(tool, "echo $B") == "NOISE\n1\n"


@kernel
def test_calls_at_once_come_one_after_another(tool):
    told(tool, "export N=0")
    threads = [threading.Thread(target=tool.run, args=("export N=$((N + 1))",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told(tool, "echo $N") == "6\n"


@kernel
def test_nothing_is_left_open(tool):
    told(tool, "true")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        tool.run("export A=1; exec true")
        told(tool, "true")
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("shell", ["sh", "/bin/dash", "zsh", "fish", "rbash"])
def test_other_shells_carry_nothing(place, shell):
    with pytest.raises(stockade.RequestError, match="only bash can carry its state on"):
        stockade.BashTool(cwd=place.ws, shell=shell, session=True)


@kernel
def test_a_shell_by_its_path(place):
    with stockade.BashTool(cwd=place.ws, shell="/bin/bash", session=True) as tool:
        told(tool, "export A=1")
        assert told(tool, "echo $A $0") == "1 /bin/bash\n"
