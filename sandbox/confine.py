"""``confine``: the argv, environment and descriptors of a confined start, for callers that spawn for themselves.

Nothing is started. What ``run`` adds is missing here: no supervision, no deadline, no limits on processes,
no stand-ins for protected names that don't exist (a policy that needs them is refused).
"""

from __future__ import annotations

import os
import resource

from stockade.policies.errors import RequestError
from stockade.sandbox import argv as lines
from stockade.sandbox.bwrap import find_helper
from stockade.sandbox.classify import Case, Outcome, classify
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.launch import Launch, content, open_source, stage, stage_program
from stockade.sandbox.mounts import OVERLAY
from stockade.sandbox.program import diagnose
from stockade.sandbox.status import read_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from stockade.policies.model import Policy
    from stockade.sandbox.confinement import Confinement
    from stockade.sandbox.program import Diagnosis


class Confined:
    """A confined start that is ready to be spawned once.

    ``subprocess.run(confined.argv, env=confined.env, pass_fds=confined.fds)``, then ``classify(returncode)``.
    A context manager; the descriptors are closed at its end.
    """

    def __init__(self, start: Confinement, diagnosis: Diagnosis) -> None:
        self.plan = start.plan
        self.env: dict[str, str] = {}
        """The environment of bubblewrap itself: empty. The program's travels with the options."""
        self._diagnosis = diagnosis
        self._status = os.memfd_create("stockade-status", os.MFD_CLOEXEC)
        self._fds = [self._status]
        try:
            self.argv = self._command(start)
        except BaseException:
            self.close()
            raise

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that bubblewrap must inherit under the same numbers (``pass_fds``)."""
        return tuple(self._fds)

    def _command(self, start: Confinement) -> list[str]:
        plan = self.plan
        by_descriptor = start.bwrap.has("--bind-fd") and start.bwrap.has("--ro-bind-fd")
        rendered = lines.render(plan, supervised=False, seccomp=False, by_descriptor=by_descriptor, staged={})
        for source in rendered.sources:
            self._fds.append(open_source(source.path) if source.path else content(source.data, "stockade-file"))
        options = rendered.renumbered(self._fds[1:])
        if start.filter_program:
            self._fds.append(content(start.filter_program, "stockade-filter"))
            options += ["--seccomp", str(self._fds[-1])]
        options += ["--json-status-fd", str(self._status)]
        self._fds.append(content(b"".join(os.fsencode(option) + b"\0" for option in options), "stockade-args"))
        identity = [] if plan.credentials is None else identity_words(*plan.credentials)
        return [
            *limit_words(plan.limits),
            *identity,
            start.bwrap.path,
            "--args",
            str(self._fds[-1]),
            "--",
            *plan.argv,
        ]

    def classify(self, returncode: int, *, status: bytes | None = None, stderr: bytes = b"") -> Outcome:
        """What happened, from bubblewrap's return code (negative for a signal, as ``subprocess`` has it).

        status: bubblewrap's status records, if they went elsewhere than to our own descriptor.
        stderr: what was captured; quoted where nothing was executed, and never interpreted.
        """
        from stockade.sandbox.cli.style import escape

        records = read_all(self.status() if status is None else status)
        wait_status = -returncode if returncode < 0 else returncode << 8
        evidence = Evidence(
            released=records.child_pid is not None or records.exit_code is not None,
            box_seen=records.child_pid is not None,
            garbled=records.strange,
            exit_code=records.exit_code,
            wait_status=wait_status,
        )
        message = "" if records.exit_code is not None else escape(stderr.decode("utf-8", "replace").strip()[-300:])
        return classify(Case(evidence, True, self._diagnosis, message, None))

    def status(self) -> bytes:
        """The status records that bubblewrap has written so far."""
        size = os.fstat(self._status).st_size
        return os.pread(self._status, size, 0)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def limit_words(limits: Iterable[tuple[str, int]]) -> list[str]:
    """Set the limits of a policy but that of processes, which would count those of the caller too."""
    wanted = [(name, value) for name, value in limits if name != "NPROC"]
    helper = find_helper("prlimit")
    if not wanted:
        return []
    if helper is None:
        raise RequestError(
            "could not set the limits of the policy: prlimit is not installed",
            remedy="Install util-linux, or use stockade.run.",
        )
    return [helper, *(f"--{name.lower()}={no_more(name, value)}" for name, value in wanted)]


def no_more(name: str, value: int) -> int:
    """What the caller is held to stays."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def identity_words(uid: int, gid: int) -> list[str]:
    return ["/usr/bin/setpriv", "--reuid", str(uid), "--regid", str(gid), "--clear-groups", "--inh-caps=-all"]


def confine(
    argv: str | Sequence[str | bytes],
    *,
    policy: str | os.PathLike[str] | Policy | None = None,
    mode: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    write: Iterable[str | os.PathLike[str]] = (),
) -> Confined:
    """Build a confined start without starting it. Arguments as for ``run``.

    Raises what ``run`` raises; RequestError also for a policy that needs the keeper: a leased network, stand-ins
    for protected names, or sources that an unprivileged uid can't reach.
    """
    from stockade.sandbox.conduct import judge
    from stockade.sandbox.confinement import prepare
    from stockade.sandbox.order import call_options, make_order

    options = call_options(mode=mode or "auto", timeout=None, allow=(), record_egress=False, write=write)
    order = make_order(argv, policy=policy, cwd=cwd, env=env, options=options)
    settled, host = judge(order)
    if settled is None:
        raise RequestError(
            "could not confine the command: the policy's mode is off",
            remedy='Choose a policy that confines, or pass mode="auto".',
        )
    assert host is not None
    assert host.bwrap is not None
    start = prepare(
        order.policy, order.request, host.bwrap, fresh_proc=host.has("proc"), use_filter=host.has("seccomp")
    )
    refuse_keeper_work(start)
    plan = start.plan
    return Confined(
        start, diagnose(plan.argv[0], path=dict(plan.env).get("PATH", ""), cwd=plan.cwd, view=plan.view)
    )


def refuse_keeper_work(start: Confinement) -> None:
    if any(mount.op == OVERLAY for mount in start.plan.mounts):
        raise RequestError(
            "could not build a start that needs no keeper: an overlay workspace needs one",
            remedy="Use stockade.run, or a policy with another workspace.",
        )
    if start.plan.leased:  # without its lease the box would have the caller's network
        raise RequestError(
            "could not build a start that needs no keeper: a leased network needs one",
            remedy='Use stockade.run, or a policy with network.egress = "none".',
        )
    launch = Launch()
    try:
        staged, _places = stage(start.plan, launch)
        stage_program(start.bwrap.path, start.plan, staged, launch)
    finally:
        launch.close()
    if start.plan.stubs or staged:
        what = start.plan.stubs[0] if start.plan.stubs else "a directory that only root can enter"
        raise RequestError(
            f"could not build a start that needs no keeper: {what!r} needs one",
            remedy="Use stockade.run, or a policy with a read-only workspace.",
        )
