"""Which requests pass and what becomes of their heads, by tables; and who runs the proxy."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.netns.edge.heads import Asked, Going, Place, answer_fault, judge_head
from stockade.netns.edge.interpreter import REMEDY, child_argv, find_interpreter
from stockade.netns.edge.requests import HIDDEN, EgressRequest, hide_values, shown_path
from stockade.netns.edge.rules import (
    Admitted,
    Refused,
    apply_headers,
    header_fault,
    judge_request,
    matches_path,
    method_fault,
    override_fault,
    path_fault,
    same_authority,
)
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import parse_rule


def rule(host="a.example", scheme="https", methods=(), paths=()):
    return EdgeRule(parse_rule(host), scheme, tuple(methods), tuple(paths), ())


RULES = (
    rule(methods=["GET"], paths=["/v1/*"]),
    rule(paths=["/upload"], methods=["PUT", "POST"]),
    rule("*.w.example:8000-8010", paths=["/*.json"]),
    rule("a.example:80", scheme="http"),
    rule(methods=["GET"]),
)


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        (("a.example", 443, "https", "GET", "/v1/x"), 0),
        (("a.example", 443, "https", "GET", "/v1/x?y=/../z"), 0),
        (("a.example", 443, "https", "GET", "/v2"), 4),
        (("A.Example.", 443, "https", "GET", "/v2"), 4),
        (("a.example", 443, "https", "PUT", "/upload"), 1),
        (("x.w.example", 8005, "https", "DELETE", "/a/b.json"), 2),
        (("a.example", 80, "http", "PATCH", "/anything"), 3),
    ],
)
def test_the_first_rule_that_means_a_request(asked, index):
    assert judge_request(RULES, *asked) == Admitted(index)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (("a.example", 443, "https", "PUT", "/other"), 403, "this path"),
        (("a.example", 443, "https", "DELETE", "/v1/x"), 403, "the method DELETE"),
        (("a.example", 443, "http", "GET", "/v1/x"), 403, "no entry"),
        (("a.example", 80, "https", "GET", "/"), 403, "no entry"),
        (("a.example", 444, "https", "GET", "/"), 403, "no entry"),
        (("w.example", 8000, "https", "GET", "/x.json"), 403, "no entry"),
        (("x.w.example", 8011, "https", "GET", "/x.json"), 403, "no entry"),
        (("b.example", 443, "https", "GET", "/"), 403, "no entry"),
        (("a.example", 443, "https", "GET", "/v1/../x"), 403, "dot segment"),
        (("a.example", 443, "https", "get", "/v1/x"), 400, "capital"),
        (("a.example", 443, "https", "CONNECT", "/"), 400, "CONNECT"),
        (("a.example", 443, "https", "", "/"), 400, "capital"),
        (("a.example", 443, "https", "G" * 33, "/"), 400, "capital"),
    ],
)
def test_requests_that_are_refused(asked, status, words):
    verdict = judge_request(RULES, *asked)
    assert isinstance(verdict, Refused)
    assert verdict.status == status
    assert words in verdict.reason


def test_no_rules_mean_nothing():
    assert judge_request((), "a.example", 443, "https", "GET", "/").status == 403


@pytest.mark.parametrize(
    "target",
    ["/", "/a", "/a/", "/a//b", "/a.b/..c/c..", "/...", "/a%20b", "/%61", "/~x;v=1", "/a?b=../%2e#"[:-1], "/a?%", "/100%25",
     "/%e2%82%ac", "/%e9", "/%e0%a4%85", "/%e0x%80"],
)  # fmt: skip
def test_paths_with_one_meaning(target):
    assert path_fault(target) == ""


@pytest.mark.parametrize(
    "target",
    [
        "", "*", "a", "http://a.example/", "//a", "/..", "/.", "/a/..", "/a/../b", "/a/./b", "/%2e", "/%2E%2e/", "/a%2e",
        "/a/..;x/b", "/.;/a", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/a%00", "/a%0d%0a", "/a%7f", "/%c0%af", "/%c1%9c",
        "/%e0%80%af", "/%E0%9F%BF", "/%f0%80%80%ae",
        "/a%252fb", "/a%252e%252e", "/a%25%32%66", "/a%", "/a%2", "/a%zz", "/a%u002f", "/a b", "/a\tb", "/é", "/a\x00",
        "/a#b", "/a?b#c", "/" + "a" * 40_000,
    ],
)  # fmt: skip
def test_paths_with_two_meanings(target):
    assert path_fault(target)


@given(st.text(alphabet="/.%25efc;\\a?#", max_size=20))
def test_a_path_that_passes_stays_where_it_is(text):
    """Whatever a server undoes, once or twice, no step up comes of it."""
    from posixpath import normpath
    from urllib.parse import unquote

    target = f"/{text}"
    if path_fault(target):
        return
    path = target.partition("?")[0]
    for read in (path, unquote(path), unquote(unquote(path))):
        steps = [part.partition(";")[0] for part in read.replace("\\", "/").split("/")]
        assert ".." not in steps
        assert "." not in steps
        assert read.count("/") == path.count("/")
        assert (
            normpath(read).rstrip("/") == "/" + "/".join(part for part in read.split("/") if part)
            or read.strip("/") == ""
        )


@pytest.mark.parametrize(
    ("pattern", "path", "means"),
    [
        ("/a", "/a", True), ("/a", "/ab", False), ("/a*", "/ab", True), ("/a/*", "/a", False), ("/a/*", "/a/", True),
        ("/*/c", "/a/b/c", True), ("/*/c", "/c", False), ("*", "/x", True), ("/a*a", "/a", False), ("/a*a", "/aa", True),
        ("/*x*y", "/axby", True), ("/*x*y", "/y", False), ("/ab*ba", "/aba", False), ("/a*b*c", "/abbc", True),
        ("/a?", "/ab", False),
    ],
)  # fmt: skip
def test_patterns(pattern, path, means):
    assert matches_path(pattern, path) is means


def test_a_pattern_takes_no_time():
    assert not matches_path("/" + "*a" * 200 + "b", "/" + "a" * 30_000)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a.example", True), ("a.example:443", True), ("A.EXAMPLE", True), ("a.example.", True), ("a.example.:443", True),
        ("a.example:80", False), ("b.example", False), ("a.example:", False), ("a.example:+443", False), ("", False),
        ("a.example:443:1", False), ("x@a.example", False), ("a.example,b", False), (" a.example", False),
        ("a.example..", False), ("a.example:٤٤٣", False), ("[a.example]", False), ("a.example/x", False),
    ],
)  # fmt: skip
def test_authorities(text, same):
    assert same_authority(text, "a.example", 443, "https") is same


def test_a_port_that_is_not_the_scheme_s_is_named():
    assert same_authority("a.example:8443", "a.example", 8443, "https")
    assert not same_authority("a.example", "a.example", 8443, "https")
    assert same_authority("a.example", "a.example", 80, "http")


def test_headers_are_replaced_in_every_spelling():
    sent = [
        ("X-A", "1"),
        ("authorization", "m"),
        ("AUTHORIZATION", "m"),
        ("x-api-key", "m"),
        ("X_Api_Key", "m"),
        ("x-b", "2"),
    ]
    put = (("Authorization", "s"), ("X-Api-Key", "t"))
    assert apply_headers(sent, put) == [("X-A", "1"), ("x-b", "2"), *put]
    assert apply_headers(sent, ()) == sent


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("X-A", "b", True), ("x_a", "\tb ü", True), ("", "b", False), ("X A", "b", False), ("X:", "b", False),
        ("X-A", "b\r\nc", False),
        ("X-A", "b\n", False), ("X-A", "\0", False), ("X-A\n", "b", False), ("é", "b", False), ("X-A", "\x7f", False),
    ],
)  # fmt: skip
def test_headers_that_can_be_passed(name, value, good):
    assert (header_fault(name, value) == "") is good


def test_overrides():
    assert override_fault(rule(methods=["GET"]), ["X-HTTP-Method-Override"])
    assert override_fault(rule(methods=["GET"]), ["x_http_method_override"])
    assert override_fault(rule(paths=["/a"]), ["X-Original-URL"])
    assert not override_fault(rule(), ["X-HTTP-Method-Override", "X-Original-URL"])
    assert not override_fault(rule(methods=["GET"], paths=["/a"]), ["X-A"])


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "get", ""])
def test_methods_that_are_never_passed(method):
    assert judge_request((rule(),), "a.example", 443, "https", method, "/").status == 400


@pytest.mark.parametrize("method", ["GET", "M-SEARCH", "VERSION-CONTROL"])
def test_methods(method):
    assert method_fault(method) == ""


# --- heads -------------------------------------------------------------------------------------------------

PLACE = Place("a.example", "192.0.2.1", 443, True)


def head(*headers, version="HTTP/1.1", method="GET", target="/v1/x", authority="", multiplexed=False):
    if not any(name.lower() == "host" for name, _value in headers) and not multiplexed:
        headers = (("Host", "a.example"), *headers)
    return Asked(version, method, target, authority, tuple(headers), multiplexed)


def judged(asked, values=(("Authorization", "s"),)):
    return judge_head(asked, RULES, [values] * len(RULES), PLACE)


def test_a_head_is_written_anew():
    going = judged(head(("authorization", "m"), ("Connection", "close, x"), ("X", "1"), ("Accept-Encoding", "br")))
    again = (("Accept-Encoding", "identity"), ("Connection", "close"), ("Authorization", "s"))
    assert going == Going(0, (("Host", "a.example"), ("X", "1"), *again), "", False, False)


def test_an_answer_is_not_asked_for_in_pieces():
    """Of two pieces that meet inside a secret neither holds it."""
    asked = head(("Range", "bytes=0-9"), ("if-range", "x"))
    assert not {name.lower() for name, _value in judged(asked).headers} & {"range", "if-range"}
    assert ("Range", "bytes=0-9") in judged(asked, values=()).headers, "nothing is put in: the control"


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("A.Example.", "a.example"),
        ("a.example:443", "a.example:443"),
        ("a.EXAMPLE.:00443", "a.example:443"),
        ("a.example", "a.example"),
    ],
)
def test_the_host_is_written_in_one_spelling(text, sent):
    assert dict(judged(head(("Host", text))).headers)["Host"] == sent
    assert judged(head(version="HTTP/2.0", authority=text, multiplexed=True)).authority == sent


def test_a_head_of_http2_is_written_anew():
    sent = (("TE", "trailers"), ("authorization", "m"), ("host", "a.example"))
    going = judged(head(*sent, version="HTTP/2.0", authority="a.example", multiplexed=True))
    again = (("accept-encoding", "identity"), ("te", "trailers"), ("authorization", "s"))
    assert going == Going(0, again, "a.example", False, False)
    assert judged(head(("host", "a.example"), version="HTTP/2.0", multiplexed=True)).authority == "a.example"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (head(version="HTTP/2.0"), 400),
        (head(version="HTTP/0.9"), 400),
        (head(version="HTTP/1.1", multiplexed=True, authority="a.example"), 400),
        (head(version="HTTP/2.0", multiplexed=True), 400),
        (head(version="HTTP/2.0", multiplexed=True, authority="b.example"), 421),
        (head(("host", "b.example"), version="HTTP/2.0", multiplexed=True, authority="a.example"), 421),
        (head(authority="b.example"), 421),
        (head(("Host", "b.example")), 421),
        (head(("Host", "a.example"), ("host", "a.example")), 400),
        (head(*[("X", "1")] * 300), 431),
        (head(("Expect", "200-ok")), 417),
        (head(("Content-Length", "1"), ("Transfer-Encoding", "chunked")), 400),
        (head(("Content-Length", "1"), ("Content-Length", "1")), 400),
        (head(("Transfer-Encoding", "gzip, chunked")), 400),
        (head(("Content-Length", "-1")), 400),
        (head(("Content_Length", "1")), 400),
        (head(("X", "a\r\n b")), 400),
    ],
)
def test_heads_that_are_refused(asked, status):
    assert judged(asked).status == status


SOCKET = (("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Extensions", "x"))


def test_only_a_websocket_is_an_upgrade():
    going = judged(head(*SOCKET))
    assert going.upgrade
    assert ("Upgrade", "websocket") in going.headers
    assert not [name for name, _value in going.headers if name == "Sec-WebSocket-Extensions"]
    for other in (
        head(*SOCKET[:1], ("Upgrade", "h2c")),
        head(*SOCKET[1:]),
        head(*SOCKET, ("Content-Length", "5")),
        head(*SOCKET, version="HTTP/1.0"),
    ):
        going = judged(other)
        assert not going.upgrade
        assert not [name for name, _value in going.headers if name in ("Upgrade", "Connection")]


@pytest.mark.parametrize(
    ("status", "headers", "upgrade", "good"),
    [
        (200, (), False, True),
        (200, (("Transfer-Encoding", "chunked"), ("Content-Encoding", "gzip")), False, True),
        (200, (("Content-Encoding", "identity"),), False, True),
        (206, (("Content-Encoding", "gzip"),), False, False),
        (200, (("Content-Encoding", "br"),), False, False),
        (200, (("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")), False, False),
        (200, (("Transfer-Encoding", "gzip"),), False, False),
        (100, (), False, False),
        (103, (), False, False),
        (101, (("Upgrade", "websocket"),), True, True),
        (101, (("Upgrade", "websocket"),), False, False),
        (101, (("Upgrade", "h2c"),), True, False),
        (101, (("Upgrade", "websocket"), ("Sec-WebSocket-Extensions", "x")), True, False),
        (99, (), False, False),
        (600, (), False, False),
        (-1, (), False, False),
        (200, (("X", "1"),) * 300, False, False),
    ],
)
def test_answers(status, headers, upgrade, good):
    assert (answer_fault(status, headers, upgrade=upgrade) == "") is good


# --- records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "shown"),
    [("a=1&b=2", f"a={HIDDEN}&b={HIDDEN}"), ("x", HIDDEN), ("a=b=c", f"a={HIDDEN}"), ("", HIDDEN), ("a", HIDDEN)],
)
def test_values_are_hidden(query, shown):
    assert hide_values(query) == shown


def test_paths_are_shown():
    assert shown_path("/a?b=c", mask_query=False) == "/a?b=c"
    assert shown_path("/a?b=c", mask_query=True) == f"/a?b={HIDDEN}"
    assert shown_path("/a\x1b\n", mask_query=True) == "/a\\x1b\\n"
    assert len(shown_path("/" + "a" * 9000, mask_query=False)) < 3000


def test_the_record():
    made = EgressRequest("GET", "a.example", 443, "/", 200, 5, 0.1, True, "", 1.5)
    assert list(made.as_dict()) == [
        "method", "host", "port", "path", "status", "bytes", "duration", "transformed", "reason", "first_seen",
    ]  # fmt: skip


# --- the interpreter ---------------------------------------------------------------------------------------


def test_the_interpreter_that_is_named():
    assert find_interpreter({"STOCKADE_EDGE_PYTHON": sys.executable}) == (sys.executable, "")


def test_an_interpreter_that_is_no_good_is_not_passed_over(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.write_text("")
    open_to_all.chmod(0o777)
    in_open_folder = tmp_path / "folder" / "python"
    in_open_folder.parent.mkdir()
    in_open_folder.symlink_to(sys.executable)
    in_open_folder.parent.chmod(0o777)
    for named, words in (
        ("python3", "absolute"),
        (str(tmp_path / "missing"), "no file"),
        (str(tmp_path), "no program"),
        (str(plain), "no program"),
        (str(open_to_all), "others can change"),
        (str(in_open_folder), "others can change"),
        ("/a\0b", "no file"),
    ):
        path, cause = find_interpreter({"STOCKADE_EDGE_PYTHON": named})
        assert path == ""
        assert words in cause
        assert "STOCKADE_EDGE_PYTHON" in cause


def test_no_interpreter(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert find_interpreter({}) == ("", "mitmproxy is not installed")
    assert "STOCKADE_EDGE_PYTHON" in REMEDY


def test_the_own_interpreter(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    assert find_interpreter({}) == (sys.executable, "")


def test_the_command():
    python, *options, program = child_argv("/x/python")
    assert (python, options) == ("/x/python", ["-I", "-B"])
    assert os.path.isfile(program)
