"""One handler, run once for one event in the recorder, and everything that was seen of it."""

from __future__ import annotations

import os
import threading

from stockade.policies.errors import SandboxUnavailable, StockadeError
from stockade.policies.record import Record
from stockade.sandbox.conduct import carry_out
from stockade.sandbox.denials import Denial
from stockade.sandbox.hooks.commands import command_of, root_of
from stockade.sandbox.hooks.dialects import dialect as dialect_of
from stockade.sandbox.hooks.explain import explain_across
from stockade.sandbox.hooks.invoke import unwrapped
from stockade.sandbox.hooks.judge import judge
from stockade.sandbox.hooks.preflight import inspect
from stockade.sandbox.hooks.runhook import run_of
from stockade.sandbox.hooks.scripts import OWN_FOLDER
from stockade.sandbox.hooks.view import reads as shown
from stockade.sandbox.hooks.words import target
from stockade.sandbox.order import make_order
from stockade.sandbox.request import command_argv
from stockade.sandbox.review import canary, evidence, traced, wrapper
from stockade.sandbox.review.corpus import event_of
from stockade.sandbox.review.model import Exercise
from stockade.sandbox.review.stage import holds
from stockade.sandbox.stopper import Stopper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.hooks.model import HookEvent, HookRun, HookSpec
    from stockade.sandbox.order import Order, PolicyLike
    from stockade.sandbox.plan import Plan
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.review.bench import Bench, Slot
    from stockade.sandbox.review.model import Case, Handler

MOST_DISK = 64 << 20
"""Bytes that one run may leave in its project and home: nothing else bounds how many files it writes."""
MOST_OUTPUT = 16 << 10
IN_CI = "@ci"
"""Ends the name of a case that is given with the variables of a build server."""
CI: tuple[tuple[str, str], ...] = (
    ("CI", "true"), ("GITHUB_ACTIONS", "true"), ("GITHUB_REPOSITORY", "shop/orders-api"), ("GITHUB_RUN_ID", "7301"),
    ("RUNNER_OS", "Linux"), ("GITLAB_CI", "true"), ("BUILD_NUMBER", "118"),
)  # fmt: skip
ENV_FILE_EVENTS = ("SessionStart", "Setup", "CwdChanged", "FileChanged")
KILL = 9


class Try(Record):
    """What is to be done once."""

    handler: Handler
    case: Case
    attempt: int = 1
    egress_kind: str = "record"
    timeout: float = 5.0
    policy: PolicyLike = None
    """Another policy than the recorder's: does the handler still answer the same?"""


def exercise(attempt: Try, bench: Bench, slot: Slot, stop: threading.Event | None = None) -> Exercise:
    """Run it. What keeps it from being run is in ``failed``; raises SandboxUnavailable alone."""
    nothing = Exercise(
        attempt.handler.label, attempt.case.name, attempt.case.event, attempt.attempt, attempt.egress_kind
    )
    try:
        spec = bench.placed(unwrapped(attempt.handler.spec) or attempt.handler.spec, slot)
        bench.fill(slot, attempt.handler.spec)
        event = event_of(spec, attempt.case)
        with wrapper.Listener() as listener:
            order = order_of(attempt, spec, event, bench, slot)
            order = order.replace(wires=listener.wires())
            result, filled = watched(order, bench, slot, stop)
            after = listener.aftermath()
        return told(nothing, event, result, filled, after, bench, slot)
    except SandboxUnavailable:
        raise
    except (StockadeError, OSError) as error:
        return nothing.replace(failed=bench.plain(cause(error), slot))


def cause(error: Exception) -> str:
    """Why it could not be run, and what to do about it."""
    if not isinstance(error, StockadeError):
        return str(error)
    return f"{error.message}. {error.remedy}" if error.remedy else error.message


# --- before --------------------------------------------------------------------------------------------------


