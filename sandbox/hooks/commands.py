"""What a handler of a configuration starts, where, and what it belongs to: as its host would. Pure."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.model import HookEvent, HookSpec

COPIED = ("plugin", "skill", "extension")
"""Provenances of files that belong to something with a directory of its own; their handlers run beside equal ones."""


def command_of(spec: HookSpec, event: HookEvent, language: Dialect) -> str | tuple[str, ...]:
    """The command with the placeholders filled in that the host fills in itself.

    Claude puts ``${CLAUDE_PLUGIN_ROOT}`` and the like into each argument as plain text, Codex its plugin's variables
    into the text of the command. Everything else is the shell's business.
    """
    known = {**language.variables(event, root_of(spec)), **dict(spec.env)}
    if spec.dialect == "claude" and not isinstance(spec.command, str):
        return tuple(filled(word, known) for word in spec.command)
    if spec.dialect == "codex" and isinstance(spec.command, str):
        return filled(spec.command, known)
    return spec.command


def filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def root_of(spec: HookSpec) -> str:
    """The directory of the plugin or extension that it belongs to; empty for a project's or user's own."""
    return spec.root if spec.provenance in COPIED else ""


def directory_of(spec: HookSpec, event: HookEvent, given: str) -> str | None:
    """Where the host starts it: None is the current directory of this process."""
    wanted = [given, event.cwd, event.project_dir]
    if spec.dialect == "agy" and spec.source:
        wanted.insert(1, os.path.dirname(os.path.abspath(spec.source)))
    if spec.dialect == "cursor" and spec.source:
        user = spec.provenance == "user"
        wanted.insert(1, os.path.dirname(os.path.abspath(spec.source)) if user else event.project_dir or spec.root)
    return next((path for path in wanted if path.startswith("/") and os.path.isdir(path)), None)
