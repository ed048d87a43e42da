"""What hosts are told, where dialects agree: texts made harmless, documents, the deny that is left. Pure."""

from __future__ import annotations

from stockade.sandbox.hooks import jsontext
from stockade.sandbox.hooks.dialects.answers import MOST_REASON, bounded, texts
from stockade.sandbox.hooks.model import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from stockade.sandbox.hooks.model import MergedOutcome

NO_REASON = "Denied by a hook, which gave no reason."


def clean(text: str) -> str:
    """Text that every JSON reader takes: no lone surrogates, not too long."""
    return bounded(text.encode("utf-8", "replace").decode(), MOST_REASON)


def stated(reason: str) -> str:
    """A reason that is never blank."""
    return clean(reason) if reason.strip() and any(map(str.isprintable, reason.strip())) else NO_REASON


def joined(values: Collection[str], between: str = "\n\n") -> str:
    return between.join(each.encode("utf-8", "replace").decode() for each in values)


def lines(*values: str) -> bytes:
    """Text for stderr, control characters spelt out."""
    shown = "\n".join(each.rstrip("\n") for each in values if each)
    safe = "".join(each if each == "\n" or each.isprintable() else f"\\x{ord(each):02x}" for each in shown)
    return safe.encode("utf-8", "replace") + b"\n" if shown else b""


def document(value: Mapping[str, Any], exit_code: int = 0, stderr: bytes = b"") -> Reply:
    """One JSON document, or nothing for an empty one. Raises ValueError for text that is not Unicode, too."""
    if not value:
        return Reply(b"", stderr, exit_code)
    data = jsontext.dumps(value)
    if b"\\ud" in data:
        check_unicode(data)
    return Reply(data + b"\n", stderr, exit_code)


def check_unicode(data: bytes) -> None:
    value, _more = jsontext.parse(data.decode())
    encoded = jsontext.dumps(value, ascii=False)
    if b"\\ud" in encoded.replace(b"\\\\", b""):
        raise ValueError("a text has half a surrogate pair in it")


def told(name: str, merged: MergedOutcome, say: Callable[[str, MergedOutcome], Reply]) -> Reply:
    """What ``say`` makes of it; what has no JSON form becomes a deny that says so."""
    try:
        return say(name, merged)
    except (TypeError, ValueError, RecursionError) as error:
        return say(name, refusal(merged, f"what the hooks answered can't be told to the host: {error}"))


def refusal(merged: MergedOutcome, reason: str) -> MergedOutcome:
    """A deny instead, with nothing else but the halt."""
    return type(merged)(
        "deny",
        merged.halt,
        merged.stop_reason,
        reason,
        context=merged.context,
        system_messages=merged.system_messages,
    )


def without_halt(merged: MergedOutcome) -> MergedOutcome:
    """For a host that can't be told to end the turn: a deny with both reasons instead of a halt."""
    if not merged.halt:
        return merged
    reasons = texts(merged.reason if merged.verdict == "deny" else "", merged.stop_reason)
    ended = refusal(merged, joined(reasons) or "A hook ended the turn.")
    return ended.replace(halt=False, stop_reason="")


def too_late(merged: MergedOutcome, top: dict[str, Any], lost: bytes) -> Reply:
    """A deny where nothing can be denied: the host shows stderr as an error; only a halt it would obey."""
    if merged.halt:
        said = joined((stated(merged.reason), *merged.system_messages), "\n")
        return document({**top, "systemMessage": said}, stderr=lost)
    stderr = lines(stated(merged.reason), *merged.system_messages) + lost
    return Reply(b"", stderr, 1)
