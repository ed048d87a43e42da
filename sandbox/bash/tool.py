"""``BashTool``: a shell for a model. Every command in a sandbox, every result with what the sandbox did.

Checks the call, settles its mode, asks where it is wider, and hands it on: ``calls`` carries out, ``session`` and
``keep`` carry state from call to call, ``jobs`` runs in the background, ``output`` and ``describe`` make the texts.
"""

from __future__ import annotations

import os
import threading

from stockade.policies.errors import RequestError, SandboxUnavailable
from stockade.sandbox.bash import calls, modes
from stockade.sandbox.bash.draft import LONGEST, Drafter, allow, check_kept, check_shell
from stockade.sandbox.bash.spill import SpillPlace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self

    from stockade.netns.pool import LeasePool
    from stockade.sandbox.bash.calls import Call
    from stockade.sandbox.bash.jobs import Jobs
    from stockade.sandbox.bash.keep import Kept
    from stockade.sandbox.bash.modes import Escalation
    from stockade.sandbox.bash.result import BashResult, Chunk, JobState
    from stockade.sandbox.bash.session import Session
    from stockade.sandbox.order import Order, PolicyLike
    from stockade.sandbox.stopper import Stopper

    Path = str | os.PathLike[str]

TIMEOUT = 120.0
"""Seconds that a call has when it names none."""

KILL = 9


