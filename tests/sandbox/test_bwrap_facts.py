"""Facts about bubblewrap that the design rests on, each shown with the plain binary and nothing of ours.

Where one of them no longer holds, the code that exists because of it can go, or a guarantee must be looked at
anew. Everything here runs in temporary directories and in namespaces of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest
from boxes import PYTHON, processes_with, wait_until

pytestmark = pytest.mark.kernel

VIEW = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin", "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/tmp"]  # fmt: skip
ALL = ["--unshare-all", "--die-with-parent"]
PATH = {"PATH": "/usr/bin:/bin:/usr/sbin"}
MAP_ROOT = ["unshare", "--user", "--map-root-user", "--mount"]


def call(
    bwrap: str, *words: object, prefix: tuple[str, ...] | list[str] = (), **options
) -> subprocess.CompletedProcess[str]:
    """One bubblewrap to its end, its output captured as text."""
    given = {
        "env": PATH,
        "capture_output": True,
        "text": True,
        "timeout": 30,
        "stdin": subprocess.DEVNULL,
        **options,
    }
    return subprocess.run([*prefix, bwrap, *map(str, words)], **given)


def shell(bwrap: str, script: str, *options: object, **given) -> subprocess.CompletedProcess[str]:
    """A script in a box with every namespace and the plain view."""
    return call(bwrap, *ALL, *VIEW, *options, "--", "/bin/sh", "-c", script, **given)


def version_of(bwrap: str) -> tuple[int, ...]:
    text = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


# --- the status protocol ----------------------------------------------------------------------------------


def records(bwrap: str, *words: object) -> tuple[list[dict[str, object]], subprocess.CompletedProcess[str]]:
    """What comes by --json-status-fd, and how bubblewrap ended."""
    read, write = os.pipe()
    with open(read) as file:
        try:
            done = call(bwrap, *ALL, *VIEW, "--json-status-fd", write, *words, pass_fds=(write,))
        finally:
            os.close(write)
        return [json.loads(line) for line in file.read().splitlines()], done


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "/bin/sh", "-c", "exit 7"], 7),
        (["--", "/bin/sh", "-c", "echo 'bwrap: fake' >&2; exit 1"], 1),
        (["--", "/bin/sh", "-c", "kill -9 $$"], 137),
        (["--", "/bin/sh", "-c", "exit 137"], 137),
        (["--", "/nosuchprogram"], None),
        (["--", "/usr"], None),
        (["--ro-bind", "/no/such/source", "/x", "--", "/bin/true"], None),
        (["--chdir", "/no/such/place", "--", "/bin/true"], None),
        (["--seccomp", "99", "--", "/bin/true"], None),
        (["--bogus", "--", "/bin/true"], None),
    ],
)
def test_an_exit_code_is_recorded_only_if_the_program_was_executed(bwrap, words, code):
    """Every failure to start exits with 1 and without the record; a program that exits with 1 has it."""
    found, done = records(bwrap, *words)
    codes = [record["exit-code"] for record in found if "exit-code" in record]
    assert codes == ([] if code is None else [code])
    assert done.returncode == (1 if code is None else code)
    if code is not None:
        assert found[0]["child-pid"] > 1


def test_the_status_descriptor_does_not_reach_the_program(bwrap):
    """So nobody inside can forge a record."""
    found, done = records(bwrap, "--", "/bin/sh", "-c", "ls /proc/self/fd | tr '\\n' ' '")
    assert set(done.stdout.split()) <= {"0", "1", "2", "3"}  # 3 is the listing itself
    assert [record["exit-code"] for record in found if "exit-code" in record] == [0]


def test_a_signal_and_its_exit_code_look_the_same(bwrap):
    """From outside, killed by 9 and ``exit 137`` can't be told apart."""
    outcomes = [
        shell(bwrap, script).returncode for script in ("kill -9 $$", "exit 137", "kill -TERM $$", "exit 143")
    ]
    assert outcomes == [137, 137, 143, 143]


