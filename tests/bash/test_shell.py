"""``stockade shell``: a person at a real terminal, the shell inside, and the terminal outside."""

from __future__ import annotations

import os
import signal
import sys
import termios

import pytest
from boxes import PATIENCE, own_state, processes_with, wait_until  # noqa: F401
from clirun import Place
from consoles import consoles

from stockade.policies.resolve import resolve
from stockade.sandbox.cli import shell

SHELL = (sys.executable, "-m", "stockade", "shell")
AT_WORK = ("--policy", "workspace-write")
KERNEL = pytest.mark.kernel


@pytest.fixture
def place(tmp_path_factory):
    made = Place(str(tmp_path_factory.getbasetemp() / "own-cache"))
    yield made
    made.remove()


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    monkeypatch.chdir(place.ws)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def console():
    yield from consoles()


def text_of(place, name):
    with open(place.path("ws", name)) as file:
        return file.read()


def ready(session, times=1):
    """Wait for the prompt."""
    session.expect(b"stockade ", times)


def press(session, key, fact):
    """Press a key at the prompt until it shows; bash misses one that comes in the moment in which it shows a prompt."""
    wait_until(lambda: (session.type(key), session.look(300), fact())[2], f"{key} shows")


def leave(session):
    """Ctrl-D; returns the exit code."""
    press(session, b"\x04", lambda: session.process.poll() is not None)
    return session.end()


# --- the prompt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "enforcement", "expected"),
    [
        (None, {}, "full", "read-only"),
        ("workspace-write", {}, "full", "workspace-write"),
        ("workspace-write", {}, "partial", "workspace-write partial"),
        ("read-only", {"filesystem.workspace": "overlay"}, "full", "read-only overlay"),
        ("read-only", {"filesystem.workspace": "read-only"}, "full", "read-only"),
        ("workspace-write", {"network.egress": "record"}, "full", "workspace-write net-record"),
        (
            "workspace-write",
            {"filesystem.workspace": "none", "network.egress": "open"},
            "partial",
            "workspace-write none net-open partial",
        ),
        ("full-access", {}, "none", "full-access UNCONFINED"),
    ],
)
def test_the_label_says_what_holds(name, options, enforcement, expected):
    policy = resolve(base=name, workspace=os.getcwd(), options=options, environ={}).resolved
    assert shell.label(policy, enforcement) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/srv/rules/mine.toml", "mine"),
        ("$(touch x)`id`'\\w\x1b[2J%n.toml", "__touch_x__id___w__2J_n"),
        ("héé", "h__"),
    ],
)
def test_a_files_name_means_nothing_to_a_shell(name, expected):
    policy = resolve(base="read-only", workspace=os.getcwd(), environ={}).resolved.replace(name=name)
    assert shell.label(policy, "full") == expected


@pytest.mark.parametrize("program", ["bash", "/usr/bin/bash", "sh", "dash", "zsh", "fish", "/opt/own/shell"])
@pytest.mark.parametrize("on", [True, False])
def test_every_shell_gets_the_label(program, on):
    words, env = shell.prompt(program, "read-only", on)
    said = " ".join([*words, *env.values()])
    assert "read-only" in said
    assert ("\\e[33m" in said) == (on and os.path.basename(program) == "bash")


def test_the_first_shell_that_is_there(tmp_path):
    assert shell.first_shell(str(tmp_path)) == "sh"
    (tmp_path / "bash").touch(0o755)
    assert shell.first_shell(f"/nowhere:{tmp_path}") == "bash"


# --- at the terminal --------------------------------------------------------------------------------------


@KERNEL
def test_a_session(console, place):
    """The policy in the prompt and in force, the directory followed, the last code the exit code, the terminal as before."""
    session = console(*SHELL, *AT_WORK)
    session.expect(f"stockade workspace-write {place.ws} ".encode())
    session.type(b"echo kept > made; touch /usr/made || echo NOT-THERE\n")
    session.expect(b"NOT-THERE", 2)
    session.type(b"cd /etc\n")
    session.expect(b"stockade workspace-write /etc ")
    session.type(b"exit 7\n")
    assert session.end() == 7
    assert b"no job control" not in session.seen
    assert termios.tcgetattr(session.fd) == session.modes
    assert text_of(place, "made") == "kept\n"
    assert not os.path.exists("/usr/made")


@KERNEL
def test_the_default_changes_nothing(console, place):
    session = console(*SHELL)
    session.expect(b"stockade read-only ")
    session.type(b"touch made || echo NOT-THERE\n")
    session.expect(b"NOT-THERE", 2)
    session.type(b"exit\n")
    assert session.end() == 0
    assert os.listdir(place.ws) == []


@KERNEL
@pytest.mark.parametrize("program", ["sh", "/bin/bash"])
def test_another_shell(console, program):
    session = console(*SHELL, "--shell", program)
    session.expect(b"stockade read-only ")
    session.type(b"echo it is $0\n")
    session.expect(b"it is " + program.encode())
    ready(session, 2)
    assert leave(session) == 0


