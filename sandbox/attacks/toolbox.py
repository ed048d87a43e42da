"""What every attack is made of, in the box and outside: the record of one, helpers, and a child that tries it.

The text of this file goes into the box: nothing but the standard library here, and nothing that runs on import.
An attack returns what it got hold of (then it got through), or nothing, or raises the OSError that refused it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
import types
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Act = Callable[["Given"], object]

HERE, OWN = "here", "own"
"""Where the control of an attack runs: as the caller on a tree of its own, or in namespaces of its own."""
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SECONDS = 8.0
LONGEST = 160
"""Letters of what an attack got hold of."""

libc = ctypes.CDLL(None, use_errno=True)


class Absent(Exception):
    """What the attack needs is not there: not on this host, or not for this caller."""


class AllRefused(OSError):
    """Several ways, each refused; ``names`` are the errnos, each once."""

    names = ""


class Given(types.SimpleNamespace):
    """What an attack may know: paths and numbers of the bait that was laid out for it."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Attempt:
    """One attack. ``facts``: what of the host would be different if it worked, by the names of ``bait``."""

    def __init__(self, name: str, group: str, title: str, act: Act, layer: str, **options: Any) -> None:
        self.name, self.group, self.title, self.act, self.layer = name, group, title, act, layer
        self.module: str = options.pop("module", "")
        self.box: str = options.pop("box", "writable")
        self.control: str | Act = options.pop("control", HERE)
        self.reached: tuple[str, ...] = options.pop("reached", ())
        self.facts: tuple[str, ...] = options.pop("facts", ())
        self.allowed: str = options.pop("allowed", "")
        self.allowed_kept: str = options.pop("allowed_kept", "")
        assert not options, options


ATTEMPTS: dict[str, Attempt] = {}


