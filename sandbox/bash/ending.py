"""What has to end with the process is closed at its exit, before the keeper is told to go."""

from __future__ import annotations

import atexit
import os
import weakref

from stockade.policies.errors import StockadeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Closable(Protocol):
        """Something with processes of its own."""

        def close(self) -> None:
            """End them. May be called again."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()
_watching = 0
"""The process that is watched: a fork is another one."""


def end_at_exit(thing: Closable) -> None:
    """Have ``thing`` closed at the end of this process, if it is still there by then.

    Functions of ``atexit`` run in reverse: this one has to be known after that which ends the keeper, since a keeper
    with runs would keep the process waiting.
    """
    global _watching
    _open.add(thing)
    if _watching == os.getpid():
        return
    from stockade.sandbox.keeperlink import shared
    from stockade.sandbox.locks import KEEPER_LOCK

    try:
        with KEEPER_LOCK:
            shared()
    except StockadeError:
        return  # who wants to run something says so
    _watching = os.getpid()
    atexit.register(close_all)


def close_all() -> None:
    for thing in list(_open):
        thing.close()