def order_of(attempt: Try, spec: HookSpec, event: HookEvent, bench: Bench, slot: Slot) -> Order:
    """The checked command with the wrapper around it. Raises RequestError, PolicyError."""
    language = dialect_of(spec.dialect)
    command = command_of(spec, event, language)
    argv = command_argv(language.shell_argv(command) if isinstance(command, str) else command)
    env = variables(spec, event, bench, in_ci=attempt.case.name.endswith(IN_CI))
    home, place = bench.inner_home, slot.project.path
    start = started_in(spec, bench)
    found = target(argv, {"HOME": home, **env})
    grants = shown(event.replace(transcript_path=""), root_of(spec), found, cwd=start or place, home=home)
    # What is reviewed was copied; no original is for the box to see, whatever a hooks file says is its script.
    grants = [grant for grant in grants if holds(bench.top, grant)]
    if bench.staged.files and not any(grant == bench.tree for grant in grants):
        grants.append(bench.tree)
    given = "hook" if attempt.policy is None else attempt.policy
    stdin = language.payload(event)
    order = make_order(
        wrapper.wrapped(argv, strace=bench.read_method == "strace"),
        policy=given, cwd=place, env=env, stdin=stdin,
    )  # fmt: skip
    policy = conditions(order.policy, attempt, bench, slot)

    def look(plan: Plan) -> None:
        inspect(plan.replace(argv=argv))

    return order.replace(
        request=order.request.replace(start=start),
        policy=policy.replace(read=(*policy.read, *grants)),
        inspect=look,
    )


def started_in(spec: HookSpec, bench: Bench) -> str:
    """Where the host starts it, if that is not the project: hosts that take the place of the hooks file."""
    folder = os.path.dirname(os.path.abspath(spec.source))
    return folder if spec.dialect in OWN_FOLDER and holds(bench.tree, folder) and os.path.isdir(folder) else ""


def conditions(policy: Resolved, attempt: Try, bench: Bench, slot: Slot) -> Resolved:
    """The recorder's policy; or another, which still gets neither the caller's home nor a way out."""
    limit = min(attempt.timeout, attempt.handler.spec.timeout or attempt.timeout)
    if attempt.policy is None:
        return bench.conditions(policy.replace(read=()), slot, attempt.egress_kind, limit)
    from stockade.sandbox.survey import absolute

    def outside(paths: tuple[str, ...]) -> tuple[str, ...]:
        whole = [(path, absolute(path, slot.project.path, bench.inner_home)) for path in paths]
        top = bench.inner_home
        return tuple(path for path, real in whole if real != top and not real.startswith(f"{top}/"))

    own_home = (
        policy.home == "empty" and outside(policy.read) == policy.read and outside(policy.write) == policy.write
    )
    return policy.replace(
        mode="auto",
        home="empty" if own_home else slot.home.path,
        read=outside(policy.read),
        write=outside(policy.write),
        egress="none" if policy.egress == "none" else "record",
        allow=(),
        timeout=min(limit, policy.timeout or limit),
    )


def variables(spec: HookSpec, event: HookEvent, bench: Bench, *, in_ci: bool) -> dict[str, str]:
    """The environment: the host's variables, the canaries, the handler's own."""
    env = dict(bench.bait.env)
    env |= dialect_of(spec.dialect).variables(event, root_of(spec))
    data = f"{bench.inner_home}/.claude/plugins/data/reviewed"
    if root_of(spec) and spec.dialect in ("claude", "codex"):
        env |= {"CLAUDE_PLUGIN_DATA": data} | ({"PLUGIN_DATA": data} if spec.dialect == "codex" else {})
    if spec.dialect == "claude" and event.name in ENV_FILE_EVENTS:
        env["CLAUDE_ENV_FILE"] = f"{bench.inner_home}/{canary.ENV_FILE}"
    return env | (dict(CI) if in_ci else {}) | dict(spec.env)


# --- the run -------------------------------------------------------------------------------------------------


def watched(order: Order, bench: Bench, slot: Slot, stop: threading.Event | None) -> tuple[RunResult, bool]:
    """Carry it out, and end it when it fills the disk or nobody wants it any more."""
    stopper = Stopper()
    over = threading.Event()
    filled = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if slot.project.size() + slot.home.size() > MOST_DISK:
                filled.set()
            if filled.is_set() or (stop is not None and stop.is_set()):
                stopper.request(KILL)
                return

    watcher = threading.Thread(target=watch, name="stockade-watch", daemon=True)
    watcher.start()
    try:
        result = carry_out(order, capture=True, stopper=stopper, leases=bench.pool)
    finally:
        over.set()
        watcher.join()
        stopper.close()
    return result, filled.is_set()


