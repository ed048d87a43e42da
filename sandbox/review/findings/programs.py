"""Programs that were executed, processes that were left, and what was used up (pure)."""

from __future__ import annotations

import re

from stockade.sandbox.review.findings.files import INTERNAL
from stockade.sandbox.review.findings.seen import IN_CI, Found, gathered, piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence, Exercise

INSTALLS = re.compile(
    r"\b(npm (i|install|ci|add|exec)|pnpm (i|install|add)|yarn (add|install)|bun (add|install)"
    r"|pip3? install|-m pip install|uv (pip install|add|sync|tool install)|pipx install|poetry (add|install)"
    r"|conda install|cargo install|go (install|get)|gem install|bundle install|composer (require|install)"
    r"|apt(-get)? install|apk add|dnf install|yum install|brew install|deno install)\b"
)
FETCHERS = re.compile(r"\b(npx|uvx|bunx|pnpx|pnpm dlx|yarn dlx|pipx run|uv run|uv tool run|deno run)\b")
"""They run a package, and fetch it only if it is not there."""
REGISTRIES = re.compile(
    r"(^|\.)(registry\.npmjs\.org|registry\.yarnpkg\.com|pypi\.org|files\.pythonhosted\.org|crates\.io|rubygems\.org"
    r"|proxy\.golang\.org|repo\.maven\.apache\.org|jsr\.io|deb\.debian\.org|archive\.ubuntu\.com|conda\.anaconda\.org)$"
)
PERSISTING = re.compile(
    r"(^|/|\s)(crontab(?!\s+-l)|at\s|batch\b|systemctl\s+(--user\s+)?(enable|start|link)|loginctl\s+enable-linger|launchctl\s+load"
    r"|git\s+config\s+(--\w+\s+)*(core\.(hookspath|fsmonitor|sshcommand)|alias\.|init\.templatedir))",
    re.IGNORECASE,
)
WATCHING = re.compile(
    r"systemd-detect-virt|virt-what|imvirt|/\.dockerenv|/run/\.containerenv|/proc/1/(cgroup|comm|sched)"
)


def look(seen: Seen) -> Iterator[Found]:
    yield from installs(seen)
    yield from persists(seen)
    yield from watches(seen)
    yield from in_ci(seen)
    yield from leaves(seen)
    yield from exhausts(seen)


def commands(seen: Seen, pattern: re.Pattern[str]) -> list[tuple[Exercise, str]]:
    return [(run, text) for run in seen.runs for text in run.commands if pattern.search(text)]


def installs(seen: Seen) -> Iterator[Found]:
    """What fetches a package only if it has to counts when a registry was asked; else it is low."""
    sure = commands(seen, INSTALLS)
    perhaps = commands(seen, FETCHERS)
    asked = [(run, each.host) for run in seen.runs for each in run.egress if REGISTRIES.search(each.host.lower())]
    if not sure and not perhaps and not asked:
        return
    pieces = [piece("command", text, run) for run, text in (*sure, *perhaps)]
    pieces += [piece("request", f"asked the registry {host}", run) for run, host in asked]
    yield Found(
        "installs-packages",
        gathered(pieces),
        severity="" if sure or asked else "low",
        title="" if sure or asked else "runs packages that may have to be fetched",
        needles=tuple(text.split()[0] for _run, text in (*sure, *perhaps) if text.split()),
    )


def persists(seen: Seen) -> Iterator[Found]:
    hits = commands(seen, PERSISTING)
    if hits:
        yield Found("persists", gathered(piece("command", text, run) for run, text in hits))


def watches(seen: Seen) -> Iterator[Found]:
    pieces = [piece("command", text, run) for run, text in commands(seen, WATCHING)]
    pieces += [
        piece("file", f"opened {path}", run) for run in seen.runs for path in run.opened if WATCHING.search(path)
    ]
    if pieces:
        yield Found("looks-around", gathered(pieces), needles=("/proc/1/", "/.dockerenv", "/run/.containerenv"))


def in_ci(seen: Seen) -> Iterator[Found]:
    """What it does with the variables of a build server, and did not do for the same event without them."""
    plain: dict[str, set[str]] = {}
    for run in seen.recorded:
        if not run.case.endswith(IN_CI):
            plain.setdefault(run.case, set()).update(text for text, _piece in acts(run))
    pieces = [
        found
        for run in seen.recorded
        if run.case.endswith(IN_CI) and run.case.removesuffix(IN_CI) in plain
        for text, found in acts(run)
        if text not in plain[run.case.removesuffix(IN_CI)]
    ]
    if pieces:
        yield Found(
            "looks-around", gathered(pieces), title="does more where it finds the variables of a build server"
        )


def acts(run: Exercise) -> Iterator[tuple[str, Evidence]]:
    """What can be compared between two runs: who was contacted, what was written and read."""
    for attempt in run.egress:
        yield f"contact {attempt.port}", piece("request", f"contacted {attempt.host} in a build", run)
    for touched in run.touched:
        if touched.area != "tmp" and not INTERNAL.search(touched.path):
            yield touched.path, piece("file", f"{touched.kind} {touched.path} in a build", run)
    for name in run.reads:
        yield name, piece("file", f"opened {name} in a build", run)


def leaves(seen: Seen) -> Iterator[Found]:
    hits = [run for run in seen.runs if run.left_running > 0]
    if hits:
        pieces = (piece("answer", f"{many(run.left_running)} still running when it had ended", run) for run in hits)
        yield Found("spawns-daemons", gathered(pieces), needles=("setsid", "nohup", "daemon", "&"))


def many(count: int) -> str:
    return "1 process was" if count == 1 else f"{count} processes were"


def exhausts(seen: Seen) -> Iterator[Found]:
    """High where a limit was seen to be reached; low where only its words say so."""
    hits = [(run, each) for run in seen.runs for each in run.denials if each.kind == "limit"]
    if hits:
        hits.sort(key=lambda hit: hit[1].certainty != "observed")
        observed = hits[0][1].certainty == "observed"
        pieces = (piece("denial", f"{each.certainty}: {each.detail}", run) for run, each in hits)
        yield Found("exhausts", gathered(pieces), severity="" if observed else "medium")
