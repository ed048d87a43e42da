"""A remembered policy is used only while everything it came from is as it was."""

from __future__ import annotations

import marshal
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError
from stockade.policies.places import MODE
from stockade.sandbox import policycache as module
from stockade.sandbox import state

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home, a cache and a workspace of this test, and nothing remembered."""
    for name in ("STOCKADE_POLICY", "STOCKADE_MODE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_memory", {})
    monkeypatch.setattr(module, "SETTLED", -3_600_000_000_000)  # files of this test count as settled
    for name in ("home/.config/stockade", "workspace", "cache"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def counted(monkeypatch):
    """How often a policy was really worked out."""
    calls = []
    real = module.work_out
    monkeypatch.setattr(module, "work_out", lambda *given: calls.append(given) or real(*given))
    return calls


def resolved(home, base=None, **options):
    return module.resolved(
        base, None, str(home / "workspace"), {key.replace("__", "."): value for key, value in options.items()}
    )


def forget(home=None):
    """As another process: what is in memory is gone."""
    module._memory.clear()


def entries(home):
    return sorted((home / "cache" / "stockade").glob("policy-*"))


def user_policy(home, text):
    path = home / "home/.config/stockade/policy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("between", [forget, lambda: None])
def test_the_second_time_nothing_is_worked_out(home, counted, between):
    first = resolved(home, limits__timeout="5s")
    between()
    assert resolved(home, limits__timeout="5s") == first
    assert first.timeout == 5
    assert len(counted) == 1


def test_the_entry_is_a_private_file(home):
    resolved(home)
    (entry,) = entries(home)
    assert entry.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text('mode = "strict"\n# longer\n'),
        lambda path: os.utime(path, (LONG_AGO, LONG_AGO)),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("old")),
        lambda path: (path.rename(path.with_name("old")), path.write_text('mode = "strict"\n')),
    ],
)
@pytest.mark.parametrize("between", [forget, lambda: None])
def test_a_file_that_changed_is_read_again(home, counted, change, between):
    path = user_policy(home, 'mode = "auto"\n')
    assert resolved(home).mode == "auto"
    change(path)
    between()
    assert resolved(home).mode != "auto" or path.exists()
    assert len(counted) == 2


def test_a_change_that_keeps_size_and_time_is_seen_by_its_change_time(home, counted):
    path = user_policy(home, 'mode = "auto"  \n')
    when = path.stat().st_mtime_ns
    assert resolved(home).mode == "auto"
    path.write_text('mode = "strict"\n')
    os.utime(path, ns=(when, when))
    assert resolved(home).mode == "strict"


def test_a_file_that_came_into_being_is_read(home, counted):
    assert resolved(home).mode is None
    user_policy(home, 'mode = "strict"\n')
    assert resolved(home).mode == "strict"
    (home / "workspace/.stockade.toml").write_text("[filesystem]\nhide = ['secret']\n")
    assert "secret" in resolved(home).hide
    assert len(counted) == 3


def test_a_marker_that_comes_or_goes_is_seen(home, counted):
    resolved(home)
    (home / "workspace/.git").mkdir()
    resolved(home)
    assert len(counted) == 2
    resolved(home)
    (home / "workspace/.git").rmdir()
    resolved(home)
    assert len(counted) == 3


def test_a_stand_in_of_another_run_is_nothing(home, counted):
    """It goes when that run ends: neither a repository nor a broken policy file may be seen in it."""
    first = resolved(home)
    for name in (".git", ".stockade.toml"):
        (home / "workspace" / name).mkdir()
        (home / "workspace" / name).chmod(MODE)
    assert resolved(home) == first
    (home / "workspace/.stockade.toml").chmod(0o755)
    with pytest.raises(PolicyError, match="not a regular file"):
        resolved(home)


def test_a_stand_in_does_not_pass_for_the_top_of_a_repository(home):
    """Else the project files above it would not be found while another run is there: the policy would be wider."""
    (home / "workspace/.git").mkdir()
    (home / "workspace/.stockade.toml").write_text("[filesystem]\nhide = ['secret']\n")
    below = home / "workspace/below"
    (below / ".git").mkdir(parents=True)
    hidden = f"{home.resolve()}/workspace/secret"
    assert hidden not in module.resolved(None, None, str(below), {}).hide
    (below / ".git").chmod(MODE)
    assert hidden in module.resolved(None, None, str(below), {}).hide


@pytest.mark.parametrize("name", ["HOME", "XDG_CONFIG_HOME", "STOCKADE_POLICY", "STOCKADE_MODE"])
def test_another_environment_is_another_policy(home, counted, monkeypatch, name):
    resolved(home)
    monkeypatch.setenv(name, {"STOCKADE_POLICY": "build", "STOCKADE_MODE": "strict"}.get(name, str(home)))
    resolved(home)
    assert len(counted) == 2


def test_another_workspace_base_or_option_is_another_policy(home, counted):
    (home / "other").mkdir()
    found = [
        resolved(home),
        resolved(home, "hook"),
        resolved(home, limits__timeout="5s"),
        resolved(home, limits__timeout="6s"),
        resolved(home, filesystem__write=["out"]),
        module.resolved(None, None, str(home / "other"), {}),
    ]
    assert len(counted) == len(found)
    assert [each.timeout for each in found] == [None, 10, 5, 6, None, None]


def test_another_version_of_stockade_is_another_policy(home, counted, monkeypatch):
    resolved(home)
    monkeypatch.setattr(module, "stamp_of_code", lambda: (0, 0))
    resolved(home)
    assert len(counted) == 2


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_relative_name_means_the_file_of_the_current_directory(home, counted, monkeypatch, by_variable):
    for folder, mode in (("a", "strict"), ("b", "auto")):
        (home / folder).mkdir()
        (home / folder / "p.toml").write_text(f'extends = "read-only"\nmode = "{mode}"\n')
    if by_variable:
        monkeypatch.setenv("STOCKADE_POLICY", "./p.toml")
    found = []
    for folder in "ab":
        monkeypatch.chdir(home / folder)
        found.append(resolved(home, None if by_variable else "./p.toml").mode)
    assert found == ["strict", "auto"]


def test_a_policy_object_is_never_remembered(home, counted):
    from stockade.policies.model import Policy

    for _ in range(2):
        module.resolved(None, Policy(mode="strict"), str(home / "workspace"), {})
    assert len(counted) == 2
    assert entries(home) == []


def test_a_file_that_may_still_change_unseen_is_not_remembered(home, counted, monkeypatch):
    """Its time has a coarse step: a second write within it would have the same stamp."""
    monkeypatch.setattr(module, "SETTLED", 3_600_000_000_000)
    user_policy(home, 'mode = "strict"\n')
    assert [resolved(home).mode, resolved(home).mode] == ["strict", "strict"]
    assert len(counted) == 2
    assert entries(home) == []


def test_a_broken_policy_is_not_remembered(home):
    path = user_policy(home, "mode = 'sometimes'\n")
    for _ in range(2):
        with pytest.raises(PolicyError):
            resolved(home)
    path.write_text("mode = 'strict'\n")
    assert resolved(home).mode == "strict"


def test_without_a_place_to_store_it_works_all_the_same(home, counted, monkeypatch):
    monkeypatch.setattr(state, "cache_dir", lambda: None)
    resolved(home)
    forget()
    resolved(home)
    assert len(counted) == 2


# --- damaged and forged entries ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_an_entry_that_others_could_write_is_ignored(home, counted, mode):
    resolved(home)
    entries(home)[0].chmod(mode)
    forget()
    resolved(home)
    assert len(counted) == 2


def test_an_entry_for_another_key_is_ignored(home, counted):
    """Names may collide: the key is in the entry, whole."""
    resolved(home, "workspace-write")
    (entry,) = entries(home)
    content = entry.read_bytes()
    entry.unlink()
    assert resolved(home, "read-only").workspace == "read-only"
    entries(home)[0].write_bytes(content)
    forget()
    assert resolved(home, "read-only").workspace == "read-only"


def forged(home, change):
    """An entry with the right key and checksum, and something wrong in it."""
    key = module.cache_key(None, str(home / "workspace"), {})
    body = marshal.dumps(change(key))
    state.store_private(str(home / "cache/stockade"), module.entry_name(key), module.checksum(body) + body)


@pytest.mark.parametrize(
    "change",
    [
        lambda key: (key, (), (), ()),
        lambda key: (key, (), (), ("x",) * 3),
        lambda key: (key, 5, (), ()),
        lambda key: (key, ((),), (), ()),
        lambda key: (key, (), None, ()),
        lambda key: (key,),
        lambda key: (),
        lambda key: key,
        lambda key: 5,
        lambda key: None,
        lambda key: {0: key},
    ],
)
def test_an_entry_of_the_wrong_shape_is_ignored(home, counted, change):
    expected = resolved(home)
    forged(home, change)
    forget()
    assert resolved(home) == expected
    assert len(counted) == 2


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_damaged_entry_is_ignored(data):
    folder = Path(os.environ["XDG_CACHE_HOME"])
    home = folder.parent
    expected = resolved(home)
    (entry,) = entries(home)
    whole = entry.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:at]
    else:
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    entry.write_bytes(damaged)
    forget()
    assert module.read_entry(module.cache_key(None, str(home / "workspace"), {})) is None
    assert resolved(home) == expected
    assert entry.read_bytes() == whole or module.read_entry(module.cache_key(None, str(home / "workspace"), {}))


EDGE = """
[network]
egress = "allow"
check = "name"
mask_queries = true
allow = ["a.example", { host = "b.example:80", check = "address" }]
[[network.edge]]
host = "api.example"
headers = { Authorization = { from = "env:API_TOKEN", format = "Bearer {}" } }
"""


@pytest.mark.parametrize("between", [forget, lambda: None])
def test_edge_and_checks_are_remembered(home, counted, between):
    user_policy(home, EDGE)
    first = resolved(home)
    between()
    assert resolved(home) == first
    assert len(counted) == 1
    assert (first.check, first.mask_queries, first.allow) == (
        "name",
        True,
        ("a.example", "b.example:80 check=address"),
    )
    assert len(first.edge) == 1
    changed = EDGE.replace("API_TOKEN", "OTHER")
    user_policy(home, changed)
    assert "OTHER" in resolved(home).edge[0]


def test_edge_entries_among_the_options(home, counted):
    for name in ("A", "A", "B"):
        edge = [{"host": "api.example", "headers": {"X-Key": f"env:{name}"}}]
        assert f"env:{name}" in resolved(home, network__edge=edge).edge[0]
    assert len(counted) == 2


def test_the_number_of_files_is_bounded(home):
    names = {module.entry_name((number,)) for number in range(5000)}
    assert 900 < len(names) <= module.MOST_FILES


def test_memory_is_bounded(home):
    for number in range(module.MOST_IN_MEMORY + 5):
        resolved(home, limits__processes=number + 1)
    assert len(module._memory) <= module.MOST_IN_MEMORY


@pytest.mark.parametrize(
    ("value", "same"),
    [
        ([1, 2], (1, 2)),
        ({"b": 1, "a": 2}, (("a", 2), ("b", 1))),
        ("x", "x"),
        (None, None),
        ((1,), (1,)),
        ([{"a": [1]}], ((("a", (1,)),),)),
    ],
)
def test_options_are_frozen_by_value(value, same):
    assert module.frozen(value) == same
    hash(module.frozen(value))


@pytest.mark.parametrize("between", [forget, lambda: None])
def test_a_directory_that_strangers_can_not_write_any_more_is_searched(home, between):
    """Project files above the workspace count as far as nobody else can plant one there: closing that up counts too."""
    outer = home / "outer"
    (outer / "inner").mkdir(parents=True)
    (outer / ".stockade.toml").write_text('mode = "strict"\n')
    outer.chmod(0o777)
    assert module.resolved(None, None, str(outer / "inner"), {}).mode is None
    between()
    outer.chmod(0o755)
    assert module.resolved(None, None, str(outer / "inner"), {}).mode == "strict"
