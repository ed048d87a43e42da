"""Which files a handler's command stands for: its program, its script, other code that it names.

Looks files up, never runs them. Scripts that a script itself calls are not followed.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.record import Record
from stockade.sandbox.hooks.shelltext import Command, Word, commands
from stockade.sandbox.hooks.words import CODE, script_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stockade.sandbox.hooks.model import HookSpec

LARGEST = 1024 * 1024
SYSTEM = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/lib/", "/lib/")
"""Programs of the system are no part of a hook."""
ROOTS = {
    "claude": ("CLAUDE_PLUGIN_ROOT",),
    "codex": ("PLUGIN_ROOT", "CLAUDE_PLUGIN_ROOT"),
    "gemini": ("extensionPath",),
    "cursor": ("CURSOR_PLUGIN_ROOT", "CLAUDE_PLUGIN_ROOT"),
}
PROJECTS = {
    "claude": ("CLAUDE_PROJECT_DIR",),
    "codex": (),
    "gemini": ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"),
    "cursor": ("CURSOR_PROJECT_DIR", "CLAUDE_PROJECT_DIR"),
}
ASKING = ("[", "[[", "test", "command", "which", "type")
OWN_FOLDER = ("cursor", "agy")
"""Hosts that start hooks in a directory that the file's place tells."""


class Script(Record):
    """One file that a command names."""

    written: str
    path: str
    """Absolute; empty where it can't be told."""
    state: str
    """``there``, ``missing``, ``no_file`` (a directory, say) or ``unresolved``."""
    role: str
    """``program``, ``script`` (an interpreter's) or ``mentioned``."""
    relative: bool = False
    optional: bool = False
    """Whether the command itself asks first, or has another way if it is not there."""


def variables(spec: HookSpec, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the host sets, as far as the file's place tells it, and HOME."""
    home = (os.environ if env is None else env).get("HOME", "")
    found = {"HOME": home} if home else {}
    if spec.root and spec.provenance in ("plugin", "extension"):
        found |= dict.fromkeys(ROOTS.get(spec.dialect, ()), spec.root)
    elif spec.root and spec.provenance in ("project", "project-local"):
        found |= dict.fromkeys(PROJECTS.get(spec.dialect, ()), spec.root)
        found["PWD"] = spec.root
    return found


def base_of(spec: HookSpec) -> str:
    """Where a relative path starts from; empty where only the session tells."""
    if spec.dialect == "agy":
        return os.path.dirname(os.path.abspath(spec.source))
    return spec.root if spec.provenance in ("project", "project-local") or spec.dialect == "cursor" else ""


def parts(spec: HookSpec, env: Mapping[str, str] | None = None) -> list[Command]:
    """The handler's command as simple commands; one for a program with arguments."""
    known = variables(spec, env)
    if spec.form == "argv":
        words = tuple(filled(each, known) for each in spec.command)
        inner = Command(words)
        from stockade.sandbox.hooks.shelltext import inside

        return [inner, *inside(inner, known, 0)]
    return commands(str(spec.command), known) if spec.form == "shell" else []


def filled(text: str, known: Mapping[str, str]) -> Word:
    """One element of an argument list, with the placeholders that the host fills in."""
    names = [name for name in known if f"${{{name}}}" in text]
    for name in names:
        text = text.replace(f"${{{name}}}", known[name])
    return Word(text, None if "${CLAUDE_" in text else text, tuple(names))


def resolve_scripts(spec: HookSpec, env: Mapping[str, str] | None = None) -> list[str]:
    """The files that a handler's command stands for and that are there, absolute, in order, each once."""
    return list(dict.fromkeys(each.path for each in scripts(spec, env) if each.state == "there"))


def scripts(spec: HookSpec, env: Mapping[str, str] | None = None) -> list[Script]:
    """The files that a command names, those among them that are missing."""
    base = base_of(spec)
    found: dict[tuple[str, str], Script] = {}
    asked = False
    for command in parts(spec, env):
        asked = asked or command.name in ASKING or command.before in ("&&", "||") or command.after == "||"
        for each in named(command, base):
            found.setdefault((each.written, each.path), each.replace(optional=asked))
    return list(found.values())


def named(command: Command, base: str) -> Iterator[Script]:
    words, texts = command.words, command.texts()
    if not words:
        return
    skip = launched(texts)
    program = words[skip] if skip < len(words) else words[0]
    script = script_of(kind(texts[skip]) if skip < len(words) else "", texts[skip + 1 :])
    if command.name in (".", "source") and len(words) > 1:
        script = texts[1]
    for number, word in enumerate(words):
        text = texts[number]
        role = (
            "program"
            if word is program
            else "script"
            if script and text == script and number > skip
            else "mentioned"
        )
        if role == "program" and "/" not in text:
            continue
        seen = looked_up(word, text, role, base)
        if seen is not None:
            yield seen


def launched(texts: tuple[str, ...]) -> int:
    """How many words in front only start another command."""
    at = 0
    while at + 1 < len(texts) and texts[at].rpartition("/")[2] in (
        "env",
        "exec",
        "nohup",
        "setsid",
        "command",
        "timeout",
    ):
        timed = texts[at].endswith("timeout")
        at += 1
        while at + 1 < len(texts) and (texts[at].startswith("-") or "=" in texts[at]):
            at += 1
        at += timed and at + 1 < len(texts)
    return at


def kind(program: str) -> str:
    from stockade.sandbox.hooks.words import kind_of

    return kind_of(program)


def looked_up(word: Word, text: str, role: str, base: str) -> Script | None:
    """What a word is on disk; None for one that is no code of the hook."""
    if word.text is None:
        return Script(word.raw, "", "unresolved", role) if role != "mentioned" else None
    relative = not text.startswith("/")
    if "\0" in text or len(text) > 4096 or (role == "mentioned" and text.startswith("-")):
        return None
    if relative and not base:
        return Script(word.raw, "", "unresolved", role, True) if role != "mentioned" else None
    path = os.path.normpath(os.path.join(base, text))
    if path.startswith(SYSTEM):
        return None
    state = state_of(path)
    if role == "mentioned" and (state != "there" or not is_code(path)):
        return None
    return Script(word.raw, path, state, role, relative)


def state_of(path: str) -> str:
    try:
        return "there" if stat.S_ISREG(os.stat(path).st_mode) else "no_file"
    except OSError:
        return "missing"


def is_code(path: str) -> bool:
    """Whether a file looks like something that is executed."""
    return path.lower().endswith(CODE) or os.access(path, os.X_OK) or read_text(path, 2) == "#!"


def read_text(path: str, most: int = LARGEST) -> str:
    """The first ``most`` bytes of a regular file as text; empty where there is none to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        data = b""
        while len(data) < most and (piece := os.read(descriptor, most - len(data))):
            data += piece
        return data.decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
