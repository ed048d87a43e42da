"""``run_hook``: one hook, run for one event, and what its answer counts for."""

from __future__ import annotations

import os

from stockade.policies.errors import PolicyError, RequestError, StockadeError
from stockade.policies.record import Record
from stockade.sandbox.conduct import carry_out
from stockade.sandbox.hooks.dialects import dialect as dialect_of
from stockade.sandbox.hooks.judge import judge
from stockade.sandbox.hooks.model import HookEvent, HookOutcome, HookRun
from stockade.sandbox.hooks.view import reads, root_of, variables, withheld
from stockade.sandbox.hooks.words import target
from stockade.sandbox.result import RunResult, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.order import Command, Order, PolicyLike
    from stockade.sandbox.stopper import Stopper

    Event = Mapping[str, Any] | HookEvent | bytes | str

SCHEMA = "stockade.hook/1"
POLICY = "hook"
MODES = {"auto": "auto", "strict": "strict", "off": "off", False: "off", True: "auto", None: None}


class HookResult(RunResult):
    """A run's result, and what the hook's answer counts for.

    ``reason`` is why the hook refused, where it did; else how the run ended.
    """

    dialect: str
    event: str
    """The host's own name of the event."""
    kind: str
    blocking: bool
    """Whether a refusal keeps something from happening."""
    answer: HookOutcome
    """What counts: the host's reading, made stricter for a confined hook."""
    host_answer: HookOutcome
    """What the host would make of the same end."""
    withheld: tuple[str, ...]
    """Names of the caller's variables that a confined hook did not get."""

    @property
    def decision(self) -> str | None:
        """``deny``, ``ask``, ``defer``, ``allow``, or None for no objection."""
        return None if self.answer.verdict == "none" else self.answer.verdict

    @property
    def blocked(self) -> bool:
        """Whether the hook refused, or counts as having refused."""
        return self.answer.verdict == "deny"

    @property
    def halts_turn(self) -> bool:
        """Whether the agent's whole turn is to end."""
        return self.answer.halt

    @property
    def json(self) -> Any:
        """The JSON document that the hook answered; None if it was none."""
        return self.answer.document

    def to_json(self) -> dict[str, Any]:
        """As ``RunResult.to_json``, with ``"schema": "stockade.hook/1"`` and the hook's answer."""
        own = {name: getattr(self, name) for name in ("decision", "blocked", "halts_turn", "json")}
        return {**super().to_json(), "schema": SCHEMA, **own}


class Told(Record):
    """An event, and the bytes that the hook reads."""

    event: HookEvent
    payload: bytes


def run_hook(
    command: Command,
    event: Event,
    *,
    trusted: bool = True,
    sandbox: str | bool | None = None,
    timeout: float | str | None = 10.0,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    record_egress: bool = False,
    egress: Mapping[str, Any] | None = None,
    dialect: str = "claude",
    policy: PolicyLike = None,
    root: str | os.PathLike[str] | None = None,
    write: Iterable[str | os.PathLike[str]] = (),
    fail_closed: bool = False,
    stopper: Stopper | None = None,
) -> HookResult:
    """Run one hook for one event, and say what its answer counts for.

    command: a string runs as the host runs one (its shell); a sequence is executed directly.
    event: the host's payload as a mapping, as JSON text or bytes (passed on as they are), or a ``HookEvent``.
    trusted: the hook is the caller's own: run directly, unless ``sandbox`` or an egress option says otherwise.
        False confines it, or refuses.
    sandbox: ``"auto"``, ``"strict"`` (refuse where the host lacks anything) or False (run directly); None follows
        ``trusted``.
    timeout: seconds (or ``"10s"``); None takes the policy's.
    cwd: where it runs, and its workspace; the event's own directory if None and it exists.
    env: variables set for the hook, over those of its host.
    record_egress: let nothing out, and record every attempt (confines).
    egress: ``{"allow": [host, ...]}``: what it may reach (confines).
    dialect: whose protocol it speaks: claude, codex, antigravity, agy, gemini, cursor or nous.
    policy: a preset's name, the path of a policy file or a ``Policy``; the preset ``hook`` if None.
    root: the directory of the plugin that the hook belongs to; shown to it, read-only.
    write: paths that it may write.
    fail_closed: let a failure of an unconfined hook count as a refusal. That of a confined one always does.

    A hook that could not be confined, whose program is not there inside, or whose sandbox failed, was not run (or
    not to its end) and counts as a refusal; ``reason`` says so. Raises RequestError and PolicyError for arguments
    that can't be used; nothing was run then.
    """
    language = dialect_of(dialect)
    told = understand(event, language)
    options = hook_options(sandbox, timeout, record_egress=record_egress, egress=egress, write=write)
    order = hook_order(
        command,
        told,
        language,
        policy=policy,
        trusted=trusted,
        cwd=cwd if cwd is not None else cwd_of(told.event),
        env=env or {},
        root=os.fspath(root) if root is not None else "",
        options=options,
    )
    if policy is not None:
        warn_if_ignored(order)
    return perform(order, told, language, fail_closed=fail_closed, stopper=stopper)


