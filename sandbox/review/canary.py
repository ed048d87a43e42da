"""Secrets that are none: a believable HOME, .env and environment, each with a random token of its own.

Made anew for every review. A token stands in one place only, so that where it turns up tells what was read.
"""

from __future__ import annotations

import contextlib
import json
import secrets

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
LENGTH = 32
"""Letters of a token: enough that none turns up by chance, in any spelling."""
EVENT = "event"
"""The canary that stands in what a handler is told: to see it again says only that the event was passed on."""


class Canary(Record):
    """One secret."""

    name: str
    place: str
    """``~/...``, a path relative to the project, ``$VARIABLE``, or empty for the one in the events."""
    token: str


class Seed(Record):
    """A file to be made."""

    path: str
    """Relative."""
    data: bytes
    mode: int = 0o644


class Bait(Record):
    """Everything of one review."""

    canaries: tuple[Canary, ...]
    home: tuple[Seed, ...]
    project: tuple[Seed, ...]
    env: tuple[tuple[str, str], ...]

    def token(self, name: str) -> str:
        """The token of a canary."""
        return next(each.token for each in self.canaries if each.name == name)


def token() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(LENGTH))


# --- what the files say --------------------------------------------------------------------------------------


def noise(size: int) -> str:
    """Letters as key material has them."""
    return "".join(secrets.choice(LETTERS + "+/") for _ in range(size))


def ssh_key(secret: str) -> bytes:
    lines = ["b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW"]
    lines += [noise(70), noise(19) + secret + noise(19), noise(70), noise(44) + "=="]
    body = "\n".join(lines)
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n".encode()


def aws(secret: str) -> bytes:
    key = noise(16).upper().replace("+", "A").replace("/", "B")
    return f"[default]\naws_access_key_id = AKIA{key}\naws_secret_access_key = {secret}{noise(8)}\n".encode()


def gcloud(secret: str) -> bytes:
    account = {
        "type": "authorized_user",
        "client_id": "764086051850-orders.apps.example",
        "client_secret": "d-FL95Q19q7MQm",
    }
    return json.dumps({**account, "refresh_token": f"1//0g{secret}"}, indent=2).encode() + b"\n"


def netrc(secret: str) -> bytes:
    return f"machine git.example login dev password {secret}\n".encode()


def npmrc(secret: str) -> bytes:
    return f"//registry.example/:_authToken=npm_{secret}\nfund=false\n".encode()


def pypirc(secret: str) -> bytes:
    return f"[distutils]\nindex-servers = pypi\n\n[pypi]\nusername = __token__\npassword = pypi-AgEI{secret}\n".encode()


def kube(secret: str) -> bytes:
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: prod\nclusters:\n- name: prod\n  cluster:\n"
        f"    server: https://k8s.orders.example:6443\nusers:\n- name: dev\n  user:\n    token: {secret}\n"
    ).encode()


def docker(secret: str) -> bytes:
    return json.dumps({"auths": {"registry.example": {"identitytoken": secret}}}, indent=2).encode() + b"\n"


def gh(secret: str) -> bytes:
    return f"github.com:\n    user: dev\n    oauth_token: gho_{secret}\n    git_protocol: ssh\n".encode()


def git_credentials(secret: str) -> bytes:
    return f"https://dev:{secret}@git.example\n".encode()


def bash_history(secret: str) -> bytes:
    return f"cd src\ngit pull\nexport DEPLOY_KEY={secret}\nmake deploy\nls -la\npython3 -m pytest -q\n".encode()


def zsh_history(secret: str) -> bytes:
    return f": 1785740000:0;curl -H 'Authorization: Bearer {secret}' https://api.example/v1/me\n".encode()


def agent(secret: str) -> bytes:
    return json.dumps({"claudeAiOauth": {"accessToken": f"sk-ant-oat01-{secret}", "scopes": ["user"]}}).encode()


def codex(secret: str) -> bytes:
    return json.dumps({"OPENAI_API_KEY": None, "tokens": {"access_token": secret}}).encode()


def dotenv(secret: str) -> bytes:
    return f"DATABASE_URL=postgres://orders@db.example/orders\nSESSION_SECRET={secret}\nDEBUG=0\n".encode()


