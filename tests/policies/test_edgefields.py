"""Entries of ``network.edge``: what is understood, what is refused and in which words, and that they can be written out."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.edge import EdgeRule, Header, read_edge, write_edge
from stockade.policies.edgefields import MOST_ENTRIES, MOST_HEADERS, edge_table, parse_edge
from stockade.policies.errors import PolicyError
from stockade.policies.hosts import parse_rule

WHERE = "network.edge of p.toml"


def rule_of(**entry: Any) -> EdgeRule:
    (line,) = parse_edge([entry], WHERE)
    return read_edge(line)


def refusal(**entry: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        parse_edge([{"host": "good.example"}, entry], WHERE)
    assert caught.value.message.isprintable()
    assert "p.toml" in caught.value.message
    return caught.value


def test_the_least() -> None:
    assert rule_of(host="API.example") == EdgeRule(parse_rule("api.example"), "https", (), (), ())


def test_everything() -> None:
    found = rule_of(
        host="*.api.example:8000-8010",
        scheme="http",
        methods=["GET", "POST", "GET"],
        paths=["/v1/*", "*"],
        headers={
            "Authorization": {"from": "env:API_TOKEN", "format": "Bearer {}"},
            "X-Basic": {"from": "file:~/.config/key", "format": "Basic {base64}"},
            "X-Command": "command:secret-tool lookup 'a b' c",
            "X-Client": {"from": "literal:hooks: 1"},
        },
    )
    assert (found.host.text, found.scheme) == ("*.api.example:8000-8010", "http")
    assert (found.methods, found.paths) == (("GET", "POST"), ("/v1/*", "*"))
    assert found.headers == (
        Header("Authorization", "env:API_TOKEN", "Bearer {}"),
        Header("X-Basic", "file:~/.config/key", "Basic {base64}"),
        Header("X-Command", "command:secret-tool lookup 'a b' c", "{}"),
        Header("X-Client", "literal:hooks: 1", "{}"),
    )


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        (None, "is no text"),
        (3, "is no text"),
        ("", "it is empty"),
        ("https://api.example", "not a URL"),
        ("a b", "' ' is not allowed"),
        ("*", "as in *.example.com"),
        ("*.", "host is missing"),
        ("udp://api.example", "is UDP"),
        ("192.0.2.1", "is an address"),
        ("192.0.2.0/24:8443", "is an address"),
        ("[2001:db8::1]:443", "is an address"),
        ("169.254.169.254", "metadata"),
        ("api.example check=name", "has check="),
        ("api.example check=address", "has check="),
    ],
)
def test_hosts_refused(host: object, cause: str) -> None:
    error = refusal(host=host) if host is not None else refusal(host=1.5)
    assert error.message.startswith("could not use network.edge[2].host of p.toml: ")
    assert cause in error.message
    assert "api.example.com" in error.remedy


def test_a_missing_host_and_plain_http_on_the_port_of_https() -> None:
    assert "network.edge[2].host of p.toml: it is missing" in refusal(scheme="https").message
    assert refusal(host="*.a.example:443", scheme="http").remedy == "write *.a.example:80"
    assert rule_of(host="a.example:80", scheme="http").host.low == 80
    assert "scheme of p.toml" in refusal(host="a.example", scheme="ftp").message
    assert "there is no key 'header'" in refusal(host="a.example", header={}).message


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        (["get"], 'write "GET"'),
        (["GET", "Post"], 'write "POST"'),
        ([], "leave it out"),
        ("GET", "a list of methods"),
        ([1], "a list of methods"),
        (["*"], "leave it out"),
        (["G E T"], "in capitals"),
        ([""], "in capitals"),
        (["GET\r\nX: y"], "in capitals"),
        (["CONNECT"], "leave it out"),
        (["TRACE"], "leave it out"),
        (["X" * 200], "in capitals"),
        ([f"M{number}" for number in range(65)], "leave it out"),
    ],
)
def test_methods_refused(methods: object, says: str) -> None:
    error = refusal(host="a.example", methods=methods)
    assert "network.edge[2].methods of p.toml" in error.message
    assert says in error.remedy


@pytest.mark.parametrize("method", ["GET", "M-SEARCH", "VERSION-CONTROL", "X_Y2"])
def test_methods(method: str) -> None:
    assert rule_of(host="a.example", methods=[method]).methods == (method,)


@pytest.mark.parametrize("path", ["/", "*", "/*", "/v1/*/x", "/a%20b", "/a;b=c", "/~u/", "/a..b", "/..."])
def test_paths(path: str) -> None:
    assert rule_of(host="a.example", paths=[path]).paths == (path,)


@pytest.mark.parametrize(
    "paths",
    [["v1"], ["*/v1"], [""], ["/a?b"], ["/a#b"], ["/a\0"], ["/a\n"], ["/a b"], ["/a\x7f"], ["/ä"], ["/a/../b"], ["/./a"],
     ["/a/.."], ["/a\\b"], ["https://a.example/"], ["/" + "a" * 5000], [], "/v1", [3], ["/ok", "no"]],
)  # fmt: skip
def test_paths_refused(paths: object) -> None:
    error = refusal(host="a.example", paths=paths)
    assert "network.edge[2].paths of p.toml" in error.message
    assert '"/v1/*"' in error.remedy


@pytest.mark.parametrize(
    "name",
    ["Host", "host", "Content-Length", "content_length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Trailer",
     "Keep-Alive", "Keep_Alive", "Proxy-Authorization", "proxy-", "Expect", "Accept-Encoding", "HTTP2-Settings", "", "a b",
     "a:b", ":path", "a\r\nb", "ä", "a\0", "x" * 200],
)  # fmt: skip
def test_header_names_refused(name: str) -> None:
    error = refusal(host="a.example", headers={name: "env:TOKEN"})
    assert "network.edge[2].headers of p.toml" in error.message


@pytest.mark.parametrize("twin", ["x-key", "X_Key", "X-KEY"])
def test_one_header_twice(twin: str) -> None:
    error = refusal(host="a.example", headers={"X-Key": "env:A", twin: "env:B"})
    assert f"'X-Key' and {twin!r} are one header" in error.message


@pytest.mark.parametrize("name", ["Authorization", "X-Key", "x_key", "Cookie", "TE-X", "Hosts"])
def test_header_names(name: str) -> None:
    assert rule_of(host="a.example", headers={name: "env:TOKEN"}).headers[0].name == name


SECRET = "sk-5ecretpart"


@pytest.mark.parametrize(
    "value",
    [SECRET, f"Bearer {SECRET}", f"ENV:{SECRET}", f"vault:{SECRET}", f" env:{SECRET}", {"from": SECRET}, {"value": SECRET},
     {"format": f"Bearer {SECRET}"}, {"from": "env:A", "format": f"Bearer {SECRET}"}, {}, [SECRET], 3, True, None,
     {"from": "env:A", "format": SECRET + "{}{}"}, f"literal:{SECRET}\n", f"literal: {SECRET}", ""],
)  # fmt: skip
def test_a_value_written_down_is_refused_and_not_quoted(value: object) -> None:
    error = refusal(host="a.example", headers={"Authorization": value})
    assert "network.edge[2].headers.Authorization" in error.message
    assert SECRET not in error.message + error.remedy
    assert error.remedy


def test_the_remedy_for_a_plain_value_is_literal() -> None:
    assert "literal:" in refusal(host="a.example", headers={"X-Client": "hooks"}).remedy


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("env:", "name of a variable"),
        ("env:1A", "name of a variable"),
        ("env:A B", "name of a variable"),
        ("env:A=B", "name of a variable"),
        ("env:Ä", "name of a variable"),
        ("file:", "must be absolute"),
        ("file:key", "must be absolute"),
        ("file:./key", "must be absolute"),
        ("file:~key", "must be absolute"),
        ("file:~other/key", "must be absolute"),
        ("file:/a/../b", '".." in it'),
        ("file:/a\0b", "control characters"),
        ("file:/a\nb", "control characters"),
        ("file:/", "whole file system"),
        ("file:/a/", "that of a directory"),
        ("command:", "command is missing"),
        ("command:  ", "command is missing"),
        ("command:'' a", "command is missing"),
        ("command:a 'b", "no closing quotation"),
        ("command:bin/token", "path must be absolute"),
        ("command:./token -x", "path must be absolute"),
        ("command:a\nb", "one line"),
        ("command:a\0", "one line"),
        ("literal:", "is empty"),
        ("literal:a\r\nX: y", "printable ASCII"),
        ("literal:ä", "printable ASCII"),
        ("literal:a ", "a space at an end"),
    ],
)
def test_sources_refused(source: str, cause: str) -> None:
    error = refusal(host="a.example", headers={"X-Key": source})
    assert "network.edge[2].headers.X-Key of p.toml" in error.message
    assert cause in error.message
    assert "env:NAME" in error.remedy


@pytest.mark.parametrize("form", ["{}", "Bearer {}", "{base64}", "Basic {base64}", 'a="{}", b', "token={};"])
def test_formats(form: str) -> None:
    assert rule_of(host="a.example", headers={"A": {"from": "env:A", "format": form}}).headers[0].format == form


@pytest.mark.parametrize(
    "form",
    ["", "Bearer", "{}{}", "{} {base64}", "{base65}", "{} {x}", "{}}", "{{}", "{ }", "{}\r\n", "{}\0", "ä{}", "{} ", " {}",
     3, None, ["{}"]],
)  # fmt: skip
def test_formats_refused(form: object) -> None:
    error = refusal(host="a.example", headers={"A": {"from": "env:A", "format": form}})
    assert "network.edge[2].headers.A.format of p.toml" in error.message
    assert "{base64}" in error.remedy


def test_amounts() -> None:
    many = [{"host": f"h{number}.example"} for number in range(MOST_ENTRIES + 1)]
    assert len(parse_edge(many[:-1], WHERE)) == MOST_ENTRIES
    with pytest.raises(PolicyError, match="more than 64 entries"):
        parse_edge(many, WHERE)
    headers = {f"X-{number}": "env:A" for number in range(MOST_HEADERS + 1)}
    assert "more than 32" in refusal(host="a.example", headers=headers).message
    headers.popitem()
    assert len(rule_of(host="a.example", headers=headers).headers) == MOST_HEADERS


# --- round trips -------------------------------------------------------------------------------------------

WORD = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
PRINTABLE = st.text(
    string.ascii_letters + string.digits + " !\"#$%&'()*+,-./:;<=>?@[]^_`|~\\", min_size=1, max_size=20
)
SENDABLE = PRINTABLE.map(str.strip).filter(bool)
SOURCES = st.one_of(
    st.from_regex(r"env:[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True),
    st.tuples(st.sampled_from(["file:/", "file:~/"]), WORD).map("".join),
    WORD.map("command:{0} 'x y'".format),
    SENDABLE.map("literal:{0}".format),
)
FORMATS = st.tuples(
    st.sampled_from(["", "Bearer ", 'k="']), st.sampled_from(["{}", "{base64}"]), st.sampled_from(["", '"'])
).map("".join)
HEADERS = st.dictionaries(WORD.map("X-{0}".format), st.tuples(SOURCES, FORMATS), max_size=4).filter(
    lambda found: len({name.lower() for name in found}) == len(found)
)
RULES = st.builds(
    EdgeRule,
    st.sampled_from(["api.example:80", "*.api.example:8443", "a.example:1-65535"]).map(parse_rule),
    st.sampled_from(["https", "http"]),
    st.lists(st.sampled_from(["GET", "POST", "M-SEARCH"]), unique=True).map(tuple),
    st.lists(WORD.map("/v1/{0}/*".format) | st.just("*"), unique=True, max_size=3).map(tuple),
    HEADERS.map(lambda found: tuple(Header(name, *value) for name, value in found.items())),
)


@given(RULES)
def test_written_and_read_again(rule: EdgeRule) -> None:
    line = write_edge(rule)
    assert "\n" not in line
    assert read_edge(line) == rule
    assert parse_edge([edge_table(line)], WHERE) == (line,)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | SOURCES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.just("X-A"), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["host", "scheme", "methods", "paths", "headers"]) | st.text(max_size=4)


def line_or_fault(entry: dict[str, Any]) -> str | PolicyError:
    try:
        return parse_edge([entry], WHERE)[0]
    except PolicyError as error:
        return error


@given(st.dictionaries(KEYS, ANY, max_size=5), st.booleans())
def test_only_policy_errors(entry: dict[str, Any], named: bool) -> None:
    line = line_or_fault(entry | ({"host": "a.example:8443"} if named else {}))
    if isinstance(line, PolicyError):
        assert line.message.isprintable()
    else:
        assert parse_edge([edge_table(line)], WHERE) == (line,)
