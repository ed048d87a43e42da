"""The keeper: a small single-threaded process that starts confined programs and outlives its supervisor.

Theory of operation
    supervisor   runs the policy, reads status and streams, decides. May be killed at any moment.
    keeper       this file. Child subreaper. Holds nothing of the caller's: no descriptors, no environment.
    child        forked per run by the keeper; performs ``STEPS`` in order, then becomes bwrap (or the program).

    orders       supervisor -> keeper, one pipe per run. Its end means that nobody waits for the run.
    events       keeper -> supervisor, one pipe per run: failed | started, then ended.
    error pipe   child -> keeper, closed by a successful exec; a failed step writes what failed.
    control      supervisor -> keeper, one socket: brings jobs with their descriptors.

It exists because bwrap's --die-with-parent takes effect late: a supervisor killed in the first milliseconds
leaves the box running, or stuck for ever. The keeper watches the supervisor by pidfd, kills what is left as
its reaper, and removes what the run put on the host. It decides nothing and knows nothing of policies.
``keeperlink`` is its other side.
"""

from __future__ import annotations

import errno
import os
import resource
import select

from stockade.sandbox import childsteps, stubs
from stockade.sandbox.keeperself import settle, watch
from stockade.sandbox.messages import receive, receive_job, send
from stockade.sandbox.processes import has_cgroups, own_children, starts_namespace
from stockade.sandbox.spare import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any

    from stockade.sandbox.cgroup import Group, Groups
    from stockade.sandbox.spare import Failure
else:
    import _signal as signal  # ``signal`` and ``socket`` pull in enum, which costs milliseconds
    import _socket as socket


class Run:
    """One started program: its pipes, its first process and what it left on the host."""

    def __init__(self, orders: int, events: int, job: dict[str, Any]) -> None:
        self.orders = orders
        self.events = events
        self.confined: bool = job["confined"]
        self.service: bool = job.get("service", False)
        self.credentials: tuple[int, int] | None = job["credentials"]
        self.pid = 0
        self.pidfd = -1
        self.box = 0
        self.held: list[stubs.Stub] = []
        self.group: Group | None = None
        self.ended_by_us = False
        self.strangers: set[int] = set()
        """What we had adopted before it began: left by runs that ended by themselves, and none of its."""


