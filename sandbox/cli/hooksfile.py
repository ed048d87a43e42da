"""What ``hooks wrap``, ``unwrap`` and ``pin`` share: opening a hooks file, and telling what was done with it."""

from __future__ import annotations

import os
import sys

from stockade.policies.record import Record
from stockade.sandbox.cli.options import VALUE, Option, UsageError
from stockade.sandbox.cli.style import colour_on, escape, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.ondisk import Target
    from stockade.sandbox.hooks.wrap import Rewriting

DIALECT = Option(
    ("--dialect",), "dialect", VALUE, "NAME", "whose file it is, where its name does not tell", "Hooks"
)
SAYS = {
    "wrapped": "wrapped",
    "changed": "wrapped with other options",
    "already": "wrapped already",
    "unwrapped": "unwrapped",
    "plain": "not wrapped",
    "skipped": "left alone",
}
WOULD = {"wrapped": "to be wrapped", "changed": "to be wrapped with other options", "unwrapped": "to be unwrapped"}


class Opened(Record):
    """A hooks file and how its handlers are read."""

    target: Target
    dialect: str
    load: Callable[[bytes], Sequence[HookSpec]]


def only(words: Sequence[str], usage: str) -> str:
    """The one file that a command line names. Raises UsageError."""
    if len(words) != 1:
        cause = "no file was given" if not words else f"{escape(words[1])!r} is one too many"
        raise UsageError(f"could not use the command line: {cause}", remedy=f"Usage: {usage}")
    return words[0]


def opened(path: str, dialect: str | None, *, provenance: str = "", root: str = "") -> Opened:
    """Read a hooks file and tell whose it is. Raises HooksFileError and RequestError."""
    from stockade.sandbox.hooks import config, ondisk

    target = ondisk.target(path)
    where = {"provenance": provenance, "root": root}
    name = config.parse(target.data, path, dialect, **where).dialect
    return Opened(target, name, lambda data: config.parse(data, path, name, **where).specs)


def found(path: str, dialect: str | None) -> list[Opened]:
    """The hooks file that is named, or those of the directory that is.

    Raises HooksFileError where one can't be read, or something could not be looked at, UsageError where there is none.
    """
    if not os.path.isdir(path):
        return [opened(path, dialect)]
    from stockade.sandbox.hooks.discover import discover
    from stockade.sandbox.hooks.finding import raised

    files = []
    for each in discover(path, dialect=dialect):
        if os.path.isdir(each.path):
            raise raised(each.problems[0])
        if each.specs or each.broken:
            files.append(opened(each.path, each.dialect or None, provenance=each.provenance, root=each.root))
    if not files:
        raise UsageError(
            f"could not find hooks in {path!r}: no host looks for them in what is there", remedy="Name the file."
        )
    return files


def project_of(path: str) -> str:
    """The project that a file belongs to; empty for a user's own files, plugins and the like."""
    from stockade.sandbox.hooks.config.place import place_of

    place = place_of(path, os.path.expanduser("~"))
    return place.root if place.provenance in ("project", "project-local") else ""


def note_wrappers(file: Opened, data: bytes) -> None:
    """Let the pins of a file know of the wrappers that were just written or taken away."""
    from stockade.sandbox.hooks.pin import load_pins, store_pins
    from stockade.sandbox.hooks.pinned import pin_of

    pins = load_pins(file.target.real)
    if pins is None:
        return
    now = {each.id: each for spec in file.load(data) if (each := pin_of(spec, file.target.real, ())) is not None}
    handlers = (each.replace(wrapper=now[each.id].wrapper) if each.id in now else each for each in pins.handlers)
    store_pins(pins.replace(handlers=tuple(handlers)))


def open_scripts(file: Opened) -> list[str]:
    """Scripts that a confined run with a writable workspace could change, each with what to do."""
    from stockade.sandbox import policycache
    from stockade.sandbox.hooks.pin import script_paths

    project = project_of(file.target.path)
    if not project:
        return []
    protected = policycache.work_out("workspace-write", None, project, {})[0].protect
    found: dict[str, None] = {}
    for spec in file.load(file.target.data):
        for path in script_paths(spec):
            name = os.path.relpath(os.path.realpath(path), project)
            if not name.startswith("..") and not any(f"{name}/".startswith(f"{each}/") for each in protected):
                found[name] = None
    return [
        f"{name} can be changed by what runs confined with a writable workspace: add it to filesystem.protect."
        for name in found
    ]


def report(
    verb: str, file: Opened, done: Rewriting, *, write: bool, backup: str, notes: Sequence[str], as_json: bool
) -> None:
    """The difference on stdout, what it means on stderr; or all of it as a document."""
    changed = done.data != file.target.data
    diff = difference(file.target.data, done.data, file.target.path)
    told = [*link_note(file), *notes]
    if as_json:
        from stockade.sandbox.cli.document import render

        tree: dict[str, Any] = {
            "schema": f"stockade.{verb}/1",
            "file": file.target.path,
            "target": file.target.real,
            "dialect": file.dialect,
            "changed": changed,
            "written": changed and write,
            "backup": backup or None,
            "handlers": [each.as_dict() for each in done.handlers],
            "notes": told,
            "diff": diff,
        }
        sys.stdout.write(render(tree))
        return
    sys.stdout.write(shown_diff(diff))
    words = SAYS if write else {**SAYS, **WOULD}
    for each in done.handlers:
        because = f": {each.reason}" if each.reason else ""
        say(f"{each.event} {each.pointer}: {words[each.state]}{because}")
    for line in (*told, closing(file, changed=changed, write=write, backup=backup)):
        say(line)


def closing(file: Opened, *, changed: bool, write: bool, backup: str) -> str:
    if not changed:
        return "Nothing to change."
    if not write:
        return "Nothing was written; --write does."
    return f"Wrote {file.target.real}" + (f"; what it was is kept in {backup}." if backup else ".")


def link_note(file: Opened) -> list[str]:
    return [f"{file.target.path} is a symlink: the file is {file.target.real}."] if file.target.linked else []


def say(text: str) -> None:
    sys.stderr.write(f"{escape(text)}\n")


def difference(before: bytes, after: bytes, path: str) -> str:
    """A unified diff; line ends other than LF stay in their lines."""
    import difflib

    was, now = (data.decode("utf-8", "replace").split("\n") for data in (before, after))
    found = difflib.unified_diff(was, now, path, path, lineterm="")
    return "".join(f"{line}\n" for line in found)


def shown_diff(diff: str) -> str:
    """A diff for a terminal: what it obeys made visible, but for tabs."""
    on = colour_on(sys.stdout)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = ["\t".join(map(escape, line.split("\t"))) for line in diff.split("\n")]
    return "\n".join(paint(line, colours[line[0]], on) if line[:1] in colours else line for line in lines)
