"""From a policy and what is known of the host to everything a confined start needs (pure).

What is mounted is put together by ``rootfs`` (the system), ``workspace`` (the caller's files) and
``toolchains``; this file joins them, adds environment, identity and limits, and checks the whole.
"""

from __future__ import annotations

from stockade.policies.errors import RequestError, StockadeError
from stockade.policies.record import Record
from stockade.sandbox import environment, rootfs, toolchains, workspace
from stockade.sandbox.mounts import Mount, below, host_path, ordered, writable_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.request import Request
    from stockade.sandbox.survey import Facts
    from stockade.sandbox.tree import HostTree

MAX_MOUNTS = 2500
"""bwrap takes 9000 arguments at most; a mount has three or four."""


UNBOUND = "limits.processes binds no process of root: a run with more is killed, at the next look"


class Plan(Record):
    """A confined start, complete but for open descriptors."""

    mounts: tuple[Mount, ...]
    cwd: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    stubs: tuple[str, ...]
    """Protected names that don't exist: stand-ins are made for the time of the run."""
    inner_stubs: tuple[str, ...]
    """The same below an overlay workspace: stand-ins are made in the layer that takes the writes."""
    protected: tuple[str, ...]
    """What of an overlay workspace is never applied to the host."""
    writable: tuple[str, ...]
    """Host paths that the program can write."""
    credentials: tuple[int, int] | None
    """Real uid and gid to take before bwrap, or None to keep the caller's."""
    user: tuple[int, int]
    """Uid and gid inside."""
    leased: bool
    """Whether the box joins a leased network instead of having an empty one of its own."""
    fresh_proc: bool
    proc_read_only: bool
    no_new_userns: bool
    limits: tuple[tuple[str, int], ...]
    """Names of RLIMIT_* constants without the prefix, and values."""
    seccomp: str
    notes: tuple[str, ...]
    """What a user should know and might not expect."""

    def view(self, path: str) -> str | None:
        """The host path that is seen at ``path`` inside."""
        return host_path(self.mounts, path)


def make_plan(policy: Resolved, request: Request, facts: Facts, tree: HostTree) -> Plan:
    """Raises StockadeError when the policy can't be put in force for this request."""
    system = rootfs.system_mounts(policy, facts, tree)
    place = workspace.place(policy, request, facts, tree, covered=rootfs.covered_places(facts))
    mounts = [*system, *place.mounts]
    tools = toolchains.bring(policy, facts, tree, ordered(mounts))
    mounts = [*system, *tools.mounts, *place.mounts]
    mounts += workspace.guards(policy, facts, place.replace(mounts=tuple(mounts)), tree)
    mounts += workspace.socket_masks(facts, ordered(mounts))
    mounts += rootfs.passwd_file(facts, tree)
    if policy.egress != "none":
        mounts += rootfs.name_files(tree)
    final = ordered(mounts)
    check_size(final)
    return Plan(
        mounts=final,
        cwd=place.cwd,
        argv=request.argv,
        env=environment.inside(policy, request, facts, tools.path),
        stubs=place.stubs,
        inner_stubs=place.inner_stubs,
        protected=place.protected,
        writable=writable_paths([*system, *place.mounts]),
        credentials=facts.credentials,
        user=(facts.uid, facts.gid),
        leased=policy.egress != "none",
        fresh_proc=facts.fresh_proc,
        proc_read_only=facts.kept_root,
        no_new_userns=facts.bwrap.has("--disable-userns"),
        limits=limits(policy),
        seccomp=policy.syscalls,
        notes=(*place.notes, *unlimited(policy, facts)),
    )


def limits(policy: Resolved) -> tuple[tuple[str, int], ...]:
    """Resource limits to set. ``DATA`` and not ``AS``: V8, Go and the JVM reserve far more than they use."""
    wanted = (
        ("DATA", policy.memory),
        ("NPROC", policy.processes),
        ("FSIZE", policy.file_size),
        ("NOFILE", policy.open_files),
        # Whole seconds of one process; what all use together is counted from outside, and that comes first.
        ("CPU", None if policy.cpu is None else int(policy.cpu) + 2),
        ("CORE", 0),
    )
    return tuple((name, value) for name, value in wanted if value is not None)


def unlimited(policy: Resolved, facts: Facts) -> tuple[str, ...]:
    """The kernel counts root's processes and sets them no limit, in no namespace."""
    if not facts.kept_root or policy.processes is None:
        return ()
    return (UNBOUND,)


def check_size(mounts: tuple[Mount, ...]) -> None:
    if len(mounts) > MAX_MOUNTS:
        raise StockadeError(
            f"could not build the sandbox: it needs {len(mounts)} mounts, the most is {MAX_MOUNTS}",
            remedy="Hide directories instead of many single files.",
        )


def check_visible(plan: Plan, path: str) -> None:
    """The directory to run in must be there inside: bwrap would silently start somewhere else."""
    if plan.view(path) is None and not any(below(mount.dest, path) for mount in plan.mounts):
        raise RequestError(f"could not run in {path!r}: it is not visible inside", remedy="Add it with --read.")
