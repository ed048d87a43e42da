"""What can go wrong with a leased network."""

from __future__ import annotations

from stockade.policies.errors import StockadeError


class LeaseFailed(StockadeError):
    """A leased network could not be made, or broke. ``part`` names what: nft, slirp4netns, holder, dns, recorder."""

    def __init__(self, message: str, *, part: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.part = part
