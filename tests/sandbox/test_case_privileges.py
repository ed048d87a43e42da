"""Namespaces, capabilities and root: a program has no power inside that would be one outside, whoever started it."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest
from boxes import (
    IDENTITIES,
    PYTHON,
    REFUSED,
    cli,
    identity,
    open_to_all,
    outside,
    own_state,
    place,
    policy,
    probe,
    probe_command,
    wait_until,
)

import stockade

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

SOURCES = pathlib.Path(__file__).resolve().parents[2]
KEPT = [name for name in IDENTITIES if name == "kept"]


# --- no privilege -----------------------------------------------------------------------------------------

STATUS = """
def status(pid):
    lines = (line.split(":", 1) for line in read(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, value in lines
            if name.startswith("Cap") or name in ("NoNewPrivs", "Seccomp", "Uid", "Groups")}
found.update({pid: status(pid) for pid in sys.argv[1:] or filter(str.isdigit, os.listdir("/proc"))})
"""


def test_nothing_inside_holds_a_capability(place, identity):
    """Neither the program nor the first process of the box, which it can trace, has one or can get one."""
    found = probe(STATUS, cwd=place, policy=policy(identity))
    assert len(found) == 2
    for pid, status in found.items():
        assert {value.strip("0") for name, value in status.items() if name.startswith("Cap")} == {""}, pid
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        uid = {"dropped": 65534, "kept": 0, "user": os.geteuid()}[identity]
        assert set(status["Uid"].split()) == {str(uid)}


@pytest.mark.root
def test_root_outside_has_what_nothing_inside_has():
    """The control of the test before."""
    assert outside(STATUS, "self")["self"]["CapEff"].strip("0")


def test_every_namespace_is_the_boxs_own(place, identity):
    """User, mount, pid, network, IPC and host name: none of them is the caller's."""
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    body = f"found.update({{name: os.readlink('/proc/self/ns/' + name) for name in {names!r}}})"
    inside, here = probe(body, cwd=place, policy=policy(identity)), outside(body)
    assert [name for name in names if inside[name] == here[name]] == []


POWERS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *words):
    ctypes.set_errno(0)
    if getattr(libc, name)(*words) != 0:
        raise OSError(ctypes.get_errno(), name)
NAMESPACES = {"user": 0x10000000, "mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
              "uts": 0x4000000, "cgroup": 0x2000000}
