"""``stockade hook``: stands in front of a hook's argv. Whatever fails here is the host's own deny, never a consent."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.options import APPEND, FLAG, OPTIONAL_FILE, VALUE, Option, UsageError, parse, render_help
from stockade.sandbox.keeperlink import fork_keeper_if_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.hooks.dialects.base import Dialect
    from stockade.sandbox.hooks.model import HookOutcome, Reply
    from stockade.sandbox.hooks.runhook import HookResult, Told
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

OPTIONS = (
    Option(("--dialect",), "dialect", VALUE, "NAME", "whose protocol the hook speaks (default: claude)", "Hook"),
    Option(("--event",), "event", VALUE, "NAME", "the event, where its payload does not name it (antigravity, agy)", "Hook"),
    Option(("--trusted",), "trusted", FLAG, "", "the hook is yours: run it directly unless a mode is set", "Hook"),
    Option(("--fail-closed",), "fail_closed", FLAG, "", "a trusted hook that fails counts as a deny too", "Hook"),
    Option(("--root",), "root", VALUE, "DIR", "the plugin that the hook belongs to: shown to it, read-only", "Hook"),
    Option(("--observe",), "observe", OPTIONAL_FILE, "FILE", "change no outcome; add what it did to an audit file", "Hook"),
    Option(("--pinned",), "pinned", APPEND, "ID", "refuse unless the hook is as it was pinned", "Hook"),
    *shared.POLICY_OPTIONS,
    shared.HELP,
)  # fmt: skip
USAGE = "stockade hook [OPTIONS] [--] COMMAND [ARGUMENT...]"
SUMMARY = (
    "Run a hook of a coding agent for the event on stdin, confined. Its stdout, stderr and exit code are passed on "
    "as they are when it ended as its protocol allows; otherwise the answer is that host's own deny."
)
EPILOG = (
    "Dialects: claude, codex, antigravity, agy, gemini, cursor, nous.\n\n"
    "The default policy is `hook`: read-only workspace, no network, an empty HOME, 10 s."
)
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
MOST_EVENT = 64 << 20
"""Bytes; no host sends as much."""
MOST_OBSERVED = "64M"
INTERRUPTED = "interrupted before the hook ended"


def main(argv: Sequence[str]) -> int:
    """The exit code is the hook's own, or that of a deny. Raises nothing."""
    state = Answering(name_in(argv))
    catch_stops(interrupt)
    try:
        return attempt(state, argv)
    except KeyboardInterrupt:  # in the middle of a refusal
        return state.refuse_surely(INTERRUPTED)


def attempt(state: Answering, argv: Sequence[str]) -> int:
    try:
        parsed = parse(OPTIONS, argv, rest="command")
        if parsed.values["help"]:
            sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
            return exits.OK
        return state.answer(parsed.values, parsed.rest)
    except StockadeError as error:
        return state.refuse_surely(error.message, error.remedy)
    except KeyboardInterrupt:
        return state.refuse_surely(INTERRUPTED)
    except Exception as error:  # whatever it is, it is no consent
        if os.environ.get("STOCKADE_TRACEBACK"):
            import traceback

            traceback.print_exc()
        cause = f"internal error: {type(error).__name__}: {error}"
        return state.refuse_surely(cause, "STOCKADE_TRACEBACK=1 shows where; please report it.")


def catch_stops(handler: Any) -> None:
    """Stay until the answer is out: ending by a signal is no deny to most hosts."""
    for name in STOPS:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def interrupt(_number: int, _frame: object) -> None:
    """Until there is a hook to stop. Once: the refusal that follows is to come out whole."""
    catch_stops(pass_over)
    raise KeyboardInterrupt


def pass_over(_number: int, _frame: object) -> None:
    """While an answer is written, and after it: half of one, or an end by a signal, is no deny."""


