"""The public assertions: they fail with a list, and never pass on a result that can't tell."""

from __future__ import annotations

import pytest

from stockade.netns.egress import UNLISTED, EgressAttempt, EgressDropped
from stockade.policies.errors import PolicyError
from stockade.policies.resolved import Resolved
from stockade.sandbox.result import RunResult, Usage
from stockade.sandbox.writes import WrittenFile
from stockade.testing import NotRecorded, assert_egress_only, assert_no_egress, assert_no_write, assert_wrote_only


def made(*, kind="record", attempts=(), files=(), counted=True, **changes):
    """A result of a run that went well."""
    fields = dict.fromkeys(RunResult._fields)
    fields |= {
        "outcome": "exited",
        "exit_code": 0,
        "reason": "exited with code 0",
        "started": True,
        "egress": tuple(attempts),
        "egress_dropped": EgressDropped(0, 0) if counted else None,
        "files_written": None if files is None else tuple(WrittenFile(path, "created") for path in files),
        "enforcement": "full",
        "usage": Usage(0.0, 0, 1),
        "policy": resolved(kind),
    }
    return RunResult(**(fields | changes))


def resolved(kind):
    return Resolved(**(dict.fromkeys(Resolved._fields) | {"egress": kind}))


def attempt(host="api.example.com", address="203.0.113.5", port=443, protocol="tcp", via="tls", shared=()):
    return EgressAttempt(host, address, port, protocol, False, 3, 180, via, 0.1, "", shared)


def name(host):
    return EgressAttempt(host, "", 0, "dns", False, 2, 0, "dns", 0.1)


EVERY = [
    assert_no_egress,
    assert_no_write,
    lambda result: assert_egress_only(result, ["api.example.com"]),
    lambda result: assert_wrote_only(result, ["/w"]),
]
NETWORK = [EVERY[0], EVERY[2]]
WRITES = [EVERY[1], EVERY[3]]


@pytest.mark.parametrize("check", EVERY)
def test_nothing_was_done(check):
    check(made())
    check(made(kind="allow"))


@pytest.mark.parametrize("check", EVERY)
@pytest.mark.parametrize(
    "changes",
    [
        {"enforcement": "none"},
        {"enforcement": "none", "kind": "none", "counted": False},
        {"started": False, "outcome": "runner_failed"},
        {"started": False, "outcome": "not_executed"},
    ],
)
def test_a_run_that_can_not_tell(check, changes):
    with pytest.raises(NotRecorded, match="could not check"):
        check(made(**changes))


@pytest.mark.parametrize("check", NETWORK)
@pytest.mark.parametrize("kind", ["record", "allow", "open"])
def test_packets_that_nobody_counted(check, kind):
    with pytest.raises(NotRecorded, match="egress"):
        check(made(kind=kind, counted=False))


@pytest.mark.parametrize("check", NETWORK)
def test_without_a_network_nothing_can_leave(check):
    check(made(kind="none", counted=False))


@pytest.mark.parametrize("check", WRITES)
def test_writes_that_nobody_recorded(check):
    with pytest.raises(NotRecorded, match="writes"):
        check(made(files=None))


def test_not_recorded_is_a_failed_assertion():
    assert issubclass(NotRecorded, AssertionError)


# --- egress ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [attempt(), name("evil.example")])
def test_any_attempt_is_egress(each):
    with pytest.raises(AssertionError) as caught:
        assert_no_egress(made(attempts=[each]))
    assert not isinstance(caught.value, NotRecorded)


def test_the_list_is_readable_and_harmless():
    attempts = [
        attempt("a.example", shared=("a.example", "b.example")),
        name("x\x1b[2J"),
        *[attempt(port=n) for n in range(1, 31)],
    ]
    with pytest.raises(AssertionError) as caught:
        assert_no_egress(made(attempts=attempts))
    lines = str(caught.value).splitlines()
    assert lines[:3] == [
        "the program contacted:",
        "  a.example (203.0.113.5) port 443, tcp by tls, 3 packets, 180 bytes, address shared by a.example, b.example",
        "  x\\x1b[2J: name asked 2 times",
    ]
    assert lines[-1] == "  and 12 more"


