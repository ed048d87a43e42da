"""What a hook needs to see (pure but for looking at paths): its own root, project, transcript, and its variables.

Paths of the payload are true inside: nothing is remapped, so that what is not visible already is shown where it is.
"""

from __future__ import annotations

import os

from stockade.sandbox.environment import passes
from stockade.sandbox.hooks.words import CODE
from stockade.sandbox.mounts import below
from stockade.sandbox.rootfs import COVERED, SENSITIVE_DIRECTORIES, SENSITIVE_FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.model import HookEvent
    from stockade.sandbox.hooks.words import Target

ROOT_VARIABLES = ("CLAUDE_PLUGIN_ROOT", "PLUGIN_ROOT", "CURSOR_PLUGIN_ROOT", "GEMINI_EXTENSION_ROOT")
AGENT_DIRECTORIES = (".claude", ".codex", ".cursor", ".gemini", ".agents", ".antigravity")
"""Below a home, the only dotted directories that are taken for places of hooks: others hold credentials."""


def variables(language: Dialect, event: HookEvent, root: str, caller: Mapping[str, str]) -> dict[str, str]:
    """The host's own variables: those that it set for this process, else those that it would set."""
    own = {name: value for name, value in caller.items() if passes(name, language.VARIABLES)}
    return {**language.variables(event, root), **own}


def root_of(given: str, caller: Mapping[str, str]) -> str:
    """The directory that the hook belongs to; empty when nobody says."""
    return given or next((caller[name] for name in ROOT_VARIABLES if caller.get(name)), "")


def reads(event: HookEvent, root: str, found: Target | None, *, cwd: str, home: str) -> list[str]:
    """Paths to show beside the workspace ``cwd``: what exists, is asked for, and does not hold a whole home."""
    wanted = [root, event.project_dir, transcript_of(event, home)]
    if found is not None:
        wanted += [code_place(path, cwd, home) for path in (found.program, found.script) if "/" in path]
    chosen: list[str] = []
    for path in wanted:
        real = os.path.realpath(os.path.join(cwd, path)) if path else ""
        if real and may_show(real, home) and not any(below(real, each) for each in (cwd, *chosen)):
            chosen.append(real)
    return chosen


def may_show(path: str, home: str) -> bool:
    """A file or directory that is there, and neither holds a home or a place of the box's own, nor is the kernel's."""
    if any(below(place, path) for place in (home, *COVERED, "/usr", "/etc")) or path == home_of(path, home):
        return False
    if any(below(path, place) for place in ("/proc", "/sys", *SENSITIVE_DIRECTORIES, *SENSITIVE_FILES)):
        return False
    return os.path.isdir(path) or os.path.isfile(path)


def transcript_of(event: HookEvent, home: str) -> str:
    """The transcript that the event names; empty for what can be none.

    Its host wrote the path, but others may have made a link of the file. Directly in an agent's directory, and
    in other dotted ones under another name, lie credentials.
    """
    path = event.transcript_path
    if not path or os.path.islink(path) or not os.path.isfile(path):
        return ""
    real = os.path.realpath(path)
    own = home_of(real, home)
    if not own:
        return real
    parts = real[len(own) :].strip("/").split("/")
    if parts[0] in AGENT_DIRECTORIES:
        return real if len(parts) > 2 else ""
    return "" if parts[0].startswith(".") and not real.endswith(".jsonl") else real


def code_place(script: str, cwd: str, home: str) -> str:
    """``place_of`` what is code; empty for anything else.

    A repository's command may name whatever it likes as its script, with code of its own run before: a key is none.
    """
    path = os.path.realpath(os.path.join(cwd, script))
    return place_of(path, cwd, home) if looks_like_code(path) else ""


def looks_like_code(path: str) -> bool:
    """Whether a file is executable, has a name that code has, or begins with ``#!``."""
    if not os.path.isfile(path):
        return False
    if path.lower().endswith(CODE) or os.access(path, os.X_OK):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def place_of(script: str, cwd: str, home: str) -> str:
    """What to show for a script: its directory, with the files beside it; the file alone where others lie there.

    Empty where the host is visible anyway.
    """
    path = os.path.realpath(os.path.join(cwd, script))
    own = home_of(path, home)
    top = own or next((place for place in COVERED if below(path, place)), None)
    if top is None:
        return ""
    parts = path[len(top) :].strip("/").split("/")
    if not own:
        return path if len(parts) < 2 else os.path.dirname(path)
    dotted = parts[0].startswith(".") and parts[0] not in AGENT_DIRECTORIES
    return path if dotted or len(parts) < 3 else os.path.dirname(path)


def home_of(path: str, home: str) -> str:
    """The home that a path lies in, the caller's or another's; empty for none."""
    if below(path, home):
        return home
    if below(path, "/root"):
        return "/root"
    return "/".join(path.split("/")[:3]) if path.startswith("/home/") else ""


def withheld(names: Iterable[str], policy_passes: Iterable[str], given: Iterable[str]) -> tuple[str, ...]:
    """Names of the caller's variables that the hook does not get (never their values)."""
    allowed, had = tuple(policy_passes), set(given)
    return tuple(sorted(name for name in names if name not in had and not passes(name, allowed)))
