"""What this host offers for leased networks: tools and the tun device, each found by looking at the thing itself."""

from __future__ import annotations

import os

from stockade.policies.capability import Capability

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TUN = "/dev/net/tun"
TUNGETFEATURES = 0x800454CF
TOOLS = {
    "slirp4netns": ("slirp4netns", "slirp4netns", "it connects a leased network to the outside"),
    "pasta": ("pasta", "passt", "it can stand in for slirp4netns"),
    "nftables": ("nft", "nftables", "it enforces the allowlist on packets"),
}
"""Capability to program, package and use."""
CONNECTORS = ("slirp4netns", "pasta")
EITHER_CONNECTOR = " or ".join(CONNECTORS)


def tool_capabilities(find: Callable[[str], str | None]) -> tuple[Capability, ...]:
    """One capability a tool. ``find`` gives the path of a helper, or None."""
    found = []
    for name, (program, package, use) in TOOLS.items():
        path = find(program)
        if path is None:
            remedy = f"Install the package {package}."
            found.append(Capability(name, "missing", f"{program} is not installed: {use}", remedy))
        else:
            found.append(Capability(name, "ok", path))
    return (*found, tun_capability())


def lacking(tools: Iterable[Capability]) -> tuple[str, ...]:
    """What letting something out lacks: tools without which it can't be, and the connectors if there is none."""
    absent = [tool.name for tool in tools if tool.state != "ok"]
    if all(name in absent for name in CONNECTORS):
        absent = [EITHER_CONNECTOR, *absent]
    return tuple(name for name in absent if name not in CONNECTORS)


def tun_capability() -> Capability:
    """Whether this user can open /dev/net/tun for reading and writing, and it is that device."""
    if not os.path.exists(TUN):
        return Capability(
            "tun",
            "missing",
            f"{TUN} does not exist",
            "Load the module: modprobe tun (in a container: --device /dev/net/tun).",
        )
    try:
        fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        try:
            not_tun = why_not_tun(fd)
        finally:
            os.close(fd)
    except OSError as error:
        mode = os.stat(TUN).st_mode & 0o777
        return Capability(
            "tun",
            "disabled",
            f"{TUN} can't be opened (mode {mode:04o}): {(error.strerror or '').lower()}",
            f"Distributions ship it with mode 0666: chmod 0666 {TUN} (as root).",
        )
    if not_tun:
        return Capability(
            "tun",
            "missing",
            f"{TUN} is not the tun device: {not_tun}",
            f"Make it: mknod {TUN} c 10 200 && chmod 0666 {TUN} (as root; in a container: --device {TUN}).",
        )
    return Capability("tun", "ok", f"{TUN} can be opened")


def why_not_tun(fd: int) -> str:
    """Why an open device makes no links (another one may lie over it); empty when it does."""
    import fcntl

    try:
        fcntl.ioctl(fd, TUNGETFEATURES, bytes(4))
    except OSError as error:
        return (error.strerror or "").lower()
    return ""
