"""Runs with an edge, whole: real clients, a real TLS server, and a secret that nothing inside ever sees."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time

import pytest
import rig
from edgeserver import PORT
from rig import EVIL, FIRST, GOOD, IDENTITIES
from test_lease_clients import INDEX, needs, python_with_pip

pytestmark = pytest.mark.kernel

PYTHON = os.environ.get("STOCKADE_EDGE_PYTHON", "")
SECRET = "tok-9f3b7c1e5a-of-the-test"
HOST = f"api.example:{PORT}"
URL = f"https://{HOST}"
ENTRY = {"host": HOST, "headers": {"Authorization": {"from": "env:API_TOKEN", "format": "Bearer {}"}}}
CURL = "curl --silent --show-error --max-time 20"


# --- in the world ------------------------------------------------------------------------------------------


def start(world, python):
    """The world with a server behind TLS, and a caller that has the secret."""
    from edgeserver import Server

    if python:
        os.environ["STOCKADE_EDGE_PYTHON"] = python
    os.environ["API_TOKEN"] = SECRET
    for name in ("api.example", "other.example"):
        world.zone[name] = [f"A {GOOD}"]
    world.zone["evil.example"] = [f"A {EVIL}"]
    server = Server(world.top, ["api.example", "other.example", "files.api.example", INDEX])
    os.environ["SSL_CERT_FILE"] = server.authority
    return server


def edged(world, server, command, entries=(ENTRY,), allow=(), egress="allow", **options):
    """One run: its whole document, and what the server and the wire saw."""
    import stockade

    network = {"edge": list(entries), **options.pop("network", {})}
    policy = world.policy(egress, allow, network=network, **options.pop("sections", {}))
    world.seen()
    server.got.clear()
    result = stockade.run(command, policy=policy, cwd=world.place, timeout=60, **options)
    document = result.to_json()
    return {
        "code": document["exit_code"], "outcome": document["outcome"], "reason": document["reason"],
        "stdout": document["stdout"], "stderr": document["stderr"], "egress": document["egress"],
        "denials": document["denials"], "requests": document["requests"], "got": list(server.got),
        "wire": world.seen()["wire"], "document": json.dumps(document),
    }  # fmt: skip


def sent(found, name="authorization"):
    """What the server got under a name, request by request."""
    return [[text for each, text in headers if each == name] for _method, _path, headers in found["got"]]


def forms(secret=SECRET):
    """The secret as it might be written."""
    raw = secret.encode()
    return {
        secret,
        f"Bearer {secret}",
        raw.hex(),
        base64.b64encode(raw).decode(),
        base64.b64encode(b"Bearer " + raw).decode(),
    }


# --- the plain case, for everybody -------------------------------------------------------------------------

LOOK = f"""
{CURL} {URL}/v1/echo -D -
env; cat /proc/self/environ /proc/1/environ /proc/1/cmdline | tr '\\0' '\\n'
grep -r -s -a {SECRET[:8]} /etc /run /tmp /var/tmp /dev/shm "$HOME" . && echo FO''UND
true
"""


def plain(world, python):
    server = start(world, python)
    found = edged(world, server, LOOK)
    outside = edged(world, server, f"{CURL} {URL}/v1/echo", entries=(), allow=[HOST])
    # the same name without an entry: TLS to the end, and the server's certificate, which the box does not know
    return {"edge": found, "plain": outside}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_token_is_put_in_outside_and_nothing_inside_sees_it(identity: str) -> None:
    both = rig.run(plain, identity, PYTHON)
    found = both["edge"]
    assert (found["outcome"], found["code"]) == ("exited", 0), found
    assert sent(found) == [[f"Bearer {SECRET}"]], found
    assert " 200 " in found["stdout"].splitlines()[0]
    assert "x-echo: ****" in found["stdout"].lower(), "what the server gives back is masked"
    assert "FOUND" not in found["stdout"]
    for form in forms():
        assert form not in found["document"]
    assert [(each["method"], each["path"], each["status"], each["transformed"]) for each in found["requests"]] == [
        ("GET", "/v1/echo", 200, True)
    ]
    assert [
        (each["host"], each["port"], each["via"], each["allowed"]) for each in found["egress"] if each["port"]
    ] == [("api.example", PORT, "tls", True)]
    assert both["plain"]["code"] != 0, "the server's own authority is not known inside"
    assert sent(both["plain"]) == []


# --- what a program may try --------------------------------------------------------------------------------

ATTEMPTS = {
    "own header": f"{CURL} -H 'Authorization: mine' -H 'authorization: too' {URL}/v1/x",
    "lower case": f"{CURL} -H 'aUTHORIZATION: mine' {URL}/v1/x",
    "method": f"{CURL} -X DELETE {URL}/v1/x",
    "path": f"{CURL} {URL}/admin",
    "dots": f"{CURL} --path-as-is {URL}/v1/../admin",
    "encoded dots": f"{CURL} --path-as-is {URL}/v1/%2e%2e/admin",
    "encoded slash": f"{CURL} --path-as-is {URL}/v1/..%2fadmin",
    "other host": f"{CURL} -H 'Host: other.example:{PORT}' {URL}/v1/x",
    "other name": f"{CURL} --insecure https://other.example:{PORT}/v1/x",
    "spoofed name": f"{CURL} --insecure --connect-to other.example:{PORT}:api.example:{PORT} https://other.example:{PORT}/v1/x",
    "by address": f"{CURL} --insecure https://{GOOD}:{PORT}/v1/x",
    "relay itself": f"{CURL} --insecure --resolve api.example:65012:127.0.0.1 https://api.example:65012/v1/x",
    "without TLS": f"{CURL} http://{HOST}/v1/x",
    "post": f"{CURL} -d a=b {URL}/v1/x",
    "redirect": f"{CURL} -L '{URL}/v1/redirect?https://evil.example:{PORT}/x'",
}
RULES = {**ENTRY, "methods": ["GET", "POST"], "paths": ["/v1/*"]}


def attempts(world, python):
    server = start(world, python)
    return {name: edged(world, server, command, [RULES]) for name, command in ATTEMPTS.items()}


@pytest.fixture(scope="module")
def tried():
    return {identity: rig.run(attempts, identity, PYTHON) for identity in FIRST}[FIRST[0]]


@pytest.mark.parametrize("name", ["own header", "lower case", "post"])
def test_what_is_listed_passes_with_our_header_alone(tried, name: str) -> None:
    assert sent(tried[name]) == [[f"Bearer {SECRET}"]], tried[name]
    assert tried[name]["code"] == 0


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("method", 403),
        ("path", 403),
        ("dots", 403),
        ("encoded dots", 403),
        ("encoded slash", 403),
        ("other host", 421),
    ],
)
def test_what_is_not_listed_is_refused_with_a_reason(tried, name: str, status: int) -> None:
    found = tried[name]
    assert found["got"] == [], found
    [request] = found["requests"]
    assert (request["status"], request["transformed"]) == (status, False)
    assert request["reason"]


@pytest.mark.parametrize("name", ["other name", "spoofed name", "by address", "relay itself", "without TLS"])
def test_there_is_no_way_round(tried, name: str) -> None:
    found = tried[name]
    assert found["code"] != 0 or "refused this request" in found["stdout"], found
    assert found["got"] == []
    assert ("tcp", GOOD, PORT) not in [tuple(each) for each in found["wire"]]


def test_a_redirect_to_a_host_off_the_list_leads_nowhere(tried) -> None:
    found = tried["redirect"]
    assert found["code"] != 0
    assert [path for _method, path, _headers in found["got"]] == [f"/v1/redirect?https://evil.example:{PORT}/x"]
    assert EVIL not in [address for _protocol, address, _port in found["wire"]]


def test_no_document_of_any_of_them_has_the_secret(tried) -> None:
    for found in tried.values():
        for form in forms():
            assert form not in found["document"]


# --- clients -----------------------------------------------------------------------------------------------

NODE = """
fetch("URL/v1/echo").then(async (answer) => { console.log(answer.status, await answer.text()) })
    .catch((error) => { console.error(error, error.cause); process.exit(3) })
