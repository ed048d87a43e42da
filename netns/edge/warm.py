"""Everything that the proxy loads only when it first needs it, loaded before it gives up its rights (proxy only)."""

from __future__ import annotations

import importlib

LATE = (
    "encodings.idna", "encodings.latin_1", "encodings.unicode_escape", "stringprep", "ipaddress", "unicodedata",
    "asyncio", "base64", "collections", "ctypes", "hashlib", "json", "resource", "socket",
    "stockade.netns.edge.carrier", "stockade.netns.edge.messages", "stockade.policies.errors",
)  # fmt: skip


def warm_up() -> None:
    """Import what is left, and make one authority and one certificate."""
    for name in LATE:
        importlib.import_module(name)
    from stockade.netns.edge.ca import Authority
    from stockade.netns.edge.mask import Masker

    Authority(["warm.example"]).context("warm.example")
    Masker(["warm up"])
    "warm.example".encode("idna")
