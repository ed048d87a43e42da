"""JSON documents of the command line: on stdout, or in a file that was opened before the program ran."""

from __future__ import annotations

import json
import os
import stat
import sys

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.cli import exits
from stockade.sandbox.mounts import below
from stockade.sandbox.result import SCHEMA, plain
from stockade.sandbox.survey import absolute, home_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult

MOST_LINKS = 40
"""The kernel follows no more (path_resolution(7))."""


def render(document: dict[str, Any]) -> str:
    """The text of a document. Where stdout is not UTF-8, which JSON is, everything else is spelt in ASCII."""
    utf_8 = sys.stdout.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return json.dumps(plain(document), indent=2, ensure_ascii=not utf_8) + "\n"


def run_and_print(command: Sequence[str], run: Callable[[], RunResult]) -> int:
    """Print the result as the only thing on stdout; a refusal is a document too, and raised."""
    try:
        result = run()
    except StockadeError as error:
        sys.stdout.write(render(refused(command, error)))
        raise
    sys.stdout.write(render(result.to_json()))
    return result.returncode


def run_and_write(order: Order, path: str, run: Callable[[], RunResult]) -> RunResult:
    """The same into a file that is opened before the program runs."""
    with reserve(path, writable_places(order)) as file:
        try:
            result = run()
        except StockadeError as error:
            put(refused(order.request.argv, error), file, path)
            raise
        put(result.to_json(), file, path)
    return result


def refused(command: Sequence[str], error: StockadeError) -> dict[str, Any]:
    """The result of a run that never was, with the keys that every result has."""
    return {
        "schema": SCHEMA,
        "outcome": "runner_failed",
        "exit_code": None,
        "signal": None,
        "returncode": exits.FAILED,
        "reason": error.message,
        "started": False,
        "denied": False,
        "denials": [],
        "enforcement": "none",
        "argv": list(command),
        "error": {"type": type(error).__name__, **vars(error)},
    }


def writable_places(order: Order) -> list[str]:
    """Where this program, or an earlier one like it, could have left something."""
    workspace = order.request.cwd
    granted = [absolute(path, workspace, home_directory()) for path in order.policy.write]
    return [workspace, *map(os.path.realpath, granted)]


def reserve(path: str, places: Sequence[str]) -> IO[str]:
    """Open a file for the document before the program runs. In ``places`` no symlink is followed."""
    full = os.path.abspath(path)
    link = planted(full, places)
    if link:
        raise RequestError(
            f"could not write {path!r}: {link!r} is a symlink that a confined program could have left",
            remedy="Name a file outside of what it can write.",
        )
    inside = any(below(os.path.realpath(os.path.dirname(full)), place) for place in places)
    # Not blocking: a pipe that nobody reads would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(full, flags | (os.O_NOFOLLOW if inside else 0), 0o666)
    except OSError as error:
        raise RequestError(f"could not write {path!r}: {(error.strerror or str(error)).lower()}") from None
    os.set_blocking(fd, True)
    return os.fdopen(fd, "w", encoding="utf-8")


def planted(path: str, places: Sequence[str]) -> str:
    """The first symlink on the way to ``path`` that lies in one of ``places``; empty when there is none."""
    at, waiting, followed = "/", path.split("/")[::-1], 0
    while waiting and followed < MOST_LINKS:
        part = waiting.pop()
        step = os.path.dirname(at) if part == ".." else os.path.join(at, part)
        if part in ("", ".", "..") or not os.path.islink(step):
            at = step if part not in ("", ".") else at
            continue
        if any(below(at, place) for place in places):
            return step
        followed += 1
        target = os.readlink(step)
        at = "/" if target.startswith("/") else at
        waiting += target.split("/")[::-1]
    return ""


def put(document: dict[str, Any], file: IO[str], path: str) -> None:
    """Write the document. Raises StockadeError when the program put something else in the place of the file."""
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
        if not leads_to(path, file.fileno()):
            raise StockadeError(
                f"could not write {path!r}: the program put something else in its place",
                remedy="Name a file outside of what it can write.",
            )
    file.write(render(document))


def leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
