"""Words that go with a refusal: suspected after a failure, worth nothing from a program that succeeded."""

from __future__ import annotations

import pytest

from stockade.sandbox.classify import Outcome
from stockade.sandbox.cli.style import escape
from stockade.sandbox.denials import LIMIT_SIGNS, MOST_LINE, SIGNS, Denial, find_denials

ALL = (*SIGNS, *LIMIT_SIGNS)


def ended(outcome="exited", code=1, *, signal=None, started=True):
    return Outcome(outcome, code, signal, code or 0, "why", started, "rule")


def denials(*streams, after=None, egress="none"):
    return find_denials(after or ended(), egress=egress, streams=streams, quote=escape)


@pytest.mark.parametrize("sign", ALL, ids=lambda sign: sign.text)
def test_each_sign_is_suspected_after_a_failure(sign):
    line = f"tool: x: {sign.text}"
    (found,) = denials(f"before\n{line}\nafter\n".encode())
    assert found == Denial(sign.kind, "suspected", sign.text, line, sign.hint)
    assert found.hint


@pytest.mark.parametrize("sign", ALL, ids=lambda sign: sign.text)
def test_the_same_words_mean_nothing_when_the_program_succeeded(sign):
    text = f"tool: x: {sign.text}\n".encode()
    assert denials(text, after=ended(code=0)) == ()


@pytest.mark.parametrize(
    "after",
    [
        ended("runner_failed", None, started=False),
        ended("not_executed", 127, started=False),
        ended("timed_out", None, started=False),
        ended("stopped", None),
        ended("lost", None),
        ended("exited", 0),
    ],
)
def test_outcomes_of_which_text_says_nothing(after):
    assert denials(b"Read-only file system", after=after) == ()


@pytest.mark.parametrize(
    "after", [ended(code=2), ended("signalled", 139, signal=11), ended("timed_out", None), ended("stopped", 1)]
)
def test_outcomes_of_which_it_may(after):
    assert [each.kind for each in denials(b"Read-only file system", after=after)] == ["filesystem"]


def test_nothing_is_ever_called_observed_on_the_word_of_the_program():
    text = b"\n".join(sign.text.encode() for sign in ALL)
    found = denials(text)
    assert {each.certainty for each in found} == {"suspected"}
    assert {each.kind for each in found} == {"filesystem", "network", "limit"}


def test_network_words_say_nothing_where_there_is_a_network():
    text = b"curl: (6) Could not resolve host: example.com\nRead-only file system\n"
    assert [each.kind for each in denials(text)] == ["filesystem", "network"]
    for egress in ("allow", "open", "record"):
        assert [each.kind for each in denials(text, egress=egress)] == ["filesystem"]


def test_both_streams_are_looked_at_and_the_first_line_counts():
    (found,) = denials(b"nothing\n", b"ok\n cp: a: Read-only file system\r\nmv: b: Read-only file system\n")
    assert found.detail == "cp: a: Read-only file system"


def test_one_hint_is_given_once():
    assert len(denials(b"Read-only file system\nEROFS: read-only\n")) == 1
    assert len(denials(b"Cannot allocate memory\nMemoryError\nToo many open files\n")) == 2


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b"\x1b[31mEROFS\x1b[0m", r"\x1b[31mEROFS\x1b[0m"),
        (b"caf\xc3\xa9 EROFS", "café EROFS"),
        (b"a\xff EROFS", "a\N{REPLACEMENT CHARACTER} EROFS"),
        (b"\x00EROFS\x07", r"\x00EROFS\x07"),
        ("\u202eEROFS".encode(), r"\u202eEROFS"),
        (b"EROFS", "EROFS"),
    ],
)
def test_what_is_quoted_is_harmless(line, detail):
    (found,) = denials(b"x\n" + line + b"\ny")
    assert found.detail == detail


def test_a_line_without_end_is_cut():
    (found,) = denials(b"EROFS " + b"x" * 100_000)
    assert len(found.detail) == MOST_LINE


@pytest.mark.parametrize(
    ("signal", "subjects"), [(25, ["limits.file_size"]), (24, ["limits.cpu"]), (9, []), (11, []), (None, [])]
)
def test_a_signal_that_a_limit_sends_is_suspected(signal, subjects):
    after = ended("signalled", 128 + (signal or 0), signal=signal)
    assert [each.subject for each in denials(b"", after=after)] == subjects


REACHED = {"limits.tmp": "/tmp was full", "limits.processes": "8 at once"}


def limit_denials(*streams, after=None, reached=None):
    return find_denials(
        after or ended(),
        egress="none",
        streams=streams,
        quote=escape,
        reached=reached,
        value_of=lambda key: f"<{key}>",
    )


@pytest.mark.parametrize("after", [ended(), ended(code=0), ended("timed_out", None), ended("lost", None)])
def test_a_reached_limit_is_observed_whatever_came_of_it(after):
    tmp, processes = limit_denials(after=after, reached=REACHED)
    assert (tmp.kind, tmp.certainty, tmp.subject) == ("limit", "observed", "limits.tmp")
    assert (tmp.detail, bool(tmp.hint)) == ("reached limits.tmp = <limits.tmp>: /tmp was full", True)
    assert processes.detail == "reached limits.processes = <limits.processes>: 8 at once"


def test_what_never_ran_reached_nothing():
    assert limit_denials(after=ended("runner_failed", None, started=False), reached=REACHED) == ()


def test_words_about_a_limit_add_nothing_to_what_was_seen():
    text = b"dd: No space left on device\nsh: Cannot fork: Resource temporarily unavailable\n"
    assert {each.certainty for each in limit_denials(text, reached=REACHED)} == {"observed"}
    found = limit_denials(text, reached={"limits.tmp": "x"})
    assert [each.certainty for each in found] == ["observed", "suspected"]


def test_a_suspected_limit_says_its_value_too():
    (found,) = limit_denials(b"MemoryError\n")
    assert found.hint == "limits.memory bounds each process. It is <limits.memory> here."
    (found,) = limit_denials(b"EROFS\n")
    assert "It is" not in found.hint


def test_every_limit_that_is_named_exists():
    from stockade.policies.fields import ATTRIBUTES

    hints = [
        each.hint
        for each in (
            *LIMIT_SIGNS,
            *find_denials(ended("signalled", 153, signal=25), egress="none", streams=(), quote=escape),
        )
    ]
    named = {word.strip(".;:") for hint in hints for word in hint.split() if word.startswith("limits.")}
    assert named
    assert named <= set(ATTRIBUTES)
