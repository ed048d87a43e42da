"""The line that --dry-run prints: it parses back to the same words, and run by hand it does the same."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest
from fakes import BWRAP, FACTS, facts, policy, request, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox import argv, replay
from stockade.sandbox.confinement import Confinement
from stockade.sandbox.mounts import TMPFS
from stockade.sandbox.plan import make_plan
from stockade.sandbox.survey import Identity

SHELLS = [path for path in map(shutil.which, ("sh", "dash", "bash")) if path]
WORDS = st.one_of(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=8),
    st.binary(max_size=6).map(lambda data: os.fsdecode(data.replace(b"\0", b"\n"))),
    st.sampled_from(
        ["", "\n", "a\n\n", "'", '"', "$(id)", "`id`", "\\", "\\n", "%s%n", "\x1b[2J", "-n", "é\n", "a b", "~", "*"]
    ),
)


def start(where=FACTS, bwrap=BWRAP, argv=("true",), env=(), **changes):
    plan = make_plan(policy(**changes), request(*argv, env=env), where, tree())
    return Confinement(plan, bwrap, b"", Identity(1000, 1000, None, real_root=False, kept_root=False))


def words_of(confinement):
    """What the pasted line should come to."""
    plan = confinement.plan
    rendered = argv.render(plan, supervised=False, seccomp=False, by_descriptor=False, staged={})
    return [confinement.bwrap.path, *rendered.options, "--", *plan.argv]


@pytest.mark.parametrize("shell", SHELLS)
@settings(deadline=None, max_examples=60)
@given(words=st.lists(WORDS, max_size=8))
def test_every_word_comes_back_from_a_shell(shell, words):
    line = "for word; do printf '%s\\0' \"$word\"; done"
    script = f"set -- {' '.join(map(replay.quote, words))}\n{line}\n"
    done = subprocess.run([shell], input=os.fsencode(script), capture_output=True, check=True)
    assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in words)
    assert done.stderr == b""


@given(st.text(max_size=20))
def test_nothing_that_a_terminal_obeys_is_printed(text):
    quoted = replay.quote(text.encode("utf-8", "replace").decode().replace("\0", ""))
    assert all(letter.isprintable() or letter == "\n" for letter in quoted)


def test_the_line_has_the_words_of_the_command_line():
    given = start(argv=("sh", "-c", "echo 'a b'"), env=(("X", "$HOME \"'"),))
    assert shlex.split(replay.line(given)) == ["env", "-i", *words_of(given)]


def test_the_credentials_are_taken_by_hand_too():
    words = shlex.split(replay.line(start(facts(credentials=(65534, 65534)))))
    assert words[:6] == ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def test_stand_ins_become_empty_directories_that_can_not_be_written():
    given = start(workspace="read-write")
    (stub,) = given.plan.stubs
    line = replay.line(given)
    assert f"--perms 0555 --tmpfs {stub}" in line
    assert f"--remount-ro {stub}" in line
    assert f"--ro-bind {stub}" not in line
    assert next(mount for mount in given.plan.mounts if mount.dest == stub).op != TMPFS


@pytest.mark.parametrize("shell", SHELLS)
def test_files_travel_as_documents_on_descriptors_that_every_shell_has(shell, tmp_path):
    """Another home is written into the accounts: that file has to reach bwrap."""
    spy = tmp_path / "spy"
    spy.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        "at = sys.argv.index('--ro-bind-data')\n"
        "print(sys.argv[at + 2], os.read(int(sys.argv[at + 1]), 99999).decode(), sep='\\n', end='')\n"
    )
    spy.chmod(0o755)
    given = start(facts(home="/home/o'ther $x"), BWRAP.replace(path=str(spy)))
    (mount,) = [each for each in given.plan.mounts if each.data]
    done = subprocess.run([shell, "-c", replay.line(given)], capture_output=True, text=True, check=True)
    assert done.stdout == "/etc/passwd\n" + mount.data.decode()


# --- for real ---------------------------------------------------------------------------------------------


@pytest.fixture
def project():
    """A workspace that any user can come to: a root caller's run drops to another one."""
    path = tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-test-")
    os.chmod(path, 0o755)
    for name in ("a", "it's", ".env", "nl\nx"):
        with open(os.path.join(path, name), "w") as file:
            file.write(name)
    yield path
    shutil.rmtree(path)


@pytest.mark.kernel
@pytest.mark.parametrize("shell", SHELLS)
def test_run_by_hand_it_shows_the_same(shell, project, tmp_path):
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LANG": "C.UTF-8",
    }
    script = 'ls -A . ~ /; cat .env; touch x 2>/dev/null || echo "read-only"; printf "%s\\n" "$ODD"; getent passwd "$(id -u)"'
    command = ["--env", "ODD=$(id) 'q' \n", "--", "sh", "-c", script]

    def stockade(*options):
        words = [sys.executable, "-m", "stockade", "run", *options, *command]
        return subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=True).stdout

    line = json.loads(stockade("--dry-run", "--json"))["replay"]
    replayed = subprocess.run([shell, "-c", line], cwd="/", env=env, capture_output=True, text=True, check=False)
    own = stockade()
    assert "it's" in own
    assert "read-only" in own
    assert (replayed.stdout, replayed.returncode) == (own, 0), replayed.stderr
    assert sorted(os.listdir(project)) == [".env", "a", "it's", "nl\nx"]


@pytest.mark.parametrize("egress", ["none", "record", "allow", "open"])
def test_by_hand_there_is_no_network_whatever_was_asked_for(egress):
    given = start(egress=egress)
    assert given.plan.leased == (egress != "none")
    assert "--unshare-net" in shlex.split(replay.line(given))
