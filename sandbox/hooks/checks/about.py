"""One handler as the checks see it: its commands, its code, and whether it decides anything."""

from __future__ import annotations

import os
import re

from stockade.policies.record import Record
from stockade.sandbox.hooks import scripts
from stockade.sandbox.hooks.dialects import dialect
from stockade.sandbox.hooks.finding import Finding
from stockade.sandbox.hooks.shelltext import Command, commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stockade.sandbox.hooks.model import HookSpec

LANGUAGES = {
    ".sh": "shell", ".bash": "shell", ".zsh": "shell", ".py": "python", ".js": "js", ".mjs": "js", ".cjs": "js",
    ".ts": "js", ".mts": "js", ".tsx": "js",
}  # fmt: skip
SHEBANGS = (("python", "python"), ("uv ", "python"), ("node", "js"), ("bun", "js"), ("deno", "js"), ("sh", "shell"))
MOST_LEXED = 200_000
GUARD = re.compile(
    r"""(?:sys\.exit|process\.exit|\bexit|\bos\._exit)[ \t(]+2\b|process\.exitCode\s*=\s*2\b"""
    r"""|\\?["']?(?:permissionDecision|permission|decision|behavior|result)\\?["']?\s*[:=]\s*\\?["'](?:deny|block|ask)\b"""
    r"""|\\?["']?continue\\?["']?\s*:\s*(?:false|False)\b"""
)
"""What a handler does that keeps something from happening."""


class Code(Record):
    """One text that a handler runs."""

    path: str
    """Empty for the command itself."""
    language: str
    """``shell``, ``python``, ``js`` or empty."""
    text: str
    """Comments blanked out, lines kept."""

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


class About(Record):
    """One handler."""

    spec: HookSpec
    commands: tuple[Command, ...]
    """Those of its command; of the scripts' own there are none here."""
    scripts: tuple[scripts.Script, ...]
    codes: tuple[Code, ...]
    """The command's text first, then the scripts that could be read."""
    blocks: bool
    """Whether the event can be blocked."""
    guards: bool
    """Whether its code denies anything."""
    unread: tuple[str, ...] = ()
    """Scripts that could not be read, or not to their end."""

    def told(
        self,
        code: str,
        severity: str,
        text: str,
        remedy: str,
        key: str = "",
        *,
        inside: Code | None = None,
        at: int = 0,
    ) -> Finding:
        """A finding about the handler, about its field ``key``, or about a place in its code."""
        spec = self.spec
        pointer = f"{spec.pointer}/{key}" if key else spec.pointer
        if inside is not None and inside.path:
            text = f"{text} (run by {spec.event} of {spec.source})"
            return Finding(code, severity, text, inside.path, pointer, inside.line(at), 0, remedy, spec.event)
        return Finding(code, severity, text, spec.source, pointer, spec.line, spec.column, remedy, spec.event)

    @property
    def key(self) -> str:
        """The field that the command stands in."""
        return "args" if self.spec.form == "argv" else "command"


def about(spec: HookSpec, env: Mapping[str, str] | None = None) -> About:
    """Look at one handler: reads its scripts, runs nothing."""
    found = tuple(scripts.parts(spec, env))
    named = tuple(scripts.scripts(spec, env))
    codes = [Code("", inline_language(found), inline_text(spec))]
    paths = dict.fromkeys(each.path for each in named if each.state == "there")
    unread = []
    for path in paths:
        text = scripts.read_text(path)
        if (not text and os.path.getsize(path)) or len(text.encode(errors="replace")) >= scripts.LARGEST:
            unread.append(path)
        if text and "\0" not in text[:4096]:
            language = language_of(path, text)
            codes.append(Code(path, language, uncommented(text, language)))
    return About(
        spec,
        found,
        named,
        tuple(codes),
        dialect(spec.dialect).rule(spec.event).blocks,
        any(GUARD.search(each.text) for each in codes),
        tuple(unread),
    )


def inline_text(spec: HookSpec) -> str:
    return "\n".join(spec.command) if isinstance(spec.command, tuple) else spec.command


def inline_language(found: tuple[Command, ...]) -> str:
    """The language of a command's text; that of code that it gives to an interpreter, if there is any."""
    for command in found:
        texts = command.texts()
        if command.name == "node" and any(each in ("-e", "--eval", "-p") for each in texts):
            return "js"
        if command.name.startswith("python") and "-c" in texts:
            return "python"
    return "shell"


def language_of(path: str, text: str) -> str:
    first = text[: text.find("\n")] if text.startswith("#!") else ""
    for mark, language in SHEBANGS if first else ():
        if mark in first:
            return language
    ending = path[path.rfind(".") :].lower() if "." in path.rpartition("/")[2] else ""
    return LANGUAGES.get(ending, "")


def uncommented(text: str, language: str) -> str:
    """A text with the lines that are nothing but a comment emptied."""
    mark = {"shell": "#", "python": "#", "js": "//"}.get(language)
    if mark is None:
        return text
    return "\n".join("" if line.lstrip().startswith(mark) else line for line in text.split("\n"))


def shell_commands(code: Code) -> list[Command]:
    """The commands of a shell script, of a very long one those of its beginning."""
    if code.language != "shell" or not code.path:
        return []
    return commands(code.text[:MOST_LEXED], {})
