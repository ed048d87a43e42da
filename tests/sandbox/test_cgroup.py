"""Cgroups of runs: where one can be made, by tables and on a directory that looks like one; and for real where possible.

A made-up hierarchy is a directory of plain files: what is written there is read back. What the kernel does with it
is shown by the tests marked ``delegated``, on hosts that let us have one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from boxes import IDENTITIES, PATIENCE, PYTHON, own_state, policy, wait_until  # noqa: F401

import stockade
from stockade.sandbox import cgroup, cgrouptrial
from stockade.sandbox.cgroup import Choice, Node, choose, flat, own_path, settings, stale


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/user.slice/session-1.scope\n", "/user.slice/session-1.scope"),
        ("0::/\n", "/"),
        ("9:name=systemd:/x\n4:memory:/y\n0::/z\n", "/z"),
        ("1:name=a:b:/q\n0::/with:colon\n", "/with:colon"),
        ("4:memory:/y\n", None),
        ("", None),
        ("0::/../../outside\n", None),
        ("0::/gone (deleted)\n", None),
        ("0:memory:/x\n", None),
        ("no line at all", None),
    ],
)
def test_our_own_place(text, path):
    assert own_path(text) == path


BOTH = ("cpu", "memory", "pids")


def node(path, *, controllers=BOTH, passed=BOTH, writable=True):
    return Node(path, controllers, passed, writable)


@pytest.mark.parametrize(
    ("nodes", "parent", "problem"),
    [
        # An ordinary user in a terminal of a desktop: the slice of applications is its own.
        ([node("a/b", passed=()), node("a"), node("", writable=False)], "a", ""),
        # Root in a session: the session has processes and passes nothing on, what is above it does.
        ([node("a/b/c", passed=()), node("a/b"), node("a")], "a/b", ""),
        # A scope that was delegated and divided.
        ([node("a/b"), node("a")], "a/b", ""),
        # An ordinary user over ssh: nothing above it is its own.
        ([node("a/b", passed=(), writable=False), node("a", writable=False)], "", "ours to divide"),
        # A container: its processes sit in the only cgroup it sees.
        ([node("", passed=())], "", "passes the memory and pids"),
        ([node("a", passed=("cpu",)), node("", passed=("cpu",))], "", "passes the memory and pids"),
        # A hybrid host: the controllers are in the old hierarchy.
        ([node("", controllers=("hugetlb",), passed=())], "", "not in the unified hierarchy"),
        ([node("a", passed=("memory",)), node("", passed=("memory",))], "", "passes the memory and pids"),
        ([], "", "not in the unified hierarchy"),
    ],
)
def test_where_runs_get_theirs(nodes, parent, problem):
    found = choose(nodes)
    assert found.parent == parent
    assert problem in found.problem
    assert bool(found.remedy) is not bool(parent)
    assert (found == Choice(parent)) is bool(parent)


@pytest.mark.parametrize(
    ("limits", "written"),
    [
        ((None, None), {}),
        ((1 << 20, None), {"memory.max": "1048576", "memory.swap.max": "0", "memory.oom.group": "1"}),
        ((None, 64), {"pids.max": "65"}),
        ((5, 1), {"memory.max": "5", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "2"}),
    ],
)
def test_what_is_written(limits, written):
    assert {name: value for name, value, _needed in settings(*limits)} == written


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("low 0\nhigh 2\nmax 31\n", {"low": 0, "high": 2, "max": 31}),
        ("max\n", {}),
        ("", {}),
        ("usage_usec 12\nodd one 3\nx -4\n", {"usage_usec": 12}),
    ],
)
def test_flat_files(text, found):
    assert flat(text) == found


def test_only_what_a_dead_keeper_of_this_pid_namespace_left_is_stale():
    living = {10: "stockade-5-10-900", 11: "stockade-5-11-0", 12: "stockade-5-12-77"}
    names = [
        "stockade-5-10-900-1",  # of one that lives
        "stockade-5-10-901-1",  # its pid is another's now
        "stockade-5-11-800-3",  # gone
        "stockade-6-11-800-3",  # of another pid namespace: nobody here can tell
        "stockade-5-12-7-1",
        "stockade-keeper",
        "stockade-5-x-800-3",
        "stockade-5-11-800",
        "mine-5-11-800-3",
        "session-1.scope",
    ]
    expected = ["stockade-5-10-901-1", "stockade-5-11-800-3", "stockade-5-12-7-1"]
    assert stale(names, lambda pid: living[pid]) == expected


def test_a_process_has_a_name_that_no_other_will_have():
    own = cgroup.owner_name(os.getpid())
    assert own == cgroup.owner_name(os.getpid())
    assert own.startswith("stockade-")
    assert own != cgroup.owner_name(os.getppid())
    assert stale([f"{own}-1"]) == []
    gone = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    left = cgroup.owner_name(gone.pid)
    assert stale([f"{left}-1"]) == []
    gone.stdin.close()
    wait_until(lambda: stale([f"{left}-1"]), "it counts as gone before anybody waited for it")
    gone.wait()
    assert stale([f"{left}-1"]) == [f"{left}-1"]


class FakeRoot:
    """Directories and files of a hierarchy, with nobody behind them."""

    def __init__(self, top):
        self.top = top

    def add(self, path, *, controllers="memory pids", passed=""):
        place = self.top / path.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.controllers").write_text(controllers + "\n")
        (place / "cgroup.subtree_control").write_text(passed + "\n")
        (place / "cgroup.procs").write_text("")
        return place


@pytest.fixture
def fake(tmp_path):
    root = FakeRoot(tmp_path)
    root.add("/", passed="memory pids")
    root.add("/slice", passed="memory pids")
    root.add("/slice/session")
    return root


def test_a_hierarchy_is_read_from_our_own_place_upwards(fake):
    nodes = cgroup.look(str(fake.top), "/slice/session")
    assert [each.path for each in nodes] == [f"{fake.top}/slice/session", f"{fake.top}/slice", str(fake.top)]
    assert [each.passed for each in nodes] == [(), ("memory", "pids"), ("memory", "pids")]
    assert choose(nodes).parent == f"{fake.top}/slice"


def test_what_is_not_a_hierarchy_has_nothing(tmp_path):
    assert cgroup.look(str(tmp_path), "/") == []
    assert cgroup.open_groups(str(tmp_path), "/") is None
    assert cgrouptrial.capability(str(tmp_path), "/", tried=True).state == "missing"


def test_a_cgroup_that_lacks_a_file_is_not_left_behind(fake):
    """A directory of ours has no memory.max, as on a host where that controller is not passed on."""
    groups = cgroup.open_groups(str(fake.top), "/slice/session")
    assert groups is not None
    before = sorted(os.listdir(groups.parent))
    with pytest.raises(FileNotFoundError):
        groups.make(1 << 20, 10)
    assert sorted(os.listdir(groups.parent)) == before
    group = groups.make(None, None)  # control
    assert os.path.isdir(group.path)
    assert group.figures() == {}
    assert group.remove()
    assert group.remove()  # it is gone: nothing to do
    assert sorted(os.listdir(groups.parent)) == before


def test_two_cgroups_of_one_keeper_have_two_names(fake):
    groups = cgroup.Groups(str(fake.top))
    assert groups.make(None, None).path != groups.make(None, None).path


def test_what_dead_keepers_left_is_cleared_away_and_nothing_else(fake):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as gone:
        left = cgroup.owner_name(gone.pid)
        gone.stdin.close()
    own = cgroup.owner_name(os.getpid())
    for name in (f"{left}-1", f"{left}-2", f"{own}-1", "theirs"):
        (fake.top / "slice" / name).mkdir()
    cgroup.open_groups(str(fake.top), "/slice/session")
    names = {name for name in os.listdir(fake.top / "slice") if not name.startswith("cgroup.")}
    assert names == {"session", f"{own}-1", "theirs"}


def test_figures_are_what_the_files_say(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n")
    (tmp_path / "pids.events").write_text("max 7\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500\nuser_usec 1000\n")
    (tmp_path / "memory.peak").write_text("4096\n")
    found = cgroup.Group(str(tmp_path)).figures()
    assert found == {"oom": 2, "oom_kill": 3, "forks_refused": 7, "cpu": 1500, "peak": 4096}


def test_only_a_scope_that_was_made_for_us_is_divided(fake):
    """A caller's own cgroup, in which its other processes are, is left as it is."""
    assert not cgroup.settle_in_scope(str(fake.top), "/slice/session")
    assert os.listdir(fake.top / "slice/session").count(cgroup.LEAF) == 0


