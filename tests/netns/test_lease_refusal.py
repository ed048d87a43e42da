"""Without its tools, or where a part does not do its work, there is no network and no run: never one without rules.

What is missing before anything starts is a refusal that names each piece with its remedy; what fails later is a
failure of the runner that names the part. The program leaves a mark if it was ever started.
"""

from __future__ import annotations

import os
import subprocess
import sys

import leasewatch
import pytest
from leasewatch import KINDS, Watch

import stockade
from stockade.netns import features, lease, nft, ruleset
from stockade.policies.capability import Capability
from stockade.policies.model import parse_tree
from stockade.sandbox import bwrap, keeperlink, leasetrial, lessor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

SHORT = 0.4
"""Seconds for a part that never gets ready."""
MARK = ["sh", "-c", "echo ran > mark; echo ran"]
find_helper = bwrap.find_helper
rules_text = ruleset.rules_text


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", path)
        assert stockade.probe().by_name()["leased-network"].state == "ok", (
            "these tests need a host that can do it all"
        )
    return path


@pytest.fixture
def place(monkeypatch, cache) -> Iterator[leasewatch.Place]:
    with leasewatch.place(cache) as made:
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(made.work)
        yield made


@pytest.fixture
def watch(place) -> Iterator[Watch]:
    """Nothing runs before, and nothing is left."""
    keeperlink.end_keeper()
    with leasewatch.subreaper():
        found = Watch()
        yield found
        keeperlink.end_keeper()
        found.assert_nothing_left()


def attempt(kind, *, connector="auto", **more):
    if connector != "auto":
        network = {"egress": kind, "allow": ["192.0.2.1"], "connector": connector}
        policy = parse_tree({"extends": "workspace-write", "network": network}, "a test")
        return stockade.run(MARK, policy=policy, **more)
    options = {"allow": ["192.0.2.1"]} if kind == "allow" else {"record_egress": True}
    return stockade.run(MARK, policy="workspace-write", **options, **more)


def assert_runs(place, kind, **more):
    result = attempt(kind, **more)
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, b"ran\n"), result.reason
    (place.work / "mark").unlink()


def assert_failed(place, result, part, *, started=False):
    assert (result.outcome, result.returncode, result.exit_code) == ("runner_failed", 125, None), result.reason
    assert part in result.reason
    assert result.denials == ()
    assert result.started is started
    assert (place.work / "mark").exists() is started


def hide(monkeypatch, *names, **stubs):
    """Tools that are not installed, or that something else stands for."""

    def find(name):
        return None if name in names else stubs.get(name) or find_helper(name)

    monkeypatch.setattr(bwrap, "find_helper", find)
    monkeypatch.setattr(lessor, "find_helper", find)


def script(place, text):
    path = place.top / "stub"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# --- refused before anything starts -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_with_everything_it_runs(place, watch, kind):
    assert_runs(place, kind)


@pytest.mark.parametrize(
    ("kind", "absent", "missing"),
    [
        ("allow", ["slirp4netns", "pasta"], ["slirp4netns"]),
        ("allow", ["nft"], ["nftables"]),
        ("allow", ["slirp4netns", "pasta", "nft"], ["slirp4netns", "nftables"]),
        ("record", ["nft"], ["nftables"]),
        ("record", ["nft", "slirp4netns", "pasta"], ["nftables"]),
    ],
)
def test_missing_tools_are_named_with_their_remedies(place, watch, monkeypatch, kind, absent, missing):
    hide(monkeypatch, *absent)
    with pytest.raises(stockade.SandboxUnavailable) as caught:
        attempt(kind)
    assert set(missing) <= set(caught.value.missing) <= {*missing, "leased-network"}
    for name in missing:
        assert name in caught.value.message
        assert f"Install the package {name}." in caught.value.remedy
    assert ("Or use pasta: Install the package passt." in caught.value.remedy) is ("slirp4netns" in missing)
    assert caught.value.mode == "auto"
    assert watch.below() == [], "something was started"
    assert not (place.work / "mark").exists()
    monkeypatch.undo()
    monkeypatch.chdir(place.work)
    assert_runs(place, kind)


