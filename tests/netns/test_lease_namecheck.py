"""Names that share an address, told apart in whole runs: who is meant is reached, who is not is refused and on record.

The world has two sites with certificates of the rig's authority at one address, one more name there that is not on
the list, and a listed name elsewhere. Every address answers, so that what is not on the wire was refused.
"""

from __future__ import annotations

import os
import shutil

import pytest
import rig
from rig import BY_PASTA, FIRST, GOOD, IDENTITIES

pytestmark = pytest.mark.kernel

SHARED = "203.0.113.90"
ONE, TWO, OFF = "one.example", "two.example", "off.example"
ALLOW = [ONE, TWO, f"{ONE}:80", f"{TWO}:80", "good.example", f"{ONE}:22"]
THERE = ("tcp", SHARED, 443)
REASON = f"its address is shared with {TWO}"

TLS = f"""
import ssl
SHARED = "{SHARED}"

def hello(name, alter=lambda data: data):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return alter(outgoing.read())

def extended(data, kind, content):
    at = 5 + 4 + 2 + 32
    at += 1 + data[at]
    at += 2 + int.from_bytes(data[at : at + 2], "big")
    at += 1 + data[at]
    more = struct.pack("!HH", kind, len(content)) + content
    all_of_them = data[at + 2 :] + more
    body = data[9:at] + struct.pack("!H", len(all_of_them)) + all_of_them
    return data[:3] + struct.pack("!H", len(body) + 4) + data[5:6] + len(body).to_bytes(3, "big") + body

def said(data, address=SHARED, port=443, wait=10):
    \"\"\"What comes back first: server hello, alert and its number, text, end, or the errno.\"\"\"
    try:
        with socket.create_connection((address, port), wait) as made:
            made.sendall(data)
            answer = made.recv(65536)
    except OSError as error:
        return named(error)
    if not answer:
        return "end"
    kinds = {{22: "server hello", 21: f"alert {{answer[-1]}}"}}
    return kinds.get(answer[0], answer.decode("latin-1").partition("\\r\\n")[0])

def https(name, host=None, address=SHARED, authority="ca.pem"):
    context = ssl.create_default_context(cafile=authority)
    try:
        with socket.create_connection((address, 443), 10) as made:
            with context.wrap_socket(made, server_hostname=name) as made:
                made.sendall(f"GET / HTTP/1.0\\r\\nHost: {{host or name}}\\r\\n\\r\\n".encode())
                return b"".join(iter(lambda: made.recv(65536), b"")).decode().strip().rpartition("\\n")[2]
    except ssl.SSLError as error:
        return error.reason
    except OSError as error:
        return named(error)

def requests(*hosts, address=SHARED):
    \"\"\"The status of each of several requests on one connection, and the end.\"\"\"
    found = []
    with socket.create_connection((address, 80), 10) as made:
        file = made.makefile("rb")
        for host in hosts:
            try:
                made.sendall(f"GET / HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n".encode())
                line = file.readline().decode().strip()
            except OSError as error:
                line = named(error)
            found.append(line.partition(" ")[2] if " " in line else line or "end")
            size = 0
            while head := file.readline().strip():
                if head.lower().startswith(b"content-length:"):
                    size = int(head.split()[1])
            file.read(size)
    return found

found["resolved"] = [lookup(name) for name in ("one.example", "two.example", "good.example", "off.example")]
"""

PASSES = """
found["one"], found["two"] = https("one.example"), https("two.example")
found["alone"] = said(hello("good.example"), "203.0.113.80")
found["mixed case"] = said(hello("one.example", lambda data: data.replace(b"one.example", b"oNE.eXaMPLE")))
found["trailing dot"] = said(hello("one.example."))
found["another Host"] = https("one.example", host="off.example")
found["plain"] = http(SHARED, 80, "one.example"), http(SHARED, 80, "Two.Example")
found["kept alive"] = requests("one.example", "two.example", "one.example")
found["outer name that is listed"] = said(hello("one.example", lambda data: extended(data, 0xFE0D, bytes(40))))
"""

