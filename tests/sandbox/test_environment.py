"""What variables are inside, and which layer wins."""

from __future__ import annotations

import pytest
from fakes import facts, policy, request

from stockade.sandbox.environment import inside, passes


@pytest.mark.parametrize(
    ("name", "patterns", "answer"),
    [
        ("LANG", ("LANG",), True),
        ("LANGUAGE", ("LANG",), False),
        ("LC_ALL", ("LC_*",), True),
        ("LC_", ("LC_*",), True),
        ("lc_all", ("LC_*",), False),
        ("ANY", ("*",), True),
        ("ANY", (), False),
        ("A*", ("A*",), True),
        ("XLC_ALL", ("LC_*",), False),
    ],
)
def test_passes(name, patterns, answer):
    assert passes(name, patterns) is answer


def test_nothing_of_the_caller_comes_in_unasked():
    found = dict(inside(policy(env_pass=()), request(), facts(), ("/usr/bin", "/bin")))
    assert found == {
        "HOME": "/home/ann",
        "USER": "ann",
        "LOGNAME": "ann",
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/sh",
    }


def test_the_policy_passes_by_name_and_prefix():
    found = dict(inside(policy(), request(), facts(), ()))
    assert (found["LANG"], found["LC_ALL"], found["TERM"]) == ("C.UTF-8", "C", "xterm")
    assert "SECRET" not in found
    assert dict(inside(policy(env_pass=("SECRET",)), request(), facts(), ()))["SECRET"] == "sk-1"


@pytest.mark.parametrize(
    ("passed", "set_by_policy", "given", "answer"),
    [
        ((), (), (), "ann"),
        (("USER",), (), (), "caller"),
        (("USER",), (("USER", "policy"),), (), "policy"),
        (("USER",), (("USER", "policy"),), (("USER", "call"),), "call"),
        ((), (("USER", ""),), (), ""),
    ],
)
def test_later_layers_win(passed, set_by_policy, given, answer):
    where = facts(environ=(("USER", "caller"),))
    found = inside(policy(env_pass=passed, env_set=set_by_policy), request(env=given), where, ())
    assert dict(found)["USER"] == answer
    assert len(dict(found)) == len(found)


def test_values_are_taken_as_they_are():
    odd = "a b'\"$(id)\n\udcff--bind"
    found = dict(inside(policy(env_set=(("X", odd),)), request(env=(("Y", odd),)), facts(), ()))
    assert (found["X"], found["Y"]) == (odd, odd)
