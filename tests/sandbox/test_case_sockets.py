"""Sockets: those of the host are out of reach whatever they are bound to; the box's own work as anywhere."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest
from boxes import PYTHON, REFUSED, identity, make_place, open_to_all, outside, own_state, place, policy, probe

import stockade
from stockade.sandbox import confinement

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

CONNECT = """
def connect(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.settimeout(5)
        client.connect(address)
        client.send(b"out")
"""


@contextlib.contextmanager
def listening(path: str | bytes, kind: int = socket.SOCK_STREAM):
    """A socket of the host bound to a path, as it stands, or to an abstract name."""
    server = socket.socket(socket.AF_UNIX, kind)
    try:
        server.bind(path)
        if not path.startswith(("\0",) if isinstance(path, str) else (b"\0",)):
            os.chmod(path, 0o777)
        if kind != socket.SOCK_DGRAM:
            server.listen(16)
        yield server
    finally:
        server.close()


def heard(server: socket.socket) -> bool:
    """Whether anybody came."""
    server.setblocking(False)
    try:
        if server.type == socket.SOCK_DGRAM:
            server.recv(100)
        else:
            server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


# --- sockets bound to a path ------------------------------------------------------------------------------

PLACES = {
    "workspace": "s.sock",
    "deep": "a/b/c/s.sock",
    "spaces": "a b /s 1.sock",
    "newline": "line\nbreak.sock",
    "at sign": "@s.sock",
    "hidden name": ".hidden.sock",
    "odd bytes": b"o\xffd.sock",
}


@pytest.mark.parametrize("extends", ["read-only", "workspace-write"])
@pytest.mark.parametrize("name", PLACES)
def test_a_socket_of_the_host_in_the_workspace_can_not_be_reached(place, extends, name):
    """A read-only mount does not stop connect(2): it is covered. On the host it works on, before and after."""
    path = os.path.join(os.fsencode(place), os.fsencode(PLACES[name]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with listening(path) as server:
        open_to_all(place)
        assert outside(CONNECT + "connect(sys.argv[1])", os.fsdecode(path)) == {}
        assert heard(server)
        before = os.lstat(path)
        found = probe(
            CONNECT
            + """
name = os.fsencode(sys.argv[1])
found["connect"] = tried(connect, name)
found["moved"] = tried(os.rename, name, b"moved")
found["linked"] = tried(os.link, name, b"linked")
found["control"] = tried(os.stat, ".")
""",
            os.fsdecode(path),
            cwd=place,
            policy=policy(extends=extends),
        )
        assert found.pop("control") == "ok"
        assert set(found.values()) <= {"ECONNREFUSED", *REFUSED}
        assert not heard(server)
        assert os.path.samestat(before, os.lstat(path))
        outside(CONNECT + "connect(sys.argv[1])", os.fsdecode(path))
        assert heard(server)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_every_kind_of_path_socket_is_covered(place, identity, kind):
    """Streams, datagrams and packets, for a dropped and for a kept root."""
    path = str(place / "s.sock")
    with listening(path, kind) as server:
        body = CONNECT + 'found["connect"] = tried(connect, sys.argv[1], int(sys.argv[2]))'
        assert outside(body, path, int(kind)) == {"connect": "ok"}
        assert heard(server)
        assert probe(body, path, int(kind), cwd=place, policy=policy(identity))["connect"] != "ok"
        assert not heard(server)


def test_sockets_bound_by_a_relative_path_or_through_links_are_found(place, tmp_path, monkeypatch):
    """The kernel lists what was given to bind(2): not absolute, or through links that the box resolves otherwise."""
    other = make_place(tmp_path, "other")
    (tmp_path / "link").symlink_to(other)
    (place / "sub").mkdir()
    open_to_all(place)
    granted = policy(extends="read-only", filesystem={"read": [str(other)]})
    with contextlib.ExitStack() as stack:
        monkeypatch.chdir(place / "sub")
        servers = {str(place / "sub/relative.sock"): stack.enter_context(listening("relative.sock"))}
        servers[str(other / "linked.sock")] = stack.enter_context(listening(str(tmp_path / "link/linked.sock")))
        servers[str(place / "dots.sock")] = stack.enter_context(listening("../sub/../dots.sock"))
        body = CONNECT + 'found["connect"] = {path: tried(connect, path) for path in sys.argv[1:]}'
        assert set(outside(body, *servers)["connect"].values()) == {"ok"}
        assert all(map(heard, servers.values()))
        found = probe(body, *servers, cwd=place, policy=granted)
        assert "ok" not in found["connect"].values()
        assert not any(map(heard, servers.values()))


def test_sockets_of_temporary_and_runtime_directories_are_not_there(place, tmp_path, identity):
    """/run, /tmp and /var/tmp are the box's own: no name of the host's is in them."""
    with listening(str(tmp_path / "s.sock")) as server:
        found = probe(
            CONNECT
            + """
found["connect"] = tried(connect, sys.argv[1])
found["names"] = {top: os.listdir(top) for top in ("/run", "/tmp", "/var/tmp", "/dev/shm")}
found["socket files"] = [os.path.join(folder, name) for top in found["names"] for folder, _dirs, files in os.walk(top)
                         for name in files if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)]
