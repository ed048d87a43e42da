"""Exit codes of the command line, in one place."""

from __future__ import annotations

OK = 0
NOT_GOOD = 1
"""A check was made and its answer is no: ``policy check``, ``doctor``."""
TIMED_OUT = 124
FAILED = 125
"""stockade failed or refused, or the command line was wrong. Never 2: that means "deny" to hook hosts."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
