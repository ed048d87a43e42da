"""What a call of the tool came to, and what a job looks like while it goes on. Made once, never changed."""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.sandbox.denials import Denial
    from stockade.sandbox.result import RunResult

SCHEMA = "stockade.bash/1"


class SandboxFacts(Record):
    """What the sandbox did, apart from what the command did."""

    mode: str
    """``read-only``, ``workspace-write`` or ``full-access``."""
    enforcement: str
    """``full``, ``partial`` or ``none``."""
    denied: bool
    denials: tuple[Denial, ...]
    runner_failed: bool
    """The sandbox failed: what the command made of it, if it ran at all, says nothing. Outranks a denial."""
    notes: tuple[str, ...] = ()
    """What of the policy is not in force on this host, and what else is good to know of the sandbox."""


class BashResult(Record):
    """What a command came to.

    ``outcome`` and ``reason`` are those of ``RunResult``. Of a stream longer than 64 kB the first and the last half
    are kept, cut between characters, and the whole is in a private file. ``denied`` is a fact beside the exit code.
    """

    exit_code: int | None
    signal: int | None
    timed_out: bool
    outcome: str
    reason: str
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    """How many bytes the command wrote, kept or not."""
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_cut: int
    """Where in ``stdout`` the middle is missing, when it is truncated."""
    stderr_cut: int
    stdout_file: str | None
    """The whole of a truncated stream (its first 64 MiB): gone with the tool, or the process. None: nothing more is there."""
    stderr_file: str | None
    sandbox: SandboxFacts
    duration: float
    timeout: float | None
    """Seconds that it could have taken."""
    cwd: str
    """The directory after the call where state is carried on, else the one it began in."""
    notes: tuple[str, ...] = ()
    job: str | None = None
    run: RunResult | None = None
    """The verdict that it rests on."""

    @property
    def ok(self) -> bool:
        """Whether the command ran and ended with code 0."""
        return self.outcome == "exited" and self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        """A document of plain values, ``"schema": "stockade.bash/1"``, without ``run``.

        Invalid UTF-8 in a stream becomes U+FFFD there, and the exact bytes are in ``stdout_base64`` too.
        """
        from stockade.sandbox.result import plain, stream_fields

        fields = {name: plain(value) for name, value in self.as_dict().items() if name != "run"}
        for name in ("stdout", "stderr"):
            fields |= stream_fields(name, getattr(self, name))
        return {"schema": SCHEMA, **fields}


class JobState(Record):
    """A background job that is still going on. A settled one is a ``BashResult`` whose ``job`` is its id."""

    job: str
    command: str
    mode: str
    started: float
    """Seconds since it began."""
    bytes: int
    """What it has written, on both streams."""

    def to_json(self) -> dict[str, Any]:
        from stockade.sandbox.result import plain

        return {"schema": SCHEMA, "running": True, **{name: plain(value) for name, value in self.as_dict().items()}}


class Chunk(Record):
    """What a job wrote from a place on, both streams in the order in which it came."""

    job: str
    data: bytes
    since: int
    """Where ``data`` begins; later than asked for where output was dropped."""
    next: int
    """Ask from here the next time."""
    dropped: int
    """Bytes between what was asked for and ``since`` that are not kept any more."""
    running: bool
    """Whether more can come."""
