"""What a run is wired with beside its three streams: descriptors handed to the program, streams polled with its own.

Nothing of it is there unless a caller inside this package asks: everything else stays closed to the program.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.sandbox.streams import Capture, Stream


class Wires(Record):
    """Goes into ``Order.wires``; the same for confined and for direct runs.

    The program can pass its descriptors on to every child that it starts, and the children of a program with the
    same uid can open its pipes and files anew by /proc/PID/fd. A socket can't be: give one end of a socketpair,
    read the other without ancillary data (what descriptors the box sends are dropped then), and trust nothing.
    """

    descriptors: tuple[tuple[int, int], ...] = ()
    """Pairs: a descriptor of ours, and the number from 3 to 9 that the program finds it under. Ours is not closed.

    bwrap's monitor and the first process of the box close theirs, so that the other end sees the end of the last
    program that had one.
    """
    streams: tuple[Stream, ...] = ()
    """Polled in the loop of the supervisor. ``finish`` is called when nothing of the run is left, and may be again."""
    capture: Callable[[int, int], Capture] | None = None
    """Makes what takes a captured stream: from its number, 1 or 2, and the pipe to read. None: a plain ``Capture``."""
    sample: float = 0.1
    """Seconds between two looks at the processes in the box, at least: what goes on for long is looked at less often."""