@pytest.mark.parametrize(
    ("path", "word"), [("/dev/null", "is not the tun device"), ("/none/tun", "does not exist")]
)
def test_device_is_needed_to_let_something_out(place, watch, monkeypatch, path, word):
    monkeypatch.setattr(features, "TUN", path)
    with pytest.raises(stockade.SandboxUnavailable, match=word) as caught:
        attempt("allow")
    assert "tun" in caught.value.missing
    assert path in caught.value.remedy or "modprobe tun" in caught.value.remedy
    assert watch.below() == []
    assert not (place.work / "mark").exists()


@pytest.mark.parametrize(("connector", "package"), [("slirp4netns", "slirp4netns"), ("pasta", "passt")])
def test_a_connector_that_is_asked_for_is_not_replaced(place, watch, monkeypatch, connector, package):
    assert_runs(place, "allow", connector=connector)
    keeperlink.end_keeper()
    hide(monkeypatch, connector)
    with pytest.raises(stockade.SandboxUnavailable, match=f"{connector} is not installed") as caught:
        attempt("allow", connector=connector)
    assert caught.value.missing == (connector,)
    assert caught.value.remedy == f"Install the package {package}."
    assert watch.below() == []
    assert not (place.work / "mark").exists()
    monkeypatch.undo()
    monkeypatch.chdir(place.work)


def test_the_other_connector_stands_in_for_one_that_is_missing(place, watch, monkeypatch):
    used = place.work / "used"
    used.touch()
    used.chmod(0o666)
    stand_in = script(place, f'echo "$@" >> {used}\nexec {find_helper("pasta")} "$@"')
    hide(monkeypatch, pasta=stand_in)
    assert_runs(place, "allow")
    assert used.read_text() == "", "the usual one is there"
    hide(monkeypatch, "slirp4netns", pasta=stand_in)
    assert_runs(place, "allow")
    assert "--no-map-gw" in used.read_text()


@pytest.mark.root
def test_pasta_can_not_have_the_callers_rights(place, watch, monkeypatch):
    """slirp4netns attaches with the caller's uid where only that may open the device; pasta can't."""
    monkeypatch.setattr(lessor, "open_to_all", lambda _path: False)
    policy = {"extends": "workspace-write", "process": {"user": "unprivileged"}}
    network = {"egress": "allow", "allow": ["192.0.2.1"]}
    usual = parse_tree({**policy, "network": {**network, "connector": "slirp4netns"}}, "a test")
    assert stockade.run(["true"], policy=usual, cwd=place.work).outcome == "exited"
    keeperlink.end_keeper()
    other = parse_tree({**policy, "network": {**network, "connector": "pasta"}}, "a test")
    with pytest.raises(stockade.SandboxUnavailable, match="under the uid of the run") as caught:
        stockade.run(["true"], policy=other, cwd=place.work)
    assert caught.value.missing == ("tun",)
    assert watch.below() == []


def test_recording_needs_neither_connector_nor_device(place, watch, monkeypatch):
    hide(monkeypatch, "slirp4netns", "pasta")
    monkeypatch.setattr(features, "TUN", "/none/tun")
    assert_runs(place, "record")
    assert stockade.run(["true"]).outcome == "exited", "a run without a network needs nothing of it"


COVERED = """
import stockade
try:
    result = stockade.run(["sh", "-c", "echo ran"], **eval(ARGUMENT))
    print(result.outcome, result.stdout)
except stockade.SandboxUnavailable as error:
    print("refused", *error.missing)
for each in stockade.probe().capabilities:
    if each.name in ("slirp4netns", "pasta", "nftables", "tun", "leased-network"):
        print(each.name, each.state)
from stockade.sandbox import keeperlink
keeperlink.end_keeper()
"""


