"""Who contacted whom (pure): one line for each handler and destination, and where to draw it."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.review.foreign import counted, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.review.model import Exercise, Review

MOST_DRAWN = 24
"""Handlers, and destinations, in the drawing."""
MOST_LISTED = 500
ROW = 34
"""Height of a box and the gap below it."""
BOX = 26
LEFT, RIGHT, WIDTH = 340, 620, 960
"""Where the boxes of handlers end, where those of destinations begin, and the whole."""
LABEL = 44
"""Letters that fit into a box."""


class Contact(Record):
    """A handler and a destination."""

    handler: str
    destination: str
    protocol: str
    times: int
    bytes: int
    runs: int
    leaks: tuple[str, ...]
    """The canaries that were in what it sent there."""
    data: str = ""


class Box(Record):
    """One end of the lines."""

    label: str
    full: str
    x: int
    y: int
    width: int
    leaks: bool


class Line(Record):
    """A contact, as a line between two boxes."""

    path: str
    title: str
    leaks: bool
    weight: int


class Drawing(Record):
    """Boxes and lines, in units of the drawing."""

    handlers: tuple[Box, ...]
    destinations: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: int
    height: int
    left_out: int
    """Contacts that are only in the table."""
    words: str
    """What is drawn, for who can't see it."""


class Tally:
    """What is known so far of one handler and destination."""

    __slots__ = ("bytes", "data", "leaks", "protocol", "runs", "times")

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.times = self.bytes = 0
        self.runs: set[tuple[str, int]] = set()
        self.leaks: dict[str, None] = {}
        self.data = ""


def contacts(review: Review) -> tuple[Contact, ...]:
    """All of them, those that carried a secret first, then by how often."""
    met: dict[tuple[str, str], Tally] = {}
    for run in review.exercises:
        add_run(met, run)
    found = [
        Contact(handler, place, each.protocol, each.times, each.bytes, len(each.runs), tuple(each.leaks), each.data)
        for (handler, place), each in met.items()
    ]
    return tuple(sorted(found, key=lambda each: (not each.leaks, -each.times)))


def add_run(met: dict[tuple[str, str], Tally], run: Exercise) -> None:
    for attempt in run.egress:
        tally = met.setdefault((run.handler, destination(attempt)), Tally(attempt.via or attempt.protocol))
        tally.times += max(1, attempt.packets)
        tally.bytes += attempt.bytes
        tally.runs.add((run.case, run.attempt))
        tally.data = tally.data or attempt.data
    for sighting in run.sightings:
        if sighting.where == "egress":
            own = [place for handler, place in met if handler == run.handler]
            for place in named(sighting.place, own) or [sighting.place or "(unknown destination)"]:
                key = run.handler, place
                tally = met.setdefault(key, Tally("?"))
                tally.leaks[sighting.canary] = None
                tally.runs.add((run.case, run.attempt))


def destination(attempt: EgressAttempt) -> str:
    """``host:port``, or a mere name."""
    if not attempt.port:
        return attempt.host
    return f"[{attempt.host}]:{attempt.port}" if ":" in attempt.host else f"{attempt.host}:{attempt.port}"


def named(places: str, known: Sequence[str]) -> list[str]:
    """The destinations that a sighting names: there are several where a secret was sent in pieces. It may have a
    scheme or a path too."""
    exact = [each for each in known if each in places.split(", ")]
    return exact or [each for each in known if places and (each in places or places in each)]


def drawing(found: Sequence[Contact]) -> Drawing | None:
    """The worst and the most frequent as boxes and lines; None where nobody was contacted."""
    if not found:
        return None
    handlers = first(each.handler for each in found)
    destinations = first(each.destination for each in found)
    drawn = [each for each in found if each.handler in handlers and each.destination in destinations]
    rows = max(len(handlers), len(destinations))
    bad = {each.handler for each in drawn if each.leaks} | {each.destination for each in drawn if each.leaks}
    return Drawing(
        handlers=boxes(handlers, 0, LEFT, rows, bad),
        destinations=boxes(destinations, RIGHT, WIDTH - RIGHT, rows, bad),
        lines=tuple(joined(each, handlers, destinations, rows) for each in reversed(drawn)),
        width=WIDTH,
        height=rows * ROW,
        left_out=len(found) - len(drawn),
        words=f"{counted(len(handlers), 'handler')} on the left, {counted(len(destinations), 'destination')} on the "
        f"right, {counted(len(drawn), 'line')} between them. The table below says the same.",
    )


def first(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))[:MOST_DRAWN]


def top(at: int, count: int, rows: int) -> int:
    """Of a box; the shorter column stands in the middle of the other."""
    return at * ROW + (rows - count) * ROW // 2 + (ROW - BOX) // 2


def boxes(names: Sequence[str], x: int, width: int, rows: int, bad: set[str]) -> tuple[Box, ...]:
    return tuple(
        Box(shortened(line(name)), line(name), x, top(at, len(names), rows), width, name in bad)
        for at, name in enumerate(names)
    )


def joined(contact: Contact, handlers: list[str], destinations: list[str], rows: int) -> Line:
    one = top(handlers.index(contact.handler), len(handlers), rows) + BOX // 2
    two = top(destinations.index(contact.destination), len(destinations), rows) + BOX // 2
    middle = (LEFT + RIGHT) // 2
    carried = f", carrying {', '.join(map(line, contact.leaks))}" if contact.leaks else ""
    return Line(
        path=f"M{LEFT} {one}C{middle} {one} {middle} {two} {RIGHT} {two}",
        title=f"{line(contact.handler)} to {line(contact.destination)}, {counted(contact.times, 'time')}{carried}",
        leaks=bool(contact.leaks),
        weight=min(6, 1 + contact.times.bit_length() // 2),
    )


def shortened(label: str) -> str:
    """Both ends of a long label."""
    half = LABEL // 2 - 1
    return label if len(label) <= LABEL else f"{label[:half]}...{label[-half:]}"
