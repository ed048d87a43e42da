"""What runs needed, and the policies that could grant it (pure): from the narrowest to the widest that was observed.

What was found harmful is never granted: no host that a secret was sent to, no configuration of agents, nothing in HOME.
"""

from __future__ import annotations

import math

from stockade.policies.record import Record
from stockade.sandbox.review.canary import EVENT
from stockade.sandbox.review.findings.files import judged
from stockade.sandbox.review.findings.traffic import asks_metadata, with_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.review.model import Exercise, Review

    Settings = Mapping[str, Any]

SYSTEM = ("/usr/", "/etc/", "/bin/", "/lib", "/sbin/", "/proc/", "/sys/", "/dev/", "/tmp/", "/run/", "/var/")  # noqa: S108
"""Places of every box, or of none."""
MOST_PATHS = 12
MOST_HOSTS = 20
FEWEST_SECONDS, MOST_SECONDS = 5, 10


class Ladder(Record):
    """One thing that can be granted, the least first. The last step is what was observed."""

    name: str
    steps: tuple[Settings, ...]


class Row(Record):
    """Something that was observed, beside what is granted."""

    what: str
    observed: str
    granted: str
    why: str = ""


def given(review: Review) -> list[Exercise]:
    """The runs in the recorder that came to something."""
    return [run for run in review.exercises if not run.failed and run.egress_kind == "record"]


def ladders(review: Review) -> tuple[Ladder, ...]:
    """Everything that can be narrowed, in the order in which it is tried."""
    runs = given(review)
    writes = bool(written(runs))
    spaces = ("none", "read-only", "read-write") if writes else ("none", "read-only")
    roots: list[dict[str, Any]] = [{"filesystem.root": "minimal", "filesystem.toolchains": "none"}]
    paths = opened(runs, review)
    if paths:
        roots.append({**roots[0], "filesystem.read": paths})
    hosts = [contact for contact, wanted in contacts(runs).items() if wanted]
    networks: list[dict[str, Any]] = [{"network.egress": "none"}]
    if hosts:
        networks.append({"network.egress": "allow", "network.allow": hosts[:MOST_HOSTS]})
    return (
        Ladder("network", tuple(networks)),
        Ladder("workspace", tuple({"filesystem.workspace": each} for each in spaces)),
        Ladder("files of the host", (*roots, {"filesystem.root": "host", "filesystem.toolchains": "auto"})),
        Ladder("variables", ({"environment.pass": []}, {"environment.pass": ["LANG", "LC_*", "TERM", "TZ"]})),
        Ladder("system calls", ({"syscalls.filter": "strict"}, {"syscalls.filter": "default"})),
    )


def limits(review: Review) -> dict[str, Any]:
    """The time that it took, four times over."""
    took = max((run.duration for run in given(review) if run.outcome == "exited"), default=0.0)
    seconds = min(MOST_SECONDS, max(FEWEST_SECONDS, math.ceil(4 * took)))
    return {"limits.timeout": f"{seconds}s"}


def contacts(runs: Iterable[Exercise]) -> dict[str, bool]:
    """Hosts as the policy names them, and whether one may be granted at all."""
    found: dict[str, bool] = {}
    for run in runs:
        bad = any(each.where == "egress" and each.canary != EVENT for each in run.sightings)
        for attempt in run.egress:
            text = rule_of(attempt)
            if text:
                found[text] = found.get(text, True) and not bad and not asks_metadata(attempt)
    return found


def rule_of(attempt: EgressAttempt) -> str:
    """The allow entry for a destination; empty for a mere name, and for what can't be allowed."""
    from stockade.policies.errors import PolicyError
    from stockade.policies.hosts import parse_rule

    if attempt.protocol not in ("tcp", "udp") or not attempt.port:
        return ""
    lead = "udp://" if attempt.protocol == "udp" else ""
    plain = attempt.protocol == "tcp" and attempt.port == 443
    try:
        return parse_rule(f"{lead}{attempt.host if plain else with_port(attempt.host, attempt.port)}").text
    except PolicyError:
        return ""


def written(runs: Iterable[Exercise]) -> dict[str, bool]:
    """Files of the workspace that were written without harm: they may be the very job."""
    found: dict[str, bool] = {}
    for run in runs:
        for touched in run.touched:
            if touched.area == "workspace" and judged(touched) is None:
                found[touched.path] = True
    return found


