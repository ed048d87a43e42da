"""The import name: what it promises is there, typed, and costs nothing until it is used."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stockade

CONTRACT = {
    "run", "arun", "confine", "probe", "Policy", "load_policy", "RunResult", "EgressAttempt", "Denial", "StockadeError",
    "PolicyError", "SandboxUnavailable", "RunnerFailed", "BashTool",
}  # fmt: skip
"""Promised by name."""
BESIDES = {
    "RequestError", "Confined", "Outcome", "Host", "Capability", "WrittenFile", "LeasePool", "Changes",
    "Applied", "NotApplied", "BashResult", "Escalation", "EscalationRefused",
}  # fmt: skip
"""What promised names take, return or raise."""
SOURCE = Path(stockade.__file__)
HEAVY = {
    "asyncio", "json", "re", "typing", "enum", "dataclasses", "subprocess", "socket", "threading", "logging", "pathlib",
    "tempfile", "shutil", "contextlib", "argparse", "tomllib", "msgspec", "psutil", "pyseccomp", "importlib.metadata",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONTRACT | BESIDES))
def test_every_promised_name_can_be_imported(name):
    value = getattr(stockade, name)
    assert getattr(value, "__name__", name) == name
    assert value.__doc__


def test_all_is_what_is_public():
    assert set(stockade.__all__) >= CONTRACT | BESIDES
    assert len(stockade.__all__) == len(set(stockade.__all__))
    assert not [name for name in stockade.__all__ if name.startswith("_")]
    for name in stockade.__all__:
        assert getattr(stockade, name) is getattr(stockade, name)
    assert set(stockade.__all__) <= set(dir(stockade))


def test_a_star_import_brings_everything():
    space = {}
    exec("from stockade import *", space)
    assert set(stockade.__all__) <= set(space)


@pytest.mark.parametrize("name", ["nothing", "Run", "_private", "HOME"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'stockade' has no attribute '{name}'"):
        getattr(stockade, name)
    assert not hasattr(stockade, name)


def test_type_checkers_see_every_name_that_is_there_at_run_time():
    """Names are loaded lazily; what a checker sees stands in a branch that never runs. The two must agree."""
    tree = ast.parse(SOURCE.read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(seen) == set(stockade.__all__)
    for name, place in seen.items():
        module, _, attribute = place.rpartition(".")
        assert getattr(sys.modules[module], attribute) is getattr(stockade, name)


def test_it_says_that_it_is_typed():
    assert SOURCE.with_name("py.typed").exists()


def test_the_errors_form_a_tree():
    for name in ("PolicyError", "RequestError", "SandboxUnavailable", "RunnerFailed", "NotApplied"):
        assert issubclass(getattr(stockade, name), stockade.StockadeError)
    assert issubclass(stockade.RequestError, ValueError)
    refused = stockade.SandboxUnavailable("could not x: y", mode="strict", missing=("proc",), remedy="do z")
    assert (refused.mode, refused.missing, refused.remedy, str(refused)) == (
        "strict",
        ("proc",),
        "do z",
        "could not x: y\ndo z",
    )
    failed = stockade.RunnerFailed("could not x: y", result="the result")
    assert (failed.result, str(failed)) == ("the result", "could not x: y")


RUN = {
    "policy": None, "mode": None, "trusted": False, "cwd": None, "env": None, "stdin": None, "timeout": None, "allow": (),
    "record_egress": False, "write": (), "check": False, "leases": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ["run", "arun"])
def test_the_arguments_of_a_run(name):
    command, *options = inspect.signature(getattr(stockade, name)).parameters.values()
    assert (command.name, command.kind) == ("command", command.POSITIONAL_OR_KEYWORD)
    assert {each.name: each.default for each in options} == RUN
    assert all(each.kind == each.KEYWORD_ONLY for each in options)
    assert inspect.iscoroutinefunction(getattr(stockade, name)) is (name == "arun")


def test_the_arguments_of_confine():
    first, *options = inspect.signature(stockade.confine).parameters.values()
    assert first.name == "argv"
    assert {each.name for each in options} >= {"policy", "mode", "cwd", "env", "write"}
    classify = inspect.signature(stockade.Confined.classify).parameters
    assert list(classify) == ["self", "returncode", "status", "stderr"]


def test_the_fields_of_a_result():
    promised = {
        "outcome", "exit_code", "signal", "returncode", "reason", "started", "denied", "denials", "stdout", "stderr",
        "stdout_truncated", "stderr_truncated", "egress", "egress_dropped", "files_written", "enforcement", "degraded",
        "usage", "duration", "policy", "argv",
    }  # fmt: skip
    assert promised <= set(stockade.RunResult._fields)
    assert set(stockade.Denial._fields) == {"kind", "certainty", "subject", "detail", "hint"}
    assert set(stockade.EgressAttempt._fields) >= {
        "host", "address", "port", "protocol", "allowed", "packets", "bytes", "via", "first_seen",
    }  # fmt: skip


def test_the_arguments_of_the_bash_tool():
    policy, *options = inspect.signature(stockade.BashTool).parameters.values()
    assert (policy.name, policy.default) == ("policy", "workspace-write")
    assert all(each.kind == each.KEYWORD_ONLY for each in options)
    assert {each.name for each in options} == {
        "cwd", "shell", "session", "keep", "timeout", "env", "jobs", "approve", "spill_dir", "leases", "options",
    }  # fmt: skip
    for name in ("run", "arun", "start"):
        call = list(inspect.signature(getattr(stockade.BashTool, name)).parameters)
        assert call == ["self", "command", "timeout", "cwd", "env", "mode", "justification"]
    assert {"exit_code", "signal", "timed_out", "stdout", "stderr", "sandbox"} <= set(stockade.BashResult._fields)


def modules_after(statement):
    """What is loaded in a fresh interpreter without site."""
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(SOURCE.parent.parent)!r}); {statement}; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_it_loads_nothing():
    assert modules_after("import stockade") - modules_after("pass") == {"stockade", "__future__"}


def test_asking_for_a_name_loads_that_alone():
    found = modules_after("import stockade; stockade.StockadeError") - modules_after("import importlib")
    assert {name for name in found if name.startswith("stockade.")} == {
        "stockade.policies",
        "stockade.policies.errors",
    }
    assert not found & HEAVY
    assert "asyncio" in modules_after("import asyncio"), "the check sees a heavy module"


def test_dir_loads_nothing():
    assert "stockade.sandbox" not in modules_after("import stockade; dir(stockade); stockade.__all__")


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert stockade.__version__ == version("stockade")
