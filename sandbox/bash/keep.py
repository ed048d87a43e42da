"""``Kept``: one sandbox with one living shell for call after call, and their results.

The shell is a run like any other, supervised by a thread of its own; a call feeds it and reads what comes, in the
thread of the caller (``exchange``). To the sandbox all calls of a shell are one program: nothing in it keeps what one
of them left running from the next.
"""

from __future__ import annotations

import os
import threading
import time

from stockade.policies.errors import RequestError, SandboxUnavailable, StockadeError
from stockade.sandbox.bash import feed
from stockade.sandbox.bash.calls import BROKEN, Taken, refused, stream_fields, turn
from stockade.sandbox.bash.ending import end_at_exit
from stockade.sandbox.bash.exchange import Exchange
from stockade.sandbox.bash.result import BashResult, SandboxFacts
from stockade.sandbox.bash.shell import LAST_WAIT, Shell
from stockade.sandbox.classify import Case, Outcome, executed
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.program import Diagnosis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.bash.calls import Call
    from stockade.sandbox.denials import Denial
    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.stopper import Stopper

LOST = "without its directory, variables and functions"


class Kept:
    """The shell of one tool. Calls come one after another, from any thread."""

    def __init__(
        self, order: Callable[[Sequence[str]], Order], shell: str, *, leases: LeasePool | None = None
    ) -> None:
        """``order`` makes the order of a program of ours. Nothing is started before the first call."""
        self._order, self._name, self._leases = order, shell, leases
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._shell: Shell | None = None
        self._closed = False
        self._owner = os.getpid()
        self._cause = ""
        """Why the shell before ended, as long as nobody was told."""
        self.ended: RunResult | None = None
        """What the last shell that has ended came to: with what it contacted, wrote and used, of all its calls."""

    def run(self, call: Call, *, stopper: Stopper | None = None) -> BashResult:
        """Run a call in the shell, in a fresh one where there is none (any more).

        Raises RequestError for what can't be used, StockadeError when no shell could be started.
        """
        with turn(self._turn, stopper):
            began = time.monotonic()
            notes: list[str] = []
            shell = self._current(notes)
            with shell:
                until = None if call.timeout is None else began + call.timeout
                exchange, taken = self._exchanged(shell, call, until, stopper)
            result = made(call, shell, exchange, taken, notes)
            if exchange.over:
                self._bury(shell)
                self._cause = result.reason
            return result.replace(duration=time.monotonic() - began)

    def close(self) -> None:
        """End the shell and whatever it runs. It takes no calls any more."""
        if os.getpid() != self._owner:
            return  # a fork: what it copied is another process's to end
        with self._state:
            self._closed = True
            shell = self._shell
        if shell is None:
            return
        shell.kill()
        if self._turn.acquire(timeout=LAST_WAIT):  # a call that goes on ends with the shell
            try:
                if self._shell is not None:
                    self._bury(self._shell)
            finally:
                self._turn.release()

    def _current(self, notes: list[str]) -> Shell:
        shell = self._shell
        if shell is not None and (shell.doomed or shell.has_ended()):
            self._bury(shell)
            shell = None
        if self._cause:
            notes.append(f"this shell is a fresh one, {LOST}: the one before ended ({self._cause})")
            self._cause = ""
        if shell is None:
            with self._state:
                if self._closed:
                    raise RequestError("could not run the command: the kept shell is closed")
                shell = self._shell = Shell(self._order(feed.shell_argv(self._name)), self._name, self._leases)
            end_at_exit(self)
        return shell

    def _bury(self, shell: Shell) -> None:
        """It has ended, or is about to: let go of it."""
        shell.end()
        self._cause = shell.run.reason if shell.run is not None else str(shell.error or "killed")
        with self._state:
            self._shell = None
            self.ended = shell.run

    def _exchanged(
        self, shell: Shell, call: Call, until: float | None, stopper: Stopper | None
    ) -> tuple[Exchange, Taken]:
        """What has to come before, and the command itself; or that at which the shell ended."""
        taken = Taken(call)
        if not shell.greeted:
            exchange = Exchange(shell, b"", feed.HELLO, until, stopper)
            exchange.carry_out()
            if exchange.over:
                return exchange, taken
        variables = dict(call.order.request.env)
        command = feed.with_variables(call.command, [(name, variables[name]) for name in call.env])
        if call.given_cwd:
            exchange = Exchange.of(shell, feed.enter(call.cwd), until, stopper)
            exchange.carry_out()
            if exchange.over:
                return exchange, taken
            if exchange.end is not None and exchange.end.code != 0:
                raise RequestError(
                    f"could not run the command in {call.cwd!r}: it can't be entered in the sandbox of the kept shell"
                )
        exchange = Exchange.of(shell, command, until, stopper)
        exchange.listen(taken)
        exchange.carry_out()
        return exchange, taken


