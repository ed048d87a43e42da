"""The holder: the process that owns a lease's namespaces, and the only one with power over its rules.

Building, in this order:
    1  new user and network namespace, the run's own uid mapped to 0
    2  loopback up
    3  the rules, read back and compared: from here on the namespace refuses what it should
    4  record: routes to loopback (allow, open: the connector adds the link and the route, after this)
    5  sockets of this namespace, handed to the supervisor together with the word "ready"
Then it waits for nft commands. It decides nothing, and reads nothing of what the program sends.

Tearing down is one step: it ends when the other end of its socket is closed, and with the last process the
kernel takes the namespaces. It runs in a child that the keeper forked, single-threaded, after that child let
go of everything else.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import struct

from stockade.netns.rights import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any

    from stockade.netns.nft import Nft
else:
    import _signal as signal  # ``signal`` itself costs as much as enum
    import _socket as socket  # and ``socket`` 4 ms, which the first program of a command line would wait for

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_DUMPABLE = 4
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
ANSWER = 1 << 20
RECEIVE_BUFFER = 1 << 20
"""Bytes; the kernel gives as much of it as net.core.rmem_max allows."""

libc = ctypes.CDLL(None, use_errno=True)


def serve(job: dict[str, Any], control_fd: int) -> None:
    """Be a holder. ``job``: kind, rules (nft text), relay (whether they divert), site (of the nft binding), nft (a path)."""
    # The nft program may end without reading what it is given: that is an error to report.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    close_others(control_fd)
    control = socket.socket(fileno=control_fd)
    part = "holder"
    try:
        enter_namespaces()
        loopback_up()
        no_ipv6_on_links()
        part = "nft"
        nft = load_rules(job)
        part = "holder"
        if job["kind"] == "record":
            from stockade.netns.netlink import make_everything_local

            make_everything_local()
        fds = open_sockets(job)
        say(control, {"ready": True, "pid": os.getpid()}, fds)
    except Exception as error:
        say(control, {"ready": False, "part": part, "cause": f"{error}"})
        return
    for fd in fds:
        os.close(fd)
    obey(control, nft)


def preload(site: str | None) -> None:
    """Have everything in memory that a holder needs: its uid may not be able to read where this is installed.

    What can't be loaded here is told by ``serve``, when it is needed.
    """
    from stockade.netns import netlink, nft  # noqa: F401

    nft.read_json("{}")
    try:
        nft.import_binding(site)
        ctypes.CDLL(nft.LIBRARY)
    except Exception:  # whatever a broken installation may do must not end the keeper
        import subprocess  # noqa: F401  (the nft program then)


def close_others(control_fd: int) -> None:
    """The keeper waits for the end of a pipe that executing a program would have closed, and this is none."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    os.closerange(3, control_fd)
    os.closerange(control_fd + 1, highest + 1)


def enter_namespaces() -> None:
    """The run's own uid is 0 inside: slirp4netns's sandbox asks for it."""
    uid, gid = os.geteuid(), os.getegid()
    # A process that changed its uid is not dumpable, and its map files belong to root (proc(5)).
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def loopback_up() -> None:
    any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))
    finally:
        any_socket.close()


def no_ipv6_on_links() -> None:
    """Loopback has it already; a link that comes later gets no address and no neighbours of its own."""
    try:
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
            file.write("1")
    except OSError:
        pass  # no IPv6, or a container that shows /proc/sys read-only: the rules refuse it all the same


def is_up(name: str) -> bool:
    any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        found = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
    except OSError:
        return False
    finally:
        any_socket.close()
    return bool(struct.unpack_from("16sh", found)[1] & IFF_UP)


def load_rules(job: dict[str, Any]) -> Nft:
    from stockade.netns.nft import open_nft

    nft = open_nft(job["nft"], job["site"])
    nft.run(job["rules"])
    nft.verify(job["kind"], relay=job["relay"])
    return nft


def open_sockets(job: dict[str, Any]) -> list[int]:
    """The sockets that the job lists: (family, type, address, port), in its order."""
    fds = []
    for family, kind, address, port in job["sockets"]:
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_DGRAM:
            # A burst of questions waits here while the resolver is still being loaded.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen(256)
        fds.append(made.detach())
    return fds


def obey(control: socket.socket, nft: Nft) -> None:
    """Run nft commands until nobody asks any more."""
    while request := control.recv(ANSWER):
        try:
            answer: dict[str, Any] = {"ok": carry_out(nft, request.decode())}
        except Exception as error:
            answer = {"error": f"{error}"}
        say(control, answer)


def carry_out(nft: Nft, text: str) -> dict[str, Any]:
    """Commands, or a query, which begins with ``?``; ``link`` and a name asks whether that link is up."""
    if text.startswith("link "):
        return {"up": is_up(text[5:])}
    if text.startswith("?"):
        return nft.query(text[1:])
    nft.run(text)
    return {}


def say(control: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    """Answer, by memfd where a datagram would be too large."""
    body = marshal.dumps(message)
    passed = list(fds or ())
    if len(body) > 32_768:
        memory = os.memfd_create("stockade-answer", os.MFD_CLOEXEC)
        os.write(memory, body)
        passed.append(memory)
        body = b""
    control.sendmsg([b"a" + body], rights(passed))
