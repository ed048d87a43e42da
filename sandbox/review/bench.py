"""Where handlers are tried: copies, canaries, a place for each worker, and what the host lets us see. One review's.

A context manager; everything it made is gone at its end.
"""

from __future__ import annotations

import os

from stockade.netns.pool import LeasePool
from stockade.policies.errors import SandboxUnavailable, StockadeError
from stockade.policies.record import Record
from stockade.sandbox import private, survey
from stockade.sandbox.conduct import carry_out
from stockade.sandbox.order import make_order
from stockade.sandbox.review import canary, project, wrapper
from stockade.sandbox.review.corpus import Setting
from stockade.sandbox.review.places import PAST, Place, write_all
from stockade.sandbox.review.search import Searcher
from stockade.sandbox.review.stage import Staged, in_project, moved, overlay, stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.review.discovery import Discovery

PREFIX = "stockade-review-"
TRANSCRIPT = ".claude/projects/orders-api/5f0c2c1e-6d4b-4f0e-9a51-3c7a1f2b8d90.jsonl"
SAID = (
    '{"type":"user","message":{"role":"user","content":"Add a test for total()."},"timestamp":"2026-08-03T09:11:02Z"}\n'
    '{"type":"assistant","message":{"role":"assistant","content":"I will."},"timestamp":"2026-08-03T09:11:09Z"}\n'
)
DATA = ".claude/plugins/data/reviewed"
"""Where CLAUDE_PLUGIN_DATA leads, below HOME."""


class Slot(Record):
    """One worker's directories. The same for all runs of a handler, so that equal events are equal."""

    project: Place
    home: Place


