"""``python -m stockade``."""

from __future__ import annotations

from stockade.sandbox.cli.main import console

console()
