"""How a run is asked to stop from elsewhere."""

from __future__ import annotations

import os


class Stopper:
    """How another thread, or a signal handler, asks a run to stop: a byte down a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)

    def request(self, number: int) -> None:
        """Pass a signal on to the program; the second request kills. Safe in a signal handler."""
        try:
            os.write(self.write, bytes([number]))
        except OSError:
            pass  # full, or over: it was heard often enough

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)
