"""The trial run behind ``probe``: what is tried, what it prints, and what follows from it."""

from __future__ import annotations

import os
import shutil
import time

from stockade.policies.capability import Capability
from stockade.policies.resolved import Resolved
from stockade.sandbox import shortage, userns
from stockade.sandbox.confinement import prepare
from stockade.sandbox.engine import Io, execute
from stockade.sandbox.request import Request
from stockade.sandbox.seccomp import SeccompUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.sandbox.bwrap import Bwrap
    from stockade.sandbox.engine import Finished
    from stockade.sandbox.evidence import Evidence
    from stockade.sandbox.launch import Launch

SECONDS = 20.0
OWN_VARIABLES = {"HOME", "USER", "LOGNAME", "PATH", "SHELL", "PWD", "OLDPWD", "SHLVL", "_"}
SCRIPT = r"""
try() { if ( eval "$2" 2>/dev/null ); then echo "$1=yes"; else echo "$1=no"; fi; }
try permitted ': > "$0/open/made"'
try forbidden ': > "$0/shut/made"'
try root ': > /made'
try home ': > "$HOME/made"'
env | while IFS="=" read -r name rest; do echo "variable $name=seen"; done
if [ -r /proc/self/status ]; then
    echo proc=yes
    while read -r key value; do
        case $key in CapEff:|CapBnd:|CapPrm:|NoNewPrivs:|Seccomp:) echo "$key=$value";; esac
    done < /proc/self/status
    links=; while IFS=": " read -r name rest; do
        case $name in Inter-*|face*) ;; *) links="$links $name";; esac
    done < /proc/net/dev
    echo "links=$links"
    case $(cat /proc/1/environ 2>/dev/null | tr -d '\0' && echo .) in
        "") exit 1;;
        .) echo environ=yes;;
    esac
    ulimit -n | { read -r most; echo "files=$most"; }
else
    echo proc=no
fi
( exec unshare --user true 2>/dev/null ) && echo nested=yes
echo complete=yes
"""
"""A shell that can't fork ends and says so, unless its own messages are redirected at that moment. What it prints
counts only if it came to its last line."""


class Seen:
    """What one trial showed."""

    def __init__(self, finished: Finished | None, place: str) -> None:
        self.code = None if finished is None else finished.evidence.exit_code
        self.hung = finished is not None and finished.evidence.deadline_passed
        self.refused = finished is not None and refused(finished.evidence)
        self.error = (
            ""
            if finished is None or finished.stderr is None
            else finished.stderr.data.decode("utf-8", "replace").strip()
        )
        text = (
            "" if finished is None or finished.stdout is None else finished.stdout.data.decode("utf-8", "replace")
        )
        self.said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        self.complete = self.code is not None and self.says("complete", "yes")
        self.gate = "" if finished is None else finished.evidence.gate_failure
        self.spoilt = "" if finished is None or self.complete else self.why_spoilt(finished.evidence)
        """Why this trial says nothing about the host."""
        self.wrote_open = os.path.exists(f"{place}/open/made")
        self.wrote_shut = os.path.exists(f"{place}/shut/made")

    def why_spoilt(self, evidence: Evidence) -> str:
        found = shortage.cause_of(evidence, self.error)
        if found or self.code is None or self.hung:
            return found
        from stockade.sandbox.cli.style import escape

        return f"the trial ended early, with code {self.code}: {escape(self.error) or 'it said nothing'}"

    def says(self, key: str, value: str) -> bool:
        return self.said.get(key) == value


def refused(evidence: Evidence) -> bool:
    """bwrap itself gave up. A keeper or a monitor that was killed says nothing about the host."""
    status = evidence.wait_status
    return status is not None and os.WIFEXITED(status) and not (evidence.exit_code or evidence.deadline_passed)


