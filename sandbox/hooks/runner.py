"""``HookRunner`` and ``run_hooks``: all handlers of an event, in their host's order, as one answer.

The only place that puts the parts together: which handlers (schedule), each of them (invoke), what they come to
(aggregate). Handlers of one step run in threads; what they come to never depends on which of them ends first.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks import schedule
from stockade.sandbox.hooks.aggregate import Aggregate, HandlerResult, aggregate
from stockade.sandbox.hooks.changes import rewritten
from stockade.sandbox.hooks.detached import Detached, Handle
from stockade.sandbox.hooks.dialects import dialect as dialect_named
from stockade.sandbox.hooks.invoke import invoke
from stockade.sandbox.hooks.log import Log
from stockade.sandbox.hooks.merge import ON_CONFLICT
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.registry import Registry, made_entry
from stockade.sandbox.hooks.runhook import hook_options
from stockade.sandbox.hooks.schedule import STOPS_AT_DENY, Skipped
from stockade.sandbox.hooks.settings import ON_FAILURE, Settings
from stockade.sandbox.hooks.told import made_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Self

    from stockade.sandbox.hooks.finding import Finding
    from stockade.sandbox.hooks.http import Ways
    from stockade.sandbox.hooks.log import Sink
    from stockade.sandbox.hooks.model import HookEvent
    from stockade.sandbox.hooks.registry import Entry, Handler
    from stockade.sandbox.order import PolicyLike

    Given = Handler | HookSpec


class HookRunner:
    """Handlers of one host's events, and how they are run.

    specs: handlers of configurations, in their order.
    dialect: whose protocol the events and handlers speak.
    policy: of the commands, and whose allowlist HTTP handlers have; the preset ``hook`` if None.
    trusted: the commands are the caller's own and run directly. False confines each of them, or refuses.
    sandbox, record_egress, egress, write: as for ``run_hook``.
    on_failure: ``"host"``: a trusted handler that fails counts as its host takes it (mostly as no objection), unless
        it says ``fail_closed``; ``"closed"``: as a deny. A confined one always counts as a deny.
    timeout: seconds for handlers that are registered without one.
    sequential: True runs one handler after another, each told what the one before it changed; None is as the host does.
    stop_at_deny: whether handlers after the first deny of an event that can be denied are left out; None is as the host.
    on_conflict: what two rewrites by handlers that ran at once come to: the ``"last"`` in order, or ``"deny"``.
    log: called with two records for each handler (see ``log``).
    cwd: where commands run; the event's own directory if None. ``project_dir`` is told to them where the event does
        not say it. ``env``: variables set for commands.

    Raises RequestError for arguments that can't be used. As a context manager it ends what still runs detached.
    """

    def __init__(
        self,
        specs: Iterable[HookSpec] = (),
        *,
        dialect: str = "claude",
        policy: PolicyLike = None,
        trusted: bool = False,
        sandbox: str | bool | None = None,
        record_egress: bool = False,
        egress: Mapping[str, Any] | None = None,
        write: Iterable[str | os.PathLike[str]] = (),
        on_failure: str = "host",
        timeout: float = 10.0,
        sequential: bool | None = None,
        stop_at_deny: bool | None = None,
        on_conflict: str = "last",
        log: Sink | None = None,
        cwd: str | os.PathLike[str] | None = None,
        project_dir: str | os.PathLike[str] = "",
        env: Mapping[str, str] | None = None,
        options: Mapping[str, object] | None = None,
        http: Ways | None = None,
        plain_warnings: bool = False,
    ) -> None:
        one_of("on_failure", on_failure, ON_FAILURE)
        one_of("on_conflict", on_conflict, ON_CONFLICT)
        self.language = dialect_named(dialect)
        layer = hook_options(sandbox, None, record_egress=record_egress, egress=egress, write=write)
        self.settings = Settings(
            self.language,
            policy,
            {**layer, **(options or {})},
            trusted,
            on_failure,
            timeout,
            os.path.abspath(cwd) if cwd is not None else "",
            dict(env or {}),
            http,
            plain_warnings,
        )
        self.sequential, self.stop_at_deny, self.on_conflict = sequential, stop_at_deny, on_conflict
        self.project_dir = os.path.abspath(project_dir) if project_dir else ""
        self.log = Log(log)
        self.registry = Registry(self.language)
        self.detached = Detached()
        self.problems: tuple[Finding, ...] = ()
        """What is wrong with the files that the handlers come from."""
        self.files: tuple[str, ...] = ()
        self._ran_once: set[str] = set()
        for spec in specs:
            self.registry.add_spec(spec)

    # --- making and filling -----------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], dialect: str | None = None, **options: Any) -> Self:
        """A runner for the handlers of one hooks or settings file. Raises HooksFileError for one that can't be used."""
        return cls._configured(path, dialect, "", options)

    @classmethod
    def discover(
        cls,
        directory: str | os.PathLike[str],
        dialect: str | None = None,
        *,
        home: str | os.PathLike[str] = "",
        **options: Any,
    ) -> Self:
        """A runner for the handlers that a host would find for a project, or those of a plugin.

        ``dialect`` may be None where all files are of one host. ``home`` adds the files of that user and of the
        machine. Raises RequestError where they are of several hosts, HooksFileError where there is none, or one that
        can't be used.
        """
        return cls._configured(directory, dialect, home, options)

    @classmethod
    def _configured(
        cls,
        path: str | os.PathLike[str],
        dialect: str | None,
        home: str | os.PathLike[str],
        options: dict[str, Any],
    ) -> Self:
        from stockade.sandbox.hooks.found import configured

        found = configured([path], dialect, home=home)
        made = cls(found.specs, dialect=found.dialect, **{"project_dir": found.project_dir, **options})
        made.problems, made.files = found.problems, found.files
        return made

    def register(
        self,
        handler: Given,
        *,
        event: str | None = None,
        matcher: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        fail_closed: bool = False,
        name: str | None = None,
        trusted: bool | None = None,
    ) -> str:
        """Add a handler; returns the label under which it appears in reasons and records.

        handler: a function ``(event, payload)``; a module, or object, with ``handle``; a HookSpec; a command as a text
            (for the host's shell) or as a list.
        event: a canonical kind (``pre_tool``) or the host's own name; every event if None.
        matcher: as in the host's own files. priority: lower ones run first, equal ones in order of registration.
        timeout: seconds. fail_closed: its failure counts as a deny. trusted: over the runner's own, for a command.

        A function returns None, True or ``"allow"`` for no objection, False or ``"deny"``, a mapping ``{"result": "allow"
        | "deny" | "modify", "reason": ..., "changes": {...}}`` or a HookOutcome; everything else, and an exception, is
        a failure of it. It runs in this process, in a thread that is left to itself when its time is over.
        """
        if isinstance(handler, HookSpec):
            given = (event, matcher, timeout, name, priority, fail_closed)
            if given != (None, None, None, None, 0, False):
                raise RequestError(
                    "could not register the handler: a HookSpec says for itself what it is for",
                    remedy="Use spec.replace(...).",
                )
            return self.registry.add_spec(handler, together=False, trusted=trusted).label
        entry = made_entry(
            handler,
            self.language,
            event=event,
            matcher=matcher,
            priority=priority,
            timeout=timeout,
            fail_closed=fail_closed,
            name=name,
            trusted=trusted,
        )
        from stockade.sandbox.hooks.matching import check_matcher

        check_matcher(entry.spec)
        return self.registry.add(entry).label

    # --- running ----------------------------------------------------------------------------------------------

    def run(self, event: str | HookEvent, payload: Any = None) -> Aggregate:
        """Run every handler of the event, and say what they come to.

        ``event`` is a host's name or a canonical kind; ``payload`` what the host sends, as a mapping or JSON. Raises
        RequestError for an event or payload that can't be used; nothing was run then. Whatever goes wrong with a
        handler is in its result.
        """
        known = {entry.spec.event for entry in self.registry.entries if entry.spec.event}
        told = made_event(event, payload, self.language, known=known, project_dir=self.project_dir)
        plan = schedule.plan(self.registry.entries, told, self._mismatch, sequential=self.sequential)
        for entry in plan.detached:
            self.detached.start(entry.label, partial(self._one, entry, told, detached=True))
        done, after, left_out = self._steps(plan, told)
        return aggregate(
            told,
            after,
            done,
            self.language.rule(told.name),
            on_conflict=self.on_conflict,
            skipped=(*plan.skipped, *left_out),
            detached=[entry.label for entry in plan.detached],
            notes=tuple(dict.fromkeys((*plan.notes, *self.log.faults))),
        )

    def _steps(
        self, plan: schedule.Plan, event: HookEvent
    ) -> tuple[list[list[HandlerResult]], HookEvent, list[Skipped]]:
        """Run step after step; each sees the event as the ones before it left it."""
        rule = self.language.rule(event.name)
        stops = self.language.NAME in STOPS_AT_DENY if self.stop_at_deny is None else self.stop_at_deny
        done: list[list[HandlerResult]] = []
        for number, step in enumerate(plan.steps):
            results = self._at_once(step, event)
            done.append(results)
            refused = [each for each in results if each.outcome.verdict == "deny"]
            for each in results:
                event = event if each in refused else rewritten(event, each.outcome)
            if stops and rule.blocks and refused:
                why = f"{refused[0].label} denied before it"
                rest = [entry for later in plan.steps[number + 1 :] for entry in later]
                return done, event, [Skipped(entry.label, why) for entry in rest]
        return done, event, []

    def _at_once(self, step: Sequence[Entry], event: HookEvent) -> list[HandlerResult]:
        """Run the handlers of one step; results in their order."""
        if len(step) == 1:
            return [self._one(step[0], event, Handle())]
        results: dict[int, HandlerResult] = {}
        handles = [Handle() for _entry in step]

        def work(number: int) -> None:
            results[number] = self._one(step[number], event, handles[number])

        threads = [
            threading.Thread(target=work, args=(number,), name="stockade-hooks", daemon=True)
            for number in range(len(step))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: nothing may go on without anybody waiting for it
            for handle in handles:
                handle.stop()
            raise
        return [results[number] for number in range(len(step))]

    def _one(self, entry: Entry, event: HookEvent, handle: Handle, *, detached: bool = False) -> HandlerResult:
        """One handler, with its two records. Never raises."""
        if entry.spec.once:
            self._ran_once.add(entry.label)
        identity = self.log.invoked(entry, event)
        result = invoke(entry, event, self.settings, handle).replace(detached=detached)
        self.log.result(identity, entry, event, result)
        return result

    def _mismatch(self, entry: Entry, event: HookEvent) -> tuple[str, tuple[str, ...]]:
        if entry.label in self._ran_once:
            return "it runs once, and has run", ()
        from stockade.sandbox.hooks.matching import mismatch

        return mismatch(entry, event)

    # --- detached handlers ------------------------------------------------------------------------------------

    def finished(self) -> tuple[HandlerResult, ...]:
        """Results of detached handlers that have ended since this was asked last."""
        return self.detached.finished()

    def quiesce(self, timeout: float = 0.0) -> tuple[HandlerResult, ...]:
        """Wait ``timeout`` seconds for the detached handlers, then end those that still run.

        Returns what ``finished`` would; none of them runs any more.
        """
        return self.detached.quiesce(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.quiesce(0.0)


def one_of(name: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise RequestError(f"could not use {name}={value!r}", remedy=f"Use one of {', '.join(map(repr, words))}.")


def run_hooks(handlers: Iterable[Given], event: str | HookEvent, payload: Any = None, **options: Any) -> Aggregate:
    """``HookRunner.run`` for handlers that are used once: functions, modules, HookSpecs and commands, in their order.

    ``options`` are those of HookRunner. Handlers that run detached are ended before this returns.
    """
    with HookRunner(**options) as runner:
        for handler in handlers:
            if isinstance(handler, HookSpec):
                runner.registry.add_spec(handler)
            else:
                runner.register(handler)
        return runner.run(event, payload)
