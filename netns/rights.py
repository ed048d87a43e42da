"""Descriptors as ancillary data of a Unix socket (unix(7), SCM_RIGHTS), both ways.

By hand: ``array`` pulls in ``collections``, and ``socket`` enum and selectors, which costs milliseconds each.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence
else:
    import _socket as socket

INT = 4
"""Bytes of a C int."""


def rights(fds: Iterable[int]) -> list[tuple[int, int, bytes]]:
    """What ``sendmsg`` takes to pass descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(INT, sys.byteorder) for fd in fds))]


def space(most: int) -> int:
    """Room for ``most`` descriptors in a ``recvmsg``."""
    return socket.CMSG_SPACE(most * INT)


def received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in what ``recvmsg`` gave."""
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += (int.from_bytes(raw[at : at + INT], sys.byteorder) for at in range(0, len(raw) - INT + 1, INT))
    return fds
