"""The presets: which there are, and the exact policy each comes to."""

from __future__ import annotations

import os
from typing import Any

import pytest

from stockade.policies.errors import PolicyError
from stockade.policies.model import Policy
from stockade.policies.presets import FOLDER, preset_names, preset_text
from stockade.policies.resolve import load_policy, resolve
from stockade.policies.resolved import Resolved

BASE: dict[str, Any] = {
    "mode": None,
    "root": "host",
    "workspace": "read-only",
    "write": (),
    "read": (),
    "hide": ("**/.env*",),
    "protect": (
        ".git/hooks",
        ".git/config",
        ".claude",
        ".codex",
        ".cursor",
        ".agents",
        ".gemini",
        ".envrc",
        ".vscode",
        ".stockade.toml",
    ),
    "home": "empty",
    "toolchains": "auto",
    "env_pass": ("LANG", "LC_*", "TERM", "TZ"),
    "env_set": (),
    "egress": "none",
    "allow": (),
    "private": False,
    "check": "auto",
    "edge": (),
    "mask_queries": False,
    "connector": "auto",
    "timeout": None,
    "cpu": None,
    "memory": 2 * 2**30,
    "processes": 256,
    "file_size": 2**30,
    "tmp": 512 * 2**20,
    "output": 2**20,
    "open_files": 1024,
    "syscalls": "default",
    "user": "auto",
}
GOLDEN: dict[str, dict[str, Any]] = {
    "read-only": {},
    "workspace-write": {"workspace": "read-write"},
    "hook": {"timeout": 10.0},
    "build": {
        "workspace": "read-write",
        "memory": 8 * 2**30,
        "processes": 2048,
        "tmp": 4 * 2**30,
        "file_size": 8 * 2**30,
        "open_files": 4096,
    },
    "full-access": {"mode": "off"},
}


def resolved(tmp_path: os.PathLike[str], **options: Any) -> Resolved:
    nowhere = os.path.join(tmp_path, "nowhere.toml")
    return resolve(
        workspace=os.fspath(tmp_path),
        environ={"HOME": "/nonexistent"},
        system_file=nowhere,
        user_file=nowhere,
        **options,
    ).resolved


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, tmp_path: os.PathLike[str]) -> None:
    found = resolved(tmp_path, base=name)
    expected = Resolved(name=name, **{**BASE, **GOLDEN[name]}, origin=found.origin)
    assert found == expected


def test_read_only_is_the_default(tmp_path: os.PathLike[str]) -> None:
    assert resolved(tmp_path) == resolved(tmp_path, base="read-only")


def test_names_are_the_files() -> None:
    assert set(preset_names()) == set(GOLDEN)
    assert {f"{name}.toml" for name in (*preset_names(), "base")} == set(os.listdir(FOLDER))


@pytest.mark.parametrize("name", preset_names())
def test_loads_and_comes_to_the_same_as_an_object(name: str, tmp_path: os.PathLike[str]) -> None:
    policy = load_policy(name)
    assert isinstance(policy, Policy)
    by_object = resolved(tmp_path, policy=policy)
    by_name = resolved(tmp_path, base=name)
    assert by_object.replace(name=name, origin=()) == by_name.replace(origin=())


@pytest.mark.parametrize("name", ["", "hok", "base", "HOOK", "hook\0", "..", "presets"])
def test_unknown(name: str, tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(PolicyError, match="no such preset") as caught:
        resolved(tmp_path, base=name)
    assert '"read-only"' in caught.value.remedy


def test_text_of_the_foundation_can_be_read() -> None:
    assert "[limits]" in preset_text("base")
    with pytest.raises(PolicyError):
        preset_text("../presets/base")
