"""Messages between a supervisor and its keeper: marshalled builtins, both ends the same code."""

from __future__ import annotations

import marshal
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

MAX_FDS = 250
"""The kernel passes at most 253 descriptors in one message (SCM_MAX_FD)."""

HEADER = 4


def send(pipe: int, message: dict[str, Any]) -> None:
    """Write one small message: below PIPE_BUF (4096), so it is whole or not there."""
    body = marshal.dumps(message)
    os.write(pipe, len(body).to_bytes(HEADER, "little") + body)


def receive(pipe: int) -> dict[str, Any] | None:
    """The next message of a pipe; None when the other end is gone."""
    header = os.read(pipe, HEADER)
    if len(header) < HEADER:
        return None
    body: dict[str, Any] = marshal.loads(os.read(pipe, int.from_bytes(header, "little")))  # noqa: S302
    return body


def send_job(control: socket.socket, job: dict[str, Any], fds: list[int]) -> None:
    """Send a job and its descriptors. It travels as a memfd: a datagram is bounded by the socket buffer."""
    import array
    import socket

    payload = os.memfd_create("stockade-job", os.MFD_CLOEXEC)
    try:
        with open(payload, "wb", closefd=False) as file:
            file.write(marshal.dumps(job))
        rights = array.array("i", (payload, *fds))
        control.sendmsg([b"j"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    finally:
        os.close(payload)


def receive_job(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next job and its descriptors; None when the other end is gone."""
    import array
    import socket

    fds = array.array("i")
    size = socket.CMSG_SPACE((MAX_FDS + 1) * fds.itemsize)
    _data, ancillary, _flags, _address = control.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    if not fds:
        return None
    payload, *rest = fds
    with open(payload, "rb") as file:
        file.seek(0)
        return marshal.loads(file.read()), rest  # noqa: S302
