"""Names inside a lease, from the program's query to the host's resolver and back, by whole runs."""

from __future__ import annotations

import pytest
import rig
from rig import EVIL, FIRST, GOOD

pytestmark = pytest.mark.kernel

MANY = 40
"""Addresses of one name; 32 of them are answered."""
AT_ONCE = 500
ENTRIES = 10_000

HELPERS = """
def spelt(name):
    return read_question(ask(name)["question"])
def read_question(text):
    raw, labels = text.encode("latin-1"), []
    while raw[0]:
        labels.append(raw[1 : raw[0] + 1].decode())
        raw = raw[raw[0] + 1 :]
    return ".".join(labels)
def burst(names, wait=20):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    made.settimeout(wait)
    made.connect(("127.0.0.1", 53))
    for number, name in enumerate(names):
        made.send(query(name, 1, number))
    answered = {}
    while len(answered) < len(names):
        try:
            answer = made.recv(65535)
        except TimeoutError:
            break
        answered[struct.unpack("!H", answer[:2])[0]] = answer[3] & 15
    made.close()
    return [len(answered), sorted(set(answered.values()))]
"""

ANSWERS = """
found["plain"] = ask("good.example")
found["chain"] = ask("chain.example")
found["chain reached"] = http("chain.example")
found["many"] = ask("many.example", stream=True)
found["many, datagram"] = ask("many.example")
found["many, C library"] = len(lookup("many.example"))
found["aaaa"] = ask("good.example", 28)
found["https"] = ask("good.example", 65)
found["spelt"] = spelt("GoOd.ExAmPlE")
found["spelt address"] = ask("gOOD.eXAMPLE")["addresses"]
found["absent"] = ask("absent.example")
found["absent, C library"] = lookup("absent.example")
found["no addresses"] = ask("empty.example")
found["in hosts"] = ask("pinned.example")["addresses"], http("pinned.example")
found["hosts"] = open("/etc/hosts").read()
found["still runs"] = http("good.example")
"""

SEARCH = """
found["bare, C library"] = lookup("short")
found["bare"] = ask("short")["addresses"]
found["not listed"] = lookup("short.corp.example")
found["plain"] = lookup("good.example")
found["resolv.conf"] = open("/etc/resolv.conf").read()
"""

DEAD = """
import time
began = time.monotonic()
found["dead"] = ask("good.example", wait=20)
found["dead, C library"] = lookup("good.example")
found["off the list"] = ask("evil.example")["rcode"]
found["by address"] = http("198.51.100.7")
found["quick"] = time.monotonic() - began < 30
"""

LIFE = """
import time
first = ask("short-lived.example")
found["ttl"] = first["ttl"]
found["reached"] = http("short-lived.example")
time.sleep(1.1)
found["later"] = ask("short-lived.example")["ttl"]
found["reached later"] = [http(each) for each in first["addresses"]]
"""


def zone(world):
    world.zone |= {
        "chain.example": ["CNAME one.cdn.example", "CNAME two.cdn.example", f"A {GOOD}"],
        "chainloop.example": ["CNAME one.cdn.example", "A 127.0.0.1"],
        "many.example": [f"A 198.51.100.{number}" for number in range(1, MANY + 1)],
        "empty.example": [],
        "broken.example": ["SERVFAIL"],
        "silent.example": ["SILENCE"],
        "short.corp.example": [f"A {GOOD}"],
        "evil.example": [f"A {EVIL}"],
        "short-lived.example": [f"A {GOOD}"],
    }
    for number in range(AT_ONCE):
        world.zone[f"host{number}.wild.example"] = [f"A 198.51.100.{number % 250 + 1}"]


NAMES = ("good", "chain", "chainloop", "many", "absent", "empty", "broken", "silent", "pinned", "short-lived")
ALLOW = [f"{name}.example:80" for name in NAMES]


