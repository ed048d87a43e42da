"""What planning needs to know of this host and this moment, gathered once. The only reader of the caller's state."""

from __future__ import annotations

import os
import stat
import time

from stockade.policies.errors import RequestError, StockadeError
from stockade.policies.record import Record
from stockade.sandbox import globs
from stockade.sandbox.mounts import below
from stockade.sandbox.tree import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.bwrap import Bwrap
    from stockade.sandbox.globs import Expansion
    from stockade.sandbox.request import Request

NOBODY = 65534
WALK_SECONDS = 10.0
WALK_ENTRIES = 1_000_000


class Identity(Record):
    """Who the box runs as: the caller, or ``credentials`` taken before bwrap."""

    uid: int
    gid: int
    credentials: tuple[int, int] | None
    real_root: bool
    kept_root: bool


class Facts(Record):
    """A snapshot. ``uid`` and ``gid`` are those inside; ``home`` and ``path`` are the caller's, as real paths."""

    uid: int
    gid: int
    user: str
    home: str
    workspace: str
    path: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    credentials: tuple[int, int] | None
    kept_root: bool
    fresh_proc: bool
    bwrap: Bwrap
    sockets: tuple[str, ...]
    hidden: tuple[str, ...]
    """Real paths that the hide patterns matched at this moment."""
    own_state: tuple[str, ...]
    """Directories of stockade's own: never writable inside."""

    def expand(self, path: str) -> str:
        """A policy's path as an absolute one: ``~`` is the caller's home, relative ones lie in the workspace."""
        if path == "~" or path.startswith("~/"):
            return os.path.normpath(self.home + path[1:])
        return os.path.normpath(os.path.join(self.workspace, path))


def roots_of(policy: Resolved, workspace: str, home: str) -> tuple[str, ...]:
    """The workspace and every path granted beside it (real paths), those inside of others left out."""
    places = grants_of(policy, workspace, home)
    return tuple(place for place in places if not any(place != other and below(place, other) for other in places))


def grants_of(policy: Resolved, workspace: str, home: str) -> tuple[str, ...]:
    """Where hide patterns apply: the workspace and every path granted beside it (real paths).

    Without ``/`` and /proc, which are never granted: the walk of a whole host would come before that is said.
    """
    listed = [real_path(absolute(path, workspace, home)) for path in (*policy.write, *policy.read)]
    places = [workspace, *listed] if policy.workspace != "none" else listed
    return tuple(dict.fromkeys(place for place in places if place != "/" and not below(place, "/proc")))