def opened(runs: Iterable[Exercise], review: Review) -> list[str]:
    """Files outside of the system's own directories, HOME and the tree that were opened."""
    tree = review.path.rstrip("/")
    inside = (f"{tree}/", "/home/", "/root/")
    paths = dict.fromkeys(
        path for run in runs for path in run.opened if path.startswith("/") and path.isprintable()
    )
    return [path for path in paths if path != tree and not path.startswith((*SYSTEM, *inside))][:MOST_PATHS]


# --- the same answers ----------------------------------------------------------------------------------------


def differences(before: Iterable[Exercise], after: Iterable[Exercise]) -> tuple[str, ...]:
    """Where the answers under a policy are others, in words; nothing where they are the same.

    A case that was answered in more than one way before may be answered in any of them. A run that could not be made is
    a difference, and so is a file of the workspace that is not written any more.
    """
    known: dict[tuple[str, str], list[Exercise]] = {}
    for run in before:
        known.setdefault((run.handler, run.case), []).append(run)
    found, met = [], set()
    for run in after:
        key = (run.handler, run.case)
        met.add(key)
        if key in known:
            found += [f"{run.handler}, {run.case}: {text}" for text in unlike(known[key], run)]
    found += [f"{label}, {case}: it was not run" for label, case in known if (label, case) not in met]
    return tuple(dict.fromkeys(found))


def unlike(before: list[Exercise], run: Exercise) -> list[str]:
    """How a run differs from all that the same event brought before."""
    if run.failed:
        return [f"could not be run: {run.failed}"]
    answers = {(each.outcome, each.exit_code, each.decision, each.host_decision) for each in before}
    if (run.outcome, run.exit_code, run.decision, run.host_decision) not in answers:
        return [f"{run.outcome}, exit {run.exit_code}, {run.decision or 'no objection'}"]
    outputs = {each.stdout for each in before}
    if len(outputs) == 1 and run.stdout not in outputs:
        return ["another output"]
    missing = set.intersection(*(set(written([each])) for each in before)) - set(written([run]))
    return [f"{path} was not written" for path in sorted(missing)]


# --- side by side --------------------------------------------------------------------------------------------


def rows(review: Review, settings: Settings) -> tuple[Row, ...]:
    """Observed and granted, side by side; what is not granted with the reason."""
    runs = given(review)
    allowed = set(settings.get("network.allow", ()))
    needless = "the answers are the same without"
    found = []
    for text, wanted in contacts(runs).items():
        why = "" if text in allowed else needless if wanted else "a secret was sent along, or it is never let out"
        found.append(Row("network", text, "yes" if text in allowed else "no", why))
    writable = settings["filesystem.workspace"] == "read-write"
    for path in written(runs):
        found.append(Row("write", path, "yes" if writable else "no", "" if writable else needless))
    for path, why in harmful(runs).items():
        found.append(Row("write", path, "no", why))
    for name in dict.fromkeys(name for run in runs for name in run.reads):
        found.append(Row("read", name, "no", "HOME is empty and .env is hidden"))
    shown = settings.get("filesystem.read", ())
    whole = settings["filesystem.root"] == "host"
    for path in opened(runs, review):
        yes = whole or path in shown
        found.append(Row("read", path, "yes" if yes else "no", "" if yes else needless))
    return tuple(found)


def harmful(runs: Iterable[Exercise]) -> dict[str, str]:
    """Writes that no policy should grant."""
    found: dict[str, str] = {}
    for run in runs:
        for touched in run.touched:
            verdict = judged(touched)
            if verdict is not None:
                found[touched.path] = verdict[2]
    return found


def toml(settings: Settings, head: Iterable[str]) -> str:
    """The policy file, with what is to be said about it as comments."""
    from stockade.policies.fields import nested

    lines = [f"# {each}".rstrip() for each in head]
    tree = nested(settings)
    lines += ["", *(f"{key} = {value_of(value)}" for key, value in tree.items() if not isinstance(value, dict))]
    for section, fields in tree.items():
        if isinstance(fields, dict):
            lines += ["", f"[{section}]", *(f"{key} = {value_of(value)}" for key, value in fields.items())]
    return "\n".join(lines) + "\n"


def value_of(value: object) -> str:
    """A text or a list of texts. Those that get here are printable."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_of, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
