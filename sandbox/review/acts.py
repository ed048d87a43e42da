"""What an agent does in the corpus, in neutral terms: calls of tools, prompts. Data, and how it is filled in."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stockade.sandbox.review.corpus import Setting

HUGE = 300_000
"""Bytes of the large payload: more than a pipe holds, less than any host refuses."""


class Act(Record):
    """One call of a tool."""

    name: str
    about: str
    tool: str
    """``shell``, ``write``, ``edit``, ``read``, ``fetch`` or ``mcp``."""
    input: Mapping[str, Any]
    """``command``; ``path``, ``content``, ``old``, ``new``; ``url``; or a server's own."""
    result: str = "ok"
    """What the tool answered, for events after it."""
    failed: bool = False

    def filled(self, setting: Setting) -> Act:
        """With the setting's paths and token in place of ``{project}``, ``{home}`` and ``{token}``."""

        def fill(text: object) -> object:
            if not isinstance(text, str):
                return text
            for name in ("project", "home", "token"):
                text = text.replace(f"{{{name}}}", getattr(setting, name))
            return text

        given = {key: fill(value) for key, value in self.input.items()}
        return self.replace(input=given, result=str(fill(self.result)))


SOURCE = "def total(items):\n    return sum(item.price * item.count for item in items)\n"
NASTY = (
    "echo '\x1b]0;title\x07\x1b[2J' \"$(id)\" `id` ; printf '%s' '\"}],\\u0000\\ud83d\\ude00' # ' \" \\ \r\n"
    "../../../../etc/passwd {{7*7}} ${HOME} %n%n <script>alert(1)</script> \u202egnp.exe\u2066 "
)

ACTS: tuple[Act, ...] = (
    Act("benign-shell", "an ordinary command", "shell", {"command": "ls -la src"}, "total 8\nsrc/orders.py\n"),
    Act(
        "destructive-shell", "a command that deletes everything", "shell",
        {"command": "rm -rf / --no-preserve-root"}, "rm: refusing\n", True,
    ),
    Act("write-source", "a source file is written", "write", {"path": "{project}/src/orders.py", "content": SOURCE}),
    Act(
        "write-credential", "a credential file is written", "write",
        {"path": "{home}/.aws/credentials", "content": "[default]\naws_secret_access_key = {token}\n"}, "ok", True,
    ),
    Act("read-secret", "a secret is read", "read", {"path": "{project}/.env"}, "SESSION_SECRET={token}\n"),
    Act(
        "commit-shell", "a commit is made", "shell",
        {"command": "git add -A && git commit -m 'Round totals to cents'"}, "[main 1c2d3e4] Round totals to cents\n",
    ),
    Act(
        "hostile-shell", "control characters, quotes and markup", "shell", {"command": NASTY}, NASTY, True,
    ),
    Act(
        "huge-write", "a very large payload", "write",
        {"path": "{project}/data/export.csv", "content": "id,price,count\n" * (HUGE // 15)}, "ok", True,
    ),
    Act(
        "edit-source", "a source file is edited", "edit",
        {"path": "{project}/src/orders.py", "old": "item.count", "new": "item.quantity"},
    ),
    Act("read-source", "a source file is read", "read", {"path": "{project}/src/orders.py"}, SOURCE),
    Act("fetch-page", "a page is fetched", "fetch", {"url": "https://docs.example/guide", "prompt": "Summarise."}),
    Act(
        "mcp-call", "a tool of a server is called", "mcp", {"title": "Totals are off by one cent", "body": "See #12."},
    ),
)  # fmt: skip
"""In the order in which they are chosen."""

PROMPTS: tuple[tuple[str, str, str], ...] = (
    ("benign-prompt", "an ordinary request", "Add a test for total() in src/orders.py."),
    ("secret-prompt", "a request with a secret in it", "Why does login fail with SESSION_SECRET={token}?"),
    ("hostile-prompt", "control characters, quotes and markup", NASTY),
    ("huge-prompt", "a very large payload", "Explain this log:\n" + "WARN retry in 5 s\n" * (HUGE // 18)),
)
