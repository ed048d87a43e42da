"""Checks of guards that ask the network: what they do when it does not answer. Pure."""

from __future__ import annotations

import re
from itertools import islice

from stockade.sandbox.hooks.checks.about import GUARD
from stockade.sandbox.hooks.checks.answers import MOST_HITS, enclosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.hooks.checks.about import About, Code
    from stockade.sandbox.hooks.finding import Finding

NETWORK = re.compile(
    r"requests\.(?:get|post|put|request)|urllib\.request|urlopen|http\.client|httpx\.|aiohttp|\bfetch\(|https?\.request"
    r"|axios|\bgot\(|\bcurl\b|\bwget\b"
)
CATCH = {
    "python": re.compile(r"^(?P<indent>[ \t]*)except\b[^\n]*\n", re.M),
    "js": re.compile(r"\bcatch\s{0,20}(?:\([^)\n]{0,80}\))?\s{0,20}\{|\.catch\s{0,20}\("),
}
ASKS = re.compile(r"\b(?:curl|wget)\b")
GOES_ON = re.compile(r"print|log|console|echo|pass\b|exit[ (]0|return|true|:")
STOPS = re.compile(r"\braise\b|\bthrow\b|\bdeny\b|\bblock\b")


def unguarded(about: About, code: Code) -> Iterator[Finding]:
    """A guard that asks the network, and goes ahead where that fails."""
    if not (about.blocks and about.guards and NETWORK.search(code.text)):
        return
    text = "when its network call fails, it reports that and lets the action go ahead"
    for start, handling in handlings(code):
        if GOES_ON.search(handling) and not stops(handling):
            yield about.told(
                "network_fails_open", "high", text, "Deny when the answer is missing.", inside=code, at=start
            )
            return


def stops(handling: str) -> bool:
    """Whether what is done about a failure keeps the action from going ahead."""
    return bool(GUARD.search(handling) or STOPS.search(handling))


def handlings(code: Code) -> Iterator[tuple[int, str]]:
    """What is done where a network call fails: the failing branches right behind one."""
    if code.language == "shell":
        at = 0
        for line in code.text.split("\n"):
            asking, otherwise, handling = line.partition("||")
            if otherwise and ASKS.search(asking):
                yield at, handling
            at += len(line) + 1
        return
    pattern = CATCH.get(code.language)
    for found in islice(pattern.finditer(code.text), MOST_HITS) if pattern else ():
        before = code.text[max(found.start() - 1500, 0) : found.start()]
        opened = max(before.rfind("try:"), before.rfind("try {"), before.rfind("fetch("), 0)
        if NETWORK.search(before[opened:]):
            yield found.start(), handled(code, found)


def handled(code: Code, found: re.Match[str]) -> str:
    """The text of an ``except`` or ``catch``."""
    if code.language == "js":
        return (
            enclosed(code.text, found.end() - 1)
            if found.group().endswith("{")
            else code.text[found.end() : found.end() + 200]
        )
    lines = []
    for line in code.text[found.end() :].split("\n")[:12]:
        if line.strip() and len(line) - len(line.lstrip()) <= len(found["indent"]):
            break
        lines.append(line)
    return "\n".join((found.group(), *lines))
