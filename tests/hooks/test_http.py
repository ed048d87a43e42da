"""HTTP handlers: what is sent, what may be reached, and that nothing else is; each refusal beside what works."""

from __future__ import annotations

import subprocess
import sys
import threading

import httpserver
import pytest
from httpserver import HOST, Server, answer

from stockade.policies.errors import StockadeError
from stockade.policies.resolved import Resolved
from stockade.sandbox.hooks import http
from stockade.sandbox.hooks.httpcourse import Course, HttpFailed, HttpRefused
from stockade.sandbox.hooks.model import HookSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

EVENT = b'{"hook_event_name": "PreToolUse"}'
LOOPBACK = ["127.0.0.1"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with httpserver.serving(str(tmp_path_factory.mktemp("server"))) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(server: Server) -> None:
    server.replies.clear()
    server.requests.clear()
    server.connections = 0


def policy(*allow: str, egress: str = "allow") -> Resolved:
    return Resolved(**(dict.fromkeys(Resolved._fields) | {"egress": egress, "allow": allow, "private": True}))


def spec(url: str, **more: Any) -> HookSpec:
    return HookSpec("claude", "PreToolUse", "pre_tool", "http", url=url, **more)


def ways(server: Server, *answers: list[str], screen: Any = None) -> http.Ways:
    """Names lead to loopback, once in this test's own way; ``answers`` are what lookups give one after another."""
    given = list(answers or [LOOPBACK])

    def resolve(_host: str, _port: int) -> list[str]:
        return given.pop(0) if len(given) > 1 else given[0]

    return http.Ways(resolve, screen or (lambda found: (tuple(found), ())), server.trust)


def post(server: Server, path: str = "/", *, seconds: float = 20.0, given: Any = None, **more: Any) -> http.Answer:
    chosen = given or spec(server.url(path))
    allowed = more.pop("allow", [f"{HOST}:*"])
    options = {"policy": policy(*allowed), "environ": {}, "course": Course(seconds), "ways": ways(server)} | more
    return http.post(chosen, EVENT, **options)


# --- what is sent ---------------------------------------------------------------------------------------------


def test_the_same_json_is_posted_and_the_body_comes_back(server: Server) -> None:
    server.replies["/hook?a=1"] = answer(b'{"continue": true}', "201 Created")
    assert post(server, "/hook?a=1#part") == http.Answer(201, b'{"continue": true}')
    line, headers, body = server.requests[0]
    assert (line, body) == ("POST /hook?a=1 HTTP/1.1", EVENT)
    assert headers["host"] == f"{HOST}:{server.port}"
    assert headers["content-type"] == "application/json"
    assert headers["accept-encoding"] == "identity"


def test_header_values_come_from_named_variables_alone(server: Server) -> None:
    """Need 9: a handler gets the secrets that it names, and no others."""
    headers = (
        ("X-Named", "a $TOKEN-${TOKEN}"),
        ("X-Unnamed", "<$SECRET>"),
        ("X-Unset", "[$ABSENT]"),
        ("X-Cost", "$5"),
    )
    given = spec(server.url(), headers=headers, header_variables=("TOKEN", "ABSENT"))
    post(server, given=given, environ={"TOKEN": "t0k", "SECRET": "s3cret"})
    sent = server.requests[0][1]
    assert [sent[name] for name in ("x-named", "x-unnamed", "x-unset", "x-cost")] == ["a t0k-t0k", "<>", "[]", "$5"]
    assert "s3cret" not in repr(server.requests)


@pytest.mark.parametrize(
    ("headers", "environ"),
    [
        ((("X-A", "$T"),), {"T": "a\r\nX-Evil: 1"}),
        ((("X-A", "a\nb"),), {}),
        ((("X-A", "\xe4"),), {}),
        ((("X A", "a"),), {}),
        ((("", "a"),), {}),
        ((("Host", "elsewhere.example"),), {}),
        ((("content-length", "0"),), {}),
        ((("Transfer-Encoding", "chunked"),), {}),
    ],
)
def test_headers_that_could_change_the_request_are_refused(
    server: Server, headers: Any, environ: dict[str, str]
) -> None:
    given = spec(server.url(), headers=headers, header_variables=("T",))
    with pytest.raises(HttpRefused, match="could not send the header") as caught:
        post(server, given=given, environ=environ)
    assert "Evil" not in str(caught.value)
    assert server.connections == 0
    post(server, given=spec(server.url(), headers=(("X-A", "a"),)))
    assert len(server.requests) == 1


# --- where it may go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        (f"http://{HOST}/", "only https"),
        ("ftp://x.example/", "only https"),
        ("", "only https"),
        ("//x.example/", "only https"),
        ("https:///", "no host"),
        (f"https://user:word@{HOST}/", "credentials"),
        ("https://[::1", "could not use the handler's URL"),
        ("https://x.example:99999999/", "no port"),
    ],
)
def test_only_plain_https_urls(server: Server, url: str, cause: str) -> None:
    with pytest.raises(HttpRefused, match=cause) as caught:
        post(server, given=spec(url), allow=[f"{HOST}:*", "x.example"])
    assert "word" not in str(caught.value)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("allow", "egress", "reached"),
    [
        ([f"{HOST}:*"], "allow", True),
        (["*.example:*"], "allow", True),
        ([], "open", True),
        ([HOST], "allow", False),  # another port
        (["other.example:*"], "allow", False),
        ([f"*.{HOST}:*"], "allow", False),
        ([f"udp://{HOST}:*"], "allow", False),
        (["127.0.0.1:*"], "allow", False),
        ([], "allow", False),
        ([f"{HOST}:*"], "none", False),
        ([f"{HOST}:*"], "record", False),
    ],
)
def test_the_host_must_be_on_the_allowlist(server: Server, allow: list[str], egress: str, *, reached: bool) -> None:
    asked: list[str] = []

    def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return LOOPBACK

    open_way = http.Ways(resolve, lambda found: (tuple(found), ()), server.trust)
    if reached:
        assert post(server, policy=policy(*allow, egress=egress), ways=open_way).status == 200
        assert asked == [HOST]
        return
    with pytest.raises(HttpRefused, match="not on the allowlist") as caught:
        post(server, policy=policy(*allow, egress=egress), ways=open_way)
    assert f"--allow {HOST}:{server.port}" in str(caught.value)
    assert (server.connections, asked) == (0, []), "nothing leaves, no lookup either"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "100.64.0.1", "169.254.1.1", "169.254.169.254", "fe80::1", "fc00::1", "fd00:ec2::254", "168.63.129.16",
        "100.100.100.200", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "255.255.255.255",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(server: Server, address: str) -> None:
    """By the screen that is in force outside of tests; ``private = true`` of the policy changes nothing here."""
    with pytest.raises(HttpRefused, match="which no handler may reach"):
        post(server, ways=ways(server, [address], screen=http.public_only))
    assert server.connections == 0
    assert http.public_only(["203.0.113.5", "2001:db8:1::1"])[0] == ("203.0.113.5", "2001:db8:1::1")


