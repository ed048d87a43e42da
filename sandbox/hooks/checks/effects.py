"""Checks of what a handler's code does beside answering: variables, files, packages. Pure.

Readings of somebody else's source by patterns: each says what was seen and where, none proves anything.
"""

from __future__ import annotations

import re
from itertools import islice

from stockade.policies.text import quoted
from stockade.sandbox.hooks.checks.about import shell_commands
from stockade.sandbox.hooks.checks.fetching import fetched
from stockade.sandbox.hooks.dialects import NAMES, dialect
from stockade.sandbox.hooks.finding import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.hooks.checks.about import About, Code
    from stockade.sandbox.hooks.finding import Finding
    from stockade.sandbox.hooks.shelltext import Command

VARIABLE = re.compile(
    r"""(?:\$\{?|environ(?:\.get)?[\[(]\s*["']|getenv\(\s*["']|process\.env\.|process\.env\[["']|env\.get\(["'])"""
    r"""(?P<name>(?:CLAUDE|CODEX|GEMINI|CURSOR|PLUGIN|ANTIGRAVITY)_[A-Z0-9_]+)(?P<default>:?-)?"""
)
OTHERS = re.compile(
    r"\w+(?:_API_KEY|_TOKEN|_HOME|_CONFIG\w*|_KEY|_MODEL|_BASE_URL)|CLAUDE_CODE_\w+|CLAUDE_ENV_FILE|CLAUDE_SKILL_DIR|CLAUDE_SESSION_ID"
)
"""Variables that users set, or that are put into a skill's text."""
ENV_DUMPS = (
    (re.compile(r"json\.dumps?\(\s*(?:dict\()?\s*os\.environ\b"), "python"),
    (re.compile(r"JSON\.stringify\(\s*process\.env\s*[,)]"), "js"),
)
SHARED = re.compile(r"""["'](?P<path>/(?:tmp|var/tmp|dev/shm)/[^"'\n{}$]*)["']""")
OPENS = re.compile(r"\bopen\(|writeFile|appendFile|createWriteStream|\.write_text|mkdirSync|Path\(|=\s*$|=\s*[\"']")
PAYLOAD = re.compile(r"(?:\w+_)?(?:input|payload|json|stdin|event|data)(?:_json)?", re.I)
SHARED_PLACES = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108
MOST_HITS = 200
"""As many places of one kind are looked at in one text."""
NEAR = 400
"""Letters before a path in which the call that opens it is looked for."""
SEARCHED = re.compile(r"\b(?:env|printenv)\s*\|\s*(?:grep -q|wc)")
"""The environment is only looked through."""
PACKAGERS = r"npm[\"',\s]+(?:install|ci|i)|npx|pip3?[\"',\s]+install|uv[\"',\s]+(?:pip|add|sync|tool)|uvx|bunx"
INSTALL = re.compile(rf"[\"'\[ (](?P<what>{PACKAGERS}|(?:pnpm|yarn)[\"',\s]+(?:add|install|dlx))[\"',\s]")
RUNS = re.compile(r"subprocess|os\.system|exec(?:File)?Sync|spawn(?:Sync)?\(|child_process|execa|Popen")


def variables(about: About, code: Code) -> Iterator[Finding]:
    """Variables by names that look like a host's and that none sets."""
    seen: set[str] = set()
    for found in VARIABLE.finditer(code.text):
        name = found["name"]
        if name in seen or found["default"] or len(seen) > MOST_HITS:
            continue
        seen.add(name)
        if OTHERS.fullmatch(name) or is_set(name) or assigned(name, code.text):
            continue
        text = f"no host sets the variable {name}, so it is empty"
        remedy = "Read the event on stdin; it holds what the hook needs to know."
        yield about.told(
            "undefined_variable",
            "high",
            text,
            remedy,
            "" if code.path else about.key,
            inside=code,
            at=found.start(),
        )
    if "CLAUDE_ENV_FILE" in code.text and about.spec.dialect == "claude":
        text = "it uses CLAUDE_ENV_FILE, by which a hook plants variables in the agent's shell"
        at = code.text.index("CLAUDE_ENV_FILE")
        yield about.told("env_file", "medium", text, "Look at what it writes there.", inside=code, at=at)


