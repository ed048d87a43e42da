"""Who is asked to stop, or killed, by a number from a listing is of the run: a number can be another's meanwhile.

The listing is made to name a process of the host, as if it had got the number of one that ended just after the look.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from boxes import make_place, own_state  # noqa: F401

import stockade
from stockade.sandbox import processes, supervise

pytestmark = pytest.mark.kernel

TRAP = "trap 'echo asked; exit 9' TERM; echo up; while :; do sleep 0.02; done"


@pytest.fixture
def work(tmp_path):
    return make_place(tmp_path)


@pytest.fixture
def bystander(monkeypatch):
    """A process of the host that every listing of a run names."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    original = supervise.crowd

    def listed(top, most):
        found, threads = original(top, most)
        return [*found, process.pid], threads + 1

    monkeypatch.setattr(supervise, "crowd", listed)
    yield process
    process.kill()
    process.wait()


def asked_to_stop(work, trusted, script=TRAP):
    """A run that its time limit ends: it is asked, and killed if it does not answer."""
    options = {"mode": "off", "trusted": True} if trusted else {"policy": "workspace-write"}
    return stockade.run(["sh", "-c", script], cwd=str(work), timeout=0.8, **options)


@pytest.mark.parametrize("trusted", [False, True], ids=["confined", "direct"])
@pytest.mark.parametrize("script", [TRAP, "trap '' TERM; while :; do sleep 0.02; done"], ids=["asked", "killed"])
def test_only_the_run_is_told_to_stop(work, bystander, trusted, script):
    result = asked_to_stop(work, trusted, script)
    assert result.outcome == "timed_out"
    assert (b"asked" in result.stdout) is (script == TRAP)
    assert bystander.poll() is None


@pytest.mark.parametrize("trusted", [False, True], ids=["confined", "direct"])
def test_whose_a_process_is_decides(work, bystander, monkeypatch, trusted):
    """The control: taken for one of the run's, the same process is told to stop."""
    monkeypatch.setattr(processes, "belongs", lambda *_of: True)
    result = asked_to_stop(work, trusted)
    assert b"asked" in result.stdout
    assert bystander.wait(20) == -signal.SIGTERM


def test_without_descriptors_the_run_is_told_by_number(work, bystander, monkeypatch):
    def none_left(_pid):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(processes.os, "pidfd_open", none_left)
    result = asked_to_stop(work, trusted=False)
    assert (result.outcome, b"asked" in result.stdout) == ("timed_out", True)
    assert bystander.poll() is None


@pytest.mark.parametrize("known", [True, False])
def test_a_child_is_known_by_its_parent_where_its_namespace_is_not_to_be_seen(monkeypatch, known):
    def unseen(_pid, _name):
        raise PermissionError

    child = subprocess.Popen(["sleep", "60"])
    try:
        monkeypatch.setattr(processes, "namespace", unseen)
        tree = {os.getpid() if known else 1 << 30}
        assert processes.belongs(child.pid, tree, 1 << 30, "pid:[1]") is known
    finally:
        child.kill()
        child.wait()
    assert not processes.belongs(child.pid, {os.getpid()}, 0, "")


def test_everything_below_a_run_that_leads_sessions_of_its_own_is_told(work):
    """A program of the box in a session, and below a parent, that the first one does not know."""
    script = (
        "setsid sh -c 'trap \"echo grandchild >> told; exit\" TERM; echo up > ready; while :; do sleep 0.02; done' & "
        "until [ -e ready ]; do sleep 0.01; done; trap 'echo child >> told; wait; exit' TERM; while :; do sleep 0.02; done"
    )
    began = time.monotonic()
    result = stockade.run(["sh", "-c", script], cwd=str(work), timeout=1.0, policy="workspace-write")
    assert result.outcome == "timed_out", (result.reason, time.monotonic() - began)
    assert sorted((work / "told").read_text().split()) == ["child", "grandchild"]