def names(world):
    zone(world)
    world.configure("hosts", f"127.0.0.1 localhost\n{GOOD} pinned.example\n")
    stub = "nameserver 127.0.0.53\noptions timeout:2 attempts:1\n"
    world.configure("resolv.conf", stub)
    wild = [f"host{number}.wild.example" for number in range(AT_ONCE)]
    evil = [f"host{number}.evil.example" for number in range(AT_ONCE)]
    mixed = f"found['allowed'] = burst({wild!r})\nfound['refused'] = burst({evil!r})\nfound['after'] = http({wild[7]!r})"
    lists = [f"host{number}.list.example:80" for number in range(ENTRIES)]
    world.zone["host9999.list.example"] = [f"A {GOOD}"]
    found = {
        "answers": world.probe(HELPERS + ANSWERS, allow=ALLOW),
        "chains": world.probe("found['it'] = ask('chainloop.example'), http('chainloop.example')", allow=ALLOW),
        "broken": world.probe("found['it'] = ask('broken.example'), http('good.example')", allow=ALLOW),
        "silent": world.probe("found['it'] = ask('silent.example', wait=20), http('good.example')", allow=ALLOW),
        "life": world.probe(LIFE, allow=ALLOW),
        "burst": world.probe(HELPERS + mixed, allow=["*.wild.example:80"]),
        "long list": world.probe(
            "found['last'], found['other'] = http('host9999.list.example'), lookup('host10000.list.example')",
            allow=lists,
        ),
        "ranges": world.probe(
            "found['last'], found['other'] = http('198.18.39.15', 8080), tcp('198.18.39.16', 8080)",
            allow=[f"198.18.{number // 256}.{number % 256}:8080" for number in range(ENTRIES)],
        ),
    }
    world.configure("resolv.conf", f"{stub}search corp.example\n")
    return {**found, "search": world.probe(HELPERS + SEARCH, allow=["short:80", "good.example:80"])}


def dead(world):
    world.configure("resolv.conf", "nameserver 127.0.0.1:1\nnameserver 192.0.2.53\noptions timeout:1 attempts:1\n")
    world.outside.mute = True
    return {"dead": world.probe(DEAD, allow=[*ALLOW, "198.51.100.7:80"])}


@pytest.fixture(scope="module", params=FIRST)
def named(request):
    return rig.run(names, request.param)


@pytest.fixture(scope="module")
def found(named):
    return named["answers"]["found"]


# --- answers -----------------------------------------------------------------------------------------------


def test_an_allowed_name_is_answered_by_the_hosts_resolver(named, found):
    """Through the stub on another loopback address, as systemd-resolved has it."""
    assert (found["plain"]["rcode"], found["plain"]["addresses"]) == (0, [GOOD])
    assert ["127.0.0.53", "good.example", "A"] in named["answers"]["asked"]


def test_a_chain_of_aliases_is_followed_outside(named, found):
    assert (found["chain"]["answers"], found["chain"]["addresses"]) == (1, [GOOD])
    assert found["chain reached"] == f"tag {GOOD} 80 chain.example"
    assert "one.cdn.example" not in {each["host"] for each in named["answers"]["egress"]}


def test_a_chain_that_ends_on_loopback_is_refused(named):
    asked, reached = named["chains"]["found"]["it"]
    assert (asked["addresses"], reached) == ([], "EAI_NODATA")
    assert rig.denied(named["chains"], "chainloop.example")
    assert named["chains"]["wire"] == []


def test_of_many_addresses_a_bounded_number_is_answered(found):
    assert found["many"]["answers"] == 32
    assert len(set(found["many"]["addresses"])) == 32
    assert found["many, C library"] == 32
    assert 0 < found["many, datagram"]["answers"] <= 32


@pytest.mark.parametrize("kind", ["aaaa", "https"])
def test_other_types_are_empty(found, kind):
    assert (found[kind]["rcode"], found[kind]["answers"]) == (0, 0)


