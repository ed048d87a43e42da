"""Carry out an order: decide between direct, confined and refused, and run it that way."""

from __future__ import annotations

import os
import sys
import time

from stockade.policies.capability import needs, settle
from stockade.policies.decide import decide, warn_if_off
from stockade.policies.errors import SandboxUnavailable
from stockade.sandbox.confinement import Confinement, prepare
from stockade.sandbox.engine import Finished, Io, execute, not_started
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.mounts import BIND, BIND_RO, MASK, OVERLAY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.lease import Lease, Report
    from stockade.netns.pool import LeasePool
    from stockade.policies.capability import Settlement
    from stockade.sandbox.edge.session import Edge
    from stockade.sandbox.host import Host
    from stockade.sandbox.launch import Launch
    from stockade.sandbox.order import Order
    from stockade.sandbox.overlay import Layer
    from stockade.sandbox.plan import Plan
    from stockade.sandbox.program import Diagnosis
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.stopper import Stopper
    from stockade.sandbox.writes import Manifest


def carry_out(
    order: Order,
    *,
    capture: bool,
    stopper: Stopper | None = None,
    plain_warnings: bool = False,
    terminal: bool = False,
    leases: LeasePool | None = None,
) -> RunResult:
    """Decide and run. ``plain_warnings``: on stderr as a line, for the command line."""
    began = time.monotonic()
    settled, host = judge(order)
    io = Io(order.stdin, capture, order.policy.output, terminal, order.wires)
    deadline = None if order.policy.timeout is None else began + order.policy.timeout
    if settled is None:
        warn_once(order, plainly=plain_warnings)
        return direct(order, io, deadline, stopper)
    return confined(order, io, settled, host, deadline, stopper, leases)


def judge(order: Order) -> tuple[Settlement | None, Host | None]:
    """None where the command runs directly; else what the host can enforce. Raises SandboxUnavailable."""
    if decide(order.policy.mode, order.trusted, "full") == "direct":
        return None, None
    from stockade.sandbox import probe
    from stockade.sandbox.survey import identify

    host = probe.known(
        leased=order.policy.egress != "none",
        overlaid=order.policy.workspace == "overlay",
        edged=bool(order.policy.edge),
    )
    identity = identify(order.policy, order.request.cwd)
    settled = settle(
        host.by_name(), needs(order.policy, real_root=identity.real_root, keep_root=identity.kept_root)
    )
    if decide(order.policy.mode, order.trusted, settled.level) == "refuse":
        raise refusal(order, settled)
    return settled, host


def refusal(order: Order, settled: Settlement) -> SandboxUnavailable:
    mode = order.policy.mode or "auto"
    tried = [each for each in settled.missing if not each.detail.startswith("not tried")]
    causes = "; ".join(f"{each.name}: {each.state} ({each.detail})" for each in tried or settled.missing)
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
    leases: LeasePool | None = None,
) -> RunResult:
    if order.policy.egress == "none":
        return boxed(order, io, settled, host, deadline, stopper, lease=None)
    from stockade.sandbox.lessor import make_lease
    from stockade.sandbox.survey import identify

    fresh = make_lease(order.policy, identify(order.policy, order.request.cwd).credentials)
    with fresh if leases is None else leases.take(fresh) as lease:
        edge = None
        try:
            lease.start()
            if lease.spec.edge:
                from stockade.sandbox.edge import session

                edge = session.begin(lease.spec, deadline)
                lease.edge = edge.session
        except OSError as error:
            raise not_started(error) from None
        return boxed(order, io, settled, host, deadline, stopper, lease=lease, edge=edge)


def boxed(
    order: Order,
    io: Io,
    settled: Settlement,
    host: Host | None,
    deadline: float | None,
    stopper: Stopper | None,
    *,
    lease: Lease | None,
    edge: Edge | None = None,
    again: bool = True,
) -> RunResult:
    """Run in a box. A started ``lease`` gets ready while the run is being planned.

    ``again``: plan once more if nothing ran because something that was to be covered has gone meanwhile.
    """
    assert host is not None
    assert host.bwrap is not None
    fresh_proc, use_filter = host.has("proc"), host.has("seccomp")
    start = prepare(order.policy, order.request, host.bwrap, fresh_proc=fresh_proc, use_filter=use_filter)
    if edge is not None:
        start = start.replace(plan=edge.equip(start.plan))
    plan = start.plan
    if order.inspect is not None:
        order.inspect(plan)
    diagnosis = None
    if leads_terminal(io):
        diagnosis = diagnosed(plan)
        if diagnosis.code == 0:  # else setsid would be what was executed
            start = with_terminal(start)
    if order.policy.workspace == "overlay":
        from stockade.sandbox import overlay

        layer, start = overlay.begin(start, host.upper)
        with layer:
            result = layer.hand_over(started(order, io, settled, start, diagnosis, deadline, stopper, lease, layer))
    else:
        result = started(order, io, settled, start, diagnosis, deadline, stopper, lease)
    if edge is not None and (more := edge.notes(plan)):
        result = result.replace(notes=(*result.notes, *more))
    if again and result.rule == "never_executed" and not io.terminal and lease is None and vanished(start):
        return boxed(order, io, settled, host, deadline, stopper, lease=None, again=False)
    if result.outcome == "runner_failed":
        from stockade.sandbox import probe

        probe.forget()
        if result.rule == "never_executed" and (source := vanished_source(start)):
            about = f"{source!r}, which was to be shown inside, has vanished"
            return result.replace(reason=f"could not start the sandbox: {about} ({result.reason})")
    return result


