"""The policy model: TOML text to a strict, frozen ``Policy``, with errors that name file, line and key.

A field that a text does not mention stays ``UNSET``, so that a layer carries only what it says. Reads no
files; how single values are judged is in ``fields``, how layers combine in ``layers``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stockade.policies.errors import PolicyError
from stockade.policies.fields import ALLOWED, ATTRIBUTES, parse_values
from stockade.policies.text import either, quoted
from stockade.policies.toml import loads


class Filesystem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the host is visible, and what of it can be written."""

    root: Literal["host", "minimal"] | UnsetType = UNSET
    workspace: Literal["read-only", "read-write", "overlay", "none"] | UnsetType = UNSET
    write: tuple[str, ...] | UnsetType = UNSET
    read: tuple[str, ...] | UnsetType = UNSET
    hide: tuple[str, ...] | UnsetType = UNSET
    protect: tuple[str, ...] | UnsetType = UNSET
    home: str | UnsetType = UNSET
    toolchains: Literal["auto", "none"] | UnsetType = UNSET


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"pass_": "pass"}):
    """The variables that reach the program: names passed on, and texts set."""

    pass_: tuple[str, ...] | UnsetType = UNSET
    set: dict[str, str] | UnsetType = UNSET


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may leave."""

    egress: Literal["none", "record", "allow", "open"] | UnsetType = UNSET
    allow: tuple[str | dict[str, Any], ...] | UnsetType = UNSET
    private: bool | UnsetType = UNSET
    check: Literal["auto", "name", "address"] | UnsetType = UNSET
    edge: tuple[dict[str, Any], ...] | UnsetType = UNSET
    mask_queries: bool | UnsetType = UNSET
    connector: Literal["auto", "slirp4netns", "pasta"] | UnsetType = UNSET


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time, memory and the like, as written; ``"none"`` lifts a limit."""

    timeout: str | int | float | UnsetType = UNSET
    cpu: str | int | float | UnsetType = UNSET
    memory: str | int | UnsetType = UNSET
    processes: Literal["none"] | int | UnsetType = UNSET
    file_size: str | int | UnsetType = UNSET
    tmp: str | int | UnsetType = UNSET
    output: str | int | UnsetType = UNSET
    open_files: Literal["none"] | int | UnsetType = UNSET