for name, flag in NAMESPACES.items():
    child = os.fork()
    if child == 0:
        code = 0
        try: call("unshare", flag)
        except OSError as error: code = error.errno
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found[f"unshare {name}"] = errno.errorcode[code] if code else "ok"
found["remount"] = tried(call, "mount", None, b"/usr", None, 0x20 | 0x1000, None)
found["mount tmpfs"] = tried(call, "mount", b"x", b"/tmp", b"tmpfs", 0, None)
found["bind"] = tried(call, "mount", b"/etc", b"/tmp", None, 0x1000, None)
found["umount"] = tried(call, "umount2", os.environ["HOME"].encode(), 2)
found["pivot"] = tried(call, "chroot", b"/tmp")
found["hostname"] = tried(call, "sethostname", b"x", 1)
found["setns"] = tried(call, "setns", os.open("/proc/1/ns/net", os.O_RDONLY), 0)
found["mknod"] = tried(os.mknod, "/tmp/node", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
written("/tmp/file")
found["chown"] = tried(os.chown, "/tmp/file", 12345, 12345)
found["setuid"] = tried(os.setuid, 12345)
found["nice"] = tried(os.setpriority, os.PRIO_PROCESS, 0, -5)
found["control"] = tried(os.chmod, "/tmp/file", 0o600)
"""


@pytest.mark.parametrize("filtered", ["default", "off"])
def test_no_power_over_mounts_namespaces_or_identities(place, identity, filtered):
    """Also without the system call filter: what keeps them is the missing capability, and no more user namespaces."""
    found = probe(POWERS, cwd=place, policy=policy(identity, syscalls={"filter": filtered}))
    assert found.pop("control") == "ok"
    assert "ok" not in found.values()
    if filtered == "off":
        assert found["unshare user"] in ("ENOSPC", "EPERM")
        assert found["remount"] == found["umount"] == "EPERM"


def test_namespaces_can_be_made_outside():
    """The control of the test before, in namespaces of its own: nothing of POWERS must ever run on the host itself."""
    line = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "--propagation", "private"]
    script = "unshare --user true && hostname x && mount -t tmpfs none /mnt && echo all"
    done = subprocess.run([*line, "/bin/sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "all\n", done.stderr


def test_processes_of_the_host_are_out_of_reach(place, identity):
    """They have no number inside; a signal to the number they have outside finds nobody."""
    victim = subprocess.Popen(
        [PYTHON, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert victim.stdout.readline() == b"1\n"
        found = probe(
            """
            victim, parent = map(int, sys.argv[1:])
            found["signal"] = [tried(os.kill, victim, 0), tried(os.kill, victim, 9), tried(os.kill, parent, 0)]
            found["group"] = tried(os.killpg, victim, 9)
            found["everybody"] = tried(os.kill, -1, 0)
            found["pids"] = sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit())
            found["parent"] = os.getppid()
            """,
            victim.pid,
            os.getpid(),
            cwd=place,
            policy=policy(identity),
        )
        own = set(found["pids"])
        assert len(own) == 2
        assert 1 in own
        assert found["parent"] == 1
        if not own & {victim.pid, os.getpid()}:
            assert set(found["signal"]) == {"ESRCH"}
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.communicate()


def test_the_launcher_can_not_be_overwritten_from_inside(place, identity):
    """The program that set up the box is shown as /proc/1/exe: it can't be opened for writing, nor traced into power."""
    before = digest("/usr/bin/bwrap")
    found = probe(
        """
        found["write"] = [tried(open, path, "r+b") for path in ("/proc/1/exe", os.readlink("/proc/1/exe"))]
        found["read"] = tried(open, "/proc/1/exe", "rb")
        """,
        cwd=place,
        policy=policy(identity),
    )
    assert set(found["write"]) <= {*REFUSED, "ETXTBSY"}
    assert found["read"] == "ok"
    assert digest("/usr/bin/bwrap") == before


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_set_uid_programs_and_devices_are_dead(place, identity):
    """No mount of the box honours them but the box's own few devices."""
    found = probe(
        """
        mounts = [line.split(" ") for line in read("/proc/self/mounts").splitlines()]
        found["suid"] = [row[1] for row in mounts if "nosuid" not in row[3].split(",")]
        found["devices"] = [row[1] for row in mounts if "nodev" not in row[3].split(",")]
        kinds = {name: stat.S_IFMT(os.lstat(f"/dev/{name}").st_mode) for name in os.listdir("/dev")}
        found["nodes"] = sorted(name for name, kind in kinds.items() if kind in (stat.S_IFCHR, stat.S_IFBLK))
        """,
        cwd=place,
        policy=policy(identity),
    )
    assert found["suid"] == []
    assert set(found["nodes"]) <= {"console", "full", "null", "random", "tty", "urandom", "zero"}
    allowed = {"/dev/pts", *(f"/dev/{name}" for name in found["nodes"])}
    # A hidden file is covered by the null device.
    assert {path for path in found["devices"] if path.startswith("/dev")} <= allowed


STOP_THE_FIRST = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
found["attach"] = libc.ptrace(16, 1, None, None)
written("attached")
"""


def test_a_program_that_stops_the_boxs_first_process_can_be_ended(place):
    """It can trace that process, which has no more rights than itself; the run still obeys a signal and a deadline."""
    result = stockade.run(probe_command(STOP_THE_FIRST), cwd=place, policy=policy(), timeout=0.5)
    assert json.loads(result.stdout) == {"attach": 0}
    assert result.outcome in ("timed_out", "exited")
    (place / "attached").unlink()
    command = [sys.executable, "-m", "stockade", "run", "--policy", "workspace-write", "--"]
    with subprocess.Popen(
        [*command, *probe_command(STOP_THE_FIRST)], cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        wait_until((place / "attached").exists, "it is attached")
        process.terminate()
        try:
            assert process.wait(timeout=30) in (0, 143)
        finally:
            process.kill()


@pytest.mark.parametrize("turn", range(6))
def test_a_stop_is_heard_at_whatever_moment_it_comes(place, turn):
    """A signal just after the start, when nobody is in the box yet, is not lost."""
    script = "sleep 60"
    command = [
        sys.executable,
        "-m",
        "stockade",
        "run",
        "--policy",
        "workspace-write",
        "--",
        "/bin/sh",
        "-c",
        script,
    ]
    with subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_until(lambda: os.listdir(place), "the start has begun")
        for _wait in range(turn * 10_000):
            pass
        process.terminate()
        try:
            assert process.wait(timeout=30) == 143
        finally:
            process.kill()
    wait_until(lambda: not os.listdir(place), "nothing is left")


# --- the kernel's settings --------------------------------------------------------------------------------

SETTINGS = """
paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
         "/proc/sys/vm/drop_caches", "/proc/sys/fs/file-max", "/proc/sysrq-trigger", "/proc/sys/user/max_user_namespaces",
         "/proc/sys/kernel/printk", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd",
         "/proc/irq/default_smp_affinity"]
def openable(path):
    os.close(os.open(path, os.O_WRONLY))
