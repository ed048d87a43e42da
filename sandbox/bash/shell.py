"""One living shell in its sandbox: the run that it is, the socket that it is fed by, and its two pipes.

Its run is carried out by a thread of its own, which sleeps. While a call goes on, its caller reads the pipes; between
calls that thread does, and what comes then is counted and dropped: it belongs to no call.
"""

from __future__ import annotations

import os
import select
import socket
import threading

from stockade.policies.errors import StockadeError
from stockade.sandbox.bash.feed import GIVEN, is_bash
from stockade.sandbox.stopper import Stopper
from stockade.sandbox.streams import CHUNK, MOST_IN_PIPE, Capture
from stockade.sandbox.wires import Wires

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.order import Order
    from stockade.sandbox.plan import Plan
    from stockade.sandbox.result import RunResult
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

SAMPLE = 0.5
"""Seconds between two looks at the processes of a shell."""

QUOTED = 300
"""Characters of a shell's own words in a reason."""

LAST_WAIT = 5.0
"""Seconds that the end of a killed shell is waited for; what hangs in the kernel is left to the keeper."""


class Tap(Capture):
    """One pipe of the shell's. Until the first call it is captured: what a shell that does not come up says."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, CHUNK)
        self.lock = threading.Lock()
        self.busy = False
        """A call reads the pipe itself."""
        self.greeted = False
        self.between = 0
        """Bytes that came between calls."""
        self.ended = False

    def interest(self) -> list[tuple[int, int]]:
        return [] if self.busy or self.ended else super().interest()

    def handle(self, fd: int, events: int) -> None:
        with self.lock:
            if not self.busy:
                self._read()

    def take(self) -> None:
        """A call begins: what is there now was there before it."""
        with self.lock:
            self.drain()
            self.busy = True

    def leave(self) -> None:
        self.busy = False

    def drain(self) -> None:
        most = self.total + self.between + MOST_IN_PIPE
        while self.total + self.between < most and not self.ended and self._read():
            pass

    def finish(self, until: float | None = None) -> None:
        with self.lock:
            if not self.busy:
                self.drain()

    def keep(self, data: bytes) -> None:
        if self.greeted:
            self.between += len(data)
        else:
            super().keep(data)

    def _close(self) -> None:
        """Its end was read. The descriptor is the shell's to close: a call may be about to look at it."""
        self.ended = True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Shell:
    """Started when made. As a context manager: held by one call."""

    def __init__(self, order: Order, name: str, leases: LeasePool | None) -> None:
        """Raises SandboxUnavailable when the host can't enforce the policy, StockadeError when nothing can be started."""
        from stockade.sandbox.conduct import judge

        settled, _host = judge(order)
        self.bash = is_bash(name)
        self.confined = settled is not None
        self.level = "none" if settled is None else settled.level
        self.top = self.cwd = order.request.cwd
        """Where it begins, and where it was after the last call that told."""
        self.egress = order.policy.egress
        self.taps: dict[int, Tap] = {}
        self.pid = 0
        """Of the shell, as the kernel tells it with what the shell writes."""
        self.greeted = False
        self.doomed = False
        """It was killed; it may take a moment until it is gone."""
        self.run: RunResult | None = None
        self.error: StockadeError | None = None
        self._degraded = () if settled is None else tuple(f"{each.name}: {each.detail}" for each in settled.missing)
        self._planned: tuple[str, ...] = ()
        self._startup = 0
        self._released = False
        self._lock = threading.Lock()
        self.ours, self._theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.ours.setblocking(False)
        self.done, self._done = os.pipe()
        self.stopper = Stopper()
        wires = Wires(descriptors=((self._theirs.fileno(), GIVEN),), capture=self._tap, sample=SAMPLE)
        self._order = order.replace(wires=wires, inspect=self._see)
        try:
            threading.Thread(target=self._work, args=(leases,), name="stockade-shell", daemon=True).start()
        except RuntimeError as error:
            os.close(self._done)
            self._release()
            raise StockadeError(f"could not start a shell: {error}") from None

    def _work(self, leases: LeasePool | None) -> None:
        from stockade.sandbox.conduct import carry_out

        try:
            self.run = carry_out(self._order, capture=True, stopper=self.stopper, leases=leases)
        except StockadeError as error:
            self.error = error
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            self.error = StockadeError(f"could not run the shell: {type(error).__name__}: {error}")
        finally:
            os.close(self._done)

    def _tap(self, number: int, fd: int) -> Tap:
        if number in self.taps:  # the run was planned once more
            self.taps[number].close()
        self.taps[number] = Tap(fd)
        return self.taps[number]

    def _see(self, plan: Plan) -> None:
        self._planned = plan.notes

    def greet(self, pid: int) -> None:
        """The shell has said that it is there. Nobody else of its box could have."""
        self.pid, self.greeted = pid, True
        self._theirs.close()  # from here on the end of the socket is the end of the shell
        for tap in self.taps.values():
            with tap.lock:
                tap.drain()
                self._startup += tap.total
                tap.greeted = tap.busy = True

    def __enter__(self) -> Shell:
        if self.greeted:
            for tap in self.taps.values():
                tap.take()
        return self

    def __exit__(self, *_error: object) -> None:
        for tap in self.taps.values():
            tap.leave()

    def told(self) -> tuple[str, ...]:
        """What came from the shell and belongs to no call; told once."""
        notes = []
        if self._startup:
            notes.append(f"the shell wrote {self._startup} bytes while it started, which are left out")
        between = sum(tap.between for tap in self.taps.values())
        if between:
            notes.append(f"{between} bytes are left out, written between calls by what earlier ones left running")
        self._startup = 0
        for tap in self.taps.values():
            tap.between = 0
        return tuple(notes)

    def last_words(self) -> str:
        """What a shell that did not come up said."""
        from stockade.sandbox.cli.style import escape

        said = b" ".join(tap.data for tap in self.taps.values()).decode("utf-8", "replace").strip()
        return f": {escape(said[-QUOTED:])}" if said else ""

    def notes_of(self, run: RunResult | None) -> tuple[str, ...]:
        """What is to be known of the sandbox."""
        more = self._planned if run is None else run.notes
        if self.egress != "none" and run is None:
            more = (*more, "what was contacted is known when the kept shell has ended")
        return (*(f"degraded: {each}" for each in self._degraded), *more)

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.done, select.POLLIN)
        return bool(poll.poll(0))

    def kill(self) -> None:
        self.doomed = True
        with self._lock:
            if not self._released:
                self.stopper.request(signal.SIGKILL)

    def end(self) -> bool:
        """Kill what is left of it, while no call goes on. Whether it is gone; its descriptors are closed then."""
        if self._released:
            return True
        self.kill()
        poll = select.poll()
        poll.register(self.done, select.POLLIN)
        if not poll.poll(LAST_WAIT * 1000):
            return False
        self._release()
        return True

    def _release(self) -> None:
        with self._lock:
            self._released = True
            self.stopper.close()
        self.ours.close()
        self._theirs.close()
        os.close(self.done)
        for tap in self.taps.values():
            tap.close()
