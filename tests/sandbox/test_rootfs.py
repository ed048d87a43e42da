"""The system part of the view, planned over a host made of a dictionary."""

from __future__ import annotations

import pytest
from fakes import DIR, FACTS, FILE, PASSWD, facts, link, policy, tree

from stockade.sandbox import rootfs
from stockade.sandbox.mounts import (
    BIND,
    BIND_RO,
    DATA,
    DEV,
    MASK,
    PROC,
    SYMLINK,
    TMPFS,
    Mount,
    covering,
    host_path,
    ordered,
)
from stockade.sandbox.tree import Node


def view(host=None, *, facts=FACTS, **changes):
    return ordered(rootfs.system_mounts(policy(**changes), facts, host or tree()))


def at(mounts, dest):
    return next((mount for mount in mounts if mount.dest == dest), None)


def test_the_root_is_an_empty_directory_of_the_box_that_is_shut_at_the_end():
    root = at(view(), "/")
    assert (root.op, root.frozen) == (TMPFS, True)


def test_the_host_is_shown_read_only_and_never_written():
    mounts = view()
    assert at(mounts, "/usr").op == at(mounts, "/etc").op == at(mounts, "/srv").op == BIND_RO
    assert [mount for mount in mounts if mount.op == BIND] == []
    assert all(mount.source == mount.dest for mount in mounts if mount.op == BIND_RO)


@pytest.mark.parametrize("name", sorted(rootfs.LEFT_OUT))
def test_what_is_left_out_of_the_host_is_not_shown(name):
    mounts = view(tree(**{f"/{name}/secret": FILE}))
    assert host_path(mounts, f"/{name}/secret") is None
    assert host_path(mounts, "/usr/bin/env") == "/usr/bin/env"


@pytest.mark.parametrize(
    ("path", "target"), [("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/initrd.img", "boot/initrd.img-6")]
)
def test_links_at_the_top_stay_links(path, target):
    mount = at(view(), path)
    assert (mount.op, mount.source) == (SYMLINK, target)


def test_files_and_sockets_at_the_top_are_not_shown():
    mounts = view(tree(**{"/swapfile": FILE, "/odd.sock": Node("socket", 0o666, 0)}))
    assert at(mounts, "/swapfile") is None
    assert at(mounts, "/odd.sock") is None


@pytest.mark.parametrize("path", ["/tmp", "/var/tmp", "/run", "/dev/shm", "/home/ann"])
def test_private_places_are_empty_and_can_be_written(path):
    mount = at(view(), path)
    assert (mount.op, mount.frozen) == (TMPFS, False)


@pytest.mark.parametrize(
    ("tmp", "whole", "part"), [(None, None, None), (512 << 20, 512 << 20, 128 << 20), (2 << 20, 2 << 20, 1 << 20)]
)
def test_the_tmp_limit_bounds_every_private_place(tmp, whole, part):
    mounts = view(tmp=tmp)
    assert [at(mounts, path).size for path in ("/tmp", "/home/ann")] == [whole, whole]
    assert [at(mounts, path).size for path in ("/var/tmp", "/run", "/dev/shm")] == [part, part, part]


def covered(mount):
    return (mount.op, mount.frozen, mount.perms) == (TMPFS, True, 0o555) or mount.op == MASK


OPEN = {"dir": Node("dir", 0o755, 0), "file": Node("file", 0o644, 0)}


@pytest.mark.parametrize("path", rootfs.SENSITIVE_DIRECTORIES)
def test_sensitive_directories_are_covered_where_they_are_directories(path):
    mounts = view(tree(**{path: OPEN["dir"]}))
    assert covered(at(mounts, path))
    assert host_path(mounts, f"{path}/secret") is None
    assert at(view(tree(**{path: link("/usr")})), path) is None


@pytest.mark.parametrize("path", rootfs.SENSITIVE_FILES)
def test_sensitive_files_are_masked_where_they_are_files(path):
    mounts = view(tree(**{path: OPEN["file"]}))
    assert at(mounts, path) == Mount(MASK, path, reason="sensitive")
    assert host_path(mounts, path) == "/dev/null"
    assert at(view(tree(**{path: link("/usr")})), path) is None


def test_private_host_keys_are_masked_and_public_ones_stay():
    keys = {"/etc/ssh/ssh_host_rsa_key": OPEN["file"], "/etc/ssh/ssh_host_rsa_key.pub": OPEN["file"]}
    mounts = view(tree(**keys))
    assert host_path(mounts, "/etc/ssh/ssh_host_rsa_key") == "/dev/null"
    assert host_path(mounts, "/etc/ssh/ssh_host_rsa_key.pub") == "/etc/ssh/ssh_host_rsa_key.pub"


SHUT = {"/etc/shadow": Node("file", 0o640, 0), "/var/lib/docker": Node("dir", 0o710, 0)}


@pytest.mark.parametrize("path", sorted(SHUT))
@pytest.mark.parametrize(
    ("where", "mounted"),
    [
        (facts(), False),
        (facts(credentials=(65534, 65534)), False),
        (facts(uid=0, kept_root=True), True),
    ],
)
def test_what_modes_keep_from_the_user_inside_is_covered_only_for_a_root_that_passes_them(path, where, mounted):
    assert (at(view(tree(**SHUT), facts=where), path) is not None) is mounted


