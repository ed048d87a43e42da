"""Which hooks files a directory has: those that hosts would read for it, and those of plugins anywhere below.

Bounded, and no symlink leads out of the tree. What could not be looked at is told, never left out silently.
"""

from __future__ import annotations

import os

from stockade.policies.record import Record
from stockade.sandbox.hooks.config import Loaded, examine
from stockade.sandbox.hooks.config.place import MANIFESTS, named_after
from stockade.sandbox.hooks.config.switches import settled
from stockade.sandbox.hooks.finding import Finding
from stockade.sandbox.hooks.source import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = (
    ".claude/settings.local.json", ".claude/settings.json", ".codex/hooks.json", ".codex/config.toml",
    ".agents/hooks.json", ".gemini/settings.json", ".cursor/hooks.json",
)  # fmt: skip
"""What hosts read in a project, the stronger of one host first."""
USER = (
    ".claude/settings.json", ".codex/hooks.json", ".codex/config.toml", ".gemini/config/hooks.json",
    ".gemini/settings.json", ".cursor/hooks.json",
)  # fmt: skip
MANAGED = (
    "/etc/claude-code/managed-settings.json", "/etc/codex/config.toml", "/etc/gemini-cli/settings.json",
    "/etc/cursor/hooks.json", "/.agents/hooks.json",
)  # fmt: skip
SKIPPED = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".pytest_cache")
)
TEXTS = frozenset(("skills", "agents", "commands"))
"""Directories whose Markdown files may have hooks in their frontmatter."""
SHARED = frozenset((".claude", ".codex", ".cursor", ".gemini", ".agents"))
MOST_ENTRIES = 200_000
MOST_FILES = 2_000
DEEPEST = 24


class Tree(Record):
    """What a walk found."""

    paths: tuple[str, ...]
    problems: tuple[Finding, ...] = ()


def discover(path: str, *, home: str | None = None, dialect: str | None = None) -> list[Loaded]:
    """The hooks files of a directory, or the one file that ``path`` is.

    The project's own come first in the order of the hosts' precedence, then those of plugins and nested projects, by
    path; with ``home`` the managed ones and the user's around them. With ``dialect`` those of one host. Files
    without a handler and without a problem are left out. A path that is not there is a
    problem of its own.
    """
    if not os.path.isdir(path):
        return [examine(path, dialect, home=home or "")]
    tree = walk(path)
    fixed = [os.path.join(path, each) for each in PROJECT]
    managed = [each for each in MANAGED if home is not None]
    user = [os.path.join(home, each) for each in USER if home is not None]
    seen: set[str] = set()
    strong = [each for name in (*managed, *fixed) for each in unseen(name, seen, path, home or "")]
    below = [each for name in tree.paths for each in unseen(name, seen, path, home or "")]
    weak = [each for name in user for each in unseen(name, seen, path, home or "")]
    # One session reads the first and the last; what lies below is not in force here.
    session = settled((*strong, *weak))
    files = (*session[: len(strong)], *below, *session[len(strong) :])
    found = [each for each in files if worth(each) and dialect in (None, each.dialect)]
    if tree.problems:
        found.append(Loaded(path, "", (), tree.problems))
    return found


def unseen(path: str, seen: set[str], top: str, home: str) -> Iterator[Loaded]:
    """What a file holds, and what the files that it points to hold, each file once."""
    real = os.path.realpath(path)
    if real in seen or not os.path.isfile(real):
        return
    seen.add(real)
    if within(path, top) and not within(real, os.path.realpath(top)):
        yield Loaded(path, "", (), (unlooked(path, "it is a link out of the tree", "Look at what it leads to."),))
        return
    loaded = foreign(examine(path, home=home))
    here = os.path.realpath(loaded.root)
    away = [each for each in loaded.elsewhere if not within(os.path.realpath(each), here)]
    told = [unlooked(each, f"it is outside of what {shown(path)} belongs to", "Name it itself.") for each in away]
    yield loaded.replace(problems=(*loaded.problems, *told)) if told else loaded
    for each in loaded.elsewhere:
        if each not in away:
            for more in unseen(each, seen, top, home):
                yield more.replace(provenance=loaded.provenance, root=loaded.root)


def foreign(loaded: Loaded) -> Loaded:
    """A file at no host's place in which no handler fits is one of a host that is not known here."""
    if loaded.provenance != "file" or loaded.specs or not loaded.broken or not loaded.dialect:
        return loaded
    text = "it looks like hooks of a host that is not known here, so it was not checked"
    finding = Finding(
        "unknown_host", "low", text, loaded.path, remedy="Say whose it is with --dialect, if it is one's."
    )
    return loaded.replace(dialect="", problems=(finding,), provenance="file")


def worth(loaded: Loaded) -> bool:
    """Whether a file is to be shown: it has handlers or problems, and is a hooks file at all."""
    if loaded.specs:
        return True
    if any(each.code in ("unknown_host", "not_looked_at") for each in loaded.problems):
        return True
    certain = loaded.dialect or os.path.basename(os.path.dirname(loaded.path)) in {*SHARED, "hooks"}
    return bool(loaded.problems) and bool(certain)


def within(path: str, top: str) -> bool:
    top = os.path.abspath(top).rstrip("/") + "/"
    return os.path.abspath(path).startswith(top)


def walk(top: str) -> Tree:
    """Every file below a directory that may be a hooks file, in order of path."""
    paths: list[str] = []
    problems: list[Finding] = []
    entries = 0
    waiting = [(os.path.abspath(top), 0)]
    while waiting:
        folder, deep = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                inside = sorted(listing, key=lambda each: each.name)
        except OSError as error:
            problems.append(unlooked(folder, (error.strerror or str(error)).lower(), "Make it readable."))
            continue
        entries += len(inside)
        if deep > DEEPEST:
            problems.append(unlooked(folder, "it lies too deep", "Name a directory further down."))
            continue
        if entries > MOST_ENTRIES or len(paths) > MOST_FILES:
            problems.append(unlooked(folder, "there are too many files", "Name a smaller directory."))
            break
        folders = [each for each in inside if each.is_dir(follow_symlinks=False) and each.name not in SKIPPED]
        waiting += [(each.path, deep + 1) for each in reversed(folders)]
        paths += [each.path for each in inside if candidate(each.path) and each.is_file()]
    return Tree(tuple(sorted(paths)), tuple(problems))


def unlooked(folder: str, why: str, remedy: str) -> Finding:
    return Finding("not_looked_at", "error", f"{shown(folder)} was not looked at: {why}", folder, remedy=remedy)


def candidate(path: str) -> bool:
    """Whether a file's name may be that of a hooks file."""
    folder, name = os.path.split(path)
    parent = os.path.basename(folder)
    if name == "config.toml":
        return parent == ".codex"
    if name == "plugin.json":
        return parent in MANIFESTS
    if name.endswith(".json"):
        settings = name.startswith("settings") and parent in (".claude", ".gemini")
        return settings or name == "hooks.json" or ("hooks" in name.lower() and bool(named_after(name)))
    if name.endswith(".md"):
        return name == "SKILL.md" or parent in TEXTS
    return False
