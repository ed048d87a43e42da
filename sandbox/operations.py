"""From what a program changed to what has to be done to have it on the host (pure), and what is left out of that.

An operation replaces, removes or adjusts one entry of a directory that stays; what lies below that entry comes or
goes with it. ``apply`` carries them out.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.record import Record
from stockade.sandbox.nestedgit import like_protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stockade.sandbox.captured import Change, Entry

PUT, REMOVE, MODE = "put", "remove", "mode"
MOST_LINKS = 40
"""The kernel follows no more (path_resolution(7))."""
SPECIAL = {"fifo": "a pipe", "socket": "a socket", "device": "a device"}


class Rules(Record):
    """What is never applied. Paths are below the workspace."""

    workspace: bytes
    """Its absolute path."""
    protected: tuple[bytes, ...]
    outside_links: bool = False
    """Whether a link that leads out of the workspace may be applied."""


class Operation(Record):
    """One thing to do."""

    verb: str
    """``put``: there shall be what the layer has. ``remove``. ``mode``: a directory's permissions."""
    change: Change
    inner: tuple[Change, ...] = ()
    """What comes or goes with it, parents first."""


class LeftOut(Record):
    """What is not applied, and why."""

    path: str
    """Absolute."""
    reason: str


class Work(Record):
    """Everything to do, and everything that won't be done."""

    operations: tuple[Operation, ...]
    left_out: tuple[LeftOut, ...]


def make_work(changes: Iterable[Change], rules: Rules, look: Callable[[bytes], bytes | None]) -> Work:
    """``changes`` in the order of ``captured.compare``. ``look`` gives the target of the link that will be at a path,
    or None where there will be none."""
    operations: list[tuple[Change, list[Change]]] = []
    left_out: list[LeftOut] = []
    dropped: bytes | None = None
    for change in changes:
        if dropped is not None and is_below(change.path, dropped):
            continue  # what lies in a directory that is left out goes with it
        inside = bool(operations) and covers(operations[-1][0]) and is_below(change.path, operations[-1][0].path)
        leaves = inside and change.after is None  # with its directory, about which was decided already
        if not leaves and (reason := objection(change, rules, look)):
            left_out.append(LeftOut(named(rules.workspace, change.path), reason))
            dropped = change.path
            continue
        left_out += set_ids(change, rules)
        if inside:
            operations[-1][1].append(change)
        elif verb_of(change):
            operations.append((change, []))
    made = tuple(Operation(verb_of(change), change, tuple(inner)) for change, inner in operations)
    return Work(made, tuple(left_out))


def verb_of(change: Change) -> str:
    """Empty where nothing is to be done: a directory that was made anew, and is as it was."""
    if change.after is None:
        return REMOVE
    if change.after.kind != "dir" or not was_directory(change):
        return PUT
    assert change.before is not None
    return MODE if (change.before[0] ^ change.after.mode) & 0o1777 else ""


def covers(change: Change) -> bool:
    return verb_of(change) in (PUT, REMOVE)


def was_directory(change: Change) -> bool:
    return change.before is not None and stat.S_ISDIR(change.before[0])


def objection(change: Change, rules: Rules, look: Callable[[bytes], bytes | None]) -> str:
    """Why one entry is not applied; empty if it is."""
    if reason := standing(change, rules):
        return reason
    entry = change.after
    if entry is None or entry.kind != "link" or rules.outside_links:
        return ""
    outside = leads_outside(change.path, entry.target, rules, look)
    return "it is a link that leads out of the workspace" if outside else ""


def standing(change: Change, rules: Rules) -> str:
    """Why one entry is not applied wherever links lead; empty if that decides."""
    for path in rules.protected:
        if is_below(change.path, path) or (is_below(path, change.path) and covers(change)):
            return "it is protected by the policy"
    names_place = change.after is not None and change.after.kind != "dir"
    if name := like_protected(change.path, rules.protected, names_place=names_place):
        return f"git would take it for what {name} is, and that is protected by the policy"
    if change.after is not None and change.after.kind in SPECIAL:
        return f"it is {SPECIAL[change.after.kind]}"
    return ""


def to_come(changes: Iterable[Change], rules: Rules) -> dict[bytes, Entry | None]:
    """What each change leads to, but for those that leave the host as it is wherever links lead."""
    found: dict[bytes, Entry | None] = {}
    dropped: bytes | None = None
    for change in changes:
        if dropped is not None and is_below(change.path, dropped):
            continue
        if standing(change, rules):
            dropped = change.path
        else:
            found[change.path] = change.after
    return found


def set_ids(change: Change, rules: Rules) -> Iterator[LeftOut]:
    if change.after is not None and change.after.kind == "file" and change.after.mode & 0o6000:
        yield LeftOut(named(rules.workspace, change.path), "only its set-user-id and set-group-id bits")


def leads_outside(path: bytes, target: bytes, rules: Rules, look: Callable[[bytes], bytes | None]) -> bool:
    """Whether a link ends outside of the workspace, other links on the way followed; also if that can't be told."""
    at = path.split(b"/")[:-1]
    waiting = [target]
    for _link in range(MOST_LINKS):
        text = waiting.pop()
        if text.startswith(b"/"):
            if not is_below(text, rules.workspace):
                return True
            at, text = [], text[len(rules.workspace) :]
        parts = [part for part in text.split(b"/") if part not in (b"", b".")]
        while parts:
            part = parts.pop(0)
            if part == b"..":
                if not at:
                    return True
                at.pop()
                continue
            further = look(b"/".join([*at, part]))
            if further is not None:
                waiting += [b"/".join(parts), further]
                break
            at.append(part)
        if not waiting:
            return False
    return True


def is_below(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def named(workspace: bytes, path: bytes) -> str:
    return os.fsdecode(os.path.join(workspace, path) if path else workspace)
