"""``run`` and ``arun``: the two ways to call the library."""

from __future__ import annotations

import os

from stockade.policies.errors import RunnerFailed
from stockade.sandbox.conduct import carry_out
from stockade.sandbox.order import call_options, make_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.order import Command, Input, PolicyLike
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.stopper import Stopper

KILL = 9


def run(
    command: Command,
    *,
    policy: PolicyLike = None,
    mode: str | None = None,
    trusted: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Input = None,
    timeout: float | str | None = None,
    allow: Iterable[str] = (),
    record_egress: bool = False,
    write: Iterable[str | os.PathLike[str]] = (),
    check: bool = False,
    leases: LeasePool | None = None,
) -> RunResult:
    """Run a command nobody here wrote, confined, and say truthfully what happened.

    command: a string runs through ``/bin/sh -c``; a sequence is executed directly.
    policy: a preset's name, the path of a policy file, or a ``Policy``; ``read-only`` if None.
    mode: ``auto``, ``strict`` or ``off``; None takes the policy's, or else follows ``trusted``.
    trusted: whether the command is the caller's own. Trusted and no mode: run directly, unconfined.
    cwd: where it runs, and the workspace. The current directory if None.
    env: variables set for the program on top of what the policy passes.
    stdin: bytes or text to feed, an open file or descriptor to hand on, or None for nothing.
    timeout: seconds (or ``"10s"``), over the policy's.
    allow: hosts that may be reached (implies ``egress = allow``).
    record_egress: let nothing out, and record every attempt.
    write: more paths that may be written.
    check: raise ``RunnerFailed`` when the sandbox itself failed.
    leases: where to take a network that is made ahead, for callers with many runs.

    Raises RequestError and PolicyError for what can't be used, SandboxUnavailable when the host can't enforce
    the policy; nothing was run then.
    """
    given = {name: value for name, value in locals().items() if name != "command"}
    return call(command, None, **given)


async def arun(
    command: Command,
    *,
    policy: PolicyLike = None,
    mode: str | None = None,
    trusted: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Input = None,
    timeout: float | str | None = None,
    allow: Iterable[str] = (),
    record_egress: bool = False,
    write: Iterable[str | os.PathLike[str]] = (),
    check: bool = False,
    leases: LeasePool | None = None,
) -> RunResult:
    """``run``, awaitable, with the same arguments. Cancelling kills the whole run before it returns."""
    given = {name: value for name, value in locals().items() if name != "command"}
    import asyncio

    from stockade.sandbox.stopper import Stopper

    stopper = Stopper()
    work = in_thread(lambda: call(command, stopper, **given))
    try:
        return await asyncio.shield(work)
    except BaseException:
        stopper.request(KILL)
        await finished(work)
        raise
    finally:
        stopper.close()


def call(
    command: Command, stopper: Stopper | None, *, check: bool, leases: LeasePool | None, **given: Any
) -> RunResult:
    """One call of the library, in this thread."""
    named = ("policy", "trusted", "cwd", "env", "stdin")
    options = call_options(**{name: value for name, value in given.items() if name not in named})
    order = make_order(command, **{name: given[name] for name in named}, options=options)
    result = carry_out(order, capture=True, stopper=stopper, leases=leases)
    if check and result.outcome == "runner_failed":
        raise RunnerFailed(f"could not run {order.request.argv[0]!r}: {result.reason}", result=result)
    return result


def in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """A thread of its own for one run: the loop's executor has few, and they may all be taken."""
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: object) -> None:
        if not future.done():
            setter(value)

    def target() -> None:
        try:
            result = work()
        except BaseException as error:
            loop.call_soon_threadsafe(settle, future.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, result)

    threading.Thread(target=target, name="stockade-run", daemon=True).start()
    return future


async def finished(work: asyncio.Future[Any]) -> None:
    """Wait until the thread is through; its result or error is of no interest any more.

    Being cancelled once more changes nothing: returning earlier would leave a run that nobody waits for.
    """
    import asyncio

    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    work.exception()
