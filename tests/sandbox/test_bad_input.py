"""Bad input: a clear message, exit 125, nothing run. And odd input that is none: it works."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest
from clirun import BOX, STOCKADE, open_maker

import stockade
from stockade.policies.errors import StockadeError

pytestmark = pytest.mark.kernel
TOUCH = ("--", "touch", "marker")


def refused(done, place, *said, remedy=True):
    """Nothing was run, and it is said why, and what to do."""
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 125, (out, err)
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("stockade: could not "), err
    for each in said:
        assert each in lines[0], err
    if remedy:
        assert len(lines) > 1, err
        assert lines[1].strip(), err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert all(letter.isprintable() for line in lines for letter in line), err
    assert not os.path.lexists(place.path("ws", "marker"))


def test_the_control_rightly_called_the_command_leaves_its_marker(place):
    open_maker(place)


# --- policy files -----------------------------------------------------------------------------------------

BROKEN = [
    ("not TOML", "mode = [", "could not read"),
    ("a key twice", 'mode = "auto"\nmode = "off"\n', "could not read"),
    ("an unknown key", "[filesystem]\nwrites = []\n", "filesystem.writes"),
    ("an unknown section", "[file]\nwrite = []\n", "file"),
    ("an unknown key at the top", "moed = 'off'\n", "moed"),
    ("a wrong type", "[filesystem]\nwrite = 'out'\n", "filesystem.write"),
    ("a wrong type in a list", "[filesystem]\nwrite = [5]\n", "filesystem.write"),
    ("a number for a word", "mode = 5\n", "mode"),
    ("an unknown word", 'mode = "sometimes"\n', "mode"),
    ("a section for a word", "[mode]\n", "mode"),
    ("a word for a section", "filesystem = 'read-only'\n", "filesystem"),
    ("an unusable size", "[limits]\nmemory = 'lots'\n", "limits.memory"),
    ("a contradiction", 'mode = "off"\n[network]\negress = "record"\n', "mode"),
    ("a list without a network", '[network]\negress = "none"\nallow = ["a.example"]\n', "network"),
    ("the metadata address", '[network]\negress = "allow"\nallow = ["169.254.169.254"]\n', "169.254.169.254"),
    ("the whole host", "[filesystem]\nwrite = ['/']\n", "filesystem.write"),
    ("a NUL", '[filesystem]\nwrite = ["a\\u0000b"]\n', "filesystem.write"),
    ("a preset nobody knows", 'extends = "nope"\n', "nope"),
    ("a circle", 'extends = "./p.toml"\n', "extends itself"),
]


@pytest.mark.parametrize(("content", "said"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_policy_file(place, content, said):
    path = place.put("other/p.toml", content)
    refused(place.call("run", *BOX[:1], path, *TOUCH), place, said)


def test_a_policy_file_that_is_missing(place):
    refused(place.call("run", "--policy", "./missing.toml", *TOUCH), place, "missing.toml", "no such file")


def test_a_policy_file_that_is_not_utf_8(place):
    path = place.put("other/p.toml")
    with open(path, "wb") as file:
        file.write(b'mode = "\xff"\n')
    refused(place.call("run", "--policy", path, *TOUCH), place, "p.toml")


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_a_policy_file_that_is_no_file(place, kind):
    path = place.path("other", "p.toml")
    if kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = "/dev/null"
    refused(place.call("run", "--policy", path, *TOUCH), place, "could not")


def test_a_policy_file_that_is_too_large(place):
    path = place.put("other/p.toml", "# " + "x" * 300_000)
    refused(place.call("run", "--policy", path, *TOUCH), place, "too large")


@pytest.mark.user
def test_a_policy_file_that_can_not_be_read(place):
    path = place.put("other/p.toml", 'extends = "workspace-write"\n', mode=0)
    refused(place.call("run", "--policy", path, *TOUCH), place, "Permission denied")


def test_an_empty_policy_file_is_no_replacement_for_the_default(place):
    for content in ("", "\n", "# only a remark\n"):
        path = place.put("other/p.toml", content)
        refused(place.call("run", "--policy", path, *TOUCH), place, "p.toml", "it says nothing")


@pytest.mark.parametrize("where", ["home/.config/stockade/policy.toml", "ws/.stockade.toml"])
def test_a_broken_file_that_nobody_named_is_never_skipped(place, where):
    path = place.put(where, "[limits]\ntimeot = 5\n")
    refused(place.call("run", *BOX, *TOUCH), place, path, "timeot")


def test_a_project_file_that_widens_is_refused_with_its_name(place):
    place.put("ws/.stockade.toml", "mode = 'off'\n")
    refused(place.call("run", *TOUCH), place, ".stockade.toml", "mode")
    place.put("ws/.stockade.toml", "[filesystem]\nwrite = ['/etc']\n")
    refused(place.call("run", *TOUCH), place, "filesystem.write", ".stockade.toml")


def test_a_project_file_that_is_a_link_is_refused(place):
    os.symlink(place.put("other/p.toml", "[limits]\ntimeout = '5s'\n"), place.path("ws", ".stockade.toml"))
    refused(place.call("run", *BOX, *TOUCH), place, ".stockade.toml")


@pytest.mark.parametrize(
    "env",
    [
        {"STOCKADE_MODE": "sometimes"},
        {"STOCKADE_POLICY": "nope"},
        {"STOCKADE_MODE": ""},
        {"STOCKADE_POLICY": ""},
        {"STOCKADE_POLICY": "./x.toml"},
    ],
)
def test_a_variable_that_means_nothing_is_refused(place, env):
    refused(place.call("run", *(BOX if "STOCKADE_MODE" in env else []), *TOUCH, env=env), place, *env)


# --- workspaces -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--cwd", "/"], ["--cwd", "//"], ["--cwd", "/usr/.."]])
def test_the_root_is_no_workspace(place, options):
    refused(place.call("run", *options, *TOUCH), place)
    refused(place.call("run", *TOUCH, cwd="/"), place)


@pytest.mark.parametrize(
    ("cwd", "said"), [("/nonexistent", "no such file"), ("/etc/passwd", "not a directory"), ("", "empty")]
)
def test_a_workspace_that_is_none(place, cwd, said):
    refused(place.call("run", "--cwd", cwd, *TOUCH), place, said, remedy=False)


@pytest.mark.parametrize("cwd", ["home", "/tmp", "/home", "/var/tmp"])
def test_a_place_that_the_box_replaces_is_no_writable_workspace(place, cwd):
    path = place.home if cwd == "home" else cwd
    refused(place.call("run", *BOX, "--cwd", path, *TOUCH), place, "as a writable workspace")


@pytest.mark.user
def test_a_workspace_that_is_closed_to_us(place):
    os.chmod(place.path("other"), 0o000)
    refused(place.call("run", *BOX, "--cwd", place.path("other"), *TOUCH), place, "permission denied", remedy=False)


ODD = [
    b"with space",
    b"new\nline",
    b"\xff\xfe",
    "é".encode(),
    b"--write",
    b"'quote\"",
    b"$(touch x)",
    b"*",
    b"tab\t",
    b"\x1b[2J",
    b"a" * 255,
]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("by_option", [False, True])
def test_any_name_of_a_workspace_will_do(place, name, by_option):
    path = os.path.join(os.fsencode(place.ws), name)
    os.mkdir(path)
    os.chmod(path, 0o777)
    where = {} if by_option else {"cwd": path}
    options = ["--cwd=" + os.fsdecode(path)] if by_option else []
    done = place.call("run", *BOX, *options, "--", "sh", "-c", "pwd; touch marker", **where)
    assert (done.returncode, done.stdout) == (0, path + b"\n"), done.stderr
    assert os.listdir(path) == [b"marker"]


@pytest.mark.parametrize("name", ODD)
def test_any_name_of_a_granted_place_will_do(place, name):
    path = os.path.join(os.fsencode(place.path("other")), name)
    os.mkdir(path)
    os.chmod(path, 0o777)
    words = ["--", "sh", "-c", 'touch "$0/marker"', path]
    assert place.call("run", *words).returncode != 0
    if any(letter in name for letter in b"*"):
        refused(place.call("run", "--write=" + os.fsdecode(path), *words), place, "wildcard")
        return
    done = place.call("run", "--write=" + os.fsdecode(path), *words)
    assert done.returncode == 0, done.stderr
    assert os.listdir(path) == [b"marker"]


def test_a_current_directory_that_was_deleted(place):
    gone = place.path("ws", "gone")
    os.mkdir(gone)
    line = f'rmdir "{gone}"; exec {" ".join(STOCKADE)} "$@"'
    refused(
        place.call("run", *TOUCH, command=("sh", "-c", line, "x"), cwd=gone),
        place,
        "could not use the current directory",
    )
    os.mkdir(gone)
    done = place.call("run", *BOX, "--cwd", place.ws, *TOUCH, command=("sh", "-c", line, "x"), cwd=gone)
    assert (done.returncode, os.listdir(place.ws)) == (0, ["marker"]), done.stderr


def test_a_relative_policy_file_from_a_directory_that_was_deleted(place):
    gone = place.path("ws", "gone")
    os.mkdir(gone)
    line = f'rmdir "{gone}"; exec {" ".join(STOCKADE)} "$@"'
    done = place.call(
        "run", "--policy", "./p.toml", "--cwd", place.ws, *TOUCH, command=("sh", "-c", line, "x"), cwd=gone
    )
    refused(done, place, "p.toml")


# --- the command ------------------------------------------------------------------------------------------


def test_an_empty_command(place):
    refused(place.call("run", "--", ""), place, "it is empty")
    refused(place.call("run"), place, "no command was given")


@pytest.mark.parametrize(
    "command", ["", "  ", [], [""], ["a\0b"], "a\0b", [b"a\0b"], b"x", None, 5, [5], ["\ud800"]]
)
def test_commands_of_a_call_that_can_not_be_run(place, command):
    with pytest.raises(stockade.RequestError, match=r"^could not ") as caught:
        stockade.run(command, cwd=place.ws)
    assert caught.value.message.isprintable()
    assert stockade.run(["true"], cwd=place.ws).ok


def test_a_command_of_three_megabytes(place):
    words = ["x" * 100_000] * 30
    with pytest.raises(stockade.RequestError, match="could not run the command"):
        stockade.run(["touch", *words], cwd=place.ws)
    with pytest.raises(stockade.RequestError, match="could not run the command: argument 2 has 3000000 bytes"):
        stockade.run(["sh", "-c", ":" + " " * 2_999_999], cwd=place.ws)
    assert os.listdir(place.ws) == []


def test_one_megabyte_of_arguments_arrives(place):
    """Far more than one pipe, one page or one descriptor's worth, and less than the kernel takes."""
    words = [f"{number:0125}" for number in range(8000)]
    found = stockade.run(["sh", "-c", 'echo $# "${#1}" "${8000}"', "x", *words], cwd=place.ws)
    assert (found.outcome, found.stdout) == ("exited", f"8000 125 {words[-1]}\n".encode()), found.reason


