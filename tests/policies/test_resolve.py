"""Resolution from real files: sources, discovery, hostile project files, environment, options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.policies.errors import PolicyError, RequestError
from stockade.policies.model import Filesystem, Limits, Policy
from stockade.policies.resolve import Resolution, default_user_file, home_of, load_policy, resolve


class Place:
    """A home, a workspace in a repository below it, and the three files."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.repo = self.home / "dev" / "repo"
        self.workspace = self.repo / "sub"
        self.workspace.mkdir(parents=True)
        (self.repo / ".git").mkdir()
        self.system = root / "system.toml"
        self.user = self.home / ".config" / "stockade" / "policy.toml"
        self.user.parent.mkdir(parents=True)

    def resolve(self, *, environ: dict[str, str] | None = None, **options: Any) -> Resolution:
        options.setdefault("workspace", str(self.workspace))
        return resolve(environ={"HOME": str(self.home), **(environ or {})}, system_file=str(self.system), **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def origin(resolution: Resolution, key: str) -> str:
    return dict(resolution.resolved.origin)[key]


def test_layers_from_files(place: Place) -> None:
    place.system.write_text("[limits]\ntimeout = '60s'\nmemory = '1G'\n")
    place.user.write_text("[limits]\ntimeout = '30s'\n")
    (place.repo / ".stockade.toml").write_text("[limits]\ntimeout = '20s'\n")
    found = place.resolve(base="hook", options={"limits.tmp": "1M"})
    assert found.resolved.timeout == 20.0
    assert origin(found, "limits.timeout") == f"project {place.repo}/.stockade.toml"
    assert origin(found, "limits.memory") == f"system {place.system}"
    assert origin(found, "limits.tmp") == "options"
    assert origin(found, "limits.output") == "preset base"
    assert found.resolved.name == "hook"


def test_sources_name_everything_that_was_looked_at(place: Place) -> None:
    policy = place.home / "p.toml"
    policy.write_text("extends = './q.toml'\n")
    (place.home / "q.toml").write_text("extends = 'hook'\n")
    found = place.resolve(base=str(policy))
    expected = {policy, place.home / "q.toml", place.system, place.user}
    expected |= {place.workspace / ".stockade.toml", place.repo / ".stockade.toml"}
    assert {str(path) for path in expected} <= set(found.sources)
    assert {os.path.basename(path) for path in set(found.sources) - {str(path) for path in expected}} == {
        "base.toml",
        "hook.toml",
    }
    searched = (place.workspace, place.workspace / ".git", place.repo, place.repo / ".git")
    assert found.markers == tuple(map(str, searched))


def test_discovery_stops_at_the_repository(place: Place) -> None:
    (place.home / "dev" / ".stockade.toml").write_text("mode = 'strict'\n")
    assert place.resolve().resolved.mode is None
    (place.repo / ".git").rmdir()
    assert place.resolve().resolved.mode == "strict"
    assert place.resolve(discover_project=False).resolved.mode is None


@pytest.mark.parametrize("where", ["home", "above"])
def test_discovery_never_reaches_the_home(place: Place, where: str) -> None:
    (place.repo / ".git").rmdir()
    folder = place.home if where == "home" else place.home.parent
    (folder / ".stockade.toml").write_text("mode = 'strict'\n")
    for workspace in (place.workspace, folder):
        found = place.resolve(workspace=str(workspace))
        assert found.resolved.mode is None
        assert str(folder / ".stockade.toml") not in found.sources


def test_discovery_stops_below_a_folder_anyone_can_write(tmp_path: Path) -> None:
    shared = tmp_path.resolve() / "shared"
    workspace = shared / "w"
    workspace.mkdir(parents=True)
    (shared / ".stockade.toml").write_text("mode = 'strict'\n")
    nowhere = str(tmp_path / "nowhere")

    def mode() -> str | None:
        environ = {"HOME": "/nonexistent"}
        return resolve(
            workspace=str(workspace), environ=environ, system_file=nowhere, user_file=nowhere
        ).resolved.mode

    assert mode() == "strict"
    shared.chmod(0o1777)
    assert mode() is None


def test_all_project_files_apply_and_none_hides_another(place: Place) -> None:
    (place.repo / ".stockade.toml").write_text("mode = 'strict'\n[limits]\ntimeout = '5s'\n")
    (place.workspace / ".stockade.toml").write_text("[limits]\ntimeout = '4s'\n")
    found = place.resolve()
    assert (found.resolved.mode, found.resolved.timeout) == ("strict", 4.0)
    (place.workspace / ".stockade.toml").write_text("[limits]\ntimeout = '6s'\n")
    with pytest.raises(PolicyError, match=r"sub/\.stockade\.toml"):
        place.resolve()


def test_paths_of_a_project_file_above_the_workspace_mean_its_own_folder(place: Place) -> None:
    (place.repo / ".stockade.toml").write_text(
        "[filesystem]\nhide = ['keys/*', '/abs', '~/x']\nprotect = ['Makefile']\n"
    )
    found = place.resolve().resolved
    assert found.hide == ("**/.env*", f"{place.repo}/keys/*", "/abs", "~/x")
    assert found.protect[-1] == f"{place.repo}/Makefile"
    assert place.resolve(workspace=str(place.repo)).resolved.hide[1] == "keys/*"


def test_a_project_file_may_not_widen(place: Place) -> None:
    (place.workspace / ".stockade.toml").write_text("[network]\negress = 'open'\n")
    with pytest.raises(PolicyError, match=r"network\.egress") as caught:
        place.resolve()
    assert str(place.workspace / ".stockade.toml") in caught.value.message
    (place.workspace / ".stockade.toml").write_text("extends = 'full-access'\n")
    with pytest.raises(PolicyError, match="extend"):
        place.resolve()


def test_a_link_in_the_project_is_seen_through(place: Place) -> None:
    file = place.workspace / ".stockade.toml"
    file.write_text("[filesystem]\nworkspace = 'read-only'\nwrite = ['out']\n")
    assert place.resolve(base="workspace-write").resolved.write == ("out",)
    secret = place.home / "secret"
    secret.mkdir()
    (place.workspace / "out").symlink_to(secret)
    with pytest.raises(PolicyError, match=r"filesystem\.write"):
        place.resolve(base="workspace-write")
    assert list(secret.iterdir()) == []


def plant_link(path: Path) -> None:
    (path.parent / "elsewhere.toml").write_text("mode = 'strict'\n")
    path.symlink_to(path.parent / "elsewhere.toml")


def plant_dangling(path: Path) -> None:
    path.symlink_to("/nonexistent/x")


PLANTED: dict[str, Callable[[Path], object]] = {
    "link": plant_link,
    "dangling link": plant_dangling,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "large": lambda path: path.write_bytes(b"#" * (256 * 1024 + 1)),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "broken": lambda path: path.write_bytes(b"[filesystem\n"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_project_file_is_an_error_not_an_absence(place: Place, kind: str) -> None:
    assert place.resolve().resolved.mode is None
    path = place.workspace / ".stockade.toml"
    PLANTED[kind](path)
    with pytest.raises(PolicyError) as caught:
        place.resolve()
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_the_largest_project_file_is_read(place: Place) -> None:
    body = b"mode = 'strict'\n"
    (place.workspace / ".stockade.toml").write_bytes(body + b"#" * (256 * 1024 - len(body)))
    assert place.resolve().resolved.mode == "strict"


@pytest.mark.parametrize("which", ["system", "user"])
@pytest.mark.parametrize("content", [b"", b"[", b"moed = 'auto'\n", b"\xff"])
def test_a_broken_file_is_never_replaced_by_a_default(place: Place, which: str, content: bytes) -> None:
    path: Path = getattr(place, which)
    path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        place.resolve()
    assert str(path) in caught.value.message


def test_the_user_may_link_his_policy(place: Place) -> None:
    (place.home / "dotfiles.toml").write_text("mode = 'strict'\n")
    place.user.symlink_to(place.home / "dotfiles.toml")
    assert place.resolve().resolved.mode == "strict"


def test_a_user_policy_may_extend(place: Place) -> None:
    (place.user.parent / "mine.toml").write_text("[limits]\ntimeout = '3s'\n")
    place.user.write_text("extends = 'mine.toml'\nmode = 'strict'\n")
    found = place.resolve()
    assert (found.resolved.timeout, found.resolved.mode) == (3.0, "strict")
    assert origin(found, "limits.timeout").startswith("user policy ")


def test_where_the_user_file_is(place: Place) -> None:
    assert default_user_file({"XDG_CONFIG_HOME": "/x"}, "/h") == "/x/stockade/policy.toml"
    assert default_user_file({"XDG_CONFIG_HOME": "x"}, "/h") == "/h/.config/stockade/policy.toml"
    assert default_user_file({}, None) is None
    assert home_of({"HOME": "/h/"}) == "/h"
    assert home_of({"HOME": "relative"}) != "relative"


@pytest.mark.parametrize("workspace", ["/", "//", "/.", "/tmp/..", "relative", "", "/w\0", "~"])
def test_unusable_workspace(place: Place, workspace: str) -> None:
    with pytest.raises(RequestError, match="workspace"):
        place.resolve(workspace=workspace)


def test_a_link_to_the_whole_file_system_is_no_workspace(place: Place) -> None:
    (place.home / "all").symlink_to("/")
    with pytest.raises(RequestError, match="whole file system"):
        place.resolve(workspace=str(place.home / "all"))


def test_chains(place: Place) -> None:
    for number in range(9):
        (place.home / f"{number}.toml").write_text(
            f"extends = '{number + 1}.toml'\n[limits]\nprocesses = {number + 1}\n"
        )
    (place.home / "9.toml").write_text("mode = 'strict'\n")
    with pytest.raises(PolicyError, match="more than 8"):
        place.resolve(base=str(place.home / "0.toml"))
    found = place.resolve(base=str(place.home / "2.toml"))
    assert (found.resolved.processes, found.resolved.mode) == (3, "strict")
    (place.home / "9.toml").write_text("extends = '5.toml'\n")
    with pytest.raises(PolicyError, match="extends itself"):
        place.resolve(base=str(place.home / "5.toml"))


def test_relative_base_is_taken_from_the_current_directory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.home / "p.toml").write_text("mode = 'strict'\n")
    monkeypatch.chdir(place.home)
    assert place.resolve(base="p.toml").resolved.mode == "strict"
    assert place.resolve(base="./p.toml").resolved.name == "./p.toml"
    assert load_policy("p.toml").mode == "strict"


@pytest.mark.parametrize("name", ["./none.toml", "/nonexistent/p.toml", "a/b", "/", "/dev/null/x.toml", "x\0/y"])
def test_a_named_file_that_is_not_there(place: Place, name: str) -> None:
    with pytest.raises(PolicyError):
        place.resolve(base=name)
    with pytest.raises(PolicyError):
        load_policy(name)


def test_policy_variable(place: Place) -> None:
    environ = {"STOCKADE_POLICY": "workspace-write"}
    assert place.resolve(environ=environ).resolved.workspace == "read-write"
    assert place.resolve(environ=environ, base="hook").resolved.workspace == "read-only"
    assert place.resolve(environ=environ, policy=Policy(mode="auto")).resolved.workspace == "read-only"


@pytest.mark.parametrize(
    ("name", "value"),
    [("STOCKADE_POLICY", "hok"), ("STOCKADE_POLICY", ""), ("STOCKADE_POLICY", "/nonexistent.toml"),
     ("STOCKADE_POLICY", "base"), ("STOCKADE_MODE", "on"), ("STOCKADE_MODE", ""), ("STOCKADE_MODE", "OFF"),
     ("STOCKADE_MODE", "\x1b[31m")],
)  # fmt: skip
def test_unknown_value_of_a_variable(place: Place, name: str, value: str) -> None:
    with pytest.raises(PolicyError, match=name) as caught:
        place.resolve(environ={name: value})
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("mode", ["auto", "strict", "off"])
def test_mode_variable(place: Place, mode: str) -> None:
    found = place.resolve(environ={"STOCKADE_MODE": mode})
    assert found.resolved.mode == mode
    assert origin(found, "mode") == "environment STOCKADE_MODE"
    assert place.resolve(environ={"STOCKADE_MODE": mode}, options={"mode": "strict"}).resolved.mode == "strict"


def test_no_other_variable_matters(place: Place) -> None:
    environ = {"STOCKADE_EGRESS": "open", "STOCKADE_NETWORK_EGRESS": "open", "stockade_mode": "off"}
    assert place.resolve(environ=environ) == place.resolve()


def test_options(place: Place) -> None:
    options = {
        "filesystem.write": [Path("/srv/x"), "out"],
        "limits.timeout": 2.5,
        "network.egress": "allow",
        "network.allow": ("B.example",),
        "environment.set": {"A": "1"},
        "network.private": True,
    }
    found = place.resolve(options=options).resolved
    assert found.write == ("/srv/x", "out")
    assert (found.timeout, found.egress, found.allow, found.private) == (2.5, "allow", ("b.example",), True)
    assert found.env_set == (("A", "1"),)
    assert found.mode == "auto"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limits.timeout": 0}, "limits.timeout"),
        ({"limits.timeout": None}, "limits.timeout"),
        ({"limits.timeout": float("nan")}, "limits.timeout"),
        ({"filesystem.write": "/x"}, "filesystem.write"),
        ({"filesystem.write": ["/"]}, "filesystem.write"),
        ({"filesystem.write": ["a\0"]}, "filesystem.write"),
        ({"filesystem.wirte": ["a"]}, "filesystem.wirte"),
        ({"extends": "hook"}, "extends"),
        ({"network": {"egress": "open"}}, "network"),
        ({"mode": "on"}, "mode"),
        ({"network.allow": ["a.example"]}, "network.allow"),
        ({"environment.set": {"A": object()}}, "environment.set"),
    ],
)
def test_unusable_options(place: Place, options: dict[str, object], says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        place.resolve(options=options)
    assert says in caught.value.message
    assert caught.value.remedy


def test_a_path_that_is_not_unicode(place: Place) -> None:
    path = os.fsdecode(b"/srv/\xff")
    assert place.resolve(options={"filesystem.write": [path]}).resolved.write == (path,)


def test_full_access_and_egress_contradict(place: Place) -> None:
    assert place.resolve(base="full-access").resolved.mode == "off"
    with pytest.raises(PolicyError, match="contradict"):
        place.resolve(base="full-access", options={"network.egress": "record"})


def test_policy_object(place: Place) -> None:
    policy = Policy(extends="build", filesystem=Filesystem(write=("/srv",)), limits=Limits(timeout="7s"))
    found = place.resolve(policy=policy)
    assert (found.resolved.write, found.resolved.timeout, found.resolved.processes) == (("/srv",), 7.0, 2048)
    assert origin(found, "limits.timeout") == "policy of the call"
    with pytest.raises(PolicyError, match="policy of the call"):
        place.resolve(policy=Policy(filesystem=Filesystem(write=("/",))))
    with pytest.raises(RequestError, match="two policies"):
        place.resolve(policy=policy, base="hook")