class Syscalls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The system call filter."""

    filter: Literal["default", "strict", "off"] | UnsetType = UNSET


class Process(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who the program runs as."""

    user: Literal["auto", "caller", "unprivileged"] | UnsetType = UNSET


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of policy: what one preset, file or caller says."""

    extends: str | UnsetType = UNSET
    mode: Literal["auto", "strict", "off"] | UnsetType = UNSET
    filesystem: Filesystem | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET
    network: Network | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET
    syscalls: Syscalls | UnsetType = UNSET
    process: Process | UnsetType = UNSET


TOP = ("extends", *(key for key in ATTRIBUTES if "." not in key))
SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in ATTRIBUTES if "." in key))
EXAMPLE = 'say something, as in mode = "auto", or remove it'


def parse_policy(text: bytes | str, source: str) -> Policy:
    """The policy in a TOML text. ``source`` (a path, say) names it in the ``PolicyError`` of any fault."""
    try:
        decoded = (text.encode() if isinstance(text, str) else text).decode()
    except UnicodeError as error:
        raise PolicyError(f"could not read {source}: it is not UTF-8 text", remedy="save it as UTF-8") from error
    return parse_tree(_document(decoded, source), source)


def parse_tree(tree: dict[str, Any], source: str) -> Policy:
    """The policy in a decoded TOML document (or anything of that shape)."""
    _check_keys(tree, source)
    try:
        policy = msgspec.convert(tree, Policy)
    except msgspec.ValidationError as error:
        raise _translated(error, tree, source) from error
    if not parse_values(stated(policy), source) and policy.extends is UNSET:
        raise PolicyError(f"could not use {source}: it says nothing", remedy=EXAMPLE)
    return policy


def checked(policy: Policy, source: str) -> Policy:
    """A policy that was put together in Python, judged as if it had been read."""
    try:
        tree = msgspec.to_builtins(policy)
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyError(f"could not use {source}: {error}", remedy="use texts, numbers and lists") from error
    return parse_tree(tree, source)


def stated(policy: Policy) -> dict[str, Any]:
    """What the policy says, by dotted TOML key, in TOML shape; ``extends`` is not a setting."""
    found: dict[str, Any] = {}
    if policy.mode is not UNSET:
        found["mode"] = policy.mode
    for name in SECTIONS:
        section = getattr(policy, name)
        if section is not UNSET:
            pairs = zip(section.__struct_fields__, section.__struct_encode_fields__, strict=True)
            found.update({f"{name}.{key}": getattr(section, field) for field, key in pairs})
    return {key: value for key, value in found.items() if value is not UNSET}


def parsed(policy: Policy, source: str) -> dict[str, Any]:
    """What the policy says, by dotted TOML key, in parsed form (see ``fields``)."""
    return parse_values(stated(policy), source)


def _document(text: str, source: str) -> dict[str, Any]:
    try:
        return loads(text)
    except RecursionError as error:
        raise PolicyError(
            f"could not read {source}: it is nested too deeply", remedy="a policy has two levels"
        ) from error
    except ValueError as error:
        raise PolicyError(
            f"could not read {source}: not valid TOML: {_cause(error, text)}", remedy="mend that line"
        ) from error


def _cause(error: ValueError, text: str) -> str:
    """The parser's words on one line, always with a line and a column."""
    lines = text.split("\n")
    end = f"(at line {len(lines)}, column {len(lines[-1]) + 1}, the end)"
    cause = str(error).replace("(at end of document)", end)
    return cause if cause.isprintable() else quoted(cause)


def _check_keys(tree: dict[str, Any], source: str) -> None:
    for name, value in tree.items():
        if name not in SECTIONS:
            if name not in TOP:
                raise unknown_key(name, source)
        elif not isinstance(value, dict):
            raise PolicyError(f"could not use {name} of {source}: it is a section", remedy=f"write [{name}]")
        else:
            for field in value:
                if f"{name}.{field}" not in ATTRIBUTES:
                    raise unknown_key(f"{name}.{field}", source)


def unknown_key(key: str, source: str) -> PolicyError:
    """The error for a key that no policy has, with the nearest ones that exist."""
    from difflib import get_close_matches

    shown = key if key.isprintable() and len(key) < 80 else quoted(key)
    section, _, field = key.rpartition(".")
    known = [*TOP, *ATTRIBUTES]
    beside = [name for name in known if section in SECTIONS and name.startswith(f"{section}.")]
    near = [name for name in known if name.rpartition(".")[2] == field]
    near += get_close_matches(key[:80], known if not beside else [], n=1)
    near += [
        f"{section}.{name}" for name in get_close_matches(field[:80], [name.rpartition(".")[2] for name in beside])
    ]
    remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(beside or [*TOP, *SECTIONS])}"
    return PolicyError(f"could not use {source}: there is no key {shown}", remedy=remedy)


def _translated(error: msgspec.ValidationError, tree: dict[str, Any], source: str) -> PolicyError:
    """The library's message in the words of the file: key, value found, what is allowed."""
    reason, _, path = str(error).partition(" - at `$")
    key = path.rstrip("`").strip(".").partition("[")[0]
    section, _, field = key.rpartition(".")
    found = (tree.get(section, {}) if section else tree).get(field)
    remedy = ALLOWED.get(key) or f"write one of the sections {either(SECTIONS)}"
    kind = reason.partition(", got ")[2].strip("`")
    shown = "what it says" if key == "network.edge" else quoted(found)  # a secret may have been written into that
    cause = f"{shown} is not allowed" + (f" (a {kind} in it is of the wrong type)" if "[" in path else "")
    return PolicyError(f"could not use {key} of {source}: {cause}", remedy=remedy)
