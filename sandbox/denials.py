"""What the program was refused (pure). ``observed`` rests on our own instruments, ``suspected`` on its words.

An observed limit was seen to be reached: by the kernel's counters, or from outside while the program ran. A denial
explains nothing by itself: a program may meet one and succeed. Text counts only when the program failed, since
anybody can print it.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stockade.sandbox.classify import Outcome


class Denial(Record):
    """One refusal. ``kind`` is filesystem, network, syscall or limit; ``certainty`` observed or suspected."""

    kind: str
    certainty: str
    subject: str
    detail: str
    hint: str


class Sign(Record):
    """Words of common programs that go with a refusal."""

    text: str
    kind: str
    hint: str


READ_ONLY = "If it should write there, add --write PATH or use --policy workspace-write."
NO_NETWORK = "The network is off. --allow HOST opens one host."
SIGNS = (
    Sign("Read-only file system", "filesystem", READ_ONLY),
    Sign("EROFS", "filesystem", READ_ONLY),
    Sign("Network is unreachable", "network", NO_NETWORK),
    Sign("ENETUNREACH", "network", NO_NETWORK),
    Sign("Temporary failure in name resolution", "network", NO_NETWORK),
    Sign("Could not resolve host", "network", NO_NETWORK),
    Sign("EAI_AGAIN", "network", NO_NETWORK),
    Sign("Name or service not known", "network", NO_NETWORK),
)
LIMIT_SIGNALS = {24: ("limits.cpu", "SIGXCPU"), 25: ("limits.file_size", "SIGXFSZ")}
LIMIT_SIGNS = (
    Sign("No space left on device", "limit", "limits.tmp bounds /tmp and HOME inside; a full disk says the same."),
    Sign("Cannot allocate memory", "limit", "limits.memory bounds each process."),
    Sign("MemoryError", "limit", "limits.memory bounds each process."),
    Sign("Resource temporarily unavailable", "limit", "limits.processes bounds how many run at once."),
    Sign("Too many open files", "limit", "limits.open_files bounds descriptors."),
    Sign("File too large", "limit", "limits.file_size bounds each file."),
)
LIMIT_HINTS = {
    "limits.memory": "--memory SIZE raises it.",
    "limits.tmp": "It bounds every temporary directory inside.",
}
MOST_LINE = 200


def find_denials(
    outcome: Outcome,
    *,
    egress: str,
    streams: Sequence[bytes],
    quote: Callable[[str], str],
    refused: Sequence[tuple[str, str, str]] = (),
    reached: Mapping[str, str] | None = None,
    value_of: Callable[[str], str] = lambda _key: "",
) -> tuple[Denial, ...]:
    """Denials of a confined run. ``streams`` are the captured outputs, ``quote`` makes control bytes visible.

    ``refused`` is what a leased network refused: subject, detail and hint, by its own counters. ``reached`` maps
    limits that were reached to what was seen; ``value_of`` gives the value of a limit as the policy has it.
    """
    if not outcome.started:
        return ()
    found = [Denial("network", "observed", *each) for each in refused]
    found += [limit_reached(key, seen, value_of(key)) for key, seen in (reached or {}).items()]
    suspected = limit_signal(outcome)
    if outcome.exit_code not in (0, None) or outcome.outcome == "timed_out":
        suspected += read_signs(streams, egress, quote)
    for each in suspected:
        key = limit_of(each.hint)
        if key not in (reached or ()):
            found.append(with_value(each, value_of(key)) if key else each)
    return tuple(found)


def with_value(denial: Denial, value: str) -> Denial:
    return denial.replace(hint=f"{denial.hint} It is {value} here.") if value else denial


def limit_reached(key: str, seen: str, value: str) -> Denial:
    hint = LIMIT_HINTS.get(key, f"{key} of the policy raises it.")
    return Denial("limit", "observed", key, f"reached {key} = {value}: {seen}", hint)


def limit_of(hint: str) -> str:
    """The limit that a hint begins with."""
    word = hint.partition(" ")[0]
    return word if word.startswith("limits.") else ""


def limit_signal(outcome: Outcome) -> list[Denial]:
    key, text = LIMIT_SIGNALS.get(outcome.signal or 0, ("", ""))
    if not key:
        return []
    return [Denial("limit", "suspected", key, f"likely ended by {text}", f"{key} bounds it.")]


def read_signs(streams: Sequence[bytes], egress: str, quote: Callable[[str], str]) -> list[Denial]:
    """The first line for each kind of sign."""
    found: dict[tuple[str, str], Denial] = {}
    for sign in (*SIGNS, *LIMIT_SIGNS):
        if sign.kind == "network" and egress != "none":
            continue
        line = first_line(streams, sign.text.encode())
        if line is not None:
            detail = quote(line.decode("utf-8", "replace").strip()[:MOST_LINE])
            found.setdefault((sign.kind, sign.hint), Denial(sign.kind, "suspected", sign.text, detail, sign.hint))
    return list(found.values())


def first_line(streams: Sequence[bytes], text: bytes) -> bytes | None:
    for stream in streams:
        at = stream.find(text)
        if at >= 0:
            start = stream.rfind(b"\n", 0, at) + 1
            end = stream.find(b"\n", at)
            return stream[start : end if end >= 0 else len(stream)]
    return None
