"""``run`` and ``arun``: decide, start, supervise, and tell what happened."""

from __future__ import annotations

import os
import sys
import time

from stockade.policies.capability import needs, settle
from stockade.policies.decide import decide, warn_if_off
from stockade.policies.errors import RequestError, RunnerFailed, SandboxUnavailable
from stockade.policies.record import Record
from stockade.sandbox import policycache
from stockade.sandbox.classify import Case, classify
from stockade.sandbox.confinement import Confinement, prepare
from stockade.sandbox.denials import find_denials
from stockade.sandbox.engine import Finished, Io, execute
from stockade.sandbox.program import Diagnosis, diagnose
from stockade.sandbox.request import make_request
from stockade.sandbox.result import RunResult, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    from stockade.policies.capability import Settlement
    from stockade.policies.model import Policy
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.host import Host
    from stockade.sandbox.launch import Launch
    from stockade.sandbox.request import Request
    from stockade.sandbox.supervise import Stopper
    from stockade.sandbox.writes import Manifest, WrittenFile

    Command = str | Sequence[str | bytes]
    PolicyLike = str | os.PathLike[str] | Policy | None
    Input = bytes | str | int | IO[bytes] | None

QUOTED = 300
"""Characters of bubblewrap's own words in a reason."""


class Order(Record):
    """A checked request with its policy: everything that is decided before the host is asked."""

    request: Request
    policy: Resolved
    trusted: bool
    stdin: bytes | int | None


def run(
    command: Command,
    *,
    policy: PolicyLike = None,
    mode: str | None = None,
    trusted: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Input = None,
    timeout: float | str | None = None,
    allow: Iterable[str] = (),
    record_egress: bool = False,
    write: Iterable[str | os.PathLike[str]] = (),
    check: bool = False,
) -> RunResult:
    """Run a command nobody here wrote, confined, and say truthfully what happened.

    command: a string runs through ``/bin/sh -c``; a sequence is executed directly.
    policy: a preset's name, the path of a policy file, or a ``Policy``; ``read-only`` if None.
    mode: ``auto``, ``strict`` or ``off``; None takes the policy's, or else follows ``trusted``.
    trusted: whether the command is the caller's own. Trusted and no mode: run directly, unconfined.
    cwd: where it runs, and the workspace. The current directory if None.
    env: variables set for the program on top of what the policy passes.
    stdin: bytes or text to feed, an open file or descriptor to hand on, or None for nothing.
    timeout: seconds (or ``"10s"``), over the policy's.
    allow: hosts that may be reached (implies ``egress = allow``).
    record_egress: let nothing out, and record every attempt.
    write: more paths that may be written.
    check: raise ``RunnerFailed`` when the sandbox itself failed.

    Raises RequestError and PolicyError for what can't be used, SandboxUnavailable when the host can't enforce
    the policy; nothing was run then.
    """
    options = call_options(mode=mode, timeout=timeout, allow=allow, record_egress=record_egress, write=write)
    order = make_order(command, policy=policy, trusted=trusted, cwd=cwd, env=env, stdin=stdin, options=options)
    result = carry_out(order, capture=True)
    if check and result.outcome == "runner_failed":
        raise RunnerFailed(f"could not run {order.request.argv[0]!r}: {result.reason}", result=result)
    return result


async def arun(command: Command, **options: object) -> RunResult:
    """``run``, awaitable, with the same arguments. Cancelling kills the whole run before it returns."""
    import asyncio

    from stockade.sandbox.supervise import Stopper

    stopper = Stopper()
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, lambda: run_stoppable(command, stopper, **options))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stopper.request(9)
        await asyncio.wait([work])
        work.exception()
        raise
    finally:
        stopper.close()


def run_stoppable(command: Command, stopper: Stopper, *, check: bool = False, **options: object) -> RunResult:
    """``run`` with a way to stop it from another thread."""
    given = {name: options.pop(name, None) for name in ("mode", "timeout")}
    lists = {name: options.pop(name, ()) for name in ("allow", "write")}
    merged = call_options(**given, **lists, record_egress=bool(options.pop("record_egress", False)))  # type: ignore[arg-type]
    order = make_order(command, options=merged, **options)  # type: ignore[arg-type]
    result = carry_out(order, capture=True, stopper=stopper)
    if check and result.outcome == "runner_failed":
        raise RunnerFailed(f"could not run {order.request.argv[0]!r}: {result.reason}", result=result)
    return result


def call_options(
    *,
    mode: str | None,
    timeout: float | str | None,
    allow: Iterable[str],
    record_egress: bool,
    write: Iterable[str | os.PathLike[str]],
) -> dict[str, object]:
    """The arguments of a call as the option layer of its policy."""
    options: dict[str, object] = {}
    hosts, paths = words(allow, "allow"), words(write, "write")
    if mode is not None:
        options["mode"] = mode
    if timeout is not None:
        options["limits.timeout"] = timeout
    if hosts and record_egress:
        raise RequestError("could not combine allow and record_egress: recording lets nothing out", remedy="Use one of them.")
    if hosts:
        options |= {"network.egress": "allow", "network.allow": hosts}
    if record_egress:
        options["network.egress"] = "record"
    if paths:
        options["filesystem.write"] = paths
    return options