def test_spelling_of_the_question_is_kept(found):
    """Resolvers that mix the case of a question (0x20) want it back as it was."""
    assert found["spelt"] == "GoOd.ExAmPlE"
    assert found["spelt address"] == [GOOD]


def test_a_name_that_does_not_exist_is_on_record_and_the_run_goes_on(named, found):
    assert found["absent"]["rcode"] == 3
    assert found["absent, C library"] == "EAI_NONAME"
    assert rig.egress_of(named["answers"], host="absent.example", via="dns", allowed=True)
    assert not rig.denied(named["answers"], "absent.example")
    assert found["still runs"] == f"tag {GOOD} 80 good.example"


def test_a_name_without_addresses_is_empty(found):
    assert (found["no addresses"]["rcode"], found["no addresses"]["answers"]) == (0, 0)


def test_search_domains_are_the_hosts_not_the_boxs(named, found):
    """A bare name means what it means to the host's resolver; nothing of the host's set-up is shown inside."""
    searched = named["search"]["found"]
    assert searched["bare, C library"] == searched["bare"] == searched["plain"] == [GOOD]
    assert searched["not listed"] == "EAI_NONAME"
    assert "corp.example" not in searched["resolv.conf"]
    assert "pinned.example" not in found["hosts"]


def test_names_of_the_hosts_file_are_known(named, found):
    assert found["in hosts"] == [[GOOD], f"tag {GOOD} 80 pinned.example"]
    assert "pinned.example" not in {name for _server, name, _kind in named["answers"]["asked"]}


def test_lifetime_of_an_answer(named):
    """Never shorter than what it takes to use it, and it runs out."""
    found = named["life"]["found"]
    assert 30 <= found["ttl"] <= 60
    assert found["later"] < found["ttl"]
    assert found["reached"] == f"tag {GOOD} 80 short-lived.example"
    assert found["reached later"] == [f"tag {GOOD} 80 {GOOD}"]


# --- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["broken", "silent"])
def test_a_name_that_fails_fails_alone(named, name):
    asked, reached = named[name]["found"]["it"]
    assert (asked["rcode"], asked["addresses"]) == (2, [])
    assert reached == f"tag {GOOD} 80 good.example"
    assert rig.egress_of(named[name], host=f"{name}.example", via="dns")


@pytest.fixture(scope="module", params=FIRST)
def resolver_down(request):
    return rig.run(dead, request.param)["dead"]


def test_without_a_resolver_names_fail_and_the_run_goes_on(resolver_down):
    found = resolver_down["found"]
    assert found["dead"]["rcode"] == 2
    assert found["dead, C library"] == "EAI_AGAIN"
    assert found["off the list"] == 3
    assert found["by address"] == "tag 198.51.100.7 80 198.51.100.7"
    assert found["quick"]
    assert rig.egress_of(resolver_down, host="good.example", via="dns")


# --- many --------------------------------------------------------------------------------------------------


def test_five_hundred_queries_at_once(named):
    run = named["burst"]
    assert run["found"]["allowed"] == [AT_ONCE, [0]]
    assert run["found"]["refused"] == [AT_ONCE, [3]]
    assert run["found"]["after"] == "tag 198.51.100.8 80 host7.wild.example"
    assert len([each for each in run["egress"] if each["via"] == "dns" and not each["allowed"]]) == AT_ONCE
    asked = [name for _server, name, _kind in run["asked"]]
    assert len(set(asked)) == AT_ONCE
    assert not [name for name in asked if name.endswith("evil.example")]


def test_ten_thousand_names_on_the_list(named):
    found = named["long list"]["found"]
    assert found == {"last": f"tag {GOOD} 80 host9999.list.example", "other": "EAI_NONAME"}


def test_ten_thousand_addresses_on_the_list(named):
    found = named["ranges"]["found"]
    assert found == {"last": "tag 198.18.39.15 8080 198.18.39.15", "other": "ECONNREFUSED"}
