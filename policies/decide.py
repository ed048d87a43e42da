"""Mode, provenance and what the host can do: direct, confine or refuse (pure).

The one table that decides whether a program runs unconfined. Anything it does not know is refused.
"""

from __future__ import annotations

CONFINED = {
    "auto": {"full": "confine", "partial": "confine", "none": "refuse"},
    "strict": {"full": "confine", "partial": "refuse", "none": "refuse"},
}


def decide(mode: str | None, trusted: bool, level: str) -> str:
    """``direct``, ``confine`` or ``refuse``.

    ``mode`` is ``auto``, ``strict``, ``off`` or None (follow provenance); ``level`` is what the host can
    enforce of the policy: ``full``, ``partial`` or ``none``. An unknown mode or level is refused.
    """
    if mode == "off" or (mode is None and trusted is True):
        return "direct" if level in CONFINED["auto"] else "refuse"
    return CONFINED.get("auto" if mode is None else mode, {}).get(level, "refuse")


def warn_if_off(mode: str | None, trusted: bool, setting: str) -> str | None:
    """The warning for foreign code that runs unconfined, naming the setting that did it; None if there is none."""
    if mode != "off" or trusted is True:
        return None
    return f"foreign code (trusted is false) runs without a sandbox: mode is off, set by {setting}"
