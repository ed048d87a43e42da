"""Sockets that are no network: by a path, by an abstract name, and of families that no namespace separates."""

from __future__ import annotations

import array
import os
import socket

from stockade.sandbox.attacks.toolbox import (
    Absent,
    Given,
    add,
    any_of,
    attempt,
    bound,
    done,
    each_refused,
    read,
    syscall,
    write,
)

GROUP = "C sockets"
COVERED, VIEW = "mask over the socket", "mount namespace: it is not in the view"
NETWORK, FILTER = "network namespace", "syscall filter"


def connect(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as made:
        made.settimeout(3)
        made.connect(address)
        made.send(b"evil")
    return True


# --- by a path ---------------------------------------------------------------------------------------------


@attempt(COVERED, facts=("heard place",))
def socket_in_the_workspace(given: Given) -> object:
    """Connect to a socket of the host in the workspace."""
    return connect(f"{given.place}/s.sock")


@attempt(COVERED, facts=("heard visible",))
def socket_in_a_shown_directory(given: Given) -> object:
    """Connect to one in a directory that is shown read-only: a read-only mount does not stop that."""
    return connect(f"{given.visible}/s.sock")


@attempt(COVERED, facts=("heard datagram",))
def datagram_to_a_path(given: Given) -> object:
    """Send a datagram to one, without a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        return made.sendto(b"evil", f"{given.visible}/d.sock")


@attempt(VIEW, facts=("heard beside",))
def socket_in_a_temporary_directory(given: Given) -> object:
    """Connect to one in /tmp, where X11, agents and databases have theirs."""
    return connect(f"{given.beside}/s.sock")


@attempt(COVERED, facts=("heard place",))
def socket_by_another_name(given: Given) -> object:
    """Hard-link or move the socket to another name and connect to that."""
    return each_refused(
        {
            "link": lambda: done(os.link, "s.sock", "linked.sock") and connect("linked.sock"),
            "move": lambda: done(os.rename, "s.sock", "moved.sock") and connect("moved.sock"),
            "symlink": lambda: done(os.symlink, f"{given.place}/s.sock", "sym.sock") and connect("sym.sock"),
        }
    )


@attempt(COVERED, facts=("heard visible",))
def socket_by_descriptor(given: Given) -> object:
    """Open its path only (O_PATH) and connect through /proc/self/fd."""
    fd = os.open(f"{given.visible}/s.sock", os.O_PATH)
    return connect(f"/proc/self/fd/{fd}")


@attempt("mask over the pipe")
def pipe_of_the_host(given: Given) -> object:
    """Open a named pipe of the host, in the workspace and in a shown directory."""
    return any_of(lambda top: os.open(f"{top}/pipe", os.O_RDWR | os.O_NONBLOCK) > 0, (given.place, given.visible))


SERVICES = {
    "container-engine": ("the container engine (docker.sock)", "/run/docker.sock", "/var/run/docker.sock"),
    "containerd": ("containerd and podman", "/run/containerd/containerd.sock", "/run/podman/podman.sock"),
    "system-bus": ("the system's D-Bus", "/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"),
    "service-manager": ("systemd", "/run/systemd/private", "/run/systemd/notify"),
    "service-discovery": ("Avahi", "/run/avahi-daemon/socket", "/var/run/avahi-daemon/socket"),
    "session-bus": ("the caller's session bus, Wayland and agents", "/run/user/UID/bus", "/run/user/UID/wayland-0"),
    "windows": ("Windows, from its subsystem for Linux (WSL)", "/run/WSL/1_interop"),
}  # fmt: skip
"""What each is, and where; a world of the suite's own (``networld``) has a stand-in at the first path."""


def service_of(given: Given, paths: tuple[str, ...]) -> object:
    return any_of(lambda path: connect(path.replace("UID", str(given.uid))), paths)


for _word, (_title, *_paths) in SERVICES.items():
    add(
        __name__, GROUP, _word, f"Connect to {_title}",
        bound(lambda given, paths: service_of(given, paths), tuple(_paths)), VIEW, box="none",
    )  # fmt: skip


@attempt("cleared environment")
def agent_by_variable(given: Given) -> object:
    """Find the SSH agent's socket by the variable that names it, and connect."""
    return connect(os.environ.get("SSH_AUTH_SOCK", "/nonexistent"))


# --- abstract names ----------------------------------------------------------------------------------------


@attempt(NETWORK, facts=("heard abstract",))
def abstract_socket(given: Given) -> object:
    """Connect to an abstract socket of the host, as X11, buses and container shims have."""
    return connect(f"\0{given.token}")


@attempt(NETWORK, control=lambda given: given.token in read("/proc/net/unix", 1 << 20))
def list_sockets_of_the_host(given: Given) -> object:
    """Find its name in /proc/net/unix"""
    return given.token in read("/proc/net/unix", 1 << 20)


@attempt("network namespace")
def squat_an_abstract_name(given: Given) -> object:
    """Take an abstract name that a program of the host will want to connect to; the control finds it taken."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"\0{given.token}-squatted")
        return (
            f"@{given.token}-squatted" in read("/proc/net/unix", 1 << 20)
            and os.readlink("/proc/self/ns/net") == given.namespace
        )


# --- passed descriptors ------------------------------------------------------------------------------------


@attempt(COVERED, facts=("heard place",))
def pass_a_descriptor_out(given: Given) -> object:
    """Send a descriptor of the box's to a listener of the host (SCM_RIGHTS)."""
    write("to-pass")
    with socket.socket(socket.AF_UNIX) as made, open("to-pass") as file:
        made.connect(f"{given.place}/s.sock")
        return made.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))])


