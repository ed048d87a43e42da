"""Routes of a lease that nothing leaves, as rtnetlink messages (rtnetlink(7)).

By hand because pyroute2 takes 100 ms to import and this is two messages; the tests read them back with it.
"""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
else:
    import _socket as socket  # ``socket`` itself pulls in enum and selectors, which costs milliseconds

RTM_NEWROUTE, NLMSG_ERROR = 24, 2
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE = 0x1, 0x4, 0x400, 0x100
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL = 254, 4, 254, 2
RTA_OIF = 4
HEADER = struct.Struct("=IHHII")
ROUTE = struct.Struct("=BBBBBBBBI")
ATTRIBUTE = struct.Struct("=HHI")
CODE = struct.Struct("=i")


def everything_is_local(family: int, index: int, sequence: int) -> bytes:
    """A message that makes every address of ``family`` a local one of the interface ``index``."""
    body = ROUTE.pack(family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL, 0)
    body += ATTRIBUTE.pack(ATTRIBUTE.size, RTA_OIF, index)
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    return HEADER.pack(HEADER.size + len(body), RTM_NEWROUTE, flags, sequence, 0) + body


def make_everything_local() -> None:
    """Route all of IPv4, and of IPv6 where the kernel has it, to this namespace's own loopback. Raises OSError."""
    index = socket.if_nametoindex("lo")
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    try:
        exchange(link, everything_is_local(socket.AF_INET, index, 1))
        if os.path.exists("/proc/net/if_inet6"):
            exchange(link, everything_is_local(socket.AF_INET6, index, 2))
    finally:
        link.close()


def exchange(link: socket.socket, message: bytes) -> None:
    """Send one message and wait for its acknowledgement. Raises OSError where it is refused, or not acknowledged."""
    link.send(message)
    code = acknowledged(link.recv(4096))
    if code:
        raise OSError(code, os.strerror(code), "route")


def acknowledged(answer: bytes) -> int:
    """The errno that an answer carries (pure); 0 is the acknowledgement."""
    if len(answer) < HEADER.size + CODE.size:
        return errno.EPROTO
    _length, kind, _flags, _sequence, _pid = HEADER.unpack_from(answer)
    code: int = CODE.unpack_from(answer, HEADER.size)[0]
    return -code if kind == NLMSG_ERROR else errno.EPROTO
