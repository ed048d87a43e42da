"""What the caller asks for, checked before anything else happens. Nothing is run for a bad request."""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import RequestError
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_ARGUMENT = 131_072
"""One argument or variable, its final NUL included: MAX_ARG_STRLEN, 32 pages of 4 KiB (execve(2))."""

SHELL = "/bin/sh"


class Request(Record):
    """A command and where it is to run. ``cwd`` is a real path: absolute, without symlinks."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    start: str = ""
    """Where the program begins, where that is another real path than the workspace."""


def make_request(
    command: str | Sequence[str | bytes], *, cwd: str | os.PathLike[str] | None, env: Mapping[str, str] | None
) -> Request:
    """Check a call's arguments. Raises RequestError, whose message says which one can't be used and why."""
    argv = command_argv(command)
    if not (env is None or hasattr(env, "items")):
        raise RequestError(f"could not use env: it is {type(env).__name__}, not a mapping")
    variables = tuple(
        (check_name(name), check_text(value, f"the value of {name!r}")) for name, value in (env or {}).items()
    )
    check_size(argv, variables)
    return Request(argv, directory(cwd), variables)


def command_argv(command: Any) -> tuple[str, ...]:
    """A string runs through ``/bin/sh -c``; a sequence is executed directly."""
    if isinstance(command, str):
        if not command.strip():
            raise RequestError("could not run the command: it is empty", remedy="Name a program to run.")
        return (SHELL, "-c", check_text(command, "the command"))
    if isinstance(command, bytes | bytearray) or not hasattr(command, "__iter__"):
        raise RequestError(f"could not run the command: it is {type(command).__name__}, not a string or a list")
    argv = tuple(check_text(word, f"argument {index}") for index, word in enumerate(command))
    if not argv or not argv[0]:
        raise RequestError("could not run the command: it is empty", remedy="Name a program to run.")
    return argv


def check_text(value: object, what: str) -> str:
    """Text that the kernel can take: no NUL, and encodable (bytes come as surrogate escapes)."""
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise RequestError(f"could not use {what}: it is {type(value).__name__}, not text")
    if "\0" in value:
        raise RequestError(f"could not use {what}: it has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise RequestError(f"could not use {what}: it has a lone surrogate and can't be encoded") from None
    return value


def check_name(name: object) -> str:
    """The name of an environment variable."""
    text = check_text(name, f"the variable name {name!r}")
    if not text or "=" in text:
        raise RequestError(f"could not set the variable {text!r}: a name is not empty and has no '='")
    return text


def check_size(argv: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> None:
    """What execve(2) would refuse with E2BIG, said before the start and by name."""
    total = 0
    named = [(f"argument {index}", word) for index, word in enumerate(argv)]
    named += [(f"the variable {name!r}", f"{name}={value}") for name, value in env]
    for what, text in named:
        size = len(os.fsencode(text)) + 1
        total += size + 8
        if size > MAX_ARGUMENT:
            raise RequestError(
                f"could not run the command: {what} has {size - 1} bytes, the kernel takes {MAX_ARGUMENT - 1}",
                remedy="Pass long text by stdin or in a file.",
            )
    if total <= MAX_ARGUMENT:  # every Linux takes that much together (execve(2))
        return
    import resource

    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    most = 6 << 20 if stack == resource.RLIM_INFINITY else min(stack // 4, 6 << 20)
    if total > most * 3 // 4:
        raise RequestError(
            f"could not run the command: its arguments have {total} bytes together, the kernel takes about {most}",
            remedy="Pass long text by stdin or in a file.",
        )


def directory(cwd: str | os.PathLike[str] | None) -> str:
    """The real path of the directory to run in. Raises RequestError when it is gone, not one, or closed to us."""
    if cwd is None:
        try:
            given = os.getcwd()
        except OSError as error:
            raise RequestError(
                f"could not use the current directory: {reason(error)}",
                remedy="It may have been deleted; change to one that exists or name it with --cwd.",
            ) from None
    else:
        given = check_text(cwd, "the directory")
        if not given:
            raise RequestError("could not use the directory '': its name is empty")
    path = os.path.realpath(given)
    try:
        status = os.stat(path)
    except OSError as error:
        raise RequestError(f"could not use the directory {given!r}: {reason(error)}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise RequestError(f"could not use the directory {given!r}: it is not a directory")
    if not os.access(path, os.R_OK | os.X_OK):
        raise RequestError(f"could not use the directory {given!r}: permission denied")
    return path


def reason(error: OSError) -> str:
    """The cause in the kernel's words, without errno or path."""
    return (error.strerror or str(error)).lower()
