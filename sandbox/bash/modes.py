"""The three modes of a call: what a policy comes to, what is wider, and a policy in another mode (pure)."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.policies.resolved import Resolved

READ_ONLY, WORKSPACE_WRITE, FULL_ACCESS = MODES = ("read-only", "workspace-write", "full-access")
"""From narrow to wide."""

ALLOWED_ONCE, REJECTED = "allowed_once", "rejected"
ASKED = "mode of the call"
"""The origin of what a call's mode changes."""


class Escalation(Record):
    """What ``approve`` is asked: may this one command run once in a wider mode."""

    command: str
    cwd: str
    mode: str
    """Asked for."""
    tool_mode: str
    """What the tool has otherwise."""
    justification: str
    """Why, in the words of who asks: foreign text."""


def mode_of(policy: Resolved) -> str:
    """The mode that a policy comes to: nothing but where a command may write decides."""
    if policy.mode == "off":
        return FULL_ACCESS
    if policy.workspace in ("read-write", "overlay") or policy.write or policy.home != "empty":
        return WORKSPACE_WRITE
    return READ_ONLY


def is_wider(mode: str, than: str) -> bool:
    return MODES.index(mode) > MODES.index(than)


def in_mode(policy: Resolved, mode: str) -> Resolved:
    """The policy with no more changed than the mode asks for: what it hides, limits and lets out stays.

    An unconfined run has the network of the host, which no list of hosts narrows.
    """
    if mode == mode_of(policy):
        return policy
    if mode == READ_ONLY:
        changed = {"workspace": "read-only", "write": (), "home": "empty"}
        if policy.mode == "off":
            changed["mode"] = "auto"
    elif mode == WORKSPACE_WRITE:
        changed = {"workspace": "read-write"}
        if policy.mode == "off":
            changed["mode"] = "auto"
    else:
        changed = {"mode": "off", "egress": "none", "allow": ()}
        if policy.workspace == "overlay":
            changed["workspace"] = "read-write"
    from stockade.policies.fields import ATTRIBUTES

    keys = {key for key, name in ATTRIBUTES.items() if name in changed}
    origin = tuple((key, ASKED if key in keys else where) for key, where in policy.origin)
    return policy.replace(**changed, origin=origin)
