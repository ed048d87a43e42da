"""What a confined run costs: medians of interleaved pairs, as ratios to floors measured in the same run.

Absolute times of a shared machine say little; each ratio is of two commands that took turns. The table goes to
stdout, all figures to a JSON file with --json FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import stockade
from stockade.sandbox import argv as lines
from stockade.sandbox import keeperlink, probe
from stockade.sandbox.confinement import prepare
from stockade.sandbox.order import make_order

COMMAND = Path(sys.executable).with_name("stockade")
REFERENCE = [
    "--ro-bind", "/", "/",
    "--dev", "/dev",
    "--proc", "/proc",
    "--tmpfs", "/tmp",
    "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv",
    "--cap-drop", "ALL",
]  # fmt: skip
JOBS = {
    "compute, 2 s": [sys.executable, "-c", "x = 0\nfor i in range(22_000_000): x += i * i"],
    "compileall": [sys.executable, "-m", "compileall", "-q", "-f", "-x", "lib2to3", "{work}/src"],
    "git checkout": [
        "sh",
        "-c",
        "cd {work}/repo && for i in 1 2 3; do git checkout -q one && git checkout -q two; done",
    ],
}


def timed(act) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def interleaved(acts: dict, rounds: int) -> dict[str, list[float]]:
    """Every act in turn, ``rounds`` times after one warm-up; milliseconds each."""
    for act in acts.values():
        act()
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            taken[name].append(timed(act))
    return taken


def spawn(command: list[str], **options):
    def act() -> None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, **options)
        if done.returncode != 0:
            raise SystemExit(
                f"could not measure {command[:3]}: it ended with {done.returncode}\n{done.stderr.decode()}"
            )

    return act


def confined(command: list[str], **options):
    def act() -> None:
        result = stockade.run(command, **options)
        if result.outcome != "exited" or result.exit_code != 0 or result.enforcement == "none":
            raise SystemExit(
                f"could not measure {command[:3]}: {result.outcome}, {result.reason}, {result.stderr!r}"
            )

    return act


def equal_argv(bwrap: str, cwd: str) -> list[str]:
    """A bare bwrap with the very options that a run has (by path, without supervision)."""
    order = make_order(["true"], cwd=cwd)
    start = prepare(order.policy, order.request, probe.known().bwrap)
    line = lines.render(start.plan, supervised=False, seccomp=False, by_descriptor=False, staged={})
    skip = {index for index, word in enumerate(line.options) if word == "--ro-bind-data"}
    words = [w for i, w in enumerate(line.options) if not any(i in (s - 2, s - 1, s, s + 1, s + 2) for s in skip)]
    identity = []
    if start.plan.credentials:
        uid, gid = map(str, start.plan.credentials)
        identity = ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--inh-caps=-all"]
    return [*identity, bwrap, *words, "true"]


def median(values: list[float]) -> float:
    return statistics.median(values)


def ratio_of_pairs(over: list[float], under: list[float]) -> float:
    return median([a / b for a, b in zip(over, under, strict=True)])


def starts(rounds: int, cwd: str, bwrap: str) -> list[dict]:
    acts = {
        "fork + exec true": spawn(["true"], cwd=cwd),
        "python3 -c pass": spawn([sys.executable, "-c", "pass"], cwd=cwd),
        "bare bwrap": spawn([bwrap, *REFERENCE, "true"], cwd=cwd, env={}),
        "bwrap, equal argv": spawn(equal_argv(bwrap, cwd), cwd=cwd, env={}),
        "API, egress none": confined(["true"], cwd=cwd),
        "API, trusted, direct": lambda: stockade.run(["true"], cwd=cwd, trusted=True),
        "CLI, egress none": spawn([str(COMMAND), "run", "--", "true"], cwd=cwd),
        "CLI, workspace-write": spawn([str(COMMAND), "run", "--policy", "workspace-write", "--", "true"], cwd=cwd),
    }
    taken = interleaved(acts, rounds)
    floor = [a + b for a, b in zip(taken["python3 -c pass"], taken["bare bwrap"], strict=True)]
    against = {
        "bwrap, equal argv": ("bare bwrap", taken["bare bwrap"]),
        "API, egress none": ("bwrap, equal argv", taken["bwrap, equal argv"]),
        "CLI, egress none": ("python3 -c pass + bare bwrap", floor),
        "CLI, workspace-write": ("python3 -c pass + bare bwrap", floor),
    }
    goals = {"API, egress none": 1.5, "CLI, egress none": 2.0}
    rows = []
    for name, values in taken.items():
        base, under = against.get(name, ("", None))
        rows.append(
            {
                "what": name,
                "ms": round(median(values), 2),
                "min_ms": round(min(values), 2),
                "against": base,
                "ratio": round(ratio_of_pairs(values, under), 3) if under else None,
                "goal": goals.get(name),
            }
        )
    return rows


def jobs(rounds: int, work: str) -> list[dict]:
    prepare_work(work)
    # Both take turns in the same files, so a root caller keeps its uid here.
    policy = f"{work}/bench.toml"
    Path(policy).write_text('extends = "build"\n[process]\nuser = "caller"\n')
    rows = []
    for name, template in JOBS.items():
        command = [word.replace("{work}", work) for word in template]
        taken = interleaved(
            {"bare": spawn(command, cwd=work), "confined": confined(command, cwd=work, policy=policy)}, rounds
        )
        rows.append(
            {
                "what": name,
                "ms": round(median(taken["confined"]), 1),
                "min_ms": round(min(taken["confined"]), 1),
                "against": "unconfined",
                "ratio": round(ratio_of_pairs(taken["confined"], taken["bare"]), 3),
                "goal": 1.02,
            }
        )
    return rows


def prepare_work(work: str) -> None:
    os.chmod(work, 0o777)
    source = Path(os.__file__).parent
    target = Path(work, "src")
    target.mkdir()
    for file in sorted(source.glob("*.py"))[:120]:
        (target / file.name).write_bytes(file.read_bytes())
    env = {"PATH": os.environ["PATH"], "HOME": work, "GIT_CONFIG_NOSYSTEM": "1"}
    name = ["-c", "user.name=bench", "-c", "user.email=bench@invalid"]
    script = f"""
    git init -q repo && cd repo
    for i in $(seq 1500); do mkdir -p d$((i % 40)); echo one $i > d$((i % 40))/f$i; done
    git add . && git {" ".join(name)} commit -qm one && git branch one
    for i in $(seq 1500); do echo two $i > d$((i % 40))/f$i; done
    git {" ".join(name)} commit -qam two && git branch two && git checkout -q two
    """
    subprocess.run(["sh", "-ec", script], cwd=work, env=env, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["chmod", "-R", "a+rwX", work], check=True)


def parallel(count: int, cwd: str) -> dict:
    """``count`` runs at once: none lost, none taken for another."""
    wrong: list[str] = []

    def one(number: int) -> None:
        result = stockade.run(["sh", "-c", f"echo {number}; exit {number % 100}"], cwd=cwd)
        if (result.outcome, result.exit_code, result.stdout) != ("exited", number % 100, b"%d\n" % number):
            wrong.append(f"{number}: {result.outcome} {result.exit_code} {result.reason}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    taken = timed(lambda: ([thread.start() for thread in threads], [thread.join() for thread in threads]))
    return {"what": f"{count} runs at once", "ms": round(taken, 1), "wrong": wrong}


def resident(cwd: str) -> dict:
    """PSS of everything that a run of the command line adds to its program, in MiB."""
    import psutil

    process = subprocess.Popen([str(COMMAND), "run", "--", "sleep", "30"], cwd=cwd, stdin=subprocess.DEVNULL)
    try:
        sizes: dict[str, int] = {}
        until = time.monotonic() + 10
        while time.monotonic() < until and "sleep" not in sizes:
            try:
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                sizes = {p.name() if p.name() == "sleep" else str(p.pid): p.memory_full_info().pss for p in tree}
            except psutil.Error:
                continue
        sizes.pop("sleep")
        return {"what": "resident memory beyond the program", "mib": round(sum(sizes.values()) / 2**20, 1)}
    finally:
        process.terminate()
        process.wait()


def rows_inside(script: str, rounds: int) -> list[dict]:
    """What one of our scripts measures in a process and a network namespace of its own."""
    command = [sys.executable, "-I", script, "--inside", "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    found: list[dict] = json.loads(done.stdout)
    return found


def main_inside(about: str | None, script: str, enter, measure) -> None:
    """The command line of such a script: prints its table, or is what ``rows_inside`` started."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=24, help="counted rounds of the starts")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        enter()
        json.dump(measure(options.rounds), sys.stdout)
    else:
        show(rows_inside(script, options.rounds))


