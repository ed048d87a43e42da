"""The dialects of hooks, one file each; a file is loaded when its dialect is asked for."""

from __future__ import annotations

from stockade.policies.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.hooks.dialects.base import Dialect

NAMES = ("claude", "codex", "antigravity", "agy", "gemini", "cursor", "nous")


def dialect(name: str) -> Dialect:
    """The dialect of this name. Raises RequestError for another."""
    if name not in NAMES:
        raise RequestError(
            f"could not use the dialect {name!r}: there is no such dialect",
            remedy=f"Use one of {', '.join(NAMES)}.",
        )
    found: Dialect = __import__(f"{__name__}.{name}", fromlist=["NAME"])
    return found
