"""Handlers and runs made by hand, for tests of what is pure."""

from __future__ import annotations

from stockade.netns.egress import EgressAttempt
from stockade.sandbox.denials import Denial
from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.review.model import Exercise, Handler, Review, Sighting, Touched

LABEL = "PreToolUse hooks/hooks.json 1"


def handler(*, label=LABEL, scripts=("hook.py",), static=(), **spec):
    given = {"dialect": "claude", "event": "PreToolUse", "kind": "pre_tool", "form": "shell", **spec}
    return Handler(label, HookSpec(**{"command": "python3 hook.py", **given}), scripts, "python", static)


def run(case="benign-shell", **fields):
    """A run that ended well and had no objection, unless told otherwise."""
    given = {"handler": LABEL, "event": "PreToolUse", "outcome": "exited", "exit_code": 0, "enforcement": "full"}
    return Exercise(case=case, **{**given, **fields})


def refusing(case="destructive-shell", **fields):
    return run(case, **{"decision": "deny", "host_decision": "deny", **fields})


def failing(case="destructive-shell", **fields):
    """A failure: confined it is a refusal, to its host it is none."""
    return run(case, **{"exit_code": 1, "decision": "deny", "host_decision": None, **fields})


def attempt(host="evil.example", port=443, *, data="", address="198.51.100.7", protocol="tcp", via="tcp"):
    return EgressAttempt(host, address, port, protocol, False, 1, 60, via, 0.1, data)


def asked(name):
    return EgressAttempt(name, "", 0, "dns", False, 1, 0, "dns", 0.1)


def sighting(where="egress", canary="aws-credentials", *, place="evil.example:443", encoding="plain"):
    return Sighting(canary, where, encoding, place, "key=[canary]")


def touched(path, area="workspace", *, kind="changed", diff=""):
    return Touched(path, kind, diff, area)


def denial(kind="limit", certainty="observed", subject="limits.processes"):
    return Denial(kind, certainty, subject, f"reached {subject}", "")


def made(*runs, findings=(), handlers=None, path="/plugin", **fields):
    return Review(path, handlers if handlers is not None else (handler(),), tuple(runs), tuple(findings), **fields)
