"""The other connector, pasta(1): what it is started with so that a lease is the same as behind slirp4netns.

Left to itself pasta shows the host's own addresses inside, forwards every port in both directions and lets the
gateway stand for the host's loopback: each of that is turned off here by name. Options that releases of 2023 and
of today both have; starts nothing and reads nothing.
"""

from __future__ import annotations

READY_FD = 1
"""Where the pid goes once the link is up. Not above 2: newer releases close whatever they inherit."""
EXIT_FD = 0
"""pasta watches no descriptor: the kernel ends it when the other end of this pipe is closed."""
ADDRESS, BITS, GATEWAY = "10.0.2.100", 24, "10.0.2.2"
MAC = "52:55:0a:00:02:02"
"""The gateway's link address; without it one is taken from the interface, and ``lo`` has none."""

NOTHING_OF_THE_HOST = (
    "--no-map-gw",  # the gateway is not the host's loopback
    "--tcp-ports", "none", "--udp-ports", "none",  # no way in
    "--tcp-ns", "none", "--udp-ns", "none",  # the lease's loopback does not lead to the host's
    "--dns", "none", "--search", "none",
    "--no-dhcp", "--no-dhcpv6", "--no-ndp", "--no-ra",
)  # fmt: skip


def pasta_argv(program: str, pid: int, link: str, mtu: int, ids: tuple[int, int]) -> list[str]:
    """The command that attaches ``link`` to the namespaces of ``pid``, run by ``ids`` (uid and gid)."""
    return [
        program,
        "--foreground",
        "--quiet",
        # Started by uid 0 it would become nobody, who can't enter the namespaces.
        "--runas", "{}:{}".format(*ids),
        "--pid", f"/proc/self/fd/{READY_FD}",
        "--ipv4-only",
        "--config-net",
        # Nothing of this interface is used, as everything is given below; but without one it takes that of the
        # default route, and ends where the host has none.
        "--interface", "lo",
        "--ns-ifname", link,
        "--mtu", f"{mtu}",
        "--address", ADDRESS, "--netmask", f"{BITS}", "--gateway", GATEWAY, "--mac-addr", MAC,
        *NOTHING_OF_THE_HOST,
        f"{pid}",
    ]  # fmt: skip


def is_ready(said: bytes) -> bool:
    """Whether this is a pid, as written when everything is set up."""
    return said.strip().isdigit()
