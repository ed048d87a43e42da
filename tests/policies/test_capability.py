"""What a policy needs of the host, and the level that follows."""

from __future__ import annotations

import pytest

from stockade.policies.capability import REQUIRED, Capability, needs, settle
from stockade.policies.resolved import Resolved

POLICY = Resolved(
    name="test",
    mode=None,
    root="host",
    workspace="read-only",
    write=(),
    read=(),
    hide=(),
    protect=(),
    home="empty",
    toolchains="auto",
    env_pass=(),
    env_set=(),
    egress="none",
    allow=(),
    private=False,
    connector="auto",
    timeout=10.0,
    cpu=None,
    memory=None,
    processes=None,
    file_size=None,
    tmp=1,
    output=1,
    open_files=None,
    syscalls="default",
    user="auto",
    origin=(),
)
ALWAYS = set(REQUIRED)
USUAL = {"proc", "no-new-userns", "bind-fd", "seccomp"}
LEASE = {"nftables"}
OUT = {*LEASE, "leased-network", "tun"}


@pytest.mark.parametrize(
    ("changes", "required", "wanted"),
    [
        ({}, set(), set()),
        ({"egress": "record"}, LEASE, set()),
        ({"egress": "allow"}, {*OUT, "slirp4netns or pasta"}, set()),
        ({"egress": "open"}, {*OUT, "slirp4netns or pasta"}, set()),
        ({"egress": "bogus"}, {*OUT, "slirp4netns or pasta"}, set()),
        ({"egress": "allow", "connector": "slirp4netns"}, {*OUT, "slirp4netns"}, set()),
        ({"egress": "open", "connector": "pasta"}, {*OUT, "pasta"}, set()),
        ({"egress": "allow", "connector": "bogus"}, {*OUT, "bogus"}, set()),
        ({"egress": "record", "connector": "pasta"}, LEASE, set()),
        ({"connector": "pasta"}, set(), set()),
        ({"workspace": "overlay"}, {"overlay"}, set()),
        ({"memory": 1}, set(), {"limits"}),
        ({"processes": 1}, set(), {"limits"}),
        ({"file_size": 1}, set(), {"limits"}),
        ({"open_files": 1}, set(), {"limits"}),
        ({"cpu": 1.5}, set(), {"limits"}),
    ],
)
def test_needs(changes: dict[str, object], required: set[str], wanted: set[str]) -> None:
    found = needs(POLICY.replace(**changes), real_root=False, keep_root=False)
    assert {name for name, kind in found.items() if kind == "required"} == ALWAYS | required
    assert {name for name, kind in found.items() if kind == "wanted"} == USUAL | wanted


def test_no_filter_needs_no_seccomp() -> None:
    assert "seccomp" not in needs(POLICY.replace(syscalls="off"), real_root=False, keep_root=False)
    assert "seccomp" in needs(POLICY.replace(syscalls="strict"), real_root=False, keep_root=False)


@pytest.mark.parametrize(
    ("real_root", "keep_root", "extra"),
    [(False, False, set()), (False, True, set()), (True, False, {"drop-root"}), (True, True, {"unprivileged"})],
)
def test_root(real_root: bool, keep_root: bool, extra: set[str]) -> None:
    found = needs(POLICY, real_root=real_root, keep_root=keep_root)
    assert {name for name in found if name in ("drop-root", "unprivileged")} == extra


def host(*, without: str = "", state: str = "missing") -> dict[str, Capability]:
    names = needs(POLICY, real_root=True, keep_root=False)
    return {name: Capability(name, state if name == without else "ok", "tried") for name in names}


@pytest.mark.parametrize("state", ["missing", "disabled", "too old", "unknown", "", "OK"])
def test_levels(state: str) -> None:
    wanted = needs(POLICY, real_root=True, keep_root=False)
    assert settle(host(), wanted) == settle(host(without="other"), wanted)
    assert settle(host(), wanted).level == "full"
    for name, kind in wanted.items():
        settled = settle(host(without=name, state=state), wanted)
        assert settled.level == ("none" if kind == "required" else "partial")
        assert [capability.name for capability in settled.missing] == [name]


def test_required_outranks_wanted() -> None:
    settled = settle({}, {"seccomp": "wanted", "bwrap": "required"})
    assert settled.level == "none"
    assert [capability.name for capability in settled.missing] == ["bwrap", "seccomp"]
    assert {capability.state for capability in settled.missing} == {"unknown"}


def test_an_unknown_kind_of_need_counts_as_required() -> None:
    assert settle({}, {"bwrap": "bogus"}).level == "none"


def test_kept_root_is_always_partial() -> None:
    kept = needs(POLICY, real_root=True, keep_root=True)
    found = {**host(), "unprivileged": Capability("unprivileged", "ok", "claimed")}
    settled = settle(found, kept)
    assert settled.level == "partial"
    assert settled.missing[0].detail.startswith("kept as root: ")


@pytest.mark.parametrize(
    ("states", "missing"),
    [
        ({"a": "ok", "b": "ok"}, []),
        ({"a": "missing", "b": "ok"}, []),
        ({"a": "ok", "b": "missing"}, []),
        ({"b": "ok"}, []),
        ({"a": "missing", "b": "disabled"}, [("a", "missing", "mend a Or use b: mend b")]),
        ({"b": "missing"}, [("a", "unknown", "run stockade doctor Or use b: mend b")]),
    ],
)
def test_a_need_that_either_of_two_meets(states: dict[str, str], missing: list[tuple[str, str, str]]) -> None:
    found = {name: Capability(name, state, "tried", f"mend {name}") for name, state in states.items()}
    settled = settle(found, {"a or b": "required"})
    assert [(each.name, each.state, each.remedy) for each in settled.missing] == missing
    assert settled.level == ("none" if missing else "full")
