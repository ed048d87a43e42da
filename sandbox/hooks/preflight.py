"""Whether what a hook is going to execute is there inside, looked up before it runs.

Without this, an interpreter that finds no script ends with 2, which hosts read as a deny, or with 1, which they
read as a go-ahead: an accident of the sandbox must be neither.
"""

from __future__ import annotations

from stockade.policies.errors import StockadeError
from stockade.sandbox.hooks.words import target
from stockade.sandbox.program import diagnose, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.plan import Plan

STATES = {
    "absent": ("does not exist", "Create it, or correct the hook's command."),
    "hidden": ("is not visible inside the sandbox", "Show it with --read, or set --root to the hook's own directory."),
    "denied": ("can't be reached by the sandbox's user", "Open its directories to others, or run as their owner."),
    "loop": ("is a circle of symlinks", "Mend the links."),
}  # fmt: skip


class PreflightFailed(StockadeError):
    """The hook's program or script is not there inside. Nothing was run."""


def inspect(plan: Plan) -> None:
    """Raises PreflightFailed, naming the path, when the hook can't work inside. For ``Order.inspect``."""
    env = dict(plan.env)
    # What this reads from is the box's own environment: a shell there would expand from nothing else.
    found = target(plan.argv, env)
    if found is None:
        return
    diagnosis = diagnose(found.program, path=env.get("PATH", ""), cwd=plan.cwd, view=plan.view)
    if diagnosis.code and found.program not in BUILTINS:
        raise PreflightFailed(f"could not run the hook: {diagnosis.reason}", remedy=diagnosis.remedy)
    if not found.script:
        return
    state = locate(found.script, cwd=plan.cwd, view=plan.view)
    if state != "there":
        about, remedy = STATES[state]
        raise PreflightFailed(f"could not run the hook: its script {found.script!r} {about}", remedy=remedy)


_BUILTINS = (
    ". : [ alias bg cd command echo eval exec exit export false fg getopts hash jobs kill printf pwd read readonly "
    "return set shift source test times trap true type ulimit umask unalias unset wait"
)
BUILTINS = frozenset(_BUILTINS.split())
"""A shell runs these itself."""
