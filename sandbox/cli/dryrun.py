"""``stockade run --dry-run``: the plan with a reason for each mount, and a bwrap line that can be pasted."""

from __future__ import annotations

import sys

from stockade.sandbox import replay
from stockade.sandbox.cli import exits
from stockade.sandbox.cli.document import render
from stockade.sandbox.cli.style import colour_on, escape, paint, table
from stockade.sandbox.conduct import judge
from stockade.sandbox.confinement import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.order import Order


SCHEMA = "stockade.plan/1"


def show(order: Order, *, as_json: bool) -> int:
    settled, host = judge(order)
    if settled is None and as_json:
        direct = {"argv": order.request.argv, "cwd": order.request.cwd, "confined": False}
        sys.stdout.write(render({"schema": SCHEMA, **direct}))
        return exits.OK
    if settled is None:
        sys.stdout.write("The command would run directly, unconfined: it is trusted, or the mode is off.\n")
        return exits.OK
    assert host is not None
    assert host.bwrap is not None
    start = prepare(
        order.policy, order.request, host.bwrap, fresh_proc=host.has("proc"), use_filter=host.has("seccomp")
    )
    line = replay.line(start)
    sys.stdout.write(render(document(start, line)) if as_json else text(start, line, settled.level))
    return exits.OK


def document(start: Confinement, line: str) -> dict[str, object]:
    return {"schema": SCHEMA, "confined": True, "bwrap": start.bwrap.path, **start.plan.as_dict(), "replay": line}


def text(start: Confinement, line: str, level: str) -> str:
    on = colour_on(sys.stdout)
    plan = start.plan
    rows = [[mount.op, mount.dest, mount.reason] for mount in plan.mounts]
    missing = "the leased network, the syscall filter" if plan.leased else "the syscall filter"
    parts = [
        paint("mounts", "bold", on),
        table(rows, on),
        paint("environment", "bold", on),
        "\n".join(f"  {escape(name)}={escape(value)}" for name, value in plan.env),
        paint("process", "bold", on),
        f"  directory {escape(plan.cwd)}, enforcement {level}, syscall filter {plan.seccomp}",
        f"  limits {', '.join(f'{name}={value}' for name, value in plan.limits)}",
        *(f"  note: {escape(note)}" for note in plan.notes),
        paint(f"the same by hand (without {missing}, limits and supervision)", "bold", on),
        line,
    ]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"
