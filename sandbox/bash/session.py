"""State that goes from one call to the next: directory, exported variables, functions and options of a bash.

The shell itself writes it down when it exits, into a socket that the command's children never have: the command runs
under a redirection that closes it, and what bash saves meanwhile is closed by exec. A socket, unlike a pipe, can't be
opened anew by /proc/PID/fd. Nothing is ever read out of what a command prints.

    memfd  (number 8)   ours -> shell: the library below, the state, the command; closed before the command runs
    socket (number 9)   shell -> ours: NUL-terminated fields; whole only when the last one is ``end``

Variables are carried as what differs from the environment that a call starts with. What was captured is shell text of
the command's own making, and is only ever evaluated in the next shell, of the same mode: inside the next box.
"""

from __future__ import annotations

import os
import select
import socket
import threading

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.sandbox.bash.calls import carry, turn
from stockade.sandbox.launch import content
from stockade.sandbox.wires import Wires

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.pool import LeasePool
    from stockade.sandbox.bash.calls import Call
    from stockade.sandbox.bash.result import BashResult
    from stockade.sandbox.stopper import Stopper

GIVEN, TOLD = 8, 9
"""Numbers of the two descriptors in the shell."""

MOST_STATE = 1 << 20
"""Bytes of state that are carried."""

CHUNK = 1 << 16

BOOT = (
    "IFS= builtin read -r -d '' -u 8 __stockade_library; "
    'builtin eval "$__stockade_library"; '
    'builtin eval "$__stockade_command" 9>&-; '
    '{ builtin trap - DEBUG ERR RETURN; __stockade_end; } 9>&"$((__stockade_status=$?,9))" >/dev/null 2>&1; '
    'builtin exit "$__stockade_status"'
)
"""One line, so that the lines of the command are counted from one. ``exit``, a failure under ``set -e`` and a signal
come to the trap instead. By then bash has put the socket back; after ``exit`` in a function it is still where it was
saved, at the first number from 10 on. The code is taken in a redirection: no trace shows it, and it is there also where
the shell can't redirect any more."""

