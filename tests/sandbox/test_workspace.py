"""The caller's files in the view: workspace, grants, guards and masks, planned over a host made of a dictionary."""

from __future__ import annotations

import pytest
from fakes import DIR, FACTS, FILE, HOST, OTHER, SOCKET, FakeTree, facts, link, policy, request, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import PolicyError, RequestError
from stockade.sandbox import rootfs, workspace
from stockade.sandbox.mounts import BIND, BIND_RO, MASK, TMPFS, Mount, host_path, ordered

WRITE = {"workspace": "read-write"}


def place(host=None, *, cwd="/srv/project", where=FACTS, **changes):
    covered = rootfs.covered_places(where)
    return workspace.place(policy(**changes), request(cwd=cwd), where, host or tree(), covered=covered)


def guarded(host=None, **changes):
    return {mount.dest: mount.op for mount in place(host, **WRITE, **changes).guarded}


# --- the workspace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "op"), [("read-only", BIND_RO), ("read-write", BIND)])
def test_the_workspace_is_bound_as_the_policy_says(kind, op):
    found = place(workspace=kind)
    (mount,) = found.mounts
    assert (mount.op, mount.dest, mount.source, mount.pinned) == (op, "/srv/project", "/srv/project", True)
    assert found.cwd == "/srv/project"


def test_without_a_workspace_the_program_starts_at_home():
    found = place(workspace="none")
    assert (found.mounts, found.cwd, found.stubs) == ((), "/home/ann", ())


@pytest.mark.parametrize("kind", ["read-only", "read-write"])
def test_the_root_is_no_workspace(kind):
    with pytest.raises(RequestError, match="could not use / as the workspace"):
        place(cwd="/", workspace=kind)


COVERED = ["/tmp", "/home", "/home/ann", "/run", "/var", "/var/tmp", "/root", "/dev"]


@pytest.mark.parametrize("cwd", COVERED)
def test_a_place_that_the_box_replaces_is_not_shown_and_that_is_said(cwd):
    found = place(cwd=cwd)
    assert (found.mounts, found.cwd) == ((), "/home/ann")
    assert any(cwd in note for note in found.notes)


@pytest.mark.parametrize("cwd", COVERED)
def test_it_can_not_be_a_writable_workspace(cwd):
    with pytest.raises(RequestError, match="as a writable workspace") as caught:
        place(cwd=cwd, **WRITE)
    assert caught.value.remedy


@pytest.mark.parametrize("cwd", ["/home/ann/project", "/tmp/x", "/var/tmp/x", "/root/x", "/var/lib/x"])
def test_a_directory_below_it_can(cwd):
    assert place(tree(**{cwd: DIR}), cwd=cwd, **WRITE).mounts[0].dest == cwd


# --- grants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/opt/tool", "/opt/tool"),
        ("src", "/srv/project/src"),
        ("../project/src/./main.py", "/srv/project/src/main.py"),
        ("~/data", "/home/ann/data"),
        ("/opt/link", "/srv/data"),
    ],
)
@pytest.mark.parametrize(("option", "op"), [("read", BIND_RO), ("write", BIND)])
def test_a_grant_binds_what_the_path_leads_to(path, real, option, op):
    host = tree(**{"/home/ann/data": DIR, "/srv/data": DIR, "/opt/link": link("../srv/data")})
    found = place(host, **{option: (path,)})
    assert (found.mounts[1].op, found.mounts[1].dest, found.mounts[1].source) == (op, real, real)


def test_a_grant_that_leads_elsewhere_is_said():
    host = tree(**{"/srv/project/out": link("/opt/tool")})
    assert place(host, write=("out",)).notes == ("write 'out' leads to '/opt/tool'",)
    assert place(host, write=("src",)).notes == ()


@pytest.mark.parametrize("option", ["read", "write"])
@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/", "the whole host"),
        ("..//..", "the whole host"),
        ("to-root", "the whole host"),
        ("missing", "does not exist"),
        ("dangling", "does not exist"),
        ("/run/docker.sock", "neither a directory nor a file"),
        ("/dev/null", "neither a directory nor a file"),
        ("/proc", "leads to its processes"),
        ("/proc/1", "leads to its processes"),
    ],
)
def test_what_can_not_be_granted(option, path, cause):
    host = tree(
        **{
            "/srv/project/to-root": link("/"),
            "/srv/project/dangling": link("nowhere"),
            "/proc/1": DIR,
            "/dev/null": OTHER,
        }
    )
    with pytest.raises(PolicyError, match="could not grant " + option) as caught:
        place(host, **{option: (path,)})
    assert cause in caught.value.message


