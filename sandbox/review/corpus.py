"""Which events a handler is tried with: its own host's payloads, those that its matcher lets through. Pure.

What a handler is told looks as a session in the sample project would: every path is there, in the box.
"""

from __future__ import annotations

import re

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.hooks.dialects import dialect as dialect_of
from stockade.sandbox.hooks.match import matches
from stockade.sandbox.review import envelopes
from stockade.sandbox.review.acts import ACTS, HUGE, PROMPTS, Act
from stockade.sandbox.review.model import Case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import HookEvent, HookSpec

MOST_CASES = 10
"""Events for one handler, at most."""
TOOLS = ("pre_tool", "permission_request", "post_tool", "post_tool_failure", "file_read", "file_edit")
REPEATED = 2
"""How many of a handler's cases are given again, and once more with no network: the first ones."""
UNREAL = ("post_tool_failure",)


class Setting(Record):
    """Where the events play."""

    project: str
    """The sample project's path inside."""
    home: str
    transcript: str
    token: str
    """The canary that stands in payloads that carry something secret."""
    session: str = "5f0c2c1e-6d4b-4f0e-9a51-3c7a1f2b8d90"


class Chosen(Record):
    """The events for one handler."""

    cases: tuple[Case, ...]
    left_out: tuple[str, ...] = ()
    """Names of those that would fit too."""
    forced: bool = False
    """Whether none fits its matcher: then some are given all the same."""


def choose(spec: HookSpec, setting: Setting, names: Iterable[str] | None = None) -> Chosen:
    """The cases for a handler, the most telling first. ``names``: these alone."""
    every = candidates(spec, setting)
    wanted = [each for each in every if names is None or each.name in set(names)]
    fitting = [each for each in wanted if fits(spec, each)]
    chosen = fitting or wanted
    most = len(chosen) if names is not None else MOST_CASES
    return Chosen(tuple(chosen[:most]), tuple(each.name for each in chosen[most:]), bool(wanted) and not fitting)


def fits(spec: HookSpec, case: Case) -> bool:
    """Whether the host would run the handler for this event; switched-off handlers are tried as if they were on."""
    try:
        return matches(spec.replace(enabled=True), event_of(spec, case)).runs
    except RequestError:
        return True  # the engine for its pattern is not installed


def event_of(spec: HookSpec, case: Case) -> HookEvent:
    """The event that a case is, under the handler's own event. Raises RequestError for what is no payload."""
    language = dialect_of(spec.dialect)
    kind = language.rule(spec.event).kind
    return language.read_event(case.payload).replace(name=spec.event, kind=kind)


def candidates(spec: HookSpec, setting: Setting) -> list[Case]:
    """All events of the handler's kind, its host's way."""
    kind = dialect_of(spec.dialect).rule(spec.event).kind
    if kind in TOOLS:
        return tool_cases(spec, kind, setting)
    if kind == "prompt_submit":
        return [
            made(spec, kind, name, about, setting, {"prompt": text.replace("{token}", setting.token)})
            for name, about, text in PROMPTS
        ]
    return [
        made(spec, kind, name, about, setting, fields)
        for name, about, fields in envelopes.moments(spec.dialect, spec.event, kind, setting)
    ]


def tool_cases(spec: HookSpec, kind: str, setting: Setting) -> list[Case]:
    acts = [act for act in ACTS if act.failed or kind not in UNREAL]
    found = [case for act in acts if (case := tool_case(spec, kind, act, setting)) is not None]
    known = {envelopes.tool_name(each.payload) for each in found}
    return [*found, *named_tools(spec, kind, setting, known)]


def tool_case(spec: HookSpec, kind: str, act: Act, setting: Setting) -> Case | None:
    """The act as a call of the host's own tool; None where it has none, or the event is about another."""
    called = envelopes.call(spec.dialect, spec.event, act.filled(setting))
    if called is None:
        return None
    return made(spec, kind, act.name, act.about, setting, {"call": called, "act": act.filled(setting)})


def made(spec: HookSpec, kind: str, name: str, about: str, setting: Setting, fields: Mapping[str, Any]) -> Case:
    payload = envelopes.payload(spec.dialect, spec.event, kind, setting, fields)
    return Case(name, spec.event, payload, about)


def named_tools(spec: HookSpec, kind: str, setting: Setting, known: set[str]) -> list[Case]:
    """Calls of tools that the matcher names and nothing else here is: a custom tool, one of a server."""
    cases = []
    for name in tools_in(spec.matcher or "", known):
        act = Act("named-tool", "a tool that the matcher names", "mcp", {"query": "status of the last deploy"})
        called = (name, act.input)
        if spec.event in envelopes.OWN_FIELDS.get(spec.dialect, ()):
            continue
        cases.append(made(spec, kind, act.name, act.about, setting, {"call": called, "act": act}))
    return cases[:2]


def tools_in(matcher: str, known: set[str]) -> list[str]:
    """Names that a matcher is made of, with something in place of what a pattern leaves open."""
    words = []
    for part in re.split(r"[|,()]", matcher):
        plain = part.strip().strip("^$")
        plain = re.sub(r"\.[*+]\??|\*", "status", plain).replace("\\", "")
        if plain and re.fullmatch(r"[\w.:-]{2,80}", plain) and plain not in known:
            words.append(plain)
    return list(dict.fromkeys(words))


def names_of_cases() -> tuple[str, ...]:
    """Every name that ``cases=`` knows."""
    return tuple(
        dict.fromkeys(
            (*(each.name for each in ACTS), *(name for name, _about, _text in PROMPTS), *envelopes.MOMENT_NAMES)
        )
    )


__all__ = ["HUGE", "Chosen", "Setting", "candidates", "choose", "event_of", "fits", "names_of_cases"]