REFUSED = """
found["off"] = https("off.example"), said(hello("off.example"))
found["name of another address"] = said(hello("good.example"))
found["no name"] = said(hello(None))
found["address as a name"] = said(hello("203x0x113x190", lambda data: data.replace(b"203x0x113x190", b"203.0.113.190")))
found["outer name off the list"] = said(hello("off.example", lambda data: extended(data, 0xFE0D, bytes(40))))
found["another protocol"] = said(b"SSH-2.0-OpenSSH_9.2\\r\\n", port=22)
found["another protocol, 443"] = said(b"SSH-2.0-OpenSSH_9.2\\r\\n")
found["HTTP on another port"] = said(b"GET / HTTP/1.1\\r\\nHost: off.example\\r\\n\\r\\n", port=443)
found["HTTP off"] = said(b"GET / HTTP/1.1\\r\\nHost: off.example\\r\\n\\r\\n", port=80)
found["HTTP without a host"] = said(b"GET / HTTP/1.1\\r\\n\\r\\n", port=80)
found["HTTP by address"] = said(b"GET / HTTP/1.1\\r\\nHost: 203.0.113.90\\r\\n\\r\\n", port=80)
found["HTTP, two hosts"] = said(b"GET / HTTP/1.1\\r\\nHost: one.example\\r\\nHost: off.example\\r\\n\\r\\n", port=80)
found["the relay itself"] = said(hello("one.example"), "127.0.0.1", 65012)
found["another port"] = tcp(SHARED, 8080)
with socket.socket() as made:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
    made.settimeout(0.3)
    found["bound to the link"] = tried(made.connect, (SHARED, 443))
"""

LATER = 'found["kept alive"] = requests("one.example", "off.example", "one.example")'

UNCHECKED = """
found["off"] = said(hello("off.example"))
found["no name"] = said(hello(None))
found["another protocol"] = said(b"SSH-2.0-OpenSSH_9.2\\r\\n", port=22)
found["HTTP off"] = said(b"GET / HTTP/1.1\\r\\nHost: off.example\\r\\n\\r\\n", port=80)
"""

ALONE = """
found["one"] = https("one.example")
found["off"] = said(hello("off.example"))
"""

SHARED_LATER = """
found["off, before"] = said(hello("off.example"))
found["second"] = lookup("two.example")
found["off, after"] = said(hello("off.example"))
found["one"], found["two"] = https("one.example"), https("two.example")
"""

SIMPLE = 'found["one"], found["off"] = said(hello("one.example")), said(hello("off.example"))'


def settle(world):
    world.zone |= {
        ONE: [f"A {SHARED}"], TWO: [f"A {SHARED}"], OFF: [f"A {SHARED}"],
    }  # fmt: skip
    shutil.copy(world.authority, world.place)