found.update({path: tried(openable, path) for path in paths if os.path.lexists(path)})
"""


def test_settings_of_the_kernel_can_not_be_written(place, identity):
    """core_pattern above all: what stands there runs as root on the host at the next crash."""
    found = probe(SETTINGS, cwd=place, policy=policy(identity))
    assert "/proc/sys/kernel/core_pattern" in found
    assert found["/proc/sys/kernel/core_pattern"] == ("EROFS" if identity == "kept" else "EACCES")
    assert set(found.values()) <= REFUSED, found


@pytest.mark.root
def test_root_outside_could_open_them(place):
    """The control: only opened, nothing is written."""
    assert outside(SETTINGS)["/proc/sys/kernel/core_pattern"] == "ok"


# --- root that had to be kept -----------------------------------------------------------------------------


@pytest.mark.root
def test_a_run_that_stays_root_is_partial_and_strict_refuses_it(place):
    """It is said in the result, with what is missing; a dropped one is complete."""
    kept = stockade.run(["id", "-u"], cwd=place, policy=policy("kept"))
    assert (kept.stdout, kept.enforcement) == (b"0\n", "partial")
    assert any("unprivileged" in text for text in kept.degraded)
    dropped = stockade.run(["id", "-u"], cwd=place, policy=policy("dropped"))
    assert (dropped.stdout, dropped.enforcement, dropped.degraded) == (b"65534\n", "full", ())
    with pytest.raises(stockade.SandboxUnavailable) as refused:
        stockade.run(["touch", "ran"], cwd=place, policy=policy("kept"), mode="strict")
    assert refused.value.missing == ("unprivileged",)
    assert refused.value.remedy
    assert os.listdir(place) == []
    assert stockade.run(["touch", "ran"], cwd=place, policy=policy("dropped"), mode="strict").ok


@pytest.mark.root
def test_root_is_dropped_unless_a_grant_is_roots_alone(place, tmp_path):
    """Left to itself a root caller's run takes an unprivileged uid; a workspace of root's is the exception, and said."""
    assert stockade.run(["id", "-u"], cwd=place, policy="workspace-write").stdout == b"65534\n"
    assert stockade.run(["id", "-u"], cwd="/usr").stdout == b"65534\n"
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    result = stockade.run("id -u > who; ls -ln who", cwd=mine, policy="workspace-write")
    assert ((mine / "who").read_text(), result.enforcement) == ("0\n", "partial")
    assert stockade.run(["id", "-u"], cwd=mine).stdout == b"65534\n"
    with pytest.raises(stockade.RequestError, match="65534"):
        stockade.run(["true"], cwd=mine, policy=policy("dropped"))


@pytest.mark.root
def test_the_host_sees_a_dropped_run_under_its_unprivileged_uid(place):
    """Dropped means the real identity: not a mapping that is root outside."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stockade", "run", "--policy", "workspace-write", "--", "/bin/sh", "-c",
         "touch running; while [ ! -e stop ]; do sleep 0.02; done"],
        cwd=place, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until((place / "running").exists, "the program runs")
        import psutil

        tree = psutil.Process(process.pid).children(recursive=True)
        inside = [each for each in tree if each.name() in ("bwrap", "sh")]
        assert len(inside) >= 2
        assert {uid for each in inside for uid in each.uids()} == {65534}
        assert (place / "running").stat().st_uid == 65534
    finally:
        (place / "stop").touch()
        assert process.wait() == 0


# --- hosts that give less ---------------------------------------------------------------------------------


