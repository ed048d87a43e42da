"""What the program was refused (pure). ``observed`` rests on our own instruments, ``suspected`` on its words.

A denial explains nothing by itself: a program may meet one and succeed. Text counts only when the program
failed, since anybody can print it.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
LIMIT_SIGNALS = {25: ("file_size", "SIGXFSZ")}
LIMIT_SIGNS = (
    Sign("No space left on device", "limit", "limits.tmp bounds /tmp and HOME inside; a full disk says the same."),
    Sign("Cannot allocate memory", "limit", "limits.memory bounds each process."),
    Sign("MemoryError", "limit", "limits.memory bounds each process."),
    Sign("Resource temporarily unavailable", "limit", "limits.processes bounds how many run at once."),
    Sign("Too many open files", "limit", "limits.open_files bounds descriptors."),
    Sign("File too large", "limit", "limits.file_size bounds each file."),
)
MOST_LINE = 200


def find_denials(
    outcome: Outcome,
    *,
    egress: str,
    streams: Sequence[bytes],
    quote: Callable[[str], str],
    refused: Sequence[tuple[str, str, str]] = (),
) -> tuple[Denial, ...]:
    """Denials of a confined run. ``streams`` are the captured outputs, ``quote`` makes control bytes visible.

    ``refused`` is what a leased network refused: subject, detail and hint, by its own counters.
    """
    if not outcome.started:
        return ()
    found = [Denial("network", "observed", *each) for each in refused]
    found += limit_signal(outcome)
    if outcome.exit_code not in (0, None) or outcome.outcome == "timed_out":
        found += read_signs(streams, egress, quote)
    return tuple(found)


def limit_signal(outcome: Outcome) -> list[Denial]:
    name, text = LIMIT_SIGNALS.get(outcome.signal or 0, ("", ""))
    if not name:
        return []
    return [Denial("limit", "suspected", name, f"likely ended by {text}", f"limits.{name} bounds it.")]


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
