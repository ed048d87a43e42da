"""``confine``: what is built there has the same box as a run, or is refused."""

from __future__ import annotations

import os
import subprocess

import pytest

import stockade
from stockade.policies.errors import RequestError

pytestmark = pytest.mark.kernel

NETWORK = "readlink /proc/self/ns/net; tail -n +3 /proc/net/dev | cut -d: -f1"


def policy_file(tmp_path, egress):
    path = tmp_path / f"{egress}.toml"
    allow = 'allow = ["api.example"]\n' if egress == "allow" else ""
    path.write_text(f'extends = "read-only"\n[network]\negress = "{egress}"\n{allow}')
    return path


@pytest.mark.parametrize("egress", ["record", "allow", "open"])
def test_a_leased_network_is_refused(tmp_path, egress):
    """Nobody would join the lease, and the box would be in the network of the caller."""
    with pytest.raises(RequestError, match="a leased network needs one"):
        stockade.confine(["true"], policy=policy_file(tmp_path, egress), cwd="/usr")


def test_the_network_is_the_boxs_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # nothing that only the caller can reach
    with stockade.confine(["sh", "-c", NETWORK], policy=policy_file(tmp_path, "none"), cwd="/usr") as start:
        done = subprocess.run(start.argv, env=start.env, pass_fds=start.fds, capture_output=True, text=True)
        assert start.classify(done.returncode).outcome == "exited", done.stderr
    namespace, *links = done.stdout.split()
    assert namespace != os.readlink("/proc/self/ns/net")
    assert links == ["lo"]


@pytest.fixture
def small(place, monkeypatch):
    """An empty directory that everybody can read, and a PATH of the system's."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(place.ws)
    return place


def spawned(start, **options):
    return subprocess.run(start.argv, env=start.env, pass_fds=start.fds, capture_output=True, timeout=30, **options)


@pytest.mark.parametrize(
    ("command", "outcome", "code"),
    [
        ("exit 0", "exited", 0),
        ("exit 7", "exited", 7),
        ("echo 'bwrap: execvp: No such file' >&2; exit 1", "exited", 1),
        ("kill -9 $$", "signalled", 137),
        (["no-such-command"], "not_executed", 127),
        (["/etc/passwd"], "not_executed", 126),
    ],
)
def test_what_it_came_to_is_told_by_the_records_alone(small, command, outcome, code):
    with stockade.confine(command) as start:
        done = spawned(start)
        told = start.classify(done.returncode, stderr=done.stderr)
    assert (told.outcome, told.exit_code, told.returncode) == (outcome, code, code), told.reason
    by_run = stockade.run(command)
    assert (told.outcome, told.exit_code, told.signal, told.started) == (
        by_run.outcome,
        by_run.exit_code,
        by_run.signal,
        by_run.started,
    )


def test_one_that_was_never_spawned_or_failed_did_not_run(small):
    with stockade.confine(["true"]) as start:
        told = start.classify(1, stderr=b"bwrap: \x1b[2J it failed")
    assert (told.outcome, told.started, told.returncode) == ("runner_failed", False, 125)
    assert "\\x1b[2J it failed" in told.reason


def test_a_killed_monitor_is_lost(small):
    with stockade.confine("echo READY; sleep 300") as start:
        process = subprocess.Popen(start.argv, env=start.env, pass_fds=start.fds, stdout=subprocess.PIPE)
        with process:
            assert process.stdout.readline() == b"READY\n"
            process.kill()
        told = start.classify(process.returncode)
    assert (told.outcome, told.started) == ("lost", True)


def test_the_box_is_that_of_a_run(small):
    """Same user, same view, same limits, same filter, nothing of the caller's environment."""
    look = (
        "id; env | sort; pwd; ls -a / ~ /etc/ssl; grep -E '^(Cap|NoNew|Seccomp:|SigBlk)' /proc/self/status;"
        " ulimit -d -n -f -c; cut -d' ' -f5,6 /proc/self/mountinfo | sort; ls /proc/self/fd; hostname"
    )
    by_run = stockade.run(look)
    with stockade.confine(look) as start:
        done = spawned(start, stdin=subprocess.DEVNULL)
    assert done.returncode == by_run.exit_code == 0, done.stderr
    assert done.stdout == by_run.stdout


def test_a_policy_that_needs_stand_ins_is_refused(small):
    with pytest.raises(RequestError, match="needs no keeper"):
        stockade.confine(["true"], policy="workspace-write")


def test_no_descriptor_is_left_and_none_is_inherited_by_accident(small):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with stockade.confine(["true"]) as start:
            assert not any(map(os.get_inheritable, start.fds))
        start.close()
    assert len(os.listdir("/proc/self/fd")) == before
