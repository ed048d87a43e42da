"""Who is who below a driver, read from /proc alone, and how one of them is hit: never anybody else.

A process is known by its pid together with the time of its start, and is signalled through a pidfd that was opened
before that time was compared. Only what descends from the driver of the test can be found here.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

CONNECTORS = {"slirp4netns": "slirp4netns", "pasta": "pasta", "pasta.avx2": "pasta", "passt.avx2": "pasta"}


class Process(NamedTuple):
    pid: int
    began: str
    """In ticks since the boot."""


def read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def state_of(pid: int) -> tuple[str, str]:
    """Its letter (Z: a zombie) and the time of its start; two empty texts when it is gone."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def name_of(pid: int) -> str:
    return read(pid, "comm").rstrip("\n")


def namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Of all its threads, zombies too."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(each) for thread in threads for each in read(pid, f"task/{thread}/children").split()]


def below(pid: int) -> list[int]:
    """Every descendant, zombies too."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += children(each)
    return found


def identify(pid: int) -> Process | None:
    letter, began = state_of(pid)
    return Process(pid, began) if letter not in ("", "Z", "X") else None


def is_there(process: Process) -> bool:
    letter, began = state_of(process.pid)
    return began == process.began and letter not in ("Z", "X")


def keepers(driver: int) -> list[int]:
    return [pid for pid in children(driver) if "stockade.sandbox.keeper" in read(pid, "cmdline")]


def role_of(pid: int) -> str:
    """What a child of the keeper is."""
    name = name_of(pid)
    if name in CONNECTORS:
        return CONNECTORS[name]
    if name == "bwrap":
        # One that lost its monitor is adopted by the keeper.
        return "monitor" if namespace(pid, "pid") == namespace(os.getpid(), "pid") else "init"
    if name.startswith("python"):
        return "spare" if namespace(pid, "net") == namespace(os.getpid(), "net") else "holder"
    return "other"


def roles(driver: int) -> dict[str, list[int]]:
    """Role to pids, of everything below a driver that is not a zombie."""
    found: dict[str, list[int]] = {"supervisor": [driver]}

    def note(role: str, pid: int) -> None:
        if state_of(pid)[0] not in ("", "Z", "X"):
            found.setdefault(role, []).append(pid)

    for keeper in keepers(driver):
        note("keeper", keeper)
        for child in children(keeper):
            role = role_of(child)
            note(role, child)
            inits = children(child) if role == "monitor" else [child] if role == "init" else []
            for init in inits:
                if role == "monitor":
                    note("init", init)
                for program in children(init):
                    note("program", program)
    return found


def find(driver: int, role: str) -> Process | None:
    """The one that came last."""
    pids = roles(driver).get(role, [])
    return identify(max(pids)) if pids else None


def hit(process: Process, number: signal.Signals) -> bool:
    """Signal it. False when it is gone, or its pid is another's by now."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_there(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