def told_apart(world):
    settle(world)
    unresolved = TLS.rpartition("found[")[0]
    first = f'{unresolved}\nfound["resolved"] = lookup("one.example")\n'
    strict, loose = {"check": "name"}, {"check": "address"}
    return {
        "passes": world.probe(TLS + PASSES, allow=ALLOW),
        "refused": world.probe(TLS + REFUSED, allow=ALLOW),
        "later": world.probe(TLS + LATER, allow=ALLOW),
        "unchecked": world.probe(TLS + UNCHECKED, allow=ALLOW, network=loose),
        "alone": world.probe(TLS + ALONE, allow=[ONE]),
        "strict": world.probe(TLS + ALONE, allow=[ONE], network=strict),
        "one entry": world.probe(TLS + SIMPLE, allow=[f"{ONE} check=name"]),
        "shared later": world.probe(first + SHARED_LATER, allow=ALLOW),
        "range": world.probe(TLS + UNCHECKED, allow=[*ALLOW, "203.0.113.0/24:443"], network=strict),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


@pytest.fixture(scope="module", params=[*IDENTITIES, *BY_PASTA])
def seen(request):
    return rig.run(told_apart, request.param)


def attempts(run, host):
    return {
        (each["via"], each["port"], each["allowed"], each["reason"])
        for each in run["egress"]
        if each["host"] == host
    }


def refusals(run):
    return [each for each in run["denials"] if (each["kind"], each["certainty"]) == ("network", "observed")]


def test_both_names_of_one_address_are_reached(seen):
    run = seen["passes"]
    assert run["found"]["resolved"] == [[SHARED], [SHARED], [GOOD], "EAI_NONAME"]
    assert run["found"]["one"] == f"tag {SHARED} 443 {ONE}"
    assert run["found"]["two"] == f"tag {SHARED} 443 {TWO}"
    assert run["found"]["alone"] == "server hello"
    assert THERE in map(tuple, run["wire"])


def test_spelling_does_not_matter(seen):
    run = seen["passes"]
    assert run["found"]["mixed case"] == run["found"]["trailing dot"] == "server hello"
    assert {"oNE.eXaMPLE", "one.example."} <= {name for _address, _port, name in run["greeted"]}, (
        "bytes are as they were"
    )


def test_inside_tls_nothing_is_read(seen):
    """The name of a request within TLS can be another: it is the server's to refuse."""
    assert seen["passes"]["found"]["another Host"] == f"tag {SHARED} 443 {OFF}"


def test_plain_requests_go_by_their_host(seen):
    run = seen["passes"]
    assert run["found"]["plain"] == [f"tag {SHARED} 80 {ONE}", f"tag {SHARED} 80 Two.Example"]
    assert run["found"]["kept alive"] == ["200 OK"] * 3


def test_what_was_let_through_is_on_record_by_name(seen):
    run = seen["passes"]
    assert ("tls", 443, True, REASON) in attempts(run, ONE)
    assert ("tls", 443, True, f"its address is shared with {ONE}") in attempts(run, TWO)
    assert ("http", 80, True, REASON) in attempts(run, ONE)
    assert attempts(run, "good.example") == {("tcp", 443, True, "")}
    assert not refusals(run) or [each["subject"] for each in refusals(run)] == [OFF], "asked, that is all"
    places = [(each["host"], each["address"], each["port"], each["reason"]) for each in run["egress"]]
    assert len(set(places)) == len(places), "once each"
    assert all(each["bytes"] > 0 for each in run["egress"] if each["reason"])


def test_a_name_that_may_be_hidden_in_another_is_said_so(seen):
    assert seen["passes"]["found"]["outer name that is listed"] == "server hello"
    assert any("encrypted" in reason for _via, _port, _allowed, reason in attempts(seen["passes"], ONE))


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        ("off", ["TLSV1_UNRECOGNIZED_NAME", "alert 112"]),
        ("name of another address", "alert 112"),
        ("no name", "alert 112"),
        ("address as a name", "alert 112"),
        ("outer name off the list", "alert 112"),
        ("another protocol", "ECONNRESET"),
        ("another protocol, 443", "ECONNRESET"),
        ("HTTP on another port", "HTTP/1.1 403 Forbidden"),
        ("HTTP off", "HTTP/1.1 403 Forbidden"),
        ("HTTP without a host", "HTTP/1.1 403 Forbidden"),
        ("HTTP by address", "HTTP/1.1 403 Forbidden"),
        ("HTTP, two hosts", "HTTP/1.1 403 Forbidden"),
        ("the relay itself", "ECONNRESET"),
        ("another port", "ECONNREFUSED"),
        ("bound to the link", "timeout"),
    ],
)
def test_whoever_is_not_meant_is_refused(seen, case, answer):
    assert seen["refused"]["found"][case] == answer


def test_nothing_of_what_was_refused_left(seen):
    run = seen["refused"]
    assert run["found"]["resolved"][0] == [SHARED], "the control: the names were answered, and could be dialled"
    assert run["wire"] == []
    assert run["greeted"] == run["served"] == []


def test_what_was_refused_is_on_record_with_its_reason(seen):
    run = seen["refused"]
    assert attempts(run, OFF) == {
        ("dns", 0, False, ""),
        ("tls", 443, False, f"no rule allows {OFF}:443"),
        ("http", 80, False, f"no rule allows {OFF}:80"),
    }
    assert ("tls", 443, False, f"good.example was not resolved to {SHARED}") in attempts(run, "good.example")
    assert ("tcp", 22, False, "neither TLS nor HTTP/1") in attempts(run, SHARED)
    assert attempts(run, "127.0.0.1") == {("tcp", 65012, False, "no destination: the relay itself was dialled")}
    (denial,) = rig.denied(run, f"{OFF}:80")
    assert denial["detail"].endswith(f"to {SHARED}:80 ({OFF}): no rule allows {OFF}:80")
    assert denial["hint"] == f"--allow {OFF}:80 opens it."
    hints = {each["subject"]: each["hint"] for each in refusals(run)}
    assert "network.check" in hints[f"{SHARED}:22"]
    assert "resolver" in hints["good.example:443"]


