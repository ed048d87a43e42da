"""``review``: every handler of a tree found, exercised in the recorder, and judged."""

from __future__ import annotations

import time

from stockade.sandbox.review.model import Review

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from stockade.sandbox.order import PolicyLike
    from stockade.sandbox.review.bench import Bench
    from stockade.sandbox.review.discovery import Discovery
    from stockade.sandbox.review.model import Exercise, Handler
    from stockade.sandbox.review.parallel import Progress

TIMEOUT = 5.0
"""Seconds for one run."""


def review(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    timeout: float = TIMEOUT,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    dialect: str | None = None,
    cases: Iterable[str] | None = None,
    then: Callable[[Bench, Review], Review] | None = None,
) -> Review:
    """Find the handlers of a plugin, repository, hooks file or script, run each in the recorder, and judge.

    jobs: runs at once; as many as there are cores if None.
    timeout: seconds for each run, at most; a handler's own, where it is shorter.
    budget: seconds for all runs; what is left then is said, and a handler that was not tried is not reviewed.
    progress: called from this thread after each run.
    dialect: whose hooks they are, where the file does not tell.
    cases: names of the only events to give (``corpus.names_of_cases``); None: those that fit each handler.
    then: called with what is still set up and the review, whose result is returned: for runs under another policy.

    Raises RequestError for arguments that can't be used, SandboxUnavailable where nothing can be confined or recorded.
    """
    began = time.monotonic()
    found = discovered(path, dialect, cases)
    runnable = runnable_of(found)
    if not runnable:
        return settled(found, began)
    from stockade.sandbox.review.bench import Bench
    from stockade.sandbox.review.parallel import cores, try_all

    with Bench(found, min(jobs or cores(), len(runnable))) as bench:
        tried = try_all(bench, runnable, timeout=timeout, budget=budget, progress=progress, cases=cases)
        made = settled(found, began, tried.exercises).replace(
            not_reviewed=(*found.not_reviewed, *tried.not_reviewed),
            problems=(*found.problems, *bench.problems, *tried.problems),
            canaries=tuple((each.name, each.place) for each in bench.bait.canaries),
            read_method=bench.read_method,
        )
        return made if then is None else then(bench, made)


def discovered(path: str | os.PathLike[str], dialect: str | None, cases: Iterable[str] | None) -> Discovery:
    from stockade.policies.errors import RequestError
    from stockade.sandbox.review import corpus, discovery

    known = corpus.names_of_cases()
    for name in cases or ():
        if name not in known:
            raise RequestError(
                f"could not use the case {name!r}: there is none", remedy=f"Known: {', '.join(known)}."
            )
    return discovery.find(path, dialect)


def runnable_of(found: Discovery) -> list[Handler]:
    from stockade.sandbox.review.discovery import runs

    return [each for each in found.handlers if runs(each)]


def settled(found: Discovery, began: float, exercises: tuple[Exercise, ...] = ()) -> Review:
    """A review with its findings."""
    from stockade.sandbox.review import findings

    return Review(
        path=found.path,
        handlers=found.handlers,
        exercises=exercises,
        findings=tuple(findings.find(found.handlers, exercises, sources=sources(found), root=found.root)),
        not_reviewed=found.not_reviewed,
        problems=found.problems,
        duration=time.monotonic() - began,
        version=version(),
    )


def sources(found: Discovery) -> dict[str, str]:
    """The texts of the handlers' scripts, by the path that the report has for them; of none outside of the tree: lines
    of them are shown, and a hooks file may name whatever it likes."""
    import os

    from stockade.sandbox.hooks.scripts import read_text
    from stockade.sandbox.review.discovery import is_own

    named = [(path, os.path.join(found.root, path), each) for each in found.handlers for path in each.scripts]
    own = {path: whole for path, whole, each in named if is_own(whole, each.spec, found.root)}
    return {path: read_text(whole) for path, whole in own.items()}


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("stockade")
    except PackageNotFoundError:
        return ""


def exercise_again(
    handlers: Sequence[Handler],
    bench: Bench,
    *,
    policy: PolicyLike,
    timeout: float = TIMEOUT,
    cases: Iterable[str] | None = None,
) -> tuple[Exercise, ...]:
    """The same events under another policy, one that was suggested, say: does a handler answer as before?

    ``policy``: a preset, a file or a ``Policy``. Whatever it grants, nothing leaves: hosts are recorded, not reached, and
    the home is that of the canaries. To be called from ``review(then=...)``.
    """
    from stockade.sandbox.review.parallel import try_again

    return try_again(bench, handlers, policy, timeout=timeout, cases=cases).exercises
