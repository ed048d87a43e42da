"""What runs confined changes no hook: neither where hosts look for them nor in their scripts, even where it may write.

Beside each refusal stands a file of the same project that can be changed.
"""

from __future__ import annotations

import pytest
from boxes import identity, make_place, open_to_all, own_state, place, policy, probe, tree_of

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

GUARDED = (
    ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks/guard.sh", ".claude/hooks/hooks.json",
    ".agents/hooks.json", ".agents/guard.py", ".codex/hooks.json", ".codex/config.toml", ".cursor/hooks.json",
    ".gemini/settings.json",
)  # fmt: skip
OPEN = ("scripts/guard.sh", "README.md")

CHANGE = """
def ways(path):
    folder = os.path.dirname(path)
    top = path.split("/")[0]
    return {
        "write": lambda: written(path), "append": lambda: open(path, "a").close(), "unlink": lambda: os.unlink(path),
        "mode": lambda: os.chmod(path, 0o777), "truncate": lambda: os.truncate(path, 0),
        "move over": lambda: (written("new"), os.rename("new", path)), "move away": lambda: os.rename(path, "old"),
        "add beside": lambda: written(folder + "/settings.local.json"), "hard link": lambda: os.link(path, "linked"),
        "move the directory": lambda: os.rename(top, "old-dir"),
        "symlink": lambda: (os.unlink(path), os.symlink("/tmp", path)),
    }
for name in sys.argv[1:]:
    found[name] = [way for way, act in ways(name).items() if tried(act) == "ok"]
"""


@pytest.fixture
def project(place):
    for name in (*GUARDED, *OPEN):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as it was\n")
    open_to_all(place)
    return place


def test_no_hook_of_any_host_can_be_changed_from_a_writable_workspace(project, identity):
    before = tree_of(project)
    found = probe(CHANGE, *GUARDED, cwd=project, policy=policy(identity))
    assert {name: through for name, through in found.items() if through} == {}
    after = tree_of(project)
    assert {name: after[name] for name in before} == before


def test_nor_can_one_be_made_where_there_was_none(place, identity):
    """The control is in the same run: an ordinary name can be made."""
    found = probe(
        """
        for name in (".claude", ".agents", ".codex", ".cursor", ".gemini", "ordinary"):
            found[name] = tried(os.makedirs, name + "/hooks"), tried(written, name + "/hooks/hooks.json")
        """,
        cwd=place,
        policy=policy(identity),
    )
    assert found.pop("ordinary") == ["ok", "ok"]
    assert all("ok" not in tries for tries in found.values()), found
    assert sorted(path.name for path in place.iterdir()) == ["ordinary"]


def test_a_script_elsewhere_in_the_project_can_be_changed_until_the_policy_protects_it(project, identity, tmp_path):
    """The positive control of this file, and what `hooks wrap` and `hooks pin` advise."""
    other = make_place(tmp_path, "other")
    (other / "scripts").mkdir()
    (other / "scripts/guard.sh").write_text("as it was\n")
    open_to_all(other)
    body = 'found["ends"] = tried(written, "scripts/guard.sh"), tried(written, "README.md")'
    assert probe(body, cwd=other, policy=policy(identity))["ends"] == ["ok", "ok"]
    assert (other / "scripts/guard.sh").read_text() == "evil\n"

    guarded = policy(identity, filesystem={"protect": ["scripts/guard.sh"]})
    (script, control) = probe(body, cwd=project, policy=guarded)["ends"]
    assert (script in ("EROFS", "EACCES", "EPERM", "EBUSY"), control) == (True, "ok")
    assert (project / "scripts/guard.sh").read_text() == "as it was\n"
    assert (project / "README.md").read_text() == "evil\n"


def test_a_hook_itself_changes_nothing_of_its_project(project, identity):
    """Under the preset `hook` the whole workspace is read-only."""
    before = tree_of(project)
    found = probe(CHANGE, *GUARDED, *OPEN, cwd=project, policy=policy(identity, "hook"))
    assert {name: through for name, through in found.items() if through} == {}
    assert tree_of(project) == before


def test_where_pins_and_audit_lie_nothing_confined_can_look(place, identity, tmp_path, monkeypatch):
    """The state directory is below HOME, which is another one inside."""
    home = make_place(tmp_path, "home")
    pins = home / ".local/state/stockade/pins"
    pins.mkdir(parents=True)
    (pins / "one.json").write_text("{}")
    open_to_all(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    found = probe(
        """
        path = sys.argv[1]
        found["seen"] = os.path.exists(path)
        found["made"] = tried(os.makedirs, os.path.dirname(path)), tried(written, path)
        """,
        pins / "one.json",
        cwd=place,
        policy=policy(identity),
    )
    assert found["seen"] is False
    assert (pins / "one.json").read_text() == "{}"
    assert sorted(path.name for path in pins.iterdir()) == ["one.json"]
