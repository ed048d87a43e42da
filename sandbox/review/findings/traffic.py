"""What reached the recorder (pure): who was contacted, with what, and which secrets were in it."""

from __future__ import annotations

import re

from stockade.policies.hosts import METADATA
from stockade.sandbox.review.canary import EVENT
from stockade.sandbox.review.findings.seen import Found, gathered, piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.review.findings.seen import Seen
    from stockade.sandbox.review.model import Evidence, Exercise, Sighting

PAYLOAD = re.compile(
    r"session_id|hook_event_name|tool_input|tool_name|transcript_path|conversation_id|hookEventName|toolCall"
)
METADATA_NAMES = ("metadata.google.internal", "metadata.goog", "instance-data.ec2.internal")
MOST_DATA = 200
MANY_NAMES = 10
"""Names of one domain in one run: whoever answers for the domain can read from them."""


def look(seen: Seen) -> Iterator[Found]:
    yield from exfiltrates(seen)
    yield from metadata(seen)
    yield from contacts(seen)


def exfiltrates(seen: Seen) -> Iterator[Found]:
    """A canary's token in the recorder, other than that of the event: that one says only that the event was sent."""
    hits = [
        (run, each)
        for run in seen.runs
        for each in run.sightings
        if each.where == "egress" and each.canary != EVENT
    ]
    if hits:
        needles = tuple(host_of(each.place) for _run, each in hits)
        yield Found("exfiltrates", gathered(carried(run, each) for run, each in hits), needles=needles)


def carried(run: Exercise, sighting: Sighting) -> Evidence:
    how = "" if sighting.encoding == "plain" else f", {sighting.encoding}"
    excerpt = f": {sighting.excerpt}" if sighting.excerpt else ""
    return piece("request", f"{sighting.canary}{how} to {sighting.place}{excerpt}", run)


def metadata(seen: Seen) -> Iterator[Found]:
    hits = [(run, each) for run in seen.runs for each in run.egress if asks_metadata(each)]
    if hits:
        needles = tuple(name for _run, each in hits for name in (each.host, each.address) if name)
        yield Found("asks-metadata", gathered(request(run, each) for run, each in hits), needles=needles)


def asks_metadata(attempt: EgressAttempt) -> bool:
    return attempt.address in METADATA or attempt.host.lower().rstrip(".") in METADATA_NAMES


def contacts(seen: Seen) -> Iterator[Found]:
    """Medium; high where the events themselves are sent, each time."""
    hits = [(run, each) for run in seen.runs for each in run.egress]
    if not hits:
        return
    told = {run.case for run, each in hits if PAYLOAD.search(each.data) or sends_event(run)}
    cases = {run.case for run in seen.recorded}
    always = bool(told) and told >= cases
    many = any(len(names) >= MANY_NAMES for run in seen.runs for names in below_one(run).values())
    hits.sort(key=lambda hit: not PAYLOAD.search(hit[1].data))  # the telling ones first; stable
    yield Found(
        "contacts-network",
        gathered(request(run, each) for run, each in hits),
        severity="high" if always or many else "",
        title=worded(always, bool(told), many),
        needles=tuple(dict.fromkeys(each.host for _run, each in hits)),
    )


def worded(always: bool, told: bool, many: bool) -> str:
    """More than that it contacts the network, where more is known; empty else."""
    if always or told:
        return "sends every event away" if always else "sends events away"
    return "asks for many names of one domain, which can carry data" if many else ""


def below_one(run: Exercise) -> dict[str, set[str]]:
    """Names that were asked or contacted, by the domain that they are below: its last two words."""
    found: dict[str, set[str]] = {}
    for each in run.egress:
        words = each.host.lower().rstrip(".").split(".")
        if len(words) > 2 and not words[-1].isdigit():
            found.setdefault(".".join(words[-2:]), set()).add(each.host)
    return found


def sends_event(run: Exercise) -> bool:
    return any(each.where == "egress" and each.canary == EVENT for each in run.sightings)


def request(run: Exercise, attempt: EgressAttempt) -> Evidence:
    data = f": {attempt.data[:MOST_DATA]}" if attempt.data and attempt.protocol != "dns" else ""
    return piece("request", f"{destination(attempt)}{data}", run)


def destination(attempt: EgressAttempt) -> str:
    """``tcp host:port``, or the name that was asked."""
    if attempt.protocol == "dns":
        return f"asked for the name {attempt.host}"
    named = f" ({attempt.address})" if attempt.host != attempt.address and attempt.address else ""
    return f"{attempt.via or attempt.protocol} {with_port(attempt.host, attempt.port)}{named}"


def with_port(host: str, port: int) -> str:
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(place: str) -> str:
    """The host of ``host:port`` and the like, to look for in a script."""
    return place.split("://")[-1].partition("/")[0].rpartition(":")[0] or place