@contextlib.contextmanager
def started(bwrap: str, script: str):
    """A box that goes on: bubblewrap, and the pid of the box's first process. The status pipe stays open till the end."""
    read, write = os.pipe()
    command = [bwrap, *ALL, *VIEW, "--json-status-fd", str(write), "--", "/bin/sh", "-c", script]
    process = subprocess.Popen(
        command, pass_fds=(write,), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=PATH
    )
    os.close(write)
    with open(read) as file, process:
        try:
            yield process, json.loads(file.readline())["child-pid"]
        finally:
            process.kill()


def test_sigterm_to_bubblewrap_gives_no_chance_to_clean_up_and_its_init_ignores_it(bwrap):
    """A polite stop has to go to the program itself; SIGKILL to the first process takes everything."""
    script = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with started(bwrap, script) as (process, init):
        assert process.stdout.readline() == b"ready\n"
        os.kill(init, signal.SIGTERM)
        assert children_of(init)
        assert process.poll() is None
        process.terminate()
        assert process.communicate(timeout=30)[0] == b""
    with started(bwrap, script) as (process, init):
        assert process.stdout.readline() == b"ready\n"
        os.kill(children_of(init)[0], signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == b"cleaned\n"
        assert process.returncode == 3
    with started(bwrap, script) as (process, init):
        assert process.stdout.readline() == b"ready\n"
        os.kill(init, signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == 137


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


# --- life and death ---------------------------------------------------------------------------------------


def test_die_with_parent_means_the_thread_that_started_it(bwrap):
    """When that thread ends, the box dies, though the process lives on."""
    started: list[subprocess.Popen[bytes]] = []
    command = [bwrap, *ALL, *VIEW, "--", "/bin/sh", "-c", "echo ready; sleep 60"]

    def spawn() -> None:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=PATH))
        started[0].stdout.readline()

    thread = threading.Thread(target=spawn)
    thread.start()
    thread.join()
    with started[0] as process:
        assert process.wait(timeout=30) == -signal.SIGKILL


def test_an_ignored_sigchld_hangs_it_below_0_11_1(bwrap):
    """The program has ended, and bubblewrap waits for ever."""
    script = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, bwrap, *ALL, *VIEW, "--", "/bin/true"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=PATH)
    try:
        code = process.wait(timeout=1.5)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.kill()
        process.wait()
    assert (code is None) == (version_of(bwrap) < (0, 11, 1))
    assert call(bwrap, *ALL, *VIEW, "--", "/bin/true").returncode == 0


def test_without_a_pid_namespace_processes_survive(bwrap):
    """Only the end of a namespace's first process takes all the others with it."""
    token = f"3{os.getpid()}.{int.from_bytes(os.urandom(4))}"  # what is killed below must be ours
    script = f"setsid sleep {token} & echo ready; sleep {token}"
    for options, survives in ((["--unshare-net"], True), (ALL, False)):
        process = subprocess.Popen(
            [bwrap, *options, "--die-with-parent", *VIEW, "--", "/bin/sh", "-c", script],
            stdout=subprocess.PIPE,
            env=PATH,
        )
        try:
            assert process.stdout.readline() == b"ready\n"
            wait_until(lambda: len(list(filter(is_sleep, processes_with(token)))) == 2, "both sleep")
            process.kill()
            process.stdout.close()
            process.wait()
            if survives:
                assert [pid for pid in processes_with(token) if is_sleep(pid)]
            else:
                wait_until(lambda: not processes_with(token), "none is left")
        finally:
            for pid in processes_with(token):
                os.kill(pid, signal.SIGKILL)


