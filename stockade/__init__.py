"""Run code you did not write, confined, and know truthfully what happened.

    import stockade
    result = stockade.run(["./third-party-hook"], stdin=event)
    result.outcome, result.exit_code, result.denials, result.enforcement

Names are loaded when they are first used: importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.egress import EgressAttempt as EgressAttempt
    from stockade.netns.pool import LeasePool as LeasePool
    from stockade.policies.capability import Capability as Capability
    from stockade.policies.errors import PolicyError as PolicyError
    from stockade.policies.errors import RequestError as RequestError
    from stockade.policies.errors import RunnerFailed as RunnerFailed
    from stockade.policies.errors import SandboxUnavailable as SandboxUnavailable
    from stockade.policies.errors import StockadeError as StockadeError
    from stockade.policies.model import Policy as Policy
    from stockade.policies.resolve import load_policy as load_policy
    from stockade.sandbox.classify import Outcome as Outcome
    from stockade.sandbox.confine import Confined as Confined
    from stockade.sandbox.confine import confine as confine
    from stockade.sandbox.denials import Denial as Denial
    from stockade.sandbox.host import Host as Host
    from stockade.sandbox.probe import probe as probe
    from stockade.sandbox.result import RunResult as RunResult
    from stockade.sandbox.runner import arun as arun
    from stockade.sandbox.runner import run as run
    from stockade.sandbox.writes import WrittenFile as WrittenFile

__version__ = "0.1.0"

_HOME = {
    "run": "sandbox.runner",
    "arun": "sandbox.runner",
    "confine": "sandbox.confine",
    "Confined": "sandbox.confine",
    "probe": "sandbox.probe",
    "load_policy": "policies.resolve",
    "Policy": "policies.model",
    "Capability": "policies.capability",
    "Host": "sandbox.host",
    "RunResult": "sandbox.result",
    "EgressAttempt": "netns.egress",
    "LeasePool": "netns.pool",
    "Denial": "sandbox.denials",
    "Outcome": "sandbox.classify",
    "WrittenFile": "sandbox.writes",
    "StockadeError": "policies.errors",
    "RequestError": "policies.errors",
    "PolicyError": "policies.errors",
    "SandboxUnavailable": "policies.errors",
    "RunnerFailed": "policies.errors",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(__import__(f"{__name__}.{_HOME[name]}", fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
