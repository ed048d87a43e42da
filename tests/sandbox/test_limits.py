"""A run that goes to its limits: it ends in time, the host goes on, and the verdict says which limit it was.

What is *observed* rests on what was seen from outside or counted by the kernel; what a program says or ends with is
*suspected*. All limits here are small.
"""

from __future__ import annotations

import os
import threading
import time

import pytest
from boxes import IDENTITIES, PATIENCE, PYTHON, own_state, policy, probe, processes_with  # noqa: F401

import stockade
from stockade.sandbox import cgroup

pytestmark = pytest.mark.kernel

TOGETHER = bool(cgroup.choose(cgroup.look()).parent)
"""Whether runs get a cgroup here: the kernel counts then."""

TELLS_FILES = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 2)
as_each = pytest.mark.parametrize("identity", IDENTITIES)


@pytest.fixture(autouse=True)
def in_a_small_place(tmp_path, monkeypatch):
    place = tmp_path / "ws"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.chdir(place)


class Responsive:
    """Starts a program again and again, on a thread of its own: the host must let it, whatever a run is doing."""

    def __init__(self):
        self.slowest, self.count, self.problems = 0.0, 0, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        while True:
            began = time.monotonic()
            try:
                pid = os.posix_spawn("/bin/true", ["true"], {})
                if os.waitpid(pid, 0)[1] != 0:
                    self.problems.append("it did not run")
            except OSError as error:
                self.problems.append(str(error))
            self.count += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            if self.over.wait(0.01) and self.count > 2:
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.over.set()
        self.thread.join(PATIENCE)


FORKS = "import os\nwhile True:\n try: os.fork()\n except OSError: pass\n"
SOME_FORKS = "import os, time\nfor _ in range(10):\n if os.fork() == 0: time.sleep(0.2); os._exit(0)\n"
THREADS = (
    "import threading, time\nstop = threading.Event()\ntry:\n"
    " for _ in range({}): threading.Thread(target=stop.wait, daemon=True).start()\n"
    "except RuntimeError: pass\ntime.sleep(0.4)\n"
)
HOG = "kept = []\nwhile True: kept.append(b'x' * (1 << 20))\n"
SOME_MEMORY = "kept = [b'x' * (1 << 20) for _ in range(20)]\n"
FILLS = (
    "import os, time\nfor place in {}:\n"
    " with open(os.path.expanduser(place) + '/filler', 'wb', buffering=0) as file:\n"
    "  try:\n   for _ in range({}): file.write(b'x' * 65536)\n  except OSError: pass\n"
    "time.sleep(0.4)\n"
)
OPENS = (
    "import os, time\ntry:\n for _ in range({}): os.open('/dev/null', 0)\nexcept OSError: pass\ntime.sleep(0.4)\n"
)
SPINS = "while True: pass\n"
WRITES = "with open('big', 'wb', buffering=0) as file:\n for _ in range({}): file.write(b'x' * 65536)\n"

CASES = {
    "a fork bomb": ({"processes": 30}, FORKS, "timed_out", "limits.processes", SOME_FORKS),
    "threads": ({"processes": 64}, THREADS.format(200), "exited", "limits.processes", THREADS.format(10)),
    "a full /tmp": ({"tmp": "16M"}, FILLS.format(["/tmp"], 999), "exited", "limits.tmp", FILLS.format(["/tmp"], 100)),
    "a full HOME": ({"tmp": "16M"}, FILLS.format(["~"], 999), "exited", "limits.tmp", FILLS.format(["~"], 100)),
    "a full /dev/shm": (
        {"tmp": "16M"}, FILLS.format(["/dev/shm"], 999), "exited", "limits.tmp", FILLS.format(["/dev/shm"], 9)
    ),
    "a large file": ({"file_size": "4M"}, WRITES.format(999), "exited", "limits.file_size", WRITES.format(10)),
    "processor time": ({"cpu": "1s"}, SPINS, "timed_out", "limits.cpu", "sum(range(1000))"),
}  # fmt: skip


PAIRS = [
    (name, identity)
    for name, case in CASES.items()
    for identity in IDENTITIES
    # No process of root is limited by the kernel without a cgroup, and the result says so: nothing to try that on.
    if TOGETHER or identity != "kept" or case[3] != "limits.processes"
]


