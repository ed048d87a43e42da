"""What a run in an overlay workspace changed: to look at, to apply, to drop.

The changes lie in a private directory that lives as long as this object. It is removed by ``close``, when the object
is collected, at the end of the process, and by the keeper when the process is killed.
"""

from __future__ import annotations

import os
import weakref

from stockade.policies.errors import NotApplied, StockadeError
from stockade.sandbox import captured, diff, private
from stockade.sandbox.apply import Applied, apply_work, refused
from stockade.sandbox.build import open_layer
from stockade.sandbox.operations import Rules, make_work, named, to_come
from stockade.sandbox.present import Meanwhile, Site
from stockade.sandbox.writes import WrittenFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any, Self

    from stockade.sandbox.captured import Change, Entry
    from stockade.sandbox.diff import Difference, Side
    from stockade.sandbox.operations import LeftOut, Work
    from stockade.sandbox.writes import Row

LIMIT = 1 << 20
CREATED, DELETED = "created", "deleted"
WORDS = {"file": "file", "link": "link", "dir": "directory", "fifo": "pipe", "socket": "socket", "device": "device"}


class Changes:
    """The captured changes of one run. A context manager; usable until it is closed.

    ``workspace`` is the absolute path of the workspace, ``files`` what was written (None where that could not be
    read whole: such changes can't be applied).
    """

    def __init__(
        self,
        *,
        workspace: str,
        before: Mapping[bytes, Row],
        changes: list[Change],
        protected: tuple[bytes, ...],
        whole: bool,
        place: str,
        box: str,
        root: int,
        fds: tuple[int, ...],
    ) -> None:
        """Takes over the private directory ``place``, ``root`` (the workspace) and ``fds``, which hold the place.

        ``box`` is the directory in it that has the layer.
        """
        self.workspace = workspace
        self.files = written(workspace, changes) if whole else None
        self.applied = False
        self._changes = changes
        self._top = os.fsencode(workspace)
        self._protected = protected
        self._site = Site(root, before)
        self._layer = os.path.join(box, "upper")
        self._end = weakref.finalize(self, drop, place, (root, *fds), os.getpid())

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def diff(self, *, limit: int = LIMIT) -> str:
        """A unified diff as git writes it, of at most about ``limit`` characters. Raises StockadeError once closed.

        Binary files are only named; directories, pipes and what git knows no words for are lines that start with ``#``.
        """
        layer = self._open()
        try:
            return diff.render(self._differences(layer), len(self._changes), limit=limit)
        finally:
            os.close(layer)

    def left_out(self, *, outside_links: bool = False) -> tuple[LeftOut, ...]:
        """What ``apply`` would not apply, with reasons: protected names, pipes, sockets, links that lead outside."""
        self._check_open()
        return self._work(outside_links).left_out

    def apply(self, *, outside_links: bool = False) -> Applied:
        """Bring the changes into the workspace: all of them, or none.

        ``outside_links``: also links that lead out of the workspace. Raises NotApplied, with ``conflicts``, where
        something is not as it was before the run, or can't be written.
        """
        layer = self._open()
        try:
            if self.files is None:
                raise NotApplied(
                    "could not apply the changes: they could not be read whole",
                    remedy="The program left more, or deeper directories, than can be looked at.",
                )
            if self.applied:
                raise NotApplied("could not apply the changes: they are applied already")
            self._check_place()
            work = self._work(outside_links)
            apply_work(work, self._site, layer, self._top)
        finally:
            os.close(layer)
        self.applied = True
        done = [change for operation in work.operations for change in (operation.change, *operation.inner)]
        return Applied(written(self.workspace, done), work.left_out)

    def close(self) -> None:
        """Drop the changes. May be called more than once."""
        self._end()

    def _check_open(self) -> None:
        if self.closed:
            raise StockadeError(
                "could not use the changes of this run: they were dropped", remedy="Use them before close()."
            )

    def _check_place(self) -> None:
        """The workspace could be moved away, and another one put in its place."""
        try:
            same = os.path.samestat(os.fstat(self._site.root), os.lstat(self.workspace))
        except OSError:
            same = False
        if not same:
            raise refused([Meanwhile(b"", "another directory is in its place")], self._top)

    def _open(self) -> int:
        self._check_open()
        return os.open(self._layer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _work(self, outside_links: bool) -> Work:
        rules = Rules(self._top, self._protected, outside_links)
        after = to_come(self._changes, rules)

        def look(path: bytes) -> bytes | None:
            if path not in after:
                return self._site.link(path)
            entry = after[path]
            return entry.target if entry is not None and entry.kind == "link" else None

        return make_work(self._changes, rules, look)

    def _differences(self, layer: int) -> Iterator[Difference]:
        for change in self._changes:
            yield self._difference(change, layer)

    def _difference(self, change: Change, layer: int) -> Difference:
        remarks = [remark_of(change)] if remark_of(change) else []
        old = None
        try:
            if change.before is not None:
                old = self._old_side(change, remarks)
        except (Meanwhile, OSError):
            remarks.append("what it was before can't be read any more")
        new = None if change.after is None else new_side(change.path, change.after, layer)
        return diff.Difference(change.path or b".", old, new, ", ".join(remarks))

    def _old_side(self, change: Change, remarks: list[str]) -> Side | None:
        assert change.before is not None
        mode, size = change.before[:2]
        if mode & 0o170000 not in (0o100000, 0o120000):
            return None
        if self._site.row(change.path) != change.before:
            remarks.append("changed on the host since the run began, and compared with what is there now")
        if mode & 0o170000 == 0o120000:
            return diff.Side(0o120000, self._site.link(change.path) or b"", size)
        return diff.Side(git_mode(mode), self._site.content(change.path, diff.MOST_OF_A_FILE), size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has no changes: the directory is this one's."""
        return type(None), ()


def new_side(path: bytes, entry: Entry, layer: int) -> Side | None:
    if entry.kind == "link":
        return diff.Side(0o120000, entry.target, len(entry.target))
    if entry.kind != "file":
        return None
    data = None
    if entry.size <= diff.MOST_OF_A_FILE:
        fd = open_layer(layer, path)
        try:
            data = read_whole(fd)
        finally:
            os.close(fd)
    return diff.Side(git_mode(entry.mode), data, entry.size)


def read_whole(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def git_mode(mode: int) -> int:
    return 0o100755 if mode & 0o100 else 0o100644


def remark_of(change: Change) -> str:
    """What a diff of git's has no words for."""
    before, after = change.before, change.after
    was = WORDS[captured.KIND_OF[before[0] & 0o170000]] if before is not None else ""
    now = WORDS[after.kind] if after is not None else ""
    if "file" in (was, now) or "link" in (was, now):
        modes = before is not None and after is not None and was == now == "file"
        if modes and before is not None and after is not None and (before[0] ^ after.mode) & 0o7677:
            return f"mode {before[0] & 0o7777:04o} to {after.mode:04o}"
        if was in ("", "file", "link") and now in ("", "file", "link"):
            return ""
    if not was or not now:
        return f"{DELETED} {was}" if was else f"{CREATED} {now}"
    if was != now:
        return f"{was} to {now}"
    assert before is not None
    assert after is not None
    return (
        f"{now} made anew"
        if before[0] & 0o7777 == after.mode
        else f"mode of {now} {before[0] & 0o7777:04o} to {after.mode:04o}"
    )


def written(workspace: str, changes: list[Change]) -> tuple[WrittenFile, ...]:
    top = os.fsencode(workspace)
    return tuple(WrittenFile(named(top, change.path), change.kind) for change in changes)


def drop(place: str, fds: tuple[int, ...], owner: int) -> None:
    """Remove the private directory, and let go of what holds it. A forked copy of the process only lets go."""
    if os.getpid() == owner:
        private.discard(place)
    for fd in fds:
        os.close(fd)
