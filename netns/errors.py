"""What can go wrong with a leased network. The run is refused: rules that could not be verified never run open."""

from __future__ import annotations

from stockade.policies.errors import StockadeError


class LeaseFailed(StockadeError):
    """A leased network could not be made, or broke. ``part`` is ``nft``, ``slirp4netns``, ``pasta``, ``holder``,
    ``dns``, ``recorder`` or ``edge``.
    """

    def __init__(self, message: str, *, part: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.part = part


class LeaseLate(LeaseFailed):
    """A part did not answer in time; it may still be there."""