def test_a_later_request_for_another_host_is_refused(seen):
    run = seen["later"]
    assert run["found"]["kept alive"][:2] == ["200 OK", "403 Forbidden"]
    assert run["found"]["kept alive"][2] in ("end", "ECONNRESET", "EPIPE")
    assert [host for _address, _port, host in run["served"]] == [ONE]
    assert ("http", 80, False, f"no rule allows {OFF}:80") in attempts(run, OFF)


def test_without_the_check_names_are_not_told_apart(seen):
    run = seen["unchecked"]
    assert run["found"]["off"] == run["found"]["no name"] == "server hello"
    assert run["found"]["HTTP off"] == "HTTP/1.1 200 OK"
    assert THERE in map(tuple, run["wire"])
    (attempt,) = [each for each in run["egress"] if (each["address"], each["port"]) == (SHARED, 443)]
    assert (attempt["shared"], attempt["reason"]) == ([ONE, TWO], "")


def test_a_name_that_has_its_address_for_itself_is_not_looked_at(seen):
    run = seen["alone"]
    assert run["found"]["one"] == f"tag {SHARED} 443 {ONE}"
    assert run["found"]["off"] == "server hello", "so that nothing but TLS and HTTP is broken by a check"
    assert attempts(run, ONE) == {("tcp", 443, True, "")}


@pytest.mark.parametrize("how", ["strict", "one entry"])
def test_a_name_can_be_checked_always(seen, how):
    run = seen[how]
    assert run["found"]["one"] in (f"tag {SHARED} 443 {ONE}", "server hello")
    assert run["found"]["off"] == "alert 112"
    assert attempts(run, ONE) == {("tls", 443, True, "network.check")}
    assert [name for _address, _port, name in run["greeted"]] == [ONE]


def test_an_address_that_turns_out_to_be_shared_is_checked_from_then_on(seen):
    run = seen["shared later"]["found"]
    assert (run["off, before"], run["off, after"]) == ("server hello", "alert 112")
    assert (run["one"], run["two"]) == (f"tag {SHARED} 443 {ONE}", f"tag {SHARED} 443 {TWO}")
    assert ("tls", 443, True, REASON) in attempts(seen["shared later"], ONE)


def test_an_address_on_the_list_is_open_whatever_is_said(seen):
    run = seen["range"]
    assert run["found"]["off"] == run["found"]["no name"] == "server hello"
    assert run["found"]["HTTP off"] == "HTTP/1.1 403 Forbidden", "on its port alone"


# --- clients -----------------------------------------------------------------------------------------------

URLLIB = """
import json, ssl, sys, urllib.request
context = ssl.create_default_context(cafile="ca.pem")
found = []
for name in sys.argv[1:]:
    try:
        found.append(urllib.request.urlopen(f"https://{name}/", context=context, timeout=20).read().decode().split()[-1])
    except OSError as error:
        found.append(type(error).__name__)
print(json.dumps(found))
"""
NODE = """
const https = require("https"), fs = require("fs")
const ca = fs.readFileSync("ca.pem"), names = process.argv.slice(1)
const next = (found) => {
    const name = names.shift()
    if (!name) return console.log(JSON.stringify(found))
    https.get({host: name, ca}, (answer) => {
        let text = ""
        answer.on("data", (data) => { text += data }).on("end", () => next([...found, text.trim().split(" ").pop()]))
    }).on("error", () => next([...found, "error"]))
}
next([])
"""


