"""Mount operations as values (pure): ordered, pruned, looked through, and rendered elsewhere."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BIND, BIND_RO, OVERLAY, TMPFS, MASK, DATA, SYMLINK, PROC, DEV = (
    "bind", "ro-bind", "overlay", "tmpfs", "mask", "data", "symlink", "proc", "dev",
)  # fmt: skip


class Mount(Record):
    """One thing mounted at ``dest`` inside.

    ``source`` is the host path of a bind or of what an overlay lies over, or the target of a symlink. ``frozen``
    asks for a read-only remount once everything below is in place. ``pinned`` binds are opened once and mounted
    by descriptor.
    """

    op: str
    dest: str
    source: str = ""
    reason: str = ""
    size: int | None = None
    perms: int | None = None
    frozen: bool = False
    pinned: bool = False
    data: bytes = b""
    upper: str = ""
    """Of an overlay: the directory with the layer that takes the writes; known only once it was made."""


def depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def ordered(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Parents before children, whatever order they were asked in; of several at one place the last one."""
    last: dict[str, Mount] = {}
    for mount in mounts:
        last.pop(mount.dest, None)
        last[mount.dest] = mount
    return tuple(sorted(last.values(), key=lambda mount: (depth(mount.dest), mount.dest)))


def frozen_last(mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Destinations to remount read-only, deepest first, so that no mount point is still to be made there."""
    return tuple(mount.dest for mount in reversed(mounts) if mount.frozen)


def below(path: str, top: str) -> bool:
    """Whether ``path`` is ``top`` or lies under it, by whole components."""
    return path == top or path.startswith("/" if top == "/" else top + "/")


def covering(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that decides what is seen at ``path``: the deepest one at or above it."""
    at = {mount.dest: mount for mount in mounts}
    while path not in at and path.rstrip("/"):
        path = path.rpartition("/")[0]
    return at.get(path or "/")


def host_path(mounts: Sequence[Mount], path: str) -> str | None:
    """The host path that is seen at ``path`` inside, or None where nothing of the host is."""
    mount = covering(mounts, path)
    if mount is not None and mount.op in (MASK, DATA):
        return "/dev/null" if mount.op == MASK else path
    if mount is not None and mount.op == SYMLINK and mount.dest == path:
        return path  # the host has the same link
    if mount is None or mount.op not in (BIND, BIND_RO, OVERLAY):
        return None
    return mount.source.rstrip("/") + path[len(mount.dest.rstrip("/")) :] or "/"


def writable_paths(mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Host paths that can be written through some mount."""
    return tuple(mount.source for mount in mounts if mount.op == BIND)