def understand(event: Event, language: Dialect) -> Told:
    """Raises RequestError for what is no event of this host."""
    if isinstance(event, HookEvent):
        return Told(event, language.payload(event))
    if isinstance(event, bytes | bytearray | memoryview | str):
        data = event.encode("utf-8", "surrogatepass") if isinstance(event, str) else bytes(event)
        return Told(language.read_event(parsed(data)), data)
    if not hasattr(event, "items"):
        raise RequestError(f"could not use the event: it is {type(event).__name__}, not a mapping or JSON text")
    told = language.read_event(dict(event))
    try:
        return Told(told, language.payload(told))
    except (TypeError, ValueError) as error:
        raise RequestError(f"could not use the event: {error}") from None


def parsed(data: bytes) -> dict[str, Any]:
    """The object that an event is. Raises RequestError, with line and column where it is not JSON."""
    from stockade.sandbox.hooks.jsontext import NotJson, parse

    try:
        text = data.decode()
        value, _problems = parse(text)
    except UnicodeDecodeError as error:
        raise RequestError(f"could not read the event: byte {error.start} is not UTF-8") from None
    except NotJson as error:
        if not text.strip():
            raise RequestError(
                "could not read the event: there is none", remedy="Give it as JSON on stdin."
            ) from None
        line = text.count("\n", 0, error.offset) + 1
        column = error.offset - (text.rfind("\n", 0, error.offset) + 1) + 1
        raise RequestError(f"could not read the event: line {line}, column {column}: {error.text}") from None
    if not isinstance(value, dict):
        raise RequestError(f"could not read the event: it is a JSON {type(value).__name__}, not an object")
    return value


def cwd_of(event: HookEvent) -> str | None:
    return event.cwd if event.cwd.startswith("/") and os.path.isdir(event.cwd) else None


def hook_options(
    sandbox: str | bool | None,
    timeout: float | str | None,
    *,
    record_egress: bool,
    egress: Mapping[str, Any] | None,
    write: Iterable[str | os.PathLike[str]],
) -> dict[str, object]:
    """The arguments of a call as the option layer of its policy."""
    from stockade.sandbox.order import call_options

    if not isinstance(sandbox, str | bool | None) or sandbox not in MODES:
        raise RequestError(
            f"could not use sandbox={sandbox!r}: it is not one of its values",
            remedy='Use "auto", "strict", False, or None to follow trusted.',
        )
    if egress is not None and (not hasattr(egress, "items") or set(egress) != {"allow"}):
        raise RequestError(f"could not use egress={egress!r}", remedy='Write egress={"allow": ["host", ...]}.')
    options = call_options(
        mode=MODES[sandbox],
        timeout=timeout,
        allow=egress["allow"] if egress else (),
        record_egress=record_egress,
        write=write,
    )
    if egress is not None and not record_egress:
        options["network.egress"] = "allow"  # an empty list too: it reaches nothing
    return options


