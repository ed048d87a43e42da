"""Watch one run from its start to the end of its last process, and gather the evidence.

Processes, from the outside in: supervisor (this loop) - keeper (starts, reaps, clears away) - bwrap's monitor -
pid 1 of the box - the program. What is read, and in which order it counts:

    events    from the keeper: a failed step, the start, the end with a wait status. The end is only reported
              when every process of the box is gone, so what is in the pipes by then is all there will ever be.
    status    bwrap's records: the pid of the box, then the exit code if the program was really executed.
    streams   the program's output, drained and capped.

The gate (bwrap's --block-fd) holds the program back until its namespaces were checked from outside and its
limits set. The gate's other end stays open in the box's pid 1 (--sync-fd): a supervisor that dies never opens
it by accident. This file decides nothing about outcomes: ``classify`` does, from ``Evidence``.
"""

from __future__ import annotations

import errno
import os
import select
import time

from stockade.sandbox.evidence import Evidence
from stockade.sandbox.messages import receive, send
from stockade.sandbox.processes import alive, crowd, is_zombie, namespace, tell
from stockade.sandbox.status import StatusReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from stockade.sandbox.evidence import Bounds
    from stockade.sandbox.limitwatch import LimitWatch
    from stockade.sandbox.stopper import Stopper
    from stockade.sandbox.streams import Stream
    from stockade.sandbox.terminal import Terminal
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

GRACE = 0.1
"""Seconds between the polite stop and the kill at a deadline."""

ASK_AGAIN = 0.002
"""Seconds until a stop that nobody could hear yet is tried again."""

EMPTY = 1.0
"""Seconds after which a box that was asked to stop and has nobody in it is killed."""

SAMPLE = 0.1
"""Seconds between two looks at the processes in the box, at least: looking takes a twentieth of the time or so."""

FIRST_LOOK = 0.02
"""Seconds from letting the program go to the first look: short commands end without one."""

CROWDED = 0.02
"""Seconds between two looks where nobody else limits the number of processes; up to SAMPLE where there are many."""

SILENT = 0.5
"""Seconds that the keeper gets to carry out a kill before it is taken for stopped, and told to go on."""

LAST_WAIT = 0.5
"""Seconds that the caller's readers get to take what a run that had to be ended left behind."""

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")