class Keeper:
    """The loop: runs by their order pipe, first processes by pidfd."""

    def __init__(self, supervisor: int, control: socket.socket, *, lasting: bool, leased: bool = False) -> None:
        self.supervisor = supervisor
        self.lasting = lasting
        self.groups = groups_here()
        self.spares: list[Child] = []
        self.wanted = 3 if leased else 1
        """Children to keep ready: a leased run takes three."""
        self.preload = leased
        self.site: str | None = None
        self.prepare_spare()
        self.control = control
        self.listening = True
        self.runs: dict[int, Run] = {}
        self.exits: dict[int, Run] = {}
        self.kept: dict[int, bytes] = {}
        """Private directories of runs, by the leash (a pipe's end) whose other end their owner holds."""
        self.poll = select.poll()
        self.poll.register(supervisor, select.POLLIN)
        self.poll.register(control, select.POLLIN)

    def loop(self) -> None:
        """Until the supervisor is gone, or wants no more, and every run was cleared away."""
        try:
            self.serve()
        finally:
            for spare in self.spares:
                spare.dismiss()

    def serve(self) -> None:
        while self.runs or self.exits or self.kept or self.listening:
            # One at a time: handling it may close descriptors whose numbers another one then has.
            fd, _events = self.poll.poll()[0]
            if fd == self.supervisor:
                self.end_everything()
                for run in list(self.exits.values()):
                    self.finish(run)
                for leash in list(self.kept):
                    self.let_go(leash)
                return
            if self.listening and fd == self.control.fileno():
                self.accept()
            elif fd in self.exits:
                self.finish(self.exits[fd])
            elif fd in self.runs:
                self.hear(self.runs[fd])
            elif fd in self.kept:
                self.let_go(fd)

    def accept(self) -> None:
        """A new run, with its two pipes as the first descriptors."""
        message = receive_job(self.control)
        if message is None:
            self.poll.unregister(self.control)
            self.control.close()
            self.listening = False
            return
        job, (orders, events, *fds) = message
        self.start(job, fds, orders, events)

    def hear(self, run: Run) -> None:
        """One order of a run's supervisor."""
        order = receive(run.orders)
        if order is None:
            self.abandon(run)
        elif order["kind"] == "box":
            run.box = order["pid"]
        elif order["kind"] == "ending":
            run.ended_by_us = True
        elif order["kind"] == "kill":
            run.ended_by_us = True
            if run.pid:
                kill_session(run.pid, confined=run.confined)
        elif order["kind"] == "limit":
            self.answer(run, {"kind": "limit", "errno": limit(order, run.credentials)})

    def start(self, job: dict[str, Any], fds: list[int], orders: int, events: int) -> None:
        run = Run(orders, events, job)
        self.runs[orders] = run
        self.poll.register(orders, select.POLLIN)
        if "kept" in job:
            path, at = job["kept"]
            self.keep(path, fds[at])
        try:
            for path in job["stubs"]:
                run.held.append(stubs.hold(path, run.credentials))
            pid, failure = self.launch(self.grouped(run, job), fds)
            if failure is not None and failure[0] == "cgroup":
                self.groups = None  # what looked as if it were ours is not: the other limits hold without
                pid, failure = self.launch(self.grouped(run, job), fds)
        except OSError as error:
            pid, failure = 0, ("prepare", error.errno or errno.EIO, os.fsdecode(error.filename or ""))
        for fd in set(fds):  # a terminal stands for several streams
            os.close(fd)
        if failure is not None:
            self.release(run)
            self.answer(run, {"kind": "failed", "step": failure[0], "errno": failure[1], "detail": failure[2]})
            return
        if job["program"] is None:
            self.expect_leases(job["holder"]["site"])
        run.pid, run.pidfd = pid, os.pidfd_open(pid)
        if not run.confined and not run.service:
            run.strangers = set(self.adopted())
        self.exits[run.pidfd] = run
        self.poll.register(run.pidfd, select.POLLIN)
        self.answer(run, {"kind": "started", "pid": pid, "cgroup": run.group.path if run.group else ""})
        if job["program"] is None:
            for _ in range(2 - len(self.spares)):
                self.prepare_spare()  # for the run and the connector, while this holder gets ready

    def keep(self, path: bytes, leash: int) -> None:
        """Remember a private directory that goes with its owner, who may need it long after the run."""
        from stockade.sandbox import private  # noqa: F401  (now: what is installed may be gone later)

        leash = os.dup(leash)
        self.kept[leash] = path
        self.poll.register(leash, select.POLLIN)

    def let_go(self, leash: int) -> None:
        """The owner is gone, or has removed the directory by itself."""
        from stockade.sandbox import private

        self.poll.unregister(leash)
        os.close(leash)
        private.discard(os.fsdecode(self.kept.pop(leash)))

    def grouped(self, run: Run, job: dict[str, Any]) -> dict[str, Any]:
        """The job, in a cgroup of its own where the host lets us make one."""
        if run.group is not None:
            run.group.remove()
            run.group = None
        if self.groups is None or not run.confined:
            return {**job, "cgroup": None}
        try:
            run.group = self.groups.make(*job["together"])
        except OSError:
            self.groups = None
            return {**job, "cgroup": None}
        # What the whole run uses is bounded now: what one process reserves need not be.
        limits = [each for each in job["limits"] if each[0] != "DATA"]
        return {**job, "limits": limits, "cgroup": os.fsencode(f"{run.group.path}/cgroup.procs")}

    def launch(self, job: dict[str, Any], fds: list[int]) -> tuple[int, Failure | None]:
        """Start a job in the child that waits, or in a new one. Returns its pid, and which step failed if one did."""
        child = self.spares.pop() if self.spares else Child()
        try:
            return child.pid, child.become(job, fds)
        except ConnectionError:
            # The waiting one was killed meanwhile; a new one says by itself what is wrong.
            os.waitpid(child.pid, 0)
            child = Child()
            return child.pid, child.become(job, fds)

    def finish(self, run: Run) -> None:
        """The first process ended: clear away its box, confirm that it is gone, then report."""
        status, cpu, peak, counted = self.reap(run)
        self.answer(run, {"kind": "ended", "status": status, "cpu": cpu, "peak": peak, "counted": counted})
        if self.lasting and self.listening:
            self.prepare_spare()

    def prepare_spare(self) -> None:
        """Fork a child for a run to come, in an idle moment."""
        if self.preload:
            from stockade.netns import holder

            holder.preload(self.site)
            self.preload = False
        if len(self.spares) < self.wanted:
            self.spares += filter(None, [spare_child()])

    def expect_leases(self, site: str | None) -> None:
        """After a first one: have what a holder loads in memory before the next children are forked."""
        if self.wanted == 1:
            self.wanted, self.preload, self.site = 3, True, site

    def reap(self, run: Run) -> tuple[int, float, int, dict[str, int]]:
        """Wait for a run's first process and, when it was confined, for every process of its box.

        Returns wait status, processor seconds, the largest resident size in bytes, and its cgroup's figures.
        """
        self.poll.unregister(run.pidfd)
        del self.exits[run.pidfd]
        os.close(run.pidfd)
        _pid, status, usage = os.wait4(run.pid, 0)
        first, run.pid = run.pid, 0
        if run.ended_by_us and not run.confined and not run.service:
            self.end_adopted(run, first)
        # The monitor's own figures include this Python before its exec: the box's are the program's.
        used = (self.kill_boxes(run.box) if run.confined else []) or [usage]
        counted = run.group.figures() if run.group else {}
        self.release(run)
        self.collect()
        # ru_maxrss is in KiB (getrusage(2)).
        return (
            status,
            sum(each.ru_utime + each.ru_stime for each in used),
            max(each.ru_maxrss for each in used) * 1024,
            counted,
        )

    def kill_boxes(self, box: int) -> list[resource.struct_rusage]:
        """Kill orphaned boxes: bwrap's pid 1 becomes our child when its monitor ends before it.

        ``box`` is 0 when the run ended before it was known; then any orphan that is the first process of
        a pid namespace is one.
        """
        known = self.known()
        used = []
        for pid in own_children():
            if pid not in known and (pid == box or (box == 0 and starts_namespace(pid))):
                os.kill(pid, signal.SIGKILL)
                used.append(os.wait4(pid, 0)[2])
        return used

    def end_adopted(self, run: Run, first: int) -> None:
        """Where other runs go on nobody can say whose an orphan is: then those of its session are ended alone."""
        from stockade.sandbox import adopted

        alone = not any(other.pid for other in self.runs.values() if other is not run)
        adopted.end(lambda: [pid for pid in self.adopted() if pid not in run.strangers], None if alone else first)

    def adopted(self) -> list[int]:
        known = self.known()
        return [pid for pid in own_children() if pid not in known]

    def collect(self) -> None:
        """Reap adopted processes that have ended by themselves; first processes are waited for by pid."""
        known = self.known()
        for pid in own_children():
            if pid not in known:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def known(self) -> set[int]:
        """Children that are waited for by pid."""
        pids = {run.pid for run in (*self.runs.values(), *self.exits.values())}
        return pids | {spare.pid for spare in self.spares}

    def abandon(self, run: Run) -> None:
        """Nobody waits for this run: end it, clear it away, forget it."""
        self.poll.unregister(run.orders)
        del self.runs[run.orders]
        os.close(run.orders)
        os.close(run.events)
        run.events = -1
        if run.pid:
            run.ended_by_us = True
            kill_session(run.pid, confined=run.confined)
            # A connector takes tens of milliseconds to go: nobody waits for that, its exit is heard of.
            if not run.service:
                self.reap(run)
        self.release(run)

    def end_everything(self) -> None:
        for run in list(self.runs.values()):
            self.abandon(run)

    def release(self, run: Run) -> None:
        if run.group is not None:
            run.group.remove()
            run.group = None
        for stub in run.held:
            stubs.release(stub)
        run.held = []

    def answer(self, run: Run, message: dict[str, Any]) -> None:
        if run.events < 0:
            return
        try:
            send(run.events, message)
        except OSError:
            pass  # the supervisor went away meanwhile: its pidfd or the closed pipe says so next


