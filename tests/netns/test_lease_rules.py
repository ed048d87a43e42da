"""What each network kind lets out and what it keeps in, by whole runs in a world where every address answers."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest
import rig
from rig import BY_PASTA, EVIL, FIRST, GOOD, IDENTITIES

from stockade.policies.errors import PolicyError

pytestmark = pytest.mark.kernel

REFUSED, UNREACHABLE = "ECONNREFUSED", "ENETUNREACH"


# --- kinds -------------------------------------------------------------------------------------------------

EVERYWHERE = f"""
found["name"] = lookup("good.example")
found["public"] = tcp("{EVIL}")
found["udp"] = udp("{EVIL}", 123, wait=0.5)
found["names elsewhere"] = ask("good.example", server="8.8.8.8")
found["ipv6"] = tcp("2001:db8::66")
found["metadata"] = tcp("169.254.169.254")
found["gateway"] = tcp("10.0.2.2")
found["host's loopback"] = tcp("127.0.0.1")
found["network"] = os.readlink("/proc/self/ns/net")
with socket.create_server(("127.0.0.1", 0)) as server:
    found["own loopback"] = tcp(*server.getsockname())
with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
    found["own loopback, IPv6"] = tcp(*server.getsockname()[:2])
found["localhost"] = "127.0.0.1" in lookup("localhost")
"""

FILES = {
    "empty list": '[network]\negress = "allow"\nallow = []\n',
    "only comments": '[network]\negress = "allow"\nallow = [\n  # "good.example",\n]\n',
    "no list": '[network]\negress = "allow"\n',
    "nothing said": 'extends = "read-only"\n',
}


def kinds(world):
    found = {}
    for name, text in FILES.items():
        path = os.path.join(world.place, "policy.toml")
        with open(path, "w") as file:
            file.write(text.replace("[network]\n", f'[network]\nconnector = "{world.connector}"\n'))
        found[name] = world.probe(EVERYWHERE, policy=path)
    found["none"] = world.probe(EVERYWHERE, egress="none")
    found["allow"] = world.probe(EVERYWHERE, allow=["good.example"])
    found["open"] = world.probe(EVERYWHERE, egress="open")
    found["record"] = world.probe(EVERYWHERE, egress="record")
    found["here"] = os.readlink("/proc/self/ns/net")
    return found


@pytest.fixture(scope="module", params=[*IDENTITIES, *BY_PASTA[:1]])
def kind(request):
    return rig.run(kinds, request.param)


@pytest.mark.parametrize("name", [*FILES, "none"])
def test_an_empty_list_means_nothing(kind, name):
    run, found = kind[name], kind[name]["found"]
    refusal = UNREACHABLE if name in ("none", "nothing said") else REFUSED
    assert (run["wire"], run["asked"]) == ([], [])
    assert isinstance(found["name"], str)
    assert found["public"] == found["metadata"] == found["gateway"] == refusal
    assert found["udp"] in ("EPERM", UNREACHABLE)
    assert found["ipv6"] == UNREACHABLE


@pytest.mark.parametrize("name", [name for name in FILES if name != "nothing said"])
def test_what_an_empty_list_refuses_is_on_record(kind, name):
    for subject in ("good.example", f"{EVIL}:80", f"{EVIL}:123", "8.8.8.8:53", "169.254.169.254:80", "10.0.2.2:80"):
        assert rig.denied(kind[name], subject), subject


@pytest.mark.parametrize("name", ["allow", "open", "record", "none"])
def test_loopback_works_inside_and_is_not_the_hosts(kind, name):
    found = kind[name]["found"]
    assert (found["own loopback"], found["own loopback, IPv6"], found["localhost"]) == ("ok", "ok", True)
    assert found["host's loopback"] == "ECONNREFUSED"


def test_no_kind_shares_a_network(kind):
    assert kind["here"] not in [run["found"]["network"] for name, run in kind.items() if name != "here"]


def test_positive_controls_of_the_kinds(kind):
    assert kind["allow"]["found"]["name"] == [GOOD]
    assert kind["open"]["found"]["public"] == "ok"
    assert ["tcp", EVIL, 80] in kind["open"]["wire"]
    assert kind["record"]["found"]["public"] == "ok"
    assert kind["record"]["wire"] == kind["allow"]["wire"] == []


# --- rules -------------------------------------------------------------------------------------------------

RULES = ["good.example", "good.example:8080", "198.51.100.7:80", "192.0.2.0/24:8080", "udp://203.0.113.9:123"]
RULES += ["203.0.113.10:22-80", "203.0.113.11:*", "*.wild.example:80"]
LISTED = {
    "name, default port": ("tcp('good.example', 443)", "ok"),
    "name, its port": ("tcp('good.example', 8080)", "ok"),
    "name, another port": ("tcp('good.example', 80)", REFUSED),
    "name, a far port": ("tcp('good.example', 2222)", REFUSED),
    "address": ("tcp('198.51.100.7', 80)", "ok"),
    "address, another port": ("tcp('198.51.100.7', 443)", REFUSED),
    "address, the next": ("tcp('198.51.100.8', 80)", REFUSED),
    "range, first": ("tcp('192.0.2.0', 8080)", "ok"),
    "range, last": ("tcp('192.0.2.255', 8080)", "ok"),
    "range, beyond": ("tcp('192.0.3.0', 8080)", REFUSED),
    "range, another port": ("tcp('192.0.2.1', 80)", REFUSED),
    "udp": ("udp('203.0.113.9', 123)", "echo ping"),
    "udp, another port": ("udp('203.0.113.9', 5353)", "EPERM"),
    "udp is not tcp": ("tcp('203.0.113.9', 123)", REFUSED),
    "ports, first": ("tcp('203.0.113.10', 22)", "ok"),
    "ports, last": ("tcp('203.0.113.10', 80)", "ok"),
    "ports, beyond": ("tcp('203.0.113.10', 853)", REFUSED),
    "every port": ("[tcp('203.0.113.11', port) for port in (22, 80, 443, 853, 2222, 8080)]", ["ok"] * 6),
    "every port, not udp": ("udp('203.0.113.11', 123)", "EPERM"),
    "wildcard": ("tcp('a.wild.example')", "ok"),
    "wildcard, deep": ("tcp('a.b.wild.example')", "ok"),
    "wildcard, not the apex": ("tcp('wild.example')", "EAI_NONAME"),
    "wildcard, not a suffix": ("tcp('awild.example')", "EAI_NONAME"),
    "upper case, last dot": ("tcp('GOOD.example.', 8080)", "ok"),
    "the name with more behind": ("tcp('good.example.evil.example', 443)", "EAI_NONAME"),
}

OPEN = {
    **{
        f"public {each}": (f"tcp('{each}')", "ok")
        for each in ("198.51.100.1", "203.0.113.1", "8.8.8.8", "172.32.0.1")
    },
    "public name": ("http('open.example', 2222)", f"tag {EVIL} 2222 open.example"),
    "public udp": ("udp('203.0.113.9', 123)", "echo ping"),
    "public name server": ("ask('good.example', server='8.8.8.8')['addresses']", [GOOD]),
    **{
        f"closed {each}": (f"tcp('{each}')", REFUSED)
        for each in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "169.254.170.2", "169.254.1.1")
    },
    **{f"closed {each}": (f"tcp('{each}')", REFUSED) for each in ("100.64.0.1", "10.0.2.2", "10.0.2.3")},
    "closed gateway's names": ("ask('good.example', server='10.0.2.3')", "EPERM"),
    "closed loopback": ("tcp('127.0.0.1')", "ECONNREFUSED"),
    "closed multicast": ("udp('224.0.0.251', 5353)", "EPERM"),
    "no ipv6": ("tcp('2001:db8::66')", UNREACHABLE),
    "no metadata by name": ("lookup('meta.example')", "EAI_NODATA"),
}
PRIVATE = ("10.1.2.3", "172.16.0.1", "172.31.255.1", "192.168.7.7")
CLOSED = {each: (f"tcp('{each}')", REFUSED) for each in PRIVATE} | {"name": ("lookup('lan.example')", "EAI_NODATA")}
OPENED = {each: (f"tcp('{each}')", "ok") for each in PRIVATE}
OPENED |= {"name": ("http('lan.example')", "tag 192.168.7.7 80 lan.example")}


def body_of(table):
    return "\n".join(f"found[{name!r}] = {expression}" for name, (expression, _expected) in table.items())


def rules(world):
    for name in (
        "a.wild.example",
        "a.b.wild.example",
        "wild.example",
        "awild.example",
        "open.example",
        "evil.example",
    ):
        world.zone[name] = [f"A {EVIL}"]
    world.zone |= {"lan.example": ["A 192.168.7.7"], "meta.example": ["A 169.254.169.254"]}
    world.zone["loop.example"] = ["A 127.0.0.1"]
    names = {name: (f"http('{name}')", "") for name in ("lan.example", "meta.example", "loop.example")}
    allow = [f"{name}:80" for name in names]
    return {
        "listed": world.probe(body_of(LISTED), allow=RULES),
        "open": world.probe(body_of(OPEN | CLOSED), egress="open"),
        "open, private": world.probe(body_of(OPEN | OPENED), egress="open", network={"private": True}),
        "private": world.probe(body_of(names), allow=allow, network={"private": True}),
        "address too": world.probe(body_of(names), allow=[*allow, "192.168.7.7:80"]),
        "only private": world.probe(body_of(names), allow=allow),
    }


@pytest.fixture(scope="module", params=[*FIRST, *BY_PASTA[:1]])
def ruled(request):
    return rig.run(rules, request.param)


@pytest.mark.parametrize("name", LISTED)
def test_the_list_is_what_is_reached(ruled, name):
    assert ruled["listed"]["found"][name] == LISTED[name][1]


def test_only_what_is_listed_is_on_the_wire(ruled):
    wire = {tuple(each) for each in ruled["listed"]["wire"]}
    ports = {("tcp", "203.0.113.11", port) for port in (22, 80, 443, 853, 2222, 8080)}
    assert wire == ports | {
        ("tcp", GOOD, 443),
        ("tcp", GOOD, 8080),
        ("tcp", "198.51.100.7", 80),
        ("tcp", "192.0.2.0", 8080),
        ("tcp", "192.0.2.255", 8080),
        ("udp", "203.0.113.9", 123),
        ("tcp", "203.0.113.10", 22),
        ("tcp", "203.0.113.10", 80),
        ("tcp", EVIL, 80),
    }
    asked = {name for _server, name, _kind in ruled["listed"]["asked"]}
    assert asked == {"good.example", "a.wild.example", "a.b.wild.example"}


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("run", ["open", "open, private"])
def test_open_reaches_what_is_public(ruled, run, name):
    assert ruled[run]["found"][name] == OPEN[name][1]


@pytest.mark.parametrize(("run", "table"), [("open", CLOSED), ("open, private", OPENED)])
def test_open_reaches_private_addresses_if_told(ruled, run, table):
    assert {name: ruled[run]["found"][name] for name in table} == {name: each[1] for name, each in table.items()}
    on_wire = {address for _protocol, address, _port in ruled[run]["wire"]}
    assert (set(PRIVATE) <= on_wire) == (run == "open, private")
    assert not on_wire & {"169.254.169.254", "169.254.1.1", "10.0.2.2", "10.0.2.3", "127.0.0.1", "100.64.0.1"}


def test_open_counts_what_it_reached(ruled):
    (attempt,) = rig.egress_of(ruled["open"], host="open.example", allowed=True)
    assert (attempt["address"], attempt["port"], attempt["protocol"]) == (EVIL, 2222, "tcp")
    assert attempt["packets"] >= 3
    assert rig.egress_of(ruled["open"], address="8.8.8.8", port=53, allowed=True)


def test_private_names_need_private_or_their_address(ruled):
    tags = {run: ruled[run]["found"]["lan.example"] for run in ("private", "address too", "only private")}
    reached = "tag 192.168.7.7 80 lan.example"
    assert tags == {"private": reached, "address too": reached, "only private": "EAI_NODATA"}
    assert ruled["only private"]["wire"] == []


def test_private_never_opens_metadata_or_the_hosts_loopback(ruled):
    for run in ("private", "address too", "only private"):
        assert ruled[run]["found"]["meta.example"] == "EAI_NODATA"
        assert ruled[run]["found"]["loop.example"] in ("ECONNREFUSED", "EAI_NODATA")
        assert {address for _protocol, address, _port in ruled[run]["wire"]} <= {"192.168.7.7"}


@pytest.mark.parametrize("entry", ["169.254.169.254", "169.254.0.0/16:80", "[fd00:ec2::254]:80", "0.0.0.0/0:*"])
def test_listing_metadata_is_an_error(entry, tmp_path):
    import stockade

    with pytest.raises(PolicyError, match="metadata"):
        stockade.run(["true"], allow=[entry], cwd=tmp_path)


# --- record ------------------------------------------------------------------------------------------------


def records(world):
    world.zone |= {"other.example": [f"A {GOOD}"], "evil.example": [f"A {EVIL}"]}
    world.zone["rot.example"] = [["A 203.0.113.80", "A 203.0.113.81"], ["A 203.0.113.81", "A 203.0.113.80"]]
    both = ["good.example:80", "other.example:80"]
    shared = 'found["hosts"] = [http(each) for each in ("good.example", "other.example")]\n'
    shared += f'found["third"] = http("{GOOD}", host="third.example")'
    hinted = {}
    for name, expression in HINTED.items():
        first = world.probe(f"found['it'] = {expression}")
        denial = next(each for each in first["denials"] if each["hint"].startswith("--allow"))
        entry = denial["hint"].split()[1]
        hinted[name] = first["found"]["it"], entry, world.probe(f"found['it'] = {expression}", allow=[entry])
    return {
        "shared": world.probe(shared, allow=both, network={"check": "address"}),
        "rotating": world.probe("found['all'] = [http('rot.example') for _ in range(6)]", allow=["rot.example:80"]),
        "hinted": hinted,
    }


HINTED = {
    "address": f"http('{EVIL}')",
    "udp": f"udp('{EVIL}', 123)",
    "port": f"http('{EVIL}', 2222)",
}


@pytest.fixture(scope="module", params=FIRST)
def recorded(request):
    return rig.run(records, request.param)


def test_names_that_share_an_address_are_told(recorded):
    run = recorded["shared"]
    assert run["found"]["hosts"] == [f"tag {GOOD} 80 {name}" for name in ("good.example", "other.example")]
    (attempt,) = rig.egress_of(run, address=GOOD, allowed=True)
    assert attempt["shared"] == ["good.example", "other.example"]


def test_packet_rules_see_addresses(recorded):
    """What the documentation says: without the check, a third name on an allowed address is served."""
    assert recorded["shared"]["found"]["third"] == f"tag {GOOD} 80 third.example"


def test_a_host_with_turning_addresses_is_always_reached(recorded):
    found = recorded["rotating"]["found"]["all"]
    assert all(each.startswith("tag 203.0.113.8") for each in found), found


@pytest.mark.parametrize("name", HINTED)
def test_the_hint_of_a_refusal_opens_it(recorded, name):
    refused, entry, then = recorded["hinted"][name]
    assert refused in (REFUSED, "EPERM")
    assert then["found"]["it"].split()[0] in ("tag", "echo"), entry


# --- parts that fail, and what they are started with --------------------------------------------------------


COMMS = {"auto": ("slirp4netns",), "pasta": ("pasta", "pasta.avx2", "passt", "passt.avx2")}


def connectors(world):
    """Processes of this one's tree that connect a lease."""
    parents, found = {}, []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    text = file.read()
            except OSError:
                continue
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
            if text.partition("(")[2].rpartition(")")[0] in COMMS[world.connector]:
                found.append(int(name))
    return [pid for pid in found if os.getpid() in lineage(pid, parents)]


