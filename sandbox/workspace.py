"""The caller's files in the view (pure): the workspace, extra grants, what is hidden and what stays read-only."""

from __future__ import annotations

from stockade.policies.errors import PolicyError, RequestError
from stockade.policies.record import Record
from stockade.sandbox.mounts import BIND, BIND_RO, MASK, OVERLAY, Mount, below, covering, host_path
from stockade.sandbox.rootfs import cover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.request import Request
    from stockade.sandbox.survey import Facts
    from stockade.sandbox.tree import HostTree


class Place(Record):
    """Where the program works: its mounts, the directory to start in, and the stand-ins that are needed."""

    mounts: tuple[Mount, ...]
    cwd: str
    stubs: tuple[str, ...]
    notes: tuple[str, ...]
    guarded: tuple[Mount, ...]
    inner_stubs: tuple[str, ...] = ()
    """Stand-ins that are made in the layer of an overlay workspace, not on the host."""
    protected: tuple[str, ...] = ()
    """Every protected name in an overlay workspace."""


class Guard(Record):
    """What keeps one protected name from being changed."""

    mounts: tuple[Mount, ...] = ()
    stub: str = ""
    inner: bool = False
    """Whether the stand-in belongs into the layer of an overlay workspace."""


def place(policy: Resolved, request: Request, facts: Facts, tree: HostTree, *, covered: Sequence[str]) -> Place:
    """Raises PolicyError or RequestError for a workspace or a grant that can't be given."""
    notes: list[str] = []
    mounts = workspace_mount(policy, request.cwd, covered, notes)
    cwd = request.start or (request.cwd if mounts else facts.home)
    origin = dict(policy.origin)
    for op, entries, key in ((BIND_RO, policy.read, "filesystem.read"), (BIND, policy.write, "filesystem.write")):
        for path in entries:
            # Looked up once: a link put there between two looks would pass the check.
            real = tree.real(facts.expand(path))
            check_link(path, real, origin.get(key, ""), facts)
            mounts.append(grant(path, real, op, facts, tree, notes))
    if policy.home != "empty":
        # Shown as HOME: the same conditions as for a writable place.
        real = tree.real(facts.expand(policy.home))
        check_link(policy.home, real, origin.get("filesystem.home", ""), facts)
        given = grant(policy.home, real, BIND, facts, tree, notes)
        mounts.append(given.replace(dest=facts.home, reason="HOME, as the policy says"))
    if policy.workspace == "overlay" and mounts:
        check_only_way(mounts, notes)
    pairs = protected(policy, facts, mounts, tree)
    overlaid = mounts[0].source if mounts and mounts[0].op == OVERLAY else None
    kept = [(guard_in_layer if top == overlaid else guard)(path, top, tree) for path, top in pairs]
    return Place(
        mounts=tuple(mounts),
        cwd=cwd,
        stubs=tuple(dict.fromkeys(item.stub for item in kept if item.stub and not item.inner)),
        notes=tuple(notes),
        guarded=strictest(mount for item in kept for mount in item.mounts),
        inner_stubs=tuple(dict.fromkeys(item.stub for item in kept if item.inner)),
        protected=tuple(path for path, top in pairs if top == overlaid),
    )


def protected(policy: Resolved, facts: Facts, mounts: Sequence[Mount], tree: HostTree) -> list[tuple[str, str]]:
    """Every protected path that could be written, with the writable grant it lies in: the deepest one.

    The names hold below the workspace and below every writable grant. Stockade's own state is one wherever it
    lies: who can make or move it there decides about the next run.
    """
    tops = [mount for mount in mounts if mount.op in (BIND, OVERLAY) and kind(tree, mount.source) == "dir"]
    roots = dict.fromkeys([facts.workspace, *(mount.source for mount in tops)])
    names = [f"{root}/{name}" for root in roots for name in policy.protect]
    pairs = []
    for path in dict.fromkeys([*names, *facts.own_state]):
        mount = covering(mounts, path)
        if mount in tops and mount.source == mount.dest and path != mount.source:
            pairs.append((path, mount.source))
    return pairs