def test_more_arguments_than_bubblewrap_takes(place):
    """As many as are let through do arrive; of more it is said how many would."""
    with pytest.raises(stockade.RequestError, match="it has 20000 arguments, bubblewrap takes ") as caught:
        stockade.run(["touch", *["marker"] * 19_999], cwd=place.ws, policy="workspace-write")
    assert os.listdir(place.ws) == []
    most = int(caught.value.message.split()[-2])
    found = stockade.run(["sh", "-c", "echo $#", "x", *["y"] * (most - 4)], cwd=place.ws, policy="workspace-write")
    assert found.stdout == b"%d\n" % (most - 4)
    with pytest.raises(stockade.RequestError, match=f"it has {most + 1} arguments"):
        stockade.run(["sh", "-c", "echo $#", "x", *["y"] * (most - 3)], cwd=place.ws, policy="workspace-write")


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": 5}, {"A": "\ud800"}])
def test_variables_of_a_call_that_can_not_be_set(place, env):
    with pytest.raises(stockade.RequestError, match=r"^could not "):
        stockade.run(["touch", "marker"], cwd=place.ws, policy="workspace-write", env=env)
    assert os.listdir(place.ws) == []


@pytest.mark.parametrize(
    ("given", "said"), [("=x", "a name is not empty"), ("", "it is not set"), ("NOT_SET_ANYWHERE", "it is not set")]
)
def test_variables_of_a_command_line_that_can_not_be_set(place, given, said):
    refused(place.call("run", *BOX, "--env", given, *TOUCH), place, said, remedy=given != "=x")


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("--timeout", "0", "limits.timeout"),
        ("--timeout", "0s", "limits.timeout"),
        ("--timeout=-1", None, "limits.timeout"),
        ("--timeout", "soon", "limits.timeout"),
        ("--timeout", "nan", "limits.timeout"),
        ("--timeout", "inf", "limits.timeout"),
        ("--timeout", "10 s", "limits.timeout"),
        ("--timeout", "1e400", "limits.timeout"),
        ("--timeout=", None, "limits.timeout"),
        ("--memory", "0", "limits.memory"),
        ("--memory=-1G", None, "limits.memory"),
        ("--memory", "much", "limits.memory"),
        ("--memory=", None, "limits.memory"),
        ("--mode", "sometimes", "mode"),
        ("--mode=", None, "mode"),
        ("--workspace", "writable", "filesystem.workspace"),
        ("--workspace=", None, "filesystem.workspace"),
        ("--write=", None, "filesystem.write"),
        ("--write", "/", "filesystem.write"),
        ("--write", "../x", "filesystem.write"),
        ("--write", "*.txt", "filesystem.write"),
        ("--write", "~nobody/x", "filesystem.write"),
        ("--read=", None, "filesystem.read"),
        ("--hide=", None, "filesystem.hide"),
        ("--hide", "[", "["),
        ("--allow=", None, "network.allow"),
        ("--allow", "a..b", "network.allow"),
        ("--allow", "169.254.169.254", "169.254.169.254"),
        ("--policy=", None, "policy"),
    ],
)
def test_options_with_values_that_mean_nothing(place, option, value, key):
    words = [option] if value is None else [option, value]
    base = [] if option.startswith("--policy") else BOX
    refused(place.call("run", *base, *words, *TOUCH), place, key)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "soon", True, [5]])
