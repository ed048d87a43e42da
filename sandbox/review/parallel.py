"""Every handler of a review, several at once, each with all of its events; within a time, and told as it goes."""

from __future__ import annotations

import os
import queue
import threading
import time

from stockade.policies.record import Record
from stockade.sandbox.review.corpus import REPEATED, choose
from stockade.sandbox.review.exercise import IN_CI, Try, exercise
from stockade.sandbox.review.model import Exercise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stockade.sandbox.order import PolicyLike
    from stockade.sandbox.review.bench import Bench, Slot
    from stockade.sandbox.review.model import Handler

MOST_TIMEOUTS = 2
"""Runs of one handler that may time out before the rest of its events is left out."""


class Progress(Record):
    """How far a review is."""

    done: int
    total: int
    """Runs, as planned."""
    handler: str
    """Whose run has just ended."""
    case: str


class Plan(Record):
    """What one handler is tried with."""

    handler: Handler
    tries: tuple[Try, ...]
    problems: tuple[str, ...] = ()


class Tried(Record):
    """What came of all."""

    exercises: tuple[Exercise, ...]
    """By handler in their order, and by event."""
    not_reviewed: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def cores() -> int:
    """Processors that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def plan(handler: Handler, bench: Bench, slot: Slot, timeout: float, names: Iterable[str] | None = None) -> Plan:
    """The events of a handler, and which of them are given again, without a network, and as in a build."""
    chosen = choose(handler.spec, bench.setting(slot), names)
    first = chosen.cases[:REPEATED]
    tries = [Try(handler, case, timeout=timeout) for case in chosen.cases]
    tries += [Try(handler, case, attempt=2, timeout=timeout) for case in first]
    tries += [Try(handler, case, egress_kind="none", timeout=timeout) for case in first]
    tries += [Try(handler, case.replace(name=case.name + IN_CI), timeout=timeout) for case in first[:1]]
    problems = []
    if chosen.left_out:
        problems.append(f"{handler.label}: not every event was given; left out: {', '.join(chosen.left_out)}")
    if chosen.forced:
        problems.append(
            f"{handler.label}: its matcher fits no event that is known here; it was given some all the same"
        )
    return Plan(handler, tuple(tries), tuple(problems))


class Crew:
    """Workers with a place each, and a queue of handlers."""

    def __init__(self, bench: Bench, plans: Sequence[Callable[[Slot], Plan]], budget: float | None) -> None:
        self.bench, self.budget = bench, budget
        self.began = time.monotonic()
        self.waiting: queue.SimpleQueue[tuple[int, Callable[[Slot], Plan]]] = queue.SimpleQueue()
        for item in enumerate(plans):
            self.waiting.put(item)
        self.news: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        self.stop = threading.Event()

    def work(self, slot: Slot) -> None:
        """One worker: handler after handler, each to its end. Whatever goes wrong is told, never raised."""
        while not self.stop.is_set():
            try:
                number, make = self.waiting.get_nowait()
            except queue.Empty:
                break
            try:
                self._handler(number, make(slot), slot)
            except BaseException as error:
                self.news.put((number, error))
                self.stop.set()
        self.news.put((-1, None))

    def _handler(self, number: int, planned: Plan, slot: Slot) -> None:
        self.news.put((number, planned))
        late = 0
        for each in planned.tries:
            if self.stop.is_set() or late >= MOST_TIMEOUTS or self._spent():
                break
            done = exercise(each, self.bench, slot, self.stop)
            if self.stop.is_set():
                break
            late += done.outcome == "timed_out"
            self.news.put((number, done))
        self.news.put((number, "late" if late >= MOST_TIMEOUTS else "over"))

    def _spent(self) -> bool:
        return self.budget is not None and time.monotonic() - self.began > self.budget


def try_all(
    bench: Bench,
    handlers: Sequence[Handler],
    *,
    timeout: float,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    cases: Iterable[str] | None = None,
) -> Tried:
    """Try every handler with all of its events. Raises what a worker raised (SandboxUnavailable)."""
    names = None if cases is None else tuple(cases)
    makers = [maker(each, bench, timeout, names) for each in handlers]
    return run_crew(bench, handlers, makers, budget, progress)


def maker(handler: Handler, bench: Bench, timeout: float, names: Iterable[str] | None) -> Callable[[Slot], Plan]:
    return lambda slot: plan(handler, bench, slot, timeout, names)


def try_again(
    bench: Bench,
    handlers: Sequence[Handler],
    policy: PolicyLike,
    *,
    timeout: float,
    cases: Iterable[str] | None = None,
) -> Tried:
    """Every event once, under another policy."""
    names = None if cases is None else tuple(cases)

    def make(handler: Handler) -> Callable[[Slot], Plan]:
        return lambda slot: under(policy, plan(handler, bench, slot, timeout, names))

    return run_crew(bench, handlers, [make(each) for each in handlers], None, None)


def under(policy: PolicyLike, planned: Plan) -> Plan:
    """The recorder's runs alone, once each, under another policy."""
    once = [each for each in planned.tries if each.attempt == 1 and each.egress_kind == "record"]
    return planned.replace(tries=tuple(each.replace(policy=policy) for each in once))


