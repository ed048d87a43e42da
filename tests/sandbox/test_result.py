"""A result as a document: its names are the contract's, and every byte survives."""

from __future__ import annotations

import base64
import json

import pytest
from fakes import policy
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.netns.egress import EgressAttempt, EgressDropped
from stockade.sandbox.denials import Denial
from stockade.sandbox.result import RunResult, Usage, plain
from stockade.sandbox.writes import WrittenFile

CONTRACT = {
    "schema", "outcome", "exit_code", "signal", "returncode", "reason", "started", "denied", "denials", "stdout", "stderr",
    "stdout_truncated", "stderr_truncated", "egress", "egress_dropped", "files_written", "enforcement", "degraded",
    "usage", "duration", "policy", "argv",
}  # fmt: skip
"""What is promised."""
EXTRAS = {"requests", "stdout_bytes", "stderr_bytes", "notes", "rule"}
"""What is there besides."""


def result(**changes):
    whole = RunResult(
        outcome="exited",
        exit_code=0,
        signal=None,
        returncode=0,
        reason="exited with code 0",
        started=True,
        denied=False,
        denials=(),
        stdout=b"out\n",
        stderr=b"",
        stdout_truncated=False,
        stderr_truncated=False,
        stdout_bytes=4,
        stderr_bytes=0,
        egress=(),
        egress_dropped=None,
        files_written=(),
        enforcement="full",
        degraded=(),
        notes=(),
        usage=Usage(0.5, 1 << 20, 2),
        duration=0.25,
        policy=policy(),
        argv=("echo", "out"),
        rule="executed",
        changes=None,
        requests=(),
    )
    return whole.replace(**changes)


def document(**changes):
    """As it is read back from JSON text."""
    return json.loads(json.dumps(result(**changes).to_json(), allow_nan=False))


def test_the_names_are_those_of_the_contract():
    assert set(document()) == CONTRACT | EXTRAS
    assert document()["schema"] == "stockade.result/1"


def test_values_are_plain_and_the_same():
    found = document()
    for name in (
        "outcome",
        "exit_code",
        "signal",
        "returncode",
        "reason",
        "started",
        "denied",
        "enforcement",
        "duration",
    ):
        assert found[name] == getattr(result(), name)
    assert found["usage"] == {"cpu_seconds": 0.5, "peak_rss": 1 << 20, "processes": 2, "cgroup": False}
    assert found["argv"] == ["echo", "out"]
    assert found["policy"]["filesystem"]["workspace"] == "read-only"


def test_not_recorded_is_told_from_nothing_written():
    assert document(files_written=None)["files_written"] is None
    assert document(files_written=())["files_written"] == []
    written = document(files_written=(WrittenFile("/w/a", "created"),))["files_written"]
    assert written == [{"path": "/w/a", "kind": "created"}]


def test_denials_and_egress_have_the_names_of_the_contract():
    denial = Denial("network", "observed", "evil.test:443", "3 packets", "--allow evil.test")
    attempt = EgressAttempt("evil.test", "203.0.113.66", 443, "tcp", False, 3, 180, "tls", 12.5, "GET /")
    found = document(denied=True, denials=(denial,), egress=(attempt,), egress_dropped=EgressDropped(3, 180))
    assert set(found["denials"][0]) == {"kind", "certainty", "subject", "detail", "hint"}
    assert set(found["egress"][0]) >= {
        "host", "address", "port", "protocol", "allowed", "packets", "bytes", "via", "first_seen", "data",
    }  # fmt: skip
    assert found["egress_dropped"] == {"packets": 3, "bytes": 180}


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("data", "text", "exact"),
    [
        (b"", "", False),
        ("é\n".encode(), "é\n", False),
        (b"a\xffb", "a\N{REPLACEMENT CHARACTER}b", True),
        (b"\x00\x1b", "\x00\x1b", False),
        (b"\xed\xa0\x80", "\N{REPLACEMENT CHARACTER}" * 3, True),
    ],
)
def test_bytes_that_are_no_text_are_there_exactly_too(name, data, text, exact):
    found = document(**{name: data})
    assert found[name] == text
    assert (f"{name}_base64" in found) is exact
    if exact:
        assert base64.b64decode(found[f"{name}_base64"]) == data


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_the_exact_bytes_can_always_be_had(data):
    found = document(stdout=data)
    kept = found.get("stdout_base64")
    assert (base64.b64decode(kept) if kept else found["stdout"].encode()) == data


ODD = "/w/\udcff\udce9"


def test_paths_and_words_that_are_no_text_do_not_break_the_document():
    found = result(
        argv=(ODD, "é", "\N{GRINNING FACE}"),
        files_written=(WrittenFile(ODD, "created"),),
        notes=(ODD,),
        policy=policy(write=(ODD,), env_set=(("X", ODD),)),
    ).to_json()
    text = json.dumps(found, ensure_ascii=False)
    text.encode("utf-8")
    assert found["argv"] == [r"/w/\xff\xe9", "é", "\N{GRINNING FACE}"]
    assert found["files_written"][0]["path"] == r"/w/\xff\xe9"


@settings(deadline=None)
@given(st.text() | st.lists(st.text()) | st.binary() | st.tuples(st.text(), st.integers()))
def test_plain_values_can_be_written_as_utf_8(value):
    json.dumps(plain(value), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"exit_code": 1}, False),
        ({"outcome": "signalled", "exit_code": 137}, False),
        ({"outcome": "stopped", "exit_code": 0}, False),
        ({"outcome": "runner_failed", "exit_code": None}, False),
    ],
)
def test_ok_is_an_own_end_with_code_0(changes, good):
    assert result(**changes).ok is good