def absolute(path: str, workspace: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(home + path[1:])
    return os.path.normpath(os.path.join(workspace, path))


def survey(policy: Resolved, request: Request, bwrap: Bwrap, identity: Identity, *, fresh_proc: bool) -> Facts:
    """Look at the host. Raises StockadeError when hide patterns can't be expanded within bounds."""
    home = home_directory()
    roots = roots_of(policy, request.cwd, home)
    inner = [place for place in grants_of(policy, request.cwd, home) if place not in roots]
    found = [look(place, patterns) for place, patterns in places_to_look(policy.hide, roots, home, inner)]
    sockets = (*listening_sockets(), *(os.fsdecode(path) for walk in found for path in walk.sockets))
    # What is below a directory that can't be listed is not known: its owner could open it up inside.
    closed = (path for walk in found if policy.hide for path in walk.unreadable)
    hidden = (os.fsdecode(path) for path in (*(path for walk in found for path in walk.matches), *closed))
    return Facts(
        uid=identity.uid,
        gid=identity.gid,
        user=user_name(identity.uid),
        home=home,
        workspace=request.cwd,
        path=search_path(os.environ.get("PATH", "")),
        environ=tuple(os.environ.items()),
        credentials=identity.credentials,
        kept_root=identity.kept_root,
        fresh_proc=fresh_proc,
        bwrap=bwrap,
        sockets=tuple(path for path in sockets if in_reach(path, roots, identity)),
        hidden=tuple(path for path in hidden if in_reach(real_path(path), roots, identity)),
        own_state=own_state(),
    )


def places_to_look(
    patterns: Iterable[str], roots: Iterable[str], home: str, inner: Iterable[str] = ()
) -> list[tuple[str, tuple[str, ...]]]:
    """Directories to walk and the patterns for each: the relative ones for every grant, an absolute one once.

    An absolute pattern is looked for from the deepest directory above its first wildcard. ``inner`` are grants
    inside of ``roots``: what is meant for any depth is found there by the walk of the root.
    """
    whole = [home + pattern[1:] if pattern.startswith("~/") else pattern for pattern in patterns]
    relative = tuple(pattern for pattern in whole if not pattern.startswith("/"))
    anchored: dict[str, list[str]] = {}
    for pattern in whole:
        if pattern.startswith("/"):
            base, rest = globs.anchor(pattern)
            anchored.setdefault(base, []).append(rest)
    fixed = tuple(pattern for pattern in relative if not pattern.startswith("**/"))
    again = [(place, fixed) for place in inner if fixed]
    return [
        *((root, relative) for root in roots),
        *again,
        *((base, tuple(rest)) for base, rest in anchored.items()),
    ]


def look(root: str, patterns: tuple[str, ...]) -> Expansion:
    """One walk of a directory: what is to be hidden, and sockets and pipes of the host."""
    walk = globs.expand(os.fsencode(root), patterns, limit=WALK_ENTRIES, deadline=time.monotonic() + WALK_SECONDS)
    if not walk.complete:
        raise StockadeError(
            f"could not look for hidden files in {root!r}: more than {walk.seen} entries, or more than {WALK_SECONDS:.0f} s",
            remedy="Run in a smaller directory, or take the patterns out of filesystem.hide.",
        )
    return walk


def in_reach(path: str, roots: Iterable[str], identity: Identity) -> bool:
    """Whether the box's user can come to ``path``, below a granted directory or from ``/``.

    What it can't come to needs no mask, and bwrap, which runs as that user, could not put one there.
    """
    if identity.credentials is None:
        return True
    top = next((root for root in roots if below(path, root)), "/")
    parent = os.path.dirname(path)
    while others_can(parent, 0o1):
        if parent in (top, "/"):
            return True
        parent = os.path.dirname(parent)
    return path == top


NOT_HOMES = (
    "/", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/bin", "/sbin",
    "/etc", "/dev", "/proc", "/sys", "/var", "/var/lib", "/opt",
)  # fmt: skip
"""Homes of system users (daemon, bin, sys): an empty directory there would hide what every program needs."""


def home_directory() -> str:
    """The caller's home as a real path; a made-up one where it has none that can be a directory of its own."""
    home = os.environ.get("HOME") or passwd_home()
    if not os.path.isabs(home) or any(letter in home for letter in "\0\n:"):  # it goes into /etc/passwd
        return "/home/user"
    real = os.path.realpath(home)
    if real in NOT_HOMES or not (
        os.path.isdir(real) or real.split("/")[1] in ("home", "root", "run", "tmp", "mnt", "media")
    ):
        return "/home/user"
    return real


def passwd_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def user_name(uid: int) -> str:
    """The name of the user inside: by the host's file, or by what else it asks for accounts, which takes longer."""
    number = b"%d" % uid
    try:
        with open("/etc/passwd", "rb") as file:
            for line in file:
                row = line.split(b":")
                if len(row) > 5 and row[2] == number and row[0]:
                    return os.fsdecode(row[0])
    except OSError:
        pass  # then nothing is to be found there
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user"


def search_path(text: str) -> tuple[str, ...]:
    """The absolute entries of PATH; relative and empty ones mean "wherever we are" and are left out."""
    entries = dict.fromkeys(os.path.normpath(entry) for entry in text.split(":") if entry.startswith("/"))
    return tuple(entries) or ("/usr/local/bin", "/usr/bin", "/bin")


def listening_sockets() -> tuple[str, ...]:
    """Real paths of the sockets bound in this network namespace, from /proc/net/unix; not of those unlinked since."""
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return ()
    paths = dict.fromkeys(row[7] for row in (line.split(b" ", 7) for line in map(squeeze, lines)) if len(row) == 8)
    absolute_ones = [path for path in paths if path.startswith(b"/")]
    relative = [path for path in paths if not path.startswith((b"/", b"@"))]
    folders = {folder: os.path.realpath(folder) for folder in map(os.path.dirname, absolute_ones)}
    real = (os.path.join(folders[os.path.dirname(path)], os.path.basename(path)) for path in absolute_ones)
    return tuple(os.fsdecode(path) for path in (*real, *relative_sockets(relative)) if os.path.lexists(path))


def relative_sockets(names: list[bytes]) -> list[bytes]:
    """Sockets that were bound by a relative path, as far as the process that did is still in that directory."""
    if not names:
        return []
    folders: dict[bytes, None] = {}
    for pid in os.listdir(b"/proc"):
        if pid.isdigit():
            try:
                folders[os.readlink(b"/proc/%s/cwd" % pid)] = None
            except OSError:
                pass  # it is somebody else's, or gone
    return [os.path.realpath(os.path.join(folder, name)) for folder in folders for name in names]


def squeeze(line: bytes) -> bytes:
    """A line of /proc/net/unix with its inode column unpadded, so that a path keeps its own spaces."""
    head, _, tail = line.partition(b": ")
    fields = tail.split(None, 5)
    inode, _, path = fields[5].partition(b" ") if len(fields) > 5 else (b"", b"", b"")
    return b" ".join((head, *fields[:5], inode, path)) if path else head


def own_state() -> tuple[str, ...]:
    """Where stockade keeps caches, policies, pins and audits of the user."""
    home = os.environ.get("HOME", "")
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    state = os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state"
    places = (f"{cache}/stockade", f"{config}/stockade", f"{state}/stockade")
    return tuple(os.path.realpath(place) for place in places if os.path.isabs(place))


def identify(policy: Resolved, workspace: str) -> Identity:
    """Decide as whom the box runs. Real root is dropped unless what it must write or read is root's alone.

    Root of a user namespace is an ordinary user of the host: decided by /proc/self/uid_map, not by uid 0.
    Raises RequestError when ``process.user = "unprivileged"`` can't read the workspace.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return Identity(uid, gid, None, real_root=False, kept_root=False)
    mapped = uid_map()
    real = any(inside == 0 and outside == 0 for inside, outside, _count in mapped)
    can = any(inside <= NOBODY < inside + count for inside, _outside, count in mapped) and may_change_ids()
    kept = Identity(0, gid, None, real_root=real, kept_root=real)
    dropped = Identity(NOBODY, NOBODY, (NOBODY, NOBODY), real_root=real, kept_root=False)
    if policy.user == "caller" or not can:
        return kept
    needs_root = root_only_grants(policy, workspace)
    if needs_root and policy.user == "unprivileged":
        raise RequestError(
            f"could not run unprivileged: uid {NOBODY} can't use {needs_root!r}",
            remedy='Give it the rights, or set process.user = "auto" (keeps root, enforcement is then partial).',
        )
    return kept if needs_root else dropped


def root_only_grants(policy: Resolved, workspace: str) -> str:
    """The first granted path that the unprivileged uid can't read, or write where it must; empty if none."""
    home = home_directory()
    grants = roots_of(policy, workspace, home)
    own = ((workspace,) if policy.workspace in ("read-write", "overlay") else ()) + (
        (policy.home,) if policy.home != "empty" else ()
    )
    writes: Iterable[str] = (*policy.write, *own)
    if policy.workspace == "overlay" and owner_of(workspace) != (NOBODY, NOBODY):
        return workspace  # a layer takes over only what belongs to the user and the group of the run
    for path in writes:
        real = real_path(absolute(path, workspace, home))
        if not (others_can(real, 0o7) and can_be_placed(real, home, grants)):
            return path
    reads: Iterable[str] = (*policy.read, *((workspace,) if policy.workspace == "read-only" else ()))
    for path in reads:
        real = real_path(absolute(path, workspace, home))
        if not (others_can(real, 0o5) and can_be_placed(real, home, grants)):
            return path
    return ""


def owner_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_uid, status.st_gid


def can_be_placed(path: str, home: str, grants: Iterable[str]) -> bool:
    """Whether bwrap, as the unprivileged uid, can come to the mount point.

    It makes the directories above it itself, and can pass them, unless they are the host's: below ``/`` or
    inside of another grant.
    """
    own = ("/tmp", "/var/tmp", "/run", "/home", "/root", "/mnt", "/media", "/dev/shm", home)  # noqa: S108
    top = max((top for top in (*own, *grants) if top != path and below(path, top)), key=len, default="/")
    if top in own:
        return True
    parent = os.path.dirname(path)
    while parent not in ("/", top):
        if not others_can(parent, 0o1):
            return False
        parent = os.path.dirname(parent)
    return True


def others_can(path: str, bits: int) -> bool:
    """Whether the unprivileged uid has these rights; a file need not be executable."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    bits = bits & 0o6 if stat.S_ISREG(status.st_mode) else bits
    if status.st_uid == NOBODY:
        return (status.st_mode >> 6) & bits == bits
    return status.st_mode & bits == bits


def uid_map() -> list[tuple[int, int, int]]:
    with open("/proc/self/uid_map", "rb") as file:
        rows = [line.split() for line in file]
    return [(int(row[0]), int(row[1]), int(row[2])) for row in rows]


def may_change_ids() -> bool:
    """Whether this process holds CAP_SETUID (7) and CAP_SETGID (6)."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                held = int(line.split()[1], 16)
                return bool(held & 1 << 7 and held & 1 << 6)
    return False
