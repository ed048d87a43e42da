"""One call of the tool: a checked command with its order, carried out to a ``BashResult``.

Used by foreground calls and by jobs. Decides nothing about modes (``tool``) and nothing about text (``output``).
"""

from __future__ import annotations

import select
from contextlib import contextmanager

from stockade.policies.errors import RequestError, SandboxUnavailable, StockadeError
from stockade.policies.record import Record
from stockade.sandbox.bash.result import BashResult, SandboxFacts
from stockade.sandbox.bash.spill import KEPT, MOST, Spill, SpillPlace
from stockade.sandbox.request import check_text
from stockade.sandbox.wires import Wires

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Lock
    from typing import Any

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.stopper import Stopper

LOOK = 0.05
"""Seconds between two looks of a call that waits for another one at whether it is still wanted."""

BROKEN = ("runner_failed", "not_executed")
"""Outcomes that say nothing of a command: there was no sandbox, or no shell in it."""


class Call(Record):
    """A command that was checked, and allowed, and that nothing was spawned for yet."""

    command: str
    order: Order
    mode: str
    cwd: str
    """Where it begins."""
    spills: SpillPlace
    env: tuple[str, ...] = ()
    """Names of the variables that this call alone sets."""
    given_cwd: bool = False
    """Whether the call names its directory."""

    @property
    def timeout(self) -> float | None:
        return self.order.policy.timeout


def check_command(command: object) -> str:
    """Text of a command. Raises RequestError."""
    text = check_text(command, "the command")
    if not text.strip():
        raise RequestError("could not run the command: it is empty", remedy="Name something to run.")
    return text


def check_timeout(timeout: object, most: float) -> float:
    """Seconds within the cap. Raises RequestError."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise RequestError(f"could not use timeout={timeout!r}: it is not a number of seconds")
    if not 0 < timeout <= most:
        raise RequestError(
            f"could not use timeout={timeout!r}: it must be above 0 and no more than {most:g} seconds",
            remedy="Start what takes longer in the background.",
        )
    return float(timeout)


def shell_argv(shell: str, command: str) -> tuple[str, ...]:
    """A command that looks like an option is none."""
    return (shell, "-c", *(("--",) if command[:1] in ("-", "+") else ()), command)


@contextmanager
def turn(lock: Lock, stopper: Stopper | None) -> Iterator[None]:
    """Hold a lock. A call that is asked to stop while it waits does not run any more: raises StockadeError."""
    while not lock.acquire(timeout=-1 if stopper is None else LOOK):
        check_wanted(stopper)
    try:
        check_wanted(stopper)
        yield
    finally:
        lock.release()


def check_wanted(stopper: Stopper | None) -> None:
    if stopper is None:
        return
    poll = select.poll()
    poll.register(stopper.read, select.POLLIN)
    if poll.poll(0):
        raise StockadeError("could not run the command: it was asked to stop while it waited for another one")


class Taken:
    """The captured streams of one run."""

    def __init__(self, call: Call) -> None:
        most = call.order.policy.output
        self.kept = KEPT if most is None else min(KEPT, most)
        self.spills = call.spills
        self.streams: dict[int, Spill] = {}

    def make(self, number: int, fd: int) -> Spill:
        """For ``Wires.capture``; a run that is planned once more starts again."""
        name = "stdout" if number == 1 else "stderr"
        self.streams[number] = Spill(fd, name, self.spills, self.kept)
        return self.streams[number]


def carry(
    call: Call,
    *,
    stopper: Stopper | None = None,
    leases: LeasePool | None = None,
    wires: Wires | None = None,
    taken: Taken | None = None,
) -> BashResult:
    """Run it, in this thread, to its end. A sandbox that failed is a fact of the result, not an error.

    ``wires`` adds descriptors and streams of the caller's; ``taken`` makes its captures.
    Raises SandboxUnavailable and other StockadeErrors when nothing could be started.
    """
    from stockade.sandbox.conduct import carry_out

    taken = taken or Taken(call)
    order = call.order.replace(wires=(wires or Wires()).replace(capture=taken.make))
    run = carry_out(order, capture=True, stopper=stopper, leases=leases)
    return made(call, run, taken)


def made(call: Call, run: RunResult, taken: Taken) -> BashResult:
    """The result of a run of a call."""
    fields: dict[str, Any] = {}
    notes: list[str] = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        fields |= stream_fields(name, taken.streams.get(number), notes)
    return BashResult(
        exit_code=None if run.outcome in BROKEN else run.exit_code,
        signal=run.signal,
        timed_out=run.outcome == "timed_out",
        outcome=run.outcome,
        reason=run.reason,
        sandbox=SandboxFacts(
            mode=call.mode,
            enforcement=run.enforcement,
            denied=run.denied,
            denials=run.denials,
            runner_failed=run.outcome in BROKEN,
            notes=(*(f"degraded: {each}" for each in run.degraded), *run.notes),
        ),
        duration=run.duration,
        timeout=call.timeout,
        cwd=call.cwd,
        notes=tuple(notes),
        run=run,
        **fields,
    )


def stream_fields(name: str, stream: Spill | None, notes: list[str]) -> dict[str, Any]:
    """What a result says of one stream; what is wrong with its file goes to the notes."""
    head, tail = stream.pieces() if stream is not None else (b"", b"")
    total = stream.total if stream is not None else 0
    cut = total > len(head) + len(tail)
    if stream is not None and stream.failure:
        notes.append(f"the whole of {name} could not be kept: {stream.failure}")
    elif stream is not None and stream.total > MOST:
        notes.append(f"the file of {name} has its first {MOST} bytes alone")
    whole = stream.path if stream is not None and cut and not stream.failure else None
    return {
        name: head + tail,
        f"{name}_bytes": total,
        f"{name}_truncated": cut,
        f"{name}_cut": len(head),
        f"{name}_file": whole,
    }


def refused(call: Call, error: StockadeError) -> BashResult:
    """The result of a job that could not be started: a failure of the runner, never of the command."""
    facts = SandboxFacts(call.mode, "none", denied=False, denials=(), runner_failed=True)
    return BashResult(
        exit_code=None, signal=None, timed_out=False, outcome="runner_failed", reason=" ".join(str(error).split("\n")),
        stdout=b"", stderr=b"", stdout_bytes=0, stderr_bytes=0, stdout_truncated=False, stderr_truncated=False,
        stdout_cut=0, stderr_cut=0, stdout_file=None, stderr_file=None, sandbox=facts, duration=0.0,
        timeout=call.timeout, cwd=call.cwd,
    )  # fmt: skip


def raise_if_broken(result: BashResult) -> BashResult:
    """For foreground calls: a broken sandbox never reads as a failing command. Raises SandboxUnavailable."""
    if not result.sandbox.runner_failed:
        return result
    what, remedy = "the sandbox failed", "Run `stockade doctor`."
    if result.outcome == "not_executed":
        what, remedy = "the shell was not executed", "Name a shell that is visible inside."
    mode = (result.run.policy.mode if result.run is not None else None) or "auto"
    raise SandboxUnavailable(
        f"could not run the command: {what}: {result.reason}",
        mode=mode,
        remedy=remedy,
        result=result,
    )