def is_set(name: str) -> bool:
    """Whether any host sets a variable."""
    known = (each for host in NAMES for each in dialect(host).VARIABLES)
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in known)


def assigned(name: str, text: str) -> bool:
    return re.search(rf"(?:^|[\s;&(]){name}=|environ\[[\"']{name}[\"']\]\s*=[^=]", text) is not None


def writes(about: About, code: Code) -> Iterator[Finding]:
    """Files in shared directories, and files with the whole environment."""
    searched = SEARCHED.search(code.text) is not None
    lines = (*(about.commands if not code.path else ()), *shell_commands(code))
    told = (each for command in lines for each in shell_writes(about, code, command, searched))
    found = list(islice(told, MOST_HITS))
    if code.language in ("python", "js"):
        found += program_writes(about, code)
    found.sort(key=lambda each: SEVERITIES.index(each.severity))
    for name in ("shared_tmp", "env_dump"):
        yield from [each for each in found if each.code == name][:1]


def shell_writes(about: About, code: Code, command: Command, searched: bool) -> Iterator[Finding]:
    to_files = [word for sign, word in command.redirects if sign.lstrip("01&").startswith(">") and word.text]
    if command.name == "tee":
        to_files += [word for word in command.words[1:] if word.text and not word.text.startswith("-")]
    for word in to_files:
        if (word.text or "").startswith(SHARED_PLACES):
            yield shared(
                about, code, word.text or "", max(code.text.find(word.raw), 0), payload=is_payload(command)
            )
    dumps = command.name in ("env", "printenv") and len(command.words) == 1
    dumps = dumps or (command.name in ("export", "declare") and command.texts()[1:] in (("-p",), ("-x",)))
    kept = [word for word in to_files if word.raw != "/dev/null"] or command.after in ("|", "|&")
    if dumps and kept and not searched:
        yield dumped(about, code, max(code.text.find(command.words[0].raw), 0))


def is_payload(command: Command) -> bool:
    """Whether what is written is the event: stdin, or a variable by such a name."""
    if command.name in ("cat", "tee") and all(word.raw.startswith(("-", "/")) for word in command.words[1:]):
        return True
    return any(PAYLOAD.fullmatch(name) for word in command.words for name in word.names)


def program_writes(about: About, code: Code) -> Iterator[Finding]:
    for found in islice(SHARED.finditer(code.text), MOST_HITS):
        near = max(found.start() - NEAR, 0)
        begin = max(code.text.rfind("\n", near, found.start()) + 1, near)
        if OPENS.search(code.text[begin : found.start("path")]):
            yield shared(about, code, found["path"], found.start())
    for pattern, language in ENV_DUMPS:
        if code.language == language and (found_dump := pattern.search(code.text)):
            yield dumped(about, code, found_dump.start())


def shared(about: About, code: Code, path: str, at: int, *, payload: bool = False) -> Finding:
    what, severity = ("the event", "high") if payload else ("", "medium")
    text = f"it writes {what} to {quoted(path)}, a fixed name in a directory that everybody shares".replace(
        "  ", " "
    )
    return about.told(
        "shared_tmp", severity, text, "Use mktemp, or a directory of the user's own.", inside=code, at=at
    )


def dumped(about: About, code: Code, at: int) -> Finding:
    text = "it writes the whole environment, with every secret in it"
    return about.told("env_dump", "high", text, "Write the variables that are needed.", inside=code, at=at)


def installs(about: About, code: Code) -> Iterator[Finding]:
    """Code that a script fetches when it runs."""
    before = None
    for command in shell_commands(code):
        what = fetched(command, before)
        before = command
        if what:
            at = max(code.text.find(command.words[0].raw), 0)
            yield about.told(what.code, what.severity, what.text, what.remedy, inside=code, at=at)
            return
    if code.language in ("python", "js") and RUNS.search(code.text) and (found := INSTALL.search(code.text)):
        what_runs = re.sub(r"\W+", " ", found["what"])
        text = f"{what_runs} fetches code when the hook runs"
        remedy = "Install it once beforehand, in a fixed version."
        yield about.told("network_install", "high", text, remedy, inside=code, at=found.start())
