"""Reading policy files, and following ``extends`` (edge).

Opens what it is told to open and records every path it looked at; it decides nothing about precedence.
A file that is there but can't be read is an error, never an absent layer.
"""

from __future__ import annotations

import errno
import os
import stat

from msgspec import UNSET

from stockade.policies.errors import PolicyError
from stockade.policies.layers import Layer
from stockade.policies.model import Policy, parse_policy, parsed
from stockade.policies.places import is_stand_in
from stockade.policies.presets import FOUNDATION, SELECTABLE, preset_path, unknown_preset
from stockade.policies.text import quoted

LARGEST = 256 * 1024
DEEPEST = 8
ABSENT = (errno.ENOENT, errno.ENOTDIR)
TRUSTED = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
UNTRUSTED = TRUSTED | os.O_NOFOLLOW
SMALLER = f"a policy file is a regular file of at most {LARGEST // 1024} KiB"


def read_policy(path: str, looked_at: list[str], *, flags: int = TRUSTED) -> Policy | None:
    """The policy in a file, None where there is no such file; every other trouble is a ``PolicyError``.

    ``flags`` is ``UNTRUSTED`` for a file that somebody else may have planted: no symlink is followed.
    """
    looked_at.append(path)
    text = _content(path, flags)
    return None if text is None else parse_policy(text, shown(path))


def read_existing(path: str, looked_at: list[str]) -> Policy:
    """The policy in a file that somebody named; its absence is a ``PolicyError`` too."""
    policy = read_policy(path, looked_at)
    if policy is None:
        raise PolicyError(f"could not read {shown(path)}: there is no such file", remedy="check the path")
    return policy


def is_path(name: str) -> bool:
    """Whether a policy's name means a file and not a preset."""
    return "/" in name or name.endswith(".toml")


def named_layers(name: str, folder: str, looked_at: list[str], *, kind: str = "preset") -> list[Layer]:
    """The layers of a preset or file and of all it extends, the lowest first.

    A relative path is taken from ``folder``. ``base`` can only be reached through ``extends``.
    """
    if not is_path(name) and name not in SELECTABLE:
        raise unknown_preset(name)
    return _chain(name, folder, looked_at, kind, ())


def policy_layers(
    policy: Policy,
    label: str,
    folder: str,
    looked_at: list[str],
    *,
    kind: str = "preset",
    seen: tuple[str, ...] = (),
) -> list[Layer]:
    """The layer of a policy that has been read, on top of those of all it extends."""
    below = [] if policy.extends is UNSET else _chain(policy.extends, folder, looked_at, kind, seen)
    return [*below, Layer(kind, label, parsed(policy, label))]


def foundation(looked_at: list[str]) -> Layer:
    """The layer of defaults that lies under everything."""
    return _chain(FOUNDATION, "/", looked_at, "preset", ())[0]


def shown(path: str) -> str:
    """A path as messages name it: as it is, or quoted where it has odd characters in it."""
    return path if path.isprintable() else quoted(path)


def _chain(name: str, folder: str, looked_at: list[str], kind: str, seen: tuple[str, ...]) -> list[Layer]:
    path, label = _located(name, folder)
    if path in seen:
        raise PolicyError(
            f"could not use {shown(path)}: it extends itself through {' -> '.join(map(shown, seen))}",
            remedy="break the circle of extends",
        )
    if len(seen) >= DEEPEST:
        raise PolicyError(
            f"could not use {shown(path)}: more than {DEEPEST} policies extend one another",
            remedy="shorten the chain of extends",
        )
    policy = read_existing(path, looked_at)
    own = label if kind == "preset" else f"{kind} {label}"
    return policy_layers(policy, own, os.path.dirname(path), looked_at, kind=kind, seen=(*seen, path))


def _located(name: str, folder: str) -> tuple[str, str]:
    if "\0" in name:
        raise PolicyError(f"could not find the policy {quoted(name)}: it has a NUL in it", remedy="check the path")
    if is_path(name):
        path = os.path.normpath(os.path.join(folder, name))
        return path, f"policy {shown(path)}"
    return preset_path(name), f"preset {name}"


def _content(path: str, flags: int) -> bytes | None:
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise _unreadable(path, _cause(error, flags)) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if flags & os.O_NOFOLLOW and is_stand_in(mode):
            return None
        if not stat.S_ISREG(mode):
            raise _unreadable(path, "it is not a regular file")
        return _bounded(descriptor, path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    finally:
        os.close(descriptor)


def _bounded(descriptor: int, path: str) -> bytes:
    content = b""
    while piece := os.read(descriptor, LARGEST + 1 - len(content)):
        content += piece
        if len(content) > LARGEST:
            raise _unreadable(path, "it is too large")
    return content


def _cause(error: OSError, flags: int) -> str:
    if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
        return "it is a symbolic link, which is not followed here"
    return error.strerror or str(error)


def _unreadable(path: str, cause: str) -> PolicyError:
    return PolicyError(f"could not read {shown(path)}: {cause}", remedy=SMALLER)
