"""A keeper in a scope of the user's systemd: the decision by a table, the rest against a made-up systemd-run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from boxes import PATIENCE, processes_with, wait_until

from stockade.sandbox import cgroup, cgrouptrial, scope
from stockade.sandbox.scope import Facts, wanted

GOOD = Facts(unified=True, divisible=False, root=False, helper="/usr/bin/systemd-run", manager=True)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, True),
        ({"unified": False}, False),
        ({"divisible": True}, False),  # runs get their cgroups without
        ({"root": True}, False),
        ({"helper": None}, False),
        ({"manager": False}, False),
    ],
)
def test_when_a_scope_is_asked_for(changes, asked):
    assert wanted(GOOD.replace(**changes)) is asked


def test_the_line_gives_the_keeper_nothing_of_the_callers():
    assert scope.line("/bin/run", "a.scope", {"LD_LIBRARY_PATH": "/x y"}, ["python", "-c", "pass"]) == [
        "/bin/run", "--user", "--scope", "--quiet", "--collect", "--unit=a.scope", "--property=Delegate=yes",
        "--", "/usr/bin/env", "-i", "LD_LIBRARY_PATH=/x y", "python", "-c", "pass",
    ]  # fmt: skip


def test_systemd_run_gets_what_leads_to_the_users_systemd_and_no_more():
    given = {"XDG_RUNTIME_DIR": "/run/user/1", "DBUS_SESSION_BUS_ADDRESS": "unix:x", "SECRET": "s", "HOME": "/h"}
    assert scope.bus_variables(given) == {"XDG_RUNTIME_DIR": "/run/user/1", "DBUS_SESSION_BUS_ADDRESS": "unix:x"}


@pytest.mark.parametrize(("made", "found"), [((), False), (("systemd",), False), (("systemd", "private"), True)])
def test_a_manager_is_there_if_its_socket_is(tmp_path, monkeypatch, made, found):
    for at in range(len(made)):
        (tmp_path / "/".join(made[: at + 1])).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert scope.facts_here().manager is found
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert not scope.facts_here().manager


@pytest.fixture
def systemd_run(tmp_path, monkeypatch):
    """Makes one of a shell script. Everything it is given is written down first."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("SECRET", "not for systemd")

    def make(script):
        path = tmp_path / "systemd-run"
        log = shlex.quote(str(tmp_path / "log"))
        path.write_text(f'#!/bin/sh\n{{ env; printf "arg %s\\n" "$@"; }} > {log}\n{script}\n')
        path.chmod(0o755)
        return str(path)

    return make


SAYS = f"exec {shlex.quote(sys.executable)} -c \"import socket, time; s = socket.socket(fileno=3); s.send(b'%s'); s.recv(1)\""
ONWARD = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


def test_a_keeper_that_divided_its_scope_is_used(systemd_run, tmp_path):
    link = scope.attempt(systemd_run(SAYS % "divided"))
    assert link is not None
    said = (tmp_path / "log").read_text()
    assert f"arg --unit={cgroup.owner_name(os.getpid())}-keeper.scope\n" in said
    assert f"XDG_RUNTIME_DIR={tmp_path}\n" in said
    assert "SECRET" not in said
    link.close()
    assert not os.path.exists(f"/proc/{link.pid}")


@pytest.mark.parametrize(
    "script",
    [
        SAYS % "whole",
        ONWARD,  # it made no scope: the keeper finds itself where it was, and leaves that as it is
        "exit 1",
        "echo Failed to connect to bus >&2; exit 1",
        "exec sleep 300.0977",
        "kill -9 $$",
    ],
)
def test_whatever_goes_wrong_there_is_no_link_and_nothing_left(systemd_run, monkeypatch, script):
    monkeypatch.setattr(scope, "PATIENCE", 1500 if "sleep" not in script else 100)
    before = set(os.listdir("/proc/self/fd"))
    assert scope.attempt(systemd_run(script)) is None
    assert set(os.listdir("/proc/self/fd")) == before
    wait_until(lambda: not processes_with("300.0977"), "it is gone")


def test_a_helper_that_is_not_there_is_no_error():
    assert scope.attempt("/nonexistent/systemd-run") is None


def test_after_one_failure_it_is_not_tried_again(monkeypatch):
    tried = []
    monkeypatch.setattr(scope, "_failed", False)
    monkeypatch.setattr(scope, "facts_here", lambda: GOOD)
    monkeypatch.setattr(scope, "attempt", tried.append)
    assert [scope.start_keeper(), scope.start_keeper()] == [None, None]
    assert tried == [GOOD.helper]


@pytest.mark.parametrize(("works", "state"), [(True, "ok"), (False, "disabled")])
def test_doctor_tries_it(systemd_run, monkeypatch, tmp_path, works, state):
    helper = systemd_run(SAYS % "divided" if works else "exit 1")
    monkeypatch.setattr(scope, "find_helper", lambda _name: helper)
    monkeypatch.setattr(scope, "facts_here", lambda _root, _own: GOOD)
    found = cgrouptrial.capability(str(tmp_path), "/", tried=True)
    assert (found.name, found.state) == ("cgroup", state)
    assert bool(found.remedy) is not works
    assert cgrouptrial.capability(str(tmp_path), "/", tried=False).state == "ok"


PARENT = cgroup.choose(cgroup.look()).parent
MAKES = f"""
for word in "$@"; do case $word in --unit=*) unit=${{word#--unit=}};; esac; done
mkdir {PARENT}/$unit && echo 0 > {PARENT}/$unit/cgroup.procs || exit 1
{ONWARD}"""
RUN = """
import sys
from stockade.sandbox import cgroup, scope
scope.find_helper = lambda _name: sys.argv[1]
scope.facts_here = lambda: scope.Facts(True, False, False, sys.argv[1], True)
from stockade.sandbox import keeperlink
keeperlink._link = scope.start_keeper()
assert keeperlink._link is not None
import stockade
result = stockade.run("cat /proc/self/cgroup")
print(result.stdout, result.usage.cgroup, open(f"/proc/{keeperlink._link.pid}/cgroup").read().strip())
"""


@pytest.mark.kernel
@pytest.mark.skipif(not PARENT, reason="needs a cgroup v2 that this process may divide")
def test_a_keeper_divides_its_scope_for_its_runs(systemd_run):
    """With a scope that is really made, if not by systemd."""
    helper = systemd_run(MAKES)
    command = [sys.executable, "-c", RUN, helper]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    stdout, together, place = done.stdout.split(maxsplit=2)
    assert (stdout, together) == (r"b'0::/\n'", "True"), done.stderr
    assert place.strip().endswith(f"-keeper.scope/{cgroup.LEAF}")
    left = f"{PARENT}/{place.strip().split('/')[-2]}"
    assert [name for name in os.listdir(left) if os.path.isdir(f"{left}/{name}")] == [cgroup.LEAF]
    wait_until(lambda: cgroup.rmdir(f"{left}/{cgroup.LEAF}"), "the keeper is gone")  # from here on systemd's part
    os.rmdir(left)