# --- for real ----------------------------------------------------------------------------------------------------

PARENT = choose(cgroup.look()).parent
delegated = pytest.mark.skipif(not PARENT, reason="needs a cgroup v2 that this process may divide")
kernel = pytest.mark.kernel


@pytest.fixture
def in_place(tmp_path, monkeypatch):
    place = tmp_path / "ws"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.chdir(place)


def ours():
    return [name for name in os.listdir(PARENT) if name.startswith("stockade-") and name != cgroup.LEAF]


def at_work():
    """Those in which the monitor, the first process and the program are."""
    found = []
    for name in ours():
        with open(f"{PARENT}/{name}/cgroup.procs") as file:
            if len(file.read().split()) >= 3:
                found.append(name)
    return found


REAL = f"""
import os, subprocess, sys, time
sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.abspath(stockade.__file__)))!r})
from stockade.sandbox import cgroup
top = sys.argv[1]
subprocess.run(["mount", "-t", "cgroup2", "none", top], check=True)
group = cgroup.Groups(top).make(None, None)
script = 'echo 0 > "$0/cgroup.procs" && echo in && exec sleep 300'
child = subprocess.Popen(["/bin/sh", "-c", script, group.path], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"in\\n"
assert open(group.path + "/cgroup.procs").read().split() == [str(child.pid)]
assert group.figures()["cpu"] >= 0
assert not cgroup.rmdir(group.path)  # control: it is not empty
assert group.remove() and not os.path.exists(group.path)
print(child.wait())
"""


