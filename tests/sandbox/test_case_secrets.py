"""What a confined program learns of its caller: environment, arguments, descriptors, keys, HOME, root's own files."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import socket
import stat
import subprocess
import sys

import pytest
from boxes import (
    PRELUDE,
    PYTHON,
    cli,
    identity,
    make_place,
    open_to_all,
    outside,
    own_state,
    place,
    policy,
    probe,
    probe_command,
    wait_until,
)

import stockade

__all__ = ["identity", "own_state", "place"]
pytestmark = pytest.mark.kernel

SECRET = "s3cret-0f-the-caller"


# --- environment and arguments ----------------------------------------------------------------------------

LOOK_AROUND = """
found["seen"] = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "comm", "stat", "status", "maps", "mountinfo"):
        try:
            text = read(f"/proc/{pid}/{name}")
        except OSError:
            continue
        found["seen"] += [f"{pid}/{name}"] if "s3cret" + "-0f-the-caller" in text else []
found["own"] = dict(os.environ)
found["first"] = [read("/proc/1/environ"), read("/proc/1/cmdline")]
"""


def test_nothing_of_the_callers_environment_can_be_read(place, identity, monkeypatch):
    """Not in the program's own variables nor in those of any process it sees; what was passed arrives."""
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setenv("LC_PAPER", "C")
    assert outside('found["own"] = dict(os.environ)')["own"]["API_TOKEN"] == SECRET
    found = probe(LOOK_AROUND, cwd=place, policy=policy(identity), env={"GIVEN": "yes"})
    assert found["seen"] == []
    assert found["first"][0] == ""
    assert found["own"]["GIVEN"] == "yes"
    assert found["own"]["LC_PAPER"] == "C"
    allowed = {"HOME", "USER", "LOGNAME", "PATH", "SHELL", "PWD", "GIVEN", "LANG", "TERM", "TZ"}
    assert {name for name in found["own"] if not name.startswith("LC_")} <= allowed


def test_values_and_host_paths_are_in_nobodys_arguments(place, tmp_path, identity):
    """Options travel by a descriptor: ``ps`` shows no value, neither inside nor on the host."""
    extra = make_place(tmp_path, "extra-granted")
    given = policy(identity, environment={"set": {"BY_POLICY": SECRET}}, filesystem={"write": [str(extra)]})
    body = LOOK_AROUND + 'written("running"); \nwhile not os.path.exists("stop"): pass\n'
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, stockade; from stockade.policies.model import parse_policy; "
            "r = stockade.run(sys.argv[3:], cwd=sys.argv[1], policy=parse_policy(sys.argv[2].replace('TOKEN', "
            "sys.stdin.read()), 'x')); sys.stdout.buffer.write(r.stdout)",
            str(place),
            f'extends = "workspace-write"\n[process]\nuser = "{given.process.user}"\n'
            f'[environment]\nset = {{BY_POLICY = "TOKEN"}}\n[filesystem]\nwrite = ["{extra}"]\n',
            *probe_command(body),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(SECRET.encode())
    process.stdin.close()
    process.stdin = None
    try:
        wait_until((place / "running").exists, "the program runs")
        shown = [
            pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in os.listdir("/proc")
            if is_bwrap_of(pid, process)
        ]
        assert shown
        assert not [line for line in shown if SECRET.encode() in line or b"extra-granted" in line]
    finally:
        (place / "stop").touch()
        found = json.loads(process.communicate(timeout=60)[0])
    assert found["own"]["BY_POLICY"] == SECRET
    # Its own environment shows it, and so does that of its first thread; nobody's arguments do.
    assert not [name for name in found["seen"] if not name.endswith("/environ")]
    assert "extra-granted" not in found["first"][1]


def is_bwrap_of(pid: str, top: subprocess.Popen[bytes]) -> bool:
    """Whether a process is a bubblewrap below ``top``."""
    import psutil

    if not pid.isdigit():
        return False
    try:
        process = psutil.Process(int(pid))
        return process.name() == "bwrap" and top.pid in {parent.pid for parent in process.parents()}
    except psutil.Error:
        return False