# --- families ----------------------------------------------------------------------------------------------

FAMILIES: dict[str, tuple[str, int, int, int]] = {
    "vsock": (
        "AF_VSOCK: from the guest to its hypervisor, past every network namespace",
        40,
        socket.SOCK_STREAM,
        0,
    ),
    "packet": ("AF_PACKET: whole frames, past the packet rules of the IP layer", 17, socket.SOCK_RAW, 0x0300),
    "packet-by-another-name": ("SOCK_PACKET: AF_PACKET under the family of IPv4", 2, 10, 0x0300),
    "crypto": ("AF_ALG: the kernel's cryptography, and its bugs", 38, socket.SOCK_SEQPACKET, 0),
    "xdp": ("AF_XDP: packets past the whole network stack", 44, socket.SOCK_RAW, 0),
    "bluetooth": ("AF_BLUETOOTH: devices around the host", 31, socket.SOCK_RAW, 1),
    "can": ("AF_CAN: buses of vehicles and machines", 29, socket.SOCK_RAW, 1),
    "key": ("AF_KEY: the keys of IPsec", 15, socket.SOCK_RAW, 2),
    "tipc": ("AF_TIPC: messages between clusters", 30, socket.SOCK_STREAM, 0),
    "rds": ("AF_RDS: reliable datagrams, often in exploits", 21, socket.SOCK_SEQPACKET, 0),
    "uevents": ("netlink: events of the kernel's devices", 16, socket.SOCK_RAW, 15),
    "audit": ("netlink: the audit log", 16, socket.SOCK_RAW, 9),
    "packet-rules": ("netlink: the packet rules (netfilter)", 16, socket.SOCK_RAW, 12),
    "socket-list": ("netlink: other programs' sockets (sock_diag)", 16, socket.SOCK_RAW, 4),
    "generic": ("netlink: families that drivers register (generic)", 16, socket.SOCK_RAW, 16),
}
NAMES = {
    "vsock": "AF_VSOCK", "packet": "PACKET", "packet-by-another-name": "PACKET", "crypto": "ALG", "xdp": "XDP",
    "bluetooth": "HCI", "can": "RAW_CAN", "key": "KEY", "tipc": "TIPC", "rds": "RDS",
}  # fmt: skip
"""As the kernel lists those that are loaded."""


def family(given: Given, words: tuple[int, int, int]) -> object:
    return socket.socket(*words).fileno() > 0


def loaded_family(given: Given, word: str, words: tuple[int, int, int]) -> object:
    """Only one that is there already: outside of the filter, asking for another would load its module."""
    if word in NAMES:
        found = any(line.split()[0] == NAMES[word] for line in read("/proc/net/protocols", 1 << 16).splitlines())
    else:
        rows = [line.split() for line in read("/proc/net/netlink", 1 << 20).splitlines()]
        found = any(row[1] == str(words[2]) for row in rows)
    if not found:
        raise Absent("the kernel has not loaded it, and the control would")
    return family(given, words)


for _word, (_title, *_words) in FAMILIES.items():
    add(
        __name__, GROUP, f"family-{_word}", f"Open {_title}", bound(family, tuple(_words)), FILTER,
        control=bound(loaded_family, _word, tuple(_words)),
    )  # fmt: skip


@attempt("capability drop")
def raw_socket(given: Given) -> object:
    """Open a raw socket, to forge packets."""
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).fileno() > 0


def opened_with_dirty_half(family: int) -> bool:
    return syscall({"x86_64": 41, "aarch64": 198, "riscv64": 198}, family | 1 << 32, 1, 0) > 0


@attempt(FILTER, control=lambda given: opened_with_dirty_half(socket.AF_UNIX))
def family_with_a_dirty_half(given: Given) -> object:
    """Ask for a refused family with bits set that the kernel ignores and a careless filter compares"""
    return opened_with_dirty_half(socket.AF_PACKET)
