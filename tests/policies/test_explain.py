"""A resolved policy read back: rows, nested dict, TOML that parses to the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.policies.explain import explain, to_dict, to_toml
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