def words(values: Iterable[str | os.PathLike[str]], what: str) -> list[str]:
    """A list of texts; a single string is a mistake that would be read letter by letter."""
    if isinstance(values, str | bytes):
        raise RequestError(f"could not use {what}={values!r}: it is one text, not a list", remedy=f"Write {what}=[...].")
    return [os.fspath(value) for value in values]


def make_order(
    command: Command,
    *,
    policy: PolicyLike = None,
    trusted: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Input = None,
    options: Mapping[str, object] | None = None,
) -> Order:
    """Check everything that can be checked without the host."""
    request = make_request(command, cwd=cwd, env=env)
    named = os.fspath(policy) if isinstance(policy, str | os.PathLike) else None
    given = None if named is not None or policy is None else policy
    resolved = policycache.resolved(named, given, request.cwd, options or {})  # type: ignore[arg-type]
    return Order(request, resolved, bool(trusted), input_of(stdin))


def input_of(stdin: Input) -> bytes | int | None:
    """What to do about the program's standard input."""
    if stdin is None or isinstance(stdin, int):
        return stdin
    if isinstance(stdin, str):
        return stdin.encode()
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    try:
        return stdin.fileno()
    except (AttributeError, OSError):
        raise RequestError(f"could not use stdin: {type(stdin).__name__} has no descriptor", remedy="Pass bytes, text or an open file.") from None


def carry_out(
    order: Order,
    *,
    capture: bool,
    stopper: Stopper | None = None,
    fork: bool = False,
    terminal: bool = False,
) -> RunResult:
    """Decide and run. ``fork``: this process is single-threaded and ours (the command line)."""
    began = time.monotonic()
    settled, host = judge(order)
    io = Io(order.stdin, capture, order.policy.output, terminal)
    deadline = None if order.policy.timeout is None else began + order.policy.timeout
    if settled is None:
        warn_once(order, plainly=fork)
        return direct(order, io, deadline, stopper, fork=fork)
    return confined(order, io, settled, host, deadline, stopper, fork=fork)


def judge(order: Order) -> tuple[Settlement | None, Host | None]:
    """None where the command runs directly; else what the host can enforce. Raises SandboxUnavailable."""
    if decide(order.policy.mode, order.trusted, "full") == "direct":
        return None, None
    from stockade.sandbox import probe
    from stockade.sandbox.survey import identify

    host = probe.known(leased=order.policy.egress != "none")
    identity = identify(order.policy, order.request.cwd)
    settled = settle(
        host.by_name(), needs(order.policy, real_root=identity.real_root, keep_root=identity.kept_root)
    )
    if decide(order.policy.mode, order.trusted, settled.level) == "refuse":
        raise refusal(order, settled)
    return settled, host


def refusal(order: Order, settled: Settlement) -> SandboxUnavailable:
    mode = order.policy.mode or "auto"
    causes = "; ".join(f"{each.name}: {each.state} ({each.detail})" for each in settled.missing)
    remedies = list(dict.fromkeys(each.remedy for each in settled.missing if each.remedy))
    return SandboxUnavailable(
        f"could not confine the command as its policy asks (mode {mode}): {causes}",
        mode=mode,
        missing=tuple(each.name for each in settled.missing),
        remedy=" ".join(remedies) or "Run `stockade doctor`.",
    )


def confined(
    order: Order,
    io: Io,
    settled: Settlement,
    host: Host | None,
    deadline: float | None,
    stopper: Stopper | None,
    *,
    fork: bool,
) -> RunResult:
    assert host is not None
    assert host.bwrap is not None
    start = prepare(
        order.policy,
        order.request,
        host.bwrap,
        fresh_proc=host.has("proc"),
        use_filter=host.has("seccomp"),
    )
    plan = start.plan
    diagnosis = diagnose(plan.argv[0], path=dict(plan.env).get("PATH", ""), cwd=plan.cwd, view=plan.view)
    if io.terminal:
        start = with_terminal(start)
    before = manifest(start)
    finished = execute(
        start.job,
        io,
        confined=True,
        deadline=deadline,
        stopper=stopper,
        process_limit=start.process_limit,
        fork=fork,
    )
    if not finished.evidence.released and not finished.evidence.stop_signal:
        from stockade.sandbox import probe

        probe.forget()
    return verdict(order, finished, diagnosis, settled=settled, notes=plan.notes, before=before, start=start)


