"""What a host was found to be able to enforce (pure). ``probe`` finds it out."""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.bwrap import Bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.policies.capability import Capability


class Host(Record):
    """The capabilities of this host for this caller, and the bubblewrap that was used to find them."""

    capabilities: tuple[Capability, ...]
    bwrap: Bwrap | None
    upper: str = ""
    """The directory in which overlay workspaces keep what they capture; empty where none was looked for."""

    def state(self, name: str) -> str:
        """``ok``, ``missing``, ``disabled``, ``too old`` or ``unknown``; also ``unknown`` for a name nobody knows."""
        return next((each.state for each in self.capabilities if each.name == name), "unknown")

    def has(self, name: str) -> bool:
        return self.state(name) == "ok"

    def by_name(self) -> dict[str, Capability]:
        return {each.name: each for each in self.capabilities}

    def to_json(self) -> dict[str, Any]:
        """A document of plain values, ``"schema": "stockade.host/1"``."""
        return {
            "schema": "stockade.host/1",
            "bwrap": None if self.bwrap is None else self.bwrap.path,
            "capabilities": [each.as_dict() for each in self.capabilities],
        }
