"""The handlers that a host would find: of files that are named, or of a project's own places.

Unlike ``discover``, which shows everything in a tree, this takes what is going to be run: nobody's plugin below the
project, and no file that can't be read whole.
"""

from __future__ import annotations

import os

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.hooks.config import load
from stockade.sandbox.hooks.config.switches import settled
from stockade.sandbox.hooks.discover import MANAGED, PROJECT, USER
from stockade.sandbox.hooks.source import HooksFileError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.sandbox.hooks.config import Loaded
    from stockade.sandbox.hooks.finding import Finding
    from stockade.sandbox.hooks.model import HookSpec

PLUGIN = "hooks/hooks.json"
HOSTED = "/.agents/hooks.json"


class Found(Record):
    """Handlers of one host, and where they come from."""

    dialect: str
    specs: tuple[HookSpec, ...]
    files: tuple[str, ...]
    project_dir: str = ""
    problems: tuple[Finding, ...] = ()


def configured(
    paths: Iterable[str | os.PathLike[str]], dialect: str | None = None, *, home: str | os.PathLike[str] = ""
) -> Found:
    """The handlers of files, and of what directories have in the places that hosts look at.

    ``dialect`` is whose they are; None where that can be told, and is the same for all. ``home`` adds the files of
    this user and of the machine. Raises HooksFileError where there is none, or one that can't be used, and
    RequestError where they are of several hosts.
    """
    named = [os.fspath(path) for path in paths]
    own = os.fspath(home)
    loaded: list[Loaded] = []
    for path in named:
        loaded += of_directory(path, dialect, own) if os.path.isdir(path) else [load(path, dialect, home=own)]
    if own:
        loaded += [
            *those_of(MANAGED, dialect, own),
            *those_of((os.path.join(own, each) for each in USER), dialect, own),
        ]
    if not loaded:
        raise HooksFileError(
            f"could not find a hooks file in {', '.join(map(shown, named))}",
            remedy="Name the file: --config FILE." if dialect is None else f"Or {dialect} has none there.",
        )
    loaded = settled(loaded)
    name = one_dialect(loaded)
    mine = [each for each in loaded if each.dialect == name]
    return Found(
        name,
        tuple(spec for each in mine for spec in each.specs),
        tuple(each.path for each in mine),
        project_of(named, mine),
        tuple(problem for each in mine for problem in each.problems),
    )


def of_directory(path: str, dialect: str | None, home: str) -> list[Loaded]:
    """The files of a project, or of a plugin, in the order of their host's precedence."""
    places = [os.path.join(path, each) for each in (*PROJECT, PLUGIN)]
    hosted = [HOSTED] if dialect == "antigravity" and not home else []
    return those_of((*places, *hosted), dialect, home)


def those_of(paths: Iterable[str], dialect: str | None, home: str) -> list[Loaded]:
    """The files that are there, of one host where it is said."""
    found: list[Loaded] = []
    for path in paths:
        if not os.path.lexists(path):
            continue
        # Whose a file is, is told by its place; only where it is not, by who asks.
        each = load(path, dialect if "/.agents/" in path or path.endswith(PLUGIN) else None, home=home)
        if dialect in (None, each.dialect):
            found.append(each)
    return found


def one_dialect(loaded: Iterable[Loaded]) -> str:
    """Whose the handlers are. A settings file without any does not count beside others."""
    everything = list(loaded)
    names = list(dict.fromkeys(each.dialect for each in everything if each.specs))
    if len(names) > 1:
        raise RequestError(
            f"could not run the handlers: they are of several hosts ({', '.join(names)})",
            remedy="Say which with --dialect, or name one file.",
        )
    return names[0] if names else everything[0].dialect


def project_of(named: Iterable[str], loaded: Iterable[Loaded]) -> str:
    folder = next((path for path in named if os.path.isdir(path)), "")
    if folder:
        return os.path.abspath(folder)
    return next((each.root for each in loaded if each.provenance.startswith("project")), "")
