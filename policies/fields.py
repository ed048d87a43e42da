"""Every setting by its TOML key: what it may say, and what it comes to once parsed (pure).

Values here are in parsed form: tuples of text, seconds, bytes, ``None`` for no limit. ``model`` decodes
the TOML shape, ``layers`` merges parsed values; neither knows how a single value is judged.
"""

from __future__ import annotations

from stockade.policies.errors import PolicyError
from stockade.policies.hosts import CHECKS, parse_rule
from stockade.policies.hosts import WANTED as HOST_WANTED
from stockade.policies.text import either, quoted
from stockade.policies.units import (
    COUNT_WANTED,
    DURATION_WANTED,
    SIZE_WANTED,
    parse_count,
    parse_duration,
    parse_size,
    render_count,
    render_duration,
    render_size,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

ATTRIBUTES = {
    "mode": "mode",
    "filesystem.root": "root",
    "filesystem.workspace": "workspace",
    "filesystem.write": "write",
    "filesystem.read": "read",
    "filesystem.hide": "hide",
    "filesystem.protect": "protect",
    "filesystem.home": "home",
    "filesystem.toolchains": "toolchains",
    "environment.pass": "env_pass",
    "environment.set": "env_set",
    "network.egress": "egress",
    "network.allow": "allow",
    "network.private": "private",
    "network.check": "check",
    "network.edge": "edge",
    "network.mask_queries": "mask_queries",
    "network.connector": "connector",
    "limits.timeout": "timeout",
    "limits.cpu": "cpu",
    "limits.memory": "memory",
    "limits.processes": "processes",
    "limits.file_size": "file_size",
    "limits.tmp": "tmp",
    "limits.output": "output",
    "limits.open_files": "open_files",
    "syscalls.filter": "syscalls",
    "process.user": "user",
}
"""TOML key to the field of ``Resolved``, in the order they are shown."""

WORDS = {
    "mode": ("auto", "strict", "off"),
    "filesystem.root": ("host", "minimal"),
    "filesystem.workspace": ("read-only", "read-write", "overlay", "none"),
    "filesystem.toolchains": ("auto", "none"),
    "network.egress": ("none", "record", "allow", "open"),
    "network.check": ("auto", "name", "address"),
    "network.connector": ("auto", "slirp4netns", "pasta"),
    "syscalls.filter": ("default", "strict", "off"),
    "process.user": ("auto", "caller", "unprivileged"),
}
"""Settings that are one word out of a few."""

PATH_WANTED = 'write an absolute path, "~/..." or a path relative to the workspace, without ".." and wildcards'
GLOB_WANTED = 'write a path or a glob: absolute, "~/..." or relative to the workspace, without ".."'
HOME_WANTED = 'write "empty" or the path of a directory (a directory of that name: "./empty")'
NAMES_WANTED = 'write variable names such as "LANG", or a prefix such as "LC_*"'
SET_WANTED = 'write a table of names and texts such as { CI = "1" }'
EDGE_WANTED = "write [[network.edge]] tables with a host, and methods, paths, headers if need be"
TABLE_WANTED = (
    f'write a table such as {{ host = "api.example.com", check = "name" }}, where check is {either(CHECKS)}'
)
LONGEST_PATH = 4096

ALLOWED = {
    **{key: f"write {either(words)}" for key, words in WORDS.items()},
    "extends": "write the name of a preset or the path of a policy file",
    "filesystem.write": f"in a list, {PATH_WANTED}",
    "filesystem.read": f"in a list, {PATH_WANTED}",
    "filesystem.hide": f"in a list, {GLOB_WANTED}",
    "filesystem.protect": f"in a list, {PATH_WANTED}",
    "filesystem.home": HOME_WANTED,
    "environment.pass": f"in a list, {NAMES_WANTED}",
    "environment.set": SET_WANTED,
    "network.allow": f"in a list, {HOST_WANTED}",
    "network.private": "write true or false",
    "network.edge": EDGE_WANTED,
    "network.mask_queries": "write true or false",
    **dict.fromkeys(("limits.timeout", "limits.cpu"), DURATION_WANTED),
    **dict.fromkeys(("limits.memory", "limits.file_size", "limits.tmp", "limits.output"), SIZE_WANTED),
    **dict.fromkeys(("limits.processes", "limits.open_files"), COUNT_WANTED),
}
"""What a key may say, as the remedy line of an error."""


def parse_values(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Values in TOML shape to parsed ones; ``PolicyError`` names the key and ``source``."""
    parsed = {key: PARSERS[key](value, f"{key} of {source}") for key, value in values.items()}
    check_contradictions(parsed, source)
    return parsed


def render_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed values back to TOML shape, key by key; an unset mode is left out."""
    return {
        key: RENDERERS.get(key, _plain)(value)
        for key, value in values.items()
        if value is not None or key != "mode"
    }


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to sections, as a TOML document has them."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section, _, field = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[field] = value
    return tree


def check_contradictions(values: Mapping[str, Any], source: str) -> None:
    """Settings that can't all be meant at once; only those present in ``values`` are compared."""
    egress = values.get("network.egress", "none")
    if values.get("mode") == "off" and egress != "none":
        raise PolicyError(
            f'could not use {source}: mode = "off" and network.egress = "{egress}" contradict each other',
            remedy='an unconfined run has the network of the host: drop one of the two, or set mode = "auto"',
        )
    if values.get("mode") == "off" and values.get("filesystem.workspace") == "overlay":
        raise PolicyError(
            f'could not use {source}: mode = "off" and filesystem.workspace = "overlay" contradict each other',
            remedy='an unconfined run writes to the host: drop one of the two, or set mode = "auto"',
        )
    _check_checks(values, source)
    if edge := values.get("network.edge"):
        from stockade.policies.edgefields import check_amount

        check_amount(edge, f"network.edge of {source}")
    if values.get("network.allow") and "network.egress" in values and egress != "allow":
        raise PolicyError(
            f'could not use {source}: network.allow names hosts, but network.egress is "{egress}"',
            remedy='set network.egress = "allow", or empty network.allow',
        )


def _check_checks(values: Mapping[str, Any], source: str) -> None:
    """Names can't be checked in UDP packets, so where all must be, an entry has to say that its own is not."""
    if values.get("network.check") != CHECKS[-1]:
        return
    for text in values.get("network.allow", ()):
        rule = parse_rule(text) if text.startswith("udp://") else None
        if rule is not None and rule.name is not None and rule.check is None:
            raise PolicyError(
                f'could not use {source}: network.check = "name", but the name of {quoted(text)} can\'t be seen in UDP',
                remedy=f'write "{text} check=address", or drop it',
            )


def check_path(text: str, where: str, *, wanted: str = PATH_WANTED, wildcards: str = "*?") -> str:
    """The path as written; ``PolicyError`` where no run could honour it. ``wildcards`` are refused in it."""
    if cause := _path_fault(text, wildcards):
        raise PolicyError(f"could not use {where}: {quoted(text)} {cause}", remedy=wanted)
    return text


def _path_fault(text: str, wildcards: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not text or len(text) > LONGEST_PATH:
        return "is empty" if not text else "is longer than a path can be"
    if "\0" in text:
        return "has a NUL in it"
    if text.startswith("/") and not parts:
        return "is the whole file system"
    if ".." in parts:
        return 'has ".." in it'
    if text.startswith("~") and text.split("/")[0] != "~":
        return "names the home of a user (a file of that name: ./~...)"
    return "has a wildcard in it" if any(letter in text for letter in wildcards) else ""


def _word(value: Any, where: str) -> Any:
    key = where.partition(" ")[0]
    if value not in WORDS[key]:
        raise PolicyError(f"could not use {where}: {quoted(value)} is not allowed", remedy=ALLOWED[key])
    return value


def _paths(value: Iterable[str], where: str) -> tuple[str, ...]:
    return _unique(check_path(text, where) for text in value)


def _globs(value: Iterable[str], where: str) -> tuple[str, ...]:
    return _unique(check_path(text, where, wanted=GLOB_WANTED, wildcards="") for text in value)


def _home(value: str, where: str) -> str:
    return value if value == "empty" else check_path(value, where, wanted=HOME_WANTED)


def _passed(value: Iterable[str], where: str) -> tuple[str, ...]:
    for name in value:
        if name == "*" or not _variable(name[:-1] if name.endswith("*") else name):
            raise PolicyError(f"could not use {where}: {quoted(name)} is no name or prefix", remedy=NAMES_WANTED)
    return _unique(value)


def _assigned(value: Mapping[str, str], where: str) -> dict[str, str]:
    for name, text in value.items():
        if not _variable(name):
            raise PolicyError(f"could not use {where}: {quoted(name)} is no variable name", remedy=SET_WANTED)
        if "\0" in text:
            raise PolicyError(
                f"could not use {where}: the value of {quoted(name)} has a NUL in it", remedy=SET_WANTED
            )
    return dict(value)


def _variable(name: str) -> bool:
    return bool(name) and not any(letter in "=\0*?[" for letter in name)


def _hosts(value: Iterable[str | Mapping[str, Any]], where: str) -> tuple[str, ...]:
    return _unique(parse_rule(_host_text(entry, where), where).text for entry in value)


def _host_text(entry: str | Mapping[str, Any], where: str) -> str:
    """An entry as text; it may also be a table of ``host`` and ``check``."""
    if isinstance(entry, str):
        return entry
    host, check = entry.get("host"), entry.get("check")
    if set(entry) - {"host", "check"} or not isinstance(host, str) or (check is not None and check not in CHECKS):
        raise PolicyError(f"could not use {where}: {quoted(entry)} is not allowed", remedy=TABLE_WANTED)
    if check is not None and " " in host:
        raise PolicyError(f"could not use {where}: {quoted(host)} has a space in it", remedy=TABLE_WANTED)
    return host if check is None else f"{host} check={check}"


def _edge(value: Iterable[Mapping[str, Any]], where: str) -> tuple[str, ...]:
    if not value:
        return ()
    from stockade.policies.edgefields import parse_edge

    return _unique(parse_edge(value, where))


def _edge_tables(lines: Iterable[str]) -> list[dict[str, Any]]:
    if not lines:
        return []
    from stockade.policies.edgefields import edge_table

    return [edge_table(line) for line in lines]


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(
            f"could not use {where}: {quoted(value)} is not a truth value", remedy="write true or false"
        )
    return value


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


PARSERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(WORDS, _word),
    "filesystem.write": _paths,
    "filesystem.read": _paths,
    "filesystem.hide": _globs,
    "filesystem.protect": _paths,
    "filesystem.home": _home,
    "environment.pass": _passed,
    "environment.set": _assigned,
    "network.allow": _hosts,
    "network.private": _flag,
    "network.edge": _edge,
    "network.mask_queries": _flag,
    **dict.fromkeys(("limits.timeout", "limits.cpu"), parse_duration),
    **dict.fromkeys(("limits.memory", "limits.file_size", "limits.tmp", "limits.output"), parse_size),
    **dict.fromkeys(("limits.processes", "limits.open_files"), parse_count),
}

RENDERERS: dict[str, Callable[[Any], Any]] = {
    "environment.set": dict,
    "network.edge": _edge_tables,
    **dict.fromkeys(("limits.timeout", "limits.cpu"), render_duration),
    **dict.fromkeys(("limits.memory", "limits.file_size", "limits.tmp", "limits.output"), render_size),
    **dict.fromkeys(("limits.processes", "limits.open_files"), render_count),
}
