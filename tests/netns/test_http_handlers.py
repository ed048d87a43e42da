"""HTTP handlers of hooks with their real ways: the host's resolver, its trust store, and addresses as they are."""

from __future__ import annotations

import json
import os

import pytest
import rig

IDENTITIES = rig.FIRST
PUBLIC = rig.GOOD
REFUSED = {
    "loop.example": "A 127.0.0.1", "loop6.example": "AAAA ::1", "private.example": "A 192.168.1.5",
    "link.example": "A 169.254.7.7", "metadata.example": "A 169.254.169.254", "mapped.example": "AAAA ::ffff:127.0.0.1",
    "any.example": "A 0.0.0.0",
}  # fmt: skip


def answering(world):
    """Let the world's servers take a POST."""
    import rigservers

    posted = []

    def do_post(handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        posted.append((handler.place[0], handler.headers["Host"], json.loads(body)))
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    rigservers.Handler.do_POST = do_post
    os.environ["SSL_CERT_FILE"] = os.path.join(world.top, "key.cert")
    return posted


def asked(world, url, allow, **options):
    """The decision and the cause of one handler, and what was seen of it."""
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.runner import HookRunner

    world.seen()
    spec = HookSpec("claude", "Stop", "stop", "http", url=url, timeout=20.0)
    runner = HookRunner([spec], egress={"allow": allow}, cwd=world.place, **options)
    found = runner.run("Stop", {"stop_hook_active": False})
    return [found.decision, found.results[0].cause, world.seen()["wire"]]


def reach(world):
    posted = answering(world)
    world.zone["secure.example"] = [f"A {PUBLIC}"]
    good = asked(world, "https://secure.example/hook", ["secure.example"])
    refused = {}
    for name, record in REFUSED.items():
        world.zone[name] = [record]
        refused[name] = asked(world, f"https://{name}/hook", ["*.example"], policy="hook")
    return {"good": good, "posted": posted, "refused": refused}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_public_address_is_reached_and_no_other(identity):
    found = rig.run(reach, identity)
    assert found["good"][0] == "allow", found["good"]
    assert found["posted"] == [[PUBLIC, "secure.example", {"hook_event_name": "Stop", "stop_hook_active": False}]]
    for name, (decision, cause, wire) in found["refused"].items():
        assert (decision, wire) == ("deny", []), name
        assert "which no handler may reach" in cause


def rebinding(world):
    """A name that leads elsewhere with every question."""
    posted = answering(world)
    # One lookup asks twice: for either family.
    world.zone["secure.example"] = [[f"A {PUBLIC}"]] * 2 + [["A 127.0.0.1"]] * 6
    first = asked(world, "https://secure.example/hook", ["secure.example"])
    second = asked(world, "https://secure.example/hook", ["secure.example"])
    return {"first": first, "second": second, "posted": [address for address, _host, _body in posted]}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_need_10_a_name_that_is_bound_anew_gains_nothing(identity):
    found = rig.run(rebinding, identity)
    reached = {address for _protocol, address, _port in (*found["first"][2], *found["second"][2])}
    assert reached <= {PUBLIC}, found
    assert (found["first"][0], found["posted"]) == ("allow", [PUBLIC])
    assert found["second"][0] == "deny"


SECRET = "tok-5e1d7a90bc-of-the-test"
ENTRY = {
    "host": "secure.example", "methods": ["POST"], "paths": ["/hook"],
    "headers": {"Authorization": {"from": "env:HOOK_TOKEN", "format": "Bearer {}"}},
}  # fmt: skip


def completed(world):
    """A handler whose host has an entry of the edge; the server gives back what it got."""
    import rigservers

    got = []

    def do_post(handler):
        handler.rfile.read(int(handler.headers["Content-Length"]))
        told = handler.headers.get_all("Authorization") or []
        got.append([handler.path, told])
        body = json.dumps({"systemMessage": f"you said {told}"}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    rigservers.Handler.do_POST = do_post
    os.environ["SSL_CERT_FILE"] = os.path.join(world.top, "key.cert")
    os.environ["HOOK_TOKEN"] = SECRET
    world.zone["secure.example"] = [f"A {PUBLIC}"]
    return {
        name: {**ask(world, path, policy), "got": got[:] and [got.pop()]}
        for name, path, policy in (
            ("entry", "/hook", world.policy("allow", network={"edge": [ENTRY]})),
            ("no entry", "/hook", world.policy("allow", ["secure.example"])),
            ("other path", "/admin", world.policy("allow", network={"edge": [ENTRY]})),
            ("dots", "/x/%2e%2e/hook", world.policy("allow", network={"edge": [ENTRY]})),
            ("idle", "/hook", world.policy("none", network={"edge": [ENTRY]})),
        )
    }


def ask(world, path, policy):
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.runner import HookRunner

    spec = HookSpec(
        "claude", "Stop", "stop", "http", url=f"https://secure.example{path}", timeout=20.0,
        headers=(("authorization", "its own"),),
    )  # fmt: skip
    found = HookRunner([spec], policy=policy, cwd=world.place).run("Stop", {"stop_hook_active": False})
    return {"decision": found.decision, "cause": found.results[0].cause, "whole": repr(found)}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_handler_is_completed_by_the_edge_and_its_answer_is_masked(identity):
    found = rig.run(completed, identity)
    assert found["entry"]["got"] == [["/hook", [f"Bearer {SECRET}"]]], found
    assert "you said" in found["entry"]["whole"]
    assert found["no entry"]["got"] == [["/hook", ["its own"]]], "without an entry it is as the handler says"
    for name in ("other path", "dots", "idle"):
        assert found[name]["got"] == [], found[name]
        assert found[name]["decision"] == "deny"
    assert "network.edge" in found["other path"]["cause"]
    for each in found.values():
        assert SECRET not in each["whole"]