def lineage(pid, parents):
    found = []
    while pid in parents and pid not in found:
        found.append(pid)
        pid = parents[pid]
    return found


def read(path):
    with open(path) as file:
        return file.read()


def parts(world):
    facts = []

    def look():
        (pid, *_more) = found = connectors(world)
        fields = dict(line.split(":\t") for line in read(f"/proc/{pid}/status").splitlines() if ":\t" in line)
        facts.append(
            {
                "argv": read(f"/proc/{pid}/cmdline").split("\0"),
                "filter and no new rights": [fields["Seccomp"], fields["NoNewPrivs"]],
                "own root": os.stat(f"/proc/{pid}/root/").st_ino != os.stat("/").st_ino,
                "number": len(found),
            }
        )
        return b"seen\n"

    def kill():
        for pid in connectors(world):
            os.kill(pid, signal.SIGKILL)
        return b"killed\n"

    world.pages |= {"/look": look, "/kill": kill}
    found = {"look": world.probe("found['it'] = http('good.example', path='/look')", allow=["good.example:80"])}
    body = "http('good.example', path='/kill', wait=1)\nimport time\ntime.sleep(30)"
    from rigprobe import command

    found["killed"] = world.run(command(rig.plain_python(), body), allow=["good.example:80"])
    found["after"] = world.probe("found['it'] = http('good.example')", allow=["good.example:80"])
    for name, spoil in SPOILT.items():
        found[name] = spoilt(world, spoil)
    return {**found, "facts": facts, "connector": world.connector}


