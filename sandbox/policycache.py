"""Resolved policies, remembered: the parser and the model cost more to import than a whole confined start.

An entry is used only while every file it came from has the same stat, and every marker the same mode.
The key is everything else that resolution depends on, kept whole in the entry and compared whole.
"""

from __future__ import annotations

import binascii
import marshal
import os
import time

from stockade.policies.places import here, is_stand_in
from stockade.policies.resolved import Resolved
from stockade.sandbox import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.policies.model import Policy

FORMAT = 3
VARIABLES = ("HOME", "XDG_CONFIG_HOME", "STOCKADE_POLICY", "STOCKADE_MODE")
MOST_IN_MEMORY = 64
MOST_FILES = 1024
PLAIN = 2
"""The marshal version that writes equal values as equal bytes."""
CHECK = 4
SETTLED = 20_000_000
"""Nanoseconds: the coarsest step of file times."""

_memory: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def resolved(base: str | None, policy: Policy | None, workspace: str, options: Mapping[str, object]) -> Resolved:
    """The policy of a run. Raises PolicyError and RequestError as ``policies.resolve`` does."""
    if policy is not None:
        return work_out(base, policy, workspace, options)[0]
    key = cache_key(base, workspace, options)
    known = recall(key)
    if known is not None:
        return known
    began = time.time_ns()
    found, sources, markers = work_out(base, None, workspace, options)
    if not any(changed_since(path, began - SETTLED) for path in sources):
        remember(key, found, sources, markers)
    return found


def recall(key: tuple[Any, ...]) -> Resolved | None:
    """What is remembered for ``key``, if it still holds."""
    entry = _memory.get(key) or read_entry(key)
    try:
        if entry is None or not still_true(entry):
            return None
        found = Resolved(*entry[3])
    except (TypeError, ValueError):
        return None  # it has the shape of none of ours
    _memory[key] = entry
    return found


def changed_since(path: str, when: int) -> bool:
    """Whether a file may have changed after it was read: then its stat must not stand for what was read."""
    seen = stamp(path)
    return seen is not None and max(seen[-2:]) >= when


def work_out(
    base: str | None, policy: Policy | None, workspace: str, options: Mapping[str, object]
) -> tuple[Resolved, tuple[str, ...], tuple[str, ...]]:
    from stockade.policies.resolve import resolve

    found = resolve(base=base, policy=policy, workspace=workspace, options=options, environ=os.environ)
    return found.resolved, found.sources, found.markers


def cache_key(base: str | None, workspace: str, options: Mapping[str, object]) -> tuple[Any, ...]:
    given = tuple(sorted((name, frozen(value)) for name, value in options.items()))
    named = os.environ.get("STOCKADE_POLICY", "") if base is None else base
    folder = here() if "/" in named or named.endswith(".toml") else ""
    return (
        FORMAT,
        stamp_of_code(),
        base,
        folder,
        workspace,
        given,
        tuple(os.environ.get(name) for name in VARIABLES),
    )


def stamp_of_code() -> tuple[int, int]:
    """Another version of stockade resolves anew."""
    info = os.stat(__file__)
    return info.st_mtime_ns, info.st_size


def frozen(value: object) -> object:
    """An option's value as something that can be compared and stored."""
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(each)) for name, each in value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def still_true(entry: tuple[Any, ...]) -> bool:
    _key, sources, markers, _values = entry
    return all(stamp(path) == seen for path, seen in sources) and all(
        marked(path) == seen for path, seen in markers
    )


def stamp(path: str) -> tuple[int, ...] | None:
    """What changes when a file does; None when there is none."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def marked(path: str) -> tuple[int, int] | None:
    """What matters of a marker: whose it is and who may write it; None when nothing, or a stand-in, is there."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return None if is_stand_in(info.st_mode) else (info.st_mode, info.st_uid)


def remember(key: tuple[Any, ...], found: Resolved, sources: tuple[str, ...], markers: tuple[str, ...]) -> None:
    entry = (
        key,
        tuple((path, stamp(path)) for path in sources),
        tuple((path, marked(path)) for path in markers),
        tuple(found),
    )
    if len(_memory) >= MOST_IN_MEMORY:
        _memory.clear()
    _memory[key] = entry
    directory = state.cache_dir()
    if directory is not None:
        body = marshal.dumps(entry)
        state.store_private(directory, entry_name(key), checksum(body) + body)


def checksum(body: bytes) -> bytes:
    """Tells a damaged entry; one that somebody meant to write is the business of ``state``."""
    return binascii.crc32(body).to_bytes(CHECK, "big")


def entry_name(key: tuple[Any, ...]) -> str:
    """One of a bounded number of names: of two keys that share one, the later is remembered."""
    return f"policy-{binascii.crc32(marshal.dumps(key, PLAIN)) & MOST_FILES - 1:03x}"


def read_entry(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    directory = state.cache_dir()
    content = state.read_private(directory, entry_name(key)) if directory is not None else None
    if content is None or checksum(content[CHECK:]) != content[:CHECK]:
        return None
    try:
        # A file of ours that nobody else can write.
        entry: tuple[Any, ...] = marshal.loads(content[CHECK:])  # noqa: S302
        return entry if entry[0] == key and len(entry) == 4 else None
    except (ValueError, EOFError, TypeError, IndexError, KeyError):
        return None
