"""Exit codes that the commands themselves give. Those of a run come with its outcome, from ``classify``."""

from __future__ import annotations

OK = 0
NOT_GOOD = 1
"""A check was made and its answer is no: ``policy check``, ``doctor``."""
FAILED = 125
"""stockade failed or refused, or the command line was wrong. Never 2: that means "deny" to hook hosts."""
DENIED = 2
"""What a hook's host reads as a refusal."""
