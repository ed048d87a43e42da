"""What is to another repository in a workspace what a protected ``.git/...`` is to its own (pure).

Whoever runs git in the workspace later runs it there too: it enters submodules, and prompts and editors ask it about
every repository they come by. Which names there are is git's (gitrepository-layout(5)).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GIT = b".git"
WITH_NAMES = (b"modules", b"worktrees")
"""Directories of a repository that have more of them, under names of any number of parts."""
LIKE_SETTINGS = (b"config.worktree", b"commondir")
"""More settings, and the name of another directory that has them."""


def like_protected(path: bytes, protected: Iterable[bytes], *, names_place: bool = False) -> str:
    """The protected name that ``path`` stands for in a repository below; empty if it stands for none.

    ``names_place``: a file or a link will be there, no directory.
    """
    if GIT not in path:
        return ""
    names = [name for name in protected if name == GIT or name.startswith(GIT + b"/")]
    parts = path.split(b"/")
    for at in (at for at, part in enumerate(parts) if part == GIT):
        for name in names:
            if stands_for(parts[at + 1 :], name.split(b"/")[1:], own=at == 0, names_place=names_place):
                return name.decode("utf-8", "replace")
    return ""


def stands_for(inner: list[bytes], wanted: list[bytes], *, own: bool, names_place: bool) -> bool:
    """Whether ``inner``, a path in a ``.git``, is ``wanted`` or below it. ``own``: it is that of the workspace itself."""
    if not inner:
        # A file or a link of this name says where the repository is: at a place of the program's choice.
        return not own and (not wanted or names_place)
    settings = wanted == [b"config"]
    if settings and inner[0] in LIKE_SETTINGS:
        return True
    if not own and inner[: len(wanted)] == wanted:
        return True
    if inner[0] not in WITH_NAMES or not wanted:
        return False
    places = range(2, len(inner))
    return any(inner[at : at + len(wanted)] == wanted or (settings and inner[at] in LIKE_SETTINGS) for at in places)
