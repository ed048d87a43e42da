"""What a hooks file is, by where it stands and by what it holds: whose it is, who put it there, what it belongs to."""

from __future__ import annotations

import os

from stockade.policies.record import Record
from stockade.sandbox.hooks.dialects import dialect as dialect_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.source import Node

FOLDERS = {".claude": "claude", ".codex": "codex", ".cursor": "cursor", ".gemini": "gemini"}
MANIFESTS = {".claude-plugin": "claude", ".codex-plugin": "codex", ".cursor-plugin": "cursor"}
MANAGED = ("/etc/claude-code/", "/etc/codex/", "/etc/gemini-cli/", "/etc/cursor/")


class Place(Record):
    """What a path tells."""

    dialect: str = ""
    """Empty where only the content can tell."""
    provenance: str = "project"
    """``project``, ``project-local``, ``user``, ``plugin``, ``extension``, ``managed`` or ``file``."""
    root: str = ""
    named: bool = False
    """Whether it can only be one of a host whose groups have names."""
    own_file: bool = True
    """Whether the file is there for hooks alone."""


def place_of(path: str, home: str = "") -> Place:
    """What the path of a file tells; it is not opened. ``home`` is the user's."""
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    above, parent = os.path.split(folder)
    owner = "user" if home and os.path.abspath(home) == above else "project"
    root = folder if owner == "user" else above
    if path.startswith(MANAGED):
        dialect = next(name for name in ("claude", "codex", "gemini", "cursor") if f"/etc/{name}" in path)
        return Place(dialect, "managed", folder, own_file=name == "hooks.json")
    if name.startswith("settings") and name.endswith(".json") and parent in FOLDERS:
        local = "project-local" if name == "settings.local.json" and owner == "project" else owner
        return Place(FOLDERS[parent], local, root, own_file=False)
    if parent in FOLDERS:
        return Place(FOLDERS[parent], owner, root, own_file=name not in ("config.toml",))
    if parent == ".agents" or folder.endswith("/.gemini/config"):
        return Place("", owner, above, named=True) if parent == ".agents" else Place("agy", owner, folder)
    if name == "plugin.json" and parent in MANIFESTS:
        return Place(MANIFESTS[parent], "plugin", above, own_file=False)
    if parent == "hooks":
        return plugin(above, named_after(name))
    return (
        plugin(folder, named_after(name))
        if name != "config.toml"
        else Place("codex", "file", folder, own_file=False)
    )


def plugin(root: str, dialect: str) -> Place:
    """A hooks file of what ``root`` is the root of."""
    if os.path.isfile(os.path.join(root, "gemini-extension.json")):
        return Place(dialect or "gemini", "extension", root)
    if dialect:
        return Place(dialect, "plugin" if is_plugin(root) else "file", root)
    found = [name for folder, name in MANIFESTS.items() if os.path.isdir(os.path.join(root, folder))]
    # The same file serves both hosts where both manifests are there.
    return Place(found[0] if found else "", "plugin" if found else "file", root)


def is_plugin(root: str) -> bool:
    return any(os.path.isdir(os.path.join(root, each)) for each in MANIFESTS)


def named_after(name: str) -> str:
    """The host that a file's own name tells: ``hooks-cursor.json``."""
    stem = name.lower().rpartition(".")[0]
    return next((host for host in ("codex", "cursor", "gemini", "claude") if host in stem), "")


def dialect_of(root: Node, *, named: bool = False) -> str:
    """The dialect that the content of a file looks like; empty where nothing tells."""
    if named:
        return (named_dialect(root) if root.kind == "object" else "") or "antigravity"
    if root.kind != "object":
        return ""
    hooks = root.get("hooks")
    if hooks is not None and hooks.kind == "object":
        return nested_dialect(root, hooks)
    if found := named_dialect(root):
        return found
    return best([each.key for each in root.members], ("claude", "gemini", "cursor"))


def nested_dialect(root: Node, hooks: Node) -> str:
    keys = [each.key for each in hooks.members]
    flat = any(
        entry.get("command") for each in hooks.members for entry in each.node.items if entry.kind == "object"
    )
    if root.get("version") is not None or flat:
        return best(keys, ("cursor",)) or best(keys, ("claude", "gemini")) or "cursor"
    return best(keys, ("claude", "gemini", "codex", "cursor"))


def named_dialect(root: Node) -> str:
    """Antigravity and agy both name their groups; the events in them tell which."""
    keys = [each.key for group in root.members if group.node.kind == "object" for each in group.node.members]
    return best(keys, ("antigravity", "agy"))


def best(keys: list[str], names: tuple[str, ...]) -> str:
    """The first of the dialects that knows most of the keys for events."""
    scores = {name: sum(key in dialect_named(name).EVENTS for key in keys) for name in names}
    top = max(scores.values(), default=0)
    return next((name for name in names if scores[name] == top), "") if top else ""
