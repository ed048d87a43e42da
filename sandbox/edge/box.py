"""What the edge changes of a planned box: it trusts the authority of the run, and no source of a secret is in it."""

from __future__ import annotations

import os

from stockade.policies.errors import RequestError
from stockade.policies.text import quoted
from stockade.sandbox.edge import trust
from stockade.sandbox.mounts import MASK, Mount, ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.sandbox.edge.values import Values
    from stockade.sandbox.plan import Plan

INSIDE = "A secret that the edge puts in must not be inside as well."


def equipped(plan: Plan, values: Values, bundle: str, authority: str) -> Plan:
    """The plan with trust added and sources covered. Raises RequestError where a secret would be inside all the same.

    ``bundle``: path of the host's certificates; ``authority``: that of the run (PEM).
    """
    check_outside(plan, values)
    taken = dict(plan.env)
    java = "JAVA_HOME" in taken or any(plan.view(f"{place}/java") for place in taken.get("PATH", "").split(":"))
    added = trust.extend(bundle, authority, view=plan.view, java=java)
    variables = [(name, text) for name, text in added.variables if name not in taken]
    mounts = ordered([*plan.mounts, *added.mounts, *covers(plan, values.files)])
    return plan.replace(mounts=mounts, env=(*plan.env, *variables))


def covers(plan: Plan, files: Sequence[str]) -> list[Mount]:
    """Files that values were read from are not seen inside."""
    return [Mount(MASK, path, reason="a secret of the edge") for path in files if seen(plan, path)]


def seen(plan: Plan, path: str) -> bool:
    host = plan.view(path)
    return host is not None and host != os.devnull


def check_outside(plan: Plan, values: Values) -> None:
    """No variable and no argument of the program may hold a secret, however it is written."""
    from stockade.netns.edge.mask import Masker

    holds = Masker(values.secrets).spans
    for name, text in plan.env:
        if holds(os.fsencode(text)):
            raise RequestError(
                f"could not keep a secret outside: the variable {quoted(name)} would bring it in",
                remedy=f"{INSIDE} Leave {name} out of environment.pass, environment.set and --env.",
            )
    for place, word in enumerate(plan.argv):
        if holds(os.fsencode(word)):
            raise RequestError(
                f"could not keep a secret outside: argument {place} of the command holds it", remedy=INSIDE
            )
