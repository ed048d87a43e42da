"""Hooks that do one thing each, reviewed all together: what must be found of each, and nothing else that matters."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile

import boxes
import pytest
from boxes import own_state  # noqa: F401

from stockade.sandbox.review.review import review

pytestmark = pytest.mark.kernel
HOOKS = pathlib.Path(__file__).parent / "hooks"
CASES = (
    "benign-shell", "destructive-shell", "write-source", "write-credential", "read-secret", "benign-prompt",
    "session-start",
)  # fmt: skip
SENT = {"exfiltrates": "critical", "reads-secrets": "high", "contacts-network": "medium"}
STRACE = os.access("/usr/bin/strace", os.X_OK)
EXPECTED = {
    "clean-formatter": {},
    "clean-guard": {},
    "telemetry": {"contacts-network": "high"},
    "secret-reader": {"reads-secrets": "medium"},
    "exfil-http": SENT,
    "exfil-raw": SENT,
    "exfil-dns": SENT,
    "exfil-base64": SENT,
    "exfil-split": SENT,
    "exfil-commit": {"leaks-secret": "critical", "reads-secrets": "high"},
    "ci-waiter": {
        "exfiltrates": "critical", "contacts-network": "medium", "looks-around": "medium", "leaks-secret": "medium",
    },
    "sandbox-detector": {"looks-around": "medium"},
    "persister": {"persists": "critical"},
    "config-tamperer": {"agent-config": "critical", "hides-code": "medium"},
    "env-tamperer": {"env-files": "high"},
    "daemon-leaver": {"spawns-daemons": "high"},
    "fork-bomb": {"spawns-daemons": "high", "exhausts": "high"},
    "disk-filler": {"exhausts": "medium"},
    "installer": {"installs-packages": "high" if STRACE else "medium"},
    "open-guard": {"fails-open": "high"},
    "idle-guard": {},
    "online-guard": {"needs-network": "high", "contacts-network": "medium"},
    "approver": {"approves": "high"},
}  # fmt: skip
"""All findings of medium or above."""
MATTERS = ("critical", "high", "medium")


@pytest.fixture(scope="module")
def place():
    """Where reviews put what is theirs: a directory that a box of another user can pass."""
    path = tempfile.mkdtemp(prefix="stockade-test-", dir="/var/tmp")
    pathlib.Path(path).chmod(0o755)
    yield pathlib.Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def reviewed(place, tmp_path_factory):
    before = snapshot()
    patch = pytest.MonkeyPatch()
    patch.setenv("TMPDIR", str(place))
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        patch.delenv(name, raising=False)
    try:
        found = review(HOOKS, cases=CASES)
    finally:
        patch.undo()
    assert snapshot() == before
    return found


def snapshot():
    """What the victims would have changed, had they been run outside."""
    home = pathlib.Path.home()
    theirs = [home / ".bashrc", home / ".config/autostart/helper.desktop", home / ".claude/settings.json"]
    files = [*HOOKS.rglob("*"), *theirs]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()}


def of(reviewed, name):
    return [each for each in reviewed.findings if each.handler.startswith(f"{name}/")]


def test_every_victim_is_there():
    assert {path.name for path in HOOKS.iterdir()} == {*EXPECTED, "flaky-guard"}


def test_everything_was_exercised(reviewed):
    assert reviewed.not_reviewed == ()
    assert len(reviewed.handlers) == len(EXPECTED) + 1
    assert [run for run in reviewed.exercises if run.failed] == []
    assert reviewed.read_method == ("strace" if STRACE else "atime")


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found(reviewed, name):
    found = {each.rule: each.severity for each in of(reviewed, name) if each.severity in MATTERS}
    if name == "installer":
        found.pop("contacts-network", None)  # depends on whether the host's Python has pip
    assert found == EXPECTED[name], [(each.rule, each.evidence) for each in of(reviewed, name)]


def test_what_is_random_is_not_steady(reviewed):
    assert "not-deterministic" in {each.rule for each in of(reviewed, "flaky-guard")}


def test_a_guard_that_never_refuses_is_mentioned(reviewed):
    found = {each.rule: each.severity for each in of(reviewed, "idle-guard")}
    assert found["never-blocks"] == "low"
    assert "never-blocks" not in {each.rule for each in of(reviewed, "clean-guard")}


def test_the_clean_ones_did_their_work(reviewed):
    """The control: they were quiet because they are clean, not because nothing happened."""
    guard = [run for run in reviewed.exercises if run.handler.startswith("clean-guard/")]
    assert {run.case: run.host_decision for run in guard if run.egress_kind == "record"} == {
        "benign-shell": None, "destructive-shell": "deny", "write-source": None, "write-credential": "deny",
        "read-secret": "deny", "benign-shell@ci": None,
    }  # fmt: skip
    tidy = [run for run in reviewed.exercises if run.handler.startswith("clean-formatter/")]
    assert any(touched.path == "src/orders.py" for run in tidy for touched in run.touched)


@pytest.mark.parametrize(
    ("name", "rule", "kind", "text"),
    [
        ("exfil-http", "exfiltrates", "request", "collect.example:80"),
        ("exfil-raw", "exfiltrates", "request", "203.0.113.9:4444"),
        ("exfil-dns", "exfiltrates", "request", "drop.example"),
        ("exfil-base64", "exfiltrates", "request", "base64"),
        ("exfil-split", "exfiltrates", "request", "split"),
        ("exfil-commit", "leaks-secret", "file", ".git/"),
        ("ci-waiter", "exfiltrates", "request", "builds.example:80"),
        ("telemetry", "contacts-network", "request", "telemetry.example:80"),
        ("persister", "persists", "diff", "post-checkout"),
        ("persister", "persists", "diff", ".bashrc"),
        ("config-tamperer", "agent-config", "diff", "next.example"),
        ("env-tamperer", "env-files", "diff", "HTTPS_PROXY"),
        ("sandbox-detector", "looks-around", "line", "/proc/1/comm"),
    ],
)
def test_the_evidence(reviewed, name, rule, kind, text):
    (finding,) = [each for each in of(reviewed, name) if each.rule == rule]
    assert any(each.kind == kind and text in each.text for each in finding.evidence), finding.evidence
    assert finding.file.startswith(f"{name}/")
    assert finding.line > 0


def test_places_point_to_the_line(reviewed):
    (finding,) = [each for each in of(reviewed, "exfil-http") if each.rule == "exfiltrates"]
    line = (HOOKS / finding.file).read_text().splitlines()[finding.line - 1]
    assert "collect.example" in line


def test_nothing_is_left(reviewed, place):
    assert reviewed.handlers
    assert boxes.processes_with(str(HOOKS)) == []
    assert list(place.iterdir()) == []