@pytest.mark.parametrize(("name", "identity"), PAIRS)
def test_a_limit_that_is_reached_is_observed_and_harms_nobody(name, identity, record_property):
    limits, greedy, outcome, key, modest = CASES[name]
    token = f"token-{os.urandom(8).hex()}"
    deadline = 1.5 if greedy == FORKS else PATIENCE
    with Responsive() as host:
        result = stockade.run(
            [PYTHON, "-c", greedy, token], policy=policy(identity, limits=limits), timeout=deadline
        )
    record_property("slowest start meanwhile, ms", round(host.slowest * 1000, 1))
    assert host.problems == []
    assert host.count > 2
    assert result.outcome == outcome, result.reason
    assert [(each.kind, each.certainty, each.subject) for each in result.denials] == [("limit", "observed", key)]
    (value,) = limits.values()
    assert f"reached {key} = {value}: " in result.denials[0].detail
    assert result.denied
    assert processes_with(token) == []
    less = stockade.run([PYTHON, "-c", modest], policy=policy(identity, limits=limits), timeout=PATIENCE)
    assert (less.outcome, less.exit_code, less.denials) == ("exited", 0, ()), less.stderr


@as_each
def test_open_files(identity):
    """Seen by the kernel's count, from Linux 6.2 on."""
    limited = policy(identity, limits={"open_files": 64})
    with Responsive() as host:
        result = stockade.run([PYTHON, "-c", OPENS.format(500)], policy=limited, timeout=PATIENCE)
    assert (host.problems, result.outcome) == ([], "exited")
    expected = [("observed", "limits.open_files")] if TELLS_FILES else []
    assert [(each.certainty, each.subject) for each in result.denials] == expected
    assert stockade.run([PYTHON, "-c", OPENS.format(20)], policy=limited).denials == ()


@as_each
def test_a_memory_hog(identity):
    """Of one process it only has what Python says; of all together the kernel keeps account."""
    with Responsive() as host:
        result = stockade.run(
            [PYTHON, "-c", HOG], policy=policy(identity, limits={"memory": "128M"}), timeout=PATIENCE
        )
    assert host.problems == []
    (found,) = result.denials
    assert found.kind == "limit"
    if TOGETHER:
        assert (result.outcome, result.signal, found.certainty) == ("signalled", 9, "observed")
        assert (found.subject, "limits.memory = 128M" in found.detail) == ("limits.memory", True)
    else:
        assert (result.exit_code, found.certainty, found.detail) == (1, "suspected", "MemoryError")
        assert "limits.memory bounds each process. It is 128M here." in found.hint
    modest = stockade.run([PYTHON, "-c", SOME_MEMORY], policy=policy(identity, limits={"memory": "128M"}))
    assert (modest.ok, modest.denials) == (True, ())


def test_an_output_flood_reaches_no_limit_of_the_program():
    with Responsive() as host:
        result = stockade.run("yes & yes >&2", policy=policy(limits={"output": "64K"}), timeout=0.5)
    assert (host.problems, result.outcome, result.denials) == ([], "timed_out", ())
    assert result.stdout_truncated
    assert result.stderr_truncated
    assert len(result.stdout) == len(result.stderr) == 65_536


# --- what may be called observed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "echo 'sh: Cannot fork: Resource temporarily unavailable' >&2; exit 2",
        "echo MemoryError >&2; exit 1",
        "echo 'No space left on device' >&2; exit 1",
        "echo 'Too many open files' >&2; exit 1",
        "exit 153",
        "kill -XFSZ $$",
        "exit 152",
    ],
)
def test_words_and_exit_codes_are_never_more_than_suspected(script):
    found = stockade.run(script, timeout=PATIENCE).denials
    assert [(each.kind, each.certainty) for each in found] == [("limit", "suspected")]


def test_a_limit_is_named_once():
    """Seen from outside, and said by the program."""
    script = "dd if=/dev/zero of=/tmp/x bs=64k; sleep 0.3; exit 1"
    found = stockade.run(script, policy=policy(limits={"tmp": "4M"}), timeout=PATIENCE).denials
    assert [(each.certainty, each.subject) for each in found] == [("observed", "limits.tmp")]


def test_what_comes_and_goes_is_not_added_up():
    """Twenty at once at most, though hundreds in all, under a limit between."""
    churn = "import os\nfor _ in range(300):\n if os.fork() == 0: os._exit(0)\n os.wait()\n"
    result = stockade.run(
        f"for _ in 1 2 3 4 5; do {PYTHON} -c '{churn}' & done; wait", policy=policy(limits={"processes": 30})
    )
    assert (result.ok, result.denials) == (True, ())


