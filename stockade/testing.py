"""Assertions on a ``RunResult``, for the tests of those who run foreign code.

    from stockade.testing import assert_no_egress, assert_wrote_only
    result = stockade.run(["./hook"], record_egress=True)
    assert_egress_only(result, ["api.example.com"])

An assertion never passes because nothing was looked at: on a result in which the thing was not recorded it
raises ``NotRecorded``.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stockade.netns.egress import EgressAttempt
    from stockade.policies.hosts import HostRule
    from stockade.sandbox.result import RunResult
    from stockade.sandbox.writes import WrittenFile

__all__ = ["NotRecorded", "assert_egress_only", "assert_no_egress", "assert_no_write", "assert_wrote_only"]

MOST_LINES = 20


class NotRecorded(AssertionError):
    """The result can't tell: what the assertion is about was not recorded in this run."""


class Expected(Record):
    """A host that may be contacted."""

    rule: HostRule
    protocol_said: bool
    port_said: bool
    """Without, every port is meant."""


def assert_no_egress(result: RunResult) -> None:
    """Nothing was contacted, asked for or tried.

    Under ``egress = "none"`` nothing can leave, and tries are not recorded: that passes if the run was confined.
    Raises ``AssertionError`` with the list of attempts, ``NotRecorded`` if the network was not looked at.
    """
    __tracebackhide__ = True
    attempts = _egress(result)
    if attempts:
        raise AssertionError(_list("the program contacted", map(_attempt_text, attempts)))


def assert_egress_only(result: RunResult, hosts: Iterable[str]) -> None:
    """Nothing but ``hosts`` was contacted, asked for or tried; they need not all have been.

    A host is a name, ``*.name``, an address or a range, and stands for every port of it, or with a port
    (``name:443``, ``udp://name:123``) for that alone. Raises ``AssertionError`` with the list of other attempts,
    ``NotRecorded`` if the network was not looked at, ``PolicyError`` for a host that can't be read.
    """
    __tracebackhide__ = True
    texts = _texts(hosts, "hosts")
    expected = [_expected(text) for text in texts]
    others = [each for each in _egress(result) if not _meant(each, expected)]
    if others:
        known = ", ".join(texts) or "nothing"
        raise AssertionError(_list(f"expected {known}; the program contacted too", map(_attempt_text, others)))


def assert_no_write(result: RunResult) -> None:
    """No file was created, changed or deleted where writing was possible.

    Raises ``AssertionError`` with the list, ``NotRecorded`` if writes were not recorded.
    """
    __tracebackhide__ = True
    written = _written(result)
    if written:
        raise AssertionError(_list("the program wrote", map(_file_text, written)))


def assert_wrote_only(result: RunResult, paths: Iterable[str]) -> None:
    """No file outside ``paths`` was created, changed or deleted; they need not all have been.

    A path is absolute. A directory stands for all below it; ``*``, ``?`` and ``[...]`` match within one component,
    ``**`` any number of them. A directory that was made is
    a write of its own. Raises ``AssertionError`` with the list of other files, ``NotRecorded`` if writes were
    not recorded, ``ValueError`` for a relative path.
    """
    __tracebackhide__ = True
    expected = _texts(paths, "paths")
    for path in expected:
        if not path.startswith("/"):
            raise ValueError(f"a path must be absolute, as in the result: {path!r}")
    others = [file for file in _written(result) if not any(_covers(path, file.path) for path in expected)]
    if others:
        known = ", ".join(map(repr, expected)) or "nothing"
        raise AssertionError(_list(f"expected {known}; the program wrote too", map(_file_text, others)))


# --- what was recorded -------------------------------------------------------------------------------------


def _egress(result: RunResult) -> Sequence[EgressAttempt]:
    """The attempts. Without a network there are none; of any other kind the packets must have been counted."""
    _require_confined(result, "egress")
    if result.policy.egress != "none" and result.egress_dropped is None:
        raise NotRecorded("could not check egress: it was not recorded in this run")
    return result.egress


def _written(result: RunResult) -> Sequence[WrittenFile]:
    _require_confined(result, "writes")
    if result.files_written is None:
        raise NotRecorded("could not check writes: they were not recorded in this run")
    return result.files_written