@pytest.mark.parametrize(
    ("path", "origin", "taken"),
    [
        ("src", "project .stockade.toml", True),
        ("out", "options", True),
        ("/opt/link", "options", True),
        ("/opt/link", "user policy.toml", True),
        ("~/link", "preset build", True),
        ("out", "user policy.toml", False),
        ("out", "preset build", False),
        ("./out/x", "policy p.toml", False),
        ("/opt/link", "project .stockade.toml", False),
        ("~/link", "user policy.toml, project .stockade.toml", False),
    ],
)
@pytest.mark.parametrize("option", ["read", "write"])
def test_a_link_decides_only_where_nobody_could_have_planted_it(path, origin, taken, option):
    links = ("/srv/project/out", "/opt/link", "/home/ann/link")
    host = tree(**{"/srv/data/x": DIR, **{each: link("/srv/data") for each in links}})
    changes = {option: (path,), "origin": ((f"filesystem.{option}", origin),)}
    if taken:
        assert len(place(host, **changes).mounts) == 2
        return
    with pytest.raises(PolicyError, match="leads through a symlink to '/srv/data") as caught:
        place(host, **changes)
    assert origin in caught.value.message


def test_a_home_of_the_policy_is_a_writable_grant_shown_as_home():
    host = tree(**{"/home/ann/sandbox-home": DIR})
    (mount,) = [each for each in place(host, home="~/sandbox-home").mounts if each.dest == "/home/ann"]
    assert (mount.op, mount.source, mount.pinned) == (BIND, "/home/ann/sandbox-home", True)
    for whole in ("~", "/usr"):
        with pytest.raises(PolicyError, match="holds the home or the system"):
            place(host, home=whole)


@pytest.mark.parametrize("path", ["/home", "/home/ann", "~", "/usr", "/etc", "/root", "to-home"])
def test_the_home_and_the_system_are_not_granted_for_writing(path):
    host = tree(**{"/srv/project/to-home": link("/home/ann"), "/root": DIR})
    with pytest.raises(PolicyError, match="holds the home or the system"):
        place(host, write=(path,))
    assert place(host, read=(path,)).mounts[1].op == BIND_RO


def test_a_directory_below_them_is():
    host = tree(**{"/usr/local/share/x": DIR, "/home/ann/out": DIR})
    found = place(host, write=("/usr/local/share/x", "~/out"))
    assert [mount.op for mount in found.mounts] == [BIND_RO, BIND, BIND]


# --- guards -----------------------------------------------------------------------------------------------


def test_nothing_is_guarded_where_nothing_can_be_written():
    assert place().guarded == ()
    assert place(read=("/opt/tool",)).stubs == ()


def test_a_protected_name_and_every_directory_above_it_become_mounts():
    assert guarded() == {
        "/srv/project/.git": BIND,
        "/srv/project/.git/hooks": BIND_RO,
        "/srv/project/.git/config": BIND_RO,
        "/srv/project/.claude": BIND_RO,
    }
    assert place(**WRITE).stubs == ("/srv/project/.claude",)


def test_a_missing_component_gets_a_stand_in_where_it_begins():
    found = place(protect=("a/b/c",), **WRITE)
    assert found.stubs == ("/srv/project/a",)
    assert {mount.dest: mount.op for mount in found.guarded} == {"/srv/project/a": BIND_RO}


def test_two_names_share_a_stand_in():
    found = place(protect=("a/b", "a/c", "a"), **WRITE)
    assert found.stubs == ("/srv/project/a",)
    assert len(found.guarded) == 1


def test_a_file_on_the_way_is_kept_as_it_is():
    host = tree(**{"/srv/project/.claude": FILE})
    assert guarded(host, protect=(".claude/settings.json",)) == {"/srv/project/.claude": BIND_RO}


def test_the_stricter_of_two_wishes_wins_whatever_their_order():
    for protect in ((".git", ".git/hooks"), (".git/hooks", ".git")):
        assert guarded(protect=protect)["/srv/project/.git"] == BIND_RO


@pytest.mark.parametrize(
    "links", [{".claude": "/opt"}, {".git": "/opt/tool"}, {".git/hooks": "../hooks"}, {".claude": "gone"}]
)
def test_a_link_on_the_way_is_refused(links):
    entries = {f"/srv/project/{name}": link(target) for name, target in links.items()}
    rest = {path: what for path, what in HOST.items() if not path.startswith("/srv/project/.git")}
    host = FakeTree({**rest, **entries})
    with pytest.raises(PolicyError, match="is a symlink, which the program could replace") as caught:
        place(host, **WRITE)
    assert "filesystem.protect" in caught.value.remedy
    assert place(host).mounts  # read-only: nothing can be replaced


def test_every_writable_grant_is_guarded():
    found = place(tree(**{"/opt/tool/.claude": DIR}), write=("/opt/tool",))
    assert {mount.dest: mount.op for mount in found.guarded} == {
        "/opt/tool/.claude": BIND_RO,
        "/opt/tool/.git": BIND_RO,
    }
    assert found.stubs == ("/opt/tool/.git",)


def test_a_grant_of_the_name_itself_is_not_guarded_against():
    found = place(write=(".git/hooks",), **WRITE)
    assert "/srv/project/.git/hooks" not in {mount.dest for mount in found.guarded}
    assert "/srv/project/.git/config" in {mount.dest for mount in found.guarded}


def test_a_writable_file_needs_no_guards():
    assert place(write=("src/main.py",)).guarded == ()


