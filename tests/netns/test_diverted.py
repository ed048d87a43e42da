"""Connections that are led to the relay, in the real kernel: they arrive there, and what nobody takes is closed.

Each scenario runs in namespaces of its own (``rulesrig``), in which the peer answers on every address: what is not on
the wire did not leave, and what is refused was refused by the rules. The relay here only listens.
"""

from __future__ import annotations

import shutil
import socket

import pytest
import rulesrig
from rulesrig import Rig, errno_of, listen, tcp, udp

from stockade.netns import nft as nft_module
from stockade.netns.admission import Admission
from stockade.netns.counters import parse_sets
from stockade.netns.diverted import RELAY_PORT, edge_text, named_text
from stockade.netns.errors import LeaseFailed
from stockade.netns.nft import Nft, locate_binding, open_nft
from stockade.netns.ruleset import admit_text, rules_text
from stockade.netns.sinkhole import stream_destination
from stockade.policies.hosts import METADATA, HostRule, parse_rule

pytestmark = pytest.mark.kernel

REFUSED = "ECONNREFUSED"
A, B, OTHER = "192.0.2.1", "192.0.2.2", "203.0.113.66"
WEB = ("tcp", 443, 443)


def load(rig: Rig, *entries: str, kind: str = "allow", edge: tuple[str, ...] = ()) -> Nft:
    nft = open_nft(shutil.which("nft"), locate_binding())
    nft.run(text_of(kind, list(map(parse_rule, entries)), list(map(parse_rule, edge))))
    nft.verify(kind, relay=True)
    rig.connect_box()
    return nft


def text_of(kind: str, rules: list[HostRule], edge: list[HostRule]) -> str:
    return rules_text(kind, rules, private=False, edge=edge, relay_port=RELAY_PORT)


def relay() -> socket.socket:
    return listen(socket.SOCK_STREAM, RELAY_PORT, "127.0.0.1")


def taken(listening: socket.socket, address: str, port: int) -> None:
    """A connection arrives at the relay, which learns where it was meant to go, and both ways carry."""
    with tcp(address, port) as ours, listening.accept()[0] as theirs:
        assert stream_destination(theirs) == (address, port)
        assert ours.getpeername() == (address, port)
        ours.sendall(b"hello")
        assert theirs.recv(5) == b"hello"
        theirs.sendall(b"world")
        assert ours.recv(5) == b"world"


def straight(rig: Rig, address: str, port: int = 443) -> None:
    with tcp(address, port) as ours, rig.accept(port) as theirs:
        ours.sendall(b"hello")
        assert theirs.recv(5) == b"hello"


def nothing_left(rig: Rig, *addresses: str) -> None:
    """Not a packet for these; one for another address that is let through is behind them on the wire by now."""
    udp("192.0.2.200", 123, b"settled")
    while rig.datagram(123) != b"settled":
        pass
    for address in addresses:
        assert rig.sent_to(address) == []


def rows(nft: Nft) -> dict[tuple[str, str, str, int], int]:
    found = parse_sets(nft.query("list table inet stockade")).rows
    return {(row.direction, row.protocol, row.address, row.port): row.packets for row in found}


SETTLE = "udp://192.0.2.200:123"


def scenario_what_is_in_an_edge_set_arrives_at_the_relay(rig: Rig) -> None:
    nft = load(rig, "a.example", "b.example:8000-8443", SETTLE)
    nft.run(edge_text(WEB, [A], 60) + edge_text(("tcp", 8000, 8443), [B], 60))
    with relay() as listening:
        taken(listening, A, 443)
        taken(listening, B, 8443)
        assert errno_of(lambda: tcp(A, 80)) == REFUSED, "another port"
        assert errno_of(lambda: tcp(OTHER, 443)) == REFUSED, "another address"
        assert errno_of(lambda: udp(A, 443)) == "EPERM"
    nothing_left(rig, A, B, OTHER)
    assert [key for key in rows(nft) if key[0] == "reached" and key[1] == "tcp"] == [], "the relay counts those"
    assert {key[2:] for key in rows(nft) if key[0] == "dropped"} == {(A, 80), (OTHER, 443), (A, 443)}


def scenario_without_a_relay_it_is_closed(rig: Rig) -> None:
    nft = load(rig, "a.example", SETTLE)
    nft.run(edge_text(WEB, [A], 60))
    assert errno_of(lambda: tcp(A, 443)) == REFUSED
    nothing_left(rig, A)
    nft.run(named_text(WEB, 4, [B], 60))
    straight(rig, B)
    with relay() as listening:
        taken(listening, A, 443)


def scenario_a_shared_address_is_moved_and_connections_stay(rig: Rig) -> None:
    nft = load(rig, "a.example", "b.example", SETTLE)
    rules = [parse_rule("a.example"), parse_rule("b.example")]
    admission = Admission(rules, [], "auto")
    with relay() as listening:
        for rule in rules[:1]:
            plan = admission.plan([rule], str(rule.name), [A], 60)
            nft.run(plan.text)
            admission.keep(plan)
        with tcp(A, 443) as ours, rig.accept(443) as theirs:
            nft.run(admission.plan(rules[1:], "b.example", [A], 60).text)
            ours.sendall(b"still there")
            assert theirs.recv(11) == b"still there"
            before = len(rig.sent_to(A))
            taken(listening, A, 443)
            assert len(rig.sent_to(A)) == before
            theirs.sendall(b"and back")
            assert ours.recv(8) == b"and back"


