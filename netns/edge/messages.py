"""What the two ends of the link say to each other (pure): one JSON object a datagram, checked field by field.

    open, take, close   from the supervisor; a descriptor comes with the first two
    opened, failed, request, ended, closed   from the proxy

``read_message`` is what stands between the supervisor and whatever the proxy sends.
"""

from __future__ import annotations

import json

from stockade.netns.edge.requests import EgressRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LARGEST = 160 * 1024
"""Bytes of one datagram: what fits into a socket's buffer as the kernel makes it."""
MOST_TEXT = 16 * 1024
MOST_NUMBER = 1 << 62
MOST_SECONDS = 1e9
FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "opened": {"session": int, "ca": str},
    "failed": {"session": int, "cause": str},
    "ended": {"session": int, "connection": int, "sent": int, "received": int},
    "closed": {"session": int},
    "request": {
        "session": int,
        "connection": int,
        "method": str,
        "host": str,
        "port": int,
        "path": str,
        "status": (int, type(None)),
        "bytes": int,
        "duration": float,
        "transformed": bool,
        "reason": str,
        "time": float,
    },
}


def write_message(kind: str, **fields: Any) -> bytes:
    """One datagram."""
    return json.dumps({"type": kind, **fields}, separators=(",", ":"), allow_nan=False).encode("ascii")


def read_message(data: bytes) -> dict[str, Any] | None:
    """What the proxy said, or None if it is nothing that a proxy says. Never raises."""
    if len(data) > LARGEST:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(kind := found.get("type"), str):
        return None
    fields = FIELDS.get(kind)
    if fields is None or set(found) != {"type", *fields}:
        return None
    return found if all(_fits(found[name], wanted) for name, wanted in fields.items()) else None


def request_of(message: Mapping[str, Any], began: float, now: float) -> EgressRequest | None:
    """The record in a message of the kind ``request``; None if its values can't be.

    ``began`` is when the run began, ``now`` the time; both, like that in the message, of ``time.monotonic``.
    """
    status = message["status"]
    if status is not None and not 100 <= status <= 599:
        return None
    if not 0 < message["port"] < 1 << 16 or message["bytes"] < 0:
        return None
    texts = [shown(message[name]) for name in ("method", "host", "path", "reason")]
    seen = min(max(message["time"], began), now) - began
    return EgressRequest(
        texts[0],
        texts[1],
        message["port"],
        texts[2],
        status,
        message["bytes"],
        min(max(message["duration"], 0.0), now),
        message["transformed"],
        texts[3],
        round(seen, 6),
    )


def shown(text: str) -> str:
    """Text on which a terminal does nothing odd."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _fits(value: object, wanted: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    if isinstance(value, str):
        return wanted is str and len(value) <= MOST_TEXT
    if isinstance(value, float):
        return wanted is float and -MOST_SECONDS < value < MOST_SECONDS
    if isinstance(value, int):
        if wanted is float:
            return abs(value) < MOST_SECONDS
        return abs(value) < MOST_NUMBER and (wanted is int or (isinstance(wanted, tuple) and int in wanted))
    return value is None and isinstance(wanted, tuple)
