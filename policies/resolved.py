"""A policy as it will be enforced: one flat record, every text parsed, every field with its origin."""

from __future__ import annotations

from stockade.policies.record import Record


class Resolved(Record):
    """What ``policies.resolve`` makes of presets, files, environment and options.

    Sizes are bytes, times are seconds, ``None`` means no limit. Paths are as written: ``~`` and relative
    ones are expanded against the home and the workspace of the run.
    """

    name: str
    """The preset or file the policy started from, for messages."""
    mode: str | None
    """``auto``, ``strict``, ``off``, or None: follow provenance."""
    root: str
    workspace: str
    write: tuple[str, ...]
    read: tuple[str, ...]
    hide: tuple[str, ...]
    protect: tuple[str, ...]
    home: str
    toolchains: str
    env_pass: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    egress: str
    allow: tuple[str, ...]
    private: bool
    connector: str
    """``slirp4netns``, ``pasta``, or ``auto``: whichever works, in that order."""
    timeout: float | None
    cpu: float | None
    """Processor seconds of all processes together."""
    memory: int | None
    processes: int | None
    file_size: int | None
    tmp: int | None
    output: int | None
    open_files: int | None
    syscalls: str
    user: str
    origin: tuple[tuple[str, str], ...]
    """Pairs of TOML key (``filesystem.write``) and the layer that set it."""
    check: str = "auto"
    """Whether the name inside a connection is looked at: ``name``, ``address`` (never), or ``auto``: where the
    address turns out to be shared. An entry of ``allow`` may say otherwise for itself."""
    edge: tuple[str, ...] = ()
    """One line for each entry, in the order they are tried (see ``policies.edge``)."""
    mask_queries: bool = False
    """Whether the values in a query are left out of the record of requests."""
