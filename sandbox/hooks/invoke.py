"""One handler, run for one event: a function is called, a command started, an HTTP handler asked. Never raises.

What can't be run counts as a deny for foreign handlers, and goes by the failure policy for trusted ones.
"""

from __future__ import annotations

import os
import time

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.hooks import functions
from stockade.sandbox.hooks.aggregate import HandlerResult, payload_of
from stockade.sandbox.hooks.detached import StoppableRun
from stockade.sandbox.hooks.judge import FAILED
from stockade.sandbox.hooks.settings import by_policy, closes, failed, is_trusted, refused, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.detached import Handle
    from stockade.sandbox.hooks.functions import Returned
    from stockade.sandbox.hooks.model import HookEvent, HookOutcome, HookRun, HookSpec
    from stockade.sandbox.hooks.registry import Entry
    from stockade.sandbox.hooks.runhook import HookResult, Told
    from stockade.sandbox.hooks.settings import Settings
    from stockade.sandbox.order import Order


def invoke(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> HandlerResult:
    """Run one handler to its end. ``handle`` lets another thread end it."""
    began = time.monotonic()
    try:
        found = by_form(entry, event, settings, handle)
    except StockadeError as error:
        found = unusable(entry, event, settings, error)
    except Exception as error:  # whatever it is, it is no consent
        cause = f"internal error: {raised_where(error)}"
        text = f"internal error: {type(error).__name__}: {error}"
        outcome = refused(failed("runner_failed", text, "runner_failed"))
        found = HandlerResult(entry.label, entry.spec, outcome, cause)
    return found.replace(duration=time.monotonic() - began)


def by_form(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> HandlerResult:
    if entry.function is not None:
        return call(entry, event, settings)
    if entry.spec.form == "http":
        from stockade.sandbox.hooks.ask import ask

        return ask(entry, event, settings, handle)
    return start(entry, event, settings, handle)


def unusable(entry: Entry, event: HookEvent, settings: Settings, error: StockadeError) -> HandlerResult:
    """A handler whose command or place can't be used, whose policy can't be read, or that is not as it was pinned.
    Nothing was run."""
    text = f"{error.message}. {error.remedy}" if error.remedy else error.message
    outcome = failed("not_run", text, "not_run")
    own_fault = isinstance(error, RequestError)
    must = not own_fault or not is_trusted(entry, settings)
    counted = refused(outcome) if must else by_policy(outcome, entry, event, settings)
    return HandlerResult(entry.label, entry.spec, counted, error.message)


# --- functions ------------------------------------------------------------------------------------------------


def call(entry: Entry, event: HookEvent, settings: Settings) -> HandlerResult:
    assert entry.function is not None
    timeout = seconds(entry, settings)
    returned = functions.call(entry.function, event.name, payload_of(event), timeout)
    outcome = functions.outcome_of(returned, timeout)
    counted = by_policy(outcome, entry, event, settings)
    return HandlerResult(entry.label, entry.spec, counted, cause_of_call(returned, outcome))


def cause_of_call(returned: Returned, outcome: HookOutcome) -> str:
    """Why a function failed or denied, without a word of its own."""
    if returned.error is not None:
        return raised_where(returned.error)
    if outcome.status == "timed_out":
        return outcome.problems[0].text
    if outcome.status in FAILED:
        return "what it returned is no answer"
    return "it returned a deny" if outcome.verdict == "deny" else ""


def raised_where(error: BaseException) -> str:
    """The kind and the place of an exception; its text may hold what the hook was told."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        place = f" at {os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"{type(error).__name__}{place}"


# --- commands -------------------------------------------------------------------------------------------------


def start(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> HandlerResult:
    from stockade.sandbox.hooks.runhook import run_of

    result = performed(entry, event, settings, handle)
    run = run_of(result)
    cause = "it was stopped" if result.outcome == "stopped" else cause_of_run(result.answer, run)
    return HandlerResult(entry.label, entry.spec, result.answer, cause, 0.0, run, result)


def performed(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> HookResult:
    from stockade.sandbox.hooks.runhook import perform, understand, warn_if_ignored

    language = settings.language
    check_pins(entry.spec)
    told = understand(event, language)
    order = order_of(entry, told, settings)
    if settings.policy is not None and not settings.plain_warnings:
        warn_if_ignored(order)
    closed = closes(entry, event, settings)
    with StoppableRun(handle) as stopper:
        result = perform(
            order, told, language, fail_closed=closed, stopper=stopper, plain_warnings=settings.plain_warnings
        )
    check_pins(entry.spec)  # what was changed while it ran may be what ran
    return result


def check_pins(spec: HookSpec) -> None:
    """Raises PinBroken for a handler that is not as it was pinned."""
    if not spec.source:
        return
    from stockade.sandbox.hooks import pin

    try:
        pin.pins_directory()
    except StockadeError:
        return  # without a home there are none
    if changes := pin.verify_spec(spec):
        raise pin.broken(changes)


def order_of(entry: Entry, told: Told, settings: Settings) -> Order:
    """The checked command. One that was wrapped is confined once, by this runner: a box in a box is none.

    Where it is to run directly the wrapper stays, so that what somebody confined stays confined.
    """
    from stockade.policies.decide import decide

    plain = unwrapped(entry.spec)
    order = made_order(plain or entry.spec, entry, told, settings)
    direct = decide(order.policy.mode, order.trusted, "full") == "direct"
    return made_order(entry.spec, entry, told, settings) if plain is not None and direct else order


def made_order(spec: HookSpec, entry: Entry, told: Told, settings: Settings) -> Order:
    from stockade.sandbox.hooks.commands import command_of, directory_of, root_of
    from stockade.sandbox.hooks.runhook import hook_order

    return hook_order(
        command_of(spec, told.event, settings.language),
        told,
        settings.language,
        policy=settings.policy,
        trusted=is_trusted(entry, settings),
        cwd=directory_of(spec, told.event, settings.cwd),
        env={**dict(spec.env), **settings.env},
        root=root_of(spec),
        options={"limits.timeout": seconds(entry, settings), **settings.options},
    )


def unwrapped(spec: HookSpec) -> HookSpec | None:
    """The handler without stockade's own wrapper; None where it has none."""
    if not spec.raw or spec.form not in ("shell", "argv"):
        return None
    from stockade.sandbox.hooks.rewrite import CannotWrap, original

    try:
        command, wrapper = original(spec.raw, spec.dialect)
    except CannotWrap:
        return None
    if not wrapper:
        return None
    shell = command.form == "shell"
    return spec.replace(form="shell" if shell else "argv", command=command.text if shell else command.words)


def cause_of_run(answer: HookOutcome, run: HookRun) -> str:
    """Why a command failed or denied, without a word of its own."""
    if run.runner_failed or not run.started or run.spawn_error:
        return run.spawn_error or run.reason
    if run.timed_out:
        return "it timed out"
    if answer.status == "ok" and answer.verdict != "deny":
        return ""
    ended = f"signal {run.signal}" if run.signal is not None else f"exit code {run.exit_code}"
    codes = ", ".join(dict.fromkeys(each.code for each in answer.problems))
    said = f"it answered {answer.verdict}" if answer.source == "json" else ended
    return f"{said} ({codes})" if codes else said