def started(
    order: Order,
    io: Io,
    settled: Settlement,
    start: Confinement,
    diagnosis: Diagnosis | None,
    deadline: float | None,
    stopper: Stopper | None,
    lease: Lease | None,
    layer: Layer | None = None,
) -> RunResult:
    """Carry a planned start out, to its verdict. ``diagnosis``: made while the box is being set up where it is None."""
    before = manifest(start)

    def meanwhile() -> None:
        nonlocal diagnosis
        load_verdict(leased=lease is not None)
        diagnosis = diagnosis or diagnosed(start.plan)

    def job(launch: Launch) -> dict[str, object]:
        whole = start.job(launch, lease)
        return whole if layer is None else layer.job(whole, launch)

    finished = in_lease(lease, deadline) or execute(
        job,
        io,
        confined=True,
        deadline=deadline,
        stopper=stopper,
        process_limit=start.process_limit,
        bounds=start.bounds(order.policy.cpu),
        meanwhile=meanwhile,
        lease=lease,
        confirm=None if layer is None else layer.confirm,
    )
    finished, report, more = closed_lease(lease, finished)
    from stockade.sandbox.verdict import verdict

    notes = (*start.plan.notes, *more)
    diagnosis = diagnosis or diagnosed(start.plan)
    return verdict(
        order, finished, diagnosis, settled=settled, notes=notes, before=before, start=start, report=report
    )


def diagnosed(plan: Plan) -> Diagnosis:
    """Why the program can't be executed, as far as that can be seen. To be asked before it is let go."""
    from stockade.sandbox.program import diagnose

    return diagnose(plan.argv[0], path=dict(plan.env).get("PATH", ""), cwd=plan.cwd, view=plan.view)


def vanished(start: Confinement) -> bool:
    """Whether a file or socket that a mask was planned for is gone: other programs come and go while we look."""
    return any(mount.op == MASK and not os.path.lexists(mount.dest) for mount in start.plan.mounts)


def vanished_source(start: Confinement) -> str:
    """A place of the host that was planned to be shown and is gone; empty when all are there but our stand-ins."""
    shown = (mount.source for mount in start.plan.mounts if mount.op in (BIND, BIND_RO, OVERLAY))
    own = set(start.plan.stubs)
    return next((source for source in shown if source not in own and not os.path.lexists(source)), "")


def in_lease(lease: Lease | None, deadline: float | None) -> Finished | None:
    """None when the lease can be entered, or none is needed; else the end of a run that never began."""
    if lease is None:
        return None
    from stockade.netns.errors import LeaseFailed, LeaseLate

    try:
        lease.wait_rules(deadline)
    except LeaseFailed as error:
        late = isinstance(error, LeaseLate) and deadline is not None and time.monotonic() >= deadline
        evidence = Evidence(deadline_passed=True) if late else Evidence(lease_failure=error.message)
        return Finished(evidence, None, None, 0.0)
    return None


def closed_lease(lease: Lease | None, finished: Finished) -> tuple[Finished, Report | None, tuple[str, ...]]:
    """What the lease tells at its end. One that broke during the run outranks what the program made of it."""
    if lease is None or lease.service is None or finished.evidence.lease_failure:
        return finished, None, ()
    from stockade.netns.lease import EDGE

    if finished.evidence.lease_lost not in ("", EDGE):  # the lease itself is whole without the edge, and tells
        return finished, None, ()
    from stockade.netns.errors import LeaseFailed

    report: Report | None = None
    notes: tuple[str, ...] = ()
    try:
        report = lease.finish()
    except LeaseFailed as error:
        notes = (f"what was contacted is not known: {error.message}",)
    if lost := lease.lost():
        return finished.replace(evidence=finished.evidence.replace(lease_lost=lost)), report, notes
    return finished, report, notes


def load_verdict(*, leased: bool = False) -> None:
    """Import what comes after the run while the box is being set up."""
    from stockade.sandbox import verdict  # noqa: F401

    if leased:
        from stockade.netns import counters, egress  # noqa: F401


def leads_terminal(io: Io) -> bool:
    """Whether the program's standard input is a terminal; setsid takes no other, and nobody could type anyway."""
    return io.terminal and isinstance(io.stdin, int) and os.isatty(io.stdin)


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


def direct(order: Order, io: Io, deadline: float | None, stopper: Stopper | None) -> RunResult:
    """Run unconfined, with the caller's own environment."""
    from stockade.sandbox.program import diagnose

    env = {**os.environ, **dict(order.request.env)}
    path = env.get("PATH", os.defpath)
    cwd = order.request.start or order.request.cwd
    diagnosis = diagnose(order.request.argv[0], path=path, cwd=cwd, view=as_on_host)
    program = diagnosis.found or order.request.argv[0]

    def job(_into: Launch) -> dict[str, object]:
        return {
            "confined": False,
            "program": os.fsencode(program),
            "argv": [os.fsencode(word) for word in order.request.argv],
            "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            "cwd": os.fsencode(cwd),
            "credentials": None,
            "limits": [],
            "stubs": [],
            "staged": [],
            "stage": "",
            "terminal": None,
            "lease": None,
        }

    finished = execute(job, io, confined=False, deadline=deadline, stopper=stopper, meanwhile=load_verdict)
    from stockade.sandbox.verdict import verdict

    return verdict(order, finished, diagnosis, settled=None, notes=(), before=None, start=None)


def as_on_host(path: str) -> str | None:
    return path if os.path.lexists(path) else None


_warned = False


def warn_once(order: Order, *, plainly: bool) -> None:
    """Foreign code that runs unconfined is said once per process, with the setting that did it.

    ``plainly``: a line on stderr, for the command line; a library call warns the Python way.
    """
    global _warned
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
