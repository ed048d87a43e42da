"""Switches beside the hooks of a settings file that turn handlers off. Pure."""

from __future__ import annotations

from stockade.sandbox.hooks.finding import Finding
from stockade.sandbox.hooks.source import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.sandbox.hooks.config import Loaded
    from stockade.sandbox.hooks.config.reader import Path, Reader
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.source import Node


def switched(reader: Reader, root: Node, specs: Iterable[HookSpec]) -> tuple[HookSpec, ...]:
    """The handlers, those that a switch turns off disabled; each switch that does is told."""
    found = tuple(specs)
    if reader.dialect == "claude":
        return claude(reader, root, found)
    if reader.dialect == "gemini":
        return gemini(reader, root, found)
    return found


def off(specs: tuple[HookSpec, ...]) -> tuple[HookSpec, ...]:
    return tuple(each.replace(enabled=False) for each in specs)


def claude(reader: Reader, root: Node, specs: tuple[HookSpec, ...]) -> tuple[HookSpec, ...]:
    if not turned(reader, root, ("disableAllHooks",), on=True):
        return specs
    node = root.get("disableAllHooks")
    if specs and node is not None:
        text = "disableAllHooks is on: none of these handlers runs"
        reader.tell("disabled", "medium", text, node, ("disableAllHooks",), "Remove it where they are to run.")
    return off(specs)


def gemini(reader: Reader, root: Node, specs: tuple[HookSpec, ...]) -> tuple[HookSpec, ...]:
    """``hooksConfig`` of newer releases, the same keys in ``hooks`` of older ones."""
    for key in ("hooksConfig", "hooks"):
        if turned(reader, root, (key, "enabled"), on=False):
            holder = root.get(key)
            node = holder.get("enabled") if holder else None
            if node is not None:
                text = f"{key}.enabled is false: none of these handlers runs"
                reader.tell("disabled", "medium", text, node, (key, "enabled"), "Remove it where they are to run.")
            specs = off(specs)
        specs = tuple(each.replace(enabled=False) if listed(root, key, each) else each for each in specs)
    return specs


def listed(root: Node, key: str, spec: HookSpec) -> bool:
    """Whether a handler is among the disabled, by name, or by command where it has none."""
    holder = root.get(key)
    names = holder.get("disabled") if holder else None
    if names is None or names.kind != "array":
        return False
    return (spec.name or spec.command) in names.value


def value(root: Node, key: str) -> bool | None:
    """A switch at the top of a file."""
    node = root.get(key) if root.kind == "object" else None
    return node.value if node is not None and isinstance(node.value, bool) else None


STRONGEST = ("managed", "project-local", "project", "user")


def settled(found: Iterable[Loaded]) -> list[Loaded]:
    """Files that one session reads, with what a switch in one of them does to the handlers of the others.

    Claude Code merges its settings: the strongest ``disableAllHooks`` counts for all files but managed ones, which
    only a managed file turns off; ``allowManagedHooksOnly`` leaves no others.
    """
    files = list(found)
    said = {each.provenance: each for each in files if each.dialect == "claude" and each.all_off is not None}
    ruling = next((said[each] for each in STRONGEST if each in said), None)
    only = next((each for each in files if each.managed_only), None)
    return [settle(each, ruling, only) for each in files]


def settle(loaded: Loaded, ruling: Loaded | None, only: Loaded | None) -> Loaded:
    if loaded.dialect != "claude" or not loaded.specs:
        return loaded
    managed = loaded.provenance == "managed"
    if only is not None and not managed:
        return turned_off(loaded, only, "allowManagedHooksOnly")
    if ruling is not None and ruling.all_off and ruling.path != loaded.path and not managed:
        return turned_off(loaded, ruling, "disableAllHooks")
    if ruling is not None and not ruling.all_off and loaded.all_off:
        # A stronger file overrules this one's own switch.
        kept = tuple(each for each in loaded.problems if each.pointer != "/disableAllHooks")
        return loaded.replace(specs=tuple(each.replace(enabled=True) for each in loaded.specs), problems=kept)
    return loaded


def turned_off(loaded: Loaded, by: Loaded, key: str) -> Loaded:
    text = f"{key} in {shown(by.path)} is on: none of these handlers runs"
    told = Finding("disabled", "medium", text, loaded.path, remedy="Remove it where they are to run.")
    return loaded.replace(specs=off(loaded.specs), problems=(*loaded.problems, told))


def turned(reader: Reader, root: Node, at: Path, *, on: bool) -> bool:
    """Whether the switch at ``at`` is there and has the value ``on``."""
    node: Node | None = root
    for step in at:
        node = node.get(str(step)) if node is not None and node.kind == "object" else None
    return node is not None and reader.fits(node, at, "switch") and node.value is on