def scenario_what_is_never_reached_is_never_led_to_the_relay(rig: Rig) -> None:
    """By whatever mistake it got into the set."""
    nft = load(rig, "a.example:1-65535", SETTLE)
    never = [*(each for each in METADATA if ":" not in each), "10.0.2.2", "10.0.2.3", "169.254.1.1"]
    nft.run(edge_text(("tcp", 1, 65535), [*never, "127.0.0.1", A], 60))
    with relay() as listening:
        for address in never:
            assert errno_of(lambda address=address: tcp(address, 80)) == REFUSED
        with listen(socket.SOCK_STREAM, 8080, "127.0.0.1") as own, tcp("127.0.0.1", 8080):
            own.accept()[0].close()
        taken(listening, A, 80)
        listening.settimeout(0)
        assert errno_of(lambda: listening.accept()[0]) == "EAGAIN"
    nothing_left(rig, *never)
    assert {key[2] for key in rows(nft) if key[0] == "dropped"} == set(never)


def scenario_ranges_of_the_list_are_reached_beside_it(rig: Rig) -> None:
    nft = load(rig, "a.example", "192.0.2.128/25", SETTLE)
    nft.run(edge_text(WEB, [A], 60))
    straight(rig, "192.0.2.130")
    with relay() as listening:
        taken(listening, A, 443)
    nothing_left(rig, A)


def scenario_in_an_open_network_the_rest_is_reached(rig: Rig) -> None:
    nft = load(rig, kind="open", edge=("a.example",))
    nft.run(edge_text(WEB, [A], 60))
    straight(rig, OTHER)
    with relay() as listening:
        taken(listening, A, 443)
        straight(rig, A, 80)
    assert {packet[2] for packet in rig.sent_to(A)} == {80}


def scenario_the_relay_can_be_dialled_and_knows_it(rig: Rig) -> None:
    load(rig, "a.example", SETTLE)
    with relay() as listening, tcp("127.0.0.1", RELAY_PORT), listening.accept()[0] as theirs:
        assert stream_destination(theirs) == ("127.0.0.1", RELAY_PORT)


def scenario_options_can_not_go_round(rig: Rig) -> None:
    """A packet whose header names a way over another host."""
    nft = load(rig, "a.example", SETTLE)
    nft.run(edge_text(WEB, [A], 60))
    with relay() as listening, socket.socket() as made:
        # Loose source route over OTHER.
        made.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4, *socket.inet_aton(OTHER), 0]))
        made.setblocking(False)  # the answer to such a packet is none that a connect would wait for
        assert errno_of(lambda: made.connect((A, 443))) == "EINPROGRESS"
        taken(listening, A, 443)
    nothing_left(rig, A, OTHER)
    assert {key for key in rows(nft) if key[0] == "dropped"} == {("dropped", "tcp", OTHER, 443)}


def scenario_a_socket_bound_to_the_link_does_not_get_to_the_host_s_loopback(rig: Rig) -> None:
    """It keeps to its link after the redirect to 127.0.0.1, which would be the host's at the other end."""
    nft = load(rig, "a.example", SETTLE)
    nft.run(edge_text(WEB, [A], 60) + named_text(WEB, 4, [B], 60))
    with relay() as listening:
        for address, answer in ((A, "EINPROGRESS"), ("127.0.0.1", "EINPROGRESS"), (B, "EINPROGRESS")):
            with socket.socket() as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
                made.setblocking(False)
                assert errno_of(lambda made=made, address=address: made.connect((address, 443))) == answer
        taken(listening, A, 443)
    nothing_left(rig, A, "127.0.0.1")
    assert rig.sent_to(B), "the control"
    assert ("dropped", "tcp", A, 443) in rows(nft)


def scenario_rules_without_the_redirect_are_found_out(rig: Rig) -> None:
    rules = [parse_rule("a.example"), parse_rule("b.example")]
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
    for nft in (open_nft(None, locate_binding()), Nft(nft_module._Program(str(program)))):
        for text, told in ((text_of("allow", rules, []), True), (rules_text("allow", rules, private=False), False)):
            nft.run(text)
            nft.verify("allow", relay=told)
            for relayed in (not told, told):
                with pytest.raises(LeaseFailed, match="verify packet rules"):
                    nft.verify("record", relay=relayed)
            with pytest.raises(LeaseFailed, match="that divert"):
                nft.verify("allow", relay=not told)
            change = "flush chain inet stockade divert" if told else "add chain inet stockade divert"
            nft.run(change)
            with pytest.raises(LeaseFailed, match="chain divert"):
                nft.verify("allow", relay=told)
            nft.run("delete table inet stockade\n")
            nft._loaded.clear()
    assert admit_text(rules[:1], [A], 1)


SCENARIOS = sorted(name.removeprefix("scenario_") for name in globals() if name.startswith("scenario_"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    assert "done" in rulesrig.run_scenario(__file__, name)


if __name__ == "__main__":
    rulesrig.main(dict(globals()))