class Answering:
    """What is known so far of whom the answer is for: the less, the plainer the deny."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.language: Dialect | None = None
        self.told: Told | None = None

    def answer(self, values: dict[str, Any], command: Sequence[str]) -> int:
        from stockade.sandbox.hooks.dialects import dialect

        self.name = values["dialect"] or "claude"
        self.language = dialect(self.name)
        if not command:
            raise UsageError("could not run the hook: no command was given", remedy=f"Usage: {USAGE}")
        # It gets ready on another processor while this one reads, imports and plans.
        fork_keeper_if_ours(leased=bool(values["allow"] or values["record_egress"] or values["open_egress"]))
        self.told = told(self.language, values["event"])
        require_pins(values["pinned"], command)
        result = self.run(values, command)
        require_pins(values["pinned"], command)  # what was changed while it ran may be what ran
        if values["observe"] is not None:
            return observed(result, self.told, values["observe"])
        return self.reply(result)

    def run(self, values: dict[str, Any], command: Sequence[str]) -> HookResult:
        from stockade.sandbox.hooks.runhook import hook_order, perform

        assert self.told is not None
        assert self.language is not None
        options = shared.policy_layer(values)
        if values["observe"] is not None:
            options["limits.output"] = MOST_OBSERVED
        order = hook_order(
            command,
            self.told,
            self.language,
            policy=values["policy"],
            trusted=values["trusted"],
            cwd=values["cwd"],
            env=shared.variables(values["env"]),
            root=values["root"] or "",
            options=options,
        )
        from stockade.sandbox.stopper import Stopper

        stopper = Stopper()
        catch_stops(lambda caught, _frame: stopper.request(caught))
        return perform(
            order,
            self.told,
            self.language,
            fail_closed=values["fail_closed"],
            stopper=stopper,
            plain_warnings=True,
        )

    def reply(self, result: HookResult) -> int:
        """The hook's own bytes where its host reads from them what counts; else that said in the host's words."""
        same = result.answer.verdict == result.host_answer.verdict and result.answer.halt == result.host_answer.halt
        ended_itself = result.outcome in ("exited", "signalled", "timed_out", "not_executed") and not cut(result)
        if same and ended_itself and not self.guessed(result):
            return say(result.stdout, result.stderr, result.returncode)
        if result.answer.verdict == "deny":
            cause = result.answer.reason.strip() or "it refused and gave no reason"
            return self.refuse(cause, stderr=result.stderr, judged=result.answer)
        return self.refuse(
            "its output is longer than limits.output", "Raise it in the policy.", stderr=result.stderr
        )

    def guessed(self, result: HookResult) -> bool:
        """Whether it is a refusal only as far as a host is known of which little is: that one is told plainly."""
        assert self.language is not None
        if not self.language.PROVISIONAL or result.enforcement == "none" or result.answer.verdict != "deny":
            return False
        return result.exit_code != 0 or bool(result.answer.problems)

    def refuse(
        self, cause: str, remedy: str = "", *, stderr: bytes = b"", judged: HookOutcome | None = None
    ) -> int:
        """Deny, as far as this event can be denied, with one line that says why and what to do.

        ``judged``: a refusal that may also end the turn.
        """
        about = f"{cause.rstrip('.')}. {remedy}".strip() if remedy else cause
        answer = self.deny(about, judged)
        if answer is None:
            return blind_deny(self.name, about)
        line = why(about)
        # Where the host takes stderr for the reason, the hook's own words would be read as ours.
        ahead = b"" if answer.exit_code == 2 else ended(stderr)
        return tell(answer.stdout, ahead + line, answer.exit_code)

    def refuse_surely(self, cause: str, remedy: str = "") -> int:
        """The same, where even that could fail."""
        try:
            return self.refuse(cause, remedy)
        except Exception:
            return blind_deny(self.name, cause)

    def deny(self, cause: str, judged: HookOutcome | None) -> Reply | None:
        """The dialect's deny of this event; None while nothing is known of it."""
        if self.language is None or self.told is None:
            return None
        from stockade.sandbox.hooks.merge import merge
        from stockade.sandbox.hooks.model import HookOutcome

        refusal = HookOutcome(verdict="deny", reason=cause, source="failure_policy", status="failed")
        if judged is not None:
            refusal = refusal.replace(halt=judged.halt, stop_reason=judged.stop_reason)
        return self.language.encode(self.told.event.name, merge([refusal]))


def require_pins(pinned: Sequence[str], command: Sequence[str]) -> None:
    """Raises PinBroken for a hook that is not as it was pinned."""
    if pinned:
        from stockade.sandbox.hooks import pin

        pin.require(pinned, command)


