"""Every attack that ships with stockade, on this host and as each identity: none gets through, and most were tried.

The suite is run once for each, as a user would, and its document is read. Its own judgement is tested by tables.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stockade.sandbox.attacks import main, report
from stockade.sandbox.attacks.judge import ALLOWED, NOT_TRIED, STOPPED, THROUGH, judge
from stockade.sandbox.attacks.toolbox import Attempt

pytestmark = pytest.mark.kernel
ROOT = os.geteuid() == 0
IDENTITIES = {"dropped": "unprivileged", "kept": "caller"} if ROOT else {"user": "auto"}
LISTED = main.listed()
NAMES = [name for name, _group, _title in LISTED]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security-tests.md"
SECONDS = 240

NEEDS_MORE = re.compile(
    r"outside the box|the control would|this kernel does not|this host has no|only root|nobody has|does not know the call"
    r"|below /usr here|handler of core files|only x86_64|it does not work outside"
)
"""Why an attempt may not have been tried: something is missing on the host, and not in the suite."""
LEAST_TRIED = 250 if ROOT else 220


@functools.cache
def document(user: str) -> dict[str, object]:
    command = [sys.executable, "-m", "stockade.attacks", "--json", "--user", user]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd="/", stdin=subprocess.DEVNULL
    )
    assert done.stderr == "", done.stderr
    found = json.loads(done.stdout)
    return {**found, "code": done.returncode, "by name": {each["name"]: each for each in found["attempts"]}}


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("name", NAMES)
def test_attack(identity, name):
    result = document(IDENTITIES[identity])["by name"][name]
    assert result["state"] in (STOPPED, ALLOWED, NOT_TRIED), result
    if result["state"] == NOT_TRIED:
        assert NEEDS_MORE.search(result["evidence"]), result
    assert bool(result["layer"]) == (result["state"] == STOPPED)
    assert result["evidence"]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_nothing_got_through_and_most_were_tried(identity):
    found = document(IDENTITIES[identity])
    assert found["code"] == 0
    assert sorted(found["by name"]) == sorted(NAMES)
    counts = found["counts"]
    assert sum(counts.values()) == len(NAMES)
    assert counts[STOPPED] >= LEAST_TRIED
    assert counts[THROUGH] == 0
    assert counts[ALLOWED] <= 8


def test_there_are_many_in_every_group():
    assert len(NAMES) == len(set(NAMES)) >= 150
    groups = {group.split(" ")[0] for _name, group, _title in LISTED}
    assert groups >= set("ABCDEFGHIJK")
    assert all(title and not title.endswith(".") for _name, _group, title in LISTED)


def test_the_page_has_the_same_attempts():
    """``python -m stockade.attacks --markdown > docs/security-tests.md`` makes it anew."""
    text = PAGE.read_text()
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    assert [(row[0].strip("`"), row[1]) for row in rows] == [
        (name, report.cell(title)) for name, group, title in sorted(LISTED, key=lambda each: each[1])
    ]
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings == [report.heading(group) for group in sorted({group for _name, group, _title in LISTED})]
    assert THROUGH not in {row[2] for row in rows}
    assert re.search(r"Linux \d+\.\d+.*bubblewrap \d+\.\d+", text)


WEAK = """
import json, sys
from stockade.policies.model import parse_tree
from stockade.sandbox.attacks import batch
from stockade.sandbox.attacks.bait import Bait
def weak(box, bait, user, filtered):
    files = {"write": [bait.top + "/beside"], "read": [bait.top + "/visible"], "protect": [], "hide": []}
    tree = {"extends": "workspace-write", "mode": "auto", "filesystem": files, "process": {"user": user}}
    return parse_tree({**tree, "syscalls": {"filter": "off"}}, "a weak policy")
attempts = [each for each in batch.load() if each.name in sys.argv[2:]]
with Bait() as outside, Bait() as bait:
    outside.lay_rest(), bait.lay_rest()
    print(json.dumps({each.name: each.state for each in batch.try_all(attempts, sys.argv[1], outside, bait, weak)}))
"""
SEEN = [
    "filesystem.write-beside", "filesystem.write-through-a-link", "filesystem.race-a-link",
    "filesystem.write-git-config", "filesystem.read-a-hidden-file", "filesystem.list-a-hidden-directory",
    "filesystem.leave-a-setuid-file", "filesystem.name-an-unnamed-setuid-file", "sockets.family-vsock",
    "kernel.type-into-the-terminal",
]  # fmt: skip


@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_suite_sees_what_gets_through(identity):
    """With a policy that grants what is attacked; what it does not grant is stopped all the same."""
    command = [sys.executable, "-c", WEAK, IDENTITIES[identity], *SEEN, "filesystem.write-a-shown-file"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    states = json.loads(done.stdout)
    assert states.pop("filesystem.write-a-shown-file") == STOPPED
    known = {name: state for name, state in states.items() if state != NOT_TRIED}
    assert {name for name, state in known.items() if state != THROUGH} <= {"sockets.family-vsock"}
    assert len(known) >= 9


UNCHECKED = """
import json, sys
from stockade.policies.model import parse_tree
from stockade.sandbox import keeperlink
from stockade.sandbox.attacks import networld
from stockade.sandbox.attacks.programs import names
def unchecked(box, bait, user, filtered):
    listed = [*networld.LISTED, f"{names.ONE}:80", f"{names.TWO}:80"]
    network = {"egress": "allow", "allow": listed, "check": "address"}
    return parse_tree({"extends": "workspace-write", "network": network, "process": {"user": user}}, "unchecked")
