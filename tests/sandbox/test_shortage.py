"""What could not be tried is neither there nor missing: which words and errors say so, and what is made of them."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
from boxes import own_state  # noqa: F401

from stockade.policies.capability import Capability
from stockade.policies.errors import SandboxUnavailable
from stockade.sandbox import bwrap, leasetrial, overlaytrial, probe, shortage, trial, userns
from stockade.sandbox.bwrap import Bwrap
from stockade.sandbox.engine import Finished
from stockade.sandbox.evidence import Evidence
from stockade.sandbox.streams import Capture

BINARY = Bwrap("/usr/bin/bwrap", ("--disable-userns", "--bind-fd", "--ro-bind-fd"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "bwrap: Creating new namespace failed: Resource temporarily unavailable",
            "resource temporarily unavailable",
        ),
        ("bwrap: Can't fork for pid 1: Cannot allocate memory", "cannot allocate memory"),
        ("[Errno 12] Cannot allocate memory", "cannot allocate memory"),
        ("sh: 3: Cannot fork", "no process could be started"),
        ("sh: can't fork: Cannot allocate memory", "cannot allocate memory"),
        ("bwrap: Creating new namespace failed: Operation not permitted", ""),
        ("bwrap: No permissions to create a new namespace", ""),
        ("bwrap: Creating new namespace failed: No space left on device", ""),  # user.max_user_namespaces
        ("", ""),
    ],
)
def test_which_words_speak_of_a_shortage(text, cause):
    assert shortage.cause_in(text) == cause


@pytest.mark.parametrize(
    ("evidence", "said", "cause"),
    [
        (Evidence(failed_step="prepare", failed_errno=errno.EAGAIN), "", "resource temporarily unavailable"),
        (Evidence(failed_step="prepare", failed_errno=errno.ENOENT), "", ""),
        (Evidence(gate_failure="could not limit processes: cannot allocate memory"), "", "cannot allocate memory"),
        (Evidence(), "sh: 1: Cannot fork", "no process could be started"),
        (Evidence(exit_code=1), "sh: 1: nonsense", ""),
    ],
)
def test_what_of_a_trial_speaks_of_one(evidence, said, cause):
    assert shortage.cause_of(evidence, said) == cause


def seen(stdout="", stderr="", place="/nowhere", **evidence):
    captured = []
    for text in (stdout, stderr):
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        capture = Capture(read, 65_536)
        capture.finish()
        captured.append(capture)
    return trial.Seen(Finished(Evidence(**evidence), *captured, 0.0), place)


ENDED = {"exit_code": 0, "wait_status": 0, "released": True}
COMPLETE = lambda: seen("proc=yes\ncomplete=yes\n", **ENDED)  # noqa: E731
REFUSED = lambda: seen(stderr="bwrap: Creating new namespace failed: Operation not permitted", wait_status=1 << 8)  # noqa: E731
SHORT = lambda: seen(stderr="bwrap: Can't fork for pid 1: Cannot allocate memory", wait_status=1 << 8)  # noqa: E731
CUT = lambda: seen("permitted=yes\n", "sh: 1: Cannot fork", exit_code=2, wait_status=2 << 8, released=True)  # noqa: E731
BROKEN = lambda: seen("", "what\x1b", exit_code=3, wait_status=3 << 8, released=True)  # noqa: E731
UNTRIED = "could not be tried: "


@pytest.mark.parametrize(
    ("attempts", "used", "detail"),
    [
        ([COMPLETE], 1, None),
        ([SHORT, COMPLETE], 2, None),
        ([CUT, COMPLETE], 2, None),
        ([SHORT, SHORT], 2, UNTRIED + "cannot allocate memory"),
        ([CUT, CUT], 2, UNTRIED + "no process could be started"),
        ([BROKEN, BROKEN], 2, UNTRIED + "the trial ended early, with code 3: what\\x1b"),
        ([REFUSED, REFUSED, COMPLETE], 3, None),  # the control: a lesser box is the answer where more is refused
        ([REFUSED, REFUSED, SHORT, COMPLETE], 4, None),
        ([REFUSED, REFUSED, SHORT, SHORT], 4, UNTRIED + "cannot allocate memory"),
        ([REFUSED, SHORT, SHORT], 3, UNTRIED + "cannot allocate memory"),
    ],
)
def test_a_lesser_box_is_never_the_answer_for_what_could_not_be_tried(monkeypatch, attempts, used, detail):
    waiting, given = list(attempts), []

    def attempt(_binary, *, fresh_proc, use_filter):
        given.append((fresh_proc, use_filter))
        return waiting.pop(0)()

    monkeypatch.setattr(trial, "attempt", attempt)
    found = {each.name: each for each in trial.try_everything(BINARY)}
    assert len(given) == used
    first = found["user-namespaces"]
    if detail is None:
        assert first.state == "ok"
    else:
        assert (first.state, first.detail) == ("unknown", detail)
        assert {each.state for each in found.values()} == {"unknown"}


def test_a_refusal_is_still_one(monkeypatch):
    """The control."""
    monkeypatch.setattr(trial, "attempt", lambda *_given, **_options: REFUSED())
    monkeypatch.setattr(userns, "first_refused", lambda: ("user", errno.EPERM))
    assert trial.try_everything(BINARY)[0].state == "disabled"


@pytest.mark.parametrize("code", shortage.CODES)
def test_a_namespace_that_was_refused_for_a_shortage(code):
    assert userns.explain("user", code, "", read=lambda _path: "").state == "unknown"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "unknown"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "unknown"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "missing"),
    ],
)
def test_a_binary_that_could_not_be_started(monkeypatch, error, state):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(overlaytrial, "candidates", lambda: ["/usr/bin/bwrap"])
    monkeypatch.setattr(bwrap, "locate", lambda _path=None: "/usr/bin/bwrap")
    host = probe.tried()
    assert host.by_name()["bwrap"].state == state
    assert not probe.able(host)
    assert overlaytrial.choose()[1].state == ("unknown" if state == "unknown" else "too old")


def test_a_binary_that_could_not_load_its_libraries(monkeypatch):
    said = b"bwrap: error while loading shared libraries: libcap.so.2: Cannot allocate memory\n"
    done = subprocess.CompletedProcess([], 127, b"", said)
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_options: done)
    with pytest.raises(SandboxUnavailable) as caught:
        bwrap.inspect("/usr/bin/bwrap")
    assert shortage.cause_in(caught.value.message)
    assert "too old" not in caught.value.message


@pytest.mark.parametrize(("state", "becomes"), [("missing", "disabled"), ("unknown", "unknown")])
def test_a_connector_that_could_not_be_tried_is_not_to_blame(state, becomes):
    tools = [Capability("slirp4netns", "ok", "/usr/bin/slirp4netns"), Capability("pasta", "ok", "/usr/bin/pasta")]
    trials = {
        "slirp4netns": Capability("leased-network", state, "it failed"),
        "pasta": Capability("leased-network", "ok", "it works"),
    }
    found = {each.name: each.state for each in leasetrial.judge(tools, trials)}
    assert found == {"slirp4netns": becomes, "pasta": "ok", "leased-network": "ok"}
