"""Whether a script is the user's own: ``trusted`` or ``foreign``.

Tracked in the user's own project is trusted; a plugin, a vendored script, a download, anything unknown is
foreign. The first half looks at the path alone; the second asks git, with everything in the repository's
own configuration that could run code switched off.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VENDORED = frozenset(
    {
        "node_modules", "bower_components", "site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox",
        "vendor", "vendored", "third_party", "third-party", "plugins", "Downloads", ".cache", ".git",
    }
)  # fmt: skip
"""Folders inside a project that hold other people's code."""

NOT_A_PROJECT = frozenset({"node_modules", "site-packages", "dist-packages", "Downloads", ".cache"})
"""Folders below which nothing is the user's own project, whatever repository is there."""

SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - named in order to be distrusted
GIT = ("/usr/bin/git", "/bin/git", "/usr/local/bin/git")
GIT_SECONDS = 5.0
GIT_OPTIONS = (
    "--no-pager", "--literal-pathspecs",
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false",
    "-c", "safe.bareRepository=explicit", "-c", "protocol.allow=never",
)  # fmt: skip
GIT_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}


def provenance(path: str, project: str) -> str:
    """``trusted`` if ``path`` is a file tracked in the repository of ``project``, else ``foreign``.

    Symlinks are resolved first. A submodule is somebody else's project: foreign.
    """
    if "\0" in path or "\0" in project:
        return "foreign"
    real, root = os.path.realpath(path), os.path.realpath(project)
    if foreign_by_path(real, root) or not _is_file(real) or _in_submodule(real):
        return "foreign"
    return "trusted" if tracked(real, root) else "foreign"


def foreign_by_path(path: str, project: str) -> bool:
    """Whether the place alone says that it is not the user's own (pure; both without symlinks)."""
    inside = _parts_below(path, project)
    if not inside or project == "/" or project in SHARED:
        return True
    above = project.strip("/").split("/")
    if NOT_A_PROJECT.intersection(above) or _has_pair(above, ".claude", "plugins"):
        return True
    return bool(VENDORED.intersection(inside[:-1])) or any(
        path.startswith(f"{place}/") for place in _shared(project)
    )


def tracked(path: str, project: str) -> bool:
    """Whether git has the file in the index of the repository of ``project``; any trouble counts as no."""
    import subprocess

    git = next((candidate for candidate in GIT if os.access(candidate, os.X_OK)), None)
    if git is None:
        return False
    command = [git, *GIT_OPTIONS, "-C", project, "ls-files", "--error-unmatch", "--", path]
    try:
        done = subprocess.run(
            command,
            env=GIT_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _parts_below(path: str, project: str) -> list[str]:
    root = project.rstrip("/") + "/"
    return [part for part in path[len(root) :].split("/") if part] if path.startswith(root) else []


def _has_pair(parts: list[str], first: str, second: str) -> bool:
    return any(part == first and parts[place + 1 : place + 2] == [second] for place, part in enumerate(parts))


def _shared(project: str) -> Iterator[str]:
    """Shared folders that the project is not itself inside of."""
    return (place for place in SHARED if not project.startswith(f"{place}/"))


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _in_submodule(path: str) -> bool:
    """Whether the nearest ``.git`` points into another repository's modules."""
    folder = os.path.dirname(path)
    while folder != "/":
        marker = os.path.join(folder, ".git")
        if os.path.lexists(marker):
            return not os.path.isdir(marker) and _points_to_modules(marker)
        folder = os.path.dirname(folder)
    return False


def _points_to_modules(marker: str) -> bool:
    if not _is_file(marker):
        return True
    try:
        with open(marker, "rb") as file:
            _, found, inner = file.read(4096).partition(b".git/")
            return bool(found) and b"/modules/" in b"/" + inner
    except OSError:
        return True