def test_a_reached_limit_does_not_change_the_outcome():
    result = stockade.run(
        [PYTHON, "-c", OPENS.format(500) + "raise SystemExit(7)"], policy=policy(limits={"open_files": 64})
    )
    assert (result.outcome, result.exit_code) == ("exited", 7)


# --- processor time ----------------------------------------------------------------------------------------------


def test_processor_time_is_that_of_all_processes_together():
    spin = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    script = f"{PYTHON} -c '{spin}'; {PYTHON} -c '{spin}'; {PYTHON} -c '{spin}'; sleep 0.3; echo through"
    result = stockade.run(script, policy=policy(limits={"cpu": "800ms"}), timeout=PATIENCE)
    assert (result.outcome, result.rule, result.returncode) == ("timed_out", "cpu_spent", 124)
    assert result.reason.endswith(" s of processor time")
    assert result.stdout == b""
    assert stockade.run(script, policy=policy(limits={"cpu": "20s"}), timeout=PATIENCE).stdout == b"through\n"


UNCLAIMED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.{})
for _ in range(4):
    child = os.fork()
    if not child:
        while time.process_time() < 0.25: pass
        os._exit(0)
    try:
        os.waitpid(child, 0)  # while it is ignored: until the last one has ended
    except ChildProcessError:
        pass
time.sleep(0.2)
print("through")
"""


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
def test_time_of_children_that_nobody_waits_for_counts(handler):
    """A parent that ignores SIGCHLD gets none of it, so that the kernel forgets it."""
    command = [PYTHON, "-c", UNCLAIMED.format(handler)]
    result = stockade.run(command, policy=policy(limits={"cpu": "600ms"}), timeout=PATIENCE)
    assert (result.outcome, result.rule) == ("timed_out", "cpu_spent")
    enough = stockade.run(command, policy=policy(limits={"cpu": "20s"}), timeout=PATIENCE)
    assert enough.stdout == b"through\n"
    assert 0.5 < enough.usage.cpu_seconds < 2.0  # 1 that was used, and the start


def test_who_does_not_stop_is_killed():
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    result = stockade.run([PYTHON, "-c", stubborn], policy=policy(limits={"cpu": "300ms"}), timeout=PATIENCE)
    assert (result.outcome, result.rule) == ("timed_out", "cpu_spent")
    assert result.usage.cpu_seconds >= 0.3


def test_waiting_uses_no_processor_time():
    result = stockade.run("sleep 1.2; echo through", policy=policy(limits={"cpu": "1s"}), timeout=PATIENCE)
    assert (result.stdout, result.denials) == (b"through\n", ())


@pytest.mark.parametrize(("cpu", "inside"), [("1500ms", b"3\n"), ("2s", b"4\n"), ("none", None)])
def test_each_process_has_a_limit_of_its_own_behind_it(cpu, inside):
    """Should the look from outside fail, the kernel ends each after that."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    own = b"unlimited\n" if hard == resource.RLIM_INFINITY else b"%d\n" % hard
    result = stockade.run(["bash", "-c", "ulimit -St"], policy=policy(limits={"cpu": cpu}), timeout=PATIENCE)
    assert result.stdout == (own if inside is None else inside)


# --- every place ---------------------------------------------------------------------------------------------------


@as_each
def test_every_writable_tmpfs_has_a_size(identity):
    """Those without are half of the host's memory each. Their sum is what a run can take in files."""
    body = """
    for line in open("/proc/self/mountinfo"):
        words = line.split()
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        if kind == "tmpfs" and "rw" in words[5].split(",") and not words[4].startswith("/proc"):
            sizes = [each for each in options if each.startswith("size=")]
            if os.access(words[4], os.W_OK) and not words[4].startswith(os.getcwd()):  # that one is granted
                found[words[4]] = int(sizes[0][5:].rstrip("k")) if sizes else None
    """
    places = probe(body, policy=policy(identity, limits={"tmp": "16M"}))
    assert {"/tmp", "/var/tmp", "/dev/shm"} < set(places)
    assert None not in places.values(), places
    assert sum(places.values()) <= 2.75 * (16 << 10)
