"""From names, files, environment and options to one ``Resolved`` policy (edge; loaded on a cache miss only).

Collects the layers and hands them to ``layers``, which decides. Takes the environment as an argument; a
broken layer is an error, never a missing one.
"""

from __future__ import annotations

import os

from stockade.policies.errors import PolicyError, RequestError
from stockade.policies.fields import ATTRIBUTES, WORDS, nested, render_values
from stockade.policies.files import foundation, named_layers, policy_layers, read_policy, shown
from stockade.policies.layers import Layer, Merged, finish, lexical, merge
from stockade.policies.model import Policy, checked, parse_tree, parsed, unknown_key
from stockade.policies.places import here
from stockade.policies.project import project_layers
from stockade.policies.record import Record
from stockade.policies.resolved import Resolved
from stockade.policies.text import either, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

SYSTEM_FILE = "/etc/stockade/policy.toml"
DEFAULT = "read-only"
POLICY_VARIABLE = "STOCKADE_POLICY"
MODE_VARIABLE = "STOCKADE_MODE"


class Resolution(Record):
    """A resolved policy, and what to watch to know that it still stands."""

    resolved: Resolved
    sources: tuple[str, ...]
    """Every file that was looked at, existing or not: another stat means resolve again."""
    markers: tuple[str, ...]
    """Paths of which only existence and mode were looked at (``.git``: its times change all day)."""


def resolve(
    *,
    base: str | None = None,
    policy: Policy | None = None,
    workspace: str,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str],
    system_file: str = SYSTEM_FILE,
    user_file: str | None = None,
    discover_project: bool = True,
) -> Resolution:
    """All layers, merged, with every path they came from.

    ``base`` is a preset or the path of a policy file (with a slash or ending in ``.toml``; relative to the
    current directory), ``policy`` one made in Python instead; with neither, ``STOCKADE_POLICY`` of
    ``environ`` or ``read-only`` applies. ``workspace`` is an absolute path. ``options`` has dotted TOML
    keys (``filesystem.write``). Raises ``PolicyError``, and ``RequestError`` for an unusable workspace.
    """
    workspace = _workspace(workspace)
    home = home_of(environ)
    looked_at: list[str] = []
    markers: list[str] = []
    name, layers = _bottom(base, policy, environ, looked_at)
    layers = [foundation(looked_at), *layers]
    layers += _file_layers("system", system_file, looked_at)
    layers += _file_layers("user", user_file or default_user_file(environ, home), looked_at)
    project = []
    if discover_project:
        real_home = None if home is None else os.path.realpath(home)
        project = project_layers(workspace, real_home, looked_at, markers)
    layers += [*_environment_layers(environ), *_option_layers(options or {})]
    expand = _real(lexical(home or "/nonexistent", workspace))
    if project:
        finish(merge(layers, expand=expand), name)  # what is refused without a project's file stays refused with it
    merged = merge([*layers, *project], expand=expand)
    return Resolution(finish(merged, name), tuple(dict.fromkeys(looked_at)), tuple(dict.fromkeys(markers)))


def load_policy(name_or_path: str) -> Policy:
    """The policy of a preset or file as one ``Policy``, everything it extends folded in; ``PolicyError``."""
    layers = named_layers(os.fspath(name_or_path), here(), [])
    merged: Merged = merge(layers, expand=lexical("/nonexistent", "/nonexistent"))
    return parse_tree(nested(render_values(merged.values)), layers[-1].label)


def home_of(environ: Mapping[str, str]) -> str | None:
    """The home directory by ``HOME``, or else by the user database; None where neither knows one."""
    home = environ.get("HOME", "")
    if home.startswith("/"):
        return os.path.normpath(home)
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def default_user_file(environ: Mapping[str, str], home: str | None) -> str | None:
    """Where the user's own policy is: below ``XDG_CONFIG_HOME`` if that is absolute, else ``~/.config``."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):
        if home is None:
            return None
        folder = os.path.join(home, ".config")
    return os.path.join(folder, "stockade", "policy.toml")


def _workspace(path: str) -> str:
    remedy = "name a directory of your own below /"
    if "\0" in path or not path.startswith("/"):
        raise RequestError(f"could not use the workspace {quoted(path)}: it is not an absolute path", remedy=remedy)
    real = os.path.realpath(path)
    if real.strip("/") == "":
        raise RequestError(
            f"could not use the workspace {quoted(path)}: it is the whole file system", remedy=remedy
        )
    return real


def _bottom(
    base: str | None, policy: Policy | None, environ: Mapping[str, str], looked_at: list[str]
) -> tuple[str, list[Layer]]:
    """The name the policy goes by, and its own layers."""
    folder = here()
    if policy is not None:
        if base is not None:
            raise RequestError(
                "could not use two policies: one by name, one as an object", remedy="pass one of them"
            )
        label = "policy of the call"
        return label, policy_layers(checked(policy, label), label, folder, looked_at)
    if base is not None:
        return base, named_layers(os.fspath(base), folder, looked_at)
    if POLICY_VARIABLE not in environ:
        return DEFAULT, named_layers(DEFAULT, folder, looked_at)
    named = environ[POLICY_VARIABLE]
    try:
        return named, named_layers(named, folder, looked_at)
    except PolicyError as error:
        raise PolicyError(f"could not use {POLICY_VARIABLE}: {error.message}", remedy=error.remedy) from error


def _file_layers(kind: str, path: str | None, looked_at: list[str]) -> list[Layer]:
    policy = None if path is None else read_policy(path, looked_at)
    if path is None or policy is None:
        return []
    return policy_layers(policy, f"{kind} {shown(path)}", os.path.dirname(path), looked_at, kind=kind, seen=(path,))


def _environment_layers(environ: Mapping[str, str]) -> list[Layer]:
    if MODE_VARIABLE not in environ:
        return []
    mode = environ[MODE_VARIABLE]
    if mode not in WORDS["mode"]:
        raise PolicyError(
            f"could not use {MODE_VARIABLE} = {quoted(mode)}: it is not a mode",
            remedy=f"set it to {either(WORDS['mode'])}, or unset it",
        )
    return [Layer("environment", f"environment {MODE_VARIABLE}", {"mode": mode})]


def _option_layers(options: Mapping[str, object]) -> list[Layer]:
    if not options:
        return []
    for key in options:
        if key not in ATTRIBUTES:
            raise unknown_key(key, "the options of this run")
    tree = nested({key: _toml_value(value) for key, value in options.items()})
    policy = parse_tree(tree, "the options of this run")
    return [Layer("options", "options", parsed(policy, "the options of this run"))]


def _toml_value(value: object) -> Any:
    """Paths as text, sequences as lists; everything else is judged as it is."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, (list, tuple)):
        return [_toml_value(entry) for entry in value]
    return value


def _real(expand: Callable[[str], str]) -> Callable[[str], str]:
    """The expansion with symlinks resolved, so that a link planted in a project is seen for what it is."""
    return lambda path: os.path.realpath(expand(path))
