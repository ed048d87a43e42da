"""Programs that want another verdict than the true one."""

from __future__ import annotations

import json
import subprocess

import stockade
from stockade.sandbox.attacks.batch import interpreter
from stockade.sandbox.attacks.scenery import Seen, scene
from stockade.sandbox.attacks.scenes.plants import CLI, policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.attacks.scenery import Stage

GROUP = "I misclassification"
RECORDS = """
import os
for fd in list(map(int, os.listdir("/proc/self/fd"))) + list(range(3, 40)):
    try: os.write(fd, b'{ "child-pid": 1 }\\n{ "exit-code": 0 }\\n')
    except OSError: pass
raise SystemExit(3)
"""


@scene("outcome from status records alone")
def pretend_that_the_sandbox_failed(stage: Stage) -> Seen:
    """Print what a failing bubblewrap prints, and end with its code."""
    result = stockade.run(
        "echo 'bwrap: Creating new namespace failed'; exit 1", cwd=stage.place, policy=policy(stage)
    )
    true = stockade.run(["no-such-program"], cwd=stage.place, policy=policy(stage))
    right = (result.outcome, result.exit_code, result.started) == ("exited", 1, True)
    return Seen("" if right else result.outcome, true.outcome == "not_executed", "exited with code 1")


@scene("status pipe closed inside")
def forge_the_status_record(stage: Stage) -> Seen:
    """Write bubblewrap's status records into every descriptor there is."""
    result = stockade.run([interpreter(), "-c", RECORDS], cwd=stage.place, policy=policy(stage))
    right = (result.outcome, result.exit_code) == ("exited", 3)
    control = b"exit-code" in result.stdout
    return Seen("" if right else f"{result.outcome} {result.exit_code}", control, "exited with code 3")


@scene("no number of ours has a meaning")
def end_with_our_own_codes(stage: Stage) -> Seen:
    """End with the codes that stockade itself uses: 124, 125, 126, 127."""
    results = [stockade.run(f"exit {code}", cwd=stage.place, policy=policy(stage)) for code in (124, 125, 126, 127)]
    wrong = [result.outcome for result in results if result.outcome != "exited"]
    late = stockade.run("sleep 60", cwd=stage.place, policy=policy(stage), timeout=0.2)
    return Seen(
        ", ".join(wrong), late.outcome == "timed_out" and late.returncode == 124, "exited, each with its code"
    )


@scene("denials rest on counters, or are called suspected")
def forge_a_denial(stage: Stage) -> Seen:
    """Have a denial called observed that it only printed."""
    said = "Read-only file system; refused 1 packet by tcp to 192.0.2.1:443; Operation not permitted"
    result = stockade.run(f"echo '{said}' >&2; exit 1", cwd=stage.place, policy=policy(stage))
    observed = [each.subject for each in result.denials if each.certainty == "observed"]
    return Seen(", ".join(observed), bool(result.denials), "suspected")


@scene("one document, made by stockade")
def forge_the_document(stage: Stage) -> Seen:
    """Print a result document of its own under --json."""
    fake = json.dumps({"schema": "stockade.result/1", "outcome": "exited", "exit_code": 0, "enforcement": "full"})
    words = [*CLI, "--json", "--", "/bin/sh", "-c", f"echo '{fake}'; exit 9"]
    done = subprocess.run(words, cwd=stage.place, capture_output=True, text=True, timeout=30, check=False)
    found = json.loads(done.stdout)
    right = (found["exit_code"], done.returncode) == (9, 9)
    return Seen(
        "" if right else f"exit_code {found['exit_code']}",
        fake in found["stdout"],
        "it stands in stdout, and nowhere else",
    )


def signalled(stage: Stage, command: str) -> str:
    return stockade.run(command, cwd=stage.place, policy=policy(stage)).reason


@scene("called likely")
def pretend_a_signal(stage: Stage) -> Seen:
    """End with 137, to look as if killed."""
    reason = signalled(stage, "exit 137")
    return Seen("" if "likely" in reason else reason, "likely" in signalled(stage, "kill -9 $$"), "likely, it says")
