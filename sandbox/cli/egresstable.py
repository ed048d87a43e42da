"""The table at the end of ``stockade run --record-egress``: who was contacted, how, and how often."""

from __future__ import annotations

from stockade.sandbox.cli.style import escape, paint, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stockade.netns.edge.requests import EgressRequest
    from stockade.netns.egress import EgressAttempt

    Cell = str | tuple[str, str]

HEADER = ("HOST", "ADDRESS", "PORT", "VIA", "PACKETS", "BYTES", "FIRST")
REQUEST_HEADER = ("METHOD", "HOST", "PATH", "STATUS", "BYTES", "TIME", "HEADERS")
MOST_ROWS = 50
LONGEST_HOST = 60
LONGEST_DATA = 100


def lines(attempts: Sequence[EgressAttempt], on: bool) -> list[str]:
    """The lines, without line ends; ``on`` for colours. Every text of the program is escaped."""
    if not attempts:
        return ["stockade: egress: nothing was contacted"]
    few = attempts[:MOST_ROWS]
    rows: list[tuple[Cell, ...]] = [HEADER, *(row(each) for each in few)]
    head, *body = table(rows, on, header=True).splitlines()
    shown = [f"stockade: egress: {plural(len(attempts), 'destination')}", f"  {head}"]
    for attempt, line in zip(few, body, strict=True):
        shown += [f"  {line}", *(f"    {paint(text, 'dim', on)}" for text in remarks(attempt))]
    if len(attempts) > MOST_ROWS:
        shown.append(f"  and {len(attempts) - MOST_ROWS} more (--json lists them all)")
    return shown


def row(attempt: EgressAttempt) -> tuple[Cell, ...]:
    name = attempt.via == "dns" or not attempt.address
    address = "" if attempt.host == attempt.address else attempt.address
    return (
        cut(attempt.host, LONGEST_HOST),
        address or "-",
        "-" if name else str(attempt.port),
        way(attempt),
        str(attempt.packets),
        "-" if name else str(attempt.bytes),
        "-" if attempt.first_seen is None else f"{attempt.first_seen:.2f} s",
    )


def way(attempt: EgressAttempt) -> str:
    """How: the transport too, where what was recognised does not say it."""
    if attempt.via in (attempt.protocol, "tls", "http", "dns"):
        return attempt.via
    return f"{attempt.via}/{attempt.protocol}"


def remarks(attempt: EgressAttempt) -> list[str]:
    """What does not fit into a row: other names of the address, why it was looked at, how the first bytes begin."""
    found = [escape(cut(attempt.reason, LONGEST_DATA))] if attempt.reason else []
    if attempt.shared:
        found.append(escape(cut(f"address shared by {', '.join(attempt.shared)}", LONGEST_DATA)))
    first = next((line for line in attempt.data.splitlines() if line.strip()), "")
    if first:
        found.append(escape(cut(first, LONGEST_DATA)))
    return found


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def request_lines(requests: Sequence[EgressRequest], on: bool) -> list[str]:
    """What went through the edge, request by request; a refused one with its reason."""
    few = requests[:MOST_ROWS]
    head, *body = table([REQUEST_HEADER, *(request_row(each) for each in few)], on, header=True).splitlines()
    shown = [f"stockade: edge: {plural(len(requests), 'request')}", f"  {head}"]
    for request, line in zip(few, body, strict=True):
        shown.append(f"  {line}")
        if request.reason:
            shown.append(f"    {paint(escape(cut(request.reason, LONGEST_DATA)), 'dim', on)}")
    if len(requests) > MOST_ROWS:
        shown.append(f"  and {len(requests) - MOST_ROWS} more (--json lists them all)")
    return shown


def request_row(request: EgressRequest) -> tuple[Cell, ...]:
    host = request.host if request.port == 443 else f"{request.host}:{request.port}"
    return (
        request.method,
        cut(host, LONGEST_HOST),
        cut(request.path, LONGEST_HOST),
        "-" if request.status is None else str(request.status),
        str(request.bytes),
        f"{request.duration:.3f} s",
        "completed" if request.transformed else "-",
    )