def is_sleep(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


# --- what it shows ----------------------------------------------------------------------------------------


def test_clearenv_leaves_the_callers_environment_in_its_first_process(bwrap):
    """bubblewrap itself has to be started with an empty one."""
    script = "cat /proc/1/environ | tr '\\0' '\\n'; echo \"own: $SECRET\""
    done = shell(bwrap, script, "--clearenv", env={**PATH, "SECRET": "s3cret"})
    assert "SECRET=s3cret" in done.stdout
    assert "own: \n" in done.stdout
    assert "SECRET" not in shell(bwrap, script, "--clearenv").stdout.replace("own", "")


def test_options_are_in_ps_unless_they_come_by_a_descriptor(bwrap, tmp_path):
    """--setenv and host paths stand in /proc/1/cmdline; with --args they do not."""
    script = "tr '\\0' ' ' < /proc/1/cmdline; echo; echo \"value: $KEY\""
    options = ["--setenv", "KEY", "s3cret", "--ro-bind", str(tmp_path), "/mnt"]
    done = shell(bwrap, script, *options)
    assert "s3cret" in done.stdout.splitlines()[0]
    assert str(tmp_path) in done.stdout
    read, write = os.pipe()
    os.write(write, "".join(f"{word}\0" for word in options).encode())
    os.close(write)
    try:
        done = shell(bwrap, script, "--args", read, pass_fds=(read,))
    finally:
        os.close(read)
    assert "value: s3cret" in done.stdout
    assert "s3cret" not in done.stdout.splitlines()[0]
    assert str(tmp_path) not in done.stdout


def test_descriptors_of_the_caller_reach_the_program(bwrap, tmp_path):
    """A directory or a connected socket that was left open leads out of every box."""
    (tmp_path / "file").write_text("outside")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _address = server.accept()
        peer.sendall(b"through")
        fd = os.open(tmp_path, os.O_RDONLY)
        code = (
            f"import os, socket; print(open(os.open('file', os.O_RDONLY, dir_fd={fd})).read()); "
            f"print(socket.socket(fileno={client.fileno()}).recv(9).decode())"
        )
        done = call(bwrap, *ALL, *VIEW, "--", PYTHON, "-I", "-S", "-c", code, pass_fds=(fd, client.fileno()))
        os.close(fd)
        peer.close()
    assert done.stdout == "outside\nthrough\n"


def test_a_read_only_bind_does_not_stop_a_connection(bwrap, tmp_path):
    """A socket's file can be connected to through it, in whatever network namespace."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9).decode())"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        thread = threading.Thread(target=lambda: answer(server))
        thread.start()
        where = ["--ro-bind", str(tmp_path), str(tmp_path)]
        done = call(bwrap, *ALL, *VIEW, *where, "--", PYTHON, "-I", "-S", "-c", code, tmp_path / "s")
        thread.join(timeout=30)
    assert done.stdout == "hello\n"


def answer(server: socket.socket) -> None:
    server.settimeout(20)
    peer, _address = server.accept()
    peer.sendall(b"hello")
    peer.close()


def test_abstract_sockets_go_with_the_network_namespace(bwrap):
    """Sharing the host's network shares every one of them."""
    name = f"stockade-fact-{os.getpid()}"
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); print(s.connect_ex('\\0' + sys.argv[1]))"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        run = [*VIEW, "--", PYTHON, "-I", "-S", "-c", code, name]
        assert call(bwrap, *ALL, *run).stdout == "111\n"
        assert call(bwrap, *ALL, "--share-net", *run).stdout == "0\n"


def test_the_session_keyring_is_not_namespaced(bwrap):
    """What the caller's session holds is read inside by everybody who knows how to ask."""
    pytest.importorskip("ctypes")
    code = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219), "riscv64": (217, 219)}[os.uname().machine]