NAMES = {"auto": "slirp4netns", "pasta": "pasta"}
CONFINED = {
    "auto": {"--disable-host-loopback", "--disable-dns", "--enable-sandbox", "--enable-seccomp"},
    "pasta": {"--no-map-gw", "--ipv4-only", "--no-dhcp", "none"},
}
SPOILT = {
    "not nft": lambda text: text.replace("policy drop;", "policy dorp;", 1),
    "no policy": lambda text: text.replace("policy drop;", "policy accept;"),
    "nothing": lambda _text: "",
}


def spoilt(world, spoil):
    """A run whose rules are not those that were meant."""
    from stockade.netns import ruleset

    real = ruleset.rules_text
    ruleset.rules_text = lambda *args, **options: spoil(real(*args, **options))
    try:
        return world.run(["true"], allow=["good.example:80"])
    finally:
        ruleset.rules_text = real


@pytest.fixture(scope="module", params=[*IDENTITIES, *BY_PASTA])
def parted(request):
    return rig.run(parts, request.param)


def test_connector_is_started_confined(parted):
    assert parted["look"]["found"]["it"] == "seen"
    (facts,) = parted["facts"]
    assert CONFINED[parted["connector"]] <= set(facts["argv"])
    assert not [word for word in facts["argv"] if "ipv6" in word]
    assert facts["filter and no new rights"] == ["2", "1"]
    assert facts["own root"]