networld.policy_of, networld.BOXES = unchecked, (names.BOX,)
print(json.dumps({each.name.partition(".")[2]: each.state for each in networld.results(sys.argv[1], "network.")}))
keeperlink.end_keeper()
"""


@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_suite_sees_names_that_are_not_told_apart(identity):
    """Without the check each of them gets through, but for what would call the relay: there is none."""
    command = [sys.executable, "-c", UNCHECKED, IDENTITIES[identity]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    states = json.loads(done.stdout)
    assert states.pop("relay-dialled") == NOT_TRIED
    assert len(states) == 13
    assert set(states.values()) == {THROUGH}


def test_only_some_can_be_chosen_and_a_wrong_word_is_an_error():
    command = [sys.executable, "-m", "stockade.attacks"]
    some = subprocess.run([*command, "--only", "write-beside"], capture_output=True, text=True, timeout=60)
    assert (some.returncode, some.stdout.count("stopped")) == (0, 2), some.stderr
    for words in (["--only", "no-such"], ["--user", "nobody"], ["--nothing"], ["word"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 125
        assert done.stderr.startswith("stockade: could not")


def test_it_can_be_asked_of_doctor():
    done = subprocess.run(
        [sys.executable, "-m", "stockade", "doctor", "--help"], capture_output=True, text=True, timeout=60
    )
    assert "--attacks" in done.stdout


# --- its judgement -----------------------------------------------------------------------------------------


def attempt(**options):
    return Attempt("a.b", "A", "title", lambda _given: None, "a layer", **options)


GOT, REFUSED, NOTHING = ["through", "it"], ["refused", "EACCES"], ["nothing", ""]


@pytest.mark.parametrize(
    ("options", "control", "missed", "seen", "reached", "bare", "expected"),
    [
        ({}, GOT, [], REFUSED, [], (), (STOPPED, "a layer", "EACCES")),
        ({}, GOT, [], ["refused", "EROFS"], [], (), (STOPPED, "read-only mount", "EROFS")),
        ({}, GOT, [], ["killed", "SIGSYS"], [], (), (STOPPED, "syscall filter", "SIGSYS")),
        ({}, GOT, [], NOTHING, [], (), (STOPPED, "a layer", "nothing was there")),
        ({}, GOT, [], GOT, [], (), (THROUGH, "", "it got: it")),
        ({}, REFUSED, [], GOT, [], (), (THROUGH, "", "it got: it")),
        ({"facts": ("f",)}, GOT, [], REFUSED, ["f"], (), (THROUGH, "", "the host shows it: f")),
        ({"facts": ("f",), "allowed": "so"}, GOT, [], REFUSED, ["f"], (), (THROUGH, "", "the host shows it: f")),
        ({"facts": ("f",)}, GOT, ["f"], REFUSED, [], (), (NOT_TRIED, "", None)),
        ({"facts": ("f",)}, NOTHING, [], REFUSED, [], (), (STOPPED, "a layer", "EACCES")),
        ({"allowed": "so"}, GOT, [], GOT, [], (), (ALLOWED, "", "so")),
        ({"allowed": "so"}, GOT, [], REFUSED, [], (), (STOPPED, "a layer", "EACCES")),
        ({"allowed_kept": "so"}, GOT, [], GOT, [], (), (THROUGH, "", "it got: it")),
        ({}, REFUSED, [], REFUSED, [], (), (NOT_TRIED, "", None)),
        ({}, NOTHING, [], REFUSED, [], (), (NOT_TRIED, "", None)),
        ({}, ["absent", "no such device"], [], REFUSED, [], (), (NOT_TRIED, "", "no such device")),
        ({"reached": ("EACCES",)}, REFUSED, [], ["refused", "EPERM"], [], (), (STOPPED, "a layer", "EPERM")),
        ({}, GOT, [], ["broken", "NameError"], [], (), (NOT_TRIED, "", None)),
        ({}, GOT, [], ["hung", "8 s"], [], (), (NOT_TRIED, "", None)),
        ({}, GOT, [], REFUSED, [], GOT, (STOPPED, "syscall filter", "EACCES; without the filter it works")),
        ({}, GOT, [], REFUSED, [], ["refused", "EIO"],
         (STOPPED, "syscall filter, and more behind it", "EACCES; without the filter EIO")),
    ],
)  # fmt: skip
def test_judgement(options, control, missed, seen, reached, bare, expected):
    result = judge(attempt(**options), control, missed, seen, reached, bare)
    state, layer, evidence = expected
    assert (result.state, result.layer) == (state, layer)
    assert evidence in (None, result.evidence)


def test_what_a_kept_root_may_is_said():
    result = judge(attempt(allowed_kept="so"), GOT, [], GOT, [], (), kept=True)
    assert (result.state, result.evidence) == (ALLOWED, "so")


def test_foreign_text_is_harmless_in_every_form():
    result = judge(attempt(), GOT, [], ["through", "\x1b]0;evil\x07|"], [], ())
    assert "\x1b" not in report.shown([result], False)
    page = report.markdown([result], {"kernel": "6.1", "bwrap": "0.8", "python": "3", "caller": "x"})
    assert "\x1b" not in page
    assert "evil\\x07\\|" in page
