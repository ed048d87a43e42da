"""A call's arguments, checked and resolved: everything that is decided before the host is asked."""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox import policycache
from stockade.sandbox.request import check_text, make_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import IO

    from stockade.policies.model import Policy
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.plan import Plan
    from stockade.sandbox.request import Request
    from stockade.sandbox.wires import Wires

    Command = str | Sequence[str | bytes]
    PolicyLike = str | os.PathLike[str] | Policy | None
    Input = bytes | str | int | IO[bytes] | None


STDIN_WANTED = "Pass bytes, text or an open file."


class Order(Record):
    """A checked request with its policy."""

    request: Request
    policy: Resolved
    trusted: bool
    stdin: bytes | int | None
    inspect: Callable[[Plan], None] | None = None
    """Looks at the plan of a confined run before it starts, and raises StockadeError to have nothing run."""
    wires: Wires | None = None
    """What the run is wired with beside its three streams."""


def call_options(
    *,
    mode: str | None,
    timeout: float | str | None,
    allow: Iterable[str],
    record_egress: bool,
    write: Iterable[str | os.PathLike[str]],
) -> dict[str, object]:
    """The arguments of a call as the option layer of its policy."""
    options: dict[str, object] = {}
    hosts, paths = words(allow, "allow"), words(write, "write")
    if mode is not None:
        options["mode"] = mode
    if timeout is not None:
        options["limits.timeout"] = timeout
    if hosts and record_egress:
        raise RequestError(
            "could not combine allow and record_egress: recording lets nothing out", remedy="Use one of them."
        )
    if hosts:
        options |= {"network.egress": "allow", "network.allow": hosts}
    if record_egress:
        options["network.egress"] = "record"
    if paths:
        options["filesystem.write"] = paths
    return options


def words(values: Iterable[str | os.PathLike[str]], what: str) -> list[str]:
    """A list of texts; a single string is a mistake that would be read letter by letter."""
    if isinstance(values, str | bytes):
        raise RequestError(
            f"could not use {what}={values!r}: it is one text, not a list", remedy=f"Write {what}=[...]."
        )
    return [check_text(value, f"entry {number} of {what}") for number, value in enumerate(values)]


def make_order(
    command: Command,
    *,
    policy: PolicyLike = None,
    trusted: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Input = None,
    options: Mapping[str, object] | None = None,
) -> Order:
    """Check everything that can be checked without the host."""
    request = make_request(command, cwd=cwd, env=env)
    named = os.fspath(policy) if isinstance(policy, str | os.PathLike) else None
    given = None if named is not None or policy is None else policy
    resolved = policycache.resolved(named, given, request.cwd, options or {})  # type: ignore[arg-type]
    return Order(request, resolved, bool(trusted), input_of(stdin))


def input_of(stdin: Input) -> bytes | int | None:
    """What to do about the program's standard input."""
    if stdin is None or isinstance(stdin, int):
        return None if stdin is None else passable(stdin)
    if isinstance(stdin, str):
        return encoded(stdin)
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    try:
        number = stdin.fileno()
    except (AttributeError, OSError):
        raise RequestError(
            f"could not use stdin: {type(stdin).__name__} has no descriptor", remedy=STDIN_WANTED
        ) from None
    return passable(number)


def encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            "could not use stdin: it has a lone surrogate and can't be encoded", remedy="Pass bytes."
        ) from None


def passable(fd: int) -> int:
    """A descriptor to hand on. One of a directory would lead past every mount, to all that is below and above it."""
    try:
        mode = os.fstat(fd).st_mode
    except (OSError, OverflowError) as error:
        raise RequestError(
            f"could not use stdin: descriptor {fd}: {str(getattr(error, 'strerror', '') or error).lower()}",
            remedy=STDIN_WANTED,
        ) from None
    if stat.S_ISDIR(mode):
        raise RequestError(f"could not use stdin: descriptor {fd} is a directory", remedy=STDIN_WANTED)
    return fd