def test_a_variable_passed_on_the_command_line_is_not_in_ps(place, monkeypatch):
    """``--env NAME`` takes the value from the environment: it stands in no argument anywhere."""
    monkeypatch.setenv("API_TOKEN", SECRET)
    done = cli("run", "--env", "API_TOKEN", "--", *probe_command(LOOK_AROUND), cwd=place)
    found = json.loads(done.stdout)
    assert found["own"]["API_TOKEN"] == SECRET
    assert not [name for name in found["seen"] if not name.endswith("/environ")]


# --- descriptors ------------------------------------------------------------------------------------------

OPEN_THINGS = """
import os, resource, socket, subprocess, sys
folder, form, place, *command = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, max(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
pair = socket.socketpair()
fds = [os.open(folder, os.O_RDONLY), os.open(folder, os.O_PATH), os.open(folder + "/secret", os.O_RDWR), client.fileno(),
       pair[0].fileno(), os.memfd_create("m", 0), os.pipe()[1], os.open("/", os.O_PATH),
       os.open("/proc/self/ns/net", os.O_RDONLY)]
for number, fd in zip((3, 4, 5, 9, 10, 11, 12, 13, 20, 21, 63, 255, 399, 400, 401, 700, 1000), fds * 2):
    if number not in fds: os.dup2(fd, number, inheritable=True)
for fd in fds: os.set_inheritable(fd, True)
if form == "plain":
    sys.exit(subprocess.run(command, close_fds=False).returncode)
if form == "library":
    import stockade
    result = stockade.run(command, cwd=place, policy="workspace-write")
    sys.stdout.buffer.write(result.stdout)
    sys.exit(result.returncode)
line = [sys.executable, "-m", "stockade", "run", "--cwd", place, "--", *command]
sys.exit(subprocess.run(line, close_fds=False).returncode)
"""
LIST_FDS = """
fds = {fd: f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
found["fds"] = {fd: os.readlink(path) for fd, path in fds.items() if os.path.lexists(path)}
found["secret"] = [fd for fd in found["fds"] if tried(os.stat, "secret", dir_fd=int(fd)) == "ok"]
"""


@pytest.mark.parametrize("form", ["library", "command line"])
def test_no_descriptor_of_the_caller_reaches_the_program(place, tmp_path, form):
    """Directories, files, connected sockets, namespaces, under low and high numbers: only the three streams get in."""
    folder = make_place(tmp_path, "held")
    (folder / "secret").write_text(SECRET)
    open_to_all(folder)

    def shown(form: str) -> dict[str, object]:
        command = [sys.executable, "-c", OPEN_THINGS, folder, form, place, *probe_command(LIST_FDS)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60, check=True)
        return json.loads(done.stdout)

    control = shown("plain")
    assert len(control["fds"]) > 15
    assert control["secret"]
    found = shown(form)
    assert {int(fd) for fd in found["fds"]} <= {0, 1, 2}
    assert found["secret"] == []
    assert (folder / "secret").read_text() == SECRET


def test_a_socket_as_standard_input_is_replaced_by_a_pipe(place):
    """Its bytes arrive; the socket, which would carry data out, does not."""
    body = """
    found["kind"] = [stat.S_ISFIFO(os.fstat(fd).st_mode) for fd in (0, 1, 2)]
    found["data"] = sys.stdin.read()
    found["send"] = tried(socket.socket, fileno=0)
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hello")
        ours.shutdown(socket.SHUT_WR)
        found = probe(body, cwd=place, stdin=theirs.fileno())
        assert found["kind"] == [True, True, True]
        assert found["data"] == "hello"
        assert found["send"] == "ENOTSOCK"
        theirs.close()
        assert ours.recv(10) == b""


@pytest.mark.parametrize("stream", [1, 2])
def test_a_socket_as_output_is_replaced_by_a_pipe(place, stream):
    """What the program writes arrives at the socket; the program never holds it."""
    script = f"test -p /proc/self/fd/{stream} && echo piped >&{stream}"
    ours, theirs = socket.socketpair()
    with ours:
        streams = {1: "stdout", 2: "stderr"}
        others = {name: subprocess.DEVNULL for number, name in streams.items() if number != stream}
        with theirs:
            done = cli(
                "run",
                "--",
                "/bin/sh",
                "-c",
                script,
                cwd=place,
                capture_output=False,
                **{streams[stream]: theirs},
                **others,
            )
        assert done.returncode == 0
        assert ours.recv(100) == b"piped\n"


def test_a_directory_as_standard_input_is_refused(place, tmp_path):
    """Through it the program could walk out of the box."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(stockade.RequestError, match="directory"):
            stockade.run(["true"], cwd=place, stdin=fd)
    finally:
        os.close(fd)
    with open(tmp_path / "f", "w+") as file:
        assert stockade.run(["true"], cwd=place, stdin=file).ok


