"""A plan as a bwrap command line (pure). Options travel by ``--args``; descriptors have fixed numbers."""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.mounts import (
    BIND,
    BIND_RO,
    DATA,
    DEV,
    MASK,
    OVERLAY,
    PROC,
    SYMLINK,
    TMPFS,
    Mount,
    frozen_last,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.sandbox.plan import Plan

ARGS_FD, STATUS_FD, BLOCK_FD, SYNC_FD, SECCOMP_FD, LEASE_FDS, FIRST_FD = 10, 11, 12, 13, 14, (15, 16), 20
MAX_FDS = 200
MAX_WORDS = 8990
"""bwrap refuses more than 9000 arguments, its own and the program's together."""


class Source(Record):
    """A descriptor that the command line speaks of: an open path, or a memfd with content."""

    number: int
    path: str = ""
    data: bytes = b""


class Line(Record):
    """bwrap's options without the program, and the descriptors they need beside status, gate and filter."""

    options: tuple[str, ...]
    sources: tuple[Source, ...]
    places: tuple[int, ...]
    """Where in the options the number of each source stands."""

    def renumbered(self, numbers: Iterable[int]) -> list[str]:
        """The options with other numbers for the sources, in their order."""
        options = list(self.options)
        for place, number in zip(self.places, numbers, strict=True):
            options[place] = str(number)
        return options


def render(plan: Plan, *, supervised: bool, seccomp: bool, by_descriptor: bool, staged: dict[str, str]) -> Line:
    """``staged`` maps sources to where the keeper put them. ``supervised`` adds gate and status descriptors.

    Raises RequestError when the whole is more than bwrap takes.
    """
    options: list[str] = [*namespaces(plan), "--clearenv"]
    for name, value in plan.env:
        options += ["--setenv", name, value]
    sources: list[Source] = []
    places: list[int] = []
    for mount in plan.mounts:
        words = mount_options(mount, sources, by_descriptor=by_descriptor, staged=staged)
        places += [len(options) + words.index(str(new.number)) for new in sources[len(places) :]]
        options += words
    for dest in frozen_last(plan.mounts):
        options += ["--remount-ro", dest]
    options += ["--chdir", plan.cwd]
    if seccomp:
        options += ["--seccomp", str(SECCOMP_FD)]
    if supervised:
        options += ["--json-status-fd", str(STATUS_FD), "--block-fd", str(BLOCK_FD), "--sync-fd", str(SYNC_FD)]
    check_words(len(options), len(plan.argv))
    return Line(tuple(options), tuple(sources), tuple(places))


def check_words(options: int, arguments: int) -> None:
    if options + arguments > MAX_WORDS:
        raise RequestError(
            f"could not run the command: it has {arguments} arguments, bubblewrap takes {MAX_WORDS - options} here",
            remedy="Pass long lists by stdin or in a file.",
        )


def namespaces(plan: Plan) -> list[str]:
    """Every namespace by name: ``--unshare-all`` only tries the user namespace. No capability, whoever calls."""
    options = [
        "--unshare-user",
        "--unshare-pid",
        *(() if plan.leased else ("--unshare-net",)),
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--hostname", "stockade",
        "--cap-drop", "ALL",
        "--die-with-parent",
        "--new-session",
    ]  # fmt: skip
    if plan.leased:  # the caller is uid 0 in the user namespace of the lease
        options += ["--uid", str(plan.user[0]), "--gid", str(plan.user[1])]
    return [*options, "--disable-userns"] if plan.no_new_userns else options


def mount_options(mount: Mount, sources: list[Source], *, by_descriptor: bool, staged: dict[str, str]) -> list[str]:
    if mount.op in (BIND, BIND_RO):
        return bind_options(mount, sources, by_descriptor=by_descriptor, staged=staged)
    if mount.op == OVERLAY:
        return overlay_options(mount, staged)
    if mount.op == TMPFS:
        perms = [] if mount.perms is None else ["--perms", f"{mount.perms:04o}"]
        size = [] if mount.size is None else ["--size", str(mount.size)]
        return [*perms, *size, "--tmpfs", mount.dest] if mount.dest != "/" else []
    if mount.op == MASK:
        return ["--ro-bind", "/dev/null", mount.dest]
    if mount.op == DATA:
        sources.append(Source(FIRST_FD + len(sources), data=mount.data))
        return ["--perms", "0444", "--ro-bind-data", str(sources[-1].number), mount.dest]
    if mount.op == SYMLINK:
        return ["--symlink", mount.source, mount.dest]
    assert mount.op in (PROC, DEV), mount.op
    return [f"--{mount.op}", mount.dest]


def bind_options(mount: Mount, sources: list[Source], *, by_descriptor: bool, staged: dict[str, str]) -> list[str]:
    source = staged.get(mount.source)
    if source is None and mount.pinned and by_descriptor and len(sources) < MAX_FDS:
        sources.append(Source(FIRST_FD + len(sources), path=mount.source))
        return [f"--{mount.op}-fd", str(sources[-1].number), mount.dest]
    return [f"--{mount.op}", source or mount.source, mount.dest]


def overlay_options(mount: Mount, staged: dict[str, str]) -> list[str]:
    """Without a layer (a plan that is only shown) the writes go nowhere."""
    lower = ["--overlay-src", staged.get(mount.source, mount.source)]
    if not mount.upper:
        return [*lower, "--tmp-overlay", mount.dest]
    layer = staged.get(mount.upper, mount.upper)
    return [*lower, "--overlay", f"{layer}/upper", f"{layer}/work", mount.dest]
