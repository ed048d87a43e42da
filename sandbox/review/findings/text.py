"""What stands in its scripts (pure): lines that a run need not show, and what ``hooks check`` said of them."""

from __future__ import annotations

import re

from stockade.policies.record import Record
from stockade.sandbox.review.findings.seen import Found, gathered, piece
from stockade.sandbox.review.model import SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.hooks.finding import Finding as StaticFinding
    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence

MOST_LINE = 200


class Line(Record):
    """A pattern of single lines, and what it means to have one."""

    pattern: re.Pattern[str]
    rule: str
    severity: str


LINES = (
    Line(re.compile(
        r"/\.dockerenv|/run/\.containerenv|/proc/(1|self|\d+)/(cgroup|sched|comm|uid_map|mountinfo)|systemd-detect-virt|virt-what"
        r"|TracerPid|\b(bwrap|bubblewrap|firejail|gvisor|runsc|nsjail|strace)\b|\b(IN_|IS_)?SANDBOX(ED)?\b|/proc/sys/kernel/hostname"
    ), "looks-around", "medium"),
    Line(re.compile(
        r"(environ|getenv|process\.env|ENV)\W{0,4}(get\W{0,3})?(CI|GITHUB_ACTIONS|GITLAB_CI|JENKINS_URL|BUILDKITE|CIRCLECI|TRAVIS)\b"
        r"|\$\{?(CI|GITHUB_ACTIONS|GITLAB_CI|JENKINS_URL|BUILDKITE|CIRCLECI|TRAVIS)\b"
    ), "looks-around", "low"),
    Line(re.compile(
        r"(exec|eval|Function|compile)\s*\(.{0,60}(b64decode|fromhex|atob|Buffer\.from|unhexlify|decompress|rot13)"
        r"|base64\s+(-d|-D|--decode)\b.{0,60}\|\s*(ba|z|da)?sh\b|(curl|wget)\b[^|]*\|\s*(sudo\s+)?(ba|z|da)?sh\b"
        r"|eval\s+.{0,20}\$\(.{0,60}base64"
    ), "hides-code", "medium"),
)  # fmt: skip
STATIC = {
    "network_install": ("installs-packages", "medium"),
    "remote_code": ("hides-code", "high"),
    "env_file": ("env-files", "medium"),
    "swallowed_failure": ("fails-open", "medium"),
    "piped_exit": ("fails-open", "medium"),
    "exit_2_ignored": ("fails-open", "medium"),
    "json_and_exit": ("fails-open", "medium"),
    "json_on_stderr": ("fails-open", "medium"),
    "deny_without_reason": ("fails-open", "medium"),
    "network_fails_open": ("fails-open", "medium"),
    "async_guard": ("fails-open", "medium"),
    "plain_http": ("contacts-network", "medium"),
    "env_dump": ("leaks-secret", "medium"),
}
"""Findings of ``hooks check`` that are of a kind of their own here. They are read by patterns: never above medium, but for
code from the network."""
OTHERS = {"error": "medium", "high": "medium", "medium": "low", "low": "info"}


def look(seen: Seen) -> Iterator[Found]:
    yield from lines(seen)
    yield from static(seen)


def lines(seen: Seen) -> Iterator[Found]:
    hits: dict[str, list[tuple[str, Evidence]]] = {}
    for file, text in seen.sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            for each in LINES:
                if not is_comment(line) and each.pattern.search(line):
                    found = piece("line", line.strip()[:MOST_LINE], file=file, line=number)
                    hits.setdefault(each.rule, []).append((each.severity, found))
    for rule, found_lines in hits.items():
        found_lines.sort(key=lambda hit: SEVERITIES.index(hit[0]))
        yield Found(rule, gathered(each for _severity, each in found_lines), severity=found_lines[0][0])


def is_comment(line: str) -> bool:
    return line.lstrip().startswith(("# ", "//", "/*", "* ", '"""', "'''", "#!"))


def static(seen: Seen) -> Iterator[Found]:
    hits: dict[str, list[tuple[str, Evidence]]] = {}
    for each in seen.handler.static:
        rule, severity = STATIC.get(each.code, ("static", OTHERS.get(each.severity, "low")))
        hits.setdefault(rule, []).append((severity, told(each, seen)))
    for rule, found in hits.items():
        found.sort(key=lambda hit: SEVERITIES.index(hit[0]))
        yield Found(rule, gathered(each for _severity, each in found), severity=found[0][0])


def told(finding: StaticFinding, seen: Seen) -> Evidence:
    remedy = f" {finding.remedy}" if finding.remedy else ""
    text = f"{finding.code}: {finding.text}.{remedy}"
    return piece("line", text, file=seen.relative(finding.file), line=finding.line)