def made(call: Call, shell: Shell, exchange: Exchange, taken: Taken, notes: list[str]) -> BashResult:
    """The result of a call. Raises StockadeError when there was no shell."""
    run = shell.run if exchange.over else None
    if exchange.over and run is None:
        if isinstance(shell.error, SandboxUnavailable | RequestError):
            raise shell.error
        return refused(call, shell.error or StockadeError("could not run the command: the shell is gone"))
    outcome = outcome_of(call, shell, exchange)
    fields: dict[str, object] = {}
    about: list[str] = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        fields |= stream_fields(name, taken.streams.get(number), about)
    denials = denials_of(call, shell, outcome, (fields["stderr"], fields["stdout"]), run)  # type: ignore[arg-type]
    if exchange.end is not None and exchange.end.cwd:
        shell.cwd = exchange.end.cwd
    return BashResult(
        exit_code=None if outcome.outcome in BROKEN else outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.outcome == "timed_out",
        outcome=outcome.outcome,
        reason=outcome.reason,
        sandbox=SandboxFacts(
            call.mode, shell.level, bool(denials), denials, outcome.outcome in BROKEN, shell.notes_of(run)
        ),
        duration=0.0,
        timeout=call.timeout,
        cwd=shell.top if exchange.over else shell.cwd,
        notes=(*notes, *about, *shell.told(), *exchange.told(outcome.outcome)),
        run=run,
        **fields,  # type: ignore[arg-type]
    )


def outcome_of(call: Call, shell: Shell, exchange: Exchange) -> Outcome:
    """From what the shell told; where it ended, from its run."""
    if exchange.end is not None:
        evidence = Evidence(released=True, box_seen=shell.confined, exit_code=exchange.end.code)
        found = executed(Case(evidence, shell.confined, Diagnosis(None, 0), "", None))
        assert found is not None
        return found
    if exchange.timed_out:
        reason = f"timed out after {call.timeout:g} s"
        return Outcome("timed_out", None, None, 124, reason, started=True, rule="deadline_passed")
    if exchange.broken:
        return Outcome("lost", None, None, 125, exchange.broken, started=True, rule="garbled")
    run = shell.run
    assert run is not None
    if not shell.greeted and run.outcome in ("exited", "signalled"):
        reason = f"the shell ended before it took a command ({run.reason}){shell.last_words()}"
        return Outcome("not_executed", None, None, 126, reason, started=False, rule="never_greeted")
    return Outcome(run.outcome, run.exit_code, run.signal, run.returncode, run.reason, run.started, run.rule)


def denials_of(
    call: Call, shell: Shell, outcome: Outcome, streams: tuple[bytes, bytes], run: RunResult | None
) -> tuple[Denial, ...]:
    """Suspected from the command's own words; observed ones are known when the shell has ended."""
    if not shell.confined:
        return ()
    from stockade.sandbox.cli.style import escape
    from stockade.sandbox.denials import find_denials
    from stockade.sandbox.verdict import limit_text

    policy = call.order.policy
    found = find_denials(
        outcome,
        egress=policy.egress,
        streams=streams,
        quote=escape,
        value_of=lambda key: limit_text(policy, key),
    )
    seen = () if run is None else tuple(each for each in run.denials if each.certainty == "observed")
    return (*seen, *found)
