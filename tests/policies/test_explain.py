"""A resolved policy read back: rows, nested dict, TOML that parses to the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.policies.explain import Route, explain, routes, to_dict, to_toml
from stockade.policies.fields import ATTRIBUTES
from stockade.policies.layers import Layer, finish, lexical, merge
from stockade.policies.model import parse_policy, parsed
from stockade.policies.presets import preset_names, preset_text
from stockade.policies.resolve import resolve
from stockade.policies.resolved import Resolved

BASE = finish(
    merge(
        [Layer("preset", "base", parsed(parse_policy(preset_text("base"), "base"), "base"))],
        expand=lexical("/h", "/w"),
    ),
    "base",
)


def reread(text: str) -> Resolved:
    layer = Layer("preset", "again", parsed(parse_policy(text, "again"), "again"))
    return finish(merge([layer], expand=lexical("/h", "/w")), "again")


def without_origin(resolved: Resolved) -> Resolved:
    return resolved.replace(name="", origin=())


@pytest.mark.parametrize("name", preset_names())
def test_toml_says_the_same(name: str, tmp_path: Path) -> None:
    nowhere = os.path.join(tmp_path, "nowhere")
    found = resolve(base=name, workspace=str(tmp_path), environ={}, system_file=nowhere, user_file=nowhere).resolved
    assert without_origin(reread(to_toml(found))) == without_origin(found)


def test_rows() -> None:
    rows = explain(BASE)
    assert [key for key, _, _ in rows] == list(ATTRIBUTES)
    table = {key: (value, layer) for key, value, layer in rows}
    assert table["mode"] == ("unset", "unset: follows provenance")
    assert table["limits.memory"] == ('"2G"', "base")
    assert table["limits.timeout"] == ('"none"', "base")
    assert table["limits.processes"] == ("256", "base")
    assert table["network.private"] == ("false", "base")
    assert table["network.check"] == ('"auto"', "base")
    assert table["network.edge"] == ("[]", "base")
    assert table["filesystem.hide"] == ('["**/.env*"]', "base")


def test_dict_has_the_shape_of_the_file() -> None:
    tree = to_dict(BASE.replace(mode="auto", env_set=(("A", "1"),), timeout=10.0))
    assert tree["mode"] == "auto"
    assert tree["limits"]["timeout"] == "10s"
    assert tree["environment"]["set"] == {"A": "1"}
    assert tree["environment"]["pass"] == ["LANG", "LC_*", "TERM", "TZ"]
    assert tree["syscalls"] == {"filter": "default"}
    assert "mode" not in to_dict(BASE)
    assert json.loads(json.dumps(tree)) == tree


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXT.filter(lambda name: name and not set(name) & set("=*?[")), TEXT, max_size=3))
def test_any_text_survives(variables: dict[str, str]) -> None:
    policy = BASE.replace(env_set=tuple(sorted(variables.items())))
    assert reread(to_toml(policy)).env_set == policy.env_set
    assert all("\n" not in value for _, value, _ in explain(policy))


def test_a_path_that_is_not_unicode_is_refused_in_words() -> None:
    policy = BASE.replace(write=(os.fsdecode(b"/srv/\xff"),))
    with pytest.raises(PolicyError, match="not Unicode") as caught:
        to_toml(policy)
    assert caught.value.message.isprintable()


EDGE = """
[network]
egress = "allow"
check = "name"
allow = ["a.example check=address", { host = "b.example:80" }, "192.0.2.7"]
mask_queries = true
[[network.edge]]
host = "API.example"
methods = ["GET", "POST"]
paths = ["/v1/*"]
headers = { Authorization = { from = "env:API_TOKEN", format = "Bearer {}" }, X-Client = "literal:\\"hooks\\"" }
[[network.edge]]
host = "*.plain.example:80"
scheme = "http"
"""


def on_base(text: str) -> Resolved:
    layers = [(preset_text("base"), "base"), (text, "mine")]
    read = [Layer("preset", name, parsed(parse_policy(each, name), name)) for each, name in layers]
    return finish(merge(read, expand=lexical("/h", "/w")), "mine")


def test_the_edge_survives() -> None:
    policy = on_base(EDGE)
    text = to_toml(policy)
    assert without_origin(reread(text)) == without_origin(policy)
    assert text.count("[[network.edge]]") == 2
    assert text.index("connector = ") < text.index("[[network.edge]]") < text.index("[limits]")
    first, second = to_dict(policy)["network"]["edge"]
    assert first["headers"] == {
        "Authorization": {"from": "env:API_TOKEN", "format": "Bearer {}"}, "X-Client": 'literal:"hooks"',
    }  # fmt: skip
    assert second == {"host": "*.plain.example:80", "scheme": "http"}
    assert all("\n" not in value for _, value, _ in explain(policy))


@given(
    st.lists(
        st.sampled_from(["a.example", "*.b.example:80 check=name", "c.example check=auto", "192.0.2.7"]),
        unique=True,
    ),
    st.sampled_from(["auto", "name", "address"]),
    st.booleans(),
    st.booleans(),
)
def test_any_network_survives(allow: list[str], check: str, masked: bool, edged: bool) -> None:
    edge = on_base(EDGE).edge if edged else ()
    policy = BASE.replace(
        egress="allow", allow=tuple(allow), check=check, mask_queries=masked, edge=edge, mode="auto"
    )
    assert without_origin(reread(to_toml(policy))) == without_origin(policy)


SHARED = "name checked where its address is shared"


@pytest.mark.parametrize(
    ("allow", "check", "ways"),
    [
        (["a.example"], "auto", ["packets by address"]),
        (["a.example", "a.example:80"], "auto", ["packets by address"] * 2),
        (["a.example", "b.example"], "auto", [SHARED] * 2),
        (["*.a.example"], "auto", [SHARED]),
        (["a.example", "192.0.2.7"], "auto", ["packets by address"] * 2),
        (["a.example", "udp://b.example"], "auto", ["packets by address"] * 2),
        (["a.example", "b.example"], "address", ["packets by address"] * 2),
        (["a.example", "192.0.2.7"], "name", ["name checked (network.check)", "packets by address"]),
        (["a.example check=address", "b.example"], "name", ["packets by address", "name checked (network.check)"]),
        (["a.example check=name", "b.example"], "auto", ["name checked (its own check)", SHARED]),
        (["a.example check=auto", "b.example"], "address", [SHARED, "packets by address"]),
    ],
)
def test_which_way_each_host_goes(allow: list[str], check: str, ways: list[str]) -> None:
    policy = BASE.replace(egress="allow", allow=tuple(allow), check=check)
    assert routes(policy) == [Route(entry, "allow", way) for entry, way in zip(allow, ways, strict=True)]


def test_which_way_the_edge_goes() -> None:
    put = 'Authorization (env:API_TOKEN), X-Client (literal:"hooks")'
    rows = [tuple(each) for each in routes(on_base(EDGE))]
    assert rows[3:] == [
        ("api.example", "edge", f"edge: GET, POST to /v1/*; puts in {put}"),
        ("*.plain.example:80", "edge", "edge: every method to every path; without TLS"),
    ]
    inner = on_base(EDGE).replace(
        allow=("api.example", "api.example:80", "x.plain.example:80 check=address"), check="auto"
    )
    assert [each.way for each in routes(inner)[:3]] == [
        "through the edge (api.example)", SHARED, "through the edge (*.plain.example:80)",
    ]  # fmt: skip


@pytest.mark.parametrize(("egress", "idle"), [("none", True), ("record", True), ("allow", False), ("open", False)])
def test_an_idle_edge_says_so(egress: str, idle: bool) -> None:
    ways = [each.way for each in routes(on_base(EDGE).replace(egress=egress, allow=()))]
    assert [way == f"idle: network.egress is {egress}" for way in ways] == [idle, idle]


def test_no_hosts_no_routes() -> None:
    assert routes(BASE) == []