@pytest.mark.parametrize(
    ("covered", "allow", "record"),
    [
        ("", "exited b'ran\\n'", "exited b'ran\\n'"),
        ("/dev/net/tun", "refused leased-network tun", "exited b'ran\\n'"),
        ("slirp4netns", "exited b'ran\\n'", "exited b'ran\\n'"),
        ("pasta", "exited b'ran\\n'", "exited b'ran\\n'"),
        ("slirp4netns pasta", "refused leased-network slirp4netns", "exited b'ran\\n'"),
        ("nft", "refused leased-network nftables", "refused nftables"),
    ],
)
def test_host_where_something_lies_over_it(place, watch, covered, allow, record):
    """In a mount namespace of its own: the real probe and the real search for tools."""
    cover = "".join(f"mount --bind /dev/null {where(each)} && " for each in covered.split())
    for arguments, wanted in ({"allow": ["192.0.2.1"]}, allow), ({"record_egress": True}, record):
        program = COVERED.replace("ARGUMENT", repr(repr(arguments)))
        namespace = (
            ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        )
        line = [*namespace, "sh", "-c", f'{cover}exec "$@"', "sh", sys.executable, "-c", program]
        # Another cache: the situation is another one.
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=60, env={**place.env, "XDG_CACHE_HOME": str(place.home)}
        )
        first, *capabilities = done.stdout.splitlines()
        assert first == wanted, done.stderr
        states = dict(each.split() for each in capabilities)
        lacking = {{"/dev/net/tun": "tun", "nft": "nftables"}.get(each, each) for each in covered.split()}
        network = {"leased-network"} if "refused" in allow else set()
        assert {name for name, state in states.items() if state != "ok"} == lacking | network


def where(tool):
    return tool if tool.startswith("/") else os.path.realpath(find_helper(tool))


BROKEN_TOOL = """
import stockade
run = lambda: stockade.run(["sh", "-c", "echo ran"], allow=["192.0.2.1"])
print(run().reason.splitlines()[0])
for each in stockade.probe().capabilities:
    if each.name in ("slirp4netns", "pasta", "leased-network"):
        print(each.name, each.state, each.detail)
print(run().reason)
from stockade.sandbox import keeperlink
keeperlink.end_keeper()
"""
FAILED = "could not lease a network: {}: it ended before the link was there"
RAN = "exited with code 0"


