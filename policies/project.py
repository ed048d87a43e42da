"""Finding the policy files of a project (edge): ``.stockade.toml`` in the workspace and above.

These files come with the code, so they are opened without following links and their layers may only
narrow (``narrow``). All that are found apply, the outermost first, so that one lower down can't hide
one higher up.
"""

from __future__ import annotations

import os
import stat

from msgspec import UNSET

from stockade.policies.errors import PolicyError
from stockade.policies.files import UNTRUSTED, read_policy, shown
from stockade.policies.layers import Layer, literal
from stockade.policies.model import parsed
from stockade.policies.places import present

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FILE = ".stockade.toml"
RELATIVE = ("filesystem.write", "filesystem.read", "filesystem.hide", "filesystem.protect", "filesystem.home")


def project_layers(workspace: str, home: str | None, looked_at: list[str], markers: list[str]) -> list[Layer]:
    """The project layers for a workspace (an absolute path without symlinks), the outermost first.

    Files go to ``looked_at``; ``markers`` gets the
    ``.git`` paths and searched directories, of which only existence and mode matter.
    """
    layers = []
    for folder in _folders(workspace, home, markers):
        path = os.path.join(folder, FILE)
        policy = read_policy(path, looked_at, flags=UNTRUSTED)
        if policy is None:
            continue
        if policy.extends is not UNSET:
            raise PolicyError(
                f"could not use {shown(path)}: a project file can't extend another policy",
                remedy="write the settings themselves into it",
            )
        label = f"project {shown(path)}"
        layers.append(Layer("project", label, _anchored(parsed(policy, label), folder, workspace)))
    return layers[::-1]


def _folders(workspace: str, home: str | None, markers: list[str]) -> Iterator[str]:
    """The workspace and what is above it, up to the repository, never as far as the home or ``/``."""
    folder = workspace
    while not _is_or_holds(folder, home):
        markers.append(folder)
        if folder != workspace and _anyone_writes(folder):
            return
        yield folder
        marker = os.path.join(folder, ".git")
        markers.append(marker)
        if present(marker):
            return
        folder = os.path.dirname(folder)


def _is_or_holds(folder: str, home: str | None) -> bool:
    return folder == "/" or (home is not None and (home == folder or home.startswith(f"{folder}/")))


def _anyone_writes(folder: str) -> bool:
    """Whether strangers can plant a file here, as in ``/tmp``."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _anchored(values: dict[str, Any], folder: str, workspace: str) -> dict[str, Any]:
    """Relative paths of a file above the workspace are meant from where the file is."""
    if folder == workspace:
        return values
    return {key: _anchor(key, value, folder) if key in RELATIVE else value for key, value in values.items()}


def _anchor(key: str, value: Any, folder: str) -> Any:
    if key == "filesystem.home":
        return value if value == "empty" else _absolute(value, folder)
    if key == "filesystem.hide":
        folder = literal(folder)
    return tuple(_absolute(path, folder) for path in value)


def _absolute(path: str, folder: str) -> str:
    return path if path.startswith(("/", "~")) else f"{folder}/{path}"