def test_timeouts_of_a_call_that_mean_nothing(place, timeout):
    with pytest.raises(StockadeError, match=r"^could not "):
        stockade.run(["touch", "marker"], cwd=place.ws, policy="workspace-write", timeout=timeout)
    assert os.listdir(place.ws) == []


@pytest.mark.parametrize("name", ["write", "allow"])
def test_one_text_where_a_list_is_wanted(place, name):
    with pytest.raises(stockade.RequestError, match="it is one text, not a list"):
        stockade.run(["touch", "marker"], cwd=place.ws, **{name: "abc"})


@pytest.mark.parametrize("option", ["--write", "--read"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing", "does not exist"),
        ("/run/none", "does not exist"),
        ("s", "neither a directory nor a file"),
        ("/proc", "processes"),
    ],
)
def test_a_grant_of_what_can_not_be_granted(place, option, path, said):
    os.mkfifo(place.path("ws", "s"))
    refused(
        place.call("run", *BOX, option, path, *TOUCH),
        place,
        "could not grant",
        said,
        remedy=said == "does not exist",
    )
    assert os.listdir(place.ws) == ["s"]


@pytest.mark.parametrize("path", ["/usr", "/etc", "~"])
def test_the_system_and_the_home_are_not_granted_whole_for_writing(place, path):
    refused(place.call("run", "--write", path, *TOUCH), place, "holds the home or the system")