@pytest.mark.parametrize(
    ("broken", "before", "states", "after"),
    [
        ("slirp4netns", FAILED, ["disabled {why}", "ok {path}", "ok {both} (pasta)"], RAN),
        ("pasta", RAN, ["ok {path}", "disabled {why}", "ok {both} (slirp4netns)"], RAN),
        ("slirp4netns pasta", FAILED, ["ok {path}", "ok {path}", "missing {why}"], FAILED),
    ],
    ids=["slirp4netns", "pasta", "both"],
)
def test_a_connector_that_can_not_attach_is_found_out_by_the_trial(place, watch, broken, before, states, after):
    """What it showed is remembered: then the other one is taken."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    cover = "".join(f"mount --bind {os.path.realpath('/bin/false')} {where(each)} && " for each in broken.split())
    line = [*namespace, "sh", "-c", f'{cover}exec "$@"', "sh", sys.executable, "-c", BROKEN_TOOL]
    env = {**place.env, "XDG_CACHE_HOME": str(place.home)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=env)
    failed = FAILED.format(broken.split()[0])
    names = ("slirp4netns", "pasta", "leased-network")
    wanted = [
        f"{name} {state.format(why=f'the trial failed: {failed}', path=find_helper(name), both=leasetrial.BOTH)}"
        for name, state in zip(names, states, strict=True)
    ]
    said = [failed if each == FAILED else each for each in (before, *wanted, after)]
    assert done.stdout.splitlines() == said, done.stderr


# --- packet rules -------------------------------------------------------------------------------------------------

BROKEN = {
    "no nft text": lambda _text, _other: "table inet stockade {\n\tnonsense\n}\n",
    "nothing": lambda _text, _other: "",
    "comment": lambda _text, _other: "# no rules\n",
    "accepts by default": lambda text, _other: text.replace("policy drop", "policy accept"),
    "of another kind": lambda _text, other: other,
    "a rule more than it says": lambda text, _other: text + "insert rule inet stockade output accept\n",
    "a chain less than it says": lambda text, _other: text + "flush chain inet stockade output\n",
    "a chain more than it says": lambda text, _other: text + "add chain inet stockade surprise\n",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("engine", ["library", "program"])
def test_rules_that_are_not_what_they_should_be(place, watch, monkeypatch, kind, fault, engine):
    def broken(of, rules, **options):
        other = "record" if of == "allow" else "allow"
        return BROKEN[fault](rules_text(of, rules, **options), rules_text(other, rules, **options))

    monkeypatch.setattr(ruleset, "rules_text", broken)
    if engine == "program":
        monkeypatch.setattr(nft, "locate_binding", lambda: None)
    assert_failed(place, attempt(kind), "nft")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "binding",
    [
        None,
        "raise ImportError('broken')",
        "class Nftables:\n    def __init__(self): raise OSError('no library')",
        "",
    ],
    ids=["none", "broken", "no library", "empty"],
)
def test_without_the_library_the_program_is_used(place, watch, monkeypatch, kind, binding):
    said = place.work / "used"
    said.touch()
    said.chmod(0o666)
    program = script(place, f'echo used >> {said}\nexec {find_helper("nft")} "$@"')
    hide(monkeypatch, nft=program)
    if binding is not None:
        (place.top / "nftables.py").write_text(binding)
    monkeypatch.setattr(nft, "locate_binding", lambda: None if binding is None else str(place.top))
    assert_runs(place, kind)
    assert len(said.read_text().split()) >= 3, "loaded, read back, counters read"


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_library_the_program_is_not_used(place, watch, monkeypatch, kind):
    hide(monkeypatch, nft=script(place, "exit 1"))
    assert_runs(place, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program", [None, "exit 1", "exit 0", "echo '{'", "echo nonsense >&2; exit 1", "kill -9 $$"],
)  # fmt: skip
def test_neither_library_nor_program(place, watch, monkeypatch, kind, program):
    """A program that says it did it and did not is as bad as none."""
    path = None if program is None else script(place, program)
    monkeypatch.setattr(lessor, "find_helper", lambda name: path if name == "nft" else find_helper(name))
    monkeypatch.setattr(nft, "locate_binding", lambda: None)
    assert_failed(place, attempt(kind), "nft")


def test_program_that_never_ends(place, watch, monkeypatch):
    hide(monkeypatch, nft=script(place, "exec sleep 60"))
    monkeypatch.setattr(nft, "locate_binding", lambda: None)
    monkeypatch.setattr(lease, "READY_SECONDS", SHORT)
    result = attempt("record")
    assert_failed(place, result, "holder")
    assert "was not ready" in result.reason


# --- the connector ------------------------------------------------------------------------------------------------


ENDED, NOT_READY = "it ended before the link was there", "it was not ready"


@pytest.mark.parametrize(
    ("connector", "stub", "reason"),
    [
        ("slirp4netns", "exit 1", ENDED),
        ("slirp4netns", "exit 0", ENDED),
        ("slirp4netns", "printf 0 >&11; exec sleep 60", ENDED),
        ("slirp4netns", "exec 11>&-; exec sleep 60", ENDED),
        ("slirp4netns", "exec sleep 60", NOT_READY),
        ("slirp4netns", "exec sleep 60 12>&-", NOT_READY),
        ("pasta", "exit 1", ENDED),
        ("pasta", "exit 0", ENDED),
        ("pasta", "echo usage; exec sleep 60", ENDED),
        ("pasta", "exec sleep 60 >&-", ENDED),
        ("pasta", "exec sleep 60", NOT_READY),
    ],
)
def test_connector_that_does_not_get_ready(place, watch, monkeypatch, connector, stub, reason):
    hide(monkeypatch, **{connector: script(place, stub)})
    monkeypatch.setattr(lease, "READY_SECONDS", SHORT if reason == NOT_READY else lease.READY_SECONDS)
    result = attempt("allow", connector=connector)
    assert_failed(place, result, connector)
    assert reason in result.reason


@pytest.mark.parametrize("connector", ["slirp4netns", "pasta"])
def test_connector_that_can_not_be_executed(place, watch, monkeypatch, connector):
    path = script(place, "")
    os.chmod(path, 0o644)
    hide(monkeypatch, **{connector: path})
    assert_failed(place, attempt("allow", connector=connector), connector)


@pytest.mark.parametrize(("connector", "lie"), [("slirp4netns", "printf 1 >&11"), ("pasta", "echo $$")])
@pytest.mark.parametrize("then", ["exec sleep 60", "exit 0"])
def test_connector_that_lies(place, watch, monkeypatch, connector, lie, then):
    """It says that the link is there. Nothing can leave; and what the program makes of that is not the program's."""
    hide(monkeypatch, **{connector: script(place, f"{lie}; {then}")})
    result = attempt("allow", connector=connector)
    assert (result.outcome, result.returncode) == ("runner_failed", 125)
    assert connector in result.reason