class Supervisor:
    """One run. ``watch`` returns when the run is over and nothing of it is left."""

    def __init__(
        self,
        *,
        orders: int,
        events: int,
        status: int = -1,
        gate: int = -1,
        streams: Sequence[Stream] = (),
        terminal: Terminal | None = None,
        stopper: Stopper | None = None,
        deadline: float | None = None,
        process_limit: int | None = None,
        bounds: Bounds | None = None,
        network: str = "",
        lease: Mapping[int, str] | None = None,
        held: str = "",
        confirm: Callable[[int], str] | None = None,
        sample: float = SAMPLE,
    ) -> None:
        """Takes over the four descriptors; ``status`` and ``gate`` are -1 for an unconfined run.

        ``deadline`` is a time of ``time.monotonic``. ``network`` is the leased network namespace that the box
        must be in (``net:[...]``), or empty for one of its own; ``lease`` maps the event descriptors of the
        lease's parts to their names; ``held`` says why its network can't be used, and then nothing is let go.
        ``confirm`` is asked with the pid of the box why it must not be let go; empty if it may.
        ``sample``: seconds between two looks at the processes in the box, at least.
        """
        self.orders, self.events, self.status, self.gate = orders, events, status, gate
        self.confined = status >= 0
        self.streams, self.terminal, self.stopper = streams, terminal, stopper
        self.deadline = deadline
        self.process_limit = process_limit
        self.bounds = bounds
        self.limits: LimitWatch | None = None
        self.network = network
        self.lease = dict(lease or {})
        self.records = StatusReader()
        self.first = 0
        self.released = not self.confined
        self.inside = ""
        """The pid namespace of the box, once it was looked at."""
        self.kill_at: float | None = None
        self.wake_at: float | None = None
        self.unheard = 0
        self.unheard_until = 0.0
        self.sample = sample
        self.sample_at = time.monotonic() + sample
        self.crowd = None if bounds is None else bounds.crowd
        self.held = held
        self.confirm = confirm
        self.found: dict[str, Any] = {}
        self.over = False

    def watch(self) -> Evidence:
        """Run the loop. Returns when the keeper said that the run ended, failed, or when the keeper is gone."""
        try:
            if self.held:
                late = self.deadline is not None and time.monotonic() >= self.deadline
                self.found |= {"deadline_passed": True} if late else {"lease_failure": self.held}
                self.kill()
            while not self.over:
                self.turn()
        finally:
            self.close()
        if self.limits is not None:
            self.found["reached"] = tuple(self.limits.reached.items())
            # Of those that were killed with their box nobody reaped the times.
            self.found["cpu"] = max(self.found.get("cpu", 0.0), self.limits.cpu)
        return Evidence(
            exit_code=self.exit_code(),
            box_seen=self.records.child_pid is not None,
            garbled=self.records.strange,
            released=self.released,
            **self.found,
        )

    def turn(self) -> None:
        owners = self.interests()
        poll = select.poll()
        for fd, (events, _handler) in owners.items():
            poll.register(fd, events)
        for fd, events in poll.poll(self.patience()):
            if not self.over:
                owners[fd][1](fd, events)
        if not self.over:
            self.check_time()

    def interests(self) -> dict[int, tuple[int, Callable[[int, int], object]]]:
        """What to wait for: descriptor, poll events, who handles it. Status before events: the last record counts."""
        owners: dict[int, tuple[int, Callable[[int, int], object]]] = {}
        if self.status >= 0:
            owners[self.status] = (select.POLLIN, self.on_status)
        owners[self.events] = (select.POLLIN, self.on_event)
        owners |= dict.fromkeys(self.lease, (select.POLLIN, self.on_lease))
        if self.stopper is not None:
            owners[self.stopper.read] = (select.POLLIN, self.on_stop)
        for stream in self.streams:
            owners |= {fd: (events, stream.handle) for fd, events in stream.interest()}
        if self.terminal is not None:
            owners |= {fd: (events, self.terminal.handle) for fd, events in self.terminal.fds()}
        return owners

    def patience(self) -> float | None:
        """Milliseconds until the clock matters."""
        times = [when for when in (self.deadline, self.kill_at, self.wake_at) if when is not None]
        if self.released:
            times.append(self.sample_at)
        if self.unheard:
            times.append(time.monotonic() + ASK_AGAIN)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 0.5 if times else None

    def check_time(self) -> None:
        now = time.monotonic()
        if self.unheard:
            if now < self.unheard_until:
                self.stop(self.unheard)
            else:
                self.unheard = 0
                self.kill()
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.kill()
        if self.wake_at is not None and now >= self.wake_at:
            from stockade.sandbox import keeperlink

            keeperlink.wake()
            self.wake_at = now + SILENT
        if self.deadline is not None and now >= self.deadline:
            if self.released and self.kill_at is None:
                self.look(now)  # the last chance to see what it was short of
            self.deadline = None
            if self.records.exit_code is None:  # else it ended in time, and only its box is still being cleared
                self.found["deadline_passed"] = True
            self.kill_at = now + GRACE
            self.stop(signal.SIGTERM)
        if now >= self.sample_at:
            if self.found.get("stop_signal") and not self.unheard and not self.living():
                self.await_somebody(self.found["stop_signal"])
            self.look(now)

    def look(self, now: float) -> None:
        """Count processes, and see which limits are reached."""
        pids, threads = self.counted()
        if self.too_many(threads):
            return
        self.found["processes"] = max(self.found.get("processes", 1), len(pids))
        if self.bounds is not None and self.records.child_pid is not None and self.records.exit_code is None:
            if self.limits is None:
                from stockade.sandbox.limitwatch import LimitWatch

                self.limits = LimitWatch(self.bounds, self.records.child_pid, self.found.get("cgroup", ""))
            self.limits.look(pids)
            self.check_cpu(now, self.limits)
        took = time.monotonic() - now
        # Who is near the limit can be far above it soon: a crowd is looked at again however long a look takes.
        pause = 20 * took if self.crowd is None else max(3 * took, min(20 * took, SAMPLE))
        self.sample_at = now + max(self.sample, pause)

    def too_many(self, threads: int) -> bool:
        """Kill a run of root that has more processes and threads than it may: no limit of the kernel's binds it."""
        if self.found.get("cgroup"):
            self.crowd = None
        if self.crowd is None:
            return False
        self.sample = CROWDED
        if threads <= self.crowd:
            return False
        self.found["crowd"] = threads
        self.crowd = None
        self.kill()
        return True

    def check_cpu(self, now: float, limits: LimitWatch) -> None:
        """Out of processor time: asked to stop, then killed, as at the deadline."""
        if "limits.cpu" in limits.reached and "cpu_spent" not in self.found and self.kill_at is None:
            self.found["cpu_spent"] = limits.cpu
            self.kill_at = now + GRACE
            self.stop(signal.SIGTERM)

    def on_event(self, _fd: int, _events: int) -> None:
        event = receive(self.events)
        if event is None:
            self.found["keeper_lost"] = True
            from stockade.sandbox.orphans import end_box

            end_box((pid for pid in (self.records.child_pid, self.first) if pid), self.gate)
            self.over = True
        elif event["kind"] == "started":
            self.first = event["pid"]
            self.found["cgroup"] = event["cgroup"]
        elif event["kind"] == "limit":
            self.on_limit(event["errno"])
        elif event["kind"] == "failed":
            self.found |= {f"failed_{key}": event[key] for key in ("step", "errno", "detail")}
            self.over = True
        else:
            self.found |= {"wait_status": event["status"], "cpu": event["cpu"], "peak": event["peak"]}
            self.found["counted"] = tuple(event["counted"].items())
            self.over = True

    def on_lease(self, fd: int, _events: int) -> None:
        """A part of the lease says that it started, or that it is gone: without it nothing is what it was."""
        event = receive(fd)
        if event is None or event["kind"] != "started":
            self.found["lease_lost"] = self.lease.pop(fd)
            self.kill()

    def on_status(self, fd: int, _events: int) -> None:
        known = self.records.child_pid
        data = os.read(fd, 4096)
        self.records.feed(data)
        if not data:
            os.close(self.status)
            self.status = -1
        if known is None and self.records.child_pid is not None:
            self.check_box(self.records.child_pid)
            # After the gate, so that waking the keeper does not delay the program. Should this process die
            # before, the keeper still knows a box: by its being the first process of a pid namespace.
            self.order({"kind": "box", "pid": self.records.child_pid})

    def check_box(self, box: int) -> None:
        """Before the program may start: its namespaces are its own, and it may not make too many processes."""
        if self.held:
            return
        try:
            theirs = {name: namespace(box, name) for name in NAMESPACES}
            self.inside = theirs["pid"]
            shared = [name for name in NAMESPACES if theirs[name] == namespace(None, name)]
            if shared:
                self.release(f"the box shares the host's {', '.join(shared)} namespace")
            elif self.network and theirs["net"] != self.network:
                self.release("the box is not in the leased network")
            elif self.confirm is not None and (failure := self.confirm(box)):
                self.release(failure)
            elif self.process_limit is None:
                self.release("")
            else:
                # One more where a cgroup has the same limit: it counts what it refuses, and so has to come first.
                self.limit_processes(box, self.process_limit + bool(self.found.get("cgroup")))
        except (FileNotFoundError, ProcessLookupError):
            if alive(box) and not os.path.exists(f"/proc/{box}"):
                self.release("/proc does not show the box")
            # else set-up failed meanwhile: bwrap says so by ending without an exit code
        except PermissionError as error:
            if is_zombie(box):
                return  # set-up failed meanwhile, as above: a dead process shows its namespaces to root alone
            self.release(f"could not look at its namespaces: {os.strerror(error.errno or 0).lower()}")

    def limit_processes(self, box: int, most: int) -> None:
        """RLIMIT_NPROC counts per user namespace from Linux 5.14 on, so it is set inside, and before the program."""
        import resource

        try:
            hard = resource.prlimit(box, resource.RLIMIT_NPROC)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(box, resource.RLIMIT_NPROC, (most, most))
        except PermissionError:
            self.order({"kind": "limit", "pid": box, "limits": [(resource.RLIMIT_NPROC, most)]})
        else:
            self.release("")

    def on_limit(self, code: int) -> None:
        """The keeper set the limit, or could not. ESRCH: set-up failed meanwhile, and bwrap says so by ending."""
        if code != errno.ESRCH:
            self.release(f"could not limit processes: {os.strerror(code).lower()}" if code else "")

    def release(self, failure: str) -> None:
        """Open the gate, or end the run because it must not be opened."""
        if failure:
            self.found["gate_failure"] = failure
            self.kill()
            return
        if self.found.get("killed"):
            return  # its end was ordered: a keeper that is slow may still have to hear of it
        try:
            os.write(self.gate, b"g")
        except BrokenPipeError:
            return  # the box was killed meanwhile: how bwrap ended says so next
        self.released = True
        self.sample_at = time.monotonic() + FIRST_LOOK

    def on_stop(self, fd: int, _events: int) -> None:
        for number in os.read(fd, 64):
            if number == signal.SIGKILL or self.found.get("stop_signal") or not self.released:
                self.found.setdefault("stop_signal", number)
                self.kill()
            else:
                self.found["stop_signal"] = number
                self.stop(number)

    def stop(self, number: int) -> None:
        """Ask every process of the run to stop: a shell runs its trap only when its child has ended.

        Just let go, the box has nobody yet who would hear it: then it is asked again until somebody is there. In
        an old one that has nobody left the first process hangs: a program may have stopped it. It is killed.
        """
        if not self.released:
            self.kill()
            return
        # Told first: the keeper must know whose doing it is when it sees the first process end.
        self.order({"kind": "ending"})
        there = self.living()
        self.await_somebody(0 if there else number)
        tell(there, (number, signal.SIGCONT), self.top(), self.inside)

    def await_somebody(self, number: int) -> None:
        """Nobody was there to hear a signal: for how long to try again. 0: somebody was."""
        if number and not self.unheard:
            self.unheard_until = time.monotonic() + EMPTY
        self.unheard = number

    def living(self) -> list[int]:
        return [pid for pid in self.processes() if not is_zombie(pid)]

    def processes(self) -> list[int]:
        """The program and all it started; without pid 1 of the box, which ignores polite signals."""
        return self.counted()[0]

    def top(self) -> int:
        """What all processes of the run are below; 0 as long as it is not known."""
        return (self.records.child_pid or 0) if self.confined else self.first

    def counted(self) -> tuple[list[int], int]:
        """The same, and how many threads they are."""
        top = self.top()
        if not top:
            return [], 0
        # Listing all of a fork bomb's processes would take longer than it takes to double.
        found, threads = crowd(top, self.crowd)
        return (found, threads) if self.confined else ([top, *found], threads + 1)

    def kill(self) -> None:
        self.found["killed"] = True
        if not self.confined:
            tell(self.processes()[1:], (signal.SIGKILL,), self.first, "")
        self.order({"kind": "kill"})
        self.wake_at = time.monotonic() + SILENT

    def order(self, message: dict[str, Any]) -> None:
        try:
            send(self.orders, message)
        except BrokenPipeError:
            pass  # the keeper is gone: the closed event pipe says so next

    def exit_code(self) -> int | None:
        status = self.found.get("wait_status")
        if self.confined:
            return self.records.exit_code
        return os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None

    def last_moment(self) -> float | None:
        """How long the caller's readers may take for what is left: no longer than the run itself could have."""
        if self.over and not any(map(self.found.get, ("killed", "deadline_passed", "stop_signal"))):
            return self.deadline
        return time.monotonic() + LAST_WAIT

    def close(self) -> None:
        """The last status records, the rest of the streams, and every descriptor."""
        if self.status >= 0:
            os.set_blocking(self.status, False)
            try:
                while data := os.read(self.status, 4096):
                    self.records.feed(data)
            except BlockingIOError:
                pass
        if self.limits is not None:
            self.limits.close()
        until = self.last_moment()
        for stream in self.streams:
            stream.finish(until)
        for fd in (self.orders, self.events, self.status, self.gate):
            if fd >= 0:
                os.close(fd)
        self.orders = self.events = self.status = self.gate = -1
