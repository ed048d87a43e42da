"""How much a soak test does. STOCKADE_SOAK_SECONDS bounds each of them; ``none`` asks for the full numbers."""

from __future__ import annotations

import os
import random
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = os.environ.get("STOCKADE_SOAK_SECONDS", "")
ASKED = bool(SECONDS)
"""Without it soak tests are left out."""
FULL = SECONDS == "none"


def turns(usual: int, full: int, least: int) -> Iterator[int]:
    """Numbers from 0 on: so many, or until the time is over, but ``least`` in any case."""
    until = float("inf") if FULL else time.monotonic() + float(SECONDS)
    for number in range(full if FULL else usual):
        if number >= least and time.monotonic() > until:
            return
        yield number


def seed() -> int:
    """What everything random here comes from. STOCKADE_CHAOS_SEED repeats one that a failure names."""
    asked = os.environ.get("STOCKADE_CHAOS_SEED")
    return int(asked) if asked else random.SystemRandom().randrange(1 << 32)
