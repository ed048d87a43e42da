"""The environment inside (pure): cleared, then what programs need, what the policy passes and sets, what the call adds."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.request import Request
    from stockade.sandbox.survey import Facts


def inside(policy: Resolved, request: Request, facts: Facts, path: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Later ones win: our own, passed by the policy, set by the policy, given with the call."""
    variables = {
        "HOME": facts.home,
        "USER": facts.user,
        "LOGNAME": facts.user,
        "PATH": ":".join(path),
        "SHELL": "/bin/sh",
    }
    variables |= {name: value for name, value in facts.environ if passes(name, policy.env_pass)}
    variables |= dict(policy.env_set)
    variables |= dict(request.env)
    return tuple(variables.items())


def passes(name: str, patterns: Iterable[str]) -> bool:
    """Whether a variable of the caller is let through: by name, or by ``PREFIX*``."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)