found["known"] = [tried(connect, path) for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket",
                  "/run/systemd/private", "/run/containerd/containerd.sock", f"/run/user/{os.getuid()}/bus")]
""",
            str(tmp_path / "s.sock"),
            cwd=place,
            policy=policy(identity),
        )
        assert found["connect"] == "ENOENT"
        top = str(place).split("/")[2]
        assert found["names"] == {"/run": [], "/tmp": [top], "/var/tmp": [], "/dev/shm": []}
        assert found["socket files"] == []
        assert set(found["known"]) == {"ENOENT"}
        assert not heard(server)


@pytest.mark.parametrize("extends", ["read-only", "workspace-write"])
def test_a_socket_whose_file_is_gone_disturbs_nothing(place, extends, host_snapshot):
    """The kernel goes on listing it: nothing is made in its place, and the run works."""
    path = str(place / "gone.sock")
    with listening(path):
        os.unlink(path)
        before = host_snapshot(place)
        result = stockade.run(["true"], cwd=place, policy=policy(extends=extends))
        assert result.ok, result.reason
        assert host_snapshot(place) == before


def test_a_socket_file_that_nobody_serves_yet_is_covered_too(place):
    """A daemon may come back to it while the program runs."""
    path = str(place / "later.sock")
    first = socket.socket(socket.AF_UNIX)
    first.bind(path)
    first.close()
    open_to_all(place)
    body = 'found["kind"] = stat.S_ISSOCK(os.stat(sys.argv[1]).st_mode)'
    assert outside(body, path) == {"kind": True}
    assert probe(body, path, cwd=place, policy=policy(extends="read-only")) == {"kind": False}


# --- sockets without a path -------------------------------------------------------------------------------


def test_abstract_sockets_of_the_host_can_not_be_reached(place, identity):
    """X11, session buses and container daemons listen on names without a file; they belong to another network."""
    name = f"stockade-test-{os.getpid()}-{os.urandom(4).hex()}"
    with listening(f"\0{name}") as server:
        body = (
            CONNECT
            + """
found["connect"] = tried(connect, "\\0" + sys.argv[1])
found["listed"] = sys.argv[1] in read("/proc/net/unix")
found["net"] = os.readlink("/proc/self/ns/net")
"""
        )
        control = outside(body, name)
        assert (control["connect"], control["listed"]) == ("ok", True)
        assert heard(server)
        found = probe(body, name, cwd=place, policy=policy(identity))
        assert (found["connect"], found["listed"]) == ("ECONNREFUSED", False)
        assert found["net"] != os.readlink("/proc/self/ns/net")
        assert not heard(server)


FAMILIES = """
families = {name: value for name, value in {
    "AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_AX25": 3, "AF_PACKET": 17, "AF_ALG": 38, "AF_VSOCK": 40,
    "AF_XDP": 44, "AF_CAN": 29, "AF_TIPC": 30, "AF_BLUETOOTH": 31, "AF_KCM": 41, "AF_QIPCRTR": 42, "AF_SMC": 43, "AF_KEY": 15,
    "AF_RDS": 21, "AF_NFC": 39}.items()}
for name, family in families.items():
    kind = {"AF_NETLINK": socket.SOCK_RAW, "AF_PACKET": socket.SOCK_RAW, "AF_ALG": socket.SOCK_SEQPACKET,
            "AF_VSOCK": socket.SOCK_STREAM}.get(name, socket.SOCK_DGRAM)
    found[name] = tried(lambda: socket.socket(family, kind).close())
