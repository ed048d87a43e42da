"""Why a program can't be executed inside the box, in words that blame the right file.

bwrap says "No such file or directory" for a script whose interpreter is hidden; this module looks again, the
way ``execvp`` and the kernel do, through ``view``: what is visible at each path inside. It decides from what it
reads (at most 3 KiB of each file) and runs nothing. Whose permissions apply is not its subject: any execute bit
will do.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    View = Callable[[str], str | None]

_LINKS = 40
_NESTING = 5
_READ = 1024
_SHEBANG = 256
"""The kernel looks at no more of a first line."""
_INTERP = 3
"""The type of the ELF program header that names the loader."""


class Diagnosis(Record):
    """The answer. ``code`` 0 means that nothing was found to be wrong."""

    found: str | None
    """The path inside at which the program is, links not followed; None when it is not there."""
    code: int
    """0, 126 (there, but can't be executed) or 127 (not there)."""
    reason: str = ""
    remedy: str = ""
    executes: bool = False
    """True when the kernel would start something: ``code`` is then what that would exit with (``env``)."""


def diagnose(argv0: str, *, path: str, cwd: str, view: View) -> Diagnosis:
    """Look ``argv0`` up, and look through it, as ``execvp`` would inside.

    ``path`` is PATH and ``cwd`` the directory, both as they are inside. ``view`` maps an absolute inside path
    to the host path that is visible there (which need not exist), or to None where nothing of the host is.
    """
    return _Search(path, cwd, view).lookup(argv0, 0)


def locate(path: str, *, cwd: str, view: View) -> str:
    """What a path leads to inside: ``there``, ``absent``, ``hidden`` (on the host only), ``denied`` or ``loop``."""
    return _Search("", cwd, view).resolve(os.path.join(cwd, path)).state


class _Spot(Record):
    """Where a path leads inside."""

    state: str
    """``there``, ``absent``, ``hidden`` (on the host only), ``denied`` or ``loop``."""
    inside: str
    host: str = ""
    mode: int = 0
    target: str = ""
    """Of a link."""


class _Search:
    """What every step of one lookup needs, and the steps."""

    def __init__(self, path: str, cwd: str, view: View) -> None:
        self.path, self.cwd, self.view = path, cwd, view

    def lookup(self, name: str, depth: int) -> Diagnosis:
        """A command: along PATH, or relative to the directory when it contains a slash."""
        if not name or "\0" in name:
            return Diagnosis(None, 127, f"{name!r} can't be the name of a program", "name a program")
        if "/" in name:
            return self.examine(os.path.join(self.cwd, name), depth)
        failures = []
        for folder in self.path.split(":"):
            verdict = self.examine(os.path.join(self.cwd, folder, name), depth)
            if verdict.executes:
                return verdict
            failures.append(verdict)
        return _worst(failures, name)

    def examine(self, program: str, depth: int) -> Diagnosis:
        """One candidate: is it there, may it be executed, and is there what it needs to start."""
        spot = self.resolve(program)
        if spot.state != "there":
            return _unreachable(program, spot)
        cause, remedy = _not_executable(program, spot)
        if cause:
            return Diagnosis(program, 126, f"{program!r} {cause}", remedy)
        head = _read(spot.host, 0, _READ)
        if head.startswith(b"#!"):
            return self._script(program, head[2:_SHEBANG], len(head) < _SHEBANG, depth)
        return self._binary(program, _loader(head, spot.host))

    def resolve(self, path: str) -> _Spot:
        """Follow every link through the view, component by component, as the kernel does inside."""
        waiting = [part for part in reversed(path.split("/")) if part]
        at, links = "", 0
        spot = _Spot("there", "/", "", stat.S_IFDIR)
        while waiting:
            part = waiting.pop()
            if part in (".", ".."):
                at = at if part == "." else at.rpartition("/")[0]
                spot = self._look(at, [])
                continue
            spot = self._look(f"{at}/{part}", waiting)
            if spot.state != "there":
                return spot
            if not stat.S_ISLNK(spot.mode):
                at = spot.inside
                continue
            links += 1
            if links > _LINKS:
                return spot.replace(state="loop")
            at = "" if spot.target.startswith("/") else at
            waiting += [piece for piece in reversed(spot.target.split("/")) if piece]
        return spot

    def _look(self, inside: str, onward: list[str]) -> _Spot:
        """One component, its link not followed; ``onward`` is what is left of the path after it."""
        host = self.view(inside) if inside else "/"
        if host is None and onward:
            return _Spot("there", inside, "", stat.S_IFDIR)  # maybe a directory that only the box has
        try:
            mode = os.lstat(host or "").st_mode
            return _Spot("there", inside, host or "", mode, os.readlink(host or "") if stat.S_ISLNK(mode) else "")
        except PermissionError:
            return _Spot("denied", inside)
        except OSError:
            whole = "/".join((inside, *reversed(onward)))
            return _Spot("hidden" if os.path.exists(whole) else "absent", whole)

    def _script(self, program: str, text: bytes, whole: bool, depth: int) -> Diagnosis:
        """A ``#!`` line: its interpreter, and for ``env`` the program that it will start in turn."""
        line, end, _ = text.partition(b"\n")
        line, nul, _ = line.partition(b"\0")
        words = line.strip(b" \t\r").replace(b"\t", b" ").split(b" ", 1)
        if line.endswith(b"\r") and not words[-1].lstrip().startswith(b"-"):
            cause = "its first line ends with a carriage return (Windows line endings)"
            return Diagnosis(program, 126, f"{program!r} can't start: {cause}", "convert it to Unix line endings")
        cut = not (end or nul or whole or len(words) > 1)
        if not words[0] or cut:
            return Diagnosis(program, 0, executes=True)  # refused by the kernel: execvp goes on with /bin/sh
        if depth >= _NESTING:
            return Diagnosis(program, 126, f"{program!r} can't start: more than {_NESTING} nested interpreters")
        interpreter = os.path.join(self.cwd, os.fsdecode(words[0]))
        verdict = self.examine(interpreter, depth + 1)
        if not verdict.executes:
            remedy = verdict.remedy or "install it, or correct the first line"
            return Diagnosis(program, 126, f"{program!r} can't start: its interpreter {verdict.reason}", remedy)
        if verdict.code == 0 and os.path.basename(interpreter) == "env" and len(words) == 2:
            return self._env(program, os.fsdecode(words[1].strip(b" ")), depth + 1)
        return verdict.replace(found=program)

    def _env(self, program: str, name: str, depth: int) -> Diagnosis:
        """``#!/usr/bin/env NAME``: the rest of the line reaches env as one word. Options are left alone."""
        if name.startswith("-") or "=" in name:
            return Diagnosis(program, 0, executes=True)
        verdict = self.lookup(name, depth)
        if verdict.code == 0:
            return Diagnosis(program, 0, executes=True)
        said = f"env: {name!r} not found inside" if verdict.code == 127 else f"env: {name!r} can't be executed"
        remedy = "several words in a first line need 'env -S'" if " " in name else verdict.remedy
        reason = f"{program!r} can't start: {said}: {verdict.reason}"
        return Diagnosis(program, verdict.code, reason, remedy, executes=True)

    def _binary(self, program: str, loader: str | None) -> Diagnosis:
        """Anything but a script: only the loader of a dynamic ELF file can be missing."""
        if loader is not None:
            loader = os.path.join(self.cwd, loader)
            spot = self.resolve(loader)
            if spot.state != "there":
                remedy = _show(spot.inside) if spot.state == "hidden" else "use a build made for this system"
                return Diagnosis(
                    program, 126, f"{program!r} can't start: its loader {_problem(loader, spot)}", remedy
                )
        return Diagnosis(program, 0, executes=True)


def _worst(failures: list[Diagnosis], name: str) -> Diagnosis:
    """What to say when nothing on PATH would do: what is there but can't run, then what is hidden."""
    for told in ([one for one in failures if one.code == 126], [one for one in failures if one.remedy]):
        if told:
            return told[0]
    return Diagnosis(None, 127, f"{name!r} is in no directory of PATH", "install it, or extend PATH for the run")


def _unreachable(program: str, spot: _Spot) -> Diagnosis:
    code = 127 if spot.state in ("absent", "hidden") else 126
    remedy = _show(spot.inside) if spot.state == "hidden" else ""
    return Diagnosis(None if code == 127 else program, code, _problem(program, spot), remedy)


def _problem(asked: str, spot: _Spot) -> str:
    """``asked`` and what is wrong with it, naming the end of a chain of links when that is elsewhere."""
    what = {
        "hidden": "exists on the host but is not visible inside",
        "absent": "does not exist inside",
        "denied": "can't be reached: permission denied",
        "loop": f"has more than {_LINKS} symbolic links",
    }[spot.state]
    if spot.state == "loop" or spot.inside == os.path.normpath(asked):
        return f"{asked!r} {what}"
    return f"{asked!r} leads to {spot.inside!r}, which {what}"


def _not_executable(program: str, spot: _Spot) -> tuple[str, str]:
    """The cause and the remedy; empty when the kernel would go on to read the file."""
    if stat.S_ISDIR(spot.mode):
        return "is a directory", "name a program"
    if not stat.S_ISREG(spot.mode):
        return "is not a regular file", "name a program"
    if not spot.mode & 0o111:
        return "is not executable", f"chmod +x {_word(program)}, or start it through its interpreter"
    try:
        barred = os.statvfs(spot.host).f_flag & os.ST_NOEXEC
    except OSError:
        barred = 0
    return ("lies on a file system mounted noexec", "start it through its interpreter") if barred else ("", "")


def _show(inside: str) -> str:
    """The option that makes a file visible: its directory, unless that is as wide as a home."""
    folder = os.path.dirname(inside)
    return f"make it visible with --read {_word(folder if folder.count('/') >= 3 else inside)}"


def _word(text: str) -> str:
    """One shell word; control bytes are never raw."""
    if all(letter.isascii() and (letter.isalnum() or letter in "/._-+@%:,=") for letter in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'" if text.isprintable() else repr(text)


def _read(host: str, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes; nothing from a file that may be executed but not read."""
    try:
        fd = os.open(host, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, offset)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _loader(head: bytes, host: str) -> str | None:
    """PT_INTERP of an ELF file of either width and byte order; None for anything else or without one."""
    if len(head) < 52 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    wide, big = head[4] == 2, head[5] == 2
    at, size, count = (32, 54, 56) if wide else (28, 42, 44)
    table_at = _number(head, at, 8 if wide else 4, big)
    entry_size, entries = _number(head, size, 2, big), _number(head, count, 2, big)
    if entry_size < (56 if wide else 32):
        return None
    table = _read(host, table_at, min(entry_size * entries, _READ))
    for entry in range(0, len(table) - entry_size + 1, entry_size):
        if _number(table, entry, 4, big) == _INTERP:
            text_at = _number(table, entry + (8 if wide else 4), 8 if wide else 4, big)
            length = _number(table, entry + (32 if wide else 16), 8 if wide else 4, big)
            return os.fsdecode(_read(host, text_at, min(length, _READ)).split(b"\0")[0]) or None
    return None


def _number(data: bytes, at: int, size: int, big: bool) -> int:
    return int.from_bytes(data[at : at + size], "big" if big else "little")