def test_a_grant_that_is_a_link_out_of_the_workspace_is_followed_and_said(place):
    os.symlink(place.path("other"), place.path("ws", "out"))
    done = place.call("run", "--write", "out", "--", "touch", "out/marker")
    assert done.returncode == 0
    assert f"write 'out' leads to '{place.path('other')}'" in done.stderr.decode()
    assert os.listdir(place.path("other")) == ["marker"]


def test_network_options_that_contradict(place):
    refused(place.call("run", *BOX, "--allow", "a.example", "--record-egress", *TOUCH), place, "could not combine")
    refused(place.call("run", *BOX, "--mode", "off", "--record-egress", *TOUCH), place, "could not")


# --- bwrap ------------------------------------------------------------------------------------------------

CONSOLE = (
    "import sys; from stockade.sandbox import bwrap; bwrap.TRUSTED_DIRECTORIES = (sys.argv.pop(1),);"
    "bwrap.beside_interpreter = lambda: None; from stockade.sandbox.cli.main import console; console()"
)


@pytest.fixture
def binaries():
    """A directory for another bwrap, which every user can come to and nobody else can write."""
    path = tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-test-bin-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def with_binaries(place, folder, *words, cache, **options):
    return place.call(
        *words, command=(sys.executable, "-c", CONSOLE, folder), env={"XDG_CACHE_HOME": str(cache)}, **options
    )