def run_crew(
    bench: Bench,
    handlers: Sequence[Handler],
    makers: Sequence[Callable[[Slot], Plan]],
    budget: float | None,
    progress: Callable[[Progress], None] | None,
) -> Tried:
    crew = Crew(bench, makers, budget)
    threads = [
        threading.Thread(target=crew.work, args=(slot,), name="stockade-review", daemon=True)
        for slot in bench.slots
    ]
    for thread in threads:
        thread.start()
    try:
        return collect(crew, handlers, len(threads), progress)
    finally:
        crew.stop.set()
        for thread in threads:
            thread.join()


def collect(
    crew: Crew, handlers: Sequence[Handler], workers: int, progress: Callable[[Progress], None] | None
) -> Tried:
    """Take what the workers tell, until all of them are through."""
    plans: dict[int, Plan] = {}
    done: dict[int, list[Exercise]] = {}
    ends: dict[int, object] = {}
    count = 0
    while workers:
        number, news = crew.news.get()
        if news is None:
            workers -= 1
        elif isinstance(news, Plan):
            plans[number] = news
        elif isinstance(news, Exercise):
            count += 1
            done.setdefault(number, []).append(news)
            if progress is not None:
                total = expected(plans, len(handlers))
                progress(Progress(count, max(total, count), news.handler, news.case))
        elif isinstance(news, BaseException):
            raise news
        else:
            ends[number] = news
    return summed(handlers, plans, done, ends)


def expected(plans: dict[int, Plan], handlers: int) -> int:
    """How many runs it will be: those planned, and as many for each handler that is still waiting."""
    known = sum(len(each.tries) for each in plans.values())
    return known + (handlers - len(plans)) * (known // max(1, len(plans)))


def summed(
    handlers: Sequence[Handler], plans: dict[int, Plan], done: dict[int, list[Exercise]], ends: dict[int, object]
) -> Tried:
    exercises: list[Exercise] = []
    left: list[tuple[str, str]] = []
    problems: list[str] = []
    for number, handler in enumerate(handlers):
        mine = done.get(number, [])
        planned = plans.get(number)
        exercises += mine
        problems += planned.problems if planned is not None else ()
        unseen = tuple(dict.fromkeys(each.incomplete for each in mine if each.incomplete))
        problems += [f"{handler.label}: {why}" for why in unseen]
        missing = len(planned.tries) - len(mine) if planned is not None else 0
        if planned is None or not planned.tries or not mine:
            why = "no event that is known here fits it" if planned is not None and not planned.tries else OVER
            left.append((handler.label, why))
        elif all(each.failed for each in mine):
            left.append((handler.label, mine[0].failed))
        elif unseen:
            left.append((handler.label, f"it was not seen to its end: {unseen[0]}"))
        if missing and mine and planned is not None:
            why = "it timed out" if ends.get(number) == "late" else OVER
            problems.append(f"{handler.label}: {missing} of {len(planned.tries)} runs were left out: {why}")
    return Tried(tuple(exercises), tuple(left), tuple(problems))


OVER = "the time for the review was over"
