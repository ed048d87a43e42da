"""What a run came to. Made once, never changed; JSON with the same names."""

from __future__ import annotations

import os

from stockade.policies.errors import StockadeError
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.netns.edge.requests import EgressRequest
    from stockade.netns.egress import EgressAttempt, EgressDropped
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.apply import Applied
    from stockade.sandbox.changes import Changes
    from stockade.sandbox.denials import Denial
    from stockade.sandbox.writes import WrittenFile

SCHEMA = "stockade.result/1"


class Usage(Record):
    """What the run used. ``processes`` is the most seen at once, counted every 0.1 s."""

    cpu_seconds: float
    peak_rss: int
    processes: int
    cgroup: bool = False
    """Whether the kernel counted the run as a whole: its limits hold for all processes together then."""


class RunResult(Record):
    """The verdict on one run, with the evidence it rests on.

    ``outcome`` is ``exited``, ``signalled`` (likely), ``timed_out``, ``stopped``, ``lost``, ``runner_failed`` or
    ``not_executed``. Streams are bytes, within the policy's ``limits.output``: of a longer one the first and the
    last half are kept. ``files_written`` is None when nothing was recorded. Times are seconds, sizes bytes.
    """

    outcome: str
    exit_code: int | None
    signal: int | None
    returncode: int
    reason: str
    started: bool
    denied: bool
    denials: tuple[Denial, ...]
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_bytes: int
    """How many bytes the program wrote, kept or not."""
    stderr_bytes: int
    egress: tuple[EgressAttempt, ...]
    egress_dropped: EgressDropped | None
    files_written: tuple[WrittenFile, ...] | None
    enforcement: str
    degraded: tuple[str, ...]
    notes: tuple[str, ...]
    usage: Usage
    duration: float
    policy: Resolved
    argv: tuple[str, ...]
    rule: str
    """The rule of classification that decided, for reviewers."""
    changes: Changes | None
    """What an overlay workspace captured, until it is closed; None without one."""
    requests: tuple[EgressRequest, ...]
    """What went through the edge, request by request."""

    @property
    def ok(self) -> bool:
        """Whether the program ran and ended with code 0."""
        return self.outcome == "exited" and self.exit_code == 0

    def diff(self, *, limit: int = 1 << 20) -> str:
        """What an overlay workspace captured, as a unified diff: see ``Changes.diff``. Raises StockadeError without one."""
        return self._captured().diff(limit=limit)

    def apply(self, *, outside_links: bool = False) -> Applied:
        """Bring what an overlay workspace captured into the workspace: see ``Changes.apply``. Raises NotApplied."""
        return self._captured().apply(outside_links=outside_links)

    def _captured(self) -> Changes:
        if self.changes is None:
            raise StockadeError(
                "could not use the changes of this run: it captured none",
                remedy='Only a program that ran with workspace = "overlay" leaves some.',
            )
        return self.changes

    def to_json(self) -> dict[str, Any]:
        """A document of plain values, ``"schema": "stockade.result/1"``.

        Invalid UTF-8 in a stream becomes U+FFFD there, and the exact bytes are in ``stdout_base64`` too.
        """
        from stockade.policies.explain import to_dict

        fields = self.as_dict()
        changes = fields.pop("changes")
        document = {"schema": SCHEMA, **{name: plain(value) for name, value in fields.items()}}
        if changes is not None and not changes.closed:
            document["diff"] = plain(changes.diff())
        document["policy"] = plain(to_dict(self.policy))
        for name in ("stdout", "stderr"):
            document |= stream_fields(name, getattr(self, name))
        return document


def stream_fields(name: str, data: bytes) -> dict[str, str]:
    import base64

    fields = {name: data.decode("utf-8", "replace")}
    try:
        data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()
    return fields


def plain(value: Any) -> Any:
    """Records and tuples as JSON's own, at any depth; text that is not Unicode with its bytes escaped."""
    if isinstance(value, Record):
        return {name: plain(each) for name, each in value.as_dict().items()}
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, str):
        return os.fsencode(value).decode("utf-8", "backslashreplace") if not value.isascii() else value
    return value if not isinstance(value, bytes) else value.decode("utf-8", "replace")
