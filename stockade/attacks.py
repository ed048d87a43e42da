"""``python -m stockade.attacks``: attack the box of this host, and say what came of it."""

from __future__ import annotations

from stockade.sandbox.attacks.main import console

if __name__ == "__main__":
    console()