"""
URLLIB = "import urllib.request; print(urllib.request.urlopen('URL/v1/echo', timeout=20).read().decode())"
REQUESTS = "from pip._vendor import requests; print(requests.get('URL/v1/echo', timeout=20).text)"


JAVA = """
public class Main {
    public static void main(String[] words) throws Exception {
        var connection = (java.net.HttpURLConnection) new java.net.URL("PLACE/v1/echo").openConnection();
        System.out.println(connection.getResponseCode());
    }
}
"""
GO = """
package main

import ("fmt"; "net/http")

func main() {
    answer, err := http.Get("PLACE/v1/echo")
    if err != nil { panic(err) }
    fmt.Println(answer.StatusCode)
}
"""
OTHERS = {
    "java": ("Main.java", JAVA, "java Main.java"),
    "go": ("main.go", GO, "GOCACHE=/tmp/cache GOPATH=/tmp/path GOTOOLCHAIN=local go run main.go"),
}


def clients(world, python, pip_python):
    server = start(world, python)
    world.zone[INDEX] = [f"A {GOOD}"]
    limits = {"limits": {"memory": "none", "processes": "none", "tmp": "2G"}}
    own = rig.plain_python()
    commands = {
        "curl": f"{CURL} --fail {URL}/v1/echo",
        "git": f"GIT_TERMINAL_PROMPT=0 git ls-remote {URL}/v1/none; true",
        "node": ["node", "-e", NODE.replace("URL", URL)],
        "urllib": [own, "-c", URLLIB.replace("URL", URL)],
        "openssl": f"echo | openssl s_client -verify_return_error -connect {HOST} -servername api.example -brief",
        "requests": [pip_python, "-c", REQUESTS.replace("URL", URL)],
    }
    for name, (file, text, command) in OTHERS.items():
        if shutil.which(name):
            with open(os.path.join(world.place, file), "w") as source:
                source.write(text.replace("PLACE", URL))
            os.chmod(source.name, 0o644)
            commands[name] = command
    return {name: edged(world, server, command, sections=limits) for name, command in commands.items()}


def test_real_clients_trust_the_authority_of_the_run() -> None:
    needs("curl", "git", "node", "openssl")
    found = rig.run(clients, FIRST[0], PYTHON, python_with_pip())
    for name in ("curl", "node", "urllib", "requests", *(each for each in OTHERS if each in found)):
        assert found[name]["code"] == 0, (name, found[name])
        assert sent(found[name]) == [[f"Bearer {SECRET}"]], (name, found[name])
    assert found["git"]["got"], found["git"]
    assert sent(found["git"])[0] == [f"Bearer {SECRET}"], found["git"]
    assert found["openssl"]["code"] == 0, found["openssl"]


# --- values and refusals -----------------------------------------------------------------------------------


def sources(world, python):
    server = start(world, python)
    token = os.path.join(world.place, "token")
    with open(token, "w") as file:
        file.write(SECRET + "\n")
    command = f"cat token; {CURL} {URL}/v1/x"
    entry = {"host": HOST, "headers": {"X-Token": f"file:{token}"}}
    found = {"file": edged(world, server, command, [entry])}
    with open(token) as file:
        found["kept"] = file.read() == SECRET + "\n"
    found["uncovered"] = edged(world, server, "cat token", [ENTRY])["stdout"] == SECRET + "\n"
    return found


def test_the_file_of_a_secret_is_covered_inside_and_stays() -> None:
    found = rig.run(sources, FIRST[0], PYTHON)
    assert found["uncovered"], "the same file without an entry is seen: the control"
    assert found["kept"]
    assert sent(found["file"], "x-token") == [[SECRET]]
    assert SECRET not in found["file"]["document"]


def refusals(world, python):
    import stockade

    server = start(world, python)
    found = {}

    def attempt(name, entries, **options):
        try:
            edged(world, server, "touch ran", entries, **options)
            found[name] = "ran"
        except stockade.StockadeError as error:
            found[name] = str(error)

    attempt("good", [ENTRY])
    os.unlink(os.path.join(world.place, "ran"))
    attempt("passed", [ENTRY], sections={"environment": {"pass": ["API_*"]}})
    attempt("unset", [{"host": HOST, "headers": {"X-A": "env:NOT_SET"}}])
    os.environ["STOCKADE_EDGE_PYTHON"] = rig.plain_python()
    from stockade.sandbox.edge import proxy

    proxy.end()
    attempt("no mitmproxy", [ENTRY])
    os.environ["STOCKADE_EDGE_PYTHON"] = "/nowhere/python"
    attempt("no python", [ENTRY])
    attempt("idle", [ENTRY], egress="none")
    found["left"] = os.listdir(world.place)
    return found


def test_a_run_that_can_not_have_its_edge_is_refused_with_the_remedy() -> None:
    found = rig.run(refusals, FIRST[0], PYTHON)
    assert found["good"] == "ran"
    assert "the variable 'API_TOKEN' would bring it in" in found["passed"]
    assert "the variable 'NOT_SET' is not set" in found["unset"]
    assert "stockade[edge]" in found["no mitmproxy"]
    assert "stockade[edge]" in found["no python"]
    assert found["idle"] == "ran"
    assert found["left"] == ["ran"], "only the last one ran"
    assert not any(SECRET in text for text in found.values() if isinstance(text, str))


# --- ways to run -------------------------------------------------------------------------------------------


def ways(world, python):
    """Kept shells, sessions, pools, other roots and workspaces; and a file that somebody else replaces."""
    import stockade
    from stockade.sandbox.bash.tool import BashTool

    server = start(world, python)
    command, found = f"{CURL} {URL}/v1/x", {}
    for section, wanted in (("minimal", {"root": "minimal"}), ("full", {})):
        found[section] = sent(edged(world, server, command, sections={"filesystem": wanted}))
    policy = world.policy("allow", network={"edge": [ENTRY]})
    with stockade.LeasePool(size=1) as pool:
        for way, options in {"plain": {}, "session": {"session": True}, "keep": {"keep": True}}.items():
            server.got.clear()
            with BashTool(policy=policy, cwd=world.place, leases=pool, **options) as tool:
                outcomes = [tool.run(command).exit_code for _ in range(3)]
            found[way] = [outcomes, sent({"got": list(server.got)})]
    token = os.path.join(world.place, "token")
    with open(token, "w") as file:
        file.write(SECRET)
    entry = {"host": HOST, "headers": {"X-Token": f"file:{token}"}}
    policy = world.policy("allow", network={"edge": [entry]})
    found["notes"] = []
    for wanted in (False, True):
        strike = threading.Thread(target=replace, args=(server, token, wanted))
        server.got.clear()
        strike.start()
        result = stockade.run(f"{command}; sleep 0.3", policy=policy, cwd=world.place, timeout=60)
        strike.join()
        found["notes"].append([note for note in result.notes if "was replaced" in note])
    return found


def replace(server, path, wanted):
    """Once the program has begun."""
    limit = time.monotonic() + 20
    while not server.got and time.monotonic() < limit:
        time.sleep(0.005)
    if wanted:
        with open(f"{path}.new", "w") as file:
            file.write(SECRET)
        os.replace(f"{path}.new", path)


@pytest.mark.parametrize("identity", FIRST)
def test_an_edge_lives_as_long_as_what_is_run(identity: str) -> None:
    found = rig.run(ways, identity, PYTHON)
    token = [f"Bearer {SECRET}"]
    assert found["minimal"] == found["full"] == [token]
    for way in ("plain", "session", "keep"):
        assert found[way] == [[0, 0, 0], [token] * 3], way
    assert found["notes"][0] == []
    assert len(found["notes"][1]) == 1, "a cover goes with the file that it covers: that is told"


def deaths(world, python):
    """The proxy is killed while a request waits for its answer; then once more when nobody runs."""
    import psutil

    server = start(world, python)
    found = {"first": edged(world, server, f"{CURL} {URL}/v1/x")}

    def kill():
        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "edge/child.py" in " ".join(each.cmdline()):
                    each.kill()

    def strike():
        limit = time.monotonic() + 20
        while not server.got and time.monotonic() < limit:
            time.sleep(0.005)
        kill()

    server.got.clear()
    thread = threading.Thread(target=strike)
    thread.start()
    found["killed"] = edged(world, server, f"{CURL} {URL}/v1/hang; exit 3")
    thread.join()
    server.hang.set()
    found["next"] = edged(world, server, f"{CURL} {URL}/v1/x")
    kill()
    found["at once"] = edged(world, server, f"{CURL} {URL}/v1/x")
    return found


@pytest.mark.parametrize("identity", FIRST)
def test_a_run_that_loses_its_proxy_is_not_the_programs_failure(identity: str) -> None:
    found = rig.run(deaths, identity, PYTHON)
    killed = found["killed"]
    assert (killed["outcome"], killed["code"]) == ("runner_failed", None), killed
    assert killed["reason"] == "the leased network broke: the edge's proxy ended during the run"
    [request] = killed["requests"]
    assert (request["status"], bool(request["reason"])) == (None, True), "what had begun is on record"
    for name in ("first", "next", "at once"):
        assert (found[name]["outcome"], found[name]["code"]) == ("exited", 0), (name, found[name])
        assert sent(found[name]) == [[f"Bearer {SECRET}"]]


# --- the host ----------------------------------------------------------------------------------------------

WATCH = f"{CURL} {URL}/v1/x; sleep 0.5; {CURL} {URL}/v1/y"


def watched(world, python):
    """What the processes of the product show of themselves while a run goes on, and what listens."""
    import threading

    import psutil

    server = start(world, python)
    shown, listening, uids = [], [], []
    done = threading.Event()

    def look():
        me = psutil.Process()
        while not done.wait(0.05):
            for each in me.children(recursive=True):
                try:
                    shown.append(" ".join(each.cmdline()))
                    if "child.py" in shown[-1]:
                        uids.append(each.uids().real)
                    with open(f"/proc/{each.pid}/environ", "rb") as file:
                        shown.append(file.read().decode("utf-8", "replace"))
                except (psutil.Error, OSError):
                    continue

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    before = sockets()
    found = edged(world, server, WATCH)
    listening = sorted(sockets() - before)
    done.set()
    watcher.join()
    return {**found, "shown": "\n".join(set(shown)), "listening": listening, "uids": sorted(set(uids))}


def sockets():
    """Local ends of sockets that listen in this world."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A"}


