"""Odd hosts and odd words: what a host can't give is refused or said, and bytes are never guessed at or lost."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile

import pytest
from boxes import PATIENCE, ROOT, cli, own_state  # noqa: F401

import stockade
from stockade.sandbox import bwrap, probe

pytestmark = pytest.mark.kernel

RUN = (sys.executable, "-m", "stockade", "run")


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    """The directory that is everybody's default here: empty, and open to whomever a run becomes."""
    monkeypatch.chdir(place.ws)


# --- what the kernel refuses -----------------------------------------------------------------------------------


def in_namespaces(script, *words, options=("-Urm",)):
    """A shell script in namespaces of its own: what it sets and mounts there, the host never sees."""
    command = ["/usr/bin/unshare", *options, "/bin/sh", "-c", f'{script}; exec "$@"', "sh", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE * 3, stdin=subprocess.DEVNULL, check=False
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done


MARK = ("touch", "marker")


@pytest.mark.parametrize("kind", ["user", "net", "pid", "mnt", "ipc", "uts"])
def test_a_limit_on_namespaces_is_told_by_its_name(place, kind):
    """The kernel says the same for each of them; which one it is can be found out by trying."""
    knob = f"/proc/sys/user/max_{kind}_namespaces"
    done = in_namespaces(f"echo 0 > {knob}", *RUN, "--write", place.ws, "--", *MARK)
    assert done.returncode == 125
    assert f"user.max_{kind}_namespaces = 0" in done.stderr
    assert f"sysctl user.max_{kind}_namespaces=" in done.stderr
    assert os.listdir(place.ws) == []
    # Control: the same namespaces without the limit.
    assert in_namespaces(":", *RUN, "--write", place.ws, "--", *MARK).returncode == 0
    assert os.listdir(place.ws) == ["marker"]


MASK = "for each in acpi scsi fs driver; do test -d /proc/$each && break; done; mount -t tmpfs none /proc/$each"
"""As container engines do it: below a /proc of which a part is covered, the kernel allows no fresh one."""
CONTAINER = ("-Urmpf", "--mount-proc")


def test_a_covered_proc_makes_enforcement_partial_and_is_named(place):
    document = place.path("verdict.json")
    done = in_namespaces(MASK, *RUN, f"--json={document}", "--", "ls", "/proc", options=CONTAINER)
    assert (done.returncode, done.stdout) == (0, "")  # a /proc of the box, and nothing in it
    with open(document) as file:
        verdict = json.load(file)
    assert verdict["enforcement"] == "partial"
    assert any(text.startswith("proc: ") for text in verdict["degraded"])
    assert "degraded: proc: " in done.stderr


def test_a_strict_run_is_refused_where_proc_is_covered(place):
    done = in_namespaces(MASK, *RUN, "--mode", "strict", "--write", place.ws, "--", *MARK, options=CONTAINER)
    assert done.returncode == 125
    assert "proc: disabled" in done.stderr
    assert os.listdir(place.ws) == []


@pytest.mark.user  # root has no other uid to take in such a namespace: its findings are never remembered
def test_a_host_that_changes_under_us_fails_once_and_is_then_known_anew(place):
    """The finding was good when it was made. The run that it misleads never runs, and the next one is told."""
    script = f'"$@" && {MASK} && {{ "$@"; echo "then $?"; }}'
    done = in_namespaces(script, *RUN, "-v", "--", "echo", "ran", options=CONTAINER)
    assert done.stdout.splitlines() == ["ran", "then 125", "ran"]
    assert "runner_failed" in done.stderr
    assert "degraded: proc: " in done.stderr
    assert done.returncode == 0


def test_a_proc_of_other_processes_is_no_proc(place):
    """Without a /proc of its own pid namespace a run would be watched, and ended, by other processes' numbers."""
    done = in_namespaces(":", *RUN, "--write", place.ws, "--", *MARK, options=("-Urpf",))
    assert done.returncode == 125
    assert "another pid namespace" in done.stderr
    assert os.listdir(place.ws) == []


@pytest.mark.user  # the limit does not bind real root
@pytest.mark.parametrize("most", [1, 2, 4, 6])
def test_too_many_processes_are_not_taken_for_a_ban_on_namespaces(place, most):
    """Limits of processes count in each user namespace of its own, so this disturbs nobody."""
    command = ["/usr/bin/unshare", "-Ur", "/usr/bin/prlimit", f"--nproc={most}", *RUN, "--", "true"]
    env = {**place.env, "XDG_CACHE_HOME": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 3, env=env, check=False)
    assert done.returncode == 125, done.stderr
    assert "too many processes of this user are running" in done.stderr.lower()
    for other_cause in ("internal error", "apparmor", "sysctl", "seccomp", "install"):
        assert other_cause not in done.stderr.lower()
    command[command.index(f"--nproc={most}")] = "--nproc=200"
    assert subprocess.run(command, timeout=PATIENCE * 3, env=env, check=False).returncode == 0


# --- helpers -------------------------------------------------------------------------------------------------


def test_a_missing_bubblewrap_is_told_with_how_to_get_it(place, monkeypatch):
    monkeypatch.setattr(bwrap, "TRUSTED_DIRECTORIES", (place.home,))
    monkeypatch.setattr(bwrap, "beside_interpreter", lambda: None)
    probe.forget()
    with pytest.raises(stockade.SandboxUnavailable, match="not installed") as caught:
        stockade.run(MARK, policy="workspace-write")
    assert caught.value.missing[0] == "bwrap"
    assert "install bubblewrap" in caught.value.remedy
    assert os.listdir(place.ws) == []


@pytest.mark.parametrize("path", ["{bin}:/usr/bin:/bin", "bin:/usr/bin:/bin", ":/usr/bin:/bin", "."])
def test_a_helper_of_the_workspace_is_never_used(place, path):
    """A folder of the project on PATH is a folder that foreign code writes."""
    for name in ("bwrap", "setpriv", "setsid", "nsenter", "slirp4netns", "pasta", "nft"):
        for folder in ("ws", "ws/bin"):
            place.put(f"{folder}/{name}", f"#!/bin/sh\ntouch {place.path('other', name)}\n", 0o755)
    env = {"PATH": path.format(bin=place.path("ws", "bin"))}
    done = place.call("run", "--", "/bin/echo", "ran", env=env)
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr
    assert place.call("doctor", env=env).returncode == 0
    assert os.listdir(place.path("other")) == []
    subprocess.run([place.path("ws", "bin", "bwrap")], check=True)  # control: it would have left this
    assert os.listdir(place.path("other")) == ["bwrap"]


# --- programs in a home ----------------------------------------------------------------------------------------


def interpreter(place, folder):
    return place.put(f"home/{folder}/thing", '#!/bin/sh\necho "thing runs $(basename "$1")"\n', 0o755)


@pytest.mark.parametrize("folder", [".nvm/versions/node/v22.0.0/bin", ".local/bin", ".cargo/bin", ".pyenv/shims"])
@pytest.mark.parametrize("first_line", ["#!{path}", "#!/usr/bin/env thing"], ids=["by path", "by env"])
def test_a_script_runs_by_an_interpreter_of_the_home_that_path_has(place, folder, first_line):
    path = interpreter(place, folder)
    place.put("ws/script", first_line.format(path=path) + "\n", 0o755)
    done = place.call("run", "--", "./script", env={"PATH": f"{os.path.dirname(path)}:/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (0, b"thing runs script\n"), done.stderr


def test_an_interpreter_of_the_home_that_path_has_not_is_the_cause_that_is_told(place):
    path = interpreter(place, "secret/bin")
    place.put("ws/script", f"#!{path}\n", 0o755)
    done = place.call("run", "--", "./script")
    assert done.returncode == 126
    assert f"its interpreter '{path}' exists on the host but is not visible inside" in done.stderr.decode()
    assert f"--read {os.path.dirname(path)}" in done.stderr.decode()
    shown = place.call("run", "--read", os.path.dirname(path), "--", "./script")
    assert (shown.returncode, shown.stdout) == (0, b"thing runs script\n")


@pytest.mark.parametrize(
    "home", ["/usr", "/usr/sbin", "/bin", "/dev", "/proc", "/etc", "/", "", "no/path", "/gone"]
)
def test_a_home_that_programs_need_is_not_emptied(monkeypatch, home):
    """System users have such homes."""
    monkeypatch.setenv("HOME", home)
    result = stockade.run('cd && test "$PWD" = "$HOME" && echo x > made && test -d /proc/1 && date > /dev/null')
    assert result.ok, (result.reason, result.stderr)


@pytest.mark.parametrize("folder", ["/proc", "/proc/sys/kernel", "/sys", "/sys/kernel", "/dev"])
def test_the_kernels_own_trees_are_no_workspace(folder):
    """The host's /proc would show its processes, whatever else the policy says."""
    script = "ls -d /proc/[0-9]* | wc -l; ls /proc/sys/kernel/core_pattern /dev/null"
    result = stockade.run(script, cwd=folder)
    assert (result.outcome, result.exit_code) == ("exited", 0), result.reason
    assert int(result.stdout.split()[0]) < 8
    assert any(f"{folder} is not shown" in note for note in result.notes)
    with pytest.raises(stockade.RequestError, match="as a writable workspace"):
        stockade.run(["true"], cwd=folder, policy="workspace-write")


def test_a_directory_in_shared_memory_is_one_like_others():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o777)
        for policy in ("read-only", "workspace-write"):
            result = stockade.run("pwd; ls", cwd=folder, policy=policy)
            assert result.stdout == f"{folder}\n".encode(), result.reason
        assert stockade.run("echo x > made", cwd=folder, policy="workspace-write").ok
        assert os.listdir(folder) == ["made"]


# --- words and bytes -------------------------------------------------------------------------------------------

ODD = b"\xff\xfe-\xc3\xa9-\xe2\x80"


def test_bytes_go_in_and_come_out_as_they_are(place, monkeypatch):
    odd = os.fsdecode(ODD)
    folder = place.path("ws", odd)
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    monkeypatch.setenv("LC_ODD", odd)
    script = 'printf "%s|%s|%s|%s" "$1" "$GIVEN" "$LC_ODD" "$(basename "$PWD")"'
    for argument in (odd, ODD):
        result = stockade.run(["sh", "-c", script, "sh", argument], env={"GIVEN": odd}, cwd=folder)
        assert result.stdout == b"|".join([ODD] * 4), result.reason
    document = json.loads(json.dumps(result.to_json()))
    assert base64.b64decode(document["stdout_base64"]) == result.stdout
    assert "�" in document["stdout"]
    assert document["argv"][-1] == "\\xff\\xfe-é-\\xe2\\x80"
    assert "stderr_base64" not in document


def test_the_command_line_passes_bytes_on(place):
    odd = os.fsdecode(ODD)
    done = place.call("run", "--env", f"GIVEN={odd}", "--", "sh", "-c", 'printf "%s%s" "$1" "$GIVEN"', "sh", odd)
    assert (done.returncode, done.stdout) == (0, ODD * 2)
    for env in ({}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}):
        done = place.call("run", "--json", "--", "printf", "%s", odd, env=env)
        assert done.returncode == 0, done.stderr
        assert base64.b64decode(json.loads(done.stdout.decode())["stdout_base64"]) == ODD


def test_names_of_files_that_are_no_text_are_told(place):
    place.put("ws/changed")
    os.chmod(place.path("ws", "changed"), 0o666)
    odd = os.fsdecode(ODD)
    result = stockade.run(["sh", "-c", 'echo x > "$1"; echo x > changed', "sh", odd], policy="workspace-write")
    assert {os.path.basename(each.path): each.kind for each in result.files_written} == {
        odd: "created",
        "changed": "changed",
    }
    json.dumps(result.to_json()).encode()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"command": ["echo", "a\0b"]}, "argument 1: it has a NUL"),
        ({"command": "echo a\0b"}, "the command: it has a NUL"),
        ({"command": ["echo", "\ud800"]}, "argument 1: it has a lone surrogate"),
        ({"command": ["true"], "env": {"A\0": "x"}}, "NUL"),
        ({"command": ["true"], "env": {"A": "\ud800"}}, "lone surrogate"),
        ({"command": ["true"], "env": {"A=B": "x"}}, "'A=B'"),
        ({"command": ["true"], "env": {"": "x"}}, "a name is not empty"),
        ({"command": ["true"], "cwd": "/usr\0"}, "NUL"),
        ({"command": [""]}, "empty"),
        ({"command": []}, "empty"),
        ({"command": "  "}, "empty"),
        ({"command": ["true", 3]}, "argument 1: it is int"),
        ({"command": ["true"], "stdin": 987}, "descriptor 987"),
        ({"command": ["true"], "stdin": -3}, "descriptor -3"),
        ({"command": ["true"], "stdin": object()}, "object has no descriptor"),
        ({"command": ["true"], "stdin": "\ud800"}, "stdin: it has a lone surrogate"),
        ({"command": ["true"], "write": ["ok", 3]}, "entry 1 of write: it is int"),
        ({"command": ["true"], "allow": "host"}, "one text, not a list"),
        ({"command": ["true"], "env": ["A"]}, "env: it is list"),
    ],
)
def test_a_request_that_can_not_be_meant_is_refused_by_name(call, said):
    with pytest.raises(stockade.RequestError) as caught:
        stockade.run(**call)
    assert said in caught.value.message
    assert caught.value.message.isprintable()


