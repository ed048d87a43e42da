"""Carry operations out on the host: all of them, or none.

Everything is first built in a directory of ours inside of the workspace, and everything that has to go is moved there,
checked once more where nobody passes by accident, and removed at the very end; until then all of it can be undone.
The layer is only read. Names are looked up as in ``present``: no link is followed, whoever puts one there.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.policies.errors import NotApplied
from stockade.policies.record import Record
from stockade.sandbox import applyplace, private
from stockade.sandbox.build import PART, build, set_mode
from stockade.sandbox.operations import MODE, PUT, LeftOut, named
from stockade.sandbox.present import LIST, PASS, READ, Conflict, Meanwhile, open_below, rows_below, unlike
from stockade.sandbox.writes import row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.sandbox.captured import Entry
    from stockade.sandbox.operations import Operation, Work
    from stockade.sandbox.present import Site
    from stockade.sandbox.writes import Row, WrittenFile

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


class Applied(Record):
    """What came of it."""

    files: tuple[WrittenFile, ...]
    """What was changed on the host."""
    left_out: tuple[LeftOut, ...]
    """What was not, each with the reason."""


def apply_work(work: Work, site: Site, layer: int, workspace: bytes) -> None:
    """Carry out every operation. ``layer`` is a descriptor of the layer's root.

    Raises NotApplied; nothing is changed then.
    """
    found = [conflict for operation in work.operations for conflict in site.conflicts(operation)]
    if found:
        raise refused(found, workspace)
    try:
        wanted = [operation for operation in work.operations if not is_there(operation, site, layer)]
        if wanted:
            with_temporary(wanted, site, layer, workspace)
    except Meanwhile as conflict:
        raise refused([conflict], workspace) from None
    except OSError as error:
        where = f" {os.fsdecode(error.filename)!r}:" if error.filename else ""
        raise NotApplied(
            f"could not apply the changes:{where} {(error.strerror or str(error)).lower()}; nothing was changed",
            remedy="Mend the cause, and run again.",
        ) from None


def refused(found: list[Meanwhile], workspace: bytes) -> NotApplied:
    conflicts = tuple(Conflict(named(workspace, each.path), each.reason) for each in found)
    first = conflicts[0]
    more = f", and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    return NotApplied(
        f"could not apply the changes: {first.path!r}: {first.reason}{more}; nothing was changed",
        conflicts=conflicts,
        remedy="Somebody else works there. Look at the diff, and run again on what is there now.",
    )


def stranded(place: str, paths: list[bytes], workspace: bytes) -> NotApplied:
    conflicts = tuple(
        Conflict(named(workspace, path), "what was there could not be brought back") for path in paths
    )
    return NotApplied(
        f"could not apply the changes, and could not bring back {len(paths)} of what was moved away",
        conflicts=conflicts,
        remedy=f"It is in {place}.",
    )


def is_there(operation: Operation, site: Site, layer: int) -> bool:
    """Whether a file on the host is what it shall become: it was written, with what it held before."""
    change = operation.change
    before, after = change.before, change.after
    if operation.verb != PUT or before is None or after is None or after.kind != "file":
        return False
    if not stat.S_ISREG(before[0]) or (before[0] ^ after.mode) & 0o777 or before[1] != after.size:
        return False
    head, name = os.path.split(change.path)
    parent = site.folder(head)
    fds = []
    try:
        fds.append(open_below(layer, change.path, READ))
        fds.append(os.open(name, READ, dir_fd=parent))
        return same_content(*fds)
    except PermissionError:
        return False
    finally:
        for fd in (parent, *fds):
            os.close(fd)


def same_content(one: int, other: int) -> bool:
    while True:
        part = os.read(one, PART)
        if part != os.read(other, PART):
            return False
        if not part:
            return True


def with_temporary(operations: list[Operation], site: Site, layer: int, workspace: bytes) -> None:
    # What stands in the way of an operation, or is one's own, is judged like everything else.
    applyplace.sweep(site.root, {os.fsdecode(each.change.path.split(b"/")[0]) for each in operations})
    name, folder = applyplace.make(site.root)
    lost: list[bytes] = []
    try:
        moves = Moves(site, folder, layer)
        try:
            moves.stage(operations)
            moves.commit(operations)
        except BaseException:
            lost = moves.undo()
            if lost:
                place = os.path.join(os.fsdecode(workspace), name)
                raise stranded(place, lost, workspace) from None
            raise
    finally:
        if not lost:
            applyplace.clear(site.root, name, folder)
        os.close(folder)


class Moves:
    """The steps that were taken, so that they can be taken back."""

    def __init__(self, site: Site, folder: int, layer: int) -> None:
        self.site, self.temporary, self.layer = site, folder, layer
        self.back: list[Callable[[], None]] = []
        self.away: list[tuple[bytes, bytes]] = []
        """What was moved away: its path, and its name in our directory."""

    def stage(self, operations: list[Operation]) -> None:
        """Build what is new, out of sight."""
        for number, operation in enumerate(operations):
            if operation.verb == PUT:
                build(operation, b"new%d" % number, self.temporary, self.site, self.layer)

    def commit(self, operations: list[Operation]) -> None:
        for number, operation in enumerate(operations):
            head, name = os.path.split(operation.change.path)
            parent = self.site.folder(head)
            try:
                if operation.verb == MODE:
                    self.adjust(operation, parent, name or b".")
                    continue
                if operation.change.before is not None:
                    self.take_away(operation, parent, name, b"old%d" % number)
                if operation.verb == PUT:
                    self.put(operation, parent, name, b"new%d" % number)
            finally:
                os.close(parent)

    def take_away(self, operation: Operation, parent: int, name: bytes, place: bytes) -> None:
        """Move what is there out of the way, then look at what was really moved."""
        os.rename(name, place, src_dir_fd=parent, dst_dir_fd=self.temporary)
        path, before = operation.change.path, operation.change.before
        self.away.append((path, place))
        self.back.append(lambda: self.bring_back(path, name, place))
        found = row_of(os.stat(place, dir_fd=self.temporary, follow_symlinks=False))
        assert before is not None
        # The move itself is a change of the inode: its time of change is left out.
        if found[:4] != before[:4]:
            raise Meanwhile(path, "it was changed at this moment")
        if stat.S_ISDIR(found[0]):
            for conflict in unlike(rows_below(self.temporary, place, path), operation.inner):
                raise conflict

    def put(self, operation: Operation, parent: int, name: bytes, place: bytes) -> None:
        """Put the new thing in its place, unless something has come there."""
        path, entry = operation.change.path, operation.change.after
        assert entry is not None
        made = os.stat(place, dir_fd=self.temporary, follow_symlinks=False)
        try:
            if entry.kind == "dir":
                os.mkdir(name, 0o700, dir_fd=parent)
                self.back.append(lambda: self.take_back(path, name, None))
            # Noted first: what is not there yet is not taken back.
            self.back.append(lambda: self.take_back(path, name, made))
            if entry.kind == "dir":
                self.move_folder(parent, name, place, entry)
            else:
                move_file(self.temporary, place, parent, name)
        except FileExistsError:
            raise Meanwhile(path, "it came into being at this moment") from None

    def move_folder(self, parent: int, name: bytes, place: bytes, entry: Entry) -> None:
        """A directory over the empty one that keeps its place. Its mode comes last: it may forbid to move it."""
        fd = os.open(place, LIST, dir_fd=self.temporary)
        try:
            os.rename(place, name, src_dir_fd=self.temporary, dst_dir_fd=parent)
            set_mode(fd, entry.mode)
        finally:
            os.close(fd)

    def adjust(self, operation: Operation, parent: int, name: bytes) -> None:
        entry, before = operation.change.after, operation.change.before
        assert entry is not None
        assert before is not None
        fd = os.open(name, LIST, dir_fd=parent)
        try:
            if row_of(os.fstat(fd)) != before:
                raise Meanwhile(operation.change.path, "it was changed at this moment")
            set_mode(fd, entry.mode)
        finally:
            os.close(fd)
        self.back.append(lambda: self.adjust_back(operation.change.path, before))

    def undo(self) -> list[bytes]:
        """Take the steps back, the last one first. Returns the paths of what could not be brought back."""
        for step in reversed(self.back):
            try:
                step()
            except (OSError, Meanwhile):
                pass  # somebody else is at work there; what was moved away is looked for below
        return [path for path, place in self.away if exists(place, self.temporary)]

    def bring_back(self, path: bytes, name: bytes, place: bytes) -> None:
        parent = self.site.folder(os.path.dirname(path))
        try:
            if not exists(name, parent):
                os.rename(place, name, src_dir_fd=self.temporary, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def take_back(self, path: bytes, name: bytes, made: os.stat_result | None) -> None:
        """Remove what was put there, if it is still that; without ``made``, an empty directory."""
        parent = self.site.folder(os.path.dirname(path))
        try:
            if made is None:
                os.rmdir(name, dir_fd=parent)
            elif os.path.samestat(made, os.stat(name, dir_fd=parent, follow_symlinks=False)):
                self.take_in(parent, name, made)
        finally:
            os.close(parent)

    def take_in(self, parent: int, name: bytes, made: os.stat_result) -> None:
        """Move it into our directory, where everything is removed; what came in its place meanwhile, back."""
        place = f"back-{os.urandom(8).hex()}"
        if stat.S_ISDIR(made.st_mode):
            private.open_up(os.fsdecode(name), parent)
        os.rename(name, place, src_dir_fd=parent, dst_dir_fd=self.temporary)
        if not os.path.samestat(made, os.stat(place, dir_fd=self.temporary, follow_symlinks=False)):
            os.rename(place, name, src_dir_fd=self.temporary, dst_dir_fd=parent)

    def adjust_back(self, path: bytes, before: Row) -> None:
        head, name = os.path.split(path)
        parent = self.site.folder(head)
        try:
            fd = os.open(name or b".", PASS, dir_fd=parent)
            try:
                if os.fstat(fd).st_ino == before[3]:
                    os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(before[0]))
            finally:
                os.close(fd)
        finally:
            os.close(parent)


def move_file(source: int, place: bytes, parent: int, name: bytes) -> None:
    """Move without replacing. Raises FileExistsError."""
    try:
        os.link(place, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        os.unlink(place, dir_fd=source)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if exists(name, parent):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
        os.rename(place, name, src_dir_fd=source, dst_dir_fd=parent)


def exists(name: bytes, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
