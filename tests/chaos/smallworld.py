"""Puts a command into a mount namespace of its own, in which some directories are file systems with little room.

    smallworld.py PATH:KIBIBYTES:INODES ... -- COMMAND...

A size of ``full`` leaves no room at all: no byte and no name. Nothing of the host is touched.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
FULL_KIB, FULL_INODES = 64, 16

libc = ctypes.CDLL(None, use_errno=True)


def call(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def enter():
    """Root needs no user namespace for it, and is to stay a real root."""
    uid, gid = os.geteuid(), os.getegid()
    call(libc.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER))
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    call(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None))


def make_small(word):
    path, size, inodes = word.split(":")
    kib, names = (FULL_KIB, FULL_INODES) if size == "full" else (int(size), int(inodes))
    mode = f"{os.stat(path).st_mode & 0o7777:o}"
    options = f"size={kib}k,nr_inodes={names},mode={mode}".encode()
    call(libc.mount(b"small", os.fsencode(path), b"tmpfs", ctypes.c_ulong(0), options))
    if size == "full":
        fill(path)


def fill(path):
    os.mkdir(f"{path}/filler", 0o700)
    with open(f"{path}/filler/0", "wb", buffering=0) as file:
        until_full(lambda: file.write(b"x" * 4096))
    names = iter(range(1, FULL_INODES * 2))
    until_full(lambda: os.close(os.open(f"{path}/filler/{next(names)}", os.O_CREAT | os.O_WRONLY)))


def until_full(act):
    try:
        while True:
            act()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def main(words):
    at = words.index("--")
    enter()
    for word in words[:at]:
        make_small(word)
    os.chdir(os.getcwd())  # what is mounted over the working directory is seen only by its name
    os.execv(words[at + 1], words[at + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