class BashTool:
    """A shell for a model: commands in a sandbox, and what the sandbox did as facts of the result.

        with stockade.BashTool("workspace-write", cwd="project") as tool:
            result = tool.run("make test", timeout=300)
            result.exit_code, result.sandbox.denied

    policy: a preset's name, the path of a policy file, or a ``Policy``; it is read once, here.
    cwd: the workspace, and where calls begin. The current directory if None.
    shell: what runs ``-c COMMAND``; a name on the box's PATH, or a path.
    session: carry directory, exported variables, functions and options from call to call (bash alone). Each call is
    still a sandbox of its own.
    keep: keep one sandbox with one shell in it, and feed it the commands.
    timeout: seconds of a call that names none, within the cap of 600.
    env: variables of every call, on top of what the policy passes.
    jobs: how many background jobs may run at once.
    approve: asked before a call gets a wider mode than the tool's; answers ``"allowed_once"`` or ``"rejected"``.
    Without one such a call is refused.
    spill_dir: where the directory with the whole of long outputs is made; the place for temporary files if None.
    leases: where to take a network that is made ahead.
    options: keys of the policy and their values, over all its other layers: ``{"network.egress": "record"}``.

    Calls may come from many threads. Raises RequestError and PolicyError for what can't be used.
    """

    def __init__(
        self,
        policy: PolicyLike = modes.WORKSPACE_WRITE,
        *,
        cwd: Path | None = None,
        shell: str = "bash",
        session: bool = False,
        keep: bool = False,
        timeout: float = TIMEOUT,
        env: Mapping[str, str] | None = None,
        jobs: int = 16,
        approve: Callable[[Escalation], Any] | None = None,
        spill_dir: Path | None = None,
        leases: LeasePool | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        if session and keep:
            raise RequestError(
                "could not use session and keep together: a kept shell has its state anyway",
                remedy="Use one of them.",
            )
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0:
            raise RequestError(f"could not use jobs={jobs!r}: it is not a number of jobs")
        self._spills = SpillPlace(spill_dir)
        self._session = make_session(check_shell(shell)) if session else None
        self._drafts = Drafter(
            policy, cwd=cwd, shell=shell, env=env, timeout=timeout, spills=self._spills, session=session,
            asks=approve is not None, options=options,
        )  # fmt: skip
        if keep:
            check_kept(self._drafts.policy)
        self.shell, self.cwd, self.timeout = self._drafts.shell, self._drafts.cwd, self._drafts.timeout
        self._approve = approve
        self._leases = leases
        self._most_jobs = jobs
        self._keeps = keep
        self._lock = threading.Lock()
        self._jobs: Jobs | None = None
        self._kept: Kept | None = None
        self._closed = False

    @property
    def mode(self) -> str:
        """``read-only``, ``workspace-write`` or ``full-access``: known before any call."""
        return self._drafts.mode

    @property
    def enforcement(self) -> str:
        """``full``, ``partial``, ``none`` (full-access), or ``unavailable``: this host can't, and every call is refused."""
        from stockade.sandbox.conduct import judge

        try:
            settled, _host = judge(self.order([self.shell]))
        except SandboxUnavailable:
            return "unavailable"
        return "none" if settled is None else settled.level

    def describe(self) -> str:
        """The description of the tool for a model: what it does, what the sandbox allows, what to do about a denial."""
        from stockade.sandbox.bash.describe import describe

        return describe(
            self._drafts.policy,
            shell=self.shell,
            workspace=self.cwd,
            enforcement=self.enforcement,
            timeout=self.timeout,
            longest=LONGEST,
            state="keep" if self._keeps else "fresh" if self._session is None else "session",
            escalates=self._approve is not None,
        )

    def run(
        self,
        command: str,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        mode: str | None = None,
        justification: str = "",
    ) -> BashResult:
        """Run a command to its end. A code other than 0, a denial and a timeout are facts of the result.

        timeout: seconds, 600 at most; the tool's if None. The policy's own limit holds besides.
        cwd: where it begins, relative to the tool's; the workspace stays the tool's.
        env: variables of this call alone.
        mode: another mode for this call; a wider one needs ``approve`` and a justification.

        Raises RequestError for what can't be used and EscalationRefused for what was not allowed: nothing was run.
        Raises SandboxUnavailable when the host can't enforce the policy, or the sandbox failed.
        """
        call = self.prepare(command, timeout, cwd, env, mode=mode, justification=justification)
        return calls.raise_if_broken(self._carry(call, None))

    async def arun(
        self,
        command: str,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        mode: str | None = None,
        justification: str = "",
    ) -> BashResult:
        """``run``, awaitable; ``approve`` may be too. Cancelling kills the whole run before it returns."""
        call = await self.aprepare(command, timeout, cwd, env, mode=mode, justification=justification)
        return calls.raise_if_broken(await self._acarry(call))

    async def _acarry(self, call: Call) -> BashResult:
        import asyncio

        from stockade.sandbox.runner import finished, in_thread
        from stockade.sandbox.stopper import Stopper

        stopper = Stopper()
        work: asyncio.Future[BashResult] = in_thread(lambda: self._carry(call, stopper))
        try:
            return await asyncio.shield(work)
        except BaseException:
            stopper.request(KILL)
            await finished(work)
            raise
        finally:
            stopper.close()

    def _carry(self, call: Call, stopper: Stopper | None) -> BashResult:
        """The way of a foreground call: the kept shell, the session, or a fresh shell.

        Another mode has a fresh one: what was allowed is a command alone, and functions and variables that commands of
        a narrower mode left would run with it.
        """
        if self._keeps and call.mode == self.mode:
            kept: BashResult = self._shell().run(call, stopper=stopper)
            return kept
        if self._session is not None and call.mode == self.mode:
            return self._session.run(call, stopper=stopper, leases=self._leases)
        return calls.carry(call, stopper=stopper, leases=self._leases)

    def start(
        self,
        command: str,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        mode: str | None = None,
        justification: str = "",
    ) -> str:
        """Start a command in the background, in a sandbox and a shell of its own. Returns the id of its job.

        Takes what ``run`` takes, and raises what it raises before anything is run; without a timeout a job has no end.
        """
        call = self.prepare(command, timeout, cwd, env, mode=mode, justification=justification, background=True)
        return self._background().start(call)

    def poll(self, job: str) -> BashResult | JobState:
        """How a job stands; its result once it has settled. Raises RequestError for one that is not known."""
        return self._background().poll(job)

    def wait(self, job: str, timeout: float | None = None) -> BashResult | JobState:
        """``poll``, after the job has settled or the time (seconds; None: no end) is over."""
        return self._background().wait(job, timeout)

    def read(self, job: str, since: int = 0, *, wait: float | None = None) -> Chunk:
        """What a job wrote from a place on, the first being 0. ``wait``: seconds to wait for more when there is nothing."""
        return self._background().read(job, since, wait=wait)

    def follow(self, job: str, since: int = 0) -> Iterator[Chunk]:
        """What a job writes from a place on, as it comes, up to its end."""
        return self._background().follow(job, since)

    def write(self, job: str, data: bytes | str, *, end: bool = False) -> None:
        """Feed a job's standard input; ``end`` closes it. Raises RequestError when the job takes no more."""
        self._background().write(job, data, end=end)

    def stop(self, job: str, grace: float = 2.0) -> BashResult:
        """Ask a job to stop, kill it when ``grace`` seconds have passed, and return its result."""
        return self._background().stop(job, grace)

    def list(self) -> tuple[BashResult | JobState, ...]:
        """Every job that is known, the oldest first."""
        return self._background().list()

    def close(self) -> None:
        """End the kept shell and every job, and remove the spilled files. A closed tool takes no calls."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, None
            jobs, self._jobs = self._jobs, None
        if kept is not None:
            kept.close()
        if jobs is not None:
            jobs.close()
        self._spills.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(
        self,
        command: str,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        mode: str | None = None,
        justification: str = "",
        background: bool = False,
    ) -> Call:
        """Check a call, and ask where its mode is wider; nothing is spawned. For ``jobs`` and servers."""
        self._check_open()
        cwd = self._start(cwd, mode, background=background)
        call, wish = self._drafts.draft(command, timeout, cwd, env, mode, justification, background=background)
        if wish is not None:
            assert self._approve is not None
            answer = self._approve(wish)
            if hasattr(answer, "__await__"):
                close = getattr(answer, "close", None)
                if close is not None:
                    close()
                raise RequestError("could not ask for the wider mode: approve is asynchronous", remedy="Use arun.")
            allow(wish, answer)
            self._check_open()  # it may have been closed while somebody was asked
        return call

    async def aprepare(
        self,
        command: str,
        timeout: float | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        mode: str | None = None,
        justification: str = "",
        background: bool = False,
    ) -> Call:
        """``prepare``, with an ``approve`` that may be awaited."""
        self._check_open()
        cwd = self._start(cwd, mode, background=background)
        call, wish = self._drafts.draft(command, timeout, cwd, env, mode, justification, background=background)
        if wish is not None:
            assert self._approve is not None
            answer = self._approve(wish)
            allow(wish, await answer if hasattr(answer, "__await__") else answer)
            self._check_open()
        return call

    def _start(self, cwd: Path | None, mode: str | None, *, background: bool) -> Path | None:
        """A foreground call of another mode begins where the session is, as far as the host has that directory."""
        if cwd is None and self._session is not None and not background and mode not in (None, self.mode):
            where = self._session.state.cwd
            if os.path.isdir(where):
                return os.fsdecode(where)
        return cwd

    def order(self, argv: Sequence[str]) -> Order:
        """An order of the tool's own mode for a program of ours: what ``keep`` starts its shell with. No timeout."""
        return self._drafts.order(argv)

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("could not use the tool: it is closed", remedy="Make another one.")

    def _background(self) -> Jobs:
        from stockade.sandbox.bash.jobs import Jobs

        with self._lock:
            self._check_open()
            if self._jobs is None:
                self._jobs = Jobs(self._most_jobs, leases=self._leases)
            return self._jobs

    def _shell(self) -> Kept:
        from stockade.sandbox.bash.keep import Kept

        with self._lock:
            self._check_open()
            if self._kept is None:
                self._kept = Kept(self.order, self.shell, leases=self._leases)
            return self._kept


def make_session(shell: str) -> Session:
    from stockade.sandbox.bash.session import Session

    return Session(shell)
