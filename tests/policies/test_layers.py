"""Merging: precedence, provenance, the project that may only narrow, contradictions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stockade.policies.errors import PolicyError
from stockade.policies.fields import ATTRIBUTES
from stockade.policies.layers import ORDER, Layer, Merged, finish, lexical, merge
from stockade.policies.model import parse_policy, parsed
from stockade.policies.presets import preset_text

EXPAND = lexical("/home/u", "/w")
BASE = Layer("preset", "preset base", parsed(parse_policy(preset_text("base"), "base"), "base"))


def layer(kind: str, **values: object) -> Layer:
    return Layer(kind, f"{kind} layer", {key.replace("__", "."): value for key, value in values.items()})


def merged(*layers: Layer) -> Merged:
    return merge([BASE, *layers], expand=EXPAND)


@pytest.mark.parametrize(("lower", "higher"), list(itertools.combinations(ORDER, 2)))
def test_precedence_is_by_kind_and_not_by_position(lower: str, higher: str) -> None:
    below, above = layer(lower, limits__timeout=20.0), layer(higher, limits__timeout=10.0)
    for order in ([below, above], [above, below]):
        found = merged(*order)
        assert found.values["limits.timeout"] == 10.0
        assert found.origin["limits.timeout"] == above.label


@pytest.mark.parametrize("kind", ["preset", "system", "user", "environment"])
@pytest.mark.parametrize("key", ["filesystem.hide", "filesystem.protect", "environment.pass"])
def test_lists_replace(kind: str, key: str) -> None:
    found = merged(Layer(kind, "it", {key: ("X",)}))
    assert found.values[key] == ("X",)
    assert found.origin[key] == "it"


@pytest.mark.parametrize(
    "key",
    [
        "filesystem.write",
        "filesystem.read",
        "filesystem.hide",
        "filesystem.protect",
        "network.allow",
        "network.edge",
        "environment.pass",
    ],
)
def test_options_add_to_lists(key: str) -> None:
    below = Layer("user", "user layer", {key: ("a", "b")})
    found = merged(below, Layer("options", "options", {key: ("b", "c")}))
    assert found.values[key] == ("a", "b", "c")
    assert found.origin[key] == "user layer + options"
    same = merged(below, Layer("options", "options", {key: ("b",)}))
    assert same.origin[key] == "user layer"


def test_project_adds_to_hide_and_protect_only() -> None:
    found = merged(layer("project", filesystem__hide=("secrets",), filesystem__protect=("Makefile",)))
    assert found.values["filesystem.hide"] == ("**/.env*", "secrets")
    assert found.values["filesystem.protect"][-1] == "Makefile"
    assert ".git/hooks" in found.values["filesystem.protect"]
    assert found.origin["filesystem.hide"] == "preset base + project layer"


def test_variables_add_by_name() -> None:
    found = merged(
        layer("user", environment__set={"A": "1", "B": "1"}), layer("options", environment__set={"B": "2"})
    )
    assert found.values["environment.set"] == {"A": "1", "B": "2"}


GRANTED: dict[str, Any] = {
    "mode": "auto",
    "filesystem.root": "host",
    "filesystem.workspace": "overlay",
    "filesystem.write": ("out", "~/.cache/x", "/srv/data"),
    "filesystem.read": ("~/.config",),
    "filesystem.home": "~/sandbox",
    "environment.pass": ("LANG", "LC_*"),
    "environment.set": {"CI": "1"},
    "network.egress": "allow",
    "network.allow": ("*.example.com:*", "192.0.2.0/24"),
    "network.private": False,
    "network.check": "auto",
    "network.edge": ("{}",),
    "network.mask_queries": False,
    "network.connector": "auto",
    "limits.timeout": 60.0,
    "limits.cpu": 30.0,
    "limits.memory": 2**30,
    "limits.processes": 100,
    "limits.file_size": 2**20,
    "limits.tmp": 2**20,
    "limits.output": 2**20,
    "limits.open_files": 100,
    "syscalls.filter": "default",
    "process.user": "auto",
}
LOWER = Layer("user", "user layer", GRANTED)

NARROWER: list[tuple[str, object]] = [
    ("mode", "strict"),
    ("mode", "auto"),
    ("filesystem.root", "minimal"),
    ("filesystem.workspace", "overlay"),
    ("filesystem.workspace", "read-only"),
    ("filesystem.workspace", "none"),
    ("filesystem.write", ()),
    ("filesystem.write", ("out/a", "/w/out", "~/.cache/x/y", "/home/u/.cache/x", "/srv/data/.")),
    ("filesystem.read", ("~/.config/git", "/srv/data/in", "src")),
    ("filesystem.hide", ("anything",)),
    ("filesystem.protect", ("anything",)),
    ("filesystem.home", "empty"),
    ("filesystem.home", "/home/u/sandbox"),
    ("filesystem.toolchains", "none"),
    ("environment.pass", ("LANG", "LC_ALL", "LC_T*")),
    ("environment.set", {"NEW": "1"}),
    ("environment.set", {"CI": "1"}),
    ("network.egress", "allow"),
    ("network.egress", "record"),
    ("network.egress", "none"),
    ("network.allow", ()),
    ("network.allow", ("a.example.com", "*.b.example.com:80", "192.0.2.7")),
    ("network.allow", ("a.example.com check=name",)),
    ("network.private", False),
    ("network.check", "auto"),
    ("network.check", "name"),
    ("network.mask_queries", False),
    ("network.mask_queries", True),
    ("network.connector", "auto"),
    ("limits.timeout", 59.5),
    ("limits.cpu", 29.5),
    ("limits.memory", 2**29),
    ("limits.processes", 100),
    ("limits.file_size", 1),
    ("limits.tmp", 1),
    ("limits.output", 1),
    ("limits.open_files", 99),
    ("syscalls.filter", "strict"),
    ("process.user", "unprivileged"),
]
WIDER: list[tuple[str, object]] = [
    ("mode", "off"),
    ("filesystem.workspace", "read-write"),
    ("filesystem.write", ("out", "other")),
    ("filesystem.write", ("outer",)),
    ("filesystem.write", (".",)),
    ("filesystem.write", ("~",)),
    ("filesystem.write", ("~/.cache",)),
    ("filesystem.write", ("/srv",)),
    ("filesystem.write", ("~/.config/git",)),
    ("filesystem.read", ("~",)),
    ("filesystem.read", ("~/.configs",)),
    ("filesystem.home", "~/sandbox/below"),
    ("filesystem.home", "/srv"),
    ("environment.pass", ("LANG", "SECRET")),
    ("environment.pass", ("L*",)),
    ("environment.pass", ("LANG*",)),
    ("environment.set", {"CI": "0"}),
    ("environment.set", {"LANG": "C"}),
    ("environment.set", {"LC_ALL": "C"}),
    ("environment.set", {"LD_PRELOAD": "x.so"}),
    ("network.egress", "open"),
    ("network.allow", ("example.com",)),
    ("network.allow", ("*.com",)),
    ("network.allow", ("udp://a.example.com",)),
    ("network.allow", ("192.0.0.0/16",)),
    ("network.allow", ("192.0.2.7:80",)),
    ("network.allow", ("a.example.com check=auto",)),
    ("network.allow", ("a.example.com check=address",)),
    ("network.private", True),
    ("network.check", "address"),
    ("network.connector", "pasta"),
    ("network.connector", "slirp4netns"),
    ("limits.timeout", 61.0),
    ("limits.cpu", 31.0),
    ("limits.cpu", None),
    ("limits.timeout", None),
    ("limits.memory", 2**31),
    ("limits.memory", None),
    ("limits.processes", 101),
    ("limits.file_size", 2**21),
    ("limits.tmp", None),
    ("limits.output", 2**21),
    ("limits.open_files", None),
    ("syscalls.filter", "off"),
    ("process.user", "caller"),
]
FROM_NARROW: dict[str, tuple[object, object]] = {
    "filesystem.root": ("minimal", "host"),
    "filesystem.toolchains": ("none", "auto"),
    "network.mask_queries": (True, False),
}


@pytest.mark.parametrize(("key", "value"), NARROWER)
def test_project_narrows(key: str, value: object) -> None:
    found = merged(LOWER, Layer("project", "project p", {key: value}))
    if key in ("filesystem.hide", "filesystem.protect"):
        assert "anything" in found.values[key]
    elif key != "environment.set":
        assert found.values[key] == value
        assert found.origin[key] == "project p"


@pytest.mark.parametrize(("key", "value"), WIDER)
def test_project_does_not_widen(key: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        merged(LOWER, Layer("project", "project /w/.stockade.toml", {key: value}))
    message = caught.value.message
    assert "project /w/.stockade.toml" in message
    assert key in message
    assert "user layer" in message
    assert "user policy" in caught.value.remedy
    assert merged(LOWER, Layer("options", "options", {key: value}))


@pytest.mark.parametrize(("key", "values"), list(FROM_NARROW.items()))
def test_project_does_not_widen_what_was_narrow(key: str, values: tuple[object, object]) -> None:
    below, asked = values
    with pytest.raises(PolicyError, match=key):
        merged(LOWER, Layer("user", "user layer", {key: below}), Layer("project", "project p", {key: asked}))


def test_both_tables_cover_every_key() -> None:
    added = {"filesystem.hide", "filesystem.protect"}
    never = {"network.edge"}
    assert {key for key, _ in NARROWER} | never == set(ATTRIBUTES)
    assert {key for key, _ in WIDER} | set(FROM_NARROW) | added | never == set(ATTRIBUTES)


@pytest.mark.parametrize("value", [("{}",), (), ("other",)], ids=["the-same", "nothing", "another"])
def test_a_project_has_no_say_in_the_edge(value: tuple[str, ...]) -> None:
    with pytest.raises(PolicyError) as caught:
        merged(LOWER, Layer("project", "project p", {"network.edge": value}))
    assert caught.value.message == "could not apply the project p: network.edge is not for a project file to set"
    assert "user policy" in caught.value.remedy
    for kind in ("user", "options"):
        assert merged(LOWER, Layer(kind, kind, {"network.edge": value}))


def test_only_options_add_to_the_edge() -> None:
    lower = layer("system", network__edge=("one",))
    assert merged(lower, layer("user", network__edge=("two",))).values["network.edge"] == ("two",)
    assert merged(lower, layer("options", network__edge=("two",))).values["network.edge"] == ("one", "two")


CHECK_ORDER = ["address", "auto", "name"]


@pytest.mark.parametrize("granted", CHECK_ORDER)
@pytest.mark.parametrize("asked", CHECK_ORDER)
def test_a_project_may_check_more_strictly(granted: str, asked: str) -> None:
    lower, project = layer("user", network__check=granted), layer("project", network__check=asked)
    if CHECK_ORDER.index(asked) >= CHECK_ORDER.index(granted):
        assert merged(lower, project).values["network.check"] == asked
    else:
        with pytest.raises(PolicyError, match=r"network\.check asks for .* wider than"):
            merged(lower, project)


@pytest.mark.parametrize(("check", "accepted"), [("", True), (" check=name", True), (" check=auto", False)])
def test_under_open_a_project_may_not_tie_a_name_to_a_looser_check(check: str, accepted: bool) -> None:
    """What the options of the run say of all names would not reach it."""
    lower = layer("user", network__egress="open")
    project = layer("project", network__egress="allow", network__allow=(f"a.example{check}",))
    if accepted:
        assert finish(merged(lower, project), "p").allow == (f"a.example{check}",)
    else:
        with pytest.raises(PolicyError, match=r"network\.allow asks for"):
            merged(lower, project)


@pytest.mark.parametrize(
    ("check", "entry", "refused"),
    [
        ("name", "udp://a.example", True),
        ("name", "udp://a.example check=address", False),
        ("name", "udp://192.0.2.1", False),
        ("name", "a.example", False),
        ("auto", "udp://a.example", False),
        ("address", "udp://a.example", False),
    ],
)
def test_udp_can_not_be_checked(check: str, entry: str, refused: bool) -> None:
    lower = layer("user", network__egress="allow", network__allow=(entry,))
    found = merged(lower, layer("options", network__check=check))
    if not refused:
        assert finish(found, "p").check == check
        return
    with pytest.raises(PolicyError) as caught:
        finish(found, "p")
    assert "network.check from options" in caught.value.message
    assert f'"{entry} check=address"' in caught.value.remedy


@pytest.mark.parametrize("egress", ["none", "record", "allow", "open"])
def test_edge_entries_are_idle_where_nothing_leaves(egress: str) -> None:
    found = finish(merged(layer("user", network__egress=egress, network__edge=("{}",))), "p")
    assert (found.egress, found.edge) == (egress, ("{}",))
    assert finish(merged(layer("user", mode="off", network__edge=("{}",))), "p").mode == "off"


def test_many_edge_entries_are_too_many_together() -> None:
    lower = layer("user", network__edge=tuple(map(str, range(40))))
    with pytest.raises(PolicyError, match="more than 64 entries"):
        finish(merged(lower, layer("options", network__edge=tuple(map(str, range(40, 80))))), "p")


@pytest.mark.parametrize(
    ("below", "asked", "accepted"),
    [
        (None, "auto", True),
        (None, "strict", True),
        (None, "off", False),
        ("auto", "off", False),
        ("strict", "auto", False),
        ("off", "off", True),
        ("off", "auto", True),
        ("off", "strict", True),
    ],
)
def test_mode_of_a_project(below: str | None, asked: str, accepted: bool) -> None:
    lower = [] if below is None else [layer("user", mode=below)]
    if accepted:
        assert merged(*lower, layer("project", mode=asked)).values["mode"] == asked
    else:
        with pytest.raises(PolicyError, match="mode asks for"):
            merged(*lower, layer("project", mode=asked))


def test_a_writable_workspace_covers_what_is_in_it() -> None:
    lower = layer("user", filesystem__workspace="read-write")
    found = merged(lower, layer("project", filesystem__workspace="read-only", filesystem__write=("out",)))
    assert found.values["filesystem.write"] == ("out",)
    with pytest.raises(PolicyError, match=r"filesystem\.write"):
        merged(layer("user", filesystem__workspace="overlay"), layer("project", filesystem__write=("out",)))


def test_without_a_workspace_nothing_in_it_is_readable() -> None:
    with pytest.raises(PolicyError, match=r"filesystem\.read"):
        merged(layer("user", filesystem__workspace="none"), layer("project", filesystem__read=("src",)))


def test_under_open_a_project_may_name_names_but_no_addresses() -> None:
    lower = layer("user", network__egress="open")
    found = merged(lower, layer("project", network__egress="allow", network__allow=("a.example",)))
    assert finish(found, "p").allow == ("a.example",)
    with pytest.raises(PolicyError, match=r"network\.allow"):
        merged(lower, layer("project", network__egress="allow", network__allow=("10.0.0.1",)))


def test_two_project_files_each_narrow() -> None:
    outer, inner = layer("project", limits__timeout=5.0), layer("project", limits__timeout=6.0)
    with pytest.raises(PolicyError):
        merged(outer, inner)
    assert merged(inner, outer).values["limits.timeout"] == 5.0


def test_egress_implies_confinement() -> None:
    resolved = finish(merged(layer("options", network__egress="record")), "p")
    assert resolved.mode == "auto"
    assert dict(resolved.origin)["mode"] == "egress implies confinement"
    stricter = finish(merged(layer("user", mode="strict"), layer("options", network__egress="record")), "p")
    assert stricter.mode == "strict"


def test_an_overlay_implies_confinement() -> None:
    resolved = finish(merged(layer("options", filesystem__workspace="overlay")), "p")
    assert resolved.mode == "auto"
    assert dict(resolved.origin)["mode"] == "an overlay workspace implies confinement"
    assert finish(merged(layer("options", filesystem__workspace="read-write")), "p").mode is None
    off = merged(layer("user", filesystem__workspace="overlay"), layer("environment", mode="off"))
    with pytest.raises(PolicyError, match="contradict each other"):
        finish(off, "p")


WORKSPACES = ["read-write", "overlay", "read-only", "none"]


@pytest.mark.parametrize("granted", WORKSPACES)
@pytest.mark.parametrize("asked", WORKSPACES)
def test_a_project_may_narrow_the_workspace(granted: str, asked: str) -> None:
    """An overlay leaves the host alone: narrower than writing to it, wider than writing nothing."""
    lower, project = layer("user", filesystem__workspace=granted), layer("project", filesystem__workspace=asked)
    if WORKSPACES.index(asked) >= WORKSPACES.index(granted):
        assert merged(lower, project).values["filesystem.workspace"] == asked
    else:
        with pytest.raises(PolicyError, match="wider than"):
            merged(lower, project)


def test_unset_mode_stays_unset() -> None:
    resolved = finish(merged(), "p")
    assert resolved.mode is None
    assert dict(resolved.origin)["mode"] == "unset: follows provenance"
    assert [key for key, _ in resolved.origin] == list(ATTRIBUTES)


@pytest.mark.parametrize("egress", ["record", "allow", "open"])
def test_off_and_egress_contradict(egress: str) -> None:
    found = merged(layer("user", mode="off"), layer("options", network__egress=egress))
    with pytest.raises(PolicyError, match="contradict") as caught:
        finish(found, "p")
    assert "mode from user layer" in caught.value.message
    assert "network.egress from options" in caught.value.message


@pytest.mark.parametrize("egress", ["none", "record", "open"])
def test_hosts_without_allow_contradict(egress: str) -> None:
    found = merged(layer("user", network__egress=egress), layer("options", network__allow=("a.example",)))
    with pytest.raises(PolicyError, match=r"network\.allow"):
        finish(found, "p")


@pytest.mark.parametrize("kind", ["user", "project", "options"])
def test_turning_egress_away_from_allow_empties_the_list_and_says_so(kind: str) -> None:
    lower = layer("system", network__egress="allow", network__allow=("a.example",))
    resolved = finish(merged(lower, layer(kind, network__egress="none")), "p")
    assert resolved.allow == ()
    assert dict(resolved.origin)["network.allow"] == f"{kind} layer (emptied by network.egress)"


def test_nothing_missing_is_made_up() -> None:
    with pytest.raises(PolicyError, match=r"nothing sets filesystem\.root"):
        finish(Merged({}, {}), "p")