if sys.argv[1] == "hold":
    assert libc.syscall(keyctl, 1, None) > 0
    assert libc.syscall(add_key, b"user", b"stockade-fact", b"s3cret", 6, -3) > 0
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
key = libc.syscall(keyctl, 10, -3, b"user", b"stockade-fact", 0)
buffer = ctypes.create_string_buffer(20)
size = libc.syscall(keyctl, 11, key, buffer, 20)
print(buffer.raw[:max(size, 0)].decode() or "nothing")
"""
    inner = [bwrap, *ALL, *VIEW, "--", PYTHON, "-I", "-c", code, "read"]
    done = subprocess.run(
        [PYTHON, "-I", "-c", code, "hold", *inner], capture_output=True, text=True, env=PATH, timeout=30
    )
    assert done.stdout == "s3cret\n", done.stderr


def test_a_directory_that_is_not_shown_becomes_another_one(bwrap, tmp_path):
    """Started in one, it goes to HOME or to / without a word."""
    assert call(bwrap, *ALL, *VIEW, "--", "/bin/pwd", cwd=tmp_path, env={**PATH, "HOME": "/usr"}).stdout == "/usr\n"
    assert call(bwrap, *ALL, *VIEW, "--", "/bin/pwd", cwd=tmp_path).stdout == "/\n"


# --- mounts -----------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def bound(work: pathlib.Path) -> list[str]:
    return ["--bind", str(work), str(work)]


def test_mount_points_are_made_through_symlinks_below_0_12(bwrap, work, tmp_path):
    """A link in a writable bind makes bubblewrap create directories and files elsewhere on the host (CVE-2026-87766)."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (work / "cfg").symlink_to(f"/oldroot{victim}")
    done = shell(
        bwrap, "true", *bound(work), "--dir", f"{work}/cfg/planted", "--ro-bind", "/dev/null", f"{work}/cfg/file"
    )
    planted = sorted(os.listdir(victim))
    if version_of(bwrap) >= (0, 12):
        assert planted == []
    else:  # a distribution may have mended an older one
        assert planted == ["file", "planted"] or done.returncode != 0


def test_a_cover_on_a_missing_name_leaves_a_file_on_the_host(bwrap, work):
    """Mount points that are not there are made, and stay."""
    shell(
        bwrap,
        "true",
        *bound(work),
        "--ro-bind",
        "/dev/null",
        f"{work}/.rc",
        "--ro-bind",
        "/dev/null",
        f"{work}/sub/s.json",
    )
    assert sorted(str(path.relative_to(work)) for path in work.rglob("*")) == [".rc", "sub", "sub/s.json"]


def test_a_cover_on_a_link_fails_or_makes_its_target(bwrap, work):
    """An absolute link ends every start; a dangling relative one brings its target into being."""
    (work / "absolute").symlink_to(work / "real")
    (work / "real").write_text("x")
    done = shell(bwrap, "true", *bound(work), "--ro-bind", "/dev/null", f"{work}/absolute")
    assert done.returncode == 1
    (work / "dangling").symlink_to("ghost")
    done = shell(bwrap, "true", *bound(work), "--ro-bind", "/dev/null", f"{work}/dangling")
    assert (work / "ghost").exists() or done.returncode == 1


def test_a_cover_for_a_file_does_not_fit_a_directory(bwrap, work):
    """The kind has to be looked up first."""
    (work / "folder").mkdir()
    assert shell(bwrap, "true", *bound(work), "--ro-bind", "/dev/null", f"{work}/folder").returncode == 1


def test_one_descriptor_serves_one_file(bwrap):
    """--ro-bind-data reads it to the end and closes it: a second use fails."""
    read, write = os.pipe()
    os.write(write, b"x")
    os.close(write)
    try:
        one = ["--ro-bind-data", read, "/a"]
        done = shell(bwrap, "true", *one, "--ro-bind-data", read, "/b", pass_fds=(read,))
    finally:
        os.close(read)
    assert done.returncode == 1


def test_a_later_parent_shadows_an_earlier_child(bwrap, work):
    """Mounts have to come parents first."""
    (work / "a").mkdir()
    inner, outer = ["--bind", f"{work}/a", f"{work}/a"], ["--ro-bind", str(work), str(work)]
    assert shell(bwrap, f"touch {work}/a/x", *inner, *outer).returncode != 0
    assert shell(bwrap, f"touch {work}/a/x", *outer, *inner).returncode == 0


