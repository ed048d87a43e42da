"""Hooks files of all hosts as handlers in neutral terms, with everything that is wrong with them.

``load`` is for who is going to run or rewrite the handlers: a file with an error is refused as a whole. ``examine``
is for who wants to see: it tells errors beside what could be read.
"""

from __future__ import annotations

import os

from stockade.policies.record import Record
from stockade.sandbox.hooks.config import switches
from stockade.sandbox.hooks.config.handlers import Around
from stockade.sandbox.hooks.config.hosts import HOSTS
from stockade.sandbox.hooks.config.layouts import document
from stockade.sandbox.hooks.config.place import Place, dialect_of, place_of
from stockade.sandbox.hooks.config.reader import Reader
from stockade.sandbox.hooks.dialects import NAMES
from stockade.sandbox.hooks.dialects import dialect as dialect_named
from stockade.sandbox.hooks.finding import Finding, raised
from stockade.sandbox.hooks.source import RELAXED, HooksFileError, Source, content, parse_source, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.source import Node

__all__ = ["Finding", "Loaded", "examine", "load", "parse"]


class Loaded(Record):
    """One file."""

    path: str
    dialect: str
    """Empty where the file could not be read far enough to tell."""
    specs: tuple[HookSpec, ...] = ()
    """In order of declaration; those that are switched off among them."""
    problems: tuple[Finding, ...] = ()
    provenance: str = ""
    root: str = ""
    all_off: bool | None = None
    """What a settings file of Claude Code says of ``disableAllHooks``; None where it says nothing."""
    managed_only: bool = False
    """Whether a managed file lets no other handlers run."""
    elsewhere: tuple[str, ...] = ()
    """Files with more hooks that a plugin's manifest points to."""

    @property
    def broken(self) -> bool:
        return any(each.severity == "error" for each in self.problems)


def load(path: str, dialect: str | None = None, *, provenance: str = "", root: str = "", home: str = "") -> Loaded:
    """Read a file. Raises HooksFileError for one that can't be read, or with any entry of a wrong shape.

    ``dialect`` None: by where the file stands and what it holds. ``provenance`` and ``root`` likewise.
    """
    return parse(content(path), path, dialect, provenance=provenance, root=root, home=home)


def examine(
    path: str, dialect: str | None = None, *, provenance: str = "", root: str = "", home: str = ""
) -> Loaded:
    """Read as much of a file as can be read; what can't is among the problems. Raises RequestError for a wrong
    ``dialect`` alone."""
    place = settled(path, provenance, root, home)
    try:
        return read(content(path), path, dialect, place)
    except HooksFileError as error:
        what = error.message.partition(": ")[2] or error.message
        found = Finding("unreadable", "error", what, path, error.pointer, error.line, error.column, error.remedy)
        return Loaded(path, dialect or place.dialect, (), (found,), place.provenance, place.root)


def parse(
    data: bytes, path: str, dialect: str | None = None, *, provenance: str = "", root: str = "", home: str = ""
) -> Loaded:
    """The same as ``load`` for the content of a file that is, or would be, at ``path``."""
    loaded = read(data, path, dialect, settled(path, provenance, root, home))
    for each in loaded.problems:
        if each.severity == "error":
            raise raised(each)
    return loaded


def settled(path: str, provenance: str, root: str, home: str) -> Place:
    place = place_of(path, home or os.path.expanduser("~"))
    return place.replace(provenance=provenance or place.provenance, root=root or place.root)


def read(data: bytes, path: str, dialect: str | None, place: Place) -> Loaded:
    if dialect is not None:
        dialect_named(dialect)
    name = dialect or place.dialect
    if path.endswith(".toml"):
        from stockade.sandbox.hooks.config.toml import read_toml

        source = read_toml(data, path)
        name = name or "codex"
    elif path.endswith((".md", ".markdown")):
        from stockade.sandbox.hooks.config.frontmatter import read_frontmatter

        source = read_frontmatter(data, path)
        name, place = name or "claude", place.replace(own_file=False)
    else:
        source, name = read_json(data, path, name, named=place.named)
    if name not in HOSTS:
        raise untold(path, name)
    reader = Reader(path, name)
    odd(reader, source)
    around = Around("", provenance=place.provenance, root=place.root)
    specs = switches.switched(reader, source.root, document(reader, source.root, around, own_file=place.own_file))
    elsewhere = pointed_to(source.root, place.root) if os.path.basename(path) == "plugin.json" else ()
    return Loaded(
        path,
        name,
        specs,
        tuple(reader.findings),
        place.provenance,
        place.root,
        switches.value(source.root, "disableAllHooks") if name == "claude" else None,
        place.provenance == "managed" and switches.value(source.root, "allowManagedHooksOnly") is True,
        elsewhere,
    )


def pointed_to(root: Node, folder: str) -> tuple[str, ...]:
    """The files that the ``hooks`` of a manifest name, those outside of the plugin among them."""
    hooks = root.get("hooks") if root.kind == "object" else None
    nodes = () if hooks is None else hooks.items if hooks.kind == "array" else (hooks,)
    return tuple(os.path.normpath(os.path.join(folder, str(each.value))) for each in nodes if each.kind == "string")


def read_json(data: bytes, path: str, name: str, *, named: bool) -> tuple[Source, str]:
    """The tree and whose it is: the strictest reading that the host allows."""
    if name in HOSTS:
        return parse_source(data, path, HOSTS[name].syntax), name
    source = parse_source(data, path, RELAXED)
    name = name or dialect_of(source.root, named=named)
    return (parse_source(data, path, HOSTS[name].syntax), name) if name in HOSTS else (source, name)


def odd(reader: Reader, source: Source) -> None:
    """What the text itself has that hosts stumble over."""
    remedies = {"duplicate_key": "Leave one of them.", "bom": "Save the file without a byte order mark."}
    for each in source.oddities:
        if each.code in remedies:
            place = (source.path, each.pointer, each.line, each.column)
            reader.findings.append(Finding(each.code, "high", each.text, *place, remedies[each.code]))


def untold(path: str, name: str) -> HooksFileError:
    if name in NAMES:
        return HooksFileError(
            f"could not read {shown(path)}: {name} has no hooks files",
            remedy="Register its hooks in Python.",
            path=path,
        )
    return HooksFileError(
        f"could not read {shown(path)}: it can't be told which host it is for",
        remedy=f"Say it with --dialect: {', '.join(HOSTS)}.",
        path=path,
    )