def strictest(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """One mount a place; a read-only one wins over a writable one that another name asked for."""
    best: dict[str, Mount] = {}
    for mount in mounts:
        if mount.dest not in best or mount.op == BIND_RO:
            best[mount.dest] = mount
    return tuple(best.values())


def workspace_mount(policy: Resolved, workspace: str, covered: Sequence[str], notes: list[str]) -> list[Mount]:
    """The bind of the workspace: none where the policy gives none, or where the box has its own directory there."""
    if policy.workspace == "none":
        return []
    if workspace == "/":
        raise RequestError(
            "could not use / as the workspace: it would grant the whole host",
            remedy="Run in a directory of its own, or name one with --cwd.",
        )
    op = {"read-write": BIND, "overlay": OVERLAY}.get(policy.workspace, BIND_RO)
    owner = next((path for path in covered if below(path, workspace)), None) or kernel_place(workspace)
    if owner is None:
        return [Mount(op, workspace, workspace, f"the workspace, {policy.workspace}", pinned=op != OVERLAY)]
    if op in (BIND, OVERLAY):
        raise RequestError(
            f"could not use {workspace!r} as a writable workspace: the box has an empty {owner!r} of its own",
            remedy="Run in a directory of its own below it, or name one with --cwd.",
        )
    notes.append(f"{workspace} is not shown: the box has an empty {owner} of its own; run below it, or use --cwd")
    return []


def check_only_way(mounts: Sequence[Mount], notes: list[str]) -> None:
    """Nothing beside the overlay (the first mount) may lead to the workspace, or take its place.

    Raises PolicyError. What is granted inside of it is written through, since somebody said so.
    """
    workspace = mounts[0].source
    for mount in mounts[1:]:
        if mount.dest == workspace or (mount.op == BIND and below(workspace, mount.source)):
            raise PolicyError(
                f"could not overlay {workspace!r}: {mount.source!r} is granted beside it, and it is the same or above",
                remedy='Take that grant out, or use workspace = "read-write".',
            )
        if mount.op == BIND and below(mount.source, workspace):
            notes.append(f"{mount.source!r} is granted: what is written there is not captured, it goes to the host")


def kernel_place(path: str) -> str | None:
    """Which of the kernel's own trees ``path`` lies in: the host's /proc would show, and the box has another."""
    if below(path, "/dev/shm"):  # noqa: S108  (the host's, as a directory like others)
        return None
    return next((top for top in ("/proc", "/sys", "/dev") if below(path, top)), None)


def check_link(path: str, real: str, origin: str, facts: Facts) -> None:
    """Refuse an entry that a symlink turns into another place, unless the user typed it for this run.

    A project's entry was checked by its words; a relative one lies where confined programs may write. Either
    could have been made to lead anywhere since.
    """
    typed = origin.startswith("options")
    if real == facts.expand(path) or typed or (path.startswith(("/", "~")) and "project" not in origin):
        return
    raise PolicyError(
        f"could not grant {path!r} (set by {origin}): it leads through a symlink to {real!r}",
        remedy="Name the real place, in your own policy or as an option of this run.",
    )


def grant(path: str, real: str, op: str, facts: Facts, tree: HostTree, notes: list[str]) -> Mount:
    """The bind of one ``read`` or ``write`` entry. A symlink is resolved, and said."""
    verb = "write" if op == BIND else "read"
    if real == "/":
        raise PolicyError(f"could not grant {verb} to {path!r}: it is the whole host")
    if below(real, "/proc"):
        raise PolicyError(f"could not grant {verb} to {path!r}: the host's /proc leads to its processes")
    node = tree.node(real)
    if node is None:
        raise PolicyError(
            f"could not grant {verb} to {path!r}: {real!r} does not exist or can't be seen",
            remedy="Create it first, or take the entry out.",
        )
    if node.kind not in ("dir", "file"):
        raise PolicyError(f"could not grant {verb} to {path!r}: {real!r} is neither a directory nor a file")
    if op == BIND and any(below(home, real) for home in (facts.home, "/home", "/root", "/usr", "/etc")):
        raise PolicyError(
            f"could not grant write to {path!r}: {real!r} holds the home or the system",
            remedy="Name a directory below it.",
        )
    if real != facts.expand(path):
        notes.append(f"{verb} {path!r} leads to {real!r}")
    return Mount(op, real, real, f"granted: {verb}", pinned=True)


def guards(policy: Resolved, facts: Facts, place: Place, tree: HostTree) -> list[Mount]:
    """Masks of hidden paths, protected names and stockade's own state."""
    mounts = list(place.guarded)
    for path in facts.hidden:
        mounts += hidden(path, place, tree)
    for path in facts.own_state:
        if kind(tree, path) == "dir" and host_path(place.mounts, path) == path:
            mounts.append(cover(path, "stockade's own state"))
    return mounts


def hidden(path: str, place: Place, tree: HostTree) -> list[Mount]:
    """The mask of one hidden path: of what it leads to, when it is a symlink; nothing when it dangles or circles."""
    real = tree.real(path)
    node = tree.node(real)
    if node is None or node.kind == "link" or host_path(place.mounts, real) is None:
        return []
    if node.kind == "dir":
        return [cover(real, "hidden by the policy")]
    return [Mount(MASK, real, reason="hidden by the policy")]


def guard(path: str, top: str, tree: HostTree) -> Guard:
    """Keep ``path`` as it is, below the writable bind of ``top``.

    Renaming a parent would dodge a mount on the name alone, so every directory between the grant and the
    name becomes a mount of its own. A missing component is kept from being made by a stand-in. Raises
    PolicyError when a component is a symlink: the program could point it elsewhere.
    """
    steps = ancestors(path, top)
    mounts: list[Mount] = []
    for step in steps:
        found = kind(tree, step)
        if found is None:
            return Guard((*mounts, Mount(BIND_RO, step, step, "protected: must not come into being")), step)
        if found == "link":
            raise linked(path, step)
        if found != "dir" or step == path:
            return Guard((*mounts, Mount(BIND_RO, step, step, "protected", pinned=found in ("dir", "file"))))
        mounts.append(Mount(BIND, step, step, "holds a protected name: can't be renamed", pinned=True))
    return Guard(tuple(mounts))


def guard_in_layer(path: str, top: str, tree: HostTree) -> Guard:
    """Keep ``path`` as it is in an overlay workspace: by a mount on it alone.

    The kernel lets no directory be renamed that comes from below an overlay (EXDEV, since links between layers are
    off), and none be removed that has a mount in it: so nothing above the name can be moved out of its way. A
    missing component is kept from being made by a stand-in in the layer. Raises PolicyError as ``guard`` does.
    """
    for step in ancestors(path, top):
        found = kind(tree, step)
        if found is None:
            return Guard((cover(step, "protected: must not come into being"),), step, inner=True)
        if found == "link":
            raise linked(path, step)
        if found != "dir" or step == path:
            return Guard((Mount(BIND_RO, step, step, "protected", pinned=found in ("dir", "file")),))
    return Guard()


def linked(path: str, step: str) -> PolicyError:
    return PolicyError(
        f"could not protect {path!r}: {step!r} is a symlink, which the program could replace",
        remedy="Replace the symlink by what it points to, or take the name out of filesystem.protect.",
    )


def ancestors(path: str, top: str) -> list[str]:
    """Every path from the first component below ``top`` down to ``path`` itself."""
    rest = path[len(top.rstrip("/")) + 1 :].split("/")
    return ["/".join([top.rstrip("/"), *rest[: index + 1]]) for index in range(len(rest))]


def socket_masks(facts: Facts, mounts: Sequence[Mount]) -> list[Mount]:
    """Cover every socket and pipe of the host in view: a read-only bind does not stop connect()."""
    return [
        Mount(MASK, path, reason="a socket or pipe of the host")
        for path in dict.fromkeys(facts.sockets)
        if host_path(mounts, path) == path
    ]


def kind(tree: HostTree, path: str) -> str | None:
    node = tree.node(path)
    return None if node is None else node.kind
