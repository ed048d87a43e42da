"""The one lock of the library. Apart, because ``threading`` is not for the command line's hot path."""

from __future__ import annotations

import os
import threading

KEEPER_LOCK = threading.Lock()


def renew() -> None:
    """A forked copy has no thread that would let go of a lock that was held at that moment."""
    global KEEPER_LOCK
    KEEPER_LOCK = threading.Lock()


os.register_at_fork(after_in_child=renew)