BY_DOCUMENT = ("antigravity", "agy")
"""Hosts that make nothing of an exit code."""
BLIND = b'{"decision":"deny","reason":"stockade could not let the hook answer"}\n'


def blind_deny(name: str, cause: str) -> int:
    """The deny of an event of which nothing is known: exit code 2 and a line, or the document where only that counts."""
    if name in BY_DOCUMENT:
        return tell(BLIND, why(cause), 0)
    return say(b"", why(cause), 2)


def why(cause: str) -> bytes:
    from stockade.sandbox.cli.style import escape

    return f"stockade: the hook counts as a refusal: {escape(cause)}\n".encode("utf-8", "replace")


def name_in(argv: Sequence[str]) -> str:
    """The dialect that a command line names, even one that can't be understood otherwise."""
    for index, word in enumerate(argv):
        if word == "--":
            break
        if word.startswith("--dialect="):
            return word.partition("=")[2]
        if word == "--dialect" and index + 1 < len(argv):
            return argv[index + 1]
    return "claude"


def told(language: Dialect, name: str | None) -> Told:
    """The event on stdin; ``name`` is what the command line calls it. Raises RequestError for what is none."""
    from stockade.sandbox.hooks.runhook import understand

    if name is not None and name not in language.EVENTS:
        raise UsageError(
            f"could not use --event {name!r}: {language.NAME} has no such event",
            remedy=f"Use one of {', '.join(language.EVENTS)}.",
        )
    if os.isatty(0):
        raise RequestError("could not read the event: stdin is a terminal", remedy="Give it as JSON on stdin.")
    found = understand(read_event(), language)
    if name is None:
        return found
    return found.replace(event=found.event.replace(name=name, kind=language.rule(name).kind))


def read_event() -> bytes:
    chunks: list[bytes] = []
    total = 0
    while True:
        try:
            chunk = os.read(0, 1 << 20)
        except BlockingIOError:
            wait(0, "POLLIN")
            continue
        except OSError as error:
            raise RequestError(f"could not read the event: {(error.strerror or str(error)).lower()}") from None
        if not chunk:
            return b"".join(chunks)
        total += len(chunk)
        if total > MOST_EVENT:
            raise RequestError(f"could not read the event: it is longer than {MOST_EVENT >> 20} MiB")
        chunks.append(chunk)


def cut(result: HookResult) -> bool:
    return result.stdout_truncated or result.stderr_truncated


def ended(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + b"\n"


def observed(result: HookResult, event: Told, target: str | bool) -> int:
    """Pass everything on as it was, and write down what was seen."""
    from stockade.sandbox.hooks import audit

    complaints = b""
    try:
        audit.append(audit.default_path() if target is True else str(target), audit.entry(event.event, result))
    except StockadeError as error:
        complaints += f"stockade: {error.message}. {error.remedy}\n".encode("utf-8", "replace")
    if not result.started:
        complaints += f"stockade: the hook was not run: {result.reason}\n".encode("utf-8", "replace")
    elif cut(result):
        complaints += b"stockade: the hook's output was cut: it is longer than 64 MiB\n"
    return say(result.stdout, ended(result.stderr) + complaints if complaints else result.stderr, result.returncode)


def tell(stdout: bytes, stderr: bytes, code: int) -> int:
    """Write a refusal. Where nobody can read the document that it is, the exit code has to say it."""
    return say(stdout, stderr, 2 if stdout and goes_nowhere(1) else code)


def goes_nowhere(fd: int) -> bool:
    """Whether it is /dev/null, as it also is where the host started us without this stream."""
    try:
        return os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    except OSError:
        return True


def say(stdout: bytes, stderr: bytes, code: int) -> int:
    """Write an answer. One that could not be written counts as a deny: exit code 2, and a line, which some hosts want."""
    catch_stops(pass_over)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # what stands in them is no part of the answer
    put(2, stderr)
    if put(1, stdout):
        return code
    put(2, b"stockade: the hook counts as a refusal: its answer could not be written\n")
    return 2


def put(fd: int, data: bytes) -> bool:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            wait(fd, "POLLOUT")
        except OSError:
            return False
    return True


def wait(fd: int, what: str) -> None:
    """For a stream that its host left non-blocking."""
    import select

    poll = select.poll()
    poll.register(fd, getattr(select, what))
    poll.poll()
