"""Try a whole lease, for ``doctor``: one connection that must be let through and one that must be refused.

Both servers are in a network namespace of the trial's own, outside of the lease, as the world is; nothing
leaves this machine.
"""

from __future__ import annotations

import subprocess
import sys

from stockade.policies.capability import Capability

SECONDS = 30
ALLOWED, REFUSED, PORT = "198.51.100.1", "203.0.113.1", 8080


def try_lease() -> Capability:
    """Run the trial in a process and a network namespace of its own."""
    command = [sys.executable, "-m", "stockade.sandbox.leaseworld"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Capability("leased-network", "unknown", f"the trial could not be run: {error}", "Try again.")
    words = done.stdout.split()
    if words == ["reached", "refused"]:
        return Capability("leased-network", "ok", "a listed address was reached and another one was refused")
    said = (done.stdout + done.stderr).strip().splitlines()
    detail = said[-1] if said else "it said nothing"
    return Capability(
        "leased-network", "missing", f"the trial failed: {detail}", "Run slirp4netns by hand to see why."
    )
