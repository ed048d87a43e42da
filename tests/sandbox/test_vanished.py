"""A directory that is there when a start is planned and gone when it is made: the reason names it, and nothing ran."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from boxes import IDENTITIES, cli, make_place, own_state, policy  # noqa: F401

import stockade
from stockade.policies.errors import StockadeError
from stockade.sandbox import conduct, overlay
from stockade.sandbox.mounts import BIND_RO, Mount

pytestmark = pytest.mark.kernel

RAN = ["sh", "-c", "echo ran > ran; echo ran"]


@pytest.fixture
def shown():
    """A directory that every uid can reach, as those of the root are."""
    path = tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-vanished-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(params=IDENTITIES)
def identity(request):
    return request.param


@pytest.fixture
def work(tmp_path):
    return make_place(tmp_path)


def after_the_plan(monkeypatch, act, more=()):
    """Call ``act`` when a start was planned, with ``more`` directories of the root to be shown."""
    real = conduct.prepare

    def prepare(*given, **options):
        start = real(*given, **options)
        act()
        return start.replace(plan=start.plan.replace(mounts=(*start.plan.mounts, *more)))

    monkeypatch.setattr(conduct, "prepare", prepare)


def attempt(work, identity, **options):
    return stockade.run(RAN, cwd=str(work), policy=policy(identity, **options), timeout=30)


@pytest.mark.parametrize("gone", [True, False])
def test_a_directory_of_the_root(work, shown, identity, monkeypatch, gone):
    mount = Mount(BIND_RO, "/opt", shown)
    after_the_plan(monkeypatch, lambda: os.rmdir(shown) if gone else None, [mount])
    result = attempt(work, identity)
    if gone:
        assert (result.outcome, result.started, result.returncode) == ("runner_failed", False, 125)
        wanted = f"could not start the sandbox: {shown!r}, which was to be shown inside, has vanished"
        assert result.reason.startswith(wanted)
        assert result.denials == ()
        assert os.listdir(work) == []
    else:
        assert (result.outcome, result.exit_code) == ("exited", 0), result.reason
        assert os.listdir(work) == ["ran"]


@pytest.mark.parametrize("root", ["host", "minimal"])
def test_the_workspace(work, identity, monkeypatch, root):
    after_the_plan(monkeypatch, lambda: os.rmdir(work))
    with pytest.raises(StockadeError) as caught:
        attempt(work, identity, filesystem={"root": root})
    assert repr(str(work)) in caught.value.message
    assert "vanished" in caught.value.message
    assert not work.exists()


def test_a_directory_above_the_workspace(tmp_path, identity, monkeypatch):
    (tmp_path / "above").mkdir()
    work = make_place(tmp_path / "above")
    after_the_plan(monkeypatch, lambda: shutil.rmtree(tmp_path / "above"))
    with pytest.raises(StockadeError) as caught:
        attempt(work, identity)
    assert "vanished" in caught.value.message
    assert str(tmp_path / "above") in caught.value.message


def test_an_overlay_workspace(work, monkeypatch):
    if os.geteuid() == 0:
        os.chown(work, 65534, 65534)
    real = overlay.begin

    def begin(*given):
        found = real(*given)
        os.rmdir(work)
        return found

    monkeypatch.setattr(overlay, "begin", begin)
    try:
        result = attempt(work, "auto", filesystem={"workspace": "overlay"})
        said = (result.outcome, result.started, result.reason)
        assert said[:2] == ("runner_failed", False), said
        reason = result.reason
    except StockadeError as error:
        reason = error.message
    assert str(work) in reason
    assert "vanished" in reason


def test_the_command_line_says_it_too(tmp_path):
    """A working directory that goes before stockade is started at all."""
    work = make_place(tmp_path)
    done = cli("run", "--cwd", str(work / "gone"), "--", "true")
    assert done.returncode == 125
    assert "gone" in done.stderr
