"""The files that all runs touched, as a tree (pure)."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from stockade.sandbox.review.model import Exercise, Review, Touched

MOST_FILES = 400
MOST_HANDLERS = 5
"""Names kept of the handlers that touched one file."""
MOST_DEPTH = 24
"""Levels shown; deeper ones stand in one line."""
AREAS = {
    "workspace": "In the project",
    "home": "In the home directory",
    "tmp": "In temporary directories",
    "elsewhere": "Elsewhere",
}


class Leaf(Record):
    """A file, with what was done to it and by whom."""

    name: str
    kinds: tuple[str, ...]
    handlers: tuple[str, ...]
    runs: int
    diff: str


class Branch(Record):
    """A directory; its single child's name is joined to it."""

    name: str
    branches: tuple[Branch, ...]
    leaves: tuple[Leaf, ...]


class Tree(Record):
    """Everything below one place."""

    title: str
    top: Branch
    files: int
    left_out: int


class Tally:
    """What is known so far of one file."""

    __slots__ = ("diff", "handlers", "kinds", "runs")

    def __init__(self) -> None:
        self.kinds: dict[str, None] = {}
        self.handlers: dict[str, None] = {}
        self.diff, self.runs = "", 0

    def add(self, run: Exercise, touched: Touched) -> None:
        self.kinds[touched.kind] = None
        self.handlers[run.handler] = None
        self.diff = self.diff or touched.diff
        self.runs += 1

    def leaf(self, name: str) -> Leaf:
        handlers = list(self.handlers)
        more = [f"and {len(handlers) - MOST_HANDLERS} more"] if len(handlers) > MOST_HANDLERS else []
        return Leaf(name, tuple(self.kinds), (*handlers[:MOST_HANDLERS], *more), self.runs, self.diff)


def trees(review: Review) -> tuple[Tree, ...]:
    """One for each place where something was touched, the project first."""
    areas: dict[str, dict[str, Tally]] = {}
    for run in review.exercises:
        for touched in run.touched:
            files = areas.setdefault(touched.area or "elsewhere", {})
            files.setdefault(touched.path, Tally()).add(run, touched)
    order = [*(name for name in AREAS if name in areas), *(name for name in areas if name not in AREAS)]
    return tuple(tree(AREAS.get(name, name), areas[name]) for name in order)


def tree(title: str, files: Mapping[str, Tally]) -> Tree:
    shown = sorted(files)[:MOST_FILES]
    nested: dict[str, Any] = {}
    for path in shown:
        *folders, name = parts(path)
        at = nested
        for folder in folders:
            at = at.setdefault(f"{folder}/", {})
        at[name] = files[path].leaf(name)
    return Tree(title, branch("", nested), len(files), len(files) - len(shown))


def parts(path: str) -> list[str]:
    """Names on the way; an absolute path begins with an empty one."""
    names = [name for at, name in enumerate(path.split("/")) if name or at == 0]
    return names if len(names) <= MOST_DEPTH else [*names[: MOST_DEPTH - 1], "/".join(names[MOST_DEPTH - 1 :])]


def branch(name: str, nested: Mapping[str, Any]) -> Branch:
    folders = {key: value for key, value in nested.items() if isinstance(value, dict)}
    leaves = tuple(value for value in nested.values() if isinstance(value, Leaf))
    if len(folders) == 1 and not leaves and name:
        ((inner, below),) = folders.items()
        return branch(name + inner, below)
    return Branch(name, tuple(branch(key, folders[key]) for key in folders), leaves)


def leaves_of(top: Branch) -> Iterator[Leaf]:
    """Every file, at any depth."""
    yield from top.leaves
    for each in top.branches:
        yield from leaves_of(each)