@KERNEL
def test_in_the_home_the_prompt_is_short(console, place, monkeypatch):
    monkeypatch.setenv("HOME", place.home)
    os.makedirs(place.path("home", "proj"), mode=0o755)
    session = console(*SHELL, "--cwd", place.path("home", "proj"))
    session.expect(b"stockade read-only ~/proj ")
    session.type(b"exit\n")
    assert session.end() == 0


@KERNEL
def test_keys_reach_the_job_in_front(console):
    """Ctrl-C interrupts it and not the shell; Ctrl-Z stops it, fg goes on with it, Ctrl-D ends the shell."""
    session = console(*SHELL)
    ready(session)
    session.type(b"sleep 317; echo after $?\n")
    session.expect(b"sleep 317")
    wait_until(lambda: processes_with("317"), "the command runs")
    session.type(b"\x03")
    ready(session, 2)
    session.type(b"echo AT-WORK; cat\n")
    session.expect(b"AT-WORK", 2)  # what is typed before that, readline takes and drops, in any terminal
    session.type(b"hello\n")
    session.expect(b"hello", 2)
    session.type(b"\x1a")
    session.expect(b"Stopped")
    ready(session, 3)
    session.type(b"echo BACK; fg\n")
    session.expect(b"BACK", 2)
    session.type(b"again\n")
    session.expect(b"again", 2)
    session.type(b"\x04")
    ready(session, 4)
    assert leave(session) == 0
    assert b"stockade: " not in session.seen


@KERNEL
@pytest.mark.parametrize(("words", "said"), [((), False), (("-v",), True)])
def test_a_shell_that_ends_after_an_interrupt_was_not_killed(console, words, said):
    session = console(*SHELL, *words)
    ready(session)
    press(session, b"\x03", lambda: session.seen.count(b"stockade ") >= 2)
    assert leave(session) == 130
    assert (b"stockade: signalled" in session.seen) is said


@KERNEL
def test_the_window_is_followed(console):
    session = console(*SHELL, size=(33, 111))
    ready(session)
    session.type(b"stty size\n")
    session.expect(b"33 111")
    session.resize(44, 99)
    session.type(b"stty size; echo $LINES,$COLUMNS\n")
    session.expect(b"44 99")
    session.expect(b"44,99")
    session.type(b"exit\n")
    assert session.end() == 0