LIBRARY = r"""
for __stockade_name in cwd oldcwd trace options switches variables functions call command; do
  IFS= builtin read -r -d '' -u 8 "__stockade_$__stockade_name"
done
exec 8<&-
builtin declare -A __stockade_base __stockade_kept
__stockade_done= __stockade_health=whole
for __stockade_name in $(builtin compgen -e); do __stockade_base[$__stockade_name]=${!__stockade_name}; done
__stockade_call=($__stockade_call)
builtin eval "$__stockade_switches" 2>/dev/null
builtin eval "$__stockade_variables" 2>/dev/null || __stockade_health=part
builtin eval "$__stockade_functions" 2>/dev/null || __stockade_health=part
for __stockade_name in "${__stockade_call[@]}"; do
  if ! builtin [ "x${!__stockade_name-}" = "x${__stockade_base[$__stockade_name]-}" ]; then
    __stockade_kept[$__stockade_name]=$(builtin declare -p "$__stockade_name" 2>/dev/null)
  fi
  builtin export "$__stockade_name=${__stockade_base[$__stockade_name]-}"
done
if builtin [ -n "$__stockade_cwd" ]; then
  if builtin cd -- "$__stockade_cwd" 2>/dev/null; then OLDPWD=$__stockade_oldcwd; else __stockade_health=lost; fi
fi
builtin printf '%s\0' "$__stockade_health" >&9
__stockade_end() {
  if builtin [ -n "$__stockade_done" ] || builtin [ "${#__stockade_base[@]}" -eq 0 ]; then return 0; fi
  __stockade_done=1 __stockade_trace=$- __stockade_told=9
  if builtin [ -S /dev/fd/10 ]; then __stockade_told=10; fi
  builtin set +xv
  {
    builtin printf '%s\0' "$__stockade_trace"
    builtin set +o
    builtin printf '\0'
    builtin shopt -p
    builtin printf '\0'
    builtin set +eu +o posix
    builtin shopt -u nocasematch failglob nullglob extdebug expand_aliases
    builtin pwd
    builtin printf '\0%s\0' "${OLDPWD-}"
    __stockade_variables || builtin return
    builtin printf '\0'
    builtin unset -f __stockade_end __stockade_variables
    builtin declare -f
    builtin declare -Fx
    builtin declare -Fr
    builtin printf '\0end\0'
  } >&"$__stockade_told"
}
__stockade_variables() {
  builtin declare -A __stockade_now
  builtin declare -a __stockade_changed __stockade_names
  builtin declare __stockade_name
  builtin mapfile -t __stockade_names < <(builtin compgen -e)
  if builtin [ "${#__stockade_names[@]}" -eq 0 ]; then builtin return 1; fi  # it could not be asked: no fork, no compgen
  for __stockade_name in "${__stockade_names[@]}"; do
    case $__stockade_name in
      BASHOPTS | SHELLOPTS | UID | EUID | PPID | PWD | OLDPWD | SHLVL | _ | __stockade_*) continue ;;
    esac
    __stockade_now[$__stockade_name]=1
    if builtin [ "${__stockade_base[$__stockade_name]+y}x${!__stockade_name-}" = \
        "yx${__stockade_base[$__stockade_name]-}" ]; then
      if builtin [ -n "${__stockade_kept[$__stockade_name]-}" ]; then
        builtin printf '%s\n' "${__stockade_kept[$__stockade_name]}"
      fi
    else
      __stockade_changed+=("$__stockade_name")
    fi
  done
  if builtin [ "${#__stockade_changed[@]}" -gt 0 ]; then builtin declare -p "${__stockade_changed[@]}"; fi
  for __stockade_name in "${!__stockade_base[@]}"; do
    case $__stockade_name in
      BASHOPTS | SHELLOPTS | UID | EUID | PPID | PWD | OLDPWD | SHLVL | _) continue ;;
    esac
    if builtin [ -z "${__stockade_now[$__stockade_name]-}" ]; then
      if builtin [ -n "${!__stockade_name+x}" ]; then
        builtin printf 'export -n %s\n' "$__stockade_name"
      else
        builtin printf 'unset -v %s\n' "$__stockade_name"
      fi
    fi
  done
  builtin return 0
}
builtin trap '{ __stockade_end; } >/dev/null 2>&1' EXIT
builtin eval "$__stockade_options" 2>/dev/null
case $__stockade_trace in
  *x*v* | *v*x*) __stockade_command="set -xv; $__stockade_command" ;;
  *x*) __stockade_command="set -x; $__stockade_command" ;;
  *v*) __stockade_command="set -v; $__stockade_command" ;;
esac
"""
"""Evaluated at the top level, where ``declare`` makes no locals. The options come last: ``set -e`` would end it."""


class ShellState(Record):
    """What one shell left for the next: shell text, all but the directories and the flags."""

    cwd: bytes = b""
    oldcwd: bytes = b""
    trace: bytes = b""
    """``$-``: tracing would write into the command's stderr while the rest is restored."""
    options: bytes = b""
    switches: bytes = b""
    variables: bytes = b""
    functions: bytes = b""


class Told(Record):
    """What a shell told: how the state before it was restored, and the state after it (None: not captured)."""

    health: bytes
    """``whole``, ``part``, ``lost`` (the directory is not there any more); empty when it never came that far."""
    state: ShellState | None


def read_told(data: bytes) -> Told:
    """Parse the fields of the socket. Anything but a whole state is none."""
    fields = data.split(b"\0")
    health = fields[0] if len(fields) > 1 else b""
    if len(fields) != 10 or fields[8:] != [b"end", b""]:
        return Told(health, None)
    _health, trace, options, switches, cwd, oldcwd, variables, functions = fields[:8]
    cwd = cwd.removesuffix(b"\n")
    if not cwd.startswith(b"/"):
        return Told(health, None)
    return Told(health, ShellState(cwd, oldcwd, trace, options, switches, variables, functions))


