"""Requests that went through the edge, as they are recorded (pure): one ``EgressRequest`` each, and what is shown.

Shared by the proxy and the supervisor. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from stockade.policies.record import Record

HIDDEN = "…"
"""Stands for a value of a query that is not shown."""
LONGEST_PATH = 2048
CUT = "..."


class EgressRequest(Record):
    """One HTTP request to a host of ``network.edge``, passed or refused. No field holds a secret."""

    method: str
    host: str
    port: int
    path: str
    """With the query; shortened when it is very long. Secrets are masked, and with ``network.mask_queries`` the
    values of the query are left out."""
    status: int | None
    """Of the answer that the program got; None when there was none."""
    bytes: int
    """Of the answer's body."""
    duration: float
    """Seconds from the head of the request to the end of the answer; of a websocket, to the answer."""
    transformed: bool
    """Whether a header was put in."""
    reason: str
    """Why it was refused or failed; else empty."""
    first_seen: float
    """Seconds since the run began."""


def shown_path(target: str, *, mask_query: bool) -> str:
    """The path and query of a request as they are recorded: printable, bounded, values hidden if ``mask_query``."""
    path, mark, query = target.partition("?")
    if mark and mask_query:
        query = hide_values(query)
    text = "".join(letter if letter.isprintable() else _spelt(letter) for letter in f"{path}{mark}{query}")
    return text if len(text) <= LONGEST_PATH else f"{text[:LONGEST_PATH]}{CUT}"


def hide_values(query: str) -> str:
    """The query with each value replaced; a part without ``=`` is a value too."""
    parts = [part.partition("=") for part in query.split("&")]
    return "&".join(f"{name}={HIDDEN}" if mark else HIDDEN for name, mark, _value in parts)


def _spelt(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii") if letter.isascii() else "?"
