"""Messages between a supervisor and its keeper: marshalled builtins, both ends the same code."""

from __future__ import annotations

import marshal
import os

from stockade.netns.rights import received, rights, space

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:
    import _socket as socket  # ``socket`` itself costs as much as enum and selectors

MAX_FDS = 250
"""The kernel passes at most 253 descriptors in one message (SCM_MAX_FD)."""

HOLDER_FD = 10
"""What a holder finds its socket to its supervisor at. (Here, where both sides have it without loading ctypes.)"""

HEADER = 4
INLINE = 32_768
"""Bytes of a job that travel in the message itself; a larger one goes by memfd, as a datagram is bounded."""


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
    """Send a job and its descriptors, in one message."""
    body = marshal.dumps(job)
    if len(body) <= INLINE:
        control.sendmsg([b"i" + body], rights(fds))
        return
    payload = os.memfd_create("stockade-job", os.MFD_CLOEXEC)
    try:
        with open(payload, "wb", closefd=False) as file:
            file.write(body)
        control.sendmsg([b"m"], rights([payload, *fds]))
    finally:
        os.close(payload)


def receive_job(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next job and its descriptors; None when the other end is gone."""
    body, ancillary, _flags, _address = control.recvmsg(INLINE + 1, space(MAX_FDS + 1), socket.MSG_CMSG_CLOEXEC)
    fds = received(ancillary)
    if not body:
        return None
    if body[:1] == b"i":
        return marshal.loads(body[1:]), fds  # noqa: S302
    payload, *rest = fds
    with open(payload, "rb") as file:
        file.seek(0)
        return marshal.loads(file.read()), rest  # noqa: S302
