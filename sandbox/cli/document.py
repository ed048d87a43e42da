"""JSON documents of the command line: on stdout, or in a file that was opened before the program ran."""

from __future__ import annotations

import json
import os
import sys

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.cli import exits
from stockade.sandbox.mounts import below
from stockade.sandbox.result import SCHEMA, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult


def render(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def run_and_print(order: Order, run: Callable[[], RunResult]) -> int:
    """Print the result as the only thing on stdout."""
    return run_and_write(order, run, sys.stdout).returncode


def run_and_write(order: Order, run: Callable[[], RunResult], file: IO[str]) -> RunResult:
    """Run, and write the document; a refusal is a document too, and raised."""
    try:
        result = run()
    except StockadeError as error:
        file.write(render(refused(order, error)))
        raise
    file.write(render(result.to_json()))
    return result


def refused(order: Order, error: StockadeError) -> dict[str, Any]:
    """The result of a run that never was, with the keys that every result has."""
    detail = {name: plain(value) for name, value in vars(error).items()}
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
        "argv": plain(order.request.argv),
        "error": {"type": type(error).__name__, **detail},
    }


def reserve(path: str, workspace: str) -> IO[str]:
    """Open a file for the document before the program runs.

    Below the workspace no component may be a symlink: an earlier run could have left one that leads elsewhere.
    """
    full = os.path.abspath(path)
    folder = os.path.dirname(full)
    if below(folder, workspace) and os.path.realpath(folder) != folder:
        raise RequestError(
            f"could not write {path!r}: a directory on the way is a symlink",
            remedy="Name a file outside of the workspace.",
        )
    try:
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RequestError(f"could not write {path!r}: {(error.strerror or str(error)).lower()}") from None
    return os.fdopen(fd, "w", encoding="utf-8")