@kernel
@pytest.mark.root
def test_a_real_one_is_joined_killed_and_removed(tmp_path):
    """Without any controller, in a mount namespace of the test's own: also where the old hierarchies have them."""
    command = ["/usr/bin/unshare", "--mount", sys.executable, "-c", REAL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == f"{-signal.SIGKILL}\n", done.stderr


@kernel
@delegated
def test_the_trial_shows_it():
    found = cgrouptrial.capability(tried=True)
    assert found.state == "ok", found
    assert ours() == []


@kernel
@delegated
@pytest.mark.parametrize("identity", IDENTITIES)
def test_memory_is_bounded_for_all_together(identity, in_place):
    """Each process stays below the limit; as limits of each alone they would all fit."""
    hog = "import time\nkept = bytearray(b'x') * (40 << 20)\ntime.sleep(60)"
    script = f'for _ in 1 2 3 4 5; do {PYTHON} -c "$0" & done; wait'
    limits = {"memory": "96M"}
    result = stockade.run(["sh", "-c", script, hog], policy=policy(identity, limits=limits), timeout=PATIENCE)
    assert (result.outcome, result.returncode, result.rule) == ("signalled", 137, "out_of_memory")
    assert result.started
    (found,) = result.denials
    assert (found.kind, found.certainty, found.subject) == ("limit", "observed", "limits.memory")
    assert "limits.memory = 96M" in found.detail
    assert ours() == []
    fits = stockade.run([PYTHON, "-c", "bytearray(b'x') * (40 << 20)"], policy=policy(identity, limits=limits))
    assert fits.ok
    assert fits.denials == ()
    assert fits.usage.cgroup
    assert 40 << 20 <= fits.usage.peak_rss <= 96 << 20


@kernel
@delegated
@pytest.mark.parametrize("identity", IDENTITIES)
def test_processes_are_bounded_for_everybody_and_refusals_counted(identity, in_place):
    """Also for a kept root, whom RLIMIT_NPROC does not bind."""
    forks = (
        "import os, time\nmade = 0\nfor _ in range(40):\n try:\n  if os.fork() == 0: time.sleep(60)\n  made += 1\n"
    )
    forks += " except OSError: pass\nprint(made)"
    few = stockade.run([PYTHON, "-c", forks], policy=policy(identity, limits={"processes": 20}), timeout=PATIENCE)
    assert 10 < int(few.stdout) < 20
    (found,) = few.denials
    assert (found.certainty, found.subject) == ("observed", "limits.processes")
    assert "limits.processes = 20: the kernel refused" in found.detail
    assert few.notes == ()
    many = stockade.run([PYTHON, "-c", forks], policy=policy(identity, limits={"processes": 60}), timeout=PATIENCE)
    assert (many.stdout, many.denials) == (b"40\n", ())
    assert ours() == []


@kernel
@delegated
def test_the_program_sees_no_cgroup_file_that_it_could_write(in_place):
    script = (
        "grep -c cgroup /proc/self/mountinfo; cat /proc/self/cgroup; find / -xdev -name cgroup.procs 2> /dev/null"
    )
    said = stockade.run(script, timeout=PATIENCE).stdout.decode().splitlines()
    assert [line for line in said if line.startswith("/")] == []
    assert said[0] == "0"
    assert [line for line in said if line.startswith("0::")] == ["0::/"]


@kernel
@delegated
@pytest.mark.parametrize("whom", ["supervisor", "keeper"])
def test_nothing_is_left_when_one_is_killed(whom, in_place):
    assert stockade.run("true").ok  # what is to be found out of the host is remembered from here on
    program = "import stockade\nprint(stockade.run('sleep 300').outcome, flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        (name,) = wait_until(at_work, "there is one")
        victim = process.pid if whom == "supervisor" else int(name.split("-")[2])
        os.kill(victim, signal.SIGKILL)
        assert process.stdout.read() == (b"" if whom == "supervisor" else b"lost\n")
    wait_until(lambda: not ours(), "it is gone")


@kernel
@delegated
def test_what_both_left_is_gone_after_the_next_start(in_place):
    assert stockade.run("true").ok
    program = "import stockade\nstockade.run('sleep 300')"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        (name,) = wait_until(at_work, "there is one")
        keeper = int(name.split("-")[2])
        for pid in (keeper, process.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (process.pid, keeper):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{keeper}"), "the keeper is gone")
    subprocess.run([sys.executable, "-c", "import stockade\nassert stockade.run('true').ok"], check=True)
    assert ours() == []


@kernel
@delegated
def test_one_that_can_not_be_joined_costs_the_run_nothing_but_the_cgroup(in_place):
    """The other limits hold without, and the result does not claim it."""
    program = """
from stockade.sandbox import childsteps, keeperlink
def broken(job, fds):
    if job["cgroup"] is not None:
        raise OSError(95, "Operation not supported")
childsteps.STEPS = tuple((name, broken if name == "cgroup" else step) for name, step in childsteps.STEPS)
keeperlink.fork_keeper()
import stockade
for _ in range(2):
    result = stockade.run("ulimit -d")
    print(result.stdout, result.usage.cgroup, result.enforcement, result.reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["b'2097152\\n' False full exited with code 0"] * 2, done.stderr
    assert ours() == []
