"""What hooks and the bash layer cost beyond a plain run: figures of scripts/bench."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import bench
import psutil

import stockade

EVENT = {
    "session_id": "s",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "ls"},
}
BUSY_SECONDS = 5.0
JOBS = 20
MEGABYTES = 100


def rows(rounds: int, cwd: str) -> list[dict]:
    return [*hooks(rounds, cwd), *calls(rounds, cwd)]


def hooks(rounds: int, cwd: str) -> list[dict]:
    event = Path(cwd, "event.json")
    event.write_text(json.dumps(EVENT))
    command = str(bench.COMMAND)
    run = [command, "run", "--policy", "hook", "--", "cat"]
    taken = bench.interleaved(
        {
            "CLI, run --policy hook": fed(run, event),
            "CLI, hook": fed([command, "hook", "--", "cat"], event),
            "API, run, policy hook": bench.confined(["cat"], cwd=cwd, policy="hook", stdin=json.dumps(EVENT)),
            "API, run_hook": lambda: hooked(cwd),
        },
        rounds,
    )
    return [
        row("CLI, hook", taken, "CLI, run --policy hook"),
        row("API, run_hook", taken, "API, run, policy hook"),
    ]


def fed(command: list[str], event: Path):
    def act() -> None:
        with event.open("rb") as stdin:
            subprocess.run(command, stdin=stdin, stdout=subprocess.DEVNULL, check=True)

    return act


def hooked(cwd: str) -> None:
    result = stockade.run_hook(["cat"], EVENT, trusted=False, cwd=cwd)
    if result.outcome != "exited" or result.enforcement == "none":
        raise SystemExit(f"could not measure run_hook: {result.outcome}, {result.reason}")


def calls(rounds: int, cwd: str) -> list[dict]:
    """A tool for calls of each kind, in a workspace that is not walked for long."""
    work = Path(cwd, "calls")
    work.mkdir(mode=0o777)
    os.chmod(work, 0o777)
    place = str(work)
    with (
        stockade.BashTool("read-only", cwd=place) as fresh,
        stockade.BashTool("read-only", cwd=place, session=True) as session,
        stockade.BashTool("read-only", cwd=place, keep=True) as kept,
    ):
        taken = bench.interleaved(
            {
                "API, run bash -c true": bench.confined(["bash", "-c", "true"], cwd=place),
                "BashTool, true": called(fresh, "true"),
                "BashTool, session": called(session, "true"),
                "BashTool, keep": called(kept, "true"),
                "BashTool, keep, /bin/true": called(kept, "/bin/true"),
            },
            rounds,
        )
        found = [
            row("BashTool, true", taken, "API, run bash -c true", goal=1.3),
            row("BashTool, session", taken, "API, run bash -c true"),
            row("BashTool, keep", taken),
            row("BashTool, keep, /bin/true", taken),
        ]
        return [*found, flood(fresh), busy(place)]


def called(tool, command: str):
    def act() -> None:
        result = tool.run(command)
        if result.exit_code != 0 or result.sandbox.enforcement == "none":
            raise SystemExit(f"could not measure {command!r}: {result.reason}")

    return act


def flood(tool) -> dict:
    """Output, and how much this process grew by it."""
    before = psutil.Process().memory_info().rss
    command = f"head -c {MEGABYTES}000000 /dev/zero"
    taken = min(bench.timed(called(tool, command)) for _ in range(3))
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    what = f"{MEGABYTES} MB of output, {MEGABYTES / taken * 1000:.0f} MB/s, +{grown:.0f} MiB"
    return {
        "what": what,
        "ms": round(taken, 1),
        "min_ms": round(taken, 1),
        "against": "",
        "ratio": None,
        "goal": None,
    }


def busy(place: str) -> dict:
    """Share of one core that this process and its keeper need for background jobs with steady output."""
    with stockade.BashTool("read-only", cwd=place, jobs=JOBS) as tool:
        for _ in range(JOBS):
            tool.start("while echo a line of output; do sleep 0.1; done")
        time.sleep(1.0)
        before, began = spent(), time.monotonic()
        time.sleep(BUSY_SECONDS)
        share = (spent() - before) / (time.monotonic() - began)
    what = f"{JOBS} jobs, {JOBS * 10} lines/s: {share * 100:.1f} % of a core"
    return {"what": what, "ms": 0.0, "min_ms": 0.0, "against": "", "ratio": None, "goal": None}


def spent() -> float:
    """Processor time of this process and of its keepers."""
    me = psutil.Process()
    keepers = [each for each in me.children() if "python" in each.name()]
    return sum(sum(each.cpu_times()[:2]) for each in (me, *keepers))


def row(name: str, taken: dict[str, list[float]], under: str = "", goal: float | None = None) -> dict:
    values = taken[name]
    return {
        "what": name,
        "ms": round(bench.median(values), 2),
        "min_ms": round(min(values), 2),
        "against": under,
        "ratio": round(bench.ratio_of_pairs(values, taken[under]), 3) if under else None,
        "goal": goal,
    }
