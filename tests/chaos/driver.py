"""Drives a caller of the library from outside: a process in a session of its own that runs what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

import leftovers
import processtree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drive.py")
WAYS = ("none", "allow", "pasta", "record", "overlay")
"""Kinds of runs. Each brings other processes or files into play."""
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {"policy": "workspace-write"},
    "allow": {"policy": "workspace-write", "allow": ["192.0.2.1"]},
    "pasta": {"policy": "pasta.toml", "allow": ["192.0.2.1"]},
    "record": {"policy": "workspace-write", "record_egress": True},
    "overlay": {"policy": "overlay.toml"},
}
POLICIES = {
    "pasta.toml": 'extends = "workspace-write"\n[network]\nconnector = "pasta"\n',
    "overlay.toml": 'extends = "workspace-write"\n[filesystem]\nworkspace = "overlay"\n',
}


class Gone(Exception):
    """The driver ended without an answer."""


class Driver:
    """One such process. ``send`` and ``answer`` are apart, so that something can be done in between."""

    def __init__(self, place: leftovers.Place, prefix: Sequence[str] = ()) -> None:
        self.place = place
        for name, text in POLICIES.items():
            with open(f"{place.top}/{name}", "w") as file:
                file.write(text)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, SCRIPT],
            cwd=place.work,
            env=place.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self.process.pid
        leftovers.waited_for.add(self.pid)

    def send(self, way: str, command: Sequence[str], **more: Any) -> None:
        """Have a command run in one of the WAYS; ``count``, ``threads`` and ``expect`` repeat it."""
        options = {**OPTIONS[way], **more.pop("options", {})}
        if str(options["policy"]).endswith(".toml"):
            options["policy"] = f"{self.place.top}/{options['policy']}"
        self.tell({"command": list(command), "options": options, **more})

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Gone from None

    def answered(self, seconds: float = 0.0) -> bool:
        """Whether an answer, or the end, is there to be read."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self, patience: float = leftovers.PATIENCE) -> dict[str, Any]:
        """Raises Gone when it ended, and AssertionError when nothing comes."""
        assert self.process.stdout is not None
        assert self.answered(patience), f"no answer within {patience:.0f} s: {processtree.roles(self.pid)}"
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise Gone
        found: dict[str, Any] = json.loads(line)
        return found

    def run(self, way: str, command: Sequence[str], **more: Any) -> dict[str, Any]:
        self.send(way, command, **more)
        return self.answer()

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(order)
        return self.answer()

    def close(self) -> None:
        """Let it end by itself, as a process does at the end of its input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(leftovers.PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.wait()
            self.process.stdout.close()
            leftovers.waited_for.discard(self.pid)

    def kill(self) -> None:
        processtree_gone = self.process.poll() is not None
        if not processtree_gone:
            self.process.send_signal(signal.SIGKILL)
        self.close()


@contextlib.contextmanager
def driver(place: leftovers.Place, prefix: Sequence[str] = ()) -> Iterator[Driver]:
    """A driver that is killed if the block fails, and must end by itself otherwise."""
    made = Driver(place, prefix)
    try:
        yield made
    except BaseException:
        made.kill()
        raise
    made.close()


def pause(seconds: float) -> None:
    """A moment of a fault, drawn by lot; nothing is synchronised by it."""
    time.sleep(seconds)