def test_an_argument_beyond_the_kernels_limit_is_told_by_its_number():
    longest = "x" * (131_072 - 1)
    assert stockade.run(["true", longest]).ok
    with pytest.raises(stockade.RequestError, match="argument 1 has 131072 bytes, the kernel takes 131071"):
        stockade.run(["true", longest + "x"])
    with pytest.raises(stockade.RequestError, match=r"arguments have \d+ bytes together"):
        stockade.run(["true", *["y" * 100_000] * 60])
    fed = stockade.run("sh", stdin=f": {longest}{longest}\necho fed".encode())  # as the remedy says
    assert fed.stdout == b"fed\n"


def test_more_arguments_than_bubblewrap_takes_are_told_by_their_number():
    """It takes 9000 words, its options among them."""
    result = stockade.run(["sh", "-c", "echo $#", "sh", *["a"] * 8000])
    assert result.stdout == b"8000\n", result.reason
    with pytest.raises(stockade.RequestError, match="it has 9004 arguments, bubblewrap takes"):
        stockade.run(["sh", "-c", "echo $#", "sh", *["a"] * 9000])


def test_a_deleted_directory_is_refused(place, monkeypatch):
    gone = place.path("ws", "gone")
    os.mkdir(gone)
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    with pytest.raises(stockade.RequestError, match="the current directory: no such file or directory") as caught:
        stockade.run(["true"])
    assert "deleted" in caught.value.remedy
    done = subprocess.run([*RUN, "--", "true"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode in (1, 125)  # 1: an interpreter that is told to find its module there
    assert stockade.run(["pwd"], cwd=place.ws).stdout == os.fsencode(place.ws) + b"\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(place, closed):
    """Another descriptor of ours under such a number would be the program's to read, or to write."""
    kept = place.path("other", "seen")
    script = f'readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 > "{kept}"; exit 3'
    command = f'exec "$@" {closed}'
    words = [*RUN, "--write", place.path("other"), "--", "sh", "-c", script]
    done = subprocess.run(
        ["/bin/sh", "-c", command, "sh", *words], capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 3, done.stderr
    assert b"Traceback" not in done.stderr
    with open(kept) as file:
        seen = file.read().split()
    for number, name in enumerate(("<&-", ">&-", "2>&-")):
        if name in closed.split() and number != 1:
            assert seen[number] == "/dev/null"
