"""What a confined start loads when everything is remembered: nothing heavy, and not many files of our own."""

from __future__ import annotations

import os
import sys

import pytest
from clirun import BOX, Place

import stockade

pytestmark = pytest.mark.kernel
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(stockade.__file__)))
SCRIPT = os.path.join(ROOT, "sandbox/cli/stockade")
"""What is installed as the command."""
HEAVY = {
    "argparse", "ast", "asyncio", "base64", "bisect", "calendar", "collections", "concurrent", "contextlib", "copy",
    "ctypes", "dataclasses", "datetime", "decimal", "dis", "email", "enum", "functools", "getpass", "gettext", "glob",
    "hashlib", "heapq", "importlib.metadata", "importlib.resources", "inspect", "io", "ipaddress", "json", "keyword",
    "linecache", "locale", "logging", "msgspec", "multiprocessing", "operator", "optparse", "pathlib", "pickle",
    "platform", "pprint", "psutil", "pyseccomp", "random", "re", "reprlib", "selectors", "shlex", "shutil", "signal",
    "socket", "ssl", "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "token", "tokenize",
    "tomllib", "traceback", "typing", "unicodedata", "urllib", "uuid", "warnings", "weakref", "zipfile", "zlib",
}  # fmt: skip
"""None of these is needed to start a box. Those that the bare interpreter has loaded anyway are not counted."""
KNOWN = set()
"""Heavy modules that are loaded all the same, each with its reason. Empty is the aim."""
MOST_OURS = 56
"""Files of our own; each costs about 0.15 ms."""
MOST_OTHERS = 16
MOST_HOOKS = 20
"""Files of our own that ``stockade hook`` may add: its dialect, and what judges it."""
EVENT = (
    b'{"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash", "tool_input": {"command": "ls"}}'
)

PROGRAM = f"""
import sys
bare = set(sys.modules)
sys.path.insert(0, {ROOT!r})
import os
top, leave, report = os.getpid(), os._exit, int(sys.argv.pop(1))
def show(code):
    if os.getpid() == top:
        os.write(report, "\\n".join([str(code), *(set(sys.modules) - bare)]).encode())
    leave(code)
os._exit = show
with open({SCRIPT!r}) as file:
    exec(file.read())
"""


def loaded(place: Place, *words: str, **options: bytes):
    """Exit code, and what was loaded beyond the bare interpreter when the console script ended."""
    read, write = os.pipe()
    command = (sys.executable, "-I", "-S", "-c", PROGRAM, str(write))
    try:
        done = place.call(*words, command=command, pass_fds=(write,), **options)
    finally:
        os.close(write)
    with open(read) as file:
        code, *names = file.read().split("\n")
    assert int(code) == done.returncode, done.stderr
    return done, set(names)


def warm(place: Place, *words: str, **options: bytes) -> None:
    """With site, since what is worked out the first time needs packages; twice, so that it is settled."""
    for _ in range(2):
        assert place.call(*words, **options).returncode == 0


RUN = ("run", "--", "true")
HOOK = ("hook", "--", "true")


def test_the_command_that_is_installed_is_that_script():
    """Not a wrapper of an installer's making, which may import more than all of ours."""
    installed = os.path.join(os.path.dirname(sys.executable), "stockade")
    with open(installed) as ours, open(SCRIPT) as source:
        assert ours.read().partition("\n")[2] == source.read().partition("\n")[2]
    assert os.access(installed, os.X_OK)


def test_the_check_sees_a_heavy_module(place):
    _done, found = loaded(place, "doctor", "--json")
    assert {"json", "re", "stockade.sandbox.cli.doctor"} <= found


@pytest.mark.parametrize("words", [RUN, ("run", *BOX, "--", "true")])
def test_a_remembered_start_loads_nothing_heavy(place, words):
    warm(place, *words)
    done, found = loaded(place, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    heavy = {name for name in found if name.split(".")[0] in HEAVY or name in HEAVY}
    assert sorted(heavy - KNOWN) == []
    assert sorted(KNOWN - heavy) == [], "no longer loaded: take it out of KNOWN"


def test_nor_many_modules(place):
    warm(place, *RUN)
    _done, found = loaded(place, *RUN)
    # A run that lasts is looked at from outside; on a busy machine this one may.
    ours = {name for name in found if name.split(".")[0] == "stockade"} - {"stockade.sandbox.limitwatch"}
    assert "stockade.sandbox.supervise" in ours
    assert len(ours) <= MOST_OURS, sorted(ours)
    others = {name for name in found if name.split(".")[0] != "stockade"}
    assert len(others) <= MOST_OTHERS, sorted(others)


@pytest.mark.parametrize(
    "name",
    ["stockade.policies.model", "stockade.policies.resolve", "stockade.sandbox.trial", "stockade.sandbox.terminal"],
)
def test_parts_that_a_remembered_start_does_without(place, name):
    warm(place, *RUN)
    assert name not in loaded(place, *RUN)[1]


def test_a_hook_adds_little(place):
    warm(place, *RUN)
    warm(place, *HOOK, input=EVENT)
    run, hook = loaded(place, *RUN)[1], loaded(place, *HOOK, input=EVENT)[1]
    assert {name for name in hook if name.split(".")[0] in HEAVY or name in HEAVY} == set()
    added = {name for name in hook - run if name.split(".")[0] == "stockade"}
    assert "stockade.sandbox.hooks.judge" in added
    assert len(added) <= MOST_HOOKS, sorted(added)