# --- doctor's trial -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connector", features.CONNECTORS)
def test_trial_of_this_host(connector):
    found = leasetrial.try_lease(connector)
    assert (found.name, found.state) == ("leased-network", "ok"), found.detail


@pytest.mark.parametrize(
    ("says", "state", "detail"),
    [
        ("echo reached refused", "ok", ""),
        ("echo reached leaked", "missing", "reached leaked"),
        ("echo missed refused", "missing", "missed refused"),
        ("echo missed leaked", "missing", "missed leaked"),
        ("echo could not lease a network: nft: x >&2; exit 1", "missing", "could not lease a network: nft: x"),
        ("exit 0", "missing", "it said nothing"),
        ("exec sleep 60", "unknown", "could not be run"),
    ],
)
def test_trial_believes_only_both_halves(place, monkeypatch, says, state, detail):
    monkeypatch.setattr(leasetrial.sys, "executable", script(place, says))
    monkeypatch.setattr(leasetrial, "SECONDS", SHORT if "sleep" in says else leasetrial.SECONDS)
    found = leasetrial.try_lease("pasta")
    assert (found.name, found.state) == ("leased-network", state)
    assert detail in found.detail
    assert bool(found.remedy) is (state != "ok")


OK, NO = Capability("leased-network", "ok", "worked"), Capability("leased-network", "missing", "cause", "mend it")
TOOLS = tuple(Capability(name, "ok", f"/usr/bin/{name}") for name in ("slirp4netns", "pasta", "nftables"))


@pytest.mark.parametrize(
    ("trials", "states", "detail"),
    [
        ({"slirp4netns": OK, "pasta": OK}, "ok ok ok ok", f"{leasetrial.BOTH} (slirp4netns, pasta)"),
        ({"slirp4netns": NO, "pasta": OK}, "disabled ok ok ok", f"{leasetrial.BOTH} (pasta)"),
        ({"slirp4netns": OK, "pasta": NO}, "ok disabled ok ok", f"{leasetrial.BOTH} (slirp4netns)"),
        ({"slirp4netns": NO, "pasta": NO}, "ok ok ok missing", "cause"),
        ({"pasta": OK}, "ok ok ok ok", f"{leasetrial.BOTH} (pasta)"),
        ({"pasta": NO}, "ok ok ok missing", "cause"),
    ],
)
def test_what_the_trials_come_to(trials, states, detail):
    found = leasetrial.judge(TOOLS, trials)
    assert [each.name for each in found] == ["slirp4netns", "pasta", "nftables", "leased-network"]
    assert " ".join(each.state for each in found) == states
    assert found[-1].detail == detail
    assert all(bool(each.remedy) is (each.state != "ok") for each in found)