def test_a_protected_file_is_dodged_by_moving_what_is_above_it(bwrap, work):
    """Every directory up to the workspace has to be a mount of its own: then each move is refused."""
    guarded = work / "a/.claude/s.json"
    guarded.parent.mkdir(parents=True)
    guarded.write_text("good")
    dodge = (
        f"cd {work}; for up in a/.claude a; do mv $up $up.old 2>/dev/null && mkdir -p a/.claude && "
        "echo evil > a/.claude/s.json && break; done; true"
    )
    folders = ["--bind", f"{work}/a", f"{work}/a", "--ro-bind", f"{work}/a/.claude", f"{work}/a/.claude"]
    shell(bwrap, dodge, *bound(work), *folders)
    assert guarded.read_text() == "good"
    shell(bwrap, dodge, *bound(work), *folders[3:])
    assert guarded.read_text() == "evil\n", "only the name's own directory was a mount"
    guarded.write_text("good")
    shutil.rmtree(work / "a.old")
    shell(bwrap, dodge, *bound(work), "--ro-bind", guarded, guarded)
    assert guarded.read_text() == "evil\n", "only the file was a mount"


def test_a_directory_hidden_by_a_tmpfs_can_be_written_until_it_is_remounted(bwrap, work):
    """A forbidden write would seem to work, and be gone."""
    (work / "secret").mkdir()
    script = f"echo x > {work}/secret/n && echo wrote"
    hidden = ["--tmpfs", f"{work}/secret"]
    assert shell(bwrap, script, *bound(work), *hidden).stdout == "wrote\n"
    done = shell(bwrap, script, *bound(work), *hidden, "--remount-ro", f"{work}/secret")
    assert done.stdout == ""
    assert "Read-only file system" in done.stderr
    assert os.listdir(work / "secret") == []


def test_overlays_came_with_0_11(bwrap, work):
    """And work without privileges where they are: what is written stays inside."""
    listed = "--tmp-overlay" in call(bwrap, "--help").stdout
    assert listed == (version_of(bwrap) >= (0, 11))
    if listed:
        (work / "file").write_text("host")
        script = f"echo inside > {work}/file; cat {work}/file"
        done = shell(bwrap, script, "--overlay-src", work, "--tmp-overlay", work)
        assert done.stdout == "inside\n", done.stderr
        assert (work / "file").read_text() == "host"


@pytest.mark.parametrize("way", ["inline", "args"])
def test_nine_thousand_arguments_are_the_most(bwrap, way):
    """However they come."""
    words = [word for number in range(4600) for word in ("--dir", f"/tmp/{number}")]
    if way == "inline":
        done = shell(bwrap, "true", *words)
    else:
        with open(os.memfd_create("args"), "w+b") as file:
            file.write("".join(f"{word}\0" for word in words).encode())
            file.seek(0)
            done = shell(bwrap, "true", "--args", file.fileno(), pass_fds=(file.fileno(),))
    assert done.returncode == 1
    assert "9000" in done.stderr


# --- namespaces and root ----------------------------------------------------------------------------------


def test_more_user_namespaces_unless_told_otherwise(bwrap):
    """--disable-userns needs --unshare-user by name."""
    inner = ["--", "/usr/bin/unshare", "--user", "--map-root-user", "/bin/true"]
    assert call(bwrap, *ALL, *VIEW, *inner).returncode == 0
    assert call(bwrap, *ALL, "--unshare-user", "--disable-userns", *VIEW, *inner).returncode != 0
    assert call(bwrap, "--unshare-user", "--disable-userns", *VIEW, "--", "/bin/true").returncode == 0
    alone = call(bwrap, *ALL, "--disable-userns", *VIEW, "--", "/bin/true")
    assert alone.returncode == 1
    assert "requires --unshare-user" in alone.stderr


