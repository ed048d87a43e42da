"""What a project's own policy file may say: less than it was granted, never more (pure).

The file comes with code that nobody here wrote, so it is the least trusted layer. Each key has an order
from wide to narrow; anything that is not provably as narrow as what lies below is refused.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.fields import render_values
from stockade.policies.hosts import CHECKS, covers, parse_rule
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WIDE_TO_NARROW: dict[str, tuple[object, ...]] = {
    "mode": ("off", None, "auto", "strict"),
    "filesystem.root": ("host", "minimal"),
    "filesystem.workspace": ("read-write", "overlay", "read-only", "none"),
    "filesystem.toolchains": ("auto", "none"),
    "network.egress": ("open", "allow", "record", "none"),
    "network.private": (True, False),
    "network.check": CHECKS,
    "network.mask_queries": (False, True),
    "syscalls.filter": ("off", "default", "strict"),
    "process.user": ("caller", "auto", "unprivileged"),
}
FIXED = ("network.connector",)
"""Neither wide nor narrow: which of the host's programs reads the packets is not for foreign code to choose."""
NEVER = ("network.edge",)
"""Says where secrets go, and names programs to run for them: a project has no say in it, not even to take away
(a host that the edge has narrowed may be allowed in full elsewhere)."""
FREE = ("filesystem.hide", "filesystem.protect")
"""Lists a project adds to; adding only narrows."""

LOADERS = ("LD_",)
"""Variables with these prefixes make a program load code: not for a project to set."""
OURS = ("HOME", "USER", "LOGNAME", "PATH", "SHELL")
"""Set for every run, and so not for a project to set: PATH decides which program a name is."""

REMEDY = "put it in your user policy, or pass it as an option of this run"


def check_narrowing(
    label: str,
    asked: Mapping[str, Any],
    granted: Mapping[str, Any],
    origin: Mapping[str, str],
    expand: Callable[[str], str],
) -> None:
    """``PolicyError`` for the first key of ``asked`` that is not as narrow as ``granted``.

    ``label`` names the asking layer, ``origin`` the layer behind each grant; ``expand`` makes a written
    path absolute.
    """
    for key, value in asked.items():
        if key in NEVER:
            raise PolicyError(
                f"could not apply the {label}: {key} is not for a project file to set", remedy=f"drop it: {REMEDY}"
            )
        wider = _wider(key, value, granted, expand)
        if wider is not None:
            raise _widening(label, key, wider, granted, origin)


def _wider(key: str, value: Any, granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    """The part of ``value`` that widens, or None."""
    below = granted.get(key)
    if key in FREE or value == below:
        return None
    if key in FIXED:
        return value
    if key in WIDE_TO_NARROW:
        order = WIDE_TO_NARROW[key]
        return None if order.index(value) >= order.index(below) else value
    if key.startswith("limits."):
        return None if value is not None and (below is None or value <= below) else render_values({key: value})[key]
    return _LISTED[key](value, granted, expand)


def _wider_home(value: str, granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    below = granted["filesystem.home"]
    same = below != "empty" and value != "empty" and expand(value) == expand(below)
    return None if value == "empty" or same else value


def _wider_write(value: tuple[str, ...], granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    return _outside(value, _writable(granted), expand)


def _wider_read(value: tuple[str, ...], granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    workspace = () if granted["filesystem.workspace"] == "none" else (".",)
    return _outside(value, (*granted["filesystem.read"], *_writable(granted), *workspace), expand)


def _writable(granted: Mapping[str, Any]) -> tuple[str, ...]:
    workspace = (".",) if granted["filesystem.workspace"] == "read-write" else ()
    return (*granted["filesystem.write"], *workspace)


def _outside(value: tuple[str, ...], grants: tuple[str, ...], expand: Callable[[str], str]) -> object:
    roots = [expand(grant) for grant in grants]
    for path in value:
        full = expand(path)
        if not any(full == root or full.startswith(f"{root}/") for root in roots):
            return path
    return None


def _wider_allow(value: tuple[str, ...], granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    rules = [parse_rule(text) for text in granted["network.allow"]]
    everything = granted["network.egress"] == "open"
    for text in value:
        rule = parse_rule(text)
        # "open" leaves private ranges out, so a project can't name addresses under it, only names.
        if not (everything and rule.name and rule.check in (None, CHECKS[-1])) and not any(
            covers(outer, rule) for outer in rules
        ):
            return text
    return None


def _wider_pass(value: tuple[str, ...], granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    return next((name for name in value if not _passed(name, granted["environment.pass"])), None)


def _wider_set(value: dict[str, str], granted: Mapping[str, Any], expand: Callable[[str], str]) -> object:
    for name, text in value.items():
        known = granted["environment.set"]
        taken = (name in known and known[name] != text) or _passed(name, granted["environment.pass"])
        if taken or name in OURS or name.startswith(LOADERS):
            return name
    return None


def _passed(name: str, grants: tuple[str, ...]) -> bool:
    return any(name == grant or (grant.endswith("*") and name.startswith(grant[:-1])) for grant in grants)


_LISTED: dict[str, Callable[[Any, Mapping[str, Any], Callable[[str], str]], object]] = {
    "filesystem.home": _wider_home,
    "filesystem.write": _wider_write,
    "filesystem.read": _wider_read,
    "network.allow": _wider_allow,
    "environment.pass": _wider_pass,
    "environment.set": _wider_set,
}


def _widening(
    label: str, key: str, wider: object, granted: Mapping[str, Any], origin: Mapping[str, str]
) -> PolicyError:
    below = quoted(render_values({key: granted.get(key)}).get(key, "unset"))
    relation = "another one than" if key in FIXED else "wider than"
    return PolicyError(
        f"could not apply the {label}: {key} asks for {quoted(wider)}, "
        f"which is {relation} the {below} granted by {origin.get(key, 'nobody')}",
        remedy=f"a project file may only narrow: {REMEDY}",
    )