def try_everything(binary: Bwrap) -> list[Capability]:
    """One run with everything on; where that fails, without /proc and without the filter, to find out which.

    What fails once may have failed by chance, and the lesser box must not become the answer for that: the whole
    is tried again before less is taken. What can't be tried at all says nothing about the host.
    """
    if os.readlink("/proc/self") != str(os.getpid()):
        return nothing_runs(None)
    attempts = [(True, True), (True, True), (True, False), (False, True), (False, False)]
    problem = ""
    for fresh_proc, use_filter in attempts:
        try:
            seen = attempt(binary, fresh_proc=fresh_proc, use_filter=use_filter)
            if seen.spoilt:
                seen = attempt(binary, fresh_proc=fresh_proc, use_filter=use_filter)
        except SeccompUnavailable as error:
            problem = error.message
            continue
        if seen.complete:
            return judge(binary, seen, fresh_proc=fresh_proc, use_filter=use_filter, filter_problem=problem)
        if seen.spoilt or not seen.refused:
            break  # less would not help; and after a hang, would only take as long
    return nothing_runs(seen)


def attempt(binary: Bwrap, *, fresh_proc: bool, use_filter: bool) -> Seen:
    from stockade.sandbox.probe import temporary

    held = temporary()
    place = held.path
    leash = -1

    def job(launch: Launch) -> dict[str, Any]:
        """The keeper removes the place if this process is killed meanwhile."""
        nonlocal leash
        whole = start.job(launch)
        theirs, leash = os.pipe()
        return {**whole, "kept": (os.fsencode(place), launch.give(theirs, None))}

    try:
        # Open to the uid that a root caller's run drops to.
        for path in (place, f"{place}/open", f"{place}/shut"):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o777)  # noqa: S103
        request = Request(("/bin/sh", "-c", SCRIPT, place), f"{place}/shut", ())
        start = prepare(trial_policy(place), request, binary, fresh_proc=fresh_proc, use_filter=use_filter)
        deadline = time.monotonic() + SECONDS
        finished = execute(
            job,
            Io(cap=65_536),
            confined=True,
            deadline=deadline,
            process_limit=start.process_limit,
        )
        return Seen(finished, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(held.fd)
        if leash >= 0:
            os.close(leash)


def trial_policy(place: str) -> Resolved:
    """The smallest policy that shows both sides."""
    return Resolved(
        name="probe", mode="auto", root="host", workspace="read-only", write=(f"{place}/open",), read=(), hide=(),
        protect=(), home="empty", toolchains="none", env_pass=(), env_set=(), egress="none", allow=(), private=False,
        connector="auto", timeout=SECONDS, cpu=None, memory=1 << 30, processes=64, file_size=1 << 20, tmp=1 << 20,
        output=65_536, open_files=123, syscalls="default", user="auto", origin=(),
    )  # fmt: skip


def judge(
    binary: Bwrap, seen: Seen, *, fresh_proc: bool, use_filter: bool, filter_problem: str
) -> list[Capability]:
    """Each capability from what was seen (pure, given the trial)."""
    kept_out = seen.says("forbidden", "no") and seen.says("root", "no") and not seen.wrote_shut
    let_in = seen.says("permitted", "yes") and seen.says("home", "yes") and seen.wrote_open
    return [
        Capability("user-namespaces", "ok", "a box of its own user namespace was started"),
        verdict("mount-isolation", kept_out and let_in, "a permitted write worked and a forbidden one was refused"),
        network(seen, fresh_proc),
        verdict("environment", cleared(seen, fresh_proc), "nothing of the caller's environment shows"),
        privileges(seen, fresh_proc),
        proc(fresh_proc, seen),
        nested(binary, seen),
        by_descriptor(binary),
        syscall_filter(seen, fresh_proc, use_filter, filter_problem),
        verdict("limits", seen.says("files", "123") or not fresh_proc, "a limit set from outside holds inside"),
        root_dropped(),
    ]


def cleared(seen: Seen, fresh_proc: bool) -> bool:
    """Only variables that every box has; HOME shows that listing them worked at all."""
    names = {key.removeprefix("variable ") for key in seen.said if key.startswith("variable ")}
    return "HOME" in names and names <= OWN_VARIABLES and (not fresh_proc or seen.says("environ", "yes"))


def verdict(name: str, good: bool, detail: str) -> Capability:
    if good:
        return Capability(name, "ok", detail)
    return Capability(
        name,
        "missing",
        f"the trial did not show that {detail}",
        "Please report this host: run `stockade doctor --json`.",
    )


def network(seen: Seen, fresh_proc: bool) -> Capability:
    if not fresh_proc:
        return Capability("network-isolation", "ok", "the network namespace is the box's own (seen from outside)")
    return verdict("network-isolation", seen.says("links", " lo"), "the only network link is lo")


def privileges(seen: Seen, fresh_proc: bool) -> Capability:
    sets = [seen.said.get(f"{name}:", "") for name in ("CapEff", "CapPrm", "CapBnd")]
    zero = all(value and not value.strip("0") for value in sets) and seen.says("NoNewPrivs:", "1")
    return verdict("capabilities", zero or not fresh_proc, "no capability is left, and none can be gained")


def proc(fresh: bool, seen: Seen) -> Capability:
    if fresh and seen.says("proc", "yes"):
        return Capability("proc", "ok", "a fresh /proc shows only the box's processes")
    return Capability(
        "proc",
        "disabled",
        "a fresh /proc is refused here: the box has none",
        "Usual in nested containers with a masked /proc; run the outer one with --security-opt systempaths=unconfined.",
    )


def nested(binary: Bwrap, seen: Seen) -> Capability:
    if not binary.has("--disable-userns"):
        return Capability(
            "no-new-userns",
            "too old",
            "this bubblewrap has no --disable-userns",
            "Install bubblewrap 0.8 or newer.",
        )
    return verdict("no-new-userns", not seen.says("nested", "yes"), "no user namespace can be made inside")


def by_descriptor(binary: Bwrap) -> Capability:
    if binary.has("--bind-fd") and binary.has("--ro-bind-fd"):
        return Capability("bind-fd", "ok", "sources are opened once and mounted by descriptor")
    return Capability(
        "bind-fd",
        "too old",
        "this bubblewrap mounts by path only: a source could be swapped",
        "Install bubblewrap 0.10 or newer.",
    )


def syscall_filter(seen: Seen, fresh_proc: bool, use_filter: bool, problem: str) -> Capability:
    if use_filter and (seen.says("Seccomp:", "2") or not fresh_proc):
        return Capability("seccomp", "ok", "the syscall filter is in force")
    detail = problem or "the box started only without the syscall filter"
    return Capability(
        "seccomp", "missing", detail, "Install libseccomp (libseccomp2 on Debian) and the package pyseccomp."
    )


def root_dropped() -> Capability:
    from stockade.sandbox.survey import NOBODY, identify

    identity = identify(trial_policy("/").replace(write=()), "/usr")
    if not identity.real_root or identity.credentials is not None:
        as_whom = f"real root is dropped to uid {NOBODY}" if identity.real_root else "the caller is not root"
        return Capability("drop-root", "ok", as_whom)
    return Capability("drop-root", "missing", "root can't take another uid here", "Run as an ordinary user.")


def foreign_proc() -> Capability:
    return Capability(
        "user-namespaces",
        "disabled",
        "/proc here shows the processes of another pid namespace: no box could be watched",
        "Mount a fresh /proc in this pid namespace (unshare --mount-proc does).",
    )


def nothing_runs(seen: Seen | None) -> list[Capability]:
    """No box at all: find out which step the host refuses. None: nothing was tried, since /proc is not ours."""
    if seen is None:
        cause = foreign_proc()
    elif seen.spoilt:
        cause = shortage.untried("user-namespaces", seen.spoilt)
    else:
        hung = f"it did not end within {SECONDS:g} s" if seen.hung else ""
        cause = userns.why_not(seen.gate or hung or seen.error)
    rest = (
        "mount-isolation",
        "network-isolation",
        "environment",
        "capabilities",
        "proc",
        "no-new-userns",
        "bind-fd",
        "seccomp",
        "limits",
        "drop-root",
    )
    return [
        cause,
        *(Capability(name, "unknown", "not tried: no box could be started", cause.remedy) for name in rest),
    ]
