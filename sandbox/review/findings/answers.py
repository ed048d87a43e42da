"""What its answers are worth (pure): as a guard, across hosts, the second time, without a network."""

from __future__ import annotations

from stockade.sandbox.review.findings.seen import Found, dangerous, gathered, piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence, Exercise

REFUSED = ("denied", "asked", "told")
WENT_AHEAD = ("goes ahead", "allowed")
UNASKED = ("claude", "codex")
"""Hosts that don't ask the user any more once a handler allows."""
PROVISIONAL = ("agy",)
"""Hosts whose protocol is known from hearsay: they convict nobody."""
FAILURES = (
    "exit_code",
    "signal",
    "timeout",
    "timed_out",
    "not_run",
    "runner_failed",
    "empty_stderr",
    "likely_accident",
)
"""Codes of answers that are none: how it ended is told elsewhere."""
STEADY = ("exited", "signalled")
"""Ends that depend on the handler alone; a timeout may be a busy machine's."""


def look(seen: Seen) -> Iterator[Found]:
    yield from fails_open(seen)
    yield from never_blocks(seen)
    yield from approves(seen)
    yield from across(seen)
    yield from unsteady(seen)
    yield from offline(seen)
    yield from odd(seen)
    yield from late(seen)


def fails_open(seen: Seen) -> Iterator[Found]:
    """Failures that the host takes for consent: high for a guard and an event that it is there for."""
    if not seen.gate or seen.handler.spec.fail_closed:
        return
    hits = [run for run in seen.recorded if run.decision == "deny" and run.host_decision not in ("deny", "ask")]
    if not hits:
        return
    hits.sort(key=lambda run: not dangerous(run))
    severity = "low" if not seen.guard else "high" if dangerous(hits[0]) else "medium"
    yield Found("fails-open", gathered(piece("answer", ended(run), run) for run in hits), severity=severity)


def never_blocks(seen: Seen) -> Iterator[Found]:
    """Only of what calls itself a guard: a handler that keeps a log need not refuse anything."""
    if not seen.gate or not seen.named_guard or seen.refuses:
        return
    tried = [run for run in seen.recorded if dangerous(run)]
    if tried and not any(run.decision in ("deny", "ask") for run in tried):
        yield Found("never-blocks", gathered(piece("answer", ended(run), run) for run in tried))


def approves(seen: Seen) -> Iterator[Found]:
    """High for what deletes or writes; to let a secret be read may be the very job.

    Where a host's handlers say ``allow`` for no objection, it is as good as saying nothing.
    """
    hits = [run for run in seen.recorded if dangerous(run) and run.host_decision == "allow"]
    if seen.gate and hits:
        hits.sort(key=lambda run: "read" in run.case)
        severity = "medium" if "read" in hits[0].case else ""
        severity = severity if seen.handler.spec.dialect in UNASKED else "low"
        yield Found("approves", gathered(piece("answer", ended(run), run) for run in hits), severity=severity)


def across(seen: Seen) -> Iterator[Found]:
    """Medium where its own host goes ahead with what it refuses; a difference between others is worth knowing only."""
    if not seen.gate:
        return
    own = [run for run in seen.recorded if run.outcome == "exited" and overruled(run, seen.handler.spec.dialect)]
    hits = own or [run for run in seen.recorded if run.outcome == "exited" and differs(run)]
    if hits:
        title = "refuses in a way that its own host does not see" if own else ""
        severity = "medium" if own else ""
        yield Found("hosts-differ", gathered(views(run) for run in hits), severity=severity, title=title)


def overruled(run: Exercise, own: str) -> bool:
    """Its own host goes ahead where two or more others refuse, and it ended well, or with the code that refuses."""
    effects = dict(run.across)
    others = [effect for name, effect in effects.items() if name != own and name not in PROVISIONAL]
    refusing = sum(effect in REFUSED for effect in others)
    return effects.get(own) in WENT_AHEAD and refusing >= 2 and run.exit_code in (0, 2)


def differs(run: Exercise) -> bool:
    effects = {effect for name, effect in run.across if name not in PROVISIONAL}
    return any(each in REFUSED for each in effects) and any(each in WENT_AHEAD for each in effects)


def views(run: Exercise) -> Evidence:
    by_effect: dict[str, list[str]] = {}
    for name, effect in run.across:
        by_effect.setdefault(effect, []).append(name)
    told = "; ".join(f"{effect}: {', '.join(names)}" for effect, names in by_effect.items())
    return piece("answer", f"exit {run.exit_code}: {told}", run)


def unsteady(seen: Seen) -> Iterator[Found]:
    """Two answers to one event in the same surroundings."""
    pairs = [
        (first, run)
        for first, run in repeated(seen)
        if answer(first) != answer(run) and first.outcome in STEADY and run.outcome in STEADY
    ]
    if pairs:
        pieces = (piece("answer", f"{ended(first)}, then {ended(run)}", run) for first, run in pairs)
        yield Found("not-deterministic", gathered(pieces), severity="medium" if seen.guard else "")


def repeated(seen: Seen) -> Iterator[tuple[Exercise, Exercise]]:
    """Each later run of an event beside the first one with the same network."""
    first: dict[tuple[str, str], Exercise] = {}
    for run in seen.runs:
        before = first.setdefault((run.case, run.egress_kind), run)
        if before is not run:
            yield before, run


def answer(run: Exercise) -> tuple[object, ...]:
    return run.decision, run.host_decision, run.exit_code


def offline(seen: Seen) -> Iterator[Found]:
    """High where a guard goes ahead without its network; low where nothing hangs on the answer."""
    online: dict[str, list[Exercise]] = {}
    for run in seen.recorded:
        online.setdefault(run.case, []).append(run)
    pairs = [
        (online[run.case][0], run)
        for run in seen.runs
        if run.egress_kind == "none" and run.case in online and differently(online[run.case], run)
    ]
    if not pairs:
        return
    opened = any(with_it.decision == "deny" and without.decision != "deny" for with_it, without in pairs)
    pieces = (piece("answer", f"{ended(one)}; without a network {ended(two)}", two) for one, two in pairs)
    severity = "low" if not seen.gate else "high" if opened and seen.guard else ""
    yield Found("needs-network", gathered(pieces), severity=severity)


def differently(online: list[Exercise], offline: Exercise) -> bool:
    """Whether an answer is none of those that the event got before; a handler without a steady one proves nothing."""
    answers = {answer(run) for run in online}
    return len(answers) == 1 and answer(offline) not in answers


def odd(seen: Seen) -> Iterator[Found]:
    told = [(run, ", ".join(code for code in run.answered if code not in FAILURES)) for run in seen.runs]
    hits = [(run, text) for run, text in told if text]
    if hits:
        pieces = (piece("answer", f"{text}{quoted_output(run)}", run) for run, text in hits)
        yield Found("odd-answer", gathered(pieces), severity="" if seen.gate else "info")


def quoted_output(run: Exercise) -> str:
    return f": {run.stdout[:200]}" if run.stdout else ""


def late(seen: Seen) -> Iterator[Found]:
    hits = [run for run in seen.runs if run.outcome == "timed_out"]
    if hits:
        pieces = (piece("answer", f"still running after {run.duration:.1f} s", run) for run in hits)
        yield Found("times-out", gathered(pieces))


def ended(run: Exercise) -> str:
    """How a run ended, and what its host makes of it."""
    number = "" if run.exit_code is None else f" {run.exit_code}"
    how = f"exit{number}" if run.outcome == "exited" else f"{run.outcome.replace('_', ' ') or 'no end'}{number}"
    said = run.host_decision or "no objection"
    return f"{how}: {said}"
