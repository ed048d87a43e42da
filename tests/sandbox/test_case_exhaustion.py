"""A program that takes all it can get: memory, processes, space, and the patience of whoever reads its streams."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import subprocess
import sys

import pytest
from boxes import IDENTITIES, PATIENCE, PYTHON, own_state, policy, probe, processes_with, wait_until  # noqa: F401

import stockade
from stockade.sandbox.plan import UNBOUND

pytestmark = pytest.mark.kernel

RUN = (sys.executable, "-m", "stockade", "run")
MUCH = 20 << 20
as_each = pytest.mark.parametrize("identity", IDENTITIES)


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    """The directory that is everybody's default here: empty, and open to whomever a run becomes."""
    monkeypatch.chdir(place.ws)


# --- what goes in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("exit 0", "exited"),
        ("exec 0<&-; sleep 0.1", "exited"),
        ("sleep 300", "timed_out"),
        ("kill -9 $$", "signalled"),
    ],
)
def test_much_input_that_nobody_reads_is_no_error(command, outcome):
    assert (
        stockade.run(command, stdin=b"x" * MUCH, timeout=0.5 if outcome == "timed_out" else 20).outcome == outcome
    )


def test_much_input_arrives_whole_also_when_output_comes_first():
    data = os.urandom(1 << 20) * (MUCH >> 20)
    result = stockade.run("head -c 3000000 /dev/zero; sha256sum >&2", stdin=data, timeout=PATIENCE)
    assert result.ok, result.reason
    assert result.stdout_bytes == 3_000_000
    assert result.stderr.split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("command", "outcome"), [("cat", "timed_out"), ("read x; echo $x", "exited"), ("true", "exited")]
)
def test_an_input_that_never_ends_holds_nobody_but_who_waits_for_it(command, outcome):
    read, write = os.pipe()
    try:
        os.write(write, b"a line\n")
        result = stockade.run(command, stdin=read, timeout=0.5 if outcome == "timed_out" else 20)
    finally:
        os.close(read)
        os.close(write)
    assert result.outcome == outcome
    assert result.stdout == (b"" if command == "true" else b"a line\n")


def test_a_file_is_read_from_its_place_and_left_at_it(place):
    """As if the program had the caller's own descriptor: what it did not read is there for the next reader."""
    path = place.put("other/input", "one\ntwo\nthree\n" + "more\n" * 100_000)
    with open(path, "rb", buffering=0) as file:
        assert file.read(4) == b"one\n"
        assert stockade.run("head -c 4", stdin=file).stdout == b"two\n"
        assert stockade.run("true", stdin=file).ok
        assert file.read(6) == b"three\n"
        assert stockade.run("wc -l", stdin=file).stdout.split() == [b"100000"]
        assert file.read() == b""


def test_a_file_that_was_opened_to_be_read_can_not_be_written_through_its_descriptor(place):
    """Its own descriptor could be opened anew through /proc, for writing, whatever it was opened for."""
    path = place.put("other/input", "as it was\n")
    os.chmod(path, 0o666)
    attempt = (
        "cat; echo evil > /proc/self/fd/0; chmod 777 /proc/self/fd/0; exec 3<>/proc/self/fd/0; echo evil >&3; :"
    )
    with open(path, "rb") as file:
        assert stockade.run(attempt, stdin=file).stdout == b"as it was\n"
        with open(path) as after:
            assert after.read() == "as it was\n"
        assert os.stat(path).st_mode & 0o777 == 0o666
        file.seek(0)
        subprocess.run(["/bin/sh", "-c", attempt], stdin=file, capture_output=True, check=False)  # control
    with open(path) as after:
        assert "evil" in after.read()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH], ids=["open", "path only"])
def test_a_directory_is_no_input(place, flags):
    """It would lead to everything below and above it, past every mount."""
    fd = os.open(place.home, flags)
    try:
        with pytest.raises(stockade.RequestError, match="is a directory"):
            stockade.run("ls /proc/self/fd/0/..", stdin=fd)
    finally:
        os.close(fd)


# --- what comes out ----------------------------------------------------------------------------------------------

COUNT = """
import json, resource, sys
import stockade
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
command = "echo FIRST; head -c 52428800 /dev/zero | tr '\\\\0' x; echo LAST"
result = stockade.run(command)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([
    grown, result.outcome, result.stdout_bytes, result.stdout_truncated, len(result.stdout),
    result.stdout[:7].decode(), result.stdout[-6:].decode(), result.stderr_truncated,
]))
"""


def test_much_output_is_counted_and_only_its_ends_are_kept():
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, timeout=PATIENCE, check=True)
    grown, outcome, total, truncated, kept, first, last, other = json.loads(done.stdout)
    assert (outcome, total, truncated, kept, other) == ("exited", (50 << 20) + 11, True, 1 << 20, False)
    assert (first, last) == ("FIRST\nx", "xLAST\n")
    assert grown < 64 << 10  # KiB


