"""The search for the narrowest policy, with handlers that are functions of the policy; then with a real one."""

from __future__ import annotations

import pytest
from made import LABEL, attempt, made, refusing, run, sighting, touched

from stockade.policies.model import parse_policy, stated
from stockade.sandbox.review import observed
from stockade.sandbox.review.suggest import suggest

NARROWEST = {
    "filesystem.root": "minimal",
    "filesystem.toolchains": "none",
    "filesystem.workspace": "none",
    "environment.pass": [],
    "network.egress": "none",
    "syscalls.filter": "strict",
}


def suggested(review, *, needs=None, does=None, fails=None):
    """A suggestion for handlers that answer as in the review where a policy has what they need, and fail elsewhere."""
    tried = []

    def again(policy):
        said = said_by(policy)
        tried.append(said)
        good = all(said.get(key) in values for key, values in (needs or {}).items()) and not (fails and fails(said))
        before = observed.given(review)
        if good:
            return [does(each, said) for each in before] if does else before
        return [each.replace(exit_code=1, decision="deny", host_decision=None) for each in before]

    found = suggest(review, again)
    assert len(tried) == found.tries
    assert said_by(parse_policy(found.toml, "x")) == {k: v for k, v in found.settings.items() if k != "extends"}
    return found, tried


def said_by(policy):
    return {key: list(value) if isinstance(value, tuple) else value for key, value in stated(policy).items()}


def part(found):
    return {key: value for key, value in found.settings.items() if key in NARROWEST}


def test_the_narrowest_at_once():
    found, tried = suggested(made(run(), refusing()))
    assert (found.proved, found.tries, part(found)) == (True, 1, NARROWEST)
    assert found.settings["limits.timeout"] == "5s"
    assert found.settings["extends"] == "hook"
    assert tried[0]["network.egress"] == "none"
    assert "gave the same answers" in found.toml


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({"filesystem.root": ["host"]}, {"filesystem.root": "host", "filesystem.toolchains": "auto"}),
        ({"filesystem.workspace": ["read-only", "read-write"]}, {"filesystem.workspace": "read-only"}),
        ({"syscalls.filter": ["default"]}, {"syscalls.filter": "default"}),
        (
            {"environment.pass": [["LANG", "LC_*", "TERM", "TZ"]]},
            {"environment.pass": ["LANG", "LC_*", "TERM", "TZ"]},
        ),
        (
            {"syscalls.filter": ["default"], "filesystem.workspace": ["read-only", "read-write"]},
            {"syscalls.filter": "default", "filesystem.workspace": "read-only"},
        ),
    ],
)
def test_only_what_is_needed_is_granted(needs, expected):
    found, _tried = suggested(made(run(), refusing()), needs=needs)
    assert (found.proved, part(found)) == (True, {**NARROWEST, **expected})


def test_files_that_were_opened_rather_than_the_whole_host():
    review = made(run(opened=("/opt/tool/rules.txt", "/usr/lib/x", "/plugin/hook.py")))
    found, _tried = suggested(
        review, fails=lambda said: not (said["filesystem.root"] == "host" or said.get("filesystem.read"))
    )
    assert part(found) == NARROWEST
    assert found.settings["filesystem.read"] == ["/opt/tool/rules.txt"]
    assert [(row.what, row.observed, row.granted) for row in found.rows] == [("read", "/opt/tool/rules.txt", "yes")]


def test_a_network_that_is_needed_is_proved_in_the_recorder():
    review = made(run(egress=(attempt("api.example"), attempt("api.example", 8443))))
    found, tried = suggested(review, needs={"network.egress": ["record", "allow"]})
    assert found.settings["network.egress"] == "allow"
    assert found.settings["network.allow"] == ["api.example", "api.example:8443"]
    assert {each["network.egress"] for each in tried} == {"none", "record"}  # nothing was ever let out
    assert found.recorded
    assert "a recorder stood in their place" in found.toml


def test_a_network_that_is_not_needed_is_not_granted():
    found, _tried = suggested(made(run(egress=(attempt("api.example"),))))
    assert part(found) == NARROWEST
    (row,) = found.rows
    assert (row.observed, row.granted, row.why) == ("api.example", "no", "the answers are the same without")


def test_a_host_that_got_a_secret_is_never_granted():
    review = made(run(egress=(attempt("evil.example"),), sightings=(sighting(),)))
    found, _tried = suggested(review, needs={"network.egress": ["record", "allow"]})
    assert not found.proved
    assert found.differences
    assert "network.allow" not in found.settings
    assert found.rows[0].why == "a secret was sent along, or it is never let out"
    assert "Don't rely on it" in found.toml


def test_files_that_it_writes_are_part_of_its_answer():
    review = made(run("write-source", touched=(touched("src/orders.py"), touched(".git/hooks/x"))))

    def does(before, policy):
        kept = before.touched if policy["filesystem.workspace"] == "read-write" else ()
        return before.replace(touched=kept)

    found, _tried = suggested(review, does=does)
    assert part(found) == {**NARROWEST, "filesystem.workspace": "read-write"}
    assert {(row.observed, row.granted) for row in found.rows} == {("src/orders.py", "yes"), (".git/hooks/x", "no")}


def test_harmful_writes_alone_make_nothing_writable():
    found, _tried = suggested(made(run(touched=(touched(".claude/settings.json"),))))
    assert part(found) == NARROWEST
    assert found.rows[0].granted == "no"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([run()], ()),
        (
            [run(exit_code=2, decision="deny", host_decision="deny")],
            (f"{LABEL}, benign-shell: exited, exit 2, deny",),
        ),
        ([run(stdout="other")], (f"{LABEL}, benign-shell: another output",)),
        ([run(failed="no bwrap")], (f"{LABEL}, benign-shell: could not be run: no bwrap",)),
        ([], (f"{LABEL}, benign-shell: it was not run",)),
        ([run(), run("never-seen-before", exit_code=9)], ()),
    ],
)
def test_differences(after, expected):
    assert observed.differences([run()], after) == expected


def test_a_handler_that_answers_in_two_ways_may_do_so_again():
    before = [refusing(), run("destructive-shell", attempt=2, stdout="a")]
    assert observed.differences(before, [run("destructive-shell")]) == ()
    assert observed.differences(before, [run("destructive-shell", exit_code=1)]) != ()


def test_nothing_ran_so_nothing_is_known():
    assert suggest(made(run(failed="no bwrap")), lambda _policy: pytest.fail("was run")) is None


def test_the_file_is_harmless():
    review = made(run(egress=(attempt("evil\n[network]\negress = 'open'.example"),), reads=("ssh\nkey",)))
    found, _tried = suggested(review)
    assert stated(parse_policy(found.toml, "x"))["network.egress"] == "none"
    assert "\x1b" not in found.table()
