"""Directories for trials of the host: none is left, whenever the process is killed, once another one looks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from boxes import own_state  # noqa: F401

from stockade.sandbox import private, probe

pytestmark = pytest.mark.kernel

KILLED = """
import os, signal, sys
from stockade.sandbox import overlaytrial, probe, trial
def die(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGKILL)
module = {"trial": trial, "overlaytrial": overlaytrial}[sys.argv[1]]
if sys.argv[1] == "overlaytrial":
    host = probe.basic_probe()
setattr(module, sys.argv[2], die)
if sys.argv[1] == "trial":
    probe.basic_probe()
else:
    overlaytrial.find(host)
"""


@pytest.fixture
def where(tmp_path, monkeypatch):
    """A directory for temporary files of the test's own."""
    place = tmp_path / "temporary"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


def trials(where):
    return sorted(name for name in os.listdir(where) if name.startswith(probe.TRIAL))


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("trial", "prepare"),  # made, and the keeper has not heard of it
        ("overlaytrial", "prepare"),  # one that no keeper hears of
    ],
)
def test_one_that_a_killed_process_left_goes_with_the_next_trial(where, module, function):
    done = subprocess.run([sys.executable, "-c", KILLED, module, function], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(trials(where)) == 1
    assert probe.able(probe.basic_probe())
    assert trials(where) == []


def test_one_that_is_in_use_stays(where):
    held = probe.temporary()
    assert probe.able(probe.basic_probe())
    assert trials(where) == [os.path.basename(held.path)]
    os.close(held.fd)
    again = probe.temporary()  # the control: nobody holds it now
    assert trials(where) == [os.path.basename(again.path)]
    private.discard(again.path)
    os.close(again.fd)


def test_what_is_not_surely_ours_stays(where, tmp_path):
    names = ["mine", "0123456789abcde", "0123456789abcdefg", "0123456789ABCDEF"]
    for name in names:
        (where / f"{probe.TRIAL}{name}").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").touch()
    (where / f"{probe.TRIAL}0123456789abcdef").symlink_to(tmp_path / "victim")
    before = trials(where)
    made = probe.temporary()
    private.discard(made.path)
    os.close(made.fd)
    assert trials(where) == before
    assert (tmp_path / "victim/file").exists()
