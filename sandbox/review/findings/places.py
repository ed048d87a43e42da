"""Places whose files decide what is run or believed later (data), and where a path belongs (pure)."""

from __future__ import annotations

import re

from stockade.policies.record import Record


class Place(Record):
    """Files by patterns that are searched in their paths, what writing there is, and what they are."""

    rule: str
    severity: str
    about: str
    pattern: re.Pattern[str]


def place(rule: str, severity: str, about: str, *patterns: str) -> Place:
    return Place(rule, severity, about, re.compile("|".join(patterns)))


AGENT = r"/\.(claude|codex|cursor|agents|gemini|windsurf)/"
PLACES = (
    # What is no configuration in an agent's directory comes before what is.
    place("writes-outside", "info", "the data of a plugin", AGENT + r"plugins/data/"),
    place(
        "env-files", "medium", "the variables of the agent's shell",
        r"/session-env/",
        r"/[^/]*(claude|session)[-_]env[^/]*$",
    ),
    place(
        "writes-outside", "low", "an agent's own records",
        AGENT + r"(logs?|cache|tmp|debug|telemetry|todos|sessions|projects|transcripts|state)/",
        AGENT + r"([^/]+/)*[^/]+\.(log|jsonl|lock|tmp|pid)$",
    ),
    place(
        "agent-config", "critical", "an agent's settings",
        AGENT + r"(settings[^/]*\.json|hooks\.json|config\.toml|mcp\.json|auth\.json|\.credentials\.json)",
        AGENT + r"(hooks|plugins|commands|agents|skills|rules|extensions)/",
        r"/(\.claude|\.mcp|mcp|claude_desktop_config)\.json$",
        r"/hooks\.json$",
    ),
    place(
        "agent-config", "high", "what the model is told",
        r"/(CLAUDE|CLAUDE\.local|AGENTS|AGENT|GEMINI|MEMORY)\.md$",
        r"/\.(cursorrules|windsurfrules|clinerules)$",
        r"/copilot-instructions\.md$",
    ),
    place("agent-config", "medium", "an agent's directory", AGENT),
    place(
        "persists", "critical", "a shell's start file",
        r"/\.(bashrc|bash_profile|bash_login|bash_logout|bash_aliases|profile|xprofile|xinitrc|pam_environment)$",
        r"/\.(zshrc|zshenv|zprofile|zlogin|kshrc|cshrc|tcshrc)$",
        r"/\.config/(fish|environment\.d)/",
        r"/etc/(profile|bash\.bashrc|environment|ld\.so\.preload|zsh/)",
    ),
    place("persists", "critical", "a git hook", r"/\.git/hooks/", r"/\.(githooks|husky)/", r"/git-templates?/hooks/"),
    place(
        "persists", "high", "git's configuration",
        r"/\.git/(config|info/attributes|modules/.*/config)$",
        r"/\.gitconfig$",
        r"/\.config/git/",
        r"/\.gitattributes$",
    ),
    place(
        "persists", "critical", "what a session starts",
        r"/\.config/autostart/",
        r"/systemd/(user|system)/",
        r"/etc/(init\.d|rc\.local|xdg/autostart)",
    ),
    place("persists", "critical", "a timetable of cron", r"/cron(tab|tabs|\.[a-z]+)?(/|$)"),
    place(
        "persists", "critical", "who may log in, and what then runs",
        r"/\.ssh/(authorized_keys2?|rc|environment|config)$",
    ),
    place(
        "persists", "critical", "the system's own configuration",
        r"/etc/(sudoers|passwd|shadow|hosts|ssh/|pam\.d/)",
    ),
    place(
        "persists", "critical", "what every Python starts with",
        r"/(sitecustomize|usercustomize)\.py$",
        r"site-packages/[^/]+\.pth$",
    ),
    place(
        "persists", "critical", "a command that shadows others",
        r"^/HOME/(\.local/)?bin/",
        r"/\.(cargo|npm-global)/bin/",
    ),
    place(
        "persists", "high", "where packages come from",
        r"/\.(npmrc|yarnrc(\.yml)?|pypirc|pydistutils\.cfg|curlrc|wgetrc|condarc)$",
        r"/pip/pip\.conf$",
        r"/\.cargo/config(\.toml)?$",
        r"/\.m2/settings\.xml$",
    ),
    place(
        "persists", "high", "what an editor runs",
        r"/\.vscode/(tasks|launch|settings)\.json$",
        r"/\.(devcontainer|idea)/",
        r"/\.(vimrc|exrc|emacs|nvimrc)$",
        r"/\.config/nvim/",
    ),
    place(
        "persists", "high", "what CI runs",
        r"/\.github/(workflows|actions)/",
        r"/\.circleci/",
        r"/(\.gitlab-ci\.yml|Jenkinsfile|azure-pipelines\.yml|\.pre-commit-config\.yaml)$",
    ),
    place("env-files", "low", "an example of environment variables", r"/\.env\.(example|sample|template|dist)$"),
    place("env-files", "high", "the project's environment variables", r"/\.envrc$", r"/\.env(\.[\w-]+)*$"),
)  # fmt: skip
OWN_STATE = re.compile(
    r"/\.(cache|npm|yarn|pnpm-store|bun|deno|gradle|m2|rustup|mypy_cache|ruff_cache|pytest_cache)(/|$)"
    r"|/\.(python_history|node_repl_history|wget-hsts|lesshst|viminfo)$"
    r"|/\.local/(share|state)/|/\.config/|/\.cargo/(registry|git)/|/__pycache__/"
)
"""Where programs keep what is theirs."""
HARMFUL_GIT = re.compile(
    r"^\+.*(hookspath|fsmonitor|sshcommand|textconv|insteadof|credential|\bhelper\b|alias|filter)", re.I | re.M
)
HARMFUL_VARIABLES = re.compile(
    r"^\+.*\b(PATH|LD_PRELOAD|LD_LIBRARY_PATH|BASH_ENV|ENV|PROMPT_COMMAND|NODE_OPTIONS|PYTHON\w+|PERL5\w+|RUBYOPT"
    r"|GIT_\w+|\w*_PROXY|\w+_BASE_URL)\s*=",
    re.I | re.M,
)


def normal(path: str, area: str) -> str:
    """A path to search patterns in: absolute, with HOME's own prefix told apart."""
    if area == "home":
        rest = path.removeprefix("~").lstrip("/")
        found = re.match(r"(home/[^/]+|root)/(.*)", rest, re.S)
        return "/HOME/" + (found.group(2) if found else rest)
    return path if path.startswith("/") else "/" + path


def place_of(path: str, area: str) -> Place | None:
    """The first place that a path belongs to."""
    name = normal(path, area)
    return next((each for each in PLACES if each.pattern.search(name)), None)
