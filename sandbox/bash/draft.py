"""From the arguments of a call to a checked ``Call`` in its mode, and to what has to be asked first.

Spawns nothing, and asks nobody: that is for the tool.
"""

from __future__ import annotations

import os

from stockade.policies.errors import EscalationRefused, RequestError
from stockade.sandbox.bash import calls, modes
from stockade.sandbox.bash.calls import Call
from stockade.sandbox.order import Order
from stockade.sandbox.request import check_text, directory, make_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.bash.modes import Escalation
    from stockade.sandbox.bash.spill import SpillPlace
    from stockade.sandbox.order import PolicyLike

    Path = str | os.PathLike[str]

LONGEST = 600.0
"""Seconds that a call may name at most."""

LONGEST_JOB = 1_000_000.0
"""Seconds that a job may name at most; without any it has no end."""


class Drafter:
    """What holds for all calls of a tool."""

    def __init__(
        self,
        policy: PolicyLike,
        *,
        cwd: Path | None,
        shell: str,
        env: Mapping[str, str] | None,
        timeout: float,
        spills: SpillPlace,
        session: bool,
        asks: bool,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """``session``: foreground calls get their shell elsewhere, all but those of another mode. ``asks``: a wider mode can
        be asked for.

        Raises RequestError and PolicyError: what calls are checked for later is checked here once.
        """
        self.shell = check_shell(shell)
        self.timeout = calls.check_timeout(timeout, LONGEST)
        request = make_request([self.shell], cwd=cwd, env=env)
        self.cwd = request.cwd
        self.env = dict(request.env)
        self.policy = resolve(policy, self.cwd, options or {})
        self.mode = modes.mode_of(self.policy)
        self.chosen = is_chosen(self.policy)
        self.spills, self.session, self.asks = spills, session, asks
        spills.keep_out_of(self._writable())

    def _writable(self) -> list[str]:
        """Directories of the host that the tool's own commands can write, as far as there is a sandbox."""
        if self.mode == modes.FULL_ACCESS:
            return []
        given = [*self.policy.write, *([] if self.policy.home == "empty" else [self.policy.home])]
        found = [os.path.realpath(os.path.join(self.cwd, os.path.expanduser(each))) for each in given]
        return [self.cwd, *found]

    def order(self, argv: Sequence[str]) -> Order:
        """An order of the tool's own mode for a program of ours. No timeout."""
        request = make_request(argv, cwd=self.cwd, env=self.env)
        return Order(request, self.policy.replace(timeout=None), self.chosen, None)

    def draft(
        self,
        command: str,
        timeout: float | None,
        cwd: Path | None,
        env: Mapping[str, str] | None,
        mode: str | None,
        justification: str,
        *,
        background: bool,
    ) -> tuple[Call, Escalation | None]:
        """A checked call, and what has to be allowed first."""
        text = calls.check_command(command)
        chosen = self._mode(mode)
        wanted = self._seconds(timeout, background=background)
        start = self.cwd if cwd is None else self._start(cwd)
        own = make_request([self.shell], cwd=self.cwd, env=env).env
        variables = {**self.env, **dict(own)}
        elsewhere = self.session and not background and chosen == self.mode
        argv = (self.shell,) if elsewhere else calls.shell_argv(self.shell, text)
        request = make_request(argv, cwd=self.cwd, env=variables).replace(start=start if cwd is not None else "")
        policy = modes.in_mode(self.policy, chosen)
        limits = [each for each in (wanted, policy.timeout) if each is not None]
        order = Order(
            request,
            policy.replace(timeout=min(limits, default=None)),
            # Somebody chose to have no sandbox, by name: that is not warned about.
            trusted=chosen == modes.FULL_ACCESS and (self.chosen or chosen != self.mode),
            stdin=None,
        )
        call = Call(text, order, chosen, start, self.spills, tuple(name for name, _ in own), cwd is not None)
        return call, self._wish(call, justification)

    def _start(self, cwd: Path) -> str:
        """A call's own directory. Raises RequestError."""
        text = check_text(cwd, "the directory")
        return directory(os.path.join(self.cwd, text) if text else text)

    def _mode(self, mode: str | None) -> str:
        if mode is None:
            return self.mode
        if mode not in modes.MODES:
            raise RequestError(
                f"could not use mode={mode!r}: it is not one", remedy=f"Use one of {', '.join(modes.MODES)}."
            )
        return mode

    def _seconds(self, timeout: float | None, *, background: bool) -> float | None:
        if timeout is None:
            return None if background else self.timeout
        return calls.check_timeout(timeout, LONGEST if not background else LONGEST_JOB)

    def _wish(self, call: Call, justification: str) -> Escalation | None:
        """What to ask, where the mode is wider than the tool's. Raises EscalationRefused where nobody can be asked."""
        if not modes.is_wider(call.mode, self.mode):
            return None
        if not self.asks:
            raise EscalationRefused(
                f"could not run the command with mode {call.mode}: the tool has {self.mode}, and nobody to ask for more",
                mode=call.mode,
                remedy="Give the tool an approve callback, or the wider policy.",
            )
        reason = check_text(justification, "the justification").strip()
        if not reason:
            raise EscalationRefused(
                f"could not ask for mode {call.mode}: there is no justification",
                mode=call.mode,
                remedy="Say why the command needs it.",
            )
        return modes.Escalation(call.command, call.cwd, call.mode, self.mode, reason)


def check_shell(shell: object) -> str:
    text = check_text(shell, "the shell")
    if not text.strip() or text.startswith("-"):
        raise RequestError(
            f"could not use the shell {text!r}: it is not a program", remedy='Use "bash", or a path.'
        )
    return text


def check_kept(policy: Resolved) -> None:
    """Raises RequestError for a policy that a kept shell can't be under."""
    if policy.workspace == "overlay":
        raise RequestError(
            "could not use keep with an overlay workspace: what a call changed is known when its sandbox has ended",
            remedy="Use a fresh shell or session=True: then each result has its changes.",
        )


def resolve(policy: PolicyLike, workspace: str, options: Mapping[str, object]) -> Resolved:
    """The policy of the tool, for all of its life: a command can't change it between two calls."""
    from stockade.sandbox import policycache

    named = os.fspath(policy) if isinstance(policy, str | os.PathLike) else None
    given = None if named is not None or policy is None else policy
    return policycache.resolved(named, given, workspace, options)  # type: ignore[arg-type]


def is_chosen(policy: Resolved) -> bool:
    """Whether an unconfined tool is what its maker asked for, and not what some file or variable makes of it."""
    where = dict(policy.origin).get("mode", "")
    return policy.mode == "off" and not where.startswith(("environment ", "system ", "user "))


def allow(wish: Escalation, answer: object) -> None:
    """Only one word allows, for this one call. Raises EscalationRefused."""
    if not isinstance(answer, str) or str(answer) != modes.ALLOWED_ONCE:  # something else may claim to equal it
        said = "it was rejected" if answer == modes.REJECTED else f"the answer {answer!r} is not one"
        raise EscalationRefused(
            f"could not run the command with mode {wish.mode}: {said}", mode=wish.mode, remedy="Do without it."
        )