@pytest.mark.parametrize(
    ("each", "hosts"),
    [
        (attempt(), ["api.example.com"]),
        (attempt(), ["other.example", "api.example.com"]),
        (attempt(), ["*.example.com"]),
        (attempt(), ["api.example.com:443"]),
        (attempt(), ["tcp://api.example.com"]),
        (attempt(port=8080), ["api.example.com"]),
        (attempt(protocol="udp"), ["api.example.com"]),
        (attempt(port=123, protocol="udp"), ["udp://api.example.com:123"]),
        (attempt(), ["203.0.113.0/24"]),
        (attempt(), ["203.0.113.5:443"]),
        (attempt("2001:db8::1", "2001:db8::1"), ["2001:db8::1"]),
        (attempt("2001:db8::1", "2001:db8::1"), ["[2001:db8::1]:443"]),
        (attempt(shared=("api.example.com", "b.example")), ["api.example.com", "b.example"]),
        (name("api.example.com"), ["api.example.com:8443"]),
    ],
)
def test_expected_hosts(each, hosts):
    assert_egress_only(made(attempts=[each]), hosts)


@pytest.mark.parametrize(
    ("each", "hosts"),
    [
        (attempt(), []),
        (attempt(), ["example.com"]),
        (attempt(), ["api.example.com:80"]),
        (attempt(), ["udp://api.example.com:443"]),
        (attempt(port=80), ["api.example.com:443"]),
        (attempt(protocol="udp"), ["tcp://api.example.com"]),
        (attempt(protocol="udp"), ["api.example.com:443"]),
        (attempt(), ["203.0.114.0/24"]),
        (attempt(), ["203.0.113.5:80"]),
        (attempt("2001:db8::1", "2001:db8::1"), ["[2001:db8::1]:80"]),
        (attempt(shared=("api.example.com", "b.example")), ["api.example.com"]),
        (attempt(shared=("api.example.com", UNLISTED)), ["api.example.com"]),
        (attempt("'api.example.com '"), ["api.example.com"]),
        (EgressAttempt(UNLISTED, "", 0, "other", False, 2, 0, "other", None), ["api.example.com"]),
        (name("evil.example"), ["api.example.com"]),
        (
            EgressAttempt("a.example", "10.0.0.1", 0, "dns", False, 1, 0, "dns", 0.1, "leads to 10.0.0.1"),
            ["10.0.0.0/8"],
        ),
    ],
)
def test_other_hosts(each, hosts):
    with pytest.raises(AssertionError, match="contacted too"):
        assert_egress_only(made(attempts=[attempt("fine.example"), each]), ["fine.example", *hosts])


@pytest.mark.parametrize(("hosts", "error"), [(["http://a.example/"], PolicyError), ("a.example", TypeError)])
def test_hosts_that_can_not_be_read(hosts, error):
    with pytest.raises(error):
        assert_egress_only(made(), hosts)


# --- writes ------------------------------------------------------------------------------------------------


def test_any_write_is_told():
    with pytest.raises(AssertionError, match=r"the program wrote:\n  created /w/a\\n"):
        assert_no_write(made(files=["/w/a\x0a"]))


@pytest.mark.parametrize(
    ("file", "paths"),
    [
        ("/w/a", ["/w/a"]),
        ("/w/a", ["/w"]),
        ("/w/a/b", ["/w/"]),
        ("/w/a", ["/"]),
        ("/w/a.txt", ["/x", "/w/*.txt"]),
        ("/w/.a", ["/w/*"]),
        ("/w/a/b/c", ["/w/*/b"]),
        ("/w/a/b/c.py", ["/w/**/*.py"]),
        ("/w/c.py", ["/w/**/*.py"]),
        ("/w/a/b", ["/w/**"]),
        ("/w/a/b", ["/**/b"]),
        ("/w/[x]", ["/w/[x]"]),
        ("/w/x", ["/w/[x]"]),
        ("/w/b", ["/w/[!a]"]),
    ],
)
def test_expected_paths(file, paths):
    assert_wrote_only(made(files=[file]), paths)


@pytest.mark.parametrize(
    ("file", "paths"),
    [
        ("/w/a", []),
        ("/w/ab", ["/w/a"]),
        ("/w", ["/w/a"]),
        ("/w/a/b.txt", ["/w/*.txt"]),
        ("/w/A", ["/w/a"]),
        ("/x/a", ["/w/**"]),
        ("/w/a/b.pyc", ["/w/**/*.py"]),
        ("/w/a", ["/w/a/**/b"]),
    ],
)
def test_other_paths(file, paths):
    with pytest.raises(AssertionError, match="wrote too"):
        assert_wrote_only(made(files=["/fine/x", file]), ["/fine", *paths])


@pytest.mark.parametrize(("paths", "error"), [(["relative"], ValueError), ("/w", TypeError)])
def test_paths_that_can_not_be_meant(paths, error):
    with pytest.raises(error):
        assert_wrote_only(made(), paths)