def with_terminal(start: Confinement) -> Confinement:
    """Make the program the leader of a session of its own with its terminal: job control needs that."""
    plan = start.plan
    for path in ("/usr/bin/setsid", "/bin/setsid"):
        if plan.view(path) and os.access(path, os.X_OK):
            return start.replace(plan=plan.replace(argv=(path, "--ctty", *plan.argv)))
    return start.replace(plan=plan.replace(notes=(*plan.notes, "no job control: setsid is not visible inside")))


def manifest(start: Confinement) -> Manifest | None:
    """The writable places before the run; None where nothing of the host can be written."""
    if not start.plan.writable:
        return None
    from stockade.sandbox import writes

    return writes.take(start.plan.writable)


def direct(order: Order, io: Io, deadline: float | None, stopper: Stopper | None, *, fork: bool) -> RunResult:
    """Run unconfined, with the caller's own environment."""
    env = {**os.environ, **dict(order.request.env)}
    path = env.get("PATH", os.defpath)
    diagnosis = diagnose(order.request.argv[0], path=path, cwd=order.request.cwd, view=as_on_host)
    program = diagnosis.found or order.request.argv[0]

    def job(_into: Launch) -> dict[str, object]:
        return {
            "confined": False,
            "program": os.fsencode(program),
            "argv": [os.fsencode(word) for word in order.request.argv],
            "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            "cwd": os.fsencode(order.request.cwd),
            "credentials": None,
            "limits": [],
            "stubs": [],
            "staged": [],
            "stage": "",
            "terminal": None,
        }

    finished = execute(job, io, confined=False, deadline=deadline, stopper=stopper, fork=fork)
    return verdict(order, finished, diagnosis, settled=None, notes=(), before=None, start=None)


def as_on_host(path: str) -> str | None:
    return path if os.path.lexists(path) else None


def verdict(
    order: Order,
    finished: Finished,
    diagnosis: Diagnosis,
    *,
    settled: Settlement | None,
    notes: tuple[str, ...],
    before: Manifest | None,
    start: Confinement | None,
) -> RunResult:
    """Evidence to result."""
    from stockade.sandbox.cli.style import escape

    evidence = finished.evidence
    out = finished.stdout.data if finished.stdout else b""
    err = finished.stderr.data if finished.stderr else b""
    unstarted = evidence.exit_code is None
    case = Case(
        evidence=evidence,
        confined=settled is not None,
        diagnosis=diagnosis,
        message=escape(err.decode("utf-8", "replace").strip()[-QUOTED:]) if unstarted else "",
        timeout=order.policy.timeout,
    )
    outcome = classify(case)
    denials = find_denials(outcome, egress=order.policy.egress, streams=(err, out), quote=escape) if settled else ()
    files, more = written(before, start)
    return RunResult(
        outcome=outcome.outcome,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        returncode=outcome.returncode,
        reason=outcome.reason,
        started=outcome.started,
        denied=bool(denials),
        denials=denials,
        stdout=out,
        stderr=err,
        stdout_truncated=bool(finished.stdout and finished.stdout.truncated),
        stderr_truncated=bool(finished.stderr and finished.stderr.truncated),
        stdout_bytes=finished.stdout.total if finished.stdout else 0,
        stderr_bytes=finished.stderr.total if finished.stderr else 0,
        egress=(),
        egress_dropped=None,
        files_written=files,
        enforcement=settled.level if settled else "none",
        degraded=tuple(f"{each.name}: {each.detail}" for each in settled.missing) if settled else (),
        notes=(*notes, *more),
        usage=Usage(evidence.cpu, evidence.peak, evidence.processes or int(outcome.started)),
        duration=finished.duration,
        policy=order.policy,
        argv=order.request.argv,
        rule=outcome.rule,
    )


def written(
    before: Manifest | None, start: Confinement | None
) -> tuple[tuple[WrittenFile, ...] | None, tuple[str, ...]]:
    """Files written, and what to know about the list. None: not recorded. A read-only view leaves nothing to write."""
    if start is None:
        return None, ()
    if before is None:
        return (), ()
    from stockade.sandbox import writes

    after = writes.take(start.plan.writable)
    if not (before.complete and after.complete):
        return None, ("files written are not known: the writable directories hold too many files",)
    return tuple(writes.changed(before, after)), ()


_warned = False


def warn_once(order: Order, *, plainly: bool) -> None:
    """Foreign code that runs unconfined is said once per process, with the setting that did it.

    ``plainly``: a line on stderr, for the command line; a library call warns the Python way.
    """
    global _warned  # noqa: PLW0603
    setting = dict(order.policy.origin).get("mode", "the call")
    text = warn_if_off(order.policy.mode, order.trusted, setting)
    if text is None or _warned:
        return
    _warned = True
    if plainly:
        sys.stderr.write(f"stockade: warning: {text}\n")
        return
    import warnings

    warnings.warn(text, RuntimeWarning, stacklevel=4)
