"""More processes than the policy grants. In a run of their own: for a kept root, having too many ends the run."""

from __future__ import annotations

import os
import signal
import time

import stockade
from stockade.sandbox.attacks.batch import interpreter
from stockade.sandbox.attacks.scenery import Seen, scene
from stockade.sandbox.attacks.scenes.plants import policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.attacks.scenery import Stage

GROUP = "K resource exhaustion"
FORKS, MOST = 60, 40
FORKER = f"""
import os, time
made = 0
try:
    while made < {FORKS}:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        made += 1
except OSError:
    pass
time.sleep(1)
os.write(1, b"%d" % made)
"""
"""Ends by itself, whatever stops it."""


def forked(count: int) -> int:
    """How many children could be had at once; all are gone afterwards."""
    pids: list[int] = []
    try:
        for _turn in range(count):
            pid = os.fork()
            if pid == 0:
                time.sleep(6)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return len(pids)


@scene("limit of the policy")
def many_processes(stage: Stage) -> Seen:
    """Start more processes than the policy grants."""
    limits = policy(stage, limits={"processes": MOST})
    result = stockade.run([interpreter(), "-c", FORKER], cwd=stage.place, policy=limits, timeout=20)
    ended = result.outcome == "signalled" and result.rule == "crowded"
    made = int(result.stdout or b"0") if result.outcome == "exited" else FORKS
    through = "" if ended or made < MOST else f"{made} processes, {result.outcome}"
    return Seen(
        through, forked(FORKS) == FORKS, result.reason if ended else f"{made} of {FORKS}: {os.strerror(11)}"
    )
