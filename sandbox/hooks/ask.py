"""An HTTP handler, asked for one event: what its answer, or its silence, counts for."""

from __future__ import annotations

import os

from stockade.policies.errors import PolicyError, RequestError, StockadeError
from stockade.sandbox.hooks.aggregate import HandlerResult
from stockade.sandbox.hooks.httpcourse import Course, HttpFailed
from stockade.sandbox.hooks.settings import by_policy, failed, is_trusted, refused, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.hooks.detached import Handle
    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.model import HookEvent, HookOutcome
    from stockade.sandbox.hooks.registry import Entry
    from stockade.sandbox.hooks.settings import Settings


def ask(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> HandlerResult:
    """POST the event and read the answer.

    A failure of the server or the network is the handler's, and goes by its failure policy. What stockade itself
    refuses to send is a deny, unless the handler is trusted.
    """
    must = False
    try:
        body = posted(entry, event, settings, handle)
        outcome = read(body, event, settings.language)
        cause = ", ".join(each.code for each in outcome.problems) if outcome.status != "ok" else ""
    except HttpFailed as error:
        status = "timed_out" if error.code == "timed_out" else "failed"
        outcome, cause = failed(error.code, error.message, status), error.message
    except (PolicyError, RequestError):
        raise
    except StockadeError as error:
        must = not is_trusted(entry, settings)
        text = f"{error.message}. {error.remedy}" if error.remedy else error.message
        outcome, cause = failed("refused", text, "not_run"), error.message
    counted = refused(outcome) if must else by_policy(outcome, entry, event, settings)
    return HandlerResult(entry.label, entry.spec, counted, cause)


def posted(entry: Entry, event: HookEvent, settings: Settings, handle: Handle) -> bytes:
    from stockade.sandbox.hooks import http

    payload = settings.language.payload(event)
    policy = policy_of(event, settings)
    course = Course(seconds(entry, settings))
    handle.attach(course.stop)
    try:
        answer = http.post(
            entry.spec, payload, policy=policy, environ=os.environ, course=course, ways=settings.ways
        )
    finally:
        handle.detach()
    return answer.body


def policy_of(event: HookEvent, settings: Settings) -> Resolved:
    """The policy whose allowlist counts: the same as for the event's commands."""
    from stockade.sandbox import policycache
    from stockade.sandbox.hooks.runhook import POLICY, cwd_of
    from stockade.sandbox.request import directory

    given = POLICY if settings.policy is None else settings.policy
    where = directory(settings.cwd or cwd_of(event))
    if isinstance(given, str | os.PathLike):
        return policycache.resolved(os.fspath(given), None, where, settings.options)
    return policycache.resolved(None, given, where, settings.options)


def read(body: bytes, event: HookEvent, language: Dialect) -> HookOutcome:
    """What a 2xx answer means: nothing is exit code 0, a JSON object a command's answer; everything else is none."""
    from stockade.sandbox.hooks import jsontext
    from stockade.sandbox.hooks.model import HookRun

    if jsontext.read(body).form not in ("empty", "object"):
        return failed("not_json", "the answer is no JSON object")
    return language.decode(event.name, HookRun(exit_code=0, stdout=body))