found["raw"] = tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
found["packet by another name"] = tried(lambda: socket.socket(socket.AF_INET, 10, 3).close())
found["netlink audit"] = tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).close())
"""


def test_only_families_that_have_a_namespace_can_be_opened(place, identity):
    """A socket of the hypervisor's family (vsock) would pass every network rule: it and its like are refused."""
    found = probe(FAMILIES, cwd=place, policy=policy(identity))
    allowed = ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK")
    assert {found.pop(name) for name in allowed} == {"ok"}
    assert found.pop("raw") == "EPERM"
    assert set(found.values()) == {"EAFNOSUPPORT"}
    control = outside(FAMILIES)
    assert {control[name] for name in allowed} == {"ok"}


@pytest.mark.root
def test_root_can_open_outside_what_the_filter_refuses_inside(place):
    """The control of the test before: packet sockets, for one, are there on this host."""
    assert outside(FAMILIES)["AF_PACKET"] == "ok"
    assert probe(FAMILIES, cwd=place, policy=policy("kept"))["AF_PACKET"] == "EAFNOSUPPORT"


# --- the box's own sockets --------------------------------------------------------------------------------


def test_sockets_made_inside_work(place, identity):
    """Servers in /tmp, in the workspace, by an abstract name, pairs, passed descriptors: all among the box's own."""
    found = probe(
        CONNECT
        + """
import array, threading
def serve(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        connect(path)
        return server.accept()[0].recv(3) == b"out"
found["served"] = [serve(path) for path in ("/tmp/s.sock", "s.sock", "/run/s.sock", "\\0inside", os.environ["HOME"] + "/s")]
os.unlink("s.sock")
one, two = socket.socketpair()
read_end, write_end = os.pipe()
socket.send_fds(one, [b"x"], [read_end])
_data, (fd, *_), _flags, _address = socket.recv_fds(two, 10, 1)
os.write(write_end, b"through")
found["passed"] = os.read(fd, 10).decode()
""",
        cwd=place,
        policy=policy(identity),
    )
    assert found["served"] == [True] * 5
    assert found["passed"] == "through"


def test_a_manager_of_multiprocessing_works(place):
    """What forks a server and talks to it by a socket in the temporary directory is at home in the box."""
    script = (
        "import multiprocessing as m\n"
        "if __name__ == '__main__':\n"
        "    with m.Manager() as manager:\n"
        "        d = manager.dict(a=1); d['b'] = 2; print(dict(d))\n"
        "    with m.Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
    )
    (place / "managed.py").write_text(script)
    (place / "managed.py").chmod(0o644)
    result = stockade.run([PYTHON, "managed.py"], cwd=place, timeout=60)
    assert result.stdout == b"{'a': 1, 'b': 2}\n[1, 2]\n", result.stderr


LOOPBACK = """
def talk(family, host):
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen(1)
        with socket.create_connection(server.getsockname()[:2], timeout=5) as client:
            client.sendall(b"hello")
            return server.accept()[0].recv(5).decode()
found["talk"] = talk(socket.AF_INET, "127.0.0.1")
found["names"] = sorted({row[4][0] for row in socket.getaddrinfo("localhost", 80)})
found["six"] = tried(talk, socket.AF_INET6, "::1")
found["reach"] = {host: tried(lambda: socket.create_connection((host, int(sys.argv[1])), timeout=5).close())
                  for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")}
found["links"] = sorted(name for _number, name in socket.if_nameindex())
"""


