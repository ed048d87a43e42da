"""What the kernel tests share: runs under each identity, probes that report from inside, waiting for facts.

A probe is Python source that fills ``found``; what it says comes back as a dictionary. ``tried`` names the errno
of what was refused, so that a test can say which refusal it wants and show, in the same run, what is allowed.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

import stockade
from stockade.policies.model import parse_tree

ROOT = os.geteuid() == 0
IDENTITIES = ["dropped", "kept"] if ROOT else ["user"]
"""``dropped``: root's run takes an unprivileged uid; ``kept``: it has to stay root; ``user``: no root at all."""

USERS = {"dropped": "unprivileged", "kept": "caller", "user": "auto"}
REFUSED = {"EACCES", "EPERM", "EROFS", "EBUSY", "EXDEV"}
PATIENCE = 20.0
"""Seconds to wait for what should come at once."""

PRELUDE = """
import errno, json, os, socket, stat, sys
found = {}
def tried(act, *arguments, **options):
    try:
        act(*arguments, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok"
def written(path, data="evil\\n"):
    with open(path, "w") as file:
        file.write(data)
def read(path):
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")
"""


def plain_python() -> str:
    """An interpreter that every box shows: the one under /usr, not that of an environment elsewhere."""
    own = os.path.realpath(sys.executable)
    return own if own.startswith("/usr/") else str(shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"))


PYTHON = plain_python()


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of the tests' own and nobody's policies: what a developer has at home decides nothing here."""
    top = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(top / "own-cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(top / "own-config"))
    for name in ("STOCKADE_POLICY", "STOCKADE_MODE"):
        monkeypatch.delenv(name, raising=False)


def open_to_all(*paths: pathlib.Path) -> None:
    """Lets an unprivileged uid in, as far as these paths and what is below them go."""
    for top in paths:
        for path in (top, *top.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() else 0o666 | path.stat().st_mode)


def make_place(parent: pathlib.Path, name: str = "place") -> pathlib.Path:
    """A workspace that a dropped root may write too."""
    place = parent / name
    place.mkdir()
    place.chmod(0o777)
    return place


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    return make_place(tmp_path)


@pytest.fixture(params=IDENTITIES)
def identity(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def policy(identity: str = "auto", extends: str = "workspace-write", **sections: dict[str, object]):
    """A policy on top of a preset. ``identity`` is one of IDENTITIES, or ``auto``."""
    tree: dict[str, object] = {"extends": extends, **sections}
    tree["process"] = {"user": USERS.get(identity, identity)}
    return parse_tree(tree, "a test")


def probe(body: str, *arguments: object, expect: bool = True, **options: object) -> dict[str, object]:
    """Runs a probe in a box and returns what it found; ``expect``: it must have ended well."""
    result = stockade.run(probe_command(body, *arguments), **{"timeout": 60, **options})
    if expect:
        assert (result.outcome, result.exit_code) == ("exited", 0), (result.reason, result.stderr)
    return json.loads(result.stdout)


def probe_command(body: str, *arguments: object) -> list[str]:
    text = PRELUDE + textwrap.dedent(body) + "\nprint(json.dumps(found))\n"
    return [PYTHON, "-I", "-S", "-c", text, *map(str, arguments)]


def outside(body: str, *arguments: object, **options: object) -> dict[str, object]:
    """The same probe without a box: what it finds there is the control."""
    done = subprocess.run(probe_command(body, *arguments), capture_output=True, check=True, timeout=60, **options)
    return json.loads(done.stdout)


def cli(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """``stockade`` by the interpreter that runs the tests."""
    command = [sys.executable, "-m", "stockade", *map(str, words)]
    given = {"capture_output": True, "text": True, "timeout": 60, "stdin": subprocess.DEVNULL, **options}
    return subprocess.run(command, **given)


def wait_until(fact, what: str):
    """Polls until ``fact()`` is true, and returns what it returned."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = fact()
        if value:
            return value
        assert time.monotonic() < deadline, f"it never came about that {what}"
        time.sleep(0.005)


def processes_with(token: str) -> list[int]:
    """Living processes of this host whose command line has ``token`` in it, as a word of its own."""
    wanted = re.compile(rb"(?<![\w.])" + re.escape(token.encode()) + rb"(?![\w.])")
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if wanted.search(file.read()):
                        found.append(int(name))
            except OSError:
                continue
    return found


def tree_of(top: pathlib.Path) -> dict[str, object]:
    """Everything below ``top`` with its content: what must be the same after a run that was to change nothing."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file():
            found[name] = ("file", path.stat().st_mode, path.read_bytes())
        else:
            found[name] = ("other", path.stat().st_mode)
    return found