@KERNEL
@pytest.mark.parametrize(
    ("given", "coloured"), [({"TERM": "xterm-256color"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_colours_are_those_of_the_terminal(console, given, coloured):
    command = ["/usr/bin/env", *(f"{name}={value}" for name, value in given.items()), *SHELL]
    session = console(*command)
    session.expect(b"stockade ")
    session.type(b"echo it:$TERM:$NO_COLOR; ls -d --color=auto /usr\n")
    session.expect(f"it:{given['TERM']}:{given.get('NO_COLOR', '')}".encode())
    session.expect(b"/usr", 2)
    session.type(b"exit\n")
    assert session.end() == 0
    assert (b"\x1b[33mread-only" in session.seen) == coloured
    assert b"\x1b[01;34m/usr" in session.seen  # what the shell starts sees a terminal with colours too


@KERNEL
def test_only_the_variables_that_were_given(console, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("CHOSEN", "this one")
    session = console(*SHELL, "--env", "CHOSEN", "--env", "PS1=mine: ", "--env", "PROMPT_COMMAND=PS1='mine: '")
    session.expect(b"mine: ")
    session.type(b"echo [$SECRET_TOKEN] [$CHOSEN]\n")
    session.expect(b"[] [this one]")
    session.type(b"exit\n")
    assert session.end() == 0
    assert b"hunter2" not in session.seen


@KERNEL
def test_the_outer_terminal_is_out_of_reach(console):
    """No process of the shell has it open, it is not among the devices, and pushed keys stay inside."""
    session = console(*SHELL)
    ready(session)
    session.type(b"ls -l /proc/self/fd/ /proc/$$/fd/ | grep -c ptmx; ls /dev/pts; tty\n")
    session.type(b"exit\n")
    assert session.end() == 0
    assert os.ttyname(session.fd).encode() not in session.seen
    assert session.waiting() == 0


@KERNEL
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 129), (signal.SIGHUP, 129)])
def test_asked_to_end_it_ends(console, number, code):
    """An interactive shell takes no SIGTERM, so that it gets what it gets when its terminal is gone."""
    token = f"asked-{os.urandom(6).hex()}"
    session = console(*SHELL)
    ready(session)
    session.type(f"sh -c 'sleep 300; :' {token}\n".encode())
    wait_until(lambda: processes_with(token), "a job runs")
    session.process.send_signal(number)
    assert session.end() == code
    assert not processes_with(token)
    assert termios.tcgetattr(session.fd) == session.modes


@KERNEL
def test_nothing_outlives_a_terminal_that_is_closed(console):
    token = f"closed-{os.urandom(6).hex()}"
    session = console(*SHELL)
    ready(session)
    session.type(f"(trap '' HUP; exec sh -c 'sleep 300; :' {token}) & sh -c 'sleep 300; :' {token}\n".encode())
    wait_until(lambda: len(processes_with(token)) >= 2, "both jobs run")
    os.close(session.person)
    session.process.wait(PATIENCE)
    wait_until(lambda: not processes_with(token), "the jobs of a closed terminal are gone")
    session.person = os.open("/dev/null", os.O_RDWR)


@KERNEL
def test_nothing_outlives_the_shell_itself(console):
    token = f"left-{os.urandom(6).hex()}"
    session = console(*SHELL)
    ready(session)
    session.type(f"setsid sh -c 'sleep 300; :' {token} & \n".encode())
    wait_until(lambda: processes_with(token), "the job runs")
    session.type(b"exit 3\n")
    assert session.end() == 3
    assert not processes_with(token)


@KERNEL
def test_a_time_limit_holds_for_a_shell_too(console):
    session = console(*SHELL, "--timeout", "1s")
    ready(session)
    assert session.end() == 124
    assert b"stockade: timed_out" in session.seen
    assert termios.tcgetattr(session.fd) == session.modes


@KERNEL
@pytest.mark.parametrize(("answer", "kept"), [(b"y\n", True), (b"n\n", False)])
def test_what_an_overlay_captured_is_asked_about(console, place, answer, kept):
    session = console(*SHELL, "--workspace", "overlay")
    session.expect(b"stockade read-only overlay ")
    session.type(b"echo new > made\n")
    session.type(b"exit\n")
    session.expect(b"keep these changes")
    assert not os.path.exists(place.path("ws", "made"))
    session.type(answer)
    assert session.end() == 0
    assert os.path.exists(place.path("ws", "made")) is kept


# --- without one ------------------------------------------------------------------------------------------


@KERNEL
def test_a_command_needs_no_terminal(place):
    done = place.call("shell", "-c", "echo $PROMPT_COMMAND $0; touch made; exit 5")
    assert (done.returncode, done.stdout) == (5, b"bash\n")
    assert b"Read-only file system" in done.stderr
    done = place.call("shell", *AT_WORK, "--shell", "sh", "-c", "cat > made", input=b"typed")
    assert done.returncode == 0, done.stderr
    assert text_of(place, "made") == "typed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "could not open a shell: standard input is no terminal\nRun one command with -c COMMAND"),
        (["-c"], "its value is missing"),
        (["-c", "true", "more"], "could not use the argument 'more'"),
        (["--shell", "", "-c", "true"], "could not run the command: it is empty"),
        (["--policy", "no-such", "-c", "true"], "no-such"),
        (["--keep", "yes", "-c", "true"], "could not use --keep"),
        (["--trusted"], "there is no such option"),
    ],
)
def test_what_can_not_be_used(place, words, said):
    done = place.call("shell", *words)
    assert (done.returncode, done.stdout) == (125, b""), done.stderr
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@KERNEL
@pytest.mark.parametrize(("program", "code"), [("no-such-shell", 127), ("/etc/passwd", 126)])
def test_a_shell_that_can_not_be_started(console, place, program, code):
    done = place.call("shell", "--shell", program, "-c", "true")
    assert done.returncode == code
    assert b"stockade: not_executed" in done.stderr
    session = console(*SHELL, "--shell", program)
    assert session.end() == code
    assert b"stockade: not_executed" in session.seen


@KERNEL
def test_output_that_is_no_terminal_is_refused(console, place):
    session = console("/bin/sh", "-c", '"$@" > out', "sh", *SHELL)
    assert session.end() == 125
    assert b"standard output is no terminal" in session.seen
    assert text_of(place, "out") == ""


def test_it_is_listed_and_explained(place):
    assert b"\n  shell " in place.call("--help").stdout
    done = place.call("shell", "--help")
    assert done.returncode == 0
    assert b"--shell PROGRAM" in done.stdout


NO_BWRAP = (
    "import sys; from stockade.sandbox import bwrap\n"
    "bwrap.TRUSTED_DIRECTORIES, bwrap.beside_interpreter = (), lambda: None\n"
    "from stockade.sandbox.cli.main import console; console()"
)


@KERNEL
def test_a_host_that_can_not_confine_gives_no_shell(console, place):
    env = {"XDG_CACHE_HOME": place.path("cache")}
    done = place.call("shell", "-c", "echo RAN", command=(sys.executable, "-c", NO_BWRAP), env=env)
    control = place.call("shell", "-c", "echo RAN")
    assert (done.returncode, done.stdout) == (125, b""), done.stderr
    assert b"could not confine" in done.stderr
    assert (control.returncode, control.stdout) == (0, b"RAN\n")
    session = console(
        "/usr/bin/env", f"XDG_CACHE_HOME={place.path('cache')}", sys.executable, "-c", NO_BWRAP, "shell"
    )
    assert session.end() == 125
    assert b"could not confine" in session.seen
    assert b"stockade read-only" not in session.seen
    assert termios.tcgetattr(session.fd) == session.modes


@KERNEL
def test_full_access_is_said(console):
    session = console(*SHELL, "--policy", "full-access")
    session.expect(b"stockade full-access UNCONFINED ")
    session.type(b"exit 4\n")
    assert session.end() == 4
    assert b"stockade: warning: " in session.seen
