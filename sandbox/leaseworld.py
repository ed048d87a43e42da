"""The world of a lease trial: ``python -m stockade.sandbox.leaseworld CONNECTOR`` prints what a lease let through.

Runs in a network namespace of its own whose loopback carries two test addresses with a server each, leases a
network that lists one of them, joins it and tries both. Prints ``reached`` or ``missed``, then ``refused`` or
``leaked``; anything else is the cause of a failure.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox import keeperlink
from stockade.sandbox.leasetrial import ALLOWED, PORT, REFUSED
from stockade.sandbox.lessor import make_lease
from stockade.sandbox.trial import trial_policy

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8913, 0x8914, 0x1
WAIT = 5.0

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    try:
        enter_world()
        servers = [listen(address) for address in (ALLOWED, REFUSED)]
        print(*attempt(sys.argv[1]), flush=True)
        for server in servers:
            server.close()
    except (OSError, StockadeError) as error:
        print(f"{error}".splitlines()[0], file=sys.stderr)
        sys.exit(1)
    finally:
        keeperlink.end_keeper()


def enter_world() -> None:
    """A network namespace (below a user namespace, for an ordinary user) with both addresses on loopback."""
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWNET if uid == 0 else CLONE_NEWUSER | CLONE_NEWNET), "unshare")
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))
        for index, address in enumerate((ALLOWED, REFUSED), 1):
            wanted = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(any_socket, SIOCSIFADDR, struct.pack("16s16s", f"lo:{index}".encode(), wanted))


def check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def listen(address: str) -> socket.socket:
    return socket.create_server((address, PORT))


def attempt(connector: str) -> tuple[str, str]:
    """What one who joined the lease can reach."""
    allow = (f"{ALLOWED}:{PORT}",)
    policy = trial_policy("/usr").replace(egress="allow", allow=allow, write=(), connector=connector)
    # Forked before the lease has a thread: a copy of one that holds a lock would hold it for ever.
    ours, pid = fork_visitor()
    try:
        with ours, make_lease(policy, None) as lease:
            lease.start()
            lease.wait_ready()
            assert lease.namespaces is not None
            socket.send_fds(ours, [b"n"], lease.namespaces)
            said = ours.recv(2)
    finally:
        os.waitpid(pid, 0)
    if len(said) != 2:
        raise OSError(errno.EIO, "the lease could not be joined")
    return ("reached" if said[0] else "missed"), ("leaked" if said[1] else "refused")


def fork_visitor() -> tuple[socket.socket, int]:
    """A process that joins the namespaces it is sent, tries both addresses there, and says what it reached."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        try:
            ours.close()
            _data, fds, _flags, _address = socket.recv_fds(theirs, 1, 2)
            for fd, kind in zip(fds, (CLONE_NEWUSER, CLONE_NEWNET), strict=True):
                check(libc.setns(fd, kind), "setns")
            theirs.send(bytes([reaches(ALLOWED), reaches(REFUSED)]))
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def reaches(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), WAIT).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
