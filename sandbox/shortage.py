"""Whether something could not be tried for want of processes or memory: that says nothing about what a host can do.

Only what bubblewrap, a shell of ours or the kernel said during a trial is read here, never what a program printed.
"""

from __future__ import annotations

import errno
import os

from stockade.policies.capability import Capability

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.evidence import Evidence

CODES = (errno.EAGAIN, errno.ENOMEM)
CAUSES = tuple(os.strerror(code).lower() for code in CODES)
FORKS = ("cannot fork", "can't fork")
"""What shells say, some without a reason."""


def cause_in(text: str) -> str:
    """The shortage that a text speaks of; empty if it speaks of none."""
    said = text.lower()
    found = next((cause for cause in CAUSES if cause in said), "")
    return found or ("no process could be started" if any(words in said for words in FORKS) else "")


def cause_of(evidence: Evidence, said: str) -> str:
    """The shortage that kept a trial from coming to its end; ``said``: what bubblewrap and our shell printed."""
    if evidence.failed_errno in CODES:
        return os.strerror(evidence.failed_errno).lower()
    return cause_in(f"{evidence.gate_failure} {said}")


def untried(name: str, cause: str) -> Capability:
    """The state of something that nobody could try: neither there nor missing."""
    return Capability(
        name,
        "unknown",
        f"could not be tried: {cause}",
        "Try again when fewer processes of this user are running and more memory is free, or raise its limit (ulimit -u).",
    )
