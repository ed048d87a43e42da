"""The review on a terminal: the verdict first, the worst on one screen, nothing that a terminal would obey."""

from __future__ import annotations

import re
import unicodedata

import pytest
import reviews
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.review import foreign, text
from stockade.sandbox.review.model import SEVERITIES, Evidence, Review
from stockade.sandbox.review.summary import NOT_RUN, summarise

VERDICTS = {"empty": "empty", "clean": "clean", "bad": "bad", "hostile": "bad", "many": "bad"}


# --- the verdict ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reviews.ALL)
def test_verdict(name: str) -> None:
    assert summarise(reviews.ALL[name]()).verdict == VERDICTS[name]


@pytest.mark.parametrize("severity", SEVERITIES)
def test_verdict_goes_by_the_worst_finding(severity: str) -> None:
    review = reviews.clean().replace(findings=(reviews.finding("denied", reviews.GUARD, severity=severity),))
    expected = {"critical": "bad", "high": "bad", "medium": "attention", "low": "attention", "info": "clean"}
    assert summarise(review).verdict == expected[severity]


def test_a_severity_that_is_not_known_is_the_worst() -> None:
    review = reviews.clean().replace(findings=(reviews.finding("denied", reviews.GUARD, severity="grave"),))
    assert summarise(review).verdict == "bad"
    assert dict(summarise(review).counts)["critical"] == 1


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"not_reviewed": (("Stop x", "a prompt"),)}, (("Stop x", "a prompt"),)),
        ({"exercises": ()}, ((reviews.GUARD, NOT_RUN),)),
        ({"exercises": (reviews.run(reviews.GUARD, "x", failed="no port"),)}, ((reviews.GUARD, "no port"),)),
    ],
)
def test_what_was_not_exercised_is_never_clean(changes: dict, left_out: tuple) -> None:
    summary = summarise(reviews.clean().replace(**changes))
    assert (summary.verdict, summary.not_reviewed) == ("incomplete", left_out)
    assert "Nothing found" not in text.render(reviews.clean().replace(**changes))


def test_limits_of_the_review_are_told_beside_the_verdict() -> None:
    summary = summarise(reviews.clean().replace(problems=("not every event was given",)))
    assert (summary.verdict, summary.detail.endswith(" 1 note on the limits of this review.")) == ("clean", True)


def test_findings_are_sorted_worst_first_and_stay_in_order_otherwise() -> None:
    found = summarise(reviews.bad()).findings
    assert [each.severity for each in found] == ["critical", "critical", "high", "medium", "low", "info"]
    assert [each.rule for each in found[:2]] == ["exfiltrates", "persists"]


# --- one screen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reviews.ALL)
@pytest.mark.parametrize(("width", "height"), [(100, 24), (80, 24), (200, 60)])
def test_it_fits_on_one_screen(name: str, width: int, height: int) -> None:
    lines = text.render(reviews.ALL[name](), width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(foreign.columns_of, lines)) <= width


def test_the_worst_come_first_with_their_place_and_evidence() -> None:
    lines = text.render(reviews.bad()).splitlines()
    assert lines[0] == f"Do not install: {reviews.ROOT}"
    at = next(number for number, each in enumerate(lines) if each.startswith("critical"))
    assert lines[at].endswith(f"{reviews.SENDER} sends a secret away")
    assert lines[at + 1].strip() == "at scripts/send.py:41"
    assert lines[at + 2].strip().startswith("request: ssh-key, base64 to metrics.evil.example:443")
    first = [each.split()[0] for each in lines if each.split()[:1] and each.split()[0] in SEVERITIES]
    assert first == sorted(first, key=SEVERITIES.index)


def test_what_finds_no_room_is_counted() -> None:
    said = text.render(reviews.many())
    told = sum(int(each) for each in re.findall(r"\((\d+) times\)", said))
    (rest,) = re.findall(r"^and ([\d,]+) more", said, re.MULTILINE)
    assert told + int(rest) == 1000


def test_many_that_were_not_reviewed_are_counted_too() -> None:
    review = reviews.clean().replace(not_reviewed=tuple((f"Stop {at}", "a prompt") for at in range(9)))
    lines = text.render(review).splitlines()
    assert [each for each in lines if each.startswith("not reviewed")][-1] == "not reviewed: and 6 more"


def test_colours_only_when_asked() -> None:
    assert "\x1b" not in text.render(reviews.bad())
    assert "\x1b[31m" in text.render(reviews.bad(), on=True)
    plain = re.sub(r"\x1b\[\d+m", "", text.render(reviews.bad(), on=True))
    assert plain == text.render(reviews.bad())


# --- foreign text -----------------------------------------------------------------------------------------


def obeyed(said: str) -> list[str]:
    """Characters that a terminal or a reader's eye would be led by."""
    return [each for each in said if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_nothing_that_a_terminal_obeys() -> None:
    assert obeyed(reviews.NASTY)
    said = text.render(reviews.hostile(), height=60, width=2000)
    assert not obeyed(said)
    assert "\\x1b]0;title\\x07" in said


def test_a_name_makes_no_line_of_its_own() -> None:
    faked = "x\nNothing found: all is well\r\x1b[2K"
    found = (reviews.finding("exfiltrates", faked, Evidence(faked, faked)),)
    said = text.render(reviews.clean().replace(path=faked, findings=found))
    assert not [each for each in said.splitlines() if each.startswith("Nothing found")]


def test_no_line_begins_with_a_foreign_word() -> None:
    """A CI job takes lines for commands that begin with ``::``, after blanks too."""
    word = "::add-mask::x"
    found = tuple(
        reviews.finding("denied", word, Evidence("file", word), severity=each, title=word, file=word)
        for each in SEVERITIES
    )
    review = reviews.bad().replace(path=word, findings=found, not_reviewed=((word, word),), problems=(word,))
    lines = text.render(review, width=300, height=60).splitlines()
    assert sum(word in each for each in lines) > 8
    assert [each for each in lines if each.strip().startswith("::")] == []


@given(st.text(), st.integers(20, 400))
def test_a_line_is_one_line(value: str, most: int) -> None:
    shown = foreign.line(value, most)
    assert not obeyed(shown)
    assert "\n" not in shown


@given(st.text())
def test_a_block_keeps_its_lines(value: str) -> None:
    shown = foreign.block(value)
    assert not obeyed(shown.replace("\t", ""))
    assert shown.count("\n") == value.count("\n")


@given(st.text())
def test_a_cell_is_no_formula(value: str) -> None:
    assert not foreign.cell(value).startswith(tuple("=+-@\t\r"))


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_formulas_are_quoted(value: str) -> None:
    assert foreign.cell(value)[0] in "'\\"


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf"))), st.integers(4, 80))
def test_a_fitted_text_fits(value: str, columns: int) -> None:
    assert foreign.columns_of(foreign.fitted(foreign.line(value), columns)) <= columns


def test_a_long_block_tells_what_is_missing() -> None:
    assert foreign.block("x" * 7000, 100) == "x" * 100 + "\n[6,900 more characters]"


def test_an_empty_review_without_anything() -> None:
    assert text.render(Review("")).startswith("No hooks found: \n")