def without_namespaces(*words: str) -> list[str]:
    """A command under root of a user namespace in which no further one can be made."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sh", *words]


def test_without_a_user_namespace_nothing_runs(place, monkeypatch):
    """bubblewrap's own --unshare-all would go on without one; here the run is refused, with the setting to change."""
    command = [sys.executable, "-m", "stockade", "run", "--policy", "workspace-write", "--", "touch", "ran"]
    for mode in ([], ["--mode", "strict"]):
        line = [*command[:4], *mode, *command[4:]]
        done = subprocess.run(
            without_namespaces(*line),
            cwd=place,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 125, done.stderr
        assert "max_user_namespaces" in done.stderr
        assert "Traceback" not in done.stderr
        assert os.listdir(place) == []
    control = subprocess.run(command, cwd=place, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert control.returncode == 0, control.stderr
    assert os.listdir(place) == ["ran"]


def test_ambient_capabilities_of_the_caller_are_cleared(place):
    """bubblewrap refuses to start with them; a service manager may well have given some."""
    shown = "grep CapAmb /proc/self/status | tr -d '0\\n'"
    command = [
        sys.executable,
        "-m",
        "stockade",
        "run",
        "--",
        "/bin/sh",
        "-c",
        f"{shown}; grep CapEff /proc/self/status",
    ]
    line = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", *command]
    control = subprocess.run([*line[:5], "/bin/sh", "-c", shown], capture_output=True, text=True, check=True)
    assert control.stdout.strip("CapAmb:\t")
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["CapAmb:", "CapEff:", "0" * 16]


def test_root_of_a_user_namespace_is_an_ordinary_user(place):
    """uid 0 that maps only itself, as in a rootless container, has nothing to drop and is no real root."""
    command = [sys.executable, "-m", "stockade", "run", "--json", "--policy", "workspace-write", "--",
               *probe_command(SETTINGS + 'found["uid"] = os.getuid(); found["write"] = tried(written, "made")')]  # fmt: skip
    line = ["unshare", "--user", "--map-root-user", *command]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    result = json.loads(done.stdout)
    assert (result["outcome"], result["exit_code"]) == ("exited", 0), done.stderr
    # The map of a root caller leads to real root, which it can't drop there: that is said.
    assert result["enforcement"] == ("partial" if os.geteuid() == 0 else "full")
    found = json.loads(result["stdout"])
    assert (found.pop("uid"), found.pop("write")) == (0, "ok")
    assert set(found.values()) <= {*REFUSED}
    assert (place / "made").exists()


def test_a_run_inside_of_a_run_is_refused_and_says_so(place, identity):
    """No user namespace can be made there: the inner one does not run with less, and names the reason."""
    needed = {str(SOURCES), sys.prefix, sys.base_prefix, str(pathlib.Path(stockade.__file__).parents[1])}
    files = {"read": sorted(path for path in needed if not path.startswith("/usr"))}
    inner = [sys.executable, "-m", "stockade", "run", "--policy", "workspace-write", "--", "touch", "ran"]
    result = stockade.run(inner, cwd=place, policy=policy(identity, filesystem=files), timeout=60)
    said = result.stderr.decode()
    assert (result.outcome, result.exit_code) == ("exited", 125), said
    assert "could not confine" in said
    assert "box already" in said
    assert "Traceback" not in said
    assert "ran" not in os.listdir(place)
    direct = [sys.executable, "-m", "stockade", "run", "--trusted", "--", "touch", "ran"]
    assert stockade.run(direct, cwd=place, policy=policy(identity, filesystem=files), timeout=60).ok
    assert "ran" in os.listdir(place)


def test_a_library_call_inside_of_a_run_is_refused_too(place):
    """``stockade.run`` raises; nothing was run."""
    needed = {str(SOURCES), sys.prefix, sys.base_prefix}
    files = {"read": sorted(path for path in needed if not path.startswith("/usr"))}
    script = """
import stockade
try:
    stockade.run(["touch", "ran"], policy="workspace-write")
except stockade.SandboxUnavailable as error:
    print(error.missing[0], bool(error.remedy))
"""
    result = stockade.run([sys.executable, "-c", script], cwd=place, policy=policy(filesystem=files), timeout=60)
    assert result.stdout.decode() == "user-namespaces True\n", result.stderr
    assert os.listdir(place) == []


@pytest.mark.parametrize("name", ["bwrap", "setpriv", "setsid"])
def test_a_helper_from_the_workspace_is_not_used(place, name):
    """PATH may lead into node_modules/.bin: what sets up the box comes from the system's directories alone."""
    folder = place / "bin"
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\ntouch {place}/fired\nexit 1\n")
    (folder / name).chmod(0o755)
    open_to_all(place)
    for path in (f"{folder}:/usr/bin:/bin", "bin:/usr/bin:/bin", f":{folder}:/usr/bin:/bin"):
        env = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(place / "fresh")}
        assert cli("run", "--", "true", cwd=place, env=env).returncode == 0
    assert not (place / "fired").exists()
    assert shutil.which(name, path=f"{folder}:/usr/bin") == str(folder / name)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_the_box_itself_honours_no_set_id_bit(place, identity, mode):
    """A program can set the bit on its own file; nothing inside runs with more for it."""
    found = probe(
        """
        import shutil, subprocess
        shutil.copy("/usr/bin/id", "planted")
        found["chmod"] = tried(os.chmod, "planted", int(sys.argv[1]))
        found["ids"] = subprocess.run(["./planted", "-u"], capture_output=True, text=True).stdout
        """,
        mode,
        cwd=place,
        policy=policy(identity),
    )
    uid = {"dropped": 65534, "kept": 0, "user": os.geteuid()}[identity]
    assert found["ids"] == f"{uid}\n"
    planted = place / "planted"
    if found["chmod"] == "ok":
        assert planted.stat().st_uid == uid
        assert stat.S_IMODE(planted.stat().st_mode) == mode


def test_a_program_opens_its_own_streams(place, identity):
    """A pipe belongs to who made it: one that a run without root may not open would break every ``> /dev/stderr``."""
    result = stockade.run(
        "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin",
        cwd=place,
        policy=policy(identity),
        stdin=b"in\n",
    )
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\nin\n", b"err\n", 0)