@pytest.mark.parametrize(
    ("path", "top", "steps"),
    [
        ("/w/a", "/w", ["/w/a"]),
        ("/w/a/b/c", "/w", ["/w/a", "/w/a/b", "/w/a/b/c"]),
        ("/a/b", "/", ["/a", "/a/b"]),
    ],
)
def test_ancestors(path, top, steps):
    assert workspace.ancestors(path, top) == steps


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), max_size=6), st.data())
def test_no_protected_path_can_be_renamed_replaced_or_made(names, data):
    """Every component from the workspace down to a protected name is a mount, up to where a stand-in holds the rest."""
    there = data.draw(st.lists(st.sampled_from(names), max_size=4)) if names else []
    host = tree(**{f"/srv/project/{name}": DIR for name in there})
    found = place(host, protect=tuple(names), **WRITE)
    ops = {mount.dest: mount.op for mount in found.guarded}
    for name in names:
        for step in workspace.ancestors(f"/srv/project/{name}", "/srv/project"):
            assert step in ops
            if ops[step] == BIND_RO:
                break
        else:
            pytest.fail(f"{name} can be written")
    assert all(ops[stub] == BIND_RO and host.node(stub) is None for stub in found.stubs)


# --- stockade's own state ---------------------------------------------------------------------------------

CONFIG = {"/srv/cfg": DIR}
OWN = facts(own_state=("/srv/cfg/x/stockade",), hidden=())


def test_own_state_in_a_writable_place_is_guarded_like_a_protected_name():
    found = place(tree(**CONFIG, **{"/srv/cfg/x/stockade": DIR}), where=OWN, write=("/srv/cfg",), protect=())
    assert {mount.dest: mount.op for mount in found.guarded} == {"/srv/cfg/x": BIND, "/srv/cfg/x/stockade": BIND_RO}


def test_own_state_that_does_not_exist_yet_can_not_be_made_there():
    found = place(tree(**CONFIG, **{"/srv/cfg/x": DIR}), where=OWN, write=("/srv/cfg",), protect=())
    assert found.stubs == ("/srv/cfg/x/stockade",)


def test_own_state_elsewhere_costs_nothing():
    found = place(tree(**CONFIG), where=OWN, write=("/opt/tool",), protect=())
    assert (found.guarded, found.stubs) == ((), ())


def test_own_state_that_is_visible_is_covered():
    host = tree(**{"/srv/cfg/x/stockade": DIR})
    for option in ("read", "write"):
        found = place(host, where=OWN, **{option: ("/srv/cfg",)})
        assert host_path(found.mounts, "/srv/cfg/x/stockade/policy.toml") is not None
        mounts = ordered([*found.mounts, *workspace.guards(policy(), OWN, found, host)])
        assert next(mount for mount in mounts if mount.dest == "/srv/cfg/x/stockade").op == TMPFS
        assert host_path(mounts, "/srv/cfg/x/stockade/policy.toml") is None
    unseen = workspace.guards(policy(), OWN, place(host, where=OWN), host)
    assert [mount for mount in unseen if mount.dest.startswith("/srv/cfg")] == []


# --- hidden paths and sockets -----------------------------------------------------------------------------


def masks(hidden, host=None, **changes):
    where = facts(hidden=tuple(hidden), own_state=())
    host = host or tree()
    found = place(host, where=where, **changes)
    return {mount.dest: mount.op for mount in workspace.guards(policy(), where, found, host)}


def test_hidden_files_are_masked_and_hidden_directories_emptied():
    assert masks(["/srv/project/.env", "/srv/project/src"]) == {
        "/srv/project/.env": MASK,
        "/srv/project/src": TMPFS,
    }


def test_of_a_hidden_link_the_target_is_masked_when_it_is_in_view():
    links = {
        "/srv/project/l": link("src/main.py"),
        "/srv/project/far": link("/opt/tool"),
        "/srv/project/d": link("gone"),
    }
    assert masks(links, tree(**links)) == {"/srv/project/src/main.py": MASK}


def test_what_is_not_granted_needs_no_mask():
    assert masks(["/home/ann/.ssh/id_ed25519"]) == {}
    assert masks(["/srv/project/.env"], workspace="none") == {}
    assert masks(["/home/ann/.ssh/id_ed25519"], read=("~/.ssh",)) == {"/home/ann/.ssh/id_ed25519": MASK}


def test_sockets_in_view_are_masked_once():
    where = facts(sockets=("/srv/project/s", "/srv/project/s", "/run/docker.sock", "/srv/projects"))
    mounts = ordered([Mount(TMPFS, "/run"), Mount(BIND_RO, "/srv/project", "/srv/project")])
    found = workspace.socket_masks(where, mounts)
    assert [(mount.op, mount.dest) for mount in found] == [(MASK, "/srv/project/s")]


def test_kind():
    host = tree(**{"/s": SOCKET})
    assert [workspace.kind(host, path) for path in ("/s", "/usr", "/etc/passwd", "/bin", "/none")] == [
        "socket",
        "dir",
        "file",
        "link",
        None,
    ]