def clients(world):
    settle(world)
    off = f"--resolve {OFF}:443:{SHARED}"
    curl = f"curl -sS --fail --max-time 20 --cacert ca.pem https://{ONE}/ https://{TWO}/"
    spoof = f"{curl}; curl -sS --max-time 20 -k {off} https://{OFF}/; echo $?"
    found = {
        "curl": world.run(["sh", "-c", curl], allow=[ONE, TWO]),
        "curl, off": world.run(["sh", "-c", spoof], allow=[ONE, TWO]),
        "urllib": world.run([rig.plain_python(), "-I", "-c", URLLIB, ONE, TWO], allow=[ONE, TWO]),
    }
    if shutil.which("node", path="/usr/bin:/bin"):
        found["node"] = world.run(["node", "-e", NODE, ONE, TWO], allow=[ONE, TWO])
    if shutil.which("git", path="/usr/bin:/bin"):
        from test_lease_clients import serve_repository

        serve_repository(world)
        clone = f"git -c http.sslCAInfo=$PWD/ca.pem clone --quiet https://{TWO}/repository got && git -C got log --format=%s"
        both = f"curl -sS --cacert ca.pem https://{ONE}/ && {clone}"
        found["git"] = world.run(["sh", "-c", both], allow=[ONE, TWO])
    return found


@pytest.fixture(scope="module", params=FIRST)
def used(request):
    return rig.run(clients, request.param)


def test_curl_reaches_both(used):
    assert used["curl"]["stdout"].split("\n")[:2] == [f"tag {SHARED} 443 {ONE}", f"tag {SHARED} 443 {TWO}"]
    assert used["curl, off"]["stdout"].split()[-1] == "35", "an alert"
    assert OFF not in [name for _address, _port, name in used["curl, off"]["greeted"]]
    assert used["curl, off"]["greeted"], "the control"


def test_git_clones_from_one_of_them(used):
    if "git" not in used:
        pytest.skip("git is not installed")
    assert used["git"]["stdout"] == f"tag {SHARED} 443 {ONE}\nthe first\n", used["git"]["stderr"]
    assert ("tls", 443, True, f"its address is shared with {ONE}") in attempts(used["git"], TWO)


@pytest.mark.parametrize("client", ["urllib", "node"])
def test_clients_reach_both(used, client):
    if client not in used:
        pytest.skip(f"{client} is not installed")
    assert used[client]["stdout"].strip().replace('","', '", "') == f'["{ONE}", "{TWO}"]', used[client]["stderr"]


# --- the edge ----------------------------------------------------------------------------------------------


class FakeEdge:
    """In place of the proxy: answers by itself, and remembers what it was given."""

    lost = unheard = False

    def __init__(self):
        self.events, self.held = os.pipe()
        self.taken, self.ended, self.closed = [], (), 0
        self.session = self

    def equip(self, plan):
        return plan

    def notes(self, _plan):
        return ()

    def take(self, sock, data, *, host, address, port, tls, began):
        from stockade.netns.edge.link import Ended

        self.taken.append((bytes(data)[:3].decode("latin-1"), host, address, port, tls, began > 0))
        sock.setblocking(True)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfrom edge")
        sock.close()
        self.ended = (*self.ended, Ended(len(self.taken), 1000, 50))
        return len(self.taken)

    def requests(self):
        assert self.closed, "the last ones come with the end"
        return tuple(host for _data, host, *_rest in self.taken)

    def close(self):
        self.closed += 1


EDGED = """
found["edge"] = [said(b"GET / HTTP/1.1\\r\\nHost: one.example\\r\\n\\r\\n", port=80), http(SHARED, 80, "one.example")]
found["edge, tls"] = said(hello("two.example")).partition(" ")[0]
found["by the other scheme"] = said(hello("one.example"), port=80), http(SHARED, 443, "two.example")
found["off"] = said(hello("off.example"))
found["beside"] = http("good.example", 80)
"""