def attempt(layer: str, **options: Any) -> Callable[[Act], Act]:
    """Registers a function as an attack of its module's GROUP; its name and docstring are id and title.

    ``layer`` is what is meant to stop it. ``control`` says how it is shown to work elsewhere: HERE, OWN, or another
    function. ``reached``: errnos of the control by which the kernel shows that it got as far as its arguments.
    ``allowed``: why it may get through, if it may; ``allowed_kept``: why it may for a root that was kept.
    """

    def register(act: Act) -> Act:
        title = (act.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        add(
            act.__module__,
            sys.modules[act.__module__].GROUP,
            act.__name__.replace("_", "-"),
            title,
            act,
            layer,
            **options,
        )
        return act

    return register


def add(module: str, group: str, word: str, title: str, act: Act, layer: str, **options: Any) -> None:
    """Registers an attack that is made by a table."""
    subject = next(each for each in group.lower().replace(",", "").split(" ") if len(each) > 1)
    name = f"{subject}.{word}"
    assert name not in ATTEMPTS, name
    ATTEMPTS[name] = Attempt(name, group, title, act, layer, module=module, **options)


# --- helpers of attacks ------------------------------------------------------------------------------------


def read(path: str, size: int = 4096) -> str:
    with open(path, "rb") as file:
        return file.read(size).decode("utf-8", "replace")


def status(name: str, pid: str = "self") -> str:
    """A line of a process's status file."""
    for line in read(f"/proc/{pid}/status", 1 << 14).splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    raise OSError(errno.ENOENT, "no such line", name)


def write(path: str, text: str = "evil\n") -> bool:
    with open(path, "w") as file:
        file.write(text)
    return True


def openable(path: str, flags: int = os.O_RDONLY) -> bool:
    """Opened and closed: nothing is read or written."""
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return True


def call(name: str, *words: object) -> int:
    """A function of the C library; raises the OSError that it reports."""
    ctypes.set_errno(0)
    result = int(getattr(libc, name)(*words))
    return checked(result, name)


def syscall(numbers: int | Mapping[str, int], *words: object) -> int:
    """A system call by its number, or by one for each machine."""
    if not isinstance(numbers, int):
        number = numbers.get(os.uname().machine)
        if number is None:
            raise Absent(f"this attack does not know the call's number on {os.uname().machine}")
    else:
        number = numbers
    ctypes.set_errno(0)
    libc.syscall.restype = ctypes.c_long
    wide = [wide_word(word) for word in words]
    return checked(int(libc.syscall(ctypes.c_long(number), *wide)), f"call {number}")


def wide_word(word: object) -> object:
    """Numbers in full width; bytes in memory of their own, for the kernel may write there."""
    if isinstance(word, int):
        return ctypes.c_long(word)
    return ctypes.create_string_buffer(word) if isinstance(word, bytes) else word


def checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def ctypes_array(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


def done(act: Callable[..., object], *words: object, **options: object) -> bool:
    """For what returns nothing: it did not raise."""
    act(*words, **options)
    return True


def bound(act: Callable[..., object], *words: object) -> Act:
    """An attack of a table: ``act`` with what its row says."""
    return lambda given: act(given, *words)


def each_refused(acts: Mapping[str, Callable[[], object]]) -> str:
    """Tries several ways; the names of those that worked. Raises AllRefused if each one was refused."""
    worked, refusals = [], []
    for name, act in acts.items():
        try:
            if act():
                worked.append(name)
        except OSError as error:
            refusals.append(errno_name(error))
    if refusals and not worked:
        refused = AllRefused(errno.EPERM, "refused")
        refused.names = ", ".join(dict.fromkeys(refusals))
        raise refused
    return ", ".join(worked)


def any_of(act: Callable[[Any], object], items: Iterable[object]) -> str:
    """The same on several things; those on which it worked, or the last refusal."""
    return each_refused({str(item): partial(act, item) for item in items})


# --- trying one --------------------------------------------------------------------------------------------


def perform(act: Act, given: Given, *, own: bool = False) -> list[str]:
    """Tries it in a child: how it ended, and a word on it.

    ``through``, ``nothing`` (no refusal, nothing got), ``refused`` (the errno), ``killed`` (the signal),
    ``absent``, ``hung``, or ``broken``: the attack itself is at fault. ``own``: in namespaces of its own.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            os.setsid()
            answer = tried(act, given, own)
            os.write(write_end, json.dumps(answer).encode() + b"\n")
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    try:
        line = first_line(read_end)
    finally:
        os.close(read_end)
        status = ended(pid)
    if line.endswith(b"\n"):
        return list(json.loads(line))
    if line == b"?":
        return ["hung", f"no end within {SECONDS:g} s"]
    return ["killed", signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "it ended early"]


def ended(pid: int) -> int:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def first_line(fd: int) -> bytes:
    """Up to a newline; ``?`` if none came in time."""
    line, deadline = b"", time.monotonic() + SECONDS
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0]:
            return b"?"
        more = os.read(fd, 65536)
        if not more:
            return line
        line += more
    return line


def tried(act: Act, given: Given, own: bool) -> list[str]:
    try:
        if own:
            enter_own()
        os.chdir(given.place)
        value = act(given)
    except Absent as error:
        return ["absent", str(error)]
    except OSError as error:
        return ["refused", errno_name(error)]
    except BaseException as error:
        return ["broken", f"{type(error).__name__}: {error}"[:LONGEST]]
    return ["through", str(value)[:LONGEST]] if value else ["nothing", ""]


def errno_name(error: OSError) -> str:
    if isinstance(error, AllRefused):
        return error.names
    if isinstance(error, socket.gaierror):
        return {-2: "EAI_NONAME", -3: "EAI_AGAIN", -4: "EAI_FAIL", -5: "EAI_NODATA"}.get(error.errno or 0, "EAI")
    if isinstance(error, TimeoutError):
        return "ETIMEDOUT"
    return errno.errorcode.get(error.errno or 0, str(error))


def enter_own() -> None:
    """User, mount, network, IPC, host name and cgroup namespaces of this process's own, with all power over them."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)


def inside(job: Mapping[str, Any]) -> None:
    """In the box: the attacks whose names the job has, and the answers as JSON on stdout."""
    given = Given(**job["given"])
    answers = {name: perform(ATTEMPTS[name].act, given) for name in job["names"]}
    sys.stdout.write(json.dumps(answers))
    sys.stdout.flush()
