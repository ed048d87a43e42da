"""The one lock of the library. Apart, because ``threading`` is not for the command line's hot path."""

from __future__ import annotations

import threading

KEEPER_LOCK = threading.Lock()
