"""Copies of what is reviewed: handlers run from these, so that nothing of the original can be touched, nor its secrets.

Regular files alone, within bounds; links that stay inside come as what they lead to.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.record import Record
from stockade.sandbox.hooks.discover import SKIPPED
from stockade.sandbox.review.canary import Seed
from stockade.sandbox.review.discovery import is_own, is_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.review.discovery import Discovery

MOST_FILES, MOST_BYTES = 10_000, 64 << 20
"""Of a directory that was named."""
FEW_FILES, FEW_BYTES = 300, 4 << 20
"""Of what lies around a file that was named."""
LEFT_OUT = frozenset((*SKIPPED, ".stockade.toml")) - {"node_modules", ".venv", "venv"}
"""Never copied; dependencies that a handler brings along are."""
PROJECT = ("project", "project-local")


class Staged(Record):
    """What is copied for a review."""

    root: str
    """The original."""
    files: tuple[Seed, ...] = ()
    home: tuple[Seed, ...] = ()
    """Scripts of the user's own hooks, below HOME."""
    problems: tuple[str, ...] = ()


def stage(found: Discovery, home: str) -> Staged:
    """Read what the handlers need. ``home`` is the caller's."""
    whole = os.path.isdir(found.path) or any(each.spec.provenance == "plugin" for each in found.handlers)
    most = (MOST_FILES, MOST_BYTES) if whole else (FEW_FILES, FEW_BYTES)
    wide = holds(found.root, home) or any(each.spec.provenance == "user" for each in found.handlers)
    files = None if wide else gather(found.root, *most)
    named = [(os.path.join(found.root, path), each.spec) for each in found.handlers for path in each.scripts]
    scripts = [path for path, spec in named if is_own(path, spec, found.root)]
    own = tuple(seeds_of(home, [path for path in around(scripts, home, home) if holds(home, path)]))
    if files is not None:
        return Staged(found.root, tuple(files), own)
    here = [path for path in around(scripts, found.root, home) if holds(found.root, path)]
    told = f"only the scripts and what lies beside them were copied: {found.root} is too large, or holds a home"
    return Staged(found.root, tuple(seeds_of(found.root, here)), own, () if wide and not here else (told,))


def holds(top: str, path: str) -> bool:
    """Whether ``path`` is ``top`` or below it."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def gather(top: str, most_files: int, most_bytes: int) -> list[Seed] | None:
    """Every file of a tree; None where it is too much."""
    found: list[Seed] = []
    room = most_bytes
    for path in walk(top):
        seed = seed_of(path, top)
        if seed is None:
            continue
        room -= len(seed.data)
        found.append(seed)
        if room < 0 or len(found) > most_files:
            return None
    return found


def walk(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(each for each in folders if each not in LEFT_OUT)
        yield from (os.path.join(folder, name) for name in sorted(names) if name not in LEFT_OUT)


def seed_of(path: str, top: str) -> Seed | None:
    """One file; None for what is none, can't be read, or leads out of the tree."""
    real = os.path.realpath(path)
    if not holds(os.path.realpath(top), real) or is_secret(os.path.basename(path)):
        return None
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    return Seed(os.path.relpath(path, top), data, 0o755 if status.st_mode & 0o111 else 0o644)


def is_secret(name: str) -> bool:
    """Files that hold secrets by custom: the project's own stay out, ours take their place."""
    return name == ".env" or (name.startswith(".env.") and not name.endswith((".example", ".sample", ".template")))


def seeds_of(top: str, paths: Iterable[str]) -> list[Seed]:
    made = (seed_of(path, top) for path in dict.fromkeys(paths))
    return [each for each in made if each is not None]


def around(scripts: Iterable[str], top: str, home: str) -> list[str]:
    """Scripts, and the files beside them where that is a directory of its own."""
    found: list[str] = []
    for path in dict.fromkeys(scripts):
        found.append(path)
        folder = os.path.dirname(path)
        if folder == top or not holds(top, folder) or is_private(folder, home):
            continue
        try:
            names = sorted(os.listdir(folder))[:FEW_FILES]
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names]
    return found


# --- where things are in the box -----------------------------------------------------------------------------


def in_project(spec: HookSpec) -> bool:
    """Whether a handler's files belong to the project in which it runs."""
    return spec.provenance in PROJECT


def overlay(staged: Staged, spec: HookSpec) -> list[Seed]:
    """What a project's handler has in its project: the files below its root."""
    if not in_project(spec):
        return []
    prefix = os.path.relpath(spec.root, staged.root)
    start = "" if prefix == "." else f"{prefix}/"
    found = [each.replace(path=each.path[len(start) :]) for each in staged.files if each.path.startswith(start)]
    return [each for each in found if not each.path.startswith(".git/")]


def moved(spec: HookSpec, old: str, new: str) -> HookSpec:
    """The handler with every mention of one directory replaced by another."""
    if len(old) < 2 or old == new:
        return spec

    def move(text: str) -> str:
        return text.replace(old, new)

    command = move(spec.command) if isinstance(spec.command, str) else tuple(move(word) for word in spec.command)
    env = tuple((name, move(value)) for name, value in spec.env)
    return spec.replace(command=command, env=env, source=move(spec.source), root=move(spec.root))