def test_a_box_that_keeps_root_gets_everything_covered_that_only_root_reads():
    odd = {
        "/etc/secret.conf": Node("file", 0o600, 0),
        "/opt/vault": Node("dir", 0o700, 0),
        "/etc/open.conf": OPEN["file"],
        "/etc/private-link": link("/etc/secret.conf"),
    }
    kept = view(tree(**odd), facts=facts(uid=0, kept_root=True))
    assert covered(at(kept, "/etc/secret.conf"))
    assert covered(at(kept, "/opt/vault"))
    assert at(kept, "/etc/open.conf") is None
    assert at(kept, "/etc/private-link") is None
    assert at(view(tree(**odd)), "/etc/secret.conf") is None


def test_proc_is_fresh_or_absent_and_read_only_for_a_kept_root():
    assert at(view(), "/proc").op == PROC
    assert at(view(), "/proc").frozen is False
    assert at(view(facts=facts(kept_root=True)), "/proc").frozen is True
    without = at(view(facts=facts(fresh_proc=False)), "/proc")
    assert covered(without)
    assert host_path([without], "/proc/1/environ") is None


def test_dev_is_the_boxes_own_and_shut():
    mount = at(view(), "/dev")
    assert (mount.op, mount.frozen) == (DEV, True)


def test_of_sys_only_the_topology_is_shown():
    mounts = view()
    assert at(mounts, "/sys/devices/system").op == BIND_RO
    assert host_path(mounts, "/sys/kernel/security") is None
    assert at(view(tree(**{"/sys/devices/system": FILE})), "/sys/devices/system") is None


def test_a_home_of_the_policy_takes_the_place_of_the_empty_one():
    assert at(view(), "/home/ann").op == TMPFS
    assert at(view(home="~/sandbox-home"), "/home/ann") is None


# --- minimal ----------------------------------------------------------------------------------------------


def test_minimal_shows_programs_and_the_basics_of_etc_alone():
    mounts = view(root="minimal")
    assert host_path(mounts, "/usr/bin/env") == "/usr/bin/env"
    assert host_path(mounts, "/etc/hosts") == "/etc/hosts"
    assert host_path(mounts, "/etc/ssl/certs") == "/etc/ssl/certs"
    assert host_path(mounts, "/etc/passwd") == "/etc/passwd"
    for path in (
        "/etc/shadow",
        "/etc/ssh/ssh_host_ed25519_key",
        "/opt/tool",
        "/srv/project/src/main.py",
        "/var/log",
    ):
        assert host_path(mounts, path) is None
    assert at(mounts, "/etc").frozen is True


def test_minimal_follows_links_of_etc_but_not_into_run():
    mounts = view(root="minimal")
    assert at(mounts, "/etc/localtime").source == "/usr/share/zoneinfo/UTC"
    assert at(mounts, "/etc/resolv.conf") is None


def test_minimal_on_a_host_whose_bin_is_a_directory():
    mounts = view(tree(**{"/bin": DIR, "/bin/sh": FILE}), root="minimal")
    assert (at(mounts, "/bin").op, at(mounts, "/bin").source) == (BIND_RO, "/bin")
    assert at(mounts, "/lib").op == SYMLINK
    assert at(mounts, "/sbin") is None


# --- accounts ---------------------------------------------------------------------------------------------


def passwd(found):
    (mount,) = found if isinstance(found, list) else [found]
    assert (mount.op, mount.dest) == (DATA, "/etc/passwd")
    return mount.data.decode("utf-8", "surrogateescape")


def test_the_hosts_accounts_stay_when_they_say_the_same_home():
    assert not rootfs.passwd_file(facts(), tree())


@pytest.mark.parametrize(
    ("where", "entry"),
    [
        (facts(home="/home/other"), "ann:x:1000:1000::/home/other:/bin/sh"),
        (facts(uid=65534, gid=65534, user="nobody", home="/root"), "nobody:x:65534:65534::/root:/bin/sh"),
        (facts(uid=4242, gid=4242, user="user"), "user:x:4242:4242::/home/ann:/bin/sh"),
    ],
)
def test_else_the_user_inside_is_listed_first_with_its_home(where, entry):
    lines = passwd(rootfs.passwd_file(where, tree())).splitlines()
    assert lines[0] == entry
    assert lines.count(entry) == 1
    assert [line.split(":")[2] for line in lines].count(str(where.uid)) == 1
    assert "root:x:0:0:root:/root:/bin/bash" in lines


def test_bytes_that_are_no_text_survive():
    host = tree(**{"/etc/passwd": PASSWD + "b\udcff:x:7:7::/h:/bin/sh\n"})
    data = rootfs.passwd_file(facts(home="/h"), host)
    assert "b\udcff:x:7:7::/h:/bin/sh\n" in passwd(data)


def test_a_host_without_accounts_gets_one():
    assert (
        passwd(rootfs.passwd_file(facts(), tree(**{"/etc/passwd": DIR}))) == "ann:x:1000:1000::/home/ann:/bin/sh\n"
    )


# --- every mount ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["host", "minimal"])
@pytest.mark.parametrize("kept", [False, True])
def test_every_mount_says_why_and_hangs_below_the_root(root, kept):
    mounts = view(root=root, facts=facts(kept_root=kept))
    assert all(mount.reason for mount in mounts)
    assert all(mount.dest.startswith("/") and "//" not in mount.dest for mount in mounts)
    assert all(covering(mounts[:place], mount.dest) is not None for place, mount in enumerate(mounts) if place)


def test_the_places_that_no_workspace_can_be():
    assert set(rootfs.covered_places(facts())) >= {
        "/tmp",
        "/var/tmp",
        "/run",
        "/home",
        "/root",
        "/dev/shm",
        "/home/ann",
    }