def test_a_file_as_standard_input_can_not_be_changed(place, tmp_path):
    """A descriptor for reading could be opened anew for writing through /proc/self/fd."""
    (tmp_path / "input").write_text("one\ntwo\n")
    (tmp_path / "input").chmod(0o666)
    script = "read line; echo $line; echo evil > /proc/self/fd/0; chmod 777 /proc/self/fd/0; : > /proc/self/fd/0"
    with open(tmp_path / "input") as control:
        subprocess.run(["/bin/sh", "-c", "echo evil > /proc/self/fd/0"], stdin=control, check=True)
    assert (tmp_path / "input").read_text().startswith("evil")
    (tmp_path / "input").write_text("one\ntwo\n")
    with open(tmp_path / "input") as file:
        result = stockade.run(script, cwd=place, stdin=file)
    assert result.stdout == b"one\n"
    with open(tmp_path / "input") as file:
        cli("run", "--", "/bin/sh", "-c", script, cwd=place, stdin=file)
    assert (tmp_path / "input").read_text() == "one\ntwo\n"
    assert stat.S_IMODE((tmp_path / "input").stat().st_mode) == 0o666


@pytest.mark.parametrize("stream", [1, 2])
def test_a_file_as_output_can_be_added_to_and_nothing_else(place, tmp_path, stream):
    """What stood in a log before can be neither read nor taken back through the descriptor that adds to it."""
    script = (
        f"echo one >&{stream}; head -c 3 /proc/self/fd/{stream} >&{3 - stream}; echo evil > /proc/self/fd/{stream}; "
        f"chmod 777 /proc/self/fd/{stream}; echo two >&{stream}"
    )
    log, other = tmp_path / "log", tmp_path / "other"
    for path in (log, other):
        path.write_text("before\n")
        path.chmod(0o666)
    with open(log, "ab") as file, open(other, "ab") as beside:
        streams = {"stdout": file, "stderr": beside} if stream == 1 else {"stdout": beside, "stderr": file}
        subprocess.run(["timeout", "5", "/bin/sh", "-c", script], **streams, stdin=subprocess.DEVNULL)
    assert "one" not in log.read_text(), "outside it can be taken back"
    log.write_text("before\n")
    log.chmod(0o666)
    with open(log, "ab") as file, open(other, "ab") as beside:
        streams = {"stdout": file, "stderr": beside} if stream == 1 else {"stdout": beside, "stderr": file}
        script = script.replace("head -c 3", "timeout 0.2 head -c 3")
        cli("run", "--", "/bin/sh", "-c", script, cwd=place, capture_output=False, **streams)
    assert log.read_text().startswith("before\none\n")
    assert log.read_text().endswith("two\n")
    assert stat.S_IMODE(log.stat().st_mode) == 0o666


def test_both_outputs_to_one_file_keep_their_order(place, tmp_path):
    """As with a descriptor of their own."""
    script = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done"
    with open(tmp_path / "log", "wb") as file:
        cli("run", "--", "/bin/sh", "-c", script, cwd=place, capture_output=False, stdout=file, stderr=file)
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(200)]


# --- kernel keys ------------------------------------------------------------------------------------------