class Drain:
    """A stream of the supervisor's: takes what the shell tells, whatever it is, and keeps a bounded part."""

    def __init__(self, end: socket.socket, most: int = MOST_STATE) -> None:
        end.setblocking(False)
        self._end, self._most = end, most
        self._open = True
        self.data = bytearray()
        self.too_much = False

    def interest(self) -> list[tuple[int, int]]:
        return [(self._end.fileno(), select.POLLIN)] if self._open else []

    def handle(self, fd: int, events: int) -> None:
        self._take()

    def finish(self, until: float | None = None) -> None:
        left = 64  # a socket holds far less
        while left > 0 and self._take():
            left -= 1

    def _take(self) -> bool:
        """Without ancillary data: descriptors that somebody sends along are dropped by the kernel."""
        if not self._open:
            return False
        try:
            data = self._end.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._open = False
            return False
        room = self._most - len(self.data)
        self.too_much = self.too_much or len(data) > room
        self.data += data[: max(room, 0)]
        return True


class Session:
    """The state of one tool's shells. Calls come one after another: two at once would each lose the other's state."""

    def __init__(self, shell: str) -> None:
        """Raises RequestError for a shell that can't write its state down."""
        if os.path.basename(shell) != "bash":
            raise RequestError(
                f"could not use session=True with the shell {shell!r}: only bash can carry its state on",
                remedy='Use shell="bash".',
            )
        self.shell = shell
        self.state = ShellState()
        self._lock = threading.Lock()

    def run(self, call: Call, *, stopper: Stopper | None = None, leases: LeasePool | None = None) -> BashResult:
        """Run a call in the state that the last one left, and keep what it leaves. Raises as ``carry`` does."""
        with turn(self._lock, stopper):
            return self._run(call, stopper, leases)

    def _run(self, call: Call, stopper: Stopper | None, leases: LeasePool | None) -> BashResult:
        request = call.order.request.replace(argv=(self.shell, "--noprofile", "--norc", "-c", BOOT, self.shell))
        call = call.replace(order=call.order.replace(request=request))
        ours, theirs = socket.socketpair()
        given = -1
        try:
            given = content(self._script(call), "stockade-session")
            drain = Drain(ours)
            wires = Wires(descriptors=((given, GIVEN), (theirs.fileno(), TOLD)), streams=(drain,))
            result = carry(call, stopper=stopper, leases=leases, wires=wires)
        finally:
            ours.close()
            theirs.close()
            if given >= 0:
                os.close(given)
        return self._after(call, result, drain)

    def _script(self, call: Call) -> bytes:
        """What the shell reads: every field ended by NUL, which none of them has."""
        state = self.state.replace(cwd=b"") if call.given_cwd else self.state
        names = " ".join(name for name in call.env if name.isidentifier() and name.isascii())
        command = os.fsencode(call.command)
        return b"".join(part + b"\0" for part in (LIBRARY.encode(), *state, names.encode(), command))

    def _after(self, call: Call, result: BashResult, drain: Drain) -> BashResult:
        """Take the new state over, or say that there is none."""
        told = read_told(bytes(drain.data))
        if result.outcome == "exited" and not told.health:
            return not_taken(result)
        before = self.state
        where = os.fsdecode(before.cwd)
        notes = list(result.notes)
        if told.health == b"lost":
            notes.append(f"the directory of the session is not there (any more): {where}; began in {call.cwd}")
        elif told.health == b"part":
            notes.append("some variables or functions of the session could not be restored")
        if told.state is not None and not drain.too_much:
            self.state = told.state
            if call.given_cwd and told.state.cwd == os.fsencode(call.cwd):
                # A directory of the call's holds for that call, as its variables do, unless the command changed it.
                self.state = told.state.replace(cwd=before.cwd, oldcwd=before.oldcwd)
        elif not result.sandbox.runner_failed:
            cause = f"it has more than {MOST_STATE} bytes" if drain.too_much else "the shell did not get to it"
            notes.append(f"the state of this call is not carried on ({cause}): the one before it stands")
        return result.replace(cwd=os.fsdecode(self.state.cwd) or call.cwd, notes=tuple(notes))


def not_taken(result: BashResult) -> BashResult:
    """The result of a shell that ended by itself before the command: what it came to says nothing of that."""
    reason = f"the shell ended before it took the command ({result.reason})"
    facts = result.sandbox.replace(runner_failed=True)
    return result.replace(outcome="not_executed", exit_code=None, reason=reason, sandbox=facts)
