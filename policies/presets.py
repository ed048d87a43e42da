"""The policies that come with stockade: names and texts. What they mean is decided in ``model`` and ``layers``."""

from __future__ import annotations

import os

from stockade.policies.errors import PolicyError
from stockade.policies.text import either, quoted

SELECTABLE = ("read-only", "workspace-write", "hook", "build", "full-access")
FOUNDATION = "base"
"""Holds every default, lies under every policy, and can be extended but not selected."""

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "presets")


def preset_names() -> tuple[str, ...]:
    """The presets that can be selected by name."""
    return SELECTABLE


def preset_path(name: str) -> str:
    """The file of a preset, ``base`` included; any other name is a ``PolicyError``."""
    if name not in SELECTABLE and name != FOUNDATION:
        raise unknown_preset(name)
    return os.path.join(FOLDER, f"{name}.toml")


def preset_text(name: str) -> str:
    """The TOML of a preset, ``base`` included; any other name is a ``PolicyError``."""
    path = preset_path(name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        cause = error.strerror or str(error)
        raise PolicyError(
            f"could not read the preset {name}: {cause}: {path}", remedy="reinstall stockade"
        ) from error


def unknown_preset(name: str) -> PolicyError:
    """The error for a policy name that is no preset."""
    return PolicyError(
        f"could not find the policy {quoted(name)}: there is no such preset",
        remedy=f"use {either(SELECTABLE)}, or a path with a slash or ending in .toml",
    )
