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
    from stockade.policies.errors import EscalationRefused as EscalationRefused
    from stockade.policies.errors import NotApplied as NotApplied
    from stockade.policies.errors import PolicyError as PolicyError
    from stockade.policies.errors import RequestError as RequestError
    from stockade.policies.errors import RunnerFailed as RunnerFailed
    from stockade.policies.errors import SandboxUnavailable as SandboxUnavailable
    from stockade.policies.errors import StockadeError as StockadeError
    from stockade.policies.model import Policy as Policy
    from stockade.policies.resolve import load_policy as load_policy
    from stockade.sandbox.apply import Applied as Applied
    from stockade.sandbox.bash.modes import Escalation as Escalation
    from stockade.sandbox.bash.result import BashResult as BashResult
    from stockade.sandbox.bash.tool import BashTool as BashTool
    from stockade.sandbox.changes import Changes as Changes
    from stockade.sandbox.classify import Outcome as Outcome
    from stockade.sandbox.confine import Confined as Confined
    from stockade.sandbox.confine import confine as confine
    from stockade.sandbox.denials import Denial as Denial
    from stockade.sandbox.hooks.aggregate import Aggregate as Aggregate
    from stockade.sandbox.hooks.aggregate import HandlerResult as HandlerResult
    from stockade.sandbox.hooks.model import HookEvent as HookEvent
    from stockade.sandbox.hooks.model import HookOutcome as HookOutcome
    from stockade.sandbox.hooks.model import HookRun as HookRun
    from stockade.sandbox.hooks.model import HookSpec as HookSpec
    from stockade.sandbox.hooks.model import MergedOutcome as MergedOutcome
    from stockade.sandbox.hooks.runhook import HookResult as HookResult
    from stockade.sandbox.hooks.runhook import run_hook as run_hook
    from stockade.sandbox.hooks.runner import HookRunner as HookRunner
    from stockade.sandbox.hooks.runner import run_hooks as run_hooks
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
    "run_hook": "sandbox.hooks.runhook",
    "run_hooks": "sandbox.hooks.runner",
    "HookRunner": "sandbox.hooks.runner",
    "confine": "sandbox.confine",
    "Confined": "sandbox.confine",
    "probe": "sandbox.probe",
    "load_policy": "policies.resolve",
    "Policy": "policies.model",
    "Capability": "policies.capability",
    "Host": "sandbox.host",
    "RunResult": "sandbox.result",
    "Changes": "sandbox.changes",
    "Applied": "sandbox.apply",
    "HookResult": "sandbox.hooks.runhook",
    "BashTool": "sandbox.bash.tool",
    "BashResult": "sandbox.bash.result",
    "Escalation": "sandbox.bash.modes",
    "HookEvent": "sandbox.hooks.model",
    "HookSpec": "sandbox.hooks.model",
    "HookRun": "sandbox.hooks.model",
    "HookOutcome": "sandbox.hooks.model",
    "MergedOutcome": "sandbox.hooks.model",
    "Aggregate": "sandbox.hooks.aggregate",
    "HandlerResult": "sandbox.hooks.aggregate",
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
    "NotApplied": "policies.errors",
    "EscalationRefused": "policies.errors",
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
