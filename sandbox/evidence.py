"""What a supervisor saw of one run: everything that ``classify`` may rest a verdict on."""

from __future__ import annotations

from stockade.policies.record import Record


class Bounds(Record):
    """What of a policy's limits can be seen from outside to be reached. None: no limit, or none that binds."""

    cpu: float | None = None
    processes: int | None = None
    open_files: int | None = None
    places: tuple[str, ...] = ()
    """Directories inside that have a size of their own."""
    crowd: int | None = None
    """Processes that the kernel does not limit (those of root): with more, we kill the run."""


class Evidence(Record):
    """What happened, as seen from outside the box. The program's exit code is all of it that it can choose."""

    failed_step: str = ""
    failed_errno: int = 0
    failed_detail: str = ""
    keeper_lost: bool = False
    lease_failure: str = ""
    """Why there was no leased network to run in."""
    lease_lost: str = ""
    """The part of the leased network that ended during the run."""
    gate_failure: str = ""
    """Why the program was not let go; empty when it was."""
    released: bool = False
    box_seen: bool = False
    garbled: bool = False
    """bwrap wrote a record that it never writes by itself: the program had its hands on pid 1 of the box."""
    exit_code: int | None = None
    """From bwrap's status record, or from the wait status of an unconfined program."""
    wait_status: int | None = None
    """Of bwrap's monitor."""
    killed: bool = False
    """We killed it."""
    deadline_passed: bool = False
    stop_signal: int = 0
    """The first signal that was passed on by request."""
    crowd: int = 0
    """How many processes and threads there were when we killed the run for it."""
    cpu_spent: float = 0.0
    """Processor seconds after which we ended it, for it had no more; 0 when we did not."""
    reached: tuple[tuple[str, str], ...] = ()
    """Limits that were seen from outside to be reached: the policy's key, and what was seen."""
    cgroup: str = ""
    """Where the run had a cgroup of its own."""
    counted: tuple[tuple[str, int], ...] = ()
    """What the kernel counted in it, by name (see ``cgroup.Group.figures``)."""
    cpu: float = 0.0
    peak: int = 0
    processes: int = 0