def _require_confined(result: RunResult, what: str) -> None:
    if result.enforcement == "none":
        raise NotRecorded(f"could not check {what}: the program was not confined (pass mode='strict')")
    if not result.started:
        raise NotRecorded(f"could not check {what}: the program never ran ({result.outcome}: {result.reason})")


# --- matching ----------------------------------------------------------------------------------------------


def _meant(attempt: EgressAttempt, expected: Sequence[Expected]) -> bool:
    """Every name of the address must be expected: packets do not say which of them was meant."""
    if any(_address_fits(each, attempt) for each in expected):
        return True
    return all(
        any(_name_fits(each, attempt, name) for each in expected) for name in attempt.shared or (attempt.host,)
    )


def _name_fits(expected: Expected, attempt: EgressAttempt, name: str) -> bool:
    from stockade.policies.hosts import matches_name

    return matches_name(expected.rule, name) and (attempt.via == "dns" or _place_fits(expected, attempt))


def _address_fits(expected: Expected, attempt: EgressAttempt) -> bool:
    from ipaddress import ip_address, ip_network

    if (
        expected.rule.network is None
        or attempt.via == "dns"
        or not attempt.address
        or not _place_fits(expected, attempt)
    ):
        return False
    return ip_address(attempt.address) in ip_network(expected.rule.network)


def _place_fits(expected: Expected, attempt: EgressAttempt) -> bool:
    rule = expected.rule
    if expected.protocol_said and attempt.protocol != rule.protocol:
        return False
    if not expected.port_said:
        return True
    return attempt.protocol == rule.protocol and rule.low <= attempt.port <= rule.high


def _expected(text: str) -> Expected:
    from stockade.policies.hosts import parse_rule

    rule = parse_rule(text, "the expected host")
    rest = text.partition("://")[2] or text
    return Expected(rule, "://" in text, "]:" in rest if rest.startswith("[") else rest.count(":") == 1)


def _covers(path: str, file: str) -> bool:
    """Whether a file is ``path`` or below it, taken literally or as a pattern."""
    bare = path.rstrip("/")
    return file == bare or file.startswith(f"{bare}/") or _matches(_parts(path), _parts(file))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _matches(pattern: list[str], parts: list[str]) -> bool:
    """Whether the pattern matches the path, or a directory above it."""
    from fnmatch import fnmatchcase

    reached = {0}  # how many components of the pattern may have been used up
    for part in parts:
        reached = {end for start in reached for end in _onward(pattern, start)}
        if len(pattern) in reached:
            return True
        reached = {at if pattern[at] == "**" else at + 1 for at in reached if fnmatchcase(part, pattern[at])}
    return len(pattern) in {end for start in reached for end in _onward(pattern, start)}


def _onward(pattern: list[str], at: int) -> Iterator[int]:
    """``**`` may stand for no component at all."""
    yield at
    while at < len(pattern) and pattern[at] == "**":
        at += 1
        yield at


def _texts(given: Iterable[str], what: str) -> list[str]:
    """A single text would be taken for a list of letters, and its letters for hosts."""
    if isinstance(given, str):
        raise TypeError(f"{what} must be a list of texts, not one text: [{given!r}]")
    return list(given)


# --- messages ----------------------------------------------------------------------------------------------


def _list(head: str, items: Iterable[str]) -> str:
    shown = list(items)
    more = [f"  and {len(shown) - MOST_LINES} more"] if len(shown) > MOST_LINES else []
    return "\n".join([f"{head}:", *(f"  {item}" for item in shown[:MOST_LINES]), *more])


def _attempt_text(attempt: EgressAttempt) -> str:
    from stockade.sandbox.cli.style import escape

    times = f"{attempt.packets} times" if attempt.packets != 1 else "once"
    if attempt.via == "dns":
        return escape(f"{attempt.host}: name asked {times}")
    where = "" if attempt.host == attempt.address else f" ({attempt.address})"
    shared = f", address shared by {', '.join(attempt.shared)}" if attempt.shared else ""
    counted = f"{attempt.packets} packets, {attempt.bytes} bytes"
    reason = f", {attempt.reason}" if attempt.reason else ""
    return escape(
        f"{attempt.host}{where} port {attempt.port}, {attempt.protocol} by {attempt.via}, {counted}{shared}{reason}"
    )


def _file_text(file: WrittenFile) -> str:
    from stockade.sandbox.cli.style import escape

    return f"{file.kind} {escape(file.path)}"