KEYS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219), "riscv64": (217, 219)}[os.uname().machine]
def call(number, *words):
    result = libc.syscall(number, *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def content(key):
    buffer = ctypes.create_string_buffer(100)
    size = call(keyctl, 11, key, buffer, 100)
    return buffer.raw[:size].decode()
def search():
    return call(keyctl, 10, -3, b"user", b"stockade-test", 0)
"""
HOLD_KEY = (
    PRELUDE
    + KEYS
    + """
call(keyctl, 1, None)
key = call(add_key, b"user", b"stockade-test", b"s3cret-0f-the-caller", 20, -3)
assert content(search()) == "s3cret-0f-the-caller"
import stockade
from stockade.policies.model import parse_tree
probe = sys.argv[2].replace("KEY", str(key))
for filter in ("default", "off"):
    given = parse_tree({"extends": "read-only", "syscalls": {"filter": filter}, "process": {"user": sys.argv[3]}}, "x")
    result = stockade.run([sys.argv[4], "-I", "-S", "-c", probe], cwd=sys.argv[1], policy=given)
    sys.stdout.buffer.write(result.stdout + result.stderr)
"""
)
READ_KEY = (
    PRELUDE
    + KEYS
    + """
found["search"], found["by number"] = tried(lambda: content(search())), tried(content, KEY)
found["listed"] = tried(lambda: read("/proc/keys"))
print(json.dumps(found))
"""
)


def test_keys_of_the_callers_session_are_out_of_reach(place, identity):
    """Keyrings have no namespace: neither a search nor the number of a key finds one, with and without the filter."""
    command = [sys.executable, "-c", HOLD_KEY, place, READ_KEY, policy(identity).process.user, PYTHON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    filtered, unfiltered = map(json.loads, done.stdout.splitlines())
    assert filtered["search"] == filtered["by number"] == "EPERM"
    assert filtered["listed"] == unfiltered["listed"] == "EACCES"
    assert unfiltered["search"] in ("ENOKEY", "EACCES")
    assert unfiltered["by number"] in ("EACCES", "ENOKEY")


# --- HOME -------------------------------------------------------------------------------------------------

HOMES = """
import pwd
home = os.environ.get("HOME")
found["home"], found["passwd"] = home, pwd.getpwuid(os.getuid()).pw_dir
del os.environ["HOME"]
found["tilde"] = os.path.expanduser("~")
found["name"], found["user"] = pwd.getpwuid(os.getuid()).pw_name, os.environ["USER"]
found["content"] = sorted(os.listdir(home))
found["write"] = tried(written, home + "/made")
found["group"] = __import__("grp").getgrgid(os.getgid()).gr_gid == os.getgid()
"""


def with_secrets(home: pathlib.Path) -> pathlib.Path:
    for name in (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".bash_history"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(SECRET)
    open_to_all(home)
    return home


@pytest.mark.parametrize("shape", ["plain", "link", "dots", "missing", "relative", "empty", "unset", "root"])
def test_home_is_empty_writable_and_what_passwd_says(tmp_path, identity, monkeypatch, shape):
    """``~`` leads to the box's own directory, by the variable and by the accounts file; the real one is out of sight."""
    home = with_secrets(make_place(tmp_path, "home"))
    (tmp_path / "link").symlink_to(home)
    place = make_place(tmp_path)
    values = {
        "plain": str(home), "link": str(tmp_path / "link"), "dots": f"{home}/../home/.", "missing": "/home/no-such-home",
        "relative": "home", "empty": "", "root": "/",
    }  # fmt: skip
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shape == "unset":
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", values[shape])
    found = probe(HOMES, cwd=place, policy=policy(identity))
    assert found["home"] == found["passwd"] == found["tilde"]
    assert os.path.isabs(found["home"])
    assert found["name"] == found["user"]
    assert (found["content"], found["write"]) == ([], "ok")
    if shape in ("plain", "link", "dots"):
        assert found["home"] == str(home)
    assert not (home / "made").exists()
    assert (home / ".netrc").read_text() == SECRET


def test_no_file_of_home_is_seen_but_the_workspace_in_it(tmp_path, identity, monkeypatch):
    """A project below HOME is shown; everything beside it is not, by no path."""
    home = with_secrets(make_place(tmp_path, "home"))
    place = make_place(home, "project")
    monkeypatch.setenv("HOME", str(home))
    found = probe(
        """
        home = os.environ["HOME"]
        found["content"] = os.listdir(home)
        found["seen"] = [os.path.join(folder, name) for folder, _folders, files in os.walk(home) for name in files]
        found["read"] = [tried(read, f"{top}/{name}") for top in (home, "..", home + "/project/..", "/proc/self/cwd/..")
                         for name in (".netrc", ".ssh/id_ed25519", ".aws/credentials")]
        found["control"] = tried(written, "made")
        """,
        cwd=place,
        policy=policy(identity),
    )
    assert found["content"] == ["project"]
    assert found["seen"] == []
    assert set(found["read"]) == {"ENOENT"}
    assert found["control"] == "ok"


@pytest.mark.parametrize("entry", ["{home}", "{home}/bin", "/", "{home}/.", "{tmp}"])
def test_a_search_path_does_not_bring_the_home_in(tmp_path, monkeypatch, entry):
    """PATH may have the home, or what is above it, as an entry; only directories of programs follow it inside."""
    home = with_secrets(make_place(tmp_path, "home"))
    (home / "bin").mkdir()
    (home / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    (home / "bin/tool").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{entry.format(home=home, tmp=tmp_path)}:/usr/bin:/bin")
    found = probe(
        """
        home = os.environ["HOME"]
        found["content"] = os.listdir(home)
        found["read"] = tried(read, home + "/.netrc")
        found["tool"] = __import__("shutil").which("tool")
        """,
        cwd=make_place(tmp_path),
        policy=policy(extends="read-only"),
    )
    assert found["read"] == "ENOENT"
    assert set(found["content"]) <= {"bin"}
    assert (found["tool"] is not None) == (entry == "{home}/bin")


def test_an_environment_that_lies_about_its_base_shows_nothing(tmp_path, monkeypatch):
    """pyvenv.cfg may have been written by a program: what it names is only believed where an interpreter is."""
    home = with_secrets(make_place(tmp_path, "home"))
    project = make_place(home, "project")
    (project / "venv/bin").mkdir(parents=True)
    (project / "venv/pyvenv.cfg").write_text(f"home = {home}/.ssh/bin\n")
    open_to_all(project)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{project}/venv/bin:/usr/bin:/bin")
    body = 'found["ssh"] = tried(os.listdir, os.environ["HOME"] + "/.ssh"); found["path"] = os.environ["PATH"]'
    found = probe(body, cwd=make_place(tmp_path))
    assert found["ssh"] == "ENOENT"
    assert f"{project}/venv/bin" in found["path"]


def test_a_directory_that_is_not_shown_is_never_silently_another_one(tmp_path):
    """bubblewrap alone would start in HOME or in ``/``: it is said, or refused."""
    result = stockade.run(["pwd"], cwd="/tmp")
    assert result.ok
    assert any("/tmp" in note for note in result.notes)
    for gone in (tmp_path / "none", "/proc/1/nothing"):
        with pytest.raises(stockade.RequestError, match="could not use the directory"):
            stockade.run(["pwd"], cwd=gone)
    place = make_place(tmp_path)
    assert stockade.run(["pwd"], cwd=place).stdout == f"{place}\n".encode()


# --- our own files ----------------------------------------------------------------------------------------


def test_a_run_leaves_no_temporary_file(place, tmp_path):
    """Captured output goes through pipes: nobody can lay a link where it would be written, or read it there."""
    temporary = make_place(tmp_path, "temporary")
    runtime = make_place(tmp_path, "runtime")
    env = {
        **os.environ,
        "TMPDIR": str(temporary),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CACHE_HOME": str(tmp_path / "c"),
    }
    for _again in range(2):
        done = cli("run", "--json", "--", "/bin/sh", "-c", "echo out; echo err >&2", cwd=place, env=env)
        assert json.loads(done.stdout)["stdout"] == "out\n"
    assert os.listdir(temporary) == os.listdir(runtime) == []
    cache = tmp_path / "c/stockade"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()} <= {0o600}


def test_a_home_that_does_not_exist_is_not_made(place, tmp_path):
    """Accounts of services have one that is not meant to be there; nothing is remembered for them."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    done = cli("run", "--", "true", cwd=place, env={**env, "HOME": str(tmp_path / "none")})
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "none").exists()
    (tmp_path / "none").mkdir()
    assert cli("run", "--", "true", cwd=place, env={**env, "HOME": str(tmp_path / "none")}).returncode == 0
    assert (tmp_path / "none/.cache/stockade").is_dir()


def test_stockades_own_state_can_not_be_written_through_a_grant(tmp_path, identity, monkeypatch):
    """A grant of ~/.config or ~/.cache gives neither the user's policy nor what is remembered, be it there or not."""
    for existing in (True, False):
        top = make_place(tmp_path, f"state-{existing}")
        for name, variable in (("config", "XDG_CONFIG_HOME"), ("cache", "XDG_CACHE_HOME")):
            (top / name).mkdir()
            if existing:
                (top / name / "stockade").mkdir()
                (top / name / "stockade/policy.toml").write_text('mode = "auto"\n' if name == "config" else "")
            monkeypatch.setenv(variable, str(top / name))
        open_to_all(top)
        kept = [str(top / "config"), str(top / "cache")]
        found = probe(
            """
            for top in sys.argv[1:]:
                own = top + "/stockade"
                found[top] = [tried(os.mkdir, own), tried(written, own + "/policy.toml"), tried(os.rename, own, top + "/x"),
                              tried(os.symlink, "/tmp", own), tried(written, own)]
                found[top + " control"] = tried(written, top + "/made")
            """,
            *kept,
            cwd=make_place(tmp_path, f"place-{existing}"),
            policy=policy(identity, "read-only", filesystem={"write": kept}),
        )
        for folder in kept:
            assert "ok" not in found[folder]
            assert found[f"{folder} control"] == "ok"
        policies = top / "config/stockade"
        assert not policies.exists() or (policies / "policy.toml").read_text() == 'mode = "auto"\n'


# --- root's own files -------------------------------------------------------------------------------------


def root_only_files() -> list[str]:
    """Regular files of /etc that the world can't read, as root sees them; for others those with telling names."""
    found = []
    for folder, _folders, files in os.walk("/etc"):
        for name in files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and not status.st_mode & 0o004:
                found.append(path)
    return found


def test_files_that_only_root_reads_stay_secret(place, identity):
    """Password hashes, host keys and every other file of /etc that the world can't read, for root's runs too."""
    paths = root_only_files()
    assert any(path.endswith("shadow") for path in paths)
    found = probe(
        'found.update({path: tried(read, path) for path in sys.argv[1:]}, control=tried(read, "/etc/passwd"))',
        *paths,
        cwd=place,
        policy=policy(identity, "read-only"),
    )
    assert found.pop("control") == "ok"
    assert not [path for path in paths if found[path] == "ok"]
    if identity != "user":
        assert outside('found["shadow"] = len(read("/etc/shadow"))')["shadow"] > 0


@pytest.mark.root
def test_places_that_only_root_enters_stay_secret_for_a_kept_root(place):
    """Directories below /etc, /var and their like that are closed to the world are empty or gone inside."""
    tops = ("/etc", "/var", "/var/lib", "/var/cache", "/opt", "/srv", "/usr/local")
    closed = [
        path
        for top in tops
        for name in os.listdir(top)
        for path in [f"{top}/{name}"]
        if os.path.isdir(path) and not os.path.islink(path) and not os.lstat(path).st_mode & 0o005
    ]
    assert closed
    body = """
    for path in sys.argv[1:]:
        found[path] = os.listdir(path) if tried(os.listdir, path) == "ok" else []
    found["control"] = os.listdir("/etc") != []
    """
    for form in ("dropped", "kept"):
        found = probe(body, *closed, cwd=place, policy=policy(form, "read-only"))
        assert found.pop("control")
        assert not {path: names for path, names in found.items() if names}


def test_the_user_inside_has_a_name(place, identity):
    """The accounts file has an entry for whoever the program runs as, and the host's others."""
    found = probe(
        'import pwd; found["own"] = pwd.getpwuid(os.getuid()).pw_name; found["all"] = len(pwd.getpwall())',
        cwd=place,
        policy=policy(identity),
    )
    assert found["own"]
    assert found["all"] >= len(pwd.getpwall()) - 1
