"""The caller's terminal, and the streams that it hands on."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
import termios

import stockade
from stockade.sandbox.attacks.batch import interpreter
from stockade.sandbox.attacks.scenery import Seen, scene
from stockade.sandbox.attacks.scenes.plants import CLI, policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.attacks.scenery import Stage

GROUP = "F terminal and session"
PUSH = "import fcntl, sys\nfor letter in b'evil\\n':\n    fcntl.ioctl(0, 0x5412, bytes([letter]))\n"
MODES = "import termios\nold = termios.tcgetattr(0)\nold[3] = 0\ntermios.tcsetattr(0, termios.TCSANOW, old)\n"
SECONDS = 20


def on_terminal(stage: Stage, command: list[str]) -> tuple[int, bool]:
    """Runs it as the leader of a new terminal: the input that waits there afterwards, and whether its modes differ."""
    person, own = os.openpty()
    modes = termios.tcgetattr(own)
    try:
        with subprocess.Popen(
            command, cwd=stage.place, stdin=own, stdout=own, stderr=own, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        ) as made:  # fmt: skip
            while made.poll() is None:
                if select.select([person], [], [], 0.05)[0]:
                    os.read(person, 65536)
        waiting = int.from_bytes(fcntl.ioctl(own, termios.FIONREAD, bytes(4)), sys.byteorder)
        return waiting, termios.tcgetattr(own) != modes
    finally:
        os.close(person)
        os.close(own)


@scene("a terminal of its own")
def push_keystrokes(stage: Stage) -> Seen:
    """Push keystrokes into the caller's terminal (TIOCSTI), for its shell to run."""
    waiting, _modes = on_terminal(stage, [*CLI, "--", interpreter(), "-c", PUSH])
    bare, _modes = on_terminal(stage, [interpreter(), "-c", PUSH])
    return Seen(f"{waiting} bytes wait" if waiting else "", bare > 0, "nothing waits there; without a box it does")


@scene("a terminal of its own")
def spoil_the_terminal(stage: Stage) -> Seen:
    """Leave the caller's terminal without echo and signals."""
    _waiting, spoilt = on_terminal(stage, [*CLI, "--", interpreter(), "-c", MODES])
    _waiting, bare = on_terminal(stage, [interpreter(), "-c", MODES])
    return Seen(
        "its modes differ" if spoilt else "", bare, "its modes are as they were; without a box they are not"
    )


@scene("control characters are spelt out")
def escape_sequences_in_our_messages(stage: Stage) -> Seen:
    """Have stockade's own messages steer the terminal: by a file's name and by what a denial quotes."""
    evil = "\x1b]52;c;ZXZpbA==\x07"
    done = subprocess.run(
        [*CLI, "--", f"./{evil}"], cwd=stage.place, capture_output=True, timeout=SECONDS, check=False
    )
    ours = [line for line in done.stderr.splitlines() if not line.startswith(b"bwrap: ")]
    result = stockade.run(
        f"printf '{evil}Read-only file system\\n' >&2; exit 1", cwd=stage.place, policy=policy(stage)
    )
    quoted = " ".join([result.reason, *(each.detail for each in result.denials)])
    through = any(b"\x1b" in line for line in ours) or "\x1b" in quoted
    return Seen(
        "a message has them" if through else "",
        b"\x1b" in result.stderr,
        "they are spelt out, and passed on elsewhere",
    )


@scene("sockets are replaced by pipes")
def descriptors_by_a_socket_as_stdin(stage: Stage) -> Seen:
    """Take a descriptor out of a socket that is the program's input (SCM_RIGHTS)."""
    text = (
        "import os, socket\n"
        "made = socket.socket(fileno=os.dup(0))\n"
        "data, fds, flags, address = socket.recv_fds(made, 10, 4)\n"
        "print(os.listdir(fds[0]))\n"
    )

    def tried(command: list[str]) -> str:
        ours, theirs = socket.socketpair()
        directory = os.open(stage.bait.top, os.O_RDONLY)
        with ours, theirs:
            socket.send_fds(ours, [b"x"], [directory])
            os.close(directory)
            ours.shutdown(socket.SHUT_WR)
            done = subprocess.run(
                command,
                cwd=stage.place,
                stdin=theirs.fileno(),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        return str(done.stdout)

    seen, bare = tried([*CLI, "--", interpreter(), "-c", text]), tried([interpreter(), "-c", text])
    return Seen(
        "it was there" if "beside" in seen else "",
        "beside" in bare,
        "the input is a pipe; without a box it is the socket",
    )


@scene("sockets are replaced by pipes")
def a_connection_as_stdin(stage: Stage) -> Seen:
    """Talk over a connection that the caller handed on, beyond reading from it."""
    script = "echo out >&0; kill -0 $$"

    def tried(command: list[str]) -> bytes:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                subprocess.run(
                    command,
                    cwd=stage.place,
                    stdin=theirs.fileno(),
                    capture_output=True,
                    timeout=SECONDS,
                    check=False,
                )
            return ours.recv(100)

    seen, bare = tried([*CLI, "--", "/bin/sh", "-c", script]), tried(["/bin/sh", "-c", script])
    return Seen("it answered" if seen else "", bool(bare), "nothing came back; without a box it does")


@scene("files are replaced by pipes")
def a_file_as_stdin(stage: Stage) -> Seen:
    """Open a file anew for writing that was handed on to be read (/proc/self/fd/0)."""
    path = f"{stage.bait.top}/handed-on"
    with open(path, "w") as file:
        file.write("as it was\n")
    os.chmod(path, 0o666)  # noqa: S103
    script = "echo evil > /proc/self/fd/0; exec 3<>/proc/self/fd/0; echo evil >&3; chmod 777 /proc/self/fd/0"

    def tried(command: list[str]) -> bool:
        with open(path) as handed:
            subprocess.run(
                command, cwd=stage.place, stdin=handed, capture_output=True, timeout=SECONDS, check=False
            )
        with open(path) as after:
            return "evil" in after.read() or os.stat(path).st_mode & 0o777 != 0o666

    seen, bare = tried([*CLI, "--", "/bin/sh", "-c", script]), tried(["/bin/sh", "-c", script])
    return Seen("it was written" if seen else "", bare, "the file is as it was; without a box it is not")


@scene("no directory as a stream")
def a_directory_as_stdin(stage: Stage) -> Seen:
    """Walk out of a directory that was handed on as input."""
    done = []
    for command in ([*CLI, "--", "ls", "/proc/self/fd/0/.."], ["/bin/ls", "/proc/self/fd/0/.."]):
        fd = os.open(f"{stage.bait.top}/place", os.O_RDONLY)
        done.append(
            subprocess.run(
                command, cwd=stage.place, stdin=fd, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        )
        os.close(fd)
    return Seen(
        "it was listed" if "beside" in done[0].stdout else "", "beside" in done[1].stdout, "it is not handed on"
    )
