"""Lets the n-th fork of a whole tree of processes fail, with an error of the test's choice: real calls, real errors.

A seccomp filter hands every clone, clone3, fork and vfork of a command and of all that it starts to this process,
which lets it go on or has it fail. Run as a script it puts the filter on a command:

    forkfault.py SOCKET COMMAND...
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import threading

PR_SET_NO_NEW_PRIVS = 38
SECCOMP_SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE_RECV = 1, 1 << 3, 1 << 5
"""The last from Linux 5.19 on: a fork that waits for its answer is not interrupted by a signal, as no fork ever is."""
NUMBERS = {"x86_64": (317, (56, 57, 58, 435)), "aarch64": (277, (220, 435))}
"""Of seccomp, and of what makes processes and threads."""
ALLOW, USER_NOTIF = 0x7FFF0000, 0x7FC00000
RECEIVE, SEND = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV and _SEND."""
CONTINUE = 1


def instructions(calls):
    """Load the number of the call; those listed go to the listener."""
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    code += [struct.pack("HBBI", 0x15, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    return b"".join([*code, struct.pack("HBBI", 0x06, 0, 0, ALLOW), struct.pack("HBBI", 0x06, 0, 0, USER_NOTIF)])


def install():
    """The filter, for this process and all below it. Returns the listener's descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    seccomp, calls = NUMBERS[os.uname().machine]
    text = instructions(calls)
    buffer = ctypes.create_string_buffer(text)
    program = struct.pack("HxxxxxxQ", len(text) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    for flags in (NEW_LISTENER | WAIT_KILLABLE_RECV, NEW_LISTENER):
        listener = libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, flags, program)
        if listener >= 0:
            return listener
    raise OSError(ctypes.get_errno(), "seccomp")


class Forks:
    """The listener's side, in a thread: counts forks, and lets those fail whose number was asked for."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen(1)
        self.count, self.failing, self.code = 0, range(0), 0
        self.failed: list[str] = []
        """Names of the processes whose fork failed."""
        self.wake_read, self.wake = os.pipe()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def fail(self, numbers, code):
        """From now on those of these numbers, counted from 0, fail with this errno."""
        self.count, self.failing, self.code, self.failed = 0, numbers, code, []

    def serve(self):
        with self.socket.accept()[0] as peer:
            _data, fds, _flags, _address = socket.recv_fds(peer, 1, 1)
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        poll.register(fds[0], select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self.wake_read in ready:
                break
            if not self.answer(fds[0]):
                break
        os.close(fds[0])

    def answer(self, listener):
        """One call. False once nobody has the filter any more."""
        notice = bytearray(80)
        try:
            fcntl.ioctl(listener, RECEIVE, notice)
        except FileNotFoundError:  # it was killed meanwhile, or all have ended
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            return not any(events & select.POLLHUP for _fd, events in poll.poll(0))
        number, pid = struct.unpack_from("QI", notice)
        fails = self.count in self.failing
        self.count += 1
        if fails:
            self.failed.append(name_of(pid))
        reply = struct.pack("QqiI", number, 0, -self.code if fails else 0, 0 if fails else CONTINUE)
        try:
            fcntl.ioctl(listener, SEND, reply)
        except FileNotFoundError:
            pass
        return True

    def close(self):
        os.write(self.wake, b"s")
        self.thread.join()
        self.socket.close()
        os.close(self.wake)
        os.close(self.wake_read)


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def main(words):
    listener = install()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(words[0])
        socket.send_fds(peer, [b"l"], [listener])
    os.close(listener)
    os.execv(words[1], words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
