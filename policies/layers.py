"""Layers of policy to one set of values, each with the layer it came from (pure).

    preset < system < user < project < environment < options

A later layer replaces what an earlier one said. Two are special: a project may only narrow (``narrow``),
and the options of a call add to lists instead of replacing them. Reads no files and no environment.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.fields import ATTRIBUTES, check_contradictions
from stockade.policies.narrow import check_narrowing
from stockade.policies.record import Record
from stockade.policies.resolved import Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

ORDER = ("preset", "system", "user", "project", "environment", "options")
LISTS = (
    "filesystem.write",
    "filesystem.read",
    "filesystem.hide",
    "filesystem.protect",
    "network.allow",
    "network.edge",
    "environment.pass",
)
ADDED = {"options": LISTS, "project": ("filesystem.hide", "filesystem.protect")}
"""Lists to which a layer adds; everywhere else it replaces."""

IMPLIED = "egress implies confinement"
IMPLIED_BY_OVERLAY = "an overlay workspace implies confinement"
UNSET_MODE = "unset: follows provenance"


class Layer(Record):
    """What one preset, file, variable or call says."""

    kind: str
    """One of ``ORDER``."""
    label: str
    """How the layer is named in messages and in ``stockade policy explain``."""
    values: dict[str, Any]
    """Parsed values by TOML key (see ``fields``)."""


class Merged(Record):
    """The values that are in force, and for each the label of the layer that set it."""

    values: dict[str, Any]
    origin: dict[str, str]


def merge(layers: Iterable[Layer], *, expand: Callable[[str], str]) -> Merged:
    """All layers in order of ``ORDER`` (those of one kind in the order given).

    ``expand`` makes a written path absolute, for the question whether one lies below another. A project
    layer that widens is a ``PolicyError``.
    """
    merged = Merged({}, {})
    given_up: dict[str, str] = {}
    caller: Merged | None = None
    for layer in sorted(layers, key=lambda layer: ORDER.index(layer.kind)):
        below, merged = merged, _over(merged, layer)
        if layer.kind == "project":
            # Also against what lies below all of them: one file may make room for what another could not set.
            caller = caller or below
            for granted in (caller, below):
                check_narrowing(layer.label, layer.values, granted.values, granted.origin, expand)
            merged = _still_confined(merged, below)
            places = _places(merged.values, expand)
            given_up |= {each: layer.label for each in _places(below.values, expand) if each not in places}
    return _still_hidden(merged, given_up, expand)


def lexical(home: str, workspace: str) -> Callable[[str], str]:
    """An ``expand`` that looks at nothing but the text."""

    def expand(path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = f"{home}{path[1:]}"
        elif not path.startswith("/"):
            path = f"{workspace}/{path}"
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))

    return expand


def literal(path: str) -> str:
    """The glob that means a path and nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[\\" else letter for letter in path)


def finish(merged: Merged, name: str) -> Resolved:
    """The record that is enforced: contradictions refused, ``egress`` and an overlay made to imply confinement.

    ``name`` is the preset or file the policy started from.
    """
    values = {"mode": None, **merged.values}
    origin = {"mode": UNSET_MODE, **merged.origin}
    if missing := [key for key in ATTRIBUTES if key not in values]:
        raise PolicyError(f"could not use {name}: nothing sets {missing[0]}", remedy="extend a preset")
    _check_merged(values, origin)
    if implied := _implied(values):
        values["mode"], origin["mode"] = "auto", implied
    fields = {ATTRIBUTES[key]: values[key] for key in ATTRIBUTES}
    fields["env_set"] = tuple(sorted(values["environment.set"].items()))
    return Resolved(name=name, **fields, origin=tuple((key, origin[key]) for key in ATTRIBUTES))


def _over(below: Merged, layer: Layer) -> Merged:
    values, origin = dict(below.values), dict(below.origin)
    for key, value in layer.values.items():
        values[key], added = _combined(layer.kind, key, values.get(key), value)
        if added:
            origin[key] = f"{origin[key]} + {layer.label}"
        elif key not in origin or values[key] != below.values[key] or not _adds(layer.kind, key):
            origin[key] = layer.label
    return _without_idle_hosts(Merged(values, origin), layer)


def _implied(values: dict[str, Any]) -> str:
    """What makes an unset mode ``auto``; empty if nothing does, or the mode is set."""
    if values.get("mode") is not None:
        return ""
    if values["network.egress"] != "none":
        return IMPLIED
    return IMPLIED_BY_OVERLAY if values["filesystem.workspace"] == "overlay" else ""


def _still_confined(merged: Merged, below: Merged) -> Merged:
    """A project that turns off what implied confinement does not turn off confinement."""
    implied = _implied(below.values)
    if not implied or merged.values.get("mode") is not None:
        return merged
    return Merged({**merged.values, "mode": "auto"}, {**merged.origin, "mode": implied})


def _still_hidden(merged: Merged, given_up: dict[str, str], expand: Callable[[str], str]) -> Merged:
    """Where a project gives up a grant, what is hidden in it stays so: the host's view may show it all the same.

    ``given_up`` has the place and the label of the project's layer.
    """
    if not given_up:
        return merged
    places = _places(merged.values, expand)
    patterns = [text for text in merged.values["filesystem.hide"] if not text.startswith(("/", "~"))]
    lost = [place for place in given_up if place not in places]
    kept = [f"{literal(place)}/{text}" for place in lost for text in patterns]
    hidden = tuple(dict.fromkeys((*merged.values["filesystem.hide"], *kept)))
    origin = merged.origin["filesystem.hide"]
    labels = [label for label in dict.fromkeys(given_up[place] for place in lost) if label not in origin]
    said = " + ".join((origin, *labels)) if kept else origin
    return Merged({**merged.values, "filesystem.hide": hidden}, {**merged.origin, "filesystem.hide": said})


def _places(values: dict[str, Any], expand: Callable[[str], str]) -> list[str]:
    """Where relative hide patterns apply."""
    workspace = () if values["filesystem.workspace"] == "none" else (".",)
    return [expand(path) for path in (*workspace, *values["filesystem.write"], *values["filesystem.read"])]


def _combined(kind: str, key: str, below: Any, value: Any) -> tuple[Any, bool]:
    """The new value, and whether it is made of both."""
    if not below or not _adds(kind, key):
        return value, False
    both: Any = {**below, **value} if isinstance(below, dict) else tuple(dict.fromkeys((*below, *value)))
    return both, both != below


def _adds(kind: str, key: str) -> bool:
    return key == "environment.set" or key in ADDED.get(kind, ())


def _without_idle_hosts(merged: Merged, layer: Layer) -> Merged:
    """A layer that turns to another network kind, naming no hosts itself, leaves the list below without use."""
    egress = layer.values.get("network.egress", "allow")
    if egress == "allow" or "network.allow" in layer.values or not merged.values.get("network.allow"):
        return merged
    origin = {**merged.origin, "network.allow": f"{layer.label} (emptied by network.egress)"}
    return Merged({**merged.values, "network.allow": ()}, origin)


def _check_merged(values: dict[str, Any], origin: dict[str, str]) -> None:
    keys = ("mode", "network.egress", "network.allow", "network.check", "filesystem.workspace")
    said = ", ".join(f"{key} from {origin[key]}" for key in keys)
    check_contradictions(values, f"the merged policy ({said})")