def program(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


REAL = next(
    (each for each in ("/usr/bin/bwrap", "/usr/local/bin/bwrap") if os.access(each, os.X_OK)), "/usr/bin/bwrap"
)
HELP = f'case "$1" in --help) exec {REAL} --help;; esac\n'


def test_the_control_for_another_bwrap(place, binaries, tmp_path):
    program(f"{binaries}/bwrap", f'#!/bin/sh\nexec /usr/bin/env -i {REAL} "$@"\n')
    done = with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path)
    assert (done.returncode, os.listdir(place.ws)) == (0, ["marker"]), done.stderr


def test_no_bwrap(place, binaries, tmp_path):
    refused(with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path), place, "bwrap", "not installed")
    done = with_binaries(place, binaries, "run", *BOX, "--json", *TOUCH, cache=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"], found["started"]) == (125, "runner_failed", False)
    assert (found["error"]["type"], found["error"]["mode"]) == ("SandboxUnavailable", "auto")
    assert "bwrap" in found["error"]["missing"]
    assert found["error"]["remedy"]


def test_no_bwrap_for_the_doctor(place, binaries, tmp_path):
    done = with_binaries(place, binaries, "doctor", cache=tmp_path)
    assert done.returncode == 1
    assert "Install bubblewrap" in done.stdout.decode()
    assert "Commands can't be confined here" in done.stdout.decode()
    found = json.loads(with_binaries(place, binaries, "doctor", "--json", cache=tmp_path).stdout)
    assert (found["bwrap"], found["confinement"]) == (None, "none")


def test_no_bwrap_is_no_matter_for_what_is_trusted(place, binaries, tmp_path):
    done = with_binaries(place, binaries, "run", "--trusted", *TOUCH, cache=tmp_path)
    assert (done.returncode, os.listdir(place.ws)) == (0, ["marker"])


def test_a_bwrap_that_is_too_old(place, binaries, tmp_path):
    program(f"{binaries}/bwrap", "#!/bin/sh\necho '  --help'\necho '  --bind SRC DEST'\n")
    refused(with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path), place, "too old")


