"""A whole plan: that the parts are joined in an order in which the protecting ones win."""

from __future__ import annotations

import pytest
from fakes import BWRAP, DIR, FACTS, FILE, facts, policy, request, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox import plan as module
from stockade.sandbox.mounts import BIND, BIND_RO, DATA, MASK, TMPFS, Mount, below, covering
from stockade.sandbox.plan import check_size, check_visible, limits, make_plan


def planned(host=None, *, where=FACTS, cwd="/srv/project", argv=("true",), **changes):
    return make_plan(policy(**changes), request(*argv, cwd=cwd), where, host or tree())


def op(plan, dest):
    return next((mount.op for mount in plan.mounts if mount.dest == dest), None)


@pytest.mark.parametrize(("kind", "writable"), [("read-only", ()), ("read-write", ("/srv/project",)), ("none", ())])
def test_writable_says_what_of_the_host_can_be_written(kind, writable):
    plan = planned(workspace=kind)
    assert plan.writable == writable
    for mount in plan.mounts:
        assert mount.op != BIND or any(below(mount.source, top) for top in writable)


def test_a_home_of_the_policy_counts_as_writable():
    plan = planned(tree(**{"/home/ann/box": DIR}), home="~/box")
    assert plan.writable == ("/home/ann/box",)


def test_hidden_files_stay_masked_and_protected_names_read_only_in_a_writable_workspace():
    plan = planned(workspace="read-write")
    assert plan.view("/srv/project/.env") == "/dev/null"
    assert op(plan, "/srv/project/.git/hooks") == BIND_RO
    assert op(plan, "/srv/project/.claude") == BIND_RO
    assert plan.stubs == ("/srv/project/.claude",)
    assert plan.view("/srv/project/src/main.py") == "/srv/project/src/main.py"


def test_a_read_grant_of_a_secret_place_shows_it_and_nothing_else():
    plan = planned(read=("~/.ssh",))
    assert plan.view("/home/ann/.ssh/id_ed25519") == "/home/ann/.ssh/id_ed25519"
    assert plan.view("/home/ann/.bashrc") is None


def test_sockets_in_view_are_masked():
    where = facts(sockets=("/srv/project/agent.sock", "/run/docker.sock", "/usr/lib/d.sock"))
    plan = planned(where=where)
    assert (op(plan, "/srv/project/agent.sock"), op(plan, "/usr/lib/d.sock")) == (MASK, MASK)
    assert op(plan, "/run/docker.sock") is None
    assert plan.view("/run/docker.sock") is None


def test_a_socket_below_a_granted_run_is_masked():
    host = tree(**{"/run/app/data": FILE})
    plan = planned(host, where=facts(sockets=("/run/app/s",)), read=("/run/app",))
    assert plan.view("/run/app/data") == "/run/app/data"
    assert op(plan, "/run/app/s") == MASK


def test_toolchains_of_path_are_brought_and_path_is_true_inside():
    plan = planned()
    assert op(plan, "/home/ann/.pyenv") == BIND_RO
    assert dict(plan.env)["PATH"] == "/home/ann/.pyenv/shims:/usr/local/bin:/usr/bin"
    assert dict(planned(toolchains="none").env)["PATH"] == "/usr/local/bin:/usr/bin"


def test_another_home_is_written_into_the_accounts():
    assert op(planned(), "/etc/passwd") is None
    assert op(planned(where=facts(home="/home/other")), "/etc/passwd") == DATA


def test_what_facts_say_is_passed_on():
    plan = planned(where=facts(credentials=(65534, 65534), kept_root=False, fresh_proc=False))
    assert (plan.credentials, plan.fresh_proc, plan.proc_read_only) == ((65534, 65534), False, False)
    assert planned(where=facts(kept_root=True)).proc_read_only is True
    assert planned().no_new_userns is True
    assert planned(where=facts(bwrap=BWRAP.replace(options=()))).no_new_userns is False
    assert planned(syscalls="strict").seccomp == "strict"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {},
            (("DATA", 2 << 30), ("NPROC", 256), ("FSIZE", 1 << 30), ("NOFILE", 1024), ("CORE", 0)),
        ),
        ({"memory": None, "processes": None, "file_size": None, "open_files": None}, (("CORE", 0),)),
        ({"memory": 1, "processes": None, "file_size": None, "open_files": None}, (("DATA", 1), ("CORE", 0))),
    ],
)
def test_limits(changes, found):
    assert limits(policy(**changes)) == found


def test_the_address_space_is_never_bounded():
    assert "AS" not in dict(limits(policy()))


def test_too_many_mounts_are_refused_before_bwrap_would():
    check_size(tuple(Mount(MASK, f"/{number}") for number in range(module.MAX_MOUNTS)))
    with pytest.raises(StockadeError, match="it needs 2501 mounts") as caught:
        check_size(tuple(Mount(MASK, f"/{number}") for number in range(module.MAX_MOUNTS + 1)))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "path",
    ["/srv/project", "/srv/project/src", "/srv", "/tmp", "/home/ann", "/home", "/usr", "/"],
)
def test_a_visible_directory_can_be_run_in(path):
    check_visible(planned(), path)


def test_one_that_is_not_there_inside_is_refused():
    plan = planned(root="minimal", workspace="none")
    check_visible(plan, plan.cwd)
    for path in ("/srv/project", "/tmp/x", "/home/ann/src", "/opt"):
        with pytest.raises(RequestError, match="it is not visible inside") as caught:
            check_visible(plan, path)
        assert caught.value.remedy


NAMES = st.sampled_from(["a", "b", ".git", ".env", ".claude", "x y"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/srv/project/" + "/".join(parts))


@settings(deadline=None)
@given(
    there=st.lists(PATHS, max_size=8),
    hidden=st.lists(PATHS, max_size=4),
    write=st.lists(PATHS, max_size=3),
    workspace=st.sampled_from(["read-only", "read-write", "none"]),
)
def test_whatever_is_granted_hidden_stays_hidden_and_protected_stays_shut(there, hidden, write, workspace):
    host = tree(**dict.fromkeys([*there, *hidden, *write], DIR))
    plan = planned(host, where=facts(hidden=tuple(hidden)), workspace=workspace, write=tuple(write))
    for path in hidden:
        assert plan.view(f"{path}/secret") is None or not any(
            below(path, mount.dest) for mount in plan.mounts if mount.op == BIND
        )
    assert not any(mount.op == BIND and mount.dest == "/srv/project/.git/hooks" for mount in plan.mounts) or (
        "/srv/project/.git/hooks" in write
    )
    root = covering(plan.mounts, "/")
    assert (root.op, root.dest) == (TMPFS, "/")
    order = [mount.dest for mount in plan.mounts]
    assert all(not below(dest, later) for at, dest in enumerate(order) for later in order[at + 1 :])
