"""What there is to review in a path: every handler, with its scripts; and what can't be, with the reason.

Reads, and runs nothing. Archives are named, never unpacked.
"""

from __future__ import annotations

import os
import re

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox import survey
from stockade.sandbox.hooks.check import check_specs
from stockade.sandbox.hooks.dialects import dialect as dialect_of
from stockade.sandbox.hooks.discover import SKIPPED, discover
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.scripts import is_code, parts, read_text, resolve_scripts
from stockade.sandbox.hooks.source import shown
from stockade.sandbox.hooks.view import AGENT_DIRECTORIES
from stockade.sandbox.review.model import Handler
from stockade.sandbox.rootfs import COVERED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stockade.sandbox.hooks.config import Loaded

CONFIGURATION = (".json", ".jsonc", ".toml", ".md", ".markdown")
ARCHIVES = (
    ".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar", ".whl", ".vsix", ".mcpb",
    ".dxt", ".jar", ".crate", ".gem", ".nupkg",
)  # fmt: skip
MOST_ARCHIVES = 50
LANGUAGES: Mapping[str, str] = {
    ".py": "python", ".sh": "shell", ".bash": "shell", ".zsh": "shell", ".js": "javascript", ".mjs": "javascript",
    ".cjs": "javascript", ".ts": "typescript", ".mts": "typescript", ".tsx": "typescript", ".rb": "ruby",
    ".pl": "perl", ".php": "php", ".lua": "lua", ".go": "go", ".awk": "awk", ".jq": "jq",
}  # fmt: skip
PROGRAMS: Mapping[str, str] = {
    "python": "python", "python2": "python", "python3": "python", "uv": "python", "pypy3": "python", "sh": "shell",
    "bash": "shell", "dash": "shell", "zsh": "shell", "node": "javascript", "bun": "javascript",
    "deno": "typescript", "tsx": "typescript", "ruby": "ruby", "perl": "perl", "php": "php", "lua": "lua",
    "jq": "jq", "awk": "awk", "go": "go", "npx": "javascript", "uvx": "python",
}  # fmt: skip
INTERPRETERS: Mapping[str, str] = {
    "python": "python3", "shell": "bash", "javascript": "node", "ruby": "ruby", "perl": "perl", "php": "php",
    "lua": "lua", "typescript": "deno",
}  # fmt: skip
"""What starts a lone script that is not executable."""
UNRUNNABLE: Mapping[str, str] = {
    "http": "it is a request that the host sends, not a program: nothing of it can be run here",
    "prompt": "it is a prompt for a model, not a program",
    "agent": "it is a task for an agent, not a program",
    "mcp_tool": "it is a tool of a server, not a program",
}
LONE_EVENTS = ("PreToolUse", "UserPromptSubmit", "SessionStart")
"""What a script is tried with that does not say which events it is for."""


class Discovery(Record):
    """What was found."""

    path: str
    """As it was given, absolute."""
    root: str
    """The directory that paths in the report are relative to."""
    handlers: tuple[Handler, ...] = ()
    not_reviewed: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def find(path: str | os.PathLike[str], dialect: str | None = None) -> Discovery:
    """Everything in a directory, a hooks or settings file, or a script. Raises RequestError for a path that is not
    there."""
    if not os.fspath(path):
        raise RequestError("could not review: the path is empty", remedy="Name a file or directory.")
    given = os.path.abspath(os.fspath(path))
    if dialect is not None:
        dialect_of(dialect)
    if not os.path.exists(given):
        raise RequestError(
            f"could not review {shown(given)}: there is no such file", remedy="Name a file or directory."
        )
    real = os.path.realpath(given)
    if os.path.isdir(real):
        return of_files(given, real, discover(real, dialect=dialect))
    if not os.path.isfile(real):
        raise RequestError(f"could not review {shown(given)}: it is neither a file nor a directory")
    if real.lower().endswith(ARCHIVES):
        return Discovery(given, os.path.dirname(real), not_reviewed=((os.path.basename(real), PACKED),))
    if is_script(real):
        return of_script(given, real, dialect)
    files = discover(real, dialect=dialect)
    top = next((each.root for each in files if each.root), "") or os.path.dirname(real)
    return of_files(given, top, files)