def test_an_address_in_the_url_is_screened_too(server: Server) -> None:
    given = spec(f"https://127.0.0.1:{server.port}/")
    with pytest.raises(HttpRefused, match="which no handler may reach"):
        post(server, given=given, allow=["127.0.0.1:*"], ways=http.Ways(trust=server.trust))
    assert server.connections == 0
    with pytest.raises(HttpFailed, match="TLS"):  # reached, and its certificate is for a name
        post(server, given=given, allow=["127.0.0.1:*"])


def test_need_10_a_name_that_changes_between_check_and_connect_gains_nothing(server: Server) -> None:
    """Only the first lookup counts, and what was checked is what is connected to."""
    checked: list[tuple[str, ...]] = []

    def screen(found: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        checked.append(tuple(found))
        return tuple(each for each in found if each == "127.0.0.1"), ()

    assert post(server, ways=ways(server, LOOPBACK, ["127.0.0.2"], screen=screen)).status == 200
    assert checked == [("127.0.0.1",)]
    with pytest.raises(HttpRefused):
        post(server, ways=ways(server, ["127.0.0.2"], LOOPBACK, screen=screen))
    assert server.connections == 1


def test_addresses_are_tried_one_after_another(server: Server) -> None:
    assert post(server, ways=ways(server, ["127.0.0.3", "127.0.0.1"])).status == 200


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirects_are_not_followed(server: Server, status: str) -> None:
    server.replies["/"] = answer(b"", status, f"Location: {server.url('/inner')}")
    with pytest.raises(HttpFailed, match="redirects are not followed"):
        post(server)
    assert [line for line, _headers, _body in server.requests] == ["POST / HTTP/1.1"]
    assert post(server, "/inner").status == 200


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_no_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert post(server).status == 200


def test_the_certificate_must_be_trusted_and_for_this_host(server: Server) -> None:
    import ssl

    stranger = http.Ways(
        lambda _host, _port: LOOPBACK, lambda found: (tuple(found), ()), ssl.create_default_context
    )
    with pytest.raises(HttpFailed, match=r"TLS with 'hook\.example': self.signed"):
        post(server, ways=stranger)
    with pytest.raises(HttpFailed, match=r"TLS with 'wrong\.example'"):
        post(server, given=spec(server.url("/", "wrong.example")), allow=["wrong.example:*"])
    assert server.requests == []
    assert post(server, given=spec(server.url("/", "other.example")), allow=["other.example:*"]).status == 200


# --- what comes back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "404 None", "500 Oops", "503 Later"])
def test_other_statuses_are_failures(server: Server, status: str) -> None:
    server.replies["/"] = answer(b'{"continue": false}', status)
    with pytest.raises(HttpFailed, match=f"^status {status[:3]}$"):
        post(server)


def test_an_answer_that_is_too_long_is_none(server: Server) -> None:
    server.replies["/"] = answer(b"x" * http.LARGEST_ANSWER)
    assert len(post(server).body) == http.LARGEST_ANSWER
    server.replies["/"] = answer(b"x" * (http.LARGEST_ANSWER + 1))
    with pytest.raises(HttpFailed, match="longer than 1024 KiB"):
        post(server)


def test_an_endless_answer_is_cut_off(server: Server) -> None:
    def endless(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    server.replies["/"] = endless
    with pytest.raises(HttpFailed, match="longer than"):
        post(server)


def test_an_encoding_that_was_not_asked_for_is_refused(server: Server) -> None:
    server.replies["/"] = answer(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip")
    with pytest.raises(HttpFailed, match="encoded as 'gzip'"):
        post(server)


@pytest.mark.parametrize("reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"])
def test_a_broken_answer_is_a_failure(server: Server, reply: bytes) -> None:
    server.replies["/"] = reply
    with pytest.raises(HttpFailed, match=HOST):
        post(server)


def hold(server: Server, first: bytes) -> Any:
    def held(connection: Any) -> None:
        connection.sendall(first)
        server.release.wait(httpserver.SECONDS)

    return held


def drip(server: Server) -> Any:
    """A byte every 20 ms: each read is short, the whole would take for ever."""

    def dripping(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not server.release.wait(0.02):
            connection.sendall(b"x")

    return dripping


@pytest.mark.parametrize("how", ["silent", "half", "dripping"])
def test_the_timeout_is_for_the_whole_exchange(server: Server, how: str) -> None:
    held = {"silent": b"", "half": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"}
    server.replies["/"] = drip(server) if how == "dripping" else hold(server, held[how])
    with pytest.raises(HttpFailed, match=r"no answer within 0\.3 s") as caught:
        post(server, seconds=0.3)
    assert caught.value.code == "timed_out"


def test_a_slow_lookup_is_part_of_it(server: Server) -> None:
    way = http.Ways(lambda _host, _port: [str(server.release.wait(20))], None, server.trust)
    with pytest.raises(HttpFailed, match="no answer within") as caught:
        post(server, seconds=0.2, ways=way)
    assert caught.value.code == "timed_out"


def test_a_name_that_leads_nowhere(server: Server) -> None:
    def resolve(_host: str, _port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(HttpFailed, match=r"could not resolve 'hook\.example': name or service not known"):
        post(server, ways=http.Ways(resolve, None, server.trust))


def test_a_closed_port_is_a_failure(server: Server) -> None:
    given = spec(f"https://{HOST}:1/")
    with pytest.raises(HttpFailed, match="connection refused"):
        post(server, given=given)


def test_it_can_be_stopped_from_another_thread(server: Server) -> None:
    begun = threading.Event()

    def held(connection: Any) -> None:
        begun.set()
        server.release.wait(httpserver.SECONDS)

    server.replies["/"] = held
    course = Course(60)
    thread = threading.Thread(target=lambda: (begun.wait(20), course.stop()))
    thread.start()
    with pytest.raises(HttpFailed, match="it was stopped") as caught:
        post(server, course=course)
    thread.join()
    assert caught.value.code == "stopped"
    with pytest.raises(HttpFailed, match="it was stopped"):
        post(server, course=course)


# --- the library ----------------------------------------------------------------------------------------------


def test_where_the_client_is_missing_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(StockadeError, match="httpx is not installed") as caught:
        http.post(spec("https://x.example/"), b"", policy=policy(), environ={}, course=Course(1))
    assert caught.value.remedy == "pip install 'stockade[hooks]'"


def test_the_client_is_loaded_for_a_request_alone() -> None:
    program = "import sys, stockade.sandbox.hooks.http; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "stockade.sandbox.hooks.http" in done.stdout.split()
    assert not {"httpx", "httpcore", "ssl"} & set(done.stdout.split())
