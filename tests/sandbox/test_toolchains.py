"""What PATH finds in a home that the box empties is brought back: programs, never what lies beside them."""

from __future__ import annotations

import pytest
from fakes import DIR, FILE, FakeTree, facts, link, policy, tree

from stockade.sandbox import rootfs, toolchains
from stockade.sandbox.mounts import BIND_RO, host_path, ordered

HOME = "/home/ann"


def bring(path, entries=(), *, toolchain="auto", **nodes):
    """Tools for a PATH on the host of the fakes; ``entries`` are more of it."""
    host = tree(**dict(entries), **nodes)
    where = facts(path=tuple(path))
    rules = policy(toolchains=toolchain)
    return toolchains.bring(rules, where, host, ordered(rootfs.system_mounts(rules, where, host)))


def brought(path, entries=(), **more):
    found = bring(path, entries, **more)
    assert all(mount.op == BIND_RO and mount.pinned and mount.source == mount.dest for mount in found.mounts)
    return [mount.dest for mount in found.mounts]


def test_what_is_visible_stays_and_needs_no_mount():
    found = bring(["/usr/local/bin", "/usr/bin", "/bin"])
    assert (found.mounts, found.path) == ((), ("/usr/local/bin", "/usr/bin"))


def test_what_does_not_exist_or_is_no_directory_is_left_out():
    assert bring(["/nowhere", "/usr/bin/env", "/etc/passwd", "/usr/bin"]).path == ("/usr/bin",)


@pytest.mark.parametrize("root", toolchains.WHOLE)
def test_a_known_toolchain_is_brought_whole(root):
    entry = f"{HOME}/{root}/versions/1/bin"
    assert brought([entry], {entry: DIR}) == [f"{HOME}/{root}"]
    assert bring([entry], {entry: DIR}).path == (entry,)


def test_two_entries_of_one_toolchain_need_one_mount():
    entries = {f"{HOME}/.pyenv/bin": DIR, f"{HOME}/.pyenv/shims": DIR}
    assert brought(entries, entries) == [f"{HOME}/.pyenv"]


def test_of_other_places_only_the_entry_itself_is_brought():
    secrets = {f"{HOME}/.cargo/bin/rg": FILE, f"{HOME}/.cargo/credentials.toml": FILE}
    assert brought([f"{HOME}/.cargo/bin"], secrets) == [f"{HOME}/.cargo/bin"]
    assert brought([f"{HOME}/bin"], {f"{HOME}/bin/x": FILE}) == [f"{HOME}/bin"]


def test_what_programs_need_beside_them_comes_along_when_it_is_there():
    entries = {f"{HOME}/.cargo/bin/cargo": FILE, f"{HOME}/.rustup/toolchains": DIR}
    assert brought([f"{HOME}/.cargo/bin"], entries) == [f"{HOME}/.cargo/bin", f"{HOME}/.rustup"]


@pytest.mark.parametrize("toolchain", ["none"])
def test_nothing_is_brought_where_the_policy_wants_none(toolchain):
    entry = f"{HOME}/.pyenv/shims"
    found = bring([entry, "/usr/bin"], {entry: DIR}, toolchain=toolchain)
    assert (found.mounts, found.path) == ((), ("/usr/bin",))


def test_a_link_in_path_is_taken_for_what_it_leads_to():
    entries = {"/usr/local/tools": link(f"{HOME}/.nvm/bin"), f"{HOME}/.nvm/bin": DIR}
    found = bring(["/usr/local/tools"], entries)
    assert found.path == (f"{HOME}/.nvm/bin",)
    assert [mount.dest for mount in found.mounts] == [f"{HOME}/.nvm"]


def test_links_among_the_programs_bring_the_toolchains_they_lead_to():
    entries = {
        f"{HOME}/.local/bin/black": link("../share/pipx/venvs/black/bin/black"),
        f"{HOME}/.local/share/pipx/venvs/black/bin/black": FILE,
        f"{HOME}/.local/bin/notes": link(f"{HOME}/notes/open"),
        f"{HOME}/notes/open": FILE,
    }
    assert brought([f"{HOME}/.local/bin"], entries) == [f"{HOME}/.local/bin", f"{HOME}/.local/share/pipx"]


def test_a_virtual_environment_is_brought_with_its_interpreter_of_the_home():
    venv, base = f"{HOME}/venv", f"{HOME}/.local/share/uv/python/cpython-3.12"
    entries = {
        f"{venv}/bin": DIR,
        f"{venv}/pyvenv.cfg": f"include-system-site-packages = false\nhome = {base}/bin\n",
        f"{base}/bin/python3": FILE,
    }
    assert brought([f"{venv}/bin"], entries) == [venv, f"{HOME}/.local/share/uv"]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"home={HOME}/py/bin\n", [f"{HOME}/py"]),
        (f"home = {HOME}/.pyenv/versions/3.12/bin\n", [f"{HOME}/.pyenv"]),
        (f"home = {HOME}/.ssh/keys\n", []),
        (f"home = {HOME}/bin\n", []),
        (f"home = {HOME}\n", []),
        ("home = /usr/bin\n", []),
        ("home = bin\n", []),
        ("", []),
        ("homely = /x\nhome\n", []),
    ],
)
def test_the_interpreter_of_a_virtual_environment(text, more):
    places = [f"{HOME}/py/bin", f"{HOME}/bin", HOME, "/usr/bin", f"{HOME}/.pyenv/versions/3.12/bin"]
    programs = {f"{place}/python3.12": FILE for place in places}
    host = FakeTree({f"{HOME}/venv/pyvenv.cfg": text or " ", f"{HOME}/.ssh/keys/id": FILE, **programs})
    assert toolchains.base_interpreter(f"{HOME}/venv", facts(), host) == more


@pytest.mark.parametrize("entry", ["/", "/home", HOME, "/to-home"])
def test_an_entry_that_holds_the_home_is_left_out(entry):
    entries = {"/to-home": link(HOME), f"{HOME}/pyvenv.cfg": "home = /usr/bin\n"}
    found = bring([entry, "/usr/bin"], entries)
    assert (found.mounts, found.path) == ((), ("/usr/bin",))


def test_a_home_that_is_itself_a_virtual_environment_is_not_shown():
    entries = {f"{HOME}/pyvenv.cfg": "home = /usr/bin\n", f"{HOME}/bin/x": FILE}
    assert brought([f"{HOME}/bin"], entries) == [f"{HOME}/bin"]


def test_what_is_brought_is_visible_and_the_rest_of_the_home_is_not():
    entry = f"{HOME}/.pyenv/shims"
    where = facts(path=(entry,))
    mounts = rootfs.system_mounts(policy(), where, tree())
    final = ordered([*mounts, *toolchains.bring(policy(), where, tree(), ordered(mounts)).mounts])
    assert host_path(final, f"{entry}/python") == f"{entry}/python"
    assert host_path(final, f"{HOME}/.ssh/id_ed25519") is None


def test_a_directory_of_ten_thousand_links_is_not_followed_without_end():
    entries = {f"{HOME}/bin/{number:05}": link(f"{HOME}/.nvm/x") for number in range(2000)}
    host = FakeTree({**entries, f"{HOME}/.nvm/x": FILE})
    looked = []
    real = host.real
    host.real = lambda path: looked.append(path) or real(path)
    assert toolchains.link_targets(f"{HOME}/bin", facts(), host) == [f"{HOME}/.nvm"]
    assert len([path for path in looked if path.startswith(f"{HOME}/bin/")]) <= toolchains.MOST_LINKS