@pytest.mark.parametrize("identity", FIRST)
def test_no_process_of_the_host_shows_the_secret_and_none_listens(identity: str) -> None:
    found = rig.run(watched, identity, PYTHON)
    assert found["code"] == 0, found
    assert len(found["got"]) == 2
    assert "child.py" in found["shown"], "the proxy was looked at: the control"
    assert SECRET not in found["shown"]
    assert found["listening"] == []
    if os.geteuid() == 0:
        assert 0 not in found["uids"][-1:], "the proxy gave up root"


# --- Java, where it is -------------------------------------------------------------------------------------


def test_java_reads_the_store(tmp_path) -> None:
    """Its own tool lists what the store has; where there is none the bytes are checked by test_edge_trust."""
    from edgeserver import make_authority

    from stockade.sandbox.edge.trust import java_store

    with open(make_authority(str(tmp_path)), "rb") as file:
        store = java_store(file.read())
    place = tmp_path / "store.jks"
    place.write_bytes(store)
    assert store[:4] == b"\xfe\xed\xfe\xed"
    tool = shutil.which("keytool")
    if tool is not None:
        words = [tool, "-list", "-keystore", str(place), "-storepass", "changeit"]
        assert "1 entry" in subprocess.run(words, capture_output=True, text=True, check=True).stdout