def edged(world):
    from stockade.policies.capability import Capability
    from stockade.sandbox.edge import proxy, session

    settle(world)
    fake = FakeEdge()
    session.begin = lambda _policy, _until=None: fake
    proxy.capability = lambda: Capability("edge", "ok", "made up")
    entries = [{"host": f"{ONE}:80", "scheme": "http"}, {"host": TWO}]
    seen = world.probe(TLS + EDGED, allow=["good.example:80"], network={"edge": entries})
    opened = world.probe(TLS + EDGED, egress="open", network={"edge": entries})
    return {**seen, "taken": fake.taken[:3], "closed": fake.closed > 1, "open": opened}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_hosts_of_the_edge_are_reached_through_it_alone(identity):
    run = rig.run(edged, identity)
    found = run["found"]
    assert found["edge"] == ["HTTP/1.1 200 OK", "from edge"]
    assert found["edge, tls"] == "HTTP/1.1", "what it says is what comes"
    assert run["taken"] == [
        ["GET", ONE, SHARED, 80, False, True],
        ["GET", ONE, SHARED, 80, False, True],
        ["\x16\x03\x01", TWO, SHARED, 443, True, True],
    ]
    assert found["by the other scheme"][0] == "alert 112"
    assert "by https alone" in found["by the other scheme"][1]
    assert found["off"] == "alert 112"
    assert found["beside"] == f"tag {GOOD} 80 good.example"
    assert (run["wire"], run["greeted"]) == ([["tcp", GOOD, 80]], []), "nothing but what is beside it"
    assert ("http", 80, True, "an edge entry") in attempts(run, ONE)
    assert sum(each["bytes"] for each in run["egress"] if each["host"] == ONE and each["allowed"]) >= 2000
    assert run["closed"]
    assert run["open"]["found"]["edge"] == ["HTTP/1.1 200 OK", "from edge"]
    assert run["open"]["found"]["off"] == "server hello", "any other name is reached, at its own address"
    assert run["open"]["found"]["beside"] == f"tag {GOOD} 80 good.example"


# --- a relay that has to bear much, or is not there --------------------------------------------------------

STALLED = """
kept = []
for _ in range(500):
    made = socket.socket()
    made.settimeout(20)
    try:
        made.connect((SHARED, 443))
        made.sendall(b"\\x16")
        kept.append(made)
    except OSError as error:
        found.setdefault("errors", []).append(named(error))
found["stalled"] = len(kept)
found["one"], found["two"] = https("one.example"), https("two.example")
"""


def stalled(world):
    settle(world)
    world.probe(TLS + ALONE, allow=ALLOW)
    before = sorted(os.listdir("/proc/self/fd"))
    run = world.probe(TLS + STALLED, allow=ALLOW, timeout=45)
    return {**run, "left": len(os.listdir("/proc/self/fd")) - len(before)}


@pytest.mark.parametrize("identity", FIRST)
def test_connections_that_stall_hold_nobody_up(identity):
    run = rig.run(stalled, identity)
    assert run["found"]["stalled"] == 500, run["found"].get("errors")
    assert (run["found"]["one"], run["found"]["two"]) == (f"tag {SHARED} 443 {ONE}", f"tag {SHARED} 443 {TWO}")
    assert run["left"] <= 0
    assert [name for _address, _port, name in run["greeted"]] == [ONE, TWO]
    refused = [each for each in run["egress"] if (each["address"], each["allowed"]) == (SHARED, False)]
    assert sum(each["packets"] for each in refused) == 500


def broken(world):
    """A relay that dies of the first connection."""
    from stockade.netns.relay import Relay

    settle(world)

    def accept(self):
        raise RuntimeError("broken on purpose")

    real, Relay._accept = Relay._accept, accept
    try:
        body = 'found["one"] = said(hello("one.example"), wait=2)\n'
        seen = world.run(rig_command(TLS + body), allow=ALLOW)
    finally:
        Relay._accept = real
    return {"broken": seen, "after": world.probe(TLS + body, allow=ALLOW)}


def rig_command(body):
    from rigprobe import command

    return command(rig.plain_python(), body)


@pytest.mark.parametrize("identity", FIRST)
def test_without_its_relay_an_address_is_closed(identity):
    run = rig.run(broken, identity)
    assert run["broken"]["outcome"] == "runner_failed"
    assert "broken on purpose" in run["broken"]["reason"]
    assert (run["broken"]["wire"], run["broken"]["greeted"]) == ([], [])
    assert run["after"]["found"]["one"] == "server hello", "the control"
