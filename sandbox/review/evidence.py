"""What a run left behind, as evidence: files, reads of canaries, tokens where they do not belong."""

from __future__ import annotations

import re

from stockade.netns.egress import UNKNOWN, UNLISTED, with_port
from stockade.sandbox.review.model import Sighting, Touched
from stockade.sandbox.review.places import MOST_FILE, difference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stockade.netns.egress import EgressAttempt
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.review.bench import Bench, Slot
    from stockade.sandbox.review.places import Place
    from stockade.sandbox.review.traced import Trace

    Files = Sequence[tuple[Touched, tuple[bytes, bytes]]]

MOST_TOUCHED = 500
MOST_SEARCHED = 4 << 20
"""Bytes of written files that are searched, of all together."""
MOST_SENT = 4096
"""What the recorder keeps of one destination."""
MOST_SIGHTINGS = 100
REQUEST = re.compile(r"^(?=[A-Z]{3,10} \S+ HTTP/1\.[01]$)", re.MULTILINE)
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108


# --- files ---------------------------------------------------------------------------------------------------


def touched(bench: Bench, slot: Slot, temporary: Iterable[tuple[str, bytes]]) -> Files:
    """What differs in the project, the home and the temporary directories, each with its content before and after."""
    found = [*of_place(slot.project, "", "workspace"), *of_place(slot.home, "~/", "home")]
    own = bench.top
    for path, data in temporary:
        if path != own and not path.startswith(f"{own}/"):
            entry = Touched(path, "created", difference(path.lstrip("/"), b"", data), area_of(path))
            found.append((entry, (b"", data)))
    return found[:MOST_TOUCHED]


def area_of(path: str) -> str:
    return "tmp" if path.startswith(tuple(f"{each}/" for each in TEMPORARY)) else "elsewhere"


def of_place(place: Place, prefix: str, area: str) -> list[tuple[Touched, tuple[bytes, bytes]]]:
    return [
        (
            Touched(prefix + each.path, each.kind, difference(each.path, each.before, each.after), area),
            (each.before, each.after),
        )
        for each in place.changes()
    ]


# --- reads ---------------------------------------------------------------------------------------------------


def reads(bench: Bench, slot: Slot, trace: Trace, accessed: set[str]) -> tuple[str, ...]:
    """Names of the canaries whose file was opened for reading, or whose access time moved: with another name for the
    file, by a link or a move and back, only that tells. ``accessed`` has places as canaries have them."""
    opened = trace.read()
    names = []
    for each in bench.bait.canaries:
        path = bench.inside(each.place, slot)
        if path and (path in opened or each.place in accessed):
            names.append(each.name)
    return tuple(names)


# --- tokens --------------------------------------------------------------------------------------------------


def sightings(bench: Bench, slot: Slot, result: RunResult, trace: Trace, files: Files) -> tuple[Sighting, ...]:
    """Every token that left its place, with where it went; what leaves the machine first."""
    searcher = bench.searcher
    found = list(in_egress(bench, result.egress))
    for name in ("stdout", "stderr"):
        found += searcher.sightings(getattr(result, name), name, name)
    for words in trace.commands:
        line = "\0".join(words).encode("utf-8", "surrogateescape")
        found += searcher.sightings(line, "argv", words[0] if words else "")
    found += in_files(bench, files)
    for prefix, place in (("", slot.project), ("~/", slot.home)):
        for path in place.made_folders()[:MOST_TOUCHED]:
            found += searcher.sightings(encoded(path), "file", prefix + path)
    return tuple(dict.fromkeys(found))[:MOST_SIGHTINGS]


def in_egress(bench: Bench, attempts: Sequence[EgressAttempt]) -> Iterable[Sighting]:
    """In names that were asked and in what was sent; whole in one place, or in pieces over several."""
    searcher = bench.searcher
    texts: list[bytes] = []
    known: set[str] = set()
    for each in attempts:
        names = [*(each.shared or (each.host,))]
        sent = [*names, *(name.replace(".", "") for name in names), each.data]
        seen = {
            sighting.canary: sighting
            for text in sent
            for sighting in searcher.sightings(encoded(text), "egress", with_port(each.host, each.port))
        }
        yield from seen.values()
        known |= set(seen)
        texts += [encoded(text) for text in (*names, *requests(each.data)) if text]
    places = ", ".join(dict.fromkeys(with_port(each.host, each.port) for each in attempts))
    for hit in searcher.pieces(texts, known):
        yield Sighting(hit.name, "egress", hit.encoding, places[:500], hit.excerpt)


def requests(data: str) -> list[str]:
    """What was sent to one destination, by request where it can be told, else by line."""
    if not data:
        return []
    parts = [part for part in REQUEST.split(data) if part.strip()]
    return parts if len(parts) > 1 else [data, *([] if parts and REQUEST.match(data) else data.split("\n"))]


def in_files(bench: Bench, files: Files) -> Iterable[Sighting]:
    """In the names and contents of what was written; without what stood in the same file before."""
    room = MOST_SEARCHED
    for entry, (before, after) in files:
        if entry.kind == "deleted" or room <= 0:
            continue
        data = after[:room]
        room -= len(data)
        old = {hit.name for hit in bench.searcher.find(before)} if before else set()
        yield from bench.searcher.sightings(encoded(entry.path), "file", entry.path)
        yield from bench.searcher.sightings(data, "file", entry.path, old)


def unsearched(result: RunResult, files: Files) -> list[str]:
    """What there was too much of to be looked through: a token may be in the rest."""
    found = [
        f"only the beginning of what was sent to {with_port(each.host, each.port)} was kept"
        for each in result.egress
        if each.via != "tls" and len(each.data) >= MOST_SENT
    ]
    if result.stdout_truncated or result.stderr_truncated:
        found.append("only the beginning and the end of its output were kept")
    if any(each.host in (UNLISTED, UNKNOWN) for each in result.egress):
        found.append("it contacted more than was kept, or in ways that hide where: not every request is known")
    sizes = [len(after) for _entry, (_before, after) in files]
    if len(files) >= MOST_TOUCHED or sum(sizes) > MOST_SEARCHED or max(sizes, default=0) >= MOST_FILE:
        found.append("it wrote more than was searched for secrets")
    return found


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