def groups_here() -> Groups | None:
    """Whether runs can have cgroups. On a host without the unified hierarchy this is one failing access(2)."""
    if not has_cgroups():
        return None
    from stockade.sandbox import cgroup

    return cgroup.open_groups()


def spare_child() -> Child | None:
    try:
        return Child()
    except OSError:
        return None  # too many processes: the next start says so if it is still true then


def limit(body: dict[str, Any], credentials: tuple[int, int] | None) -> int:
    """Set resource limits of another process under the credentials of its run.

    prlimit(2) wants equal real, effective and saved ids, or CAP_SYS_RESOURCE, which root in a container lacks.
    """
    try:
        pid = os.fork()
    except OSError as error:
        return error.errno or errno.EAGAIN
    if pid == 0:
        code = errno.EPERM
        try:
            if credentials is not None:
                childsteps.take_credentials(*credentials)
            for number, value in body["limits"]:
                resource.prlimit(body["pid"], number, (value, value))
            code = 0
        except OSError as error:
            code = error.errno or errno.EPERM
        finally:
            os._exit(code)
    _pid, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EINTR  # somebody killed it


def kill_session(pid: int, *, confined: bool) -> None:
    """SIGKILL a run's first process; unconfined, also the group it leads."""
    if not confined:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def serve(control_fd: int, supervisor: int, *, lasting: bool, leased: bool = False, scoped: bool = False) -> None:
    """Be a keeper: serve the jobs that come down a control socket, until the supervisor is gone.

    ``lasting``: many runs are to come, so that a child is kept ready after each; else only for the first.
    ``leased``: the first run will need a leased network. ``scoped``: we are alone in a scope that is ours to divide.
    """
    settle(control_fd)
    pidfd = watch(supervisor)
    if pidfd >= 0:
        os.set_inheritable(control_fd, False)
        control = socket.socket(fileno=control_fd)
        if scoped:
            from stockade.sandbox import cgroup

            control.send(b"divided" if cgroup.settle_in_scope() else b"whole")
        Keeper(pidfd, control, lasting=lasting, leased=leased).loop()