PACKED = "it is an archive: what is in it was not looked at. Unpack it and review that"


def is_script(path: str) -> bool:
    return not path.lower().endswith(CONFIGURATION) and is_code(path)


def of_files(given: str, root: str, files: Iterable[Loaded]) -> Discovery:
    """The handlers of hooks files, in their order."""
    handlers: list[Handler] = []
    left: list[tuple[str, str]] = []
    problems: list[str] = []
    counts: dict[tuple[str, str], int] = {}
    for loaded in files:
        place = relative(loaded.path, root)
        for problem in loaded.problems:
            text = f"{place}:{problem.line}: {problem.text}" if problem.line else f"{place}: {problem.text}"
            problems.append(text)
            if problem.severity == "error":
                left.append((place, problem.text))
        for spec in loaded.specs:
            number = counts[place, spec.event] = counts.get((place, spec.event), 0) + 1
            handlers.append(handler_of(as_plugin(spec), f"{place} {spec.event} {number}", root))
    left += [(each.label, UNRUNNABLE.get(each.spec.form, unknown(each))) for each in handlers if not runs(each)]
    left += [each for handler in handlers for each in foreign(handler, root)]
    left += archives(given if os.path.isdir(given) else "")
    return Discovery(given, root, tuple(handlers), tuple(left), tuple(dict.fromkeys(problems)))


def runs(handler: Handler) -> bool:
    """Whether it is a program that can be exercised."""
    return handler.spec.form in ("argv", "shell") and bool(handler.spec.command)


def unknown(handler: Handler) -> str:
    form = handler.spec.form
    return "it has no command" if form in ("argv", "shell") else f"handlers of type {shown(form)} are not run here"


def as_plugin(spec: HookSpec) -> HookSpec:
    """A file at no host's place is taken for a plugin's, without its manifest: nothing else could bring scripts."""
    return spec.replace(provenance="plugin") if spec.provenance == "file" and spec.root else spec


def handler_of(spec: HookSpec, label: str, root: str) -> Handler:
    paths = resolve_scripts(spec)
    return Handler(
        label,
        spec,
        tuple(relative(path, root) for path in paths),
        language_of(spec, paths),
        tuple(each for each in check_specs([spec]) if each.file == spec.source or is_own(each.file, spec, root)),
    )


def is_own(path: str, spec: HookSpec, root: str) -> bool:
    """Whether a file is code of the reviewed tree, no link out of it; or of the home whose own hooks file names it.

    Another hooks file may name whatever it likes as its script, a key of the user's, say: of that nothing is shown or
    copied.
    """
    real = os.path.realpath(path)
    home = survey.home_directory()
    mine = spec.provenance == "user" and real.startswith(f"{home}/") and not is_private(os.path.dirname(real), home)
    return (mine or real.startswith(os.path.realpath(root).rstrip("/") + "/")) and is_code(path)


def is_private(folder: str, home: str) -> bool:
    """Whether credentials may lie beside a script there: in a home's dotted directories, and an agent's own one."""
    parts = folder[len(home) + 1 :].split("/") if folder.startswith(f"{home}/") else [""]
    return parts[0].startswith(".") and (len(parts) < 2 or parts[0] not in AGENT_DIRECTORIES)


def foreign(handler: Handler, root: str) -> Iterator[tuple[str, str]]:
    """Scripts of a handler that are neither in the reviewed tree nor where the box sees them."""
    tops = tuple(f"{each}/" for each in (survey.home_directory(), *COVERED))
    for path in handler.scripts:
        if path.startswith(tops) and not is_own(path, handler.spec, root):
            yield handler.label, f"{shown(path)} is no part of what is reviewed: it was neither read nor run"


def relative(path: str, root: str) -> str:
    """A path as reports have it: from the root where it lies below that."""
    real = os.path.realpath(path)
    top = root.rstrip("/") + "/"
    return real[len(top) :] if real.startswith(top) else path


# --- languages -----------------------------------------------------------------------------------------------


