"""What the sandbox refused (pure): worth knowing, seldom bad by itself."""

from __future__ import annotations

from stockade.sandbox.review.findings.seen import Found, gathered, piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.review.findings.seen import Seen


def look(seen: Seen) -> Iterator[Found]:
    """Limits are told elsewhere, and a network that is off on purpose is none of the handler's doing."""
    hits = [(run, each) for run in seen.recorded for each in run.denials if each.kind in ("filesystem", "syscall")]
    if hits:
        severe = any(each.kind == "syscall" and each.certainty == "observed" for _run, each in hits)
        pieces = (piece("denial", f"{each.certainty}, {each.kind}: {each.detail}", run) for run, each in hits)
        yield Found("denied", gathered(pieces), severity="medium" if severe else "")