def test_both_streams_are_drained_together():
    command = "head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 4"
    result = stockade.run(command, timeout=PATIENCE)
    assert (result.outcome, result.exit_code) == ("exited", 4)
    assert (result.stdout_bytes, result.stderr_bytes) == (3_000_000, 6_000_000)


def test_a_reached_cap_stops_no_program():
    result = stockade.run("head -c 300000 /dev/zero; echo more >&2", policy=policy(limits={"output": "64K"}))
    assert (result.outcome, result.exit_code, result.stderr) == ("exited", 0, b"more\n")
    assert (result.stdout_bytes, len(result.stdout), result.stdout_truncated) == (300_000, 65_536, True)


@pytest.mark.parametrize("trusted", [False, True], ids=["confined", "direct"])
def test_endless_output_ends_at_the_deadline(trusted):
    result = stockade.run("yes", timeout=0.5, trusted=trusted)
    assert (result.outcome, result.stdout_truncated) == ("timed_out", True)
    assert result.stdout_bytes > len(result.stdout)


def test_a_survivor_of_a_direct_run_that_writes_for_ever_holds_nobody(place):
    """Nothing confines it, so it may go on; what is waited for is what it had written by then."""
    token = f"token-{os.urandom(8).hex()}"
    writer = "import os\nwhile os.path.exists('go'): os.write(1, b'x' * 65536)"
    place.put("ws/go")
    try:
        command = [
            PYTHON,
            "-c",
            f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {writer!r}, {token!r}])",
        ]
        assert stockade.run(command, trusted=True, timeout=PATIENCE).outcome == "exited"
    finally:
        os.unlink("go")
        wait_until(lambda: not processes_with(token), "the survivor is gone")


def test_sockets_of_the_caller_are_pipes_inside():
    """A socket carries data past any network namespace, so its bytes are carried, and it is not handed on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        script = "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2; cat"
        with subprocess.Popen(
            [*RUN, "--", "sh", "-c", script], stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            theirs.close()
            ours.sendall(b"carried\n")
            ours.shutdown(socket.SHUT_WR)
            with ours.makefile("rb") as file:
                lines = file.read().splitlines()
            assert process.wait(PATIENCE) == 0
    assert [line.partition(b":")[0] for line in lines] == [b"pipe", b"pipe", b"pipe", b"carried"]


def test_all_that_was_written_reaches_a_slow_reader_of_a_socket():
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen([*RUN, "--", "head", "-c", "2000000", "/dev/zero"], stdout=theirs) as process,
    ):
        theirs.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # nobody reads yet
        total = 0
        while data := ours.recv(65536):
            total += len(data)
        assert process.wait(PATIENCE) == 0
    assert total == 2_000_000


GREEDY = "import fcntl, os\nfcntl.fcntl(1, 1031, 1 << 20)\nwhile True: os.write(1, b'x' * 65536)"


def test_a_reader_that_never_reads_does_not_stretch_the_deadline():
    """Nor does a program that has made its pipe as large as it may."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*RUN, "--timeout", "0.5", "--", PYTHON, "-c", GREEDY]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert done.returncode == 124, done.stderr


# --- what it may take --------------------------------------------------------------------------------------------

FORKS = """
found["made"] = 0
import time
for _ in range(40):
    try:
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
        found["made"] += 1
    except BlockingIOError:
        pass
"""


MANY = (
    "import os, time\nfor i in range(5): os.fork()\ntime.sleep(60)",
    "import threading, time\nfor i in range(30): threading.Thread(target=time.sleep, args=(60,)).start()",
    # Children of a parent that is gone: pid 1 of the box has adopted them.
    """import os, time
for i in range(30):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(60)
        os._exit(0)
    os.wait()
time.sleep(60)""",
)
"""Processes that double, threads, and daemons."""


@as_each
def test_processes_are_limited(identity):
    within = probe(FORKS, policy=policy(identity, limits={"processes": 60}))
    assert within["made"] == 40
    result = stockade.run("true", policy=policy(identity, limits={"processes": 20}))
    if identity != "kept":
        made = probe(FORKS, policy=policy(identity, limits={"processes": 20}))["made"]
        assert 10 < made < 20
        assert result.notes == ()
        return
    # The kernel binds no process of root: stockade counts, and ends the run. These end by themselves too.
    assert UNBOUND in result.notes
    for many in MANY:
        crowd = stockade.run([PYTHON, "-c", many], policy=policy(identity, limits={"processes": 20}), timeout=30)
        assert (crowd.outcome, crowd.rule) == ("signalled", "crowded")
        assert [(each.kind, each.certainty, each.subject) for each in crowd.denials] == [
            ("limit", "observed", "limits.processes")
        ]


