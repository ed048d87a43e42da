"""The layer that takes the writes of a run in an overlay workspace: made before it, read and handed on after it.

    stockade-changes-X/         ours alone (mode 0700), locked while it is needed
        box/                    of the uid of the run
            upper/              what was written
            work/               the kernel's own

The keeper removes the whole when the supervisor dies. The workspace itself is only looked at.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox import captured, private, unmoved, writes
from stockade.sandbox.changes import Changes
from stockade.sandbox.mounts import OVERLAY, below, host_path
from stockade.sandbox.nofollow import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Any, Self

    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.launch import Launch
    from stockade.sandbox.private import Private
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.writes import Row

OPENED_UP = 0o700
"""What the owner of the layer needs of its root; the mode of the workspace is for the rest."""


class Layer:
    """One run's layer. ``changes`` or ``close`` ends it."""

    def __init__(
        self,
        workspace: str,
        root: int,
        before: dict[bytes, Row],
        place: Private,
        stand_ins: tuple[str, ...],
        protected: tuple[str, ...],
    ) -> None:
        self.workspace, self.root, self.before, self.place = workspace, root, before, place
        self.box = f"{place.path}/box"
        self.stand_ins, self.protected = relative(stand_ins, workspace), relative(protected, workspace)
        self.root_mode = stat.S_IMODE(before[b""][0]) & 0o777 | OPENED_UP
        self.leash = -1
        self.way: tuple[unmoved.Step, ...] = ()
        self.ended = False

    def make(self, owner: tuple[int, int] | None) -> None:
        """Make the directories of the layer, and in it what keeps protected names from coming into being."""
        self.folder("", 0o700, owner)
        self.folder("/work", 0o700, owner)
        self.folder("/upper", self.root_mode, owner)
        made: set[bytes] = set()
        for path in self.stand_ins:
            parts = path.split(b"/")
            for count in range(1, len(parts) + 1):
                step = b"/".join(parts[:count])
                if step not in made:
                    made.add(step)
                    row = self.before.get(step)
                    mode = 0o555 if step == path or row is None else stat.S_IMODE(row[0])
                    self.folder("/upper/" + os.fsdecode(step), mode, owner)

    def folder(self, name: str, mode: int, owner: tuple[int, int] | None) -> None:
        path = self.box + name
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, *owner)
        os.chmod(path, mode)

    def job(self, job: dict[str, Any], launch: Launch) -> dict[str, Any]:
        """The job with a leash for the keeper: when our end of it is gone, it removes the layer."""
        # Where root gives up its uid the workspace is handed on as a descriptor, and no name is looked up.
        self.way = () if job["credentials"] is not None else unmoved.note(self.workspace)
        leash, self.leash = os.pipe()
        return {**job, "kept": (os.fsencode(self.place.path), launch.give(leash, None))}

    def confirm(self, box: int) -> str:
        """Before the program may start: why what it would see may not be the workspace; empty if it surely is.

        Raises ProcessLookupError when the box has ended meanwhile.
        """
        if not self.way:
            return ""
        if not unmoved.wait_mounted(box, self.workspace):
            return "the overlay was not mounted in time"
        moved = unmoved.moved(self.way)
        if not moved and not self.replaced():
            return ""
        return f"{moved or self.workspace} was moved or changed while the overlay was made, and others may do that"

    def changes(self) -> Changes:
        """Read the layer after the run; from here on it is theirs."""
        found = captured.scan(f"{self.box}/upper")
        listed = captured.compare(self.before, found.entries, ignored=self.stand_ins, root_mode=self.root_mode)
        changes = Changes(
            workspace=self.workspace,
            before=self.before,
            changes=listed,
            protected=self.protected,
            whole=not found.unreadable,
            place=self.place.path,
            box=self.box,
            root=self.root,
            fds=tuple(fd for fd in (self.place.fd, self.leash) if fd >= 0),
        )
        self.ended = True
        return changes

    def replaced(self) -> bool:
        """Whether another directory has the workspace's name now."""
        try:
            return not os.path.samestat(os.fstat(self.root), os.lstat(self.workspace))
        except OSError:
            return True

    def hand_over(self, result: RunResult) -> RunResult:
        """The result with what was captured, if the program was started at all."""
        if not result.started:
            return result
        changes = self.changes()
        notes = list(result.notes)
        if changes.files is None:
            notes.append("files written are not all known: the program left more, or deeper, than can be looked at")
        if self.replaced():
            notes.append(f"{self.workspace} was replaced by another directory during the run")
        both = None if changes.files is None or result.files_written is None else (
            *changes.files, *result.files_written
        )  # fmt: skip
        files = None if both is None else tuple(sorted(both, key=lambda file: os.fsencode(file.path)))
        return result.replace(files_written=files, changes=changes, notes=tuple(notes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the layer, unless its changes were read: nothing ran, or what ran is of no interest."""
        if self.ended:
            return
        self.ended = True
        private.discard(self.place.path)
        for fd in (self.root, self.place.fd, self.leash):
            if fd >= 0:
                os.close(fd)
        private.discard(self.place.path)  # once more: without room for a descriptor it could not be read before


def begin(start: Confinement, parent: str) -> tuple[Layer, Confinement]:
    """Make a layer for a planned start in ``parent``, and complete the plan with it. Raises StockadeError."""
    mount = next(mount for mount in start.plan.mounts if mount.op == OVERLAY)
    refuse_mounts_below(mount.source)
    root, before = note_workspace(mount.source)
    try:
        place = make_place(parent)
    except BaseException:
        os.close(root)
        raise
    layer = Layer(mount.source, root, before, place, start.plan.inner_stubs, start.plan.protected)
    try:
        if host_path(start.plan.mounts, place.path) is not None:
            raise StockadeError(
                f"could not keep what is captured out of sight: {parent!r} is visible inside",
                remedy="Do not grant it.",
            )
        layer.make(start.plan.credentials)
        mounts = tuple(each.replace(upper=layer.box) if each is mount else each for each in start.plan.mounts)
        notes = (*start.plan.notes, *of_others(root, start.plan.user))
        return layer, start.replace(plan=start.plan.replace(mounts=mounts, notes=notes))
    except BaseException as error:
        layer.close()
        if isinstance(error, OSError):
            raise no_place(parent, error) from None
        raise


def of_others(root: int, user: tuple[int, int]) -> tuple[str, ...]:
    """A file is taken over into the layer with its owner and group, and the box knows only those of the run."""
    status = os.fstat(root)
    if (status.st_uid, status.st_gid) == user:
        return ()
    return (
        f"the workspace belongs to {status.st_uid}:{status.st_gid}, the run is {user[0]}:{user[1]}: "
        "what is not of the run's own user and group can't be changed in an overlay",
    )


def make_place(parent: str) -> Private:
    private.sweep(parent)
    try:
        private.room_to_remove()
        return private.make(parent)
    except OSError as error:
        raise no_place(parent, error) from None


def no_place(parent: str, error: OSError) -> StockadeError:
    return StockadeError(
        f"could not make a place for the changes in {parent!r}: {(error.strerror or str(error)).lower()}",
        remedy="Make room there; `stockade doctor` looks for another place.",
    )


def note_workspace(workspace: str) -> tuple[int, dict[bytes, Row]]:
    """A descriptor of the workspace, and what is in it now: later this tells who changed what."""
    try:
        root = open_plain(workspace)
    except OSError as error:
        gone = error.errno == errno.ENOENT  # it was there when the start was planned
        cause = "it vanished" if gone else (error.strerror or str(error)).lower()
        raise StockadeError(f"could not open the workspace {workspace!r}: {cause}") from None
    manifest = writes.take([workspace])
    top = os.fsencode(workspace)
    row = manifest.entries.get(top)
    if not manifest.complete or row is None or row[3] != os.fstat(root).st_ino:
        os.close(root)
        raise StockadeError(
            f"could not take note of what is in {workspace!r}: it has too many entries, or is being replaced",
            remedy="Run in a smaller directory.",
        )
    return root, {path[len(top) + 1 :]: row for path, row in manifest.entries.items()}


def refuse_mounts_below(workspace: str) -> None:
    """The kernel refuses an overlay over a directory that other file systems are mounted in."""
    for place in mount_points():
        if place != workspace and below(place, workspace):
            raise RequestError(
                f"could not use {workspace!r} as an overlay workspace: another file system is mounted at {place!r}",
                remedy="Run in a directory without mounts in it.",
            )


def mount_points() -> Iterable[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split(b" ")[4] for line in file]
    return [os.fsdecode(unmoved.unescape(field)) for field in fields]


def relative(paths: Iterable[str], workspace: str) -> tuple[bytes, ...]:
    """Those that lie below the workspace, as paths below it."""
    top = os.fsencode(workspace) + b"/"
    return tuple(path[len(top) :] for path in map(os.fsencode, paths) if path.startswith(top))