def test_a_connector_that_dies_ends_the_run(parted):
    """However the program ends: a broken network must not look like policy."""
    run = parted["killed"]
    assert (run["outcome"], run["code"]) == ("runner_failed", None), run["reason"]
    assert NAMES[parted["connector"]] in run["reason"]
    assert parted["after"]["found"]["it"] == f"tag {GOOD} 80 good.example"


@pytest.mark.parametrize("name", SPOILT)
def test_nothing_runs_without_its_rules(parted, name):
    run = parted[name]
    assert (run["outcome"], run["started"]) == ("runner_failed", False), run["reason"]
    assert "nft" in run["reason"]
    assert run["wire"] == []


# --- many at once, and descriptors -------------------------------------------------------------------------

AT_ONCE = 20


def at_once(world):
    """Each run may reach an address of its own, and tries its neighbour's."""
    from rigprobe import command

    import stockade

    for number in range(AT_ONCE):
        world.zone[f"host{number}.example"] = [f"A 198.51.100.{number + 1}"]
    results = {}

    def one(number):
        neighbour = (number + 1) % AT_ONCE
        body = f"found['own'] = http('host{number}.example')\nfound['other'] = tcp('198.51.100.{neighbour + 1}')"
        policy = world.policy("allow", [f"host{number}.example:80"])
        words = command(rig.plain_python(), body)
        results[number] = rig.brief(stockade.run(words, policy=policy, cwd=world.place, timeout=60))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connected = socket.create_connection((GOOD, 80))
    with connected:
        body = "found['socket'] = os.fstat(0).st_mode & 0o170000 == 0o140000\nfound['sent'] = tried(os.write, 0, b'GET')"
        stdin = world.probe(body, egress="none", stdin=connected)
    return {"results": results, "stdin": stdin, "left": wait_gone(world)}


def wait_gone(world):
    """A connector takes some tens of milliseconds to end after the run that it served."""
    import time

    end = time.monotonic() + 10
    while (left := connectors(world)) and time.monotonic() < end:
        time.sleep(0.01)
    return left


@pytest.fixture(scope="module", params=[*FIRST, *BY_PASTA[:1]])
def together(request):
    return rig.run(at_once, request.param)


def test_leases_at_once_do_not_meet(together):
    assert len(together["results"]) == AT_ONCE
    for number, run in together["results"].items():
        import json

        assert (run["outcome"], run["code"]) == ("exited", 0), run
        found = json.loads(run["stdout"])
        assert found == {"own": f"tag 198.51.100.{int(number) + 1} 80 host{number}.example", "other": REFUSED}
        assert [each["host"] for each in run["egress"] if each["allowed"]] == [f"host{number}.example"]
    assert together["left"] == []


def test_a_socket_for_stdin_is_no_way_out(together):
    found = together["stdin"]["found"]
    assert found["socket"] is False
    assert found["sent"] == "EBADF"