def test_a_bwrap_that_others_can_write(place, binaries, tmp_path):
    program(f"{binaries}/bwrap", f'#!/bin/sh\nexec /usr/bin/env -i {REAL} "$@"\n')
    os.chmod(f"{binaries}/bwrap", 0o777)
    refused(with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path), place, "writable by everybody")


LIES = {
    "ends with 0 and does nothing": "exit 0\n",
    "ends with 1 and does nothing": "exit 1\n",
    "prints what a program would": "echo done\nexit 0\n",
    "says that a program ended, and never made a box": """printf '{"exit-code": 0}\\n' >&11\nexit 0\n""",
    "names our own process as the box": """printf '{"child-pid": %s}\\n{"exit-code": 0}\\n' $$ >&11\nsleep 0.3\nexit 0\n""",
    "names a process that does not exist": """printf '{"child-pid": 4194305}\\n{"exit-code": 0}\\n' >&11\nexit 0\n""",
    "writes what is no record": "printf 'exit-code: 0\\n{\\n' >&11\nexit 0\n",
    "kills itself": "kill -9 $$\n",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_bwrap_that_lies_from_the_start_is_no_sandbox(place, binaries, tmp_path, lie):
    program(f"{binaries}/bwrap", f"#!/bin/sh\n{HELP}{lie}")
    refused(with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path), place, "could not confine")


TURNED = (
    "import sys; from stockade.sandbox import bwrap, probe\n"
    "bwrap.TRUSTED_DIRECTORIES = (sys.argv.pop(1),)\n"
    "known = probe.known()\n"
    "assert probe.able(known), known\n"
    "import os; os.rename(known.bwrap.path + '.new', known.bwrap.path)\n"
    "from stockade.sandbox.cli.main import console; console()"
)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_bwrap_that_turns_into_a_liar_after_it_was_tried_is_not_believed(place, binaries, tmp_path, lie):
    """The run is a failure of the runner, never a program that ended well; and the next one asks the host anew."""
    program(f"{binaries}/bwrap", f'#!/bin/sh\nexec /usr/bin/env -i {REAL} "$@"\n')
    program(f"{binaries}/bwrap.new", f"#!/bin/sh\n{HELP}{lie}")
    command = (sys.executable, "-c", TURNED, binaries)
    done = place.call("run", *BOX, "--json", *TOUCH, command=command, env={"XDG_CACHE_HOME": str(tmp_path)})
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"], found["exit_code"], found["started"]) == (
        125,
        "runner_failed",
        None,
        False,
    ), found
    assert os.listdir(place.ws) == []
    assert not os.path.exists(tmp_path / "stockade" / "host")


SHARING = """#!{python} -IS
import os, sys
if "--args" in sys.argv:
    words = os.read(10, 1 << 20).split(b"\\0")
    words = [word for word in words if word != b"--unshare-{name}"]
    fd = os.memfd_create("args", 0)
    os.write(fd, b"\\0".join(words))
    os.lseek(fd, 0, 0)
    os.dup2(fd, 10, inheritable=True)
os.execv({real!r}, sys.argv)
"""


@pytest.mark.parametrize("name", ["net", "pid", "ipc", "uts"])
def test_a_bwrap_that_leaves_out_a_namespace_is_found_out_before_the_program_starts(
    place, binaries, tmp_path, name
):
    program(f"{binaries}/bwrap", SHARING.format(python=sys.executable, name=name, real=REAL))
    refused(with_binaries(place, binaries, "run", *BOX, *TOUCH, cache=tmp_path), place, "could not confine")


def test_nothing_is_left_in_the_places_of_these_tests(place):
    """The host looked at afterwards: what is refused leaves no stand-in behind."""
    for options in (["--timeout", "0"], ["--write", "missing"], ["--policy", "nope"]):
        place.call("run", *options, *TOUCH)
    assert os.listdir(place.ws) == []
    assert stat.S_IMODE(os.stat(place.ws).st_mode) == 0o777
    assert subprocess.run(["pgrep", "-f", place.ws], capture_output=True, check=False).stdout == b""
