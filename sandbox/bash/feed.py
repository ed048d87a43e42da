"""What a kept shell executes, and the form of what it is told and tells (pure).

The shell has one descriptor, a socket: commands come by it, and after each the shell says that it is through. Programs
that it executes do not have it.

    ours -> shell   size, space, token, newline; then the command. The size is in characters of what is ASCII alone
                    (``printf %b``), so that no locale counts otherwise; for a plain sh in lines, of the command itself
    shell -> ours   token, space, exit code, space, directory, NUL. The first one comes by itself, with HELLO
"""

from __future__ import annotations

import os

from stockade.policies.errors import RequestError
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GIVEN = 9
"""The number of the socket when the shell starts."""

HELLO = b"hello"
MOST_END = 1 << 13
"""Bytes of what a shell tells after a command: a directory has 4096 at most."""

BASH = (
    "exec 60<>/dev/null; { exec 9<&- 60<&-; __stockade_end=hello; while :; do while "
    'builtin printf \'%s %s %s\\0\' "$__stockade_end" "$?" "${DIRSTACK-}" 0<&64 0<&63 0<&62 >&61 || exit; '
    "__stockade_size= __stockade_command=; "
    "{ IFS=' ' builtin read -r __stockade_size __stockade_end <&61 && "
    'IFS= builtin read -r -N "$__stockade_size" __stockade_command <&61 && '
    'builtin printf -v __stockade_command %b "$__stockade_command" && [[ $__stockade_command ]]; } || '
    '{ builtin printf "\\0" >&61; exit; }; '
    'do builtin eval "$__stockade_command" 0<&62 1>&63 2>&64; done; done; } 9<&60 0<&60 1>&60 2>&60'
)
"""Redirected, the group leaves the socket and the three streams at 61 to 64: where bash saves what a redirection covers,
next above its source and closed by exec. Beside a command the streams are null, whatever it traces or traps.

One line, so that lines of a command are counted from one. It tells in the condition of a loop within a loop: a
``continue`` or ``break`` of a command is one of these. The streams are set anew each time, whatever ``exec`` did.

A shell that can't tell, or has lost a stream, ends with the command that did it; one that can't hear a command says what
is no end. 64 comes first: what a redirection saves would take the place of one above it. ``DIRSTACK`` is where the
shell is, also where a command has set ``PWD``."""

PLAIN = (
    "exec 6<&0 7>&1 8>&2; __stockade_end=hello; "
    "while :; do while "
    '{ command printf \'%s %s %s\\0\' "$__stockade_end" "$?" "${PWD-}" >&9; '
    "IFS=' ' command read -r __stockade_size __stockade_end <&9 || exit; __stockade_command=; "
    'while [ "$__stockade_size" -gt 0 ]; do IFS= command read -r __stockade_line <&9 || exit; '
    '__stockade_command="$__stockade_command$__stockade_line\n'
    '"; __stockade_size=$((__stockade_size-1)); done; } 2>&-; '
    "command exec 0<&6 1>&7 2>&8; "
    'do command eval "$__stockade_command" 6<&- 7>&- 8>&- 9<&-; done; done'
)
"""For shells that have nothing but POSIX: descriptors of one digit, lines. ``command``: else a mistake ends the shell."""


class End(Record):
    """What a shell told after a command."""

    code: int
    cwd: str


def is_bash(shell: str) -> bool:
    return os.path.basename(shell) == "bash"


def shell_argv(shell: str) -> tuple[str, ...]:
    """No profile and no rc file is read. The name of the shell is what it calls itself in its errors."""
    if is_bash(shell):
        return (shell, "--noprofile", "--norc", "-c", BASH, shell)
    return (shell, "-c", PLAIN, shell)


def frame(command: str, token: bytes, *, bash: bool) -> bytes:
    """A command as the shell reads it."""
    body = os.fsencode(command)
    if bash:
        body = spelt(body)
        return b"%d %s\n%s" % (len(body), token, body)
    return b"%d %s\n%s\n" % (body.count(b"\n") + 1, token, body)


def spelt(data: bytes) -> bytes:
    """In ASCII, for ``printf %b``. A backslash never begins an escape of the command's own."""
    data = data.replace(b"\\", b"\\\\")
    return data if data.isascii() else b"".join(b"\\x%02x" % each if each > 127 else b"%c" % each for each in data)


def read_end(data: bytes, token: bytes) -> End | None:
    """Parse what the shell told; None while more is to come. Raises ValueError for what no shell of ours tells."""
    told, nul, rest = data.partition(b"\0")
    if rest or len(told) > MOST_END:
        raise ValueError("more than the end of a command")
    if not nul:
        return None
    said, _space, remainder = told.partition(b" ")
    code, _space, cwd = remainder.partition(b" ")
    if said != token or not (code.isdigit() and len(code) <= 3 and int(code) < 256):
        raise ValueError("not the end of this command")
    return End(int(code), os.fsdecode(cwd) if cwd.startswith(b"/") else "")


def with_variables(command: str, variables: Iterable[tuple[str, str]]) -> str:
    """The command with variables of its own, which are not there after it. Raises RequestError for no shell's names."""
    words = []
    for name, value in variables:
        if not (name.isascii() and name.isidentifier()):
            raise RequestError(
                f"could not set {name!r} for a command of a kept shell: it is no name of a shell variable",
                remedy="Give it to the tool, or run the command without keep.",
            )
        words.append(f"{name}={quoted(value)}")
    return f"{' '.join(words)} command eval {quoted(command)}" if words else command


def enter(directory: str) -> str:
    """A command that goes somewhere and says nothing."""
    return f"command cd -- {quoted(directory)} >/dev/null 2>&1"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
