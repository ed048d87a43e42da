"""The small project in which handlers are tried: sources, tests, configuration, and a history of its own.

Made by our own code; git is run on it and on nothing else, with everybody's configuration left out.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
import tempfile

from stockade.sandbox.review.canary import Seed

NAME = "orders-api"
"""The name of its directory."""
FIRST: dict[str, str] = {
    "README.md": "# orders-api\n\nTotals and invoices for the shop.\n\n    make test\n",
    "pyproject.toml": '[project]\nname = "orders-api"\nversion = "0.4.1"\nrequires-python = ">=3.10"\n',
    "package.json": '{\n  "name": "orders-web",\n  "version": "0.4.1",\n  "scripts": {"test": "node --test"}\n}\n',
    "Makefile": "test:\n\tpython3 -m pytest -q\n",
    ".gitignore": ".env\n__pycache__/\nnode_modules/\n.claude/settings.local.json\n",
    ".env.example": "DATABASE_URL=\nSESSION_SECRET=\nDEBUG=0\n",
    "src/orders.py": "def total(items):\n    return sum(item.price for item in items)\n",
    "src/app.js": "export function greet(name) {\n  return `Hello ${name}`\n}\n",
}
SECOND: dict[str, str] = {
    "src/orders.py": "def total(items):\n    return sum(item.price * item.count for item in items)\n",
    "tests/test_orders.py": "from src.orders import total\n\n\ndef test_nothing():\n    assert total([]) == 0\n",
    ".github/workflows/ci.yml": "on: [push]\njobs:\n  test:\n    runs-on: linux\n    steps:\n      - run: make test\n",
}
THIRD: dict[str, str] = {
    "CLAUDE.md": "# For agents\n\nRun `make test` before you commit. Never touch `.env`.\n",
    "data/prices.csv": "id,price,count\n1,250,2\n2,999,1\n",
}
HISTORY = (("Add totals", FIRST), ("Count items, test it", SECOND), ("Notes for agents, sample prices", THIRD))
DATES = ("2026-07-01T09:00:00+0000", "2026-07-08T10:30:00+0000", "2026-07-20T16:45:00+0000")
REMOTE = "https://git.example/shop/orders-api.git"
GIT = ("/usr/bin/git", "/bin/git", "/usr/local/bin/git")


@functools.cache
def sample() -> tuple[Seed, ...]:
    """The project's files, ``.git`` among them; without that where the host has no git."""
    git = next((path for path in GIT if os.access(path, os.X_OK)), "")
    if not git:
        files = {path: text for _message, files in HISTORY for path, text in files.items()}
        return tuple(Seed(path, text.encode()) for path, text in sorted(files.items()))
    place = tempfile.mkdtemp(prefix="stockade-sample-")
    try:
        build(git, place)
        return tuple(seeds(place))
    finally:
        shutil.rmtree(place)


def has_history() -> bool:
    """Whether the sample has a ``.git``."""
    return any(each.path == ".git/HEAD" for each in sample())


def build(git: str, place: str) -> None:
    """Commit by commit."""
    run(git, place, DATES[0], "init", "--quiet", "--template=", "--initial-branch=main")
    run(git, place, DATES[0], "remote", "add", "origin", REMOTE)
    for (message, files), date in zip(HISTORY, DATES, strict=True):
        for path, text in files.items():
            whole = os.path.join(place, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "w") as file:
                file.write(text)
        run(git, place, date, "add", "--all")
        run(git, place, date, "commit", "--quiet", f"--message={message}")
    run(git, place, DATES[-1], "repack", "-a", "-d", "-q")
    os.makedirs(os.path.join(place, ".git/hooks"), exist_ok=True)
    with open(os.path.join(place, ".git/hooks/README.sample"), "w") as file:
        file.write("No hooks here.\n")


def run(git: str, place: str, date: str, *words: str) -> None:
    env = {
        "PATH": "/usr/bin:/bin", "HOME": place, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "Dev", "GIT_AUTHOR_EMAIL": "dev@orders.example", "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": "Dev", "GIT_COMMITTER_EMAIL": "dev@orders.example", "GIT_COMMITTER_DATE": date,
        "GIT_CEILING_DIRECTORIES": os.path.dirname(place),
    }  # fmt: skip
    command = [git, "-c", "core.fsync=none", "-c", "gc.auto=0", *words]
    subprocess.run(
        command, cwd=place, env=env, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


def seeds(place: str) -> list[Seed]:
    """Every regular file below a directory of ours."""
    found = []
    for folder, _folders, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) | 0o200
                found.append(Seed(os.path.relpath(path, place), file.read(), 0o755 if mode & 0o100 else 0o644))
    return sorted(found, key=lambda each: each.path)
