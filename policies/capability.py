"""Host capability meets policy (pure): what a run needs, what the host has, and what level that makes."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stockade.policies.resolved import Resolved


class Capability(Record):
    """One thing a host can or can't enforce, found by trying it."""

    name: str
    state: str
    """``ok``, ``missing``, ``disabled``, ``too old`` or ``unknown``."""
    detail: str
    """What was tried and what came of it, one line."""
    remedy: str = ""
    """What to type or change; empty when the state is ``ok``."""


class Settlement(Record):
    """What the host makes of a policy."""

    level: str
    """``full``, ``partial`` (something wanted is missing) or ``none`` (something required is)."""
    missing: tuple[Capability, ...]
    """Every need that is not met, the required ones first."""


REQUIRED = ("bwrap", "user-namespaces", "mount-isolation", "network-isolation", "environment", "capabilities")
"""Without these there is no confinement worth the name."""

WANTED = ("proc", "no-new-userns", "bind-fd")
"""Without these confinement is partial. More are added by what the policy says."""

EGRESS = {
    "none": (),
    "record": ("nftables",),
    "allow": ("leased-network", "nftables", "tun"),
    "open": ("leased-network", "nftables", "tun"),
}
"""What each network kind requires on top, besides the connector where something is let out."""

EITHER = " or "
"""Joins the names of a need that any one of several capabilities meets; the first is the usual one."""

CONNECTORS = {"auto": "slirp4netns or pasta", "slirp4netns": "slirp4netns", "pasta": "pasta"}
"""What ``network.connector`` makes of that."""

UNPRIVILEGED = Capability(
    name="unprivileged",
    state="missing",
    detail="kept as root: only root can use what is granted, the policy says so, or no other uid can be taken",
    remedy="Give the workspace to an ordinary user, or run as one.",
)
"""Not found by trying: a need that a run kept as real root never meets."""


def needs(resolved: Resolved, *, real_root: bool, keep_root: bool) -> dict[str, str]:
    """Capability names (or several: ``EITHER``) and whether each is ``required`` or ``wanted`` for this policy.

    ``real_root``: the caller is uid 0 of the host, not of a namespace that maps only itself. ``keep_root``:
    the program will keep that uid.
    """
    required = [*REQUIRED, *EGRESS.get(resolved.egress, EGRESS["open"])]
    if resolved.egress not in ("none", "record"):
        required.append(CONNECTORS.get(resolved.connector, resolved.connector))
        if resolved.edge:
            required.append("edge")
    if resolved.workspace == "overlay":
        required.append("overlay")
    wanted = list(WANTED)
    if resolved.syscalls != "off":
        wanted.append("seccomp")
    if any(limit is not None for limit in _rlimits(resolved)):
        wanted.append("limits")
    if real_root:
        wanted.append(UNPRIVILEGED.name if keep_root else "drop-root")
    return {**dict.fromkeys(required, "required"), **dict.fromkeys(wanted, "wanted")}


def settle(capabilities: Mapping[str, Capability], needs: Mapping[str, str]) -> Settlement:
    """The level this host reaches, and what is missing. A need nobody has looked at counts as not met."""
    unmet = [(kind, found) for name, kind in needs.items() if (found := _found(capabilities, name)).state != "ok"]
    required = [found for kind, found in unmet if kind != "wanted"]
    wanted = [found for kind, found in unmet if kind == "wanted"]
    level = "none" if required else "partial" if wanted else "full"
    return Settlement(level, (*required, *wanted))


def _rlimits(resolved: Resolved) -> tuple[float | None, ...]:
    return resolved.cpu, resolved.memory, resolved.processes, resolved.file_size, resolved.open_files


def _found(capabilities: Mapping[str, Capability], name: str) -> Capability:
    if name == UNPRIVILEGED.name:
        return UNPRIVILEGED
    found = [
        capabilities.get(each, Capability(each, "unknown", "not looked for", "run stockade doctor"))
        for each in name.split(EITHER)
    ]
    usual, *others = found
    instead = "".join(f" Or use {each.name}: {each.remedy}" for each in others)
    unmet = usual.replace(remedy=f"{usual.remedy}{instead}") if others else usual
    return next((each for each in found if each.state == "ok"), unmet)