# --- afterwards ----------------------------------------------------------------------------------------------


def told(
    nothing: Exercise,
    event: HookEvent,
    result: RunResult,
    filled: bool,
    after: wrapper.Aftermath,
    bench: Bench,
    slot: Slot,
) -> Exercise:
    """Everything that was seen, as one record."""
    read_since = {f"~/{path}" for path in slot.home.read_since()} | slot.project.read_since()
    trace = without_wrapper(traced.parse(after.trace))
    run = run_of(result)
    files = evidence.touched(bench, slot, after.files)
    denials = (*result.denials, *(disk() if filled else ()))
    exercised = nothing.replace(
        outcome=result.outcome,
        exit_code=result.exit_code,
        duration=result.duration,
        enforcement=result.enforcement,
        egress=result.egress,
        touched=tuple(each for each, _data in files),
        reads=evidence.reads(bench, slot, trace, read_since),
        read_method=bench.read_method,
        opened=trace.looked_at(),
        commands=trace.command_lines(),
        sightings=evidence.sightings(bench, slot, result, trace, files),
        denials=denials,
        left_running=len(after.left),
        incomplete="; ".join((*cut_short(result, after, bench), *evidence.unsearched(result, files))),
        stdout=as_text(result.stdout),
        stderr=as_text(result.stderr),
    )
    return readable(judged(exercised, event, run, result), bench, slot)


def cut_short(result: RunResult, after: wrapper.Aftermath, bench: Bench) -> list[str]:
    """What a run kept us from seeing: what came in its way, and an end before that of what looks at what is left."""
    ended = result.outcome in ("exited", "signalled")
    why = wrapper.broken(after, strace=bench.read_method == "strace") if ended else ""
    return [each for each in (wrapper.seized(after), why) if each]


def readable(exercised: Exercise, bench: Bench, slot: Slot) -> Exercise:
    """Without the names of this review's directories: the next one has others."""

    def plain(text: str) -> str:
        return bench.plain(text, slot)

    return exercised.replace(
        egress=tuple(each.replace(data=plain(each.data)) for each in exercised.egress),
        touched=tuple(each.replace(diff=plain(each.diff)) for each in exercised.touched),
        sightings=tuple(
            each.replace(place=plain(each.place), excerpt=plain(each.excerpt)) for each in exercised.sightings
        ),
        opened=tuple(plain(each) for each in exercised.opened),
        commands=tuple(plain(each) for each in exercised.commands),
        stdout=plain(exercised.stdout),
        stderr=plain(exercised.stderr),
        reason=plain(exercised.reason),
        failed=plain(exercised.failed),
    )


def without_wrapper(trace: traced.Trace) -> traced.Trace:
    """What the handler did, without the shell that let it go."""
    return trace.replace(commands=tuple(words for words in trace.commands if words[2:3] != (wrapper.BARE,)))


def judged(exercised: Exercise, event: HookEvent, run: HookRun, result: RunResult) -> Exercise:
    """With what its answer counts for, here and with its host; or why there is none."""
    language = dialect_of(event.dialect)
    answer = language.decode(event.name, run)
    counted = judge(answer, run)
    reason = counted.reason if counted.verdict == "deny" and counted.reason else result.reason
    failed = result.reason if result.outcome in ("runner_failed", "lost", "not_executed") else ""
    return exercised.replace(
        reason=reason,
        decision=None if counted.verdict == "none" else counted.verdict,
        host_decision=None if answer.verdict == "none" else answer.verdict,
        across=across(run, event.name),
        answered=tuple(dict.fromkeys(each.code for each in answer.problems)),
        failed=failed,
    )


def across(run: HookRun, name: str) -> tuple[tuple[str, str], ...]:
    try:
        rows = explain_across(run, name)
    except StockadeError:
        return ()  # an event that no other host knows
    return tuple((each.dialect, each.effect) for each in rows if each.event)


def disk() -> tuple[Denial, ...]:
    about = f"wrote more than {MOST_DISK >> 20} MiB into its project and home, and was ended"
    return (Denial("limit", "observed", "disk", about, "A handler has no use for so much space."),)


def as_text(data: bytes) -> str:
    return data[:MOST_OUTPUT].decode("utf-8", "replace")
