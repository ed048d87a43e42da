"""How events, groups and handlers are nested in each host's files. Pure."""

from __future__ import annotations

from stockade.policies.text import quoted
from stockade.sandbox.hooks.config.handlers import Around, handler
from stockade.sandbox.hooks.config.hosts import HOSTS
from stockade.sandbox.hooks.dialects import dialect as dialect_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.hooks.config.reader import Path, Reader
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.source import Node


def document(reader: Reader, root: Node, around: Around, *, own_file: bool) -> Iterator[HookSpec]:
    """The handlers of a whole file; ``own_file``: it is there for hooks alone, other keys are strange."""
    host = HOSTS[reader.dialect]
    if host.named:
        yield from named(reader, root, around)
        return
    if root.kind != "object":
        reader.wrong(root, (), "an object with the key hooks")
        return
    hooks = root.get("hooks")
    if reader.dialect == "cursor":
        version(reader, root)
    if hooks is not None and not own_file and hooks.kind in ("string", "array"):
        yield from manifest(reader, hooks, around)
    elif hooks is not None:
        yield from events(reader, hooks, ("hooks",), around)
        others(reader, root)
    elif bare := [each for each in root.members if each.key in dialect_named(reader.dialect).EVENTS]:
        yield from not_nested(reader, root, bare[0].node, around)
    elif own_file:
        text = "there is no key hooks, so the host finds no handler"
        reader.tell("no_hooks", "high", text, root, (), 'Write {"hooks": {...}}.')


def manifest(reader: Reader, hooks: Node, around: Around) -> Iterator[HookSpec]:
    """The ``hooks`` of a plugin's manifest: a path, events, or a list of both."""
    if not reader.path.endswith("plugin.json"):
        reader.wrong(hooks, ("hooks",), "an object of events")
        return
    for number, entry in enumerate(hooks.items):
        if entry.kind != "string":
            yield from events(reader, entry, ("hooks", number), around)


def not_nested(reader: Reader, root: Node, first: Node, around: Around) -> Iterator[HookSpec]:
    """Events at the top of the file, where no host looks: the handlers are kept, switched off."""
    text = "the events stand at the top of the file and not under hooks, so the host ignores them all"
    reader.tell("bare_events", "high", text, first, (), 'Put them into {"hooks": {...}}.')
    known = dialect_named(reader.dialect).EVENTS
    for member in root.members:
        if member.key in known:
            yield from one_event(reader, member.key, member.node, (member.key,), around.replace(enabled=False))


def others(reader: Reader, root: Node) -> None:
    """Events that stand beside ``hooks`` instead of in it."""
    known = dialect_named(reader.dialect).EVENTS
    for key, node in reader.members(root, (), "an object"):
        if key in known:
            text = f"{key} stands beside hooks and not in it, so the host ignores it"
            reader.tell("misplaced_event", "high", text, node, (key,), "Move it into hooks.", key)


def version(reader: Reader, root: Node) -> None:
    found = root.get("version")
    if found is None:
        reader.tell("no_version", "medium", "there is no version", root, (), 'Write "version": 1.')
    elif found.kind != "number" or found.value != 1:
        text = f"the version is {quoted(found.value)}, only 1 is known"
        reader.tell("unknown_version", "medium", text, found, ("version",), 'Write "version": 1.')


def named(reader: Reader, root: Node, around: Around) -> Iterator[HookSpec]:
    """Named groups of events: ``{name: {enabled, event: [...]}}``."""
    for name, group in reader.members(root, (), "an object of named groups"):
        if group.kind != "object":
            reader.wrong(group, (name,), "a group (an object of events)")
            continue
        switch = group.get("enabled")
        enabled = around.enabled
        if switch is not None and reader.fits(switch, (name, "enabled"), "switch"):
            enabled = enabled and switch.value is True
        yield from events(reader, group, (name,), around.replace(name=name, enabled=enabled))