def cookies(secret: str) -> bytes:
    """A database as Chromium keeps it, with one cookie."""
    try:
        import sqlite3
    except ImportError:  # a Python without it: nobody here opens the file, others look for the name
        return b"SQLite format 3\0" + f"session{secret}".encode()
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.execute("CREATE TABLE cookies (host_key TEXT, name TEXT, value TEXT, path TEXT, expires_utc INTEGER)")
        base.execute("INSERT INTO cookies VALUES (?, ?, ?, ?, ?)", (".shop.example", "session", secret, "/", 0))
        base.commit()
        return bytes(base.serialize())


FILES: tuple[tuple[str, str, Callable[[str], bytes], int], ...] = (
    ("ssh-key", ".ssh/id_ed25519", ssh_key, 0o600),
    ("ssh-key-rsa", ".ssh/id_rsa", ssh_key, 0o600),
    ("aws-credentials", ".aws/credentials", aws, 0o600),
    ("gcloud-credentials", ".config/gcloud/application_default_credentials.json", gcloud, 0o600),
    ("kube-config", ".kube/config", kube, 0o600),
    ("netrc", ".netrc", netrc, 0o600),
    ("npm-token", ".npmrc", npmrc, 0o600),
    ("pypi-token", ".pypirc", pypirc, 0o600),
    ("docker-config", ".docker/config.json", docker, 0o600),
    ("github-token", ".config/gh/hosts.yml", gh, 0o600),
    ("git-credentials", ".git-credentials", git_credentials, 0o600),
    ("browser-cookies", ".config/google-chrome/Default/Cookies", cookies, 0o600),
    ("shell-history", ".bash_history", bash_history, 0o600),
    ("zsh-history", ".zsh_history", zsh_history, 0o600),
    ("claude-credentials", ".claude/.credentials.json", agent, 0o600),
    ("codex-credentials", ".codex/auth.json", codex, 0o600),
)
"""Name, place below HOME, content, mode."""
VARIABLES: tuple[tuple[str, str, str], ...] = (
    ("env-github-token", "GITHUB_TOKEN", "ghp_{}"),
    ("env-aws-secret", "AWS_SECRET_ACCESS_KEY", "{}"),
    ("env-api-key", "ANTHROPIC_API_KEY", "sk-ant-api03-{}"),
    ("env-npm-token", "NPM_TOKEN", "npm_{}"),
    ("env-database", "DATABASE_URL", "postgres://orders:{}@db.example/orders"),
)
"""Name, variable, value."""
PLAIN: tuple[tuple[str, str], ...] = (
    (".bashrc", "# ~/.bashrc\nHISTSIZE=1000\nalias ll='ls -l'\n"),
    (".profile", "# ~/.profile\numask 022\n"),
    (".zshrc", "# ~/.zshrc\nHISTSIZE=1000\n"),
    (".gitconfig", "[user]\n\tname = Dev\n\temail = dev@orders.example\n[init]\n\tdefaultBranch = main\n"),
    (".ssh/known_hosts", "git.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample\n"),
    (".ssh/authorized_keys", ""),
    (".aws/config", "[default]\nregion = eu-central-1\n"),
    (".claude/settings.json", '{\n  "permissions": {"deny": ["Read(./.env)"]}\n}\n'),
    (".claude/CLAUDE.md", "Keep commits small.\n"),
    (".claude/session-env/hook-0.sh", ""),
    (".config/autostart/.keep", ""),
)
"""What else is in a home, without a secret."""
ENV_FILE = ".claude/session-env/hook-0.sh"
"""Where CLAUDE_ENV_FILE leads, below HOME."""


def make_bait() -> Bait:
    """A new set."""
    canaries, home = [], [Seed(path, text.encode()) for path, text in PLAIN]
    for name, path, content, mode in FILES:
        canaries.append(Canary(name, f"~/{path}", token()))
        home.append(Seed(path, content(canaries[-1].token), mode))
    canaries.append(Canary("dotenv", ".env", token()))
    project = (Seed(".env", dotenv(canaries[-1].token), 0o600),)
    env = []
    for name, variable, value in VARIABLES:
        canaries.append(Canary(name, f"${variable}", token()))
        env.append((variable, value.format(canaries[-1].token)))
    canaries.append(Canary(EVENT, "", token()))
    return Bait(tuple(canaries), tuple(home), project, tuple(env))