def hook_order(
    command: Command,
    told: Told,
    language: Dialect,
    *,
    policy: PolicyLike,
    trusted: bool,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    root: str,
    options: Mapping[str, object],
) -> Order:
    """Everything checked that can be without the host, and what the hook needs to see added to its policy."""
    from stockade.sandbox.hooks.preflight import inspect
    from stockade.sandbox.order import make_order
    from stockade.sandbox.request import command_argv, directory
    from stockade.sandbox.survey import home_directory

    argv = language.shell_argv(command) if isinstance(command, str) and command.strip() else command
    caller = dict(os.environ)
    place = root_of(root, {**caller, **env})
    own = {**variables(language, told.event, place, caller), **env}
    where, home = directory(cwd), home_directory()
    found = target(command_argv(argv), {"HOME": home, **own})
    shown = reads(told.event, place, found, cwd=where, home=home)
    more = [*options.get("filesystem.read", ()), *shown]  # type: ignore[misc]
    order = make_order(
        argv,
        policy=POLICY if policy is None else policy,
        trusted=trusted,
        cwd=where,
        env=own,
        stdin=told.payload,
        options={**options, "filesystem.read": more} if more else options,
    )
    return order.replace(inspect=inspect)


def perform(
    order: Order,
    told: Told,
    language: Dialect,
    *,
    fail_closed: bool,
    stopper: Stopper | None = None,
    plain_warnings: bool = False,
) -> HookResult:
    """Run it, read the answer as its host would, and judge."""
    try:
        result = carry_out(order, capture=True, stopper=stopper, plain_warnings=plain_warnings)
    except (RequestError, PolicyError):
        raise
    except StockadeError as error:
        result = unrun(order, error)
    event = told.event
    run = run_of(result)
    host_answer = language.decode(event.name, run)
    answer = judge(host_answer, run, fail_closed=fail_closed)
    fields = result.as_dict()
    if answer.verdict == "deny" and answer.reason:
        fields["reason"] = answer.reason
    rule = language.rule(event.name)
    return HookResult(
        **fields,
        dialect=language.NAME,
        event=event.name,
        kind=rule.kind,
        blocking=rule.blocks,
        answer=answer,
        host_answer=host_answer,
        withheld=names_withheld(order) if run.enforcement != "none" else (),
    )


def names_withheld(order: Order) -> tuple[str, ...]:
    given = [name for name, _value in order.request.env]
    return withheld(os.environ, order.policy.env_pass, given)


def run_of(result: RunResult) -> HookRun:
    """A run in a hook's terms. ``lost`` is the sandbox's fault: what the hook said can't be known."""
    broken = result.outcome in ("runner_failed", "lost")
    code = result.exit_code if result.outcome in ("exited", "not_executed") else None
    return HookRun(
        exit_code=code,
        signal=result.signal if result.outcome == "signalled" else None,
        timed_out=result.outcome == "timed_out",
        stdout=result.stdout,
        stderr=result.stderr,
        stdout_truncated=result.stdout_truncated,
        stderr_truncated=result.stderr_truncated,
        started=result.started,
        spawn_error=result.reason if result.outcome == "not_executed" else "",
        runner_failed=broken,
        reason=result.reason,
        enforcement=result.enforcement,
        denied=result.denied,
        duration=result.duration,
        argv=result.argv,
    )


def unrun(order: Order, error: StockadeError) -> RunResult:
    """The result of a run that never was."""
    remedy = f" {error.remedy}" if error.remedy else ""
    return RunResult(
        outcome="runner_failed",
        exit_code=None,
        signal=None,
        returncode=125,
        reason=f"{error.message}.{remedy}" if remedy else error.message,
        started=False,
        denied=False,
        denials=(),
        stdout=b"",
        stderr=b"",
        stdout_truncated=False,
        stderr_truncated=False,
        stdout_bytes=0,
        stderr_bytes=0,
        egress=(),
        egress_dropped=None,
        files_written=None,
        enforcement="none",
        degraded=(),
        notes=(),
        usage=Usage(0.0, 0, 0),
        duration=0.0,
        policy=order.policy,
        argv=order.request.argv,
        rule=type(error).__name__,
        changes=None,
        requests=(),
    )


_warned = False


def warn_if_ignored(order: Order) -> None:
    """A policy that was asked for and confines nothing is said once per process."""
    global _warned
    from stockade.policies.decide import decide

    if _warned or not order.trusted or decide(order.policy.mode, order.trusted, "full") != "direct":
        return
    _warned = True
    import warnings

    why = "mode is off" if order.policy.mode == "off" else "trusted is true and no mode is set"
    warnings.warn(f"the policy has no effect: {why}, so that the hook runs directly", RuntimeWarning, stacklevel=3)
