"""Route messages are read back by another implementation, and by the kernel: in a recording lease all is local."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys

import pytest
from pyroute2.netlink.rtnl import rt_type
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from stockade.netns import netlink

FAMILIES = [socket.AF_INET, socket.AF_INET6]
LOCAL_TYPE, LOCAL_TABLE, HOST_SCOPE, STATIC = rt_type["local"], 254, 254, 4


def decoded(wire: bytes) -> rtmsg:
    message = rtmsg(wire)
    message.decode()
    return message


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("index", "sequence"), [(1, 1), (7, 2), (70_000, 4_000_000_000)])
def test_message_is_what_pyroute2_reads(family, index, sequence):
    message = decoded(netlink.everything_is_local(family, index, sequence))
    header = message["header"]
    assert (header["type"], header["sequence_number"], header["pid"]) == (24, sequence, 0)
    assert header["length"] == len(netlink.everything_is_local(family, index, sequence))
    assert header["flags"] == 0x1 | 0x4 | 0x100 | 0x400
    fields = ("family", "dst_len", "src_len", "tos", "table", "proto", "scope", "type", "flags")
    assert [message[each] for each in fields] == [family, 0, 0, 0, LOCAL_TABLE, STATIC, HOST_SCOPE, LOCAL_TYPE, 0]
    assert [(name, value) for name, value in message["attrs"]] == [("RTA_OIF", index)]


@pytest.mark.parametrize("family", FAMILIES)
def test_message_is_what_pyroute2_writes(family):
    theirs = rtmsg()
    theirs["header"]["type"], theirs["header"]["flags"], theirs["header"]["sequence_number"] = 24, 0x505, 3
    theirs["family"], theirs["table"], theirs["proto"] = family, LOCAL_TABLE, STATIC
    theirs["scope"], theirs["type"] = HOST_SCOPE, LOCAL_TYPE
    theirs["attrs"] = [["RTA_OIF", 1]]
    theirs.encode()
    assert netlink.everything_is_local(family, 1, 3) == bytes(theirs.data)


def answer(kind: int, code: int) -> bytes:
    return netlink.HEADER.pack(36, kind, 0, 1, 0) + struct.pack("=i", code) + bytes(16)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (answer(netlink.NLMSG_ERROR, 0), 0),
        (answer(netlink.NLMSG_ERROR, -errno.EPERM), errno.EPERM),
        (answer(netlink.NLMSG_ERROR, -errno.ENETDOWN), errno.ENETDOWN),
        (answer(3, 0), errno.EPROTO),
        (answer(24, 0), errno.EPROTO),
        (b"short", errno.EPROTO),
        (b"", errno.EPROTO),
    ],
)
def test_only_an_acknowledgement_is_a_success(reply, code):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(reply) if reply else theirs.shutdown(socket.SHUT_WR)
        if code == 0:
            netlink.exchange(ours, b"message")
        else:
            with pytest.raises(OSError, match="route") as caught:
                netlink.exchange(ours, b"message")
            assert caught.value.errno == code
        assert theirs.recv(100) == b"message"


LOCAL = """
import socket, sys
from pyroute2 import IPRoute
from stockade.netns import holder, netlink
holder.enter_namespaces()
holder.loopback_up()
def tries(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, 9))
        except OSError:
            return "unreachable"
        return sock.getsockname()[0]
ADDRESSES = [(socket.AF_INET, "203.0.113.9"), (socket.AF_INET6, "2001:db8::9")]
before = [tries(*each) for each in ADDRESSES]
netlink.make_everything_local()
after = [tries(*each) for each in ADDRESSES]
netlink.make_everything_local()
with IPRoute() as link:
    routes = [
        (route["family"], route["dst_len"], route["type"], dict(route["attrs"]).get("RTA_OIF"))
        for family in (socket.AF_INET, socket.AF_INET6)
        for route in link.get_routes(family=family, table=254)
        if route["type"] == 2 and route["dst_len"] == 0
    ]
print(before, after, routes, sep="\\n")
"""


@pytest.mark.kernel
def test_kernel_takes_them_and_everything_is_local():
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, after, routes = map(eval, done.stdout.splitlines())
    assert before == ["unreachable", "unreachable"]
    assert after == ["203.0.113.9", "::1"], "the addresses that are talked from are this namespace's own"
    assert routes == [(int(family), 0, LOCAL_TYPE, 1) for family in FAMILIES]


@pytest.mark.kernel
def test_refused_where_the_namespace_is_not_ours():
    """Without the right to, nothing changes, and it is said."""
    program = (
        "import ctypes, os; from stockade.netns import netlink, holder\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "try: netlink.make_everything_local()\n"
        "except OSError as error: print(error.errno, error.filename)\n"
    )
    argv = ["unshare", "--net"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*argv, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == [str(errno.EPERM), "route"], done.stderr