def show(rows: list[dict]) -> None:
    print(f"{'what':36} {'median ms':>10} {'min ms':>8}   {'ratio':>6} {'goal':>6}  against")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        goal = "" if not row["goal"] else f"{row['goal']:.2f}"
        print(f"{row['what']:36} {row['ms']:10.2f} {row['min_ms']:8.2f}   {ratio:>6} {goal:>6}  {row['against']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="counted rounds of the short commands")
    parser.add_argument(
        "--job-rounds", type=int, default=5, help="counted rounds of the long jobs; 0 leaves them out"
    )
    parser.add_argument("--net-rounds", type=int, default=15, help="counted rounds with leased networks; 0: none")
    parser.add_argument(
        "--layer-rounds", type=int, default=20, help="counted rounds of hooks and shell calls; 0: none"
    )
    parser.add_argument("--edge-rounds", type=int, default=12, help="counted rounds with the edge; 0: none")
    parser.add_argument("--parallel", type=int, default=200, help="runs at once; 0 leaves this out")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    options = parser.parse_args()
    # Tools of a home are bound in addition, and for root by a detour: leave them out of the comparison.
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    host = probe.known()
    if host.bwrap is None:
        raise SystemExit("could not measure: bubblewrap is not usable here\nRun `stockade doctor`.")
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir="/var/tmp") as work:
        os.chmod(work, 0o755)
        os.chdir(work)
        rows = starts(options.rounds, work, host.bwrap.path)
        if options.job_rounds:
            rows += jobs(options.job_rounds, work)
        # Not at the top: this file runs isolated, and those import this one.
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        if options.layer_rounds:
            import bench_layers

            rows += bench_layers.rows(options.layer_rounds, work)
        if options.net_rounds:
            import bench_net

            rows += bench_net.rows(options.net_rounds)
        if options.edge_rounds:
            import bench_edge

            rows += bench_edge.rows(options.edge_rounds)
        show(rows)
        more = [resident(work)]
        if options.parallel:
            more.append(parallel(options.parallel, work))
        for each in more:
            print("  ".join(f"{key} {value}" for key, value in each.items()))
    keeperlink.end_keeper()
    if options.json:
        document = {"schema": "stockade.bench/1", "root": os.geteuid() == 0, "rows": rows, "more": more}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