def test_unshare_all_goes_on_without_a_user_namespace(bwrap):
    """For uid 0 it only tries; asked for by name, its absence ends the start."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; readlink /proc/self/ns/user; exec "$@"'
    prefix = [*MAP_ROOT, "/bin/sh", "-c", script, "sh"]
    inner = [*VIEW, "--", "/usr/bin/readlink", "/proc/self/ns/user"]
    silent = call(bwrap, *ALL, *inner, prefix=prefix)
    outer, own = silent.stdout.split()
    assert (silent.returncode, outer) == (0, own)
    assert call(bwrap, *ALL, "--unshare-user", *inner, prefix=prefix).returncode == 1


def test_as_uid_0_it_leaves_every_capability(bwrap):
    """A read-only bind can be made writable with them; without them it can't. Here uid 0 of a namespace of its own."""
    script = (
        "grep CapEff /proc/self/status | cut -f2; mount -o remount,rw,bind /usr && echo writable; "
        "unshare --mount true && echo mounts"
    )
    done = shell(bwrap, script, prefix=MAP_ROOT)
    assert done.stdout.splitlines()[0].strip("0")
    assert "mounts" in done.stdout
    done = shell(bwrap, script, "--cap-drop", "ALL", prefix=MAP_ROOT)
    assert done.stdout == "0" * 16 + "\n"


def test_ambient_capabilities_of_an_ordinary_user_stop_it(bwrap):
    """Even the help text is refused."""
    prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps"]
    for words in ([*ALL, *VIEW, "--", "/bin/true"], ["--help"]):
        done = call(bwrap, *words, prefix=prefix)
        assert done.returncode == 1
        assert "Unexpected capabilities" in done.stderr


@pytest.mark.root
def test_real_root_without_capabilities_still_owns_the_hosts_files(bwrap):
    """It reads password hashes and could write the kernel's settings, which are only opened here; not as another uid."""
    script = (
        "head -c 1 /etc/shadow >/dev/null && echo shadow; : 3>>/proc/sys/kernel/core_pattern && echo settings; true"
    )
    options = ["--unshare-user", "--cap-drop", "ALL", "--ro-bind", "/etc", "/etc"]
    assert shell(bwrap, script, *options).stdout == "shadow\nsettings\n"
    assert shell(bwrap, script, *options, "--uid", "65534").stdout == "shadow\nsettings\n"
    shut = shell(bwrap, script, *options, "--remount-ro", "/proc")
    assert shut.stdout == "shadow\n"
    drop = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]
    if all(os.stat(folder).st_mode & 0o001 for folder in pathlib.Path(bwrap).parents):
        assert shell(bwrap, script, *options, prefix=drop).stdout == ""


@pytest.mark.root
def test_real_root_without_a_pid_namespace_reaches_the_hosts_processes(bwrap):
    """They can be signalled by their numbers; in a namespace of its own they have none."""
    script = f"kill -0 {os.getpid()} && echo reached; true"
    assert (
        call(bwrap, "--unshare-net", "--cap-drop", "ALL", *VIEW, "--", "/bin/sh", "-c", script).stdout
        == "reached\n"
    )
    assert shell(bwrap, script, "--cap-drop", "ALL").stdout == ""


RULES = 'nft add table inet t; nft add chain inet t c "{ type filter hook output priority 0 ; policy drop ; }"'


def test_rules_of_a_joined_network_can_be_flushed_without_a_user_namespace_on_top(bwrap):
    """The program has the network's owner in its own namespace then; in a fresh one it has no power over it."""
    nft = shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert nft is not None, "nftables is one of the tools that scripts/test installs"
    program = "nft list ruleset | grep -c policy; nft flush ruleset && echo flushed; true"
    for fresh, expected in ((False, "1\nflushed\n"), (True, "")):
        options = [*(["--unshare-user", "--cap-drop", "ALL"] if fresh else []), "--unshare-pid", *VIEW]
        script = f'{RULES}; "$@"; nft list ruleset | grep -c policy'
        prefix = ["unshare", "--user", "--map-root-user", "--net", "/bin/sh", "-c", script, "sh"]
        done = call(bwrap, *options, "--", "/bin/sh", "-c", program, prefix=prefix)
        inside, left = done.stdout.rstrip("\n").rpartition("\n")[::2]
        assert inside.strip("0\n") == expected.strip("\n")
        assert left == ("1" if fresh else "0")