def test_localhost_works_and_is_not_the_hosts(place, identity):
    """A server and its client find each other inside; a port that the host serves on 127.0.0.1 is closed there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert outside(LOOPBACK, port)["reach"]["127.0.0.1"] == "ok"
        while heard(server):
            pass
        found = probe(LOOPBACK, port, cwd=place, policy=policy(identity))
        assert found["talk"] == "hello"
        assert "127.0.0.1" in found["names"]
        assert found["six"] in ("ok", "EADDRNOTAVAIL")
        assert "ok" not in found["reach"].values()
        assert found["links"] == ["lo"]
        assert not heard(server)


def test_another_boxs_localhost_is_not_shared(place):
    """Two runs at once have a network each."""
    body = """
    server = socket.socket()
    found["bind"] = tried(server.bind, ("127.0.0.1", 45678))
    server.listen(1)
    written(f"here-{sys.argv[1]}")
    while len([name for name in os.listdir(".") if name.startswith("here-")]) < 2: pass
    """
    results: dict[str, object] = {}
    threads = [
        threading.Thread(
            target=lambda name=name: results.update({name: probe(body, name, cwd=place, policy=policy())})
        )
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"a": {"bind": "ok"}, "b": {"bind": "ok"}}


# --- our own control sockets ------------------------------------------------------------------------------


def test_a_program_that_empties_the_temporary_directory_does_not_disturb_the_next_run(tmp_path, monkeypatch):
    """Nothing that stockade needs lies where programs may write; only the stand-ins can't be removed."""
    temporary = make_place(tmp_path, "temporary")
    (temporary / "rubbish").mkdir()
    open_to_all(temporary)
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(temporary))
    place = make_place(tmp_path)
    command = ["find", str(temporary), "-mindepth", "1", "-delete"]
    for _again in range(2):
        result = stockade.run(command, cwd=place, write=[temporary])
        assert result.outcome == "exited"
        assert os.listdir(temporary) == []
        assert stockade.run(["true"], cwd=place).ok


def test_the_program_has_no_descriptor_that_leads_to_the_supervisor(place):
    """It can't send anything to who runs it but by its two outputs."""
    found = probe(
        """
        ends = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if os.path.lexists(path): ends[f"{pid}/{fd}"] = os.readlink(path)
        found["ends"] = ends
        """,
        cwd=place,
        policy=policy(),
    )
    assert not [path for path in found["ends"].values() if path.startswith("socket:")]
    own = {fd: path for fd, path in found["ends"].items() if not fd.startswith("1/")}
    assert {fd.split("/")[1] for fd, path in own.items() if path.startswith("pipe:")} <= {"0", "1", "2"}


SYSTEM_SOCKET = """
import os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import boxes
os.makedirs("/srv/daemon/deep")
server = socket.socket(socket.AF_UNIX)
server.bind("/srv/daemon/deep/s.sock")
os.chmod("/srv/daemon/deep/s.sock", 0o777)
server.listen()
server.setblocking(False)
body = sys.argv[3] + '''
found["connect"] = tried(connect, "/srv/daemon/deep/s.sock"); found["there"] = os.path.lexists("/srv/daemon/deep/s.sock")
'''
def came():
    try: server.accept()[0].close()
    except BlockingIOError: return False
    return True
print(boxes.outside(body), came())
for form in ("dropped", "kept"):
    print(boxes.probe(body, cwd=sys.argv[2], policy=boxes.policy(form)), came())
"""


@pytest.mark.root
def test_sockets_in_a_read_only_system_directory_are_covered(place):
    """A daemon's socket below /opt or /srv is in the view of the host: it is covered like those of the workspace.

    In a mount namespace of its own: nothing is made on the host, and nobody else's run sees it come and go.
    """
    script = 'mount -t tmpfs none /srv && exec "$@"'
    inner = [sys.executable, "-c", SYSTEM_SOCKET, str(pathlib.Path(__file__).parent), str(place), CONNECT]
    line = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", *inner]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    control, *found = done.stdout.splitlines()
    assert control == "{'connect': 'ok', 'there': True} True", done.stderr
    assert len(found) == 2
    for row in found:
        assert row.startswith(
            ("{'connect': 'ECONNREFUSED', 'there': True}", "{'connect': 'EACCES', 'there': True}")
        ), row
        assert row.endswith("False")


def test_a_socket_that_goes_away_while_we_look_breaks_nothing(place, monkeypatch):
    """Programs of the host come and go: what was to be covered and has gone is no reason to run nothing."""
    path = os.path.join(place, "gone.sock")
    real, planned = confinement.make_plan, []

    def plan_and_remove(*given):
        plan = real(*given)
        planned.append(any(mount.dest == path for mount in plan.mounts))
        if os.path.lexists(path):
            os.unlink(path)
        return plan

    monkeypatch.setattr(confinement, "make_plan", plan_and_remove)
    with listening(os.fsencode(path)):
        open_to_all(place)
        result = stockade.run(["sh", "-c", "echo ran"], cwd=place)
    assert (result.outcome, result.stdout) == ("exited", b"ran\n")
    assert planned == [True, False]
