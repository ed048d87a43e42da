"""What stands around a handler inside the box: strace where it works, a look at what it leaves, its temporary files.

The handler has neither of the two sockets: one takes the trace, the other what the wrapper tells afterwards. It runs
as the same user, so it could end the wrapper or strace; then the run ends with it, or the trace does.
"""

from __future__ import annotations

import io
import re
import socket
import tarfile
import threading

from stockade.policies.record import Record
from stockade.sandbox.wires import Wires

TRACE, TOLD = 3, 5
"""Numbers of the sockets in the wrapper."""
MOST_TRACE = 16 << 20
MOST_TOLD = 48 << 20
STRACE = "/usr/bin/strace"
SHELL = "/bin/sh"
BARE = 'exec 2>&4 3>&- 4>&- 5>&-; exec "$@"'
TRACED = (
    f"{STRACE} -D -f -q -y -s 16384 --seccomp-bpf -e signal=none"
    " -e trace=open,openat,creat,execve,execveat,kill,tkill,tgkill,pidfd_send_signal,ptrace,pidfd_getfd,process_vm_writev"
    f" -- {SHELL} -c '{BARE}' sh \"$@\" 2>&3"
)
PLAIN = f"{SHELL} -c '{BARE}' sh \"$@\""
AFTERWARDS = r"""
code=$?
exec 2>/dev/null
rounds=0
while :; do
  left=
  for each in /proc/[0-9]*; do
    number=${each#/proc/}
    [ "$number" = 1 ] && continue
    [ "$number" = "$$" ] && continue
    read -r line < "$each/stat" || continue
    case ${line##*) } in Z*) continue ;; esac
    [ "$each/exe" -ef /usr/bin/strace ] && continue
    left="$left$line
"
  done
  [ -z "$left" ] && break
  rounds=$((rounds + 1))
  [ "$rounds" -gt 8 ] && break
  sleep 0.1
done
printf '%s\n' "$left" >&5
set --
for each in /tmp/* /tmp/.[!.]* /var/tmp/* /var/tmp/.[!.]* /dev/shm/* /dev/shm/.[!.]* /run/* /run/.[!.]*; do
  if [ -e "$each" ] || [ -L "$each" ]; then set -- "$@" "$each"; fi
done
printf 'FILES\n' >&5
[ "$#" -gt 0 ] && find "$@" -xdev \( -type d -o -type f \) ! -perm -u+r -exec chmod u+rwX {} \;
[ "$#" -gt 0 ] && tar --create --absolute-names --one-file-system --file=- -- "$@" >&5
exit "$code"
"""


SEIZED = re.compile(
    rb"^(?:\[pid +\d+\] )?(?:ptrace\(PTRACE_(?:ATTACH|SEIZE)|pidfd_getfd\(|process_vm_writev\("
    rb"|open(?:at)?\(.*O_(?:WRONLY|RDWR).* = \d+</proc/\d+/(?:task/\d+/)?mem>)",
    re.MULTILINE,
)
"""How a process gets at another's memory or descriptors. None of it is a hook's business."""


class Aftermath(Record):
    """What came down the two sockets."""

    trace: bytes = b""
    left: tuple[str, ...] = ()
    """Processes that were still there most of a second later: number, name and state as in /proc."""
    files: tuple[tuple[str, bytes], ...] = ()
    """Temporary files: path and content, a link's target as its content."""
    whole: bool = False
    """Whether the wrapper came to its end."""


def wrapped(argv: tuple[str, ...], *, strace: bool) -> tuple[str, ...]:
    """The command with the wrapper around it."""
    return (SHELL, "-c", f"exec 4>&2\n{TRACED if strace else PLAIN}\n{AFTERWARDS}", "sh", *argv)


class Listener:
    """The two sockets of one run. A context manager; ``aftermath`` once the run is over."""

    def __init__(self) -> None:
        self.ours: list[socket.socket] = []
        self.theirs: list[socket.socket] = []
        self.got: list[list[bytes]] = [[], []]
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> Listener:
        for number, most in ((0, MOST_TRACE), (1, MOST_TOLD)):
            ours, theirs = socket.socketpair()
            ours.shutdown(socket.SHUT_WR)
            self.ours.append(ours)
            self.theirs.append(theirs)
            thread = threading.Thread(
                target=drain, args=(ours, self.got[number], most), name="stockade-listen", daemon=True
            )
            thread.start()
            self.threads.append(thread)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._finish()

    def wires(self) -> Wires:
        """For ``Order.wires``."""
        return Wires(descriptors=((self.theirs[0].fileno(), TRACE), (self.theirs[1].fileno(), TOLD)))

    def aftermath(self) -> Aftermath:
        self._finish()
        return read(b"".join(self.got[0]), b"".join(self.got[1]))

    def _finish(self) -> None:
        for each in self.theirs:
            each.close()
        for thread in self.threads:
            thread.join()
        for each in self.ours:
            each.close()


def drain(ours: socket.socket, got: list[bytes], most: int) -> None:
    """Everything is read, so that nobody inside waits; what is too much is dropped."""
    room = most
    while True:
        try:
            data = ours.recv(1 << 16)  # without ancillary data: descriptors that the box sends are dropped
        except OSError:
            return
        if not data:
            return
        got.append(data[:room])
        room = max(0, room - len(data))


def broken(after: Aftermath, *, strace: bool) -> str:
    """Why a run that ended by itself was not seen to its end; empty when it was.

    The last thing that strace sees of a handler is its end, unless something of it goes on; signals are traced so that
    the one that ended strace comes last.
    """
    if not after.whole:
        return "the wrapper was ended before it could look at what was left"
    if len(after.trace) >= MOST_TRACE:
        return "its trace is too long to be kept whole"
    last = after.trace.rstrip(b"\n").rpartition(b"\n")[2]
    if strace and not after.left and b"+++ " not in last:
        return "strace was ended before the handler was: what it opened and executed after that is not known"
    return ""


def seized(after: Aftermath) -> str:
    """That it reached into another process, in words; empty when it did not."""
    text = "it took hold of another process, which may be the one that watches it: what was seen may be forged"
    return text if SEIZED.search(after.trace) else ""


def read(trace: bytes, told: bytes) -> Aftermath:
    """What the bytes say. They come from the box: nothing in them is trusted to be well formed."""
    head, mark, packed = told.partition(b"FILES\n")
    left = tuple(line for line in head.decode("utf-8", "replace").split("\n") if line.strip())
    return Aftermath(trace, left, tuple(files_in(packed)) if packed else (), bool(mark))


def files_in(packed: bytes) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for member in archive:
                if member.issym():
                    found.append((member.name, member.linkname.encode("utf-8", "replace")))
                elif member.isreg() and (file := archive.extractfile(member)) is not None:
                    found.append((member.name, file.read()))
                elif not member.isdir():
                    found.append((member.name, b""))
    except (tarfile.TarError, OSError, ValueError, EOFError):
        pass  # cut off, or no archive
    return found