def events(reader: Reader, node: Node, at: Path, around: Around) -> Iterator[HookSpec]:
    """A map of events."""
    skip = HOSTS[reader.dialect].not_events
    for event, listed in reader.members(node, at, "an object of events"):
        if event in skip:
            continue
        if event not in dialect_named(reader.dialect).EVENTS:
            unknown(reader, event, listed, (*at, event))
        yield from one_event(reader, event, listed, (*at, event), around)


def unknown(reader: Reader, event: str, node: Node, at: Path) -> None:
    """An event that the host does not send; whose it is, as far as that is known."""
    own = dialect_named(reader.dialect).EVENTS
    near = next((each for each in own if plain(each) == plain(event)), "")
    foreign = [name for name in HOSTS if name != reader.dialect and event in dialect_named(name).EVENTS]
    if near:
        remedy = f"Did you mean {near}?"
    elif foreign:
        remedy = f"It is an event of {' and '.join(foreign)}. Use the one that this host has for it."
    else:
        remedy = "Check its name, or the release of the host that has it."
    severity = "high" if near or foreign else "medium"
    text = f"the host sends no event {quoted(event)}, as far as is known, so its handlers never run"
    reader.tell("unknown_event", severity, text, node, at, remedy, event)


def plain(event: str) -> str:
    return event.lower().replace("_", "").replace("-", "")


def one_event(reader: Reader, event: str, node: Node, at: Path, around: Around) -> Iterator[HookSpec]:
    host = HOSTS[reader.dialect]
    around = around.replace(event=event)
    flat = host.layout == "flat" or event in host.flat_events
    wanted = "a list of handlers" if flat else "a list of groups"
    if node.kind == "null" and host.nulls:
        return
    for number, entry in reader.items(node, at, wanted):
        if flat and not nested_by_mistake(reader, entry, (*at, number)):
            found = handler(reader, entry, (*at, number), around)
            if found is not None:
                yield found
        elif not flat:
            yield from group(reader, entry, (*at, number), around)


def nested_by_mistake(reader: Reader, entry: Node, at: Path) -> bool:
    if entry.kind != "object" or entry.get("hooks") is None or entry.get("command") is not None:
        return False
    remedy = "Put its handlers into the list themselves."
    reader.tell("wrong_shape", "error", "it is a group, expected is a handler", entry, at, remedy)
    return True


def group(reader: Reader, entry: Node, at: Path, around: Around) -> Iterator[HookSpec]:
    """``{matcher, hooks: [...]}``."""
    host = HOSTS[reader.dialect]
    if entry.kind != "object":
        reader.wrong(entry, at, "a group (an object with the key hooks)")
        return
    hooks = entry.get("hooks")
    if hooks is None:
        lonely = entry.get("command") is not None or entry.get("type") is not None
        text = "it is a handler, expected is a group" if lonely else "the group has no hooks"
        remedy = 'Write {"hooks": [{...}]} around it.' if lonely else 'Write "hooks": [...].'
        reader.tell("wrong_shape", "error", text, entry, at, remedy, around.event)
        return
    given = {}
    for key, value in reader.members(entry, at, "a group"):
        if key not in host.group:
            text = f"a group of this host has no {quoted(key)}"
            reader.tell("unknown_field", "low", text, value, (*at, key), "Leave it out.", around.event)
        elif value.kind == "null" and key != "hooks":
            if not host.nulls:
                reader.tell("null_field", "low", f"{key} is null", value, (*at, key), "Leave it out.", around.event)
        elif reader.fits(value, (*at, key), host.group[key]):
            given[key] = value.value
    if "matcher" not in given and (wrong := entry.get("matcher")) is not None and wrong.kind != "null":
        return
    inner = around.replace(matcher=given.get("matcher"), sequential=given.get("sequential") is True)
    for number, each in reader.items(hooks, (*at, "hooks"), "a list of handlers"):
        found = handler(reader, each, (*at, "hooks", number), inner)
        if found is not None:
            yield found