def language_of(spec: HookSpec, paths: Iterable[str]) -> str:
    """What the handler is written in; ``shell`` for a text of its own, ``binary`` for what is no text."""
    found = [language for path in paths if (language := language_of_file(path))]
    if found:
        return found[0]
    for command in parts(spec) if spec.form in ("argv", "shell") else []:
        name = command.name.rpartition("/")[2]
        if name in PROGRAMS and PROGRAMS[name] != "shell":
            return PROGRAMS[name]
    return "shell" if spec.form == "shell" else PROGRAMS.get(first_word(spec), "")


def first_word(spec: HookSpec) -> str:
    words = spec.command if isinstance(spec.command, tuple) else ()
    return words[0].rpartition("/")[2] if words else ""


def language_of_file(path: str) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in LANGUAGES:
        return LANGUAGES[suffix]
    head = read_text(path, 256)
    if head.startswith("#!"):
        words = [word.rpartition("/")[2] for word in head.split("\n")[0][2:].split()]
        names = [re.sub(r"[\d.]+$", "", word) for word in words if not word.startswith("-")]
        return next((PROGRAMS[name] for name in names if name in PROGRAMS), "")
    return "binary" if head.startswith("\x7fELF") else ""


# --- a script alone ------------------------------------------------------------------------------------------


def of_script(given: str, path: str, dialect: str | None) -> Discovery:
    """A script without a configuration: tried with the events that it names, else with the usual ones."""
    text = read_text(path)
    name = dialect or dialect_in(text)
    events = events_in(text, name)
    command = (path,) if os.access(path, os.X_OK) else started(path)
    root = os.path.dirname(path)
    specs = [lone(name, event, command, path) for event in events] if command else []
    handlers = [handler_of(spec, f"{os.path.basename(path)} {spec.event} 1", root) for spec in specs]
    left = () if command else ((os.path.basename(path), "it is not executable, and nothing tells what starts it"),)
    told = f"{os.path.basename(path)}: no hooks file says how it is used: tried as {name}, {', '.join(events)}"
    return Discovery(given, root, tuple(handlers), left, (told,))


def lone(name: str, event: str, command: tuple[str, ...], path: str) -> HookSpec:
    kind = dialect_of(name).rule(event).kind
    return HookSpec(
        name, event, kind, "argv", command, timeout=10.0, source=path, root=os.path.dirname(path), line=1
    )


def started(path: str) -> tuple[str, ...]:
    interpreter = INTERPRETERS.get(language_of_file(path), "")
    return (interpreter, path) if interpreter else ()


def dialect_in(text: str) -> str:
    """Whose events a script speaks of."""
    marks = {
        "antigravity": r"\b(pre|post)_tool_execution\b|\benvironment_id\b",
        "agy": r"\btoolCall\b|\bworkspacePaths\b",
        "gemini": r"\b(BeforeTool|AfterTool|BeforeAgent|AfterAgent|GEMINI_PROJECT_DIR)\b",
        "cursor": r"\b(beforeShellExecution|beforeReadFile|afterFileEdit|beforeSubmitPrompt|cursor_version)\b",
        "codex": r"\b(apply_patch|CODEX_HOME)\b",
    }
    return next((name for name, mark in marks.items() if re.search(mark, text)), "claude")


def events_in(text: str, name: str) -> list[str]:
    """The host's events that a text names; the usual ones if none."""
    known = dialect_of(name).EVENTS
    named = [event for event in known if re.search(rf"\b{re.escape(event)}\b", text)]
    if named:
        return named
    usual = [event for event in LONE_EVENTS if event in known]
    if usual:
        return usual
    kinds = ("pre_tool", "prompt_submit", "session_start")
    return [event for kind in kinds for event, rule in known.items() if rule.kind == kind][:3]


# --- what is left --------------------------------------------------------------------------------------------


def archives(top: str) -> list[tuple[str, str]]:
    """Archives in a tree."""
    found: list[tuple[str, str]] = []
    for folder, folders, names in os.walk(top) if top else ():
        folders[:] = sorted(each for each in folders if each not in SKIPPED)
        for name in sorted(names):
            if name.lower().endswith(ARCHIVES):
                found.append((relative(os.path.join(folder, name), os.path.realpath(top)), PACKED))
            if len(found) >= MOST_ARCHIVES:
                return found
    return found