def test_a_fork_bomb_ends_with_its_run():
    token = f"token-{os.urandom(8).hex()}"
    bomb = "import os, sys\nwhile True:\n try: os.fork()\n except OSError: pass"
    result = stockade.run([PYTHON, "-c", bomb, token], policy=policy(limits={"processes": 20}), timeout=1)
    assert result.outcome == "timed_out"
    assert processes_with(token) == []
    assert stockade.run("true").ok


TAKES = """
def take(size):
    try:
        return len(bytearray(size))
    except MemoryError:
        return 0
found["much"] = take(300 << 20)
found["little"] = take(20 << 20)
"""


@as_each
def test_memory_is_limited(identity):
    assert probe(TAKES, policy=policy(identity, limits={"memory": "128M"})) == {"much": 0, "little": 20 << 20}
    assert probe(TAKES, policy=policy(identity, limits={"memory": "512M"}))["much"] == 300 << 20


FILLS = """
for place in sys.argv[1:]:
    path = os.path.join(os.path.expanduser(place), "filler")
    def fill(size):
        with open(path, "wb") as file:
            file.write(b"x" * size)
    found[place] = [tried(fill, 100_000), tried(fill, 6 << 20)]
"""


@as_each
def test_every_place_that_can_be_filled_has_a_size(identity):
    """A tmpfs without one is half of the host's memory."""
    sized = ("/tmp", "/var/tmp", "/dev/shm", "~")
    shut = ("/", "/dev", "/usr", "/etc", "/proc")
    found = probe(FILLS, *sized, *shut, policy=policy(identity, limits={"tmp": "4M", "file_size": "none"}))
    for place in sized:
        assert found[place] == ["ok", "ENOSPC"], place
    for place in shut:
        assert set(found[place]) <= {"EROFS", "EACCES", "ENOENT"}, place
    larger = probe(FILLS, "/tmp", policy=policy(identity, limits={"tmp": "16M"}))
    assert larger["/tmp"] == ["ok", "ok"]


@as_each
def test_a_file_has_a_largest_size(identity, place):
    body = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + FILLS
    found = probe(body, place.ws, policy=policy(identity, limits={"file_size": "1M"}))
    assert found[place.ws] == ["ok", "EFBIG"]
    result = stockade.run("head -c 3000000 /dev/zero > filler", policy=policy(identity, limits={"file_size": "1M"}))
    assert [each.kind for each in result.denials] == ["limit"]


@as_each
def test_open_files_are_limited(identity):
    body = """
    opened = []
    def open_all():
        for _ in range(200):
            opened.append(os.open("/dev/null", os.O_RDONLY))
    found["end"] = tried(open_all)
    found["opened"] = len(opened)
    """
    found = probe(body, policy=policy(identity, limits={"open_files": 64}))
    assert found["end"] == "EMFILE"
    assert 50 < found["opened"] < 64
    assert probe(body, policy=policy(identity, limits={"open_files": 300}))["opened"] == 200


@as_each
def test_the_callers_own_lower_limits_hold(identity):
    """A policy can't raise what the caller is held to."""
    body = "import resource\nfound.update(files=resource.getrlimit(resource.RLIMIT_NOFILE), core=resource.getrlimit(4))"
    tree = policy(identity, limits={"open_files": 100_000})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert probe(body, policy=tree) == {"files": [min(100_000, hard)] * 2, "core": [0, 0]}


def test_a_full_disk_is_the_programs_own_failure(place):
    """A small file system as the workspace, in a mount namespace of the test's own; our records lie elsewhere."""
    script = f'mount -t tmpfs -o size=1m,mode=777 none {place.ws} && cd {place.ws} && exec "$@"'
    document = place.path("verdict.json")
    run = [
        *RUN,
        f"--json={document}",
        "--policy",
        "workspace-write",
        "--",
        "dd",
        "if=/dev/zero",
        "of=full",
        "bs=64k",
    ]
    command = ["/usr/bin/unshare", "-Urm", "/bin/sh", "-c", script, "sh", *run]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    with open(document) as file:
        verdict = json.load(file)
    assert (verdict["outcome"], verdict["exit_code"], done.returncode) == ("exited", 1, 1), done.stderr
    assert [os.path.basename(each["path"]) for each in verdict["files_written"]] == ["full"]
    assert os.listdir(place.ws) == []


def test_a_tree_too_deep_for_paths_breaks_neither_this_run_nor_the_next():
    deep = """
    import pathlib
    for _ in range(40):
        os.mkdir("d" * 200)
        os.chmod("d" * 200, 0o777)
        os.chdir("d" * 200)
    found["made"] = True
    """
    assert probe(deep, policy=policy()) == {"made": True}
    result = stockade.run("echo ran", policy=policy())
    assert result.stdout == b"ran\n", result.reason
    cleared = stockade.run("rm -rf d*; ls -A", policy=policy())
    assert os.listdir(".") == [], cleared.stderr
