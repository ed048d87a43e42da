"""Put a policy in force for a request: survey, plan, filter, start. Shared by runs and by the probe."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox import launch, seccomp, state
from stockade.sandbox.evidence import Bounds
from stockade.sandbox.mounts import TMPFS
from stockade.sandbox.plan import UNBOUND, Plan, check_visible, make_plan
from stockade.sandbox.survey import identify, survey
from stockade.sandbox.tree import HostTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.netns.lease import Lease
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.bwrap import Bwrap
    from stockade.sandbox.request import Request
    from stockade.sandbox.survey import Identity


class Confinement(Record):
    """A planned confined start: the plan, the binary, the compiled filter (empty: none)."""

    plan: Plan
    bwrap: Bwrap
    filter_program: bytes
    identity: Identity

    def job(self, into: launch.Launch, lease: Lease | None = None) -> dict[str, Any]:
        """The keeper's job; descriptors are opened and added to ``into``. A leased plan needs its lease."""
        assert self.plan.leased == (lease is not None)
        return launch.confined_job(
            self.plan,
            self.bwrap.path,
            into,
            filter_program=self.filter_program,
            by_descriptor=self.bwrap.has("--bind-fd") and self.bwrap.has("--ro-bind-fd"),
            lease=lease,
        )

    @property
    def process_limit(self) -> int | None:
        return dict(self.plan.limits).get("NPROC")

    def bounds(self, cpu: float | None) -> Bounds:
        """What to look at from outside during the run; ``cpu`` in seconds."""
        plan, limits = self.plan, dict(self.plan.limits)
        places = tuple(each.dest for each in plan.mounts if each.op == TMPFS and each.size and not each.frozen)
        free, processes = UNBOUND in plan.notes, limits.get("NPROC")
        return Bounds(cpu, None if free else processes, limits.get("NOFILE"), places, processes if free else None)


def prepare(
    policy: Resolved, request: Request, bwrap: Bwrap, *, fresh_proc: bool = True, use_filter: bool = True
) -> Confinement:
    """Plan a confined start. Raises StockadeError where the policy can't be put in force.

    ``fresh_proc`` and ``use_filter`` are False on hosts that can't give them; the caller says so in the result.
    """
    identity = identify(policy, request.cwd)
    facts = survey(policy, request, bwrap, identity, fresh_proc=fresh_proc)
    plan = make_plan(policy, request, facts, HostTree())
    check_visible(plan, plan.cwd)
    program = seccomp.load_filter(policy.syscalls, state.cache_dir()) if use_filter else b""
    return Confinement(plan, bwrap, program, identity)
