"""How tests call the command line: as a process, in a place that every user can come to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

STOCKADE = (sys.executable, "-m", "stockade")
BOX = ("--policy", "workspace-write")


class Place:
    """A workspace, a home, another directory and a victim, below a directory of the test's own.

    Not below tmp_path: a root caller's run drops to a user who can't come there, or keeps root.
    """

    def __init__(self, cache: str) -> None:
        self.top = os.path.realpath(tempfile.mkdtemp(dir="/var/tmp", prefix="stockade-test-"))
        os.chmod(self.top, 0o755)
        for name in ("ws", "home", "other", "victim"):
            os.mkdir(self.path(name))
            os.chmod(self.path(name), 0o777)
        self.ws, self.home = self.path("ws"), self.path("home")
        self.env = {
            "PATH": "/usr/bin:/bin",
            "HOME": self.home,
            "XDG_CACHE_HOME": cache,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def path(self, *names: str) -> str:
        return os.path.join(self.top, *names)

    def put(self, name: str, text: str = "", mode: int = 0o644) -> str:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def call(self, *words, cwd=None, env=None, command=STOCKADE, **options):
        """Run it; the streams are bytes."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            [*command, *words],
            cwd=cwd or self.ws,
            env={**self.env, **(env or {})},
            check=False,
            timeout=60,
            **options,
        )

    def remove(self) -> None:
        for folder, names, _files in os.walk(self.top):
            for name in names:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
        shutil.rmtree(self.top)


def open_maker(place: Place) -> None:
    """The control beside every refusal: the same command, rightly called, does leave its marker."""
    done = place.call("run", *BOX, "--", "touch", "marker")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    os.remove(os.path.join(place.ws, "marker"))
