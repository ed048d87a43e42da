"""Checks of what a handler's command line does: its words, its files, how it ends. Pure, but for looking files up."""

from __future__ import annotations

import os
import re

from stockade.policies.text import quoted
from stockade.sandbox.hooks.checks.fetching import fetched
from stockade.sandbox.hooks.scripts import OWN_FOLDER, ROOTS
from stockade.sandbox.hooks.words import SHELLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stockade.sandbox.hooks.checks.about import About
    from stockade.sandbox.hooks.finding import Finding
    from stockade.sandbox.hooks.shelltext import Command

ROOT = re.compile(r"(?:\w*_)?(?:ROOT|DIR|CWD|HOME|PATH|DATA)|PWD|extensionPath")
"""Variables that hold a path."""
GEMINI_QUOTES = ("GEMINI_PROJECT_DIR", "GEMINI_CWD", "CLAUDE_PROJECT_DIR")
"""Gemini replaces these by a path that it has already quoted."""
PASSING = ("true", ":", "exit", "echo", "printf")
PIPES_ON = ("tee", "cat", "head", "tail", "logger", "ts", "sed")


def check_commands(about: About) -> Iterator[Finding]:
    if about.spec.form == "shell":
        yield from quoting(about)
        yield from endings(about)
    if about.spec.form in ("shell", "argv"):
        yield from logins(about)
        yield from files(about)
        yield from unread(about)
        yield from fetches(about)


def quoting(about: About) -> Iterator[Finding]:
    """Paths that a shell splits at blanks; for Gemini, the quotes that end its own."""
    gemini = about.spec.dialect == "gemini"
    told: set[str] = set()
    for command in about.commands:
        if command.name == "[[":
            continue  # splits nothing
        words = (*command.words, *(word for _sign, word in command.redirects))
        for name in (name for word in words for name in word.bare):
            if ROOT.fullmatch(name) and name not in told and not (gemini and name in GEMINI_QUOTES):
                told.add(name)
                text = f"${name} is not quoted: a path with a blank in it becomes two words"
                yield about.told("unquoted_root", "medium", text, f'Write "${{{name}}}" in quotes.', about.key)
        for name in (name for word in words for name in word.quoted):
            if gemini and name in GEMINI_QUOTES and name not in told:
                told.add(name)
                text = f"the host puts a quoted path for ${name}, and the quotes around it here end those"
                yield about.told("quoted_twice", "medium", text, "Leave your own quotes out.", about.key)
    if about.spec.dialect == "claude" and "${user_config." in about.codes[0].text:
        text = "${user_config.*} is refused in a command that a shell runs"
        yield about.told(
            "refused_placeholder", "high", text, "Use args, or CLAUDE_PLUGIN_OPTION_* variables.", about.key
        )


def endings(about: About) -> Iterator[Finding]:
    """An end of the command line that hides how the guard before it ended."""
    top = [each for each in about.commands if not each.nested]
    if not about.blocks or len(top) < 2:
        return
    last, before = top[-1], top[-2]
    if passes(last) and last.before in ("||", ";", "\n") and before.name not in PASSING:
        shown = f"{last.before.strip() or ';'} {' '.join(last.texts())}"
        text = f"{quoted(shown)} at the end makes a success of every failure and of exit code 2"
        remedy = "End with the guard's own exit code."
        yield about.told("swallowed_failure", "high" if about.guards else "medium", text, remedy, about.key)
    elif last.before in ("|", "|&") and last.name in PIPES_ON:
        text = f"the exit code is that of {last.name}, not of the guard before it"
        yield about.told("piped_exit", "medium", text, "Let the guard be the last of the pipe.", about.key)


def passes(command: Command) -> bool:
    """Whether a command always succeeds."""
    texts = command.texts()
    if command.name == "exit":
        return texts[1:] == ("0",)
    return command.name in ("true", ":") or (command.name in ("echo", "printf") and command.before == "||")


def logins(about: About) -> Iterator[Finding]:
    for command in about.commands:
        options = options_of(command)
        if command.name in SHELLS and any(login(each) for each in options):
            text = "a login or interactive shell runs the user's profile, whose output lands before the answer"
            yield about.told("login_shell", "medium", text, f"Write {command.name} -c.", about.key)


def options_of(command: Command) -> Sequence[str]:
    texts = command.texts()[1:]
    end = next((at for at, each in enumerate(texts) if not each.startswith("-")), len(texts))
    return texts[:end]


def login(option: str) -> bool:
    short = option.startswith("-") and not option.startswith("--")
    return option == "--login" or (short and ("l" in option[1:] or "i" in option[1:]))


def files(about: About) -> Iterator[Finding]:
    """The program and script: are they there, can they run, do they depend on the directory."""
    for each in about.scripts:
        if each.role == "mentioned" or (each.optional and each.state == "missing"):
            continue
        where = quoted(each.path or each.written)
        if each.state == "missing":
            text = f"{where} does not exist, and most hosts let the action go ahead then"
            yield about.told("missing_script", "high", text, "Create it, or correct the command.", about.key)
        elif each.state == "no_file":
            yield about.told("missing_script", "high", f"{where} is no file", "Correct the command.", about.key)
        elif each.role == "program" and each.state == "there" and not executable(each.path):
            text = f"{where} is not executable, so it ends with 126 and the action goes ahead"
            yield about.told("not_executable", "high", text, f"chmod +x {each.path}", about.key)
        if each.relative and about.spec.dialect not in OWN_FOLDER:
            roots = ROOTS.get(about.spec.dialect, ()) if about.spec.provenance == "plugin" else ()
            severity = "high" if about.spec.provenance in ("plugin", "extension") else "medium"
            text = f"{quoted(each.written)} is looked for in the session's directory, whichever that is"
            remedy = (
                f'Write "${{{roots[0]}}}/..." for it.'
                if roots
                else "Write an absolute path, or the project's variable."
            )
            yield about.told("relative_script", severity, text, remedy, about.key)


def unread(about: About) -> Iterator[Finding]:
    for path in about.unread:
        text = f"{quoted(path)} could not be read to its end, so it was not checked as a whole"
        yield about.told("not_read", "low", text, "Make it readable, or shorter.", about.key)


def executable(path: str) -> bool:
    """Whether anybody may execute a file: root's own answer says nothing about the others."""
    try:
        return bool(os.stat(path).st_mode & 0o111)
    except OSError:
        return False


def fetches(about: About) -> Iterator[Finding]:
    """Programs from the network at the time the hook runs."""
    told: set[str] = set()
    for at, command in enumerate(about.commands):
        what = fetched(command, about.commands[at - 1] if at else None)
        if what and what.text not in told:
            told.add(what.text)
            yield about.told(what.code, what.severity, what.text, what.remedy, about.key)
