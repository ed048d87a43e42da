"""A plan as a shell command that can be pasted (pure)."""

from __future__ import annotations

import os
import shlex

from stockade.sandbox import argv as lines
from stockade.sandbox.mounts import BIND_RO, TMPFS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.plan import Plan

MARK = "STOCKADE_END"
FIRST_FD = 3
"""POSIX shells need not know descriptors above 9."""


def line(start: Confinement) -> str:
    """One command, POSIX shell. Stand-ins for protected names are replaced by empty read-only directories, and a
    leased network by an empty one."""
    plan = start.plan.replace(mounts=tuple(map(stand_in(start.plan), start.plan.mounts)), leased=False)
    rendered = lines.render(plan, supervised=False, seccomp=False, by_descriptor=False, staged={})
    documents = [(FIRST_FD + at, source.data) for at, source in enumerate(rendered.sources)]
    options = rendered.renumbered(number for number, _data in documents)
    words = [*identity(plan), "env", "-i", start.bwrap.path, *options, "--", *plan.argv]
    text = " ".join(quote(word) for word in words)
    text += "".join(f" {number}<<'{MARK}{number}'" for number, _data in documents)
    return text + "".join(f"\n{os.fsdecode(data)}{MARK}{number}" for number, data in documents) + "\n"


def identity(plan: Plan) -> list[str]:
    if plan.credentials is None:
        return []
    uid, gid = plan.credentials
    return ["setpriv", "--reuid", str(uid), "--regid", str(gid), "--clear-groups", "--inh-caps=-all"]


def stand_in(plan: Plan):  # type: ignore[no-untyped-def]  # noqa: ANN201
    def replaced(mount):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if mount.op == BIND_RO and mount.dest in plan.stubs:
            return mount.replace(op=TMPFS, source="", perms=0o555, frozen=True, pinned=False)
        return mount

    return replaced


def quote(word: str) -> str:
    """Shell quoting that also survives control characters and bytes that are no text."""
    if all(letter.isprintable() for letter in word):
        return shlex.quote(word)
    # $() takes newlines off the end.
    text = word.rstrip("\n")
    ending = "'" + word[len(text) :] + "'" if text != word else ""
    return "\"$(printf '" + "".join(f"\\{byte:03o}" for byte in os.fsencode(text)) + "')\"" + ending
