"""Programs that want to go on after their run, or to end or stretch it in their own way."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import stockade
from stockade.sandbox.attacks.batch import interpreter
from stockade.sandbox.attacks.scenery import Seen, scene
from stockade.sandbox.attacks.scenes.plants import CLI, policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.sandbox.attacks.scenery import Stage
    from stockade.sandbox.result import RunResult

GROUP = "G process lifecycle"
PATIENCE = 5.0
DEAF = "import signal, os, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\n"
DAEMON = DEAF + "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(60)\n os._exit(0)\n"
RUNNER = "while True:\n    if os.fork(): os._exit(0)\n    os.setsid()\n    time.sleep(0.001)\n"


def survivors(token: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if token.encode() in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        except OSError:
            continue
    return found


def gone(look: Callable[[], object]) -> bool:
    """Whether it is over within a moment."""
    until = time.monotonic() + PATIENCE
    while look():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def new_token() -> str:
    return f"stockade-scene-{os.urandom(8).hex()}"


def outlived(stage: Stage, text: str, *, timeout: float | None = None) -> tuple[str, RunResult, bool]:
    """What of a Python program is left after its run, and whether such a one is found when it is there."""
    token = new_token()
    result = stockade.run(
        [interpreter(), "-c", text, token], cwd=stage.place, policy=policy(stage), timeout=timeout or 10
    )
    left = survivors(token)
    with subprocess.Popen(["/bin/sh", "-c", "read line", token], stdin=subprocess.PIPE) as made:
        found = gone(lambda: made.pid not in survivors(token))
        made.kill()
    return f"{len(left)} processes are left" if left else "", result, found


@scene("pid namespace, ended with its first process")
def leave_a_daemon(stage: Stage) -> Seen:
    """Leave a daemon behind: a session of its own, deaf to signals, its parent gone."""
    left, result, found = outlived(stage, DAEMON)
    return Seen(left, found, f"{result.outcome}; nothing is left")


@scene("pid namespace, ended with its first process")
def always_on_the_run(stage: Stage) -> Seen:
    """Fork for ever, so that no list of processes is ever right."""
    left, result, found = outlived(stage, DEAF + RUNNER, timeout=1)
    return Seen(left, found, f"{result.outcome}; nothing is left")


@scene("pid namespace, ended with its first process")
def outlast_the_deadline(stage: Stage) -> Seen:
    """Go on after the deadline: deaf to signals, with a child that holds the output open."""
    text = DAEMON + "print('held', flush=True)\ntime.sleep(60)\n"
    left, result, found = outlived(stage, text, timeout=0.5)
    late = "" if result.outcome == "timed_out" else f"it ended as {result.outcome}"
    return Seen(left or late, found, "timed_out; nothing is left")


@scene("first process of the box is not the program's to kill")
def kill_everybody(stage: Stage) -> Seen:
    """Kill every process that it may, its parent and its group: the verdict is still its own."""
    result = stockade.run(
        "kill -9 -1; kill -9 1; kill -9 $PPID; kill -9 0", cwd=stage.place, policy=policy(stage), timeout=10
    )
    again = stockade.run("echo fine", cwd=stage.place, policy=policy(stage))
    through = (
        "" if result.outcome in ("signalled", "exited") and again.ok else f"{result.outcome}, then {again.outcome}"
    )
    return Seen(through, again.ok, f"{result.outcome}: {result.reason}")


@scene("deadline kept from outside")
def stop_the_first_process(stage: Stage) -> Seen:
    """Stop the box's first process by tracing it, so that nobody reports the end."""
    text = "import ctypes, time\nctypes.CDLL(None).ptrace(16, 1, None, None)\ntime.sleep(60)\n"
    left, result, found = outlived(stage, text, timeout=0.7)
    return Seen(
        left or ("" if result.outcome == "timed_out" else result.outcome), found, "timed_out; nothing is left"
    )


@scene("everything hangs on the supervisor")
def when_the_supervisor_is_killed(stage: Stage) -> Seen:
    """Go on after stockade itself was killed (SIGKILL), with what it had made in the workspace."""
    token = new_token()
    script = "touch running; sleep 60; :"
    command = [*CLI, "--policy", "workspace-write", "--", "/bin/sh", "-c", script, token]
    with subprocess.Popen(command, cwd=stage.place, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as made:
        ran = gone(lambda: not os.path.exists(f"{stage.place}/running") and made.poll() is None)
        ran = ran and os.path.exists(f"{stage.place}/running")
        made.send_signal(signal.SIGKILL)
    left = "" if gone(lambda: survivors(token)) else "it runs on"
    names = "" if gone(lambda: set(os.listdir(stage.place)) - {"running"}) else "stand-ins are left"
    return Seen(left or names, ran, "no process and no stand-in is left")


@scene("stand-ins are removed at every end")
def litter_the_workspace(stage: Stage) -> Seen:
    """Leave empty files and directories of stockade's own in the workspace, by success, failure, signal and deadline."""
    for command, timeout in (("true", 10.0), ("false", 10.0), ("kill -9 $$", 10.0), ("sleep 60", 0.3)):
        stockade.run(command, cwd=stage.place, policy=policy(stage), timeout=timeout)
    left = os.listdir(stage.place)
    stockade.run("touch made", cwd=stage.place, policy=policy(stage))
    return Seen(
        f"left: {', '.join(left)}" if left else "",
        os.listdir(stage.place) == ["made"],
        "the directory is as it was",
    )
