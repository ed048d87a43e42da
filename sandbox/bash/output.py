"""What a model reads of a result (pure): the body, then one marker a line, in a fixed order.

A marker begins with ``[stockade]``, and no line of the body does. Control characters of the body are spelt out, all
but line ends and tabs; the bytes in the result are never changed.
"""

from __future__ import annotations

from stockade.sandbox.cli.style import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.bash.result import BashResult
    from stockade.sandbox.denials import Denial

MARK = "[stockade]"
MOST_DENIALS = 10
KEYS = {
    "filesystem": "filesystem.write (or mode workspace-write)",
    "network": "network.allow",
    "syscall": "syscalls.filter",
}
"""Which key of a policy would allow what was refused; a limit names its own."""


def whole_end(data: bytes) -> int:
    """Where ``data`` can be cut at its end without leaving the beginning of a UTF-8 character."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < wanted and byte < 0xF8 else len(data)
    return len(data)


def whole_start(data: bytes) -> int:
    """Where ``data`` can begin without the rest of a UTF-8 character whose beginning is missing."""
    at = 0
    while at < min(3, len(data)) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def render(result: BashResult) -> str:
    """The text for a model: what the command wrote, then what is to be known about it."""
    body = "".join(parts(result))
    if body and not body.endswith("\n"):
        body += "\n"
    marks = "".join(f"{MARK} {line}\n" for line in markers(result))
    return body + marks or f"{MARK} no output\n"


def parts(result: BashResult) -> Iterator[str]:
    out = stream_text(
        result.stdout,
        result.stdout_cut if result.stdout_truncated else None,
        result.stdout_bytes,
        result.stdout_file,
    )
    err = stream_text(
        result.stderr,
        result.stderr_cut if result.stderr_truncated else None,
        result.stderr_bytes,
        result.stderr_file,
    )
    yield out
    if out and err and not out.endswith("\n"):
        yield "\n"
    yield err


def stream_text(data: bytes, cut: int | None, total: int, file: str | None) -> str:
    """One stream, with a marker where its middle is missing."""
    if cut is None:
        return body_text(data)
    where = f"; the whole is in {escape(file)}" if file else ""
    head, tail = body_text(data[:cut]), body_text(data[cut:])
    head += "" if head.endswith("\n") or not head else "\n"
    return f"{head}{MARK} {total - len(data)} of {total} bytes are left out here{where}\n{tail}"


def body_text(data: bytes) -> str:
    """Foreign bytes as text that can neither act on a terminal nor pass for a marker."""
    return "\n".join(plain_line(line) for line in data.decode("utf-8", "surrogateescape").split("\n"))


def plain_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        text = line
    else:
        text = "\t".join(escape(piece) for piece in line.removesuffix("\r").split("\t"))
    return f"\\{text}" if text.lstrip().startswith(MARK) else text


def markers(result: BashResult) -> Iterator[str]:
    """Denials, the end by time, the signal, the exit code; what outranks them first, what is only good to know last."""
    if result.sandbox.runner_failed:
        yield f"the sandbox failed, the command is not to blame: {escape(result.reason)}"
    denials = result.sandbox.denials
    for denial in denials[:MOST_DENIALS]:
        yield denial_line(denial)
    if len(denials) > MOST_DENIALS:
        yield f"the sandbox denied {len(denials) - MOST_DENIALS} more"
    yield from ending(result)
    for note in result.notes:
        yield f"note: {escape(note)}"


def ending(result: BashResult) -> Iterator[str]:
    """How it ended, where that is not simply well."""
    if result.timed_out:
        yield escape(result.reason)
    elif result.outcome in ("stopped", "lost"):
        yield f"{result.outcome}: {escape(result.reason)}"
    if result.signal is not None:
        yield f"killed by signal {result.signal}{signal_name(result.signal)}"
    if result.exit_code:
        yield f"exit code {result.exit_code}"


def signal_name(number: int) -> str:
    from signal import Signals

    try:
        return f" ({Signals(number).name})"
    except ValueError:
        return ""


def denial_line(denial: Denial) -> str:
    """What was denied, how sure that is, and which key of the policy would allow it."""
    verb = "denied" if denial.certainty == "observed" else "probably denied"
    what = denial.detail if denial.subject in denial.detail else f"{denial.subject}: {denial.detail}"
    return f"the sandbox {verb} ({denial.kind}): {escape(what)}; allowed by {policy_key(denial)}"


def policy_key(denial: Denial) -> str:
    """The key of a policy that would allow it."""
    if denial.kind != "limit":
        return KEYS.get(denial.kind, "another policy")
    from stockade.sandbox.denials import limit_of

    return denial.subject if denial.subject.startswith("limits.") else limit_of(denial.hint) or "limits"