class Bench:
    """What one review has to work with."""

    def __init__(self, found: Discovery, jobs: int) -> None:
        self.found, self.jobs = found, jobs
        self.bait = canary.make_bait()
        self.searcher = Searcher((each.name, each.token) for each in self.bait.canaries)
        self.inner_home = survey.home_directory()
        self.staged = Staged(found.root)
        self.owner = unprivileged()
        self.read_method = ""
        self.problems: list[str] = []
        self.slots: list[Slot] = []
        self.pool: LeasePool | None = None
        self._top: private.Private | None = None

    def __enter__(self) -> Self:
        """Raises SandboxUnavailable where nothing can be confined or recorded."""
        parent = parent_directory()
        private.sweep(parent, PREFIX)
        self._top = private.make(parent, PREFIX)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
        top, self._top = self._top, None
        if top is not None:
            private.discard(top.path)
            os.close(top.fd)

    @property
    def top(self) -> str:
        assert self._top is not None
        return self._top.path

    @property
    def tree(self) -> str:
        """Where the copy of what is reviewed lies."""
        return f"{self.top}/tree/{os.path.basename(self.found.root) or 'root'}"

    def _make(self) -> None:
        os.chmod(self.top, 0o711)  # noqa: S103 - an unprivileged box has to pass it, and can't list it
        self.staged = stage(self.found, self.inner_home)
        self.problems += self.staged.problems
        os.mkdir(f"{self.top}/tree", 0o711)
        Place(self.tree, None).fill(self.staged.files)
        for number in range(self.jobs):
            os.mkdir(f"{self.top}/{number}", 0o711)
            own = f"{self.top}/{number}"
            self.slots.append(Slot(Place(f"{own}/{project.NAME}", self.owner), Place(f"{own}/home", self.owner)))
        if not project.has_history():
            self.problems.append("the sample project has no history: git is not installed")
        self.pool = LeasePool(size=max(1, self.jobs))
        self.read_method = self._observe()

    def _observe(self) -> str:
        """How reads are seen here: tried, not assumed. Raises SandboxUnavailable, StockadeError."""
        slot = self.slots[0]
        self.fill(slot, None)
        if os.access(wrapper.STRACE, os.X_OK) and self._traces(slot):
            return "strace"
        self._trial(slot, strace=False)
        if access_times_move(slot.home.path):
            self.problems.append("reads were observed by access times alone: strace is not there or does not work")
            return "atime"
        self.problems.append("reads were not observed: neither strace nor access times work here")
        return ""

    def _traces(self, slot: Slot) -> bool:
        return b"execve(" in self._trial(slot, strace=True).trace

    def _trial(self, slot: Slot, *, strace: bool) -> wrapper.Aftermath:
        with wrapper.Listener() as listener:
            order = make_order(wrapper.wrapped(("/bin/true",), strace=strace), policy="hook", cwd=slot.project.path)
            order = order.replace(
                policy=self.conditions(order.policy, slot, "record", 30.0), wires=listener.wires()
            )
            result = carry_out(order, capture=True, leases=self.pool)
            if result.outcome in ("runner_failed", "lost"):
                raise SandboxUnavailable(
                    f"could not review: {result.reason}", mode="auto", missing=(), remedy="Run `stockade doctor`."
                )
            return listener.aftermath()

    def conditions(self, policy: Resolved, slot: Slot, egress: str, timeout: float) -> Resolved:
        """The policy of a recorded run: it may write its copies, reach nothing, and has little of everything."""
        return policy.replace(
            mode="auto", root="host", workspace="read-write", write=(), hide=(), protect=(), home=slot.home.path,
            env_pass=("LANG", "LC_*", "TZ"), env_set=(), egress=egress, allow=(), private=False, timeout=timeout,
            cpu=None, memory=1 << 30, processes=64, file_size=24 << 20, tmp=16 << 20, output=256 << 10, open_files=512,
            syscalls="default", user="auto",
        )  # fmt: skip

    # --- one handler's place ---

    def fill(self, slot: Slot, spec: HookSpec | None) -> None:
        """Make the slot's project and home anew, with the files of a project's or user's handler in them."""
        more = overlay(self.staged, spec) if spec is not None else []
        slot.project.fill((*project.sample(), *more, *self.bait.project))
        kept = (canary.Seed(f"{DATA}/.keep", b""), canary.Seed(TRANSCRIPT, SAID.encode()))
        slot.home.fill((*self.staged.home, *kept, *self.bait.home))

    def placed(self, spec: HookSpec, slot: Slot) -> HookSpec:
        """The handler as it is in the box: its paths lead to the copies."""
        if in_project(spec):
            return moved(spec, spec.root, slot.project.path)
        if spec.provenance == "user" or not self.staged.files:
            return spec
        return moved(spec, self.found.root, self.tree)

    def setting(self, slot: Slot) -> Setting:
        home = self.inner_home
        return Setting(slot.project.path, home, f"{home}/{TRANSCRIPT}", self.bait.token(canary.EVENT))

    def plain(self, text: str, slot: Slot) -> str:
        """Text of a run, with the names that a reader knows in place of our directories' own."""
        return text.replace(slot.project.path, project.NAME).replace(self.tree, self.found.root)

    def inside(self, path: str, slot: Slot) -> str:
        """A canary's place as a path in the box; empty for one that is no file."""
        if path.startswith("~/"):
            return self.inner_home + path[1:]
        return "" if not path or path.startswith("$") else f"{slot.project.path}/{path}"


def unprivileged() -> tuple[int, int] | None:
    """Whose the copies have to be: for a real root those of the uid that its runs take; else the caller's."""
    if os.geteuid() != 0:
        return None
    mapped = survey.uid_map()
    can = any(inside <= survey.NOBODY < inside + count for inside, _outside, count in mapped)
    return (survey.NOBODY, survey.NOBODY) if can and survey.may_change_ids() else None


def parent_directory() -> str:
    """A directory for what is ours: one that the box covers, so that its other contents are not seen."""
    named = os.environ.get("TMPDIR", "")
    for place in (named, "/var/tmp", "/tmp", "/dev/shm"):  # noqa: S108
        real = os.path.realpath(place) if place else ""
        covered = any(real == top or real.startswith(f"{top}/") for top in ("/var/tmp", "/tmp", "/dev/shm"))  # noqa: S108
        if covered and os.path.isdir(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise StockadeError("could not review: no temporary directory can be written", remedy="Set TMPDIR.")


def access_times_move(folder: str) -> bool:
    """Whether reading a file there is seen in its access time."""
    path = f"{folder}/.accessed"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, b"x")
        os.utime(fd, (PAST, PAST + 1))
        os.pread(fd, 1, 0)
        return os.fstat(fd).st_atime_ns != PAST * 1_000_000_000
    finally:
        os.close(fd)
        os.unlink(path)
