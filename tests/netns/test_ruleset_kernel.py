"""The rules in the real kernel: what they let through arrives at a peer, what they refuse is not on the wire.

Each scenario runs in a process and namespaces of its own (``rulesrig``). The peer answers on every address, and the
rules under test mostly list every address there is: a refusal is then the work of the rule that is tested.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import threading
import time

import pytest
import rulesrig
from rulesrig import BOX4, Rig, errno_of, ipv4, listen, send_raw, tcp, udp

from stockade.netns import ruletext
from stockade.netns.counters import Counters, parse_sets
from stockade.netns.nft import Nft, locate_binding, open_nft
from stockade.netns.ruleset import admit_text, rules_text
from stockade.policies.hosts import METADATA, HostRule, parse_rule

pytestmark = pytest.mark.kernel

ICMP, TCP, UDP, SCTP, ICMPV6 = 1, 6, 17, 132, 58
NEW = "ECONNREFUSED"
"""What a refused connect fails with, at once. The peer would accept on the ports used here."""
GOOD4, BAD4 = "192.0.2.1", "203.0.113.66"
GOOD6, BAD6 = "2001:db8:1::1", "2001:db8:66::1"
LISTED = ("192.0.2.0/24", "udp://192.0.2.0/24:123", "[2001:db8:1::/48]:443", "udp://[2001:db8:1::/48]:123")
DNS_PORT, TCP_PORT, UDP_PORT = 1053, 4444, 4445


def everywhere(protocol: str, low: int = 1, high: int = 65535) -> list[HostRule]:
    """All of both families, metadata too: no policy can say this."""
    return [HostRule(None, False, network, protocol, low, high, "") for network in ("0.0.0.0/0", "::/0")]


def load(kind: str, rules: list[HostRule], *, private: bool = False) -> Nft:
    """Rules first; the addresses of the box come after."""
    nft = open_nft(shutil.which("nft"), locate_binding())
    text = rules_text(kind, rules, private=private, dns_port=DNS_PORT, tcp_port=TCP_PORT, udp_port=UDP_PORT)
    nft.run(text)
    nft.verify(kind)
    return nft


def allow(rig: Rig, *entries: str) -> Nft:
    nft = load("allow", [parse_rule(entry) for entry in entries])
    rig.connect_box()
    return nft


def allow_everywhere(rig: Rig) -> Nft:
    nft = load("allow", [*everywhere("tcp"), *everywhere("udp")])
    rig.connect_box()
    return nft


def counters(nft: Nft) -> Counters:
    return parse_sets(nft.query("list table inet stockade"))


def rows(nft: Nft, direction: str) -> dict[tuple[str, str, int], int]:
    """Packets by protocol, address and port."""
    return {
        (row.protocol, row.address, row.port): row.packets
        for row in counters(nft).rows
        if row.direction == direction
    }


def settle(rig: Rig, address: str = GOOD4) -> None:
    """A datagram that is allowed went over the wire: what left before it is noted by now."""
    udp(address, 123, b"settled")
    while rig.datagram(123) != b"settled":
        pass


def refused(rig: Rig, address: str) -> None:
    """Nothing left for this address."""
    settle(rig)
    assert rig.sent_to(address) == []


# --- allow --------------------------------------------------------------------------------------------------------


def scenario_the_list_is_what_is_reached(rig: Rig) -> None:
    nft = allow(rig, *LISTED)
    for address in (GOOD4, GOOD6):
        with tcp(address, 443) as ours, rig.accept(443) as theirs:
            ours.sendall(b"hello")
            assert theirs.recv(5) == b"hello"
            theirs.sendall(b"world")
            assert ours.recv(5) == b"world"
        udp(address, 123, b"time")
        assert rig.datagram(123) == b"time"
    assert errno_of(lambda: tcp(BAD4, 443)) == NEW, "an address that is not listed"
    assert errno_of(lambda: tcp(GOOD4, 8443)) == NEW, "a port that is not listed"
    assert errno_of(lambda: tcp(GOOD4, 123)) == NEW, "a port listed for UDP"
    assert errno_of(lambda: udp(GOOD4, 443)) == "EPERM", "a port listed for TCP"
    assert errno_of(lambda: udp(BAD4, 123)) == "EPERM"
    assert errno_of(lambda: tcp(BAD6, 443)) == NEW
    assert errno_of(lambda: udp(BAD6, 123)) == "EPERM"
    settle(rig)
    assert {(protocol, address, port) for protocol, address, port in rig.left} == {
        (TCP, GOOD4, 443),
        (TCP, GOOD6, 443),
        (UDP, GOOD4, 123),
        (UDP, GOOD6, 123),
    }
    assert rows(nft, "dropped") == {
        ("tcp", BAD4, 443): 1,
        ("tcp", GOOD4, 8443): 1,
        ("tcp", GOOD4, 123): 1,
        ("udp", GOOD4, 443): 1,
        ("udp", BAD4, 123): 1,
        ("tcp", BAD6, 443): 1,
        ("udp", BAD6, 123): 1,
    }
    found = counters(nft)
    assert found.dropped_packets == 7
    assert found.dropped_bytes == sum(row.bytes for row in found.rows if row.direction == "dropped") > 0
    assert found.overflow == ()
    assert rows(nft, "reached").keys() == {
        ("tcp", GOOD4, 443),
        ("tcp", GOOD6, 443),
        ("udp", GOOD4, 123),
        ("udp", GOOD6, 123),
    }


def scenario_reached_counts_all_that_was_sent(rig: Rig) -> None:
    nft = allow(rig, *LISTED)
    with tcp(GOOD4, 443) as ours, rig.accept(443) as theirs:
        ours.sendall(bytes(100_000))
        got = 0
        while got < 100_000:
            got += len(theirs.recv(65536))
    (row,) = [row for row in counters(nft).rows if row.direction == "reached"]
    assert row.bytes > 100_000
    assert row.packets > 3


def scenario_an_empty_list_is_nothing(rig: Rig) -> None:
    nft = allow(rig)
    assert errno_of(lambda: tcp(GOOD4, 443)) == NEW
    assert errno_of(lambda: udp(GOOD4, 53)) == "EPERM"
    assert errno_of(lambda: tcp(GOOD6, 443)) == NEW
    nft.run("flush chain inet stockade output\nadd rule inet stockade output accept\n")
    settle(rig)
    assert rig.left[-1] == (UDP, GOOD4, 123), "the wire would have shown it"
    assert [packet for packet in rig.left if packet[0] in (TCP, UDP)] == [(UDP, GOOD4, 123)]


def scenario_refusals_come_at_once_also_in_numbers(rig: Rig) -> None:
    nft = allow(rig, *LISTED)
    for address in (BAD4, BAD6):
        answers = [errno_of(lambda port=port, address=address: tcp(address, port)) for port in range(1000, 1300)]
        assert set(answers) == {NEW}
    assert counters(nft).dropped_packets == 600, "each was refused by its first packet"


def scenario_names_are_admitted_and_forgotten(rig: Rig) -> None:
    rules = [parse_rule(entry) for entry in ("a.example", "udp://192.0.2.0/24:123")]
    nft = load("allow", rules)
    rig.connect_box()
    assert errno_of(lambda: tcp("198.51.100.7", 443)) == NEW, "not before it is admitted"
    nft.run(admit_text(rules[:1], ["198.51.100.7", "2001:db8:7::1"], 1))
    with tcp("198.51.100.7", 443) as ours, rig.accept(443) as theirs:
        with tcp("2001:db8:7::1", 443), rig.accept(443):
            pass
        assert errno_of(lambda: tcp("198.51.100.7", 80)) == NEW, "only on the rule's port"
        until = time.monotonic() + 20
        while errno_of(lambda: tcp("198.51.100.7", 443)) != NEW:
            assert time.monotonic() < until, "it is admitted for ever"
        before = rows(nft, "reached")["tcp", "198.51.100.7", 443]
        ours.sendall(b"still there")
        assert theirs.recv(11) == b"still there", "what was accepted outlives the name"
        assert rows(nft, "reached")["tcp", "198.51.100.7", 443] > before
    assert errno_of(lambda: tcp("198.51.100.7", 443)) == NEW


def scenario_admitting_again_starts_the_time_anew_without_a_gap(rig: Rig) -> None:
    rules = [parse_rule("udp://a.example:123")]
    nft = load("allow", rules)
    rig.connect_box()
    nft.run(admit_text(rules, [GOOD4], 60))
    stop = threading.Event()
    failures: list[str] = []
    sent = []

    def keep_sending() -> None:
        # A socket of its own for each: an established flow is not asked for its address any more.
        while not stop.is_set():
            if failure := errno_of(lambda: udp(GOOD4, 123)):
                failures.append(failure)
            sent.append(1)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    for number in range(300):
        nft.run(admit_text(rules, [GOOD4], 60 if number % 2 else 600))
    stop.set()
    sender.join()
    assert not failures
    assert sent
    assert lifetimes(nft, "named4_udp_123_123")[GOOD4] in range(1, 61)
    nft.run(admit_text(rules, [GOOD4, "192.0.2.9"], 600))
    found = lifetimes(nft, "named4_udp_123_123")
    assert found[GOOD4] in range(500, 601)
    assert found["192.0.2.9"] in range(500, 601)


def lifetimes(nft: Nft, name: str) -> dict[str, int]:
    """Seconds that are left, by address."""
    document = nft.query(f"list set inet stockade {name}")
    (found,) = [entry["set"] for entry in document["nftables"] if "set" in entry]
    return {each["elem"]["val"]: each["elem"]["expires"] for each in found.get("elem", ())}


def scenario_rules_that_overlap_do_not_disturb_each_other(rig: Rig) -> None:
    entries = ("192.0.2.0/24", "192.0.2.0/25", "192.0.2.1", "a.example", "a.example:400-500", "*.example:*")
    rules = [parse_rule(entry) for entry in (*entries, "udp://192.0.2.0/24:123")]
    named = [rule for rule in rules if rule.name]
    nft = load("allow", rules)
    rig.connect_box()
    assert errno_of(lambda: tcp(GOOD4, 8443)) == NEW
    nft.run(admit_text(named[:1], [GOOD4], 60))
    nft.run(admit_text(named[:2], [GOOD4, "192.0.2.2", GOOD4], 60))
    assert errno_of(lambda: tcp(GOOD4, 8443)) == NEW, "the rule for every port was not among those"
    nft.run(admit_text(named, [GOOD4], 60))
    assert errno_of(lambda: tcp(GOOD4, 8443)) == ""
    assert errno_of(lambda: tcp("192.0.2.200", 443)) == ""
    assert errno_of(lambda: tcp("192.0.2.2", 8443)) == NEW


# --- places that are never meant ----------------------------------------------------------------------------------


def scenario_metadata_is_refused_whatever_is_listed(rig: Rig) -> None:
    rules = [*everywhere("tcp"), *everywhere("udp"), parse_rule("a.example:*")]
    nft = load("allow", rules)
    rig.connect_box()
    metadata = [address for address in METADATA if "." in address]
    nft.run(admit_text(rules[-1:], [*metadata, "fd00:ec2::254"], 60))
    for address in ("168.63.129.17", "100.100.100.201"):
        assert errno_of(lambda address=address: tcp(address, 80)) == "", "its neighbour is reached"
    for address in metadata:
        assert errno_of(lambda address=address: tcp(address, 80)) == NEW
        assert errno_of(lambda address=address: tcp(f"::ffff:{address}", 80)) == NEW
        assert errno_of(lambda address=address: udp(address, 53)) == "EPERM"
        refused(rig, address)
    for address in (*(each for each in METADATA if ":" in each), "2002:a9fe:a9fe::1", "64:ff9b::a9fe:a9fe"):
        assert errno_of(lambda address=address: tcp(address, 80)) == NEW
        refused(rig, address)
    assert errno_of(lambda: tcp("fd00:ec2::255", 80)) == ""
    assert rows(nft, "dropped")["tcp", "169.254.169.254", 80] == 2
    assert rows(nft, "dropped")["tcp", "fd00:ec2::254", 80] == 1


def scenario_the_lease_s_own_network_and_other_places_are_refused(rig: Rig) -> None:
    nft = allow_everywhere(rig)
    assert errno_of(lambda: tcp(GOOD4, 80)) == ""
    assert errno_of(lambda: tcp("fd00:1::1", 80)) == ""
    for address in ("10.0.2.2", "10.0.2.3", "10.0.2.15", "169.254.1.1", "240.0.0.1"):
        assert errno_of(lambda address=address: udp(address, 53)) == "EPERM"
        refused(rig, address)
    for address in ("10.0.2.2", "10.0.2.3", "169.254.1.1"):
        assert errno_of(lambda address=address: tcp(address, 443)) == NEW
        refused(rig, address)
    for address in ("224.0.0.251", "239.1.2.3", "255.255.255.255", "10.0.2.255"):
        assert errno_of(lambda address=address: broadcast(address)) == "EPERM"
        refused(rig, address)
    for address in ("fe80::1", "ff02::fb", "ff05::2"):
        assert errno_of(lambda address=address: multicast6(address)) == "EPERM"
        refused(rig, address)
    assert rows(nft, "dropped")["udp", "10.0.2.3", 53] == 1


def broadcast(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        made.sendto(b"x", (address, 53))


def multicast6(address: str) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", (address, 53, 0, socket.if_nametoindex("tap0")))


def scenario_loopback_is_the_box_s_own(rig: Rig) -> None:
    allow(rig, *LISTED)
    with listen(socket.SOCK_STREAM, 5000, "127.0.0.1"), listen(socket.SOCK_STREAM, 5000, "::1"):
        for address in ("127.0.0.1", "127.1.2.3", "::1"):
            expected = "ECONNREFUSED" if address == "127.1.2.3" else ""
            assert errno_of(lambda address=address: tcp(address, 5000)) == expected
        assert errno_of(lambda: tcp("127.0.0.1", 443)) == "ECONNREFUSED", "the peer's is another"
    with contextlib.suppress(OSError):
        send_through_tap(ipv4(UDP, "127.0.0.1", struct.pack("!HHHH", 9, 123, 8, 0)), "127.0.0.1")
    refused(rig, "127.0.0.1")


def send_through_tap(packet: bytes, address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        made.sendto(packet, (address, 0))


def scenario_nobody_gets_in(rig: Rig) -> None:
    allow(rig, *LISTED)
    with listen(socket.SOCK_DGRAM, 6000, "0.0.0.0") as ours:
        with rig.in_peer(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
            theirs.bind((GOOD4, 7000))
            theirs.sendto(b"knock", (BOX4, 6000))
        with tcp(GOOD4, 443), rig.accept(443):
            pass  # the wire has carried the datagram: it is first in line
        udp("127.0.0.1", 6000, b"mine")
        assert ours.recv(10) == b"mine"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.settimeout(20)
        ours.sendto(b"ask", (GOOD4, 123))
        with rig.in_peer(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            theirs.bind((GOOD4, 123))
            theirs.sendto(b"answer", (BOX4, ours.getsockname()[1]))
        assert ours.recv(10) == b"answer", "an answer gets in"


# --- packets that are odd -----------------------------------------------------------------------------------------


def udp_payload(port: int, data: bytes) -> bytes:
    return struct.pack("!HHHH", 999, port, 8 + len(data), 0) + data


def scenario_other_protocols_are_refused_and_counted(rig: Rig) -> None:
    nft = allow_everywhere(rig)
    send_raw(ipv4(UDP, GOOD4, udp_payload(123, b"raw")), GOOD4)
    assert rig.datagram(123) == b"raw", "a raw packet is looked at like any other"
    echo = struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1)
    for protocol, payload in ((ICMP, echo), (SCTP, bytes(16)), (47, bytes(8)), (41, bytes(40)), (250, bytes(8))):
        packet = ipv4(protocol, "192.0.2.77", payload)
        assert errno_of(lambda packet=packet: send_raw(packet, "192.0.2.77")) == "EPERM"
    refused(rig, "192.0.2.77")
    assert rows(nft, "dropped") == {
        ("icmp", "192.0.2.77", 0): 1,
        ("sctp", "192.0.2.77", 0): 1,
        ("47", "192.0.2.77", 0): 1,
        ("41", "192.0.2.77", 0): 1,
        ("250", "192.0.2.77", 0): 1,
    }


def scenario_the_kernel_s_own_chatter_is_no_attempt(rig: Rig) -> None:
    nft = allow_everywhere(rig)
    before = counters(nft)
    assert errno_of(lambda: icmp6(133, "ff02::2")) == "EPERM"
    assert errno_of(lambda: icmp6(143, "ff02::16")) == "EPERM"
    after = counters(nft)
    assert after.housekeeping >= before.housekeeping + 2
    assert after.dropped_packets == before.dropped_packets == 0
    assert errno_of(lambda: icmp6(128, GOOD6)) == "EPERM"
    assert rows(nft, "dropped") == {("icmpv6", GOOD6, 0): 1}
    refused(rig, GOOD6)


def icmp6(kind: int, address: str) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        made.sendto(struct.pack("!BBHI", kind, 0, 0, 0) + bytes(8), (address, 0))


def scenario_a_source_route_is_refused(rig: Rig) -> None:
    nft = allow(rig, "192.0.2.1:1-65535", "udp://192.0.2.0/24:123")
    send_raw(ipv4(UDP, GOOD4, udp_payload(123, b"plain")), GOOD4)
    assert rig.datagram(123) == b"plain"
    hop = bytes([131, 7, 4]) + socket.inet_aton(BAD4) + b"\0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]) + socket.inet_aton(GOOD4) + b"\0")
        assert errno_of(lambda: made.sendto(b"x", (BAD4, 123))) == "EPERM", "as an ordinary program can do it"
    packet = ipv4(UDP, "192.0.2.3", udp_payload(123, b"routed"), options=hop)
    assert errno_of(lambda: send_raw(packet, "192.0.2.3")) == "EPERM"
    refused(rig, "192.0.2.3")
    refused(rig, BAD4)
    assert rows(nft, "dropped")["udp", GOOD4, 123] == 1, "the first hop is what its header named"


def scenario_fragments_show_their_port_or_are_refused(rig: Rig) -> None:
    nft = allow_everywhere(rig)
    udp(GOOD4, 123, b"a" * 5000)
    assert rig.datagram(123) == b"a" * 5000, "what the kernel cuts itself is whole when it is looked at"
    whole = udp_payload(123, b"b" * 56)
    send_raw(ipv4(UDP, GOOD4, whole[:32], offset=0x2000), GOOD4)
    send_raw(ipv4(UDP, GOOD4, whole[32:], offset=4), GOOD4)
    assert rig.datagram(123) == b"b" * 56, "and so is what a program cuts"
    later = ipv4(UDP, "192.0.2.5", b"c" * 32, offset=4)
    assert errno_of(lambda: send_raw(later, "192.0.2.5", keep_fragments=True)) == "EPERM"
    refused(rig, "192.0.2.5")
    assert rows(nft, "dropped") == {("udp", "192.0.2.5", 0): 1}


def scenario_a_full_set_changes_no_verdict_and_says_so(rig: Rig) -> None:
    sizes = {"reached": 2, "dropped": 2, "other": 1}
    ruletext.SIZES.update(sizes)
    nft = allow(rig, *LISTED)
    for number in (1, 2):
        assert errno_of(lambda number=number: tcp(f"192.0.2.{number}", 443)) == ""
        assert errno_of(lambda number=number: tcp(BAD4, number)) == NEW
    send_icmp = ipv4(ICMP, BAD4, struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1))
    assert errno_of(lambda: send_raw(send_icmp, BAD4)) == "EPERM"
    assert counters(nft).overflow == ()
    assert errno_of(lambda: tcp("192.0.2.3", 443)) == "", "still reached"
    assert errno_of(lambda: tcp(BAD4, 3)) == NEW, "still refused"
    found = counters(nft)
    assert sorted(found.overflow) == ["dropped", "reached"]
    assert found.dropped_packets == 4
    assert len([row for row in found.rows if row.direction == "dropped"]) == 3
    assert rig.sent_to(BAD4) == []


# --- open ---------------------------------------------------------------------------------------------------------

PRIVATE = ("10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd00::1")
PUBLIC = (GOOD4, BAD4, "11.0.0.1", "172.32.0.1", "8.8.8.8", GOOD6)
CLOSED = ("100.64.0.1", "100.100.100.200", "169.254.169.254", "168.63.129.16", "10.0.2.2", "169.254.7.7")
CLOSED6 = ("fd00:ec2::254", "2002:a00:1::1", "2001:0:1::1", "64:ff9b::a00:1")


def open_to(rig: Rig, *, private: bool) -> None:
    nft = load("open", [], private=private)
    rig.connect_box()
    reachable = (*PUBLIC, *(PRIVATE if private else ()))
    for address in reachable:
        for port in (22, 443):
            assert errno_of(lambda address=address, port=port: tcp(address, port)) == "", address
        udp(address, 53, b"q")
        assert rig.datagram(53) == b"q"
    for address in (*CLOSED, *CLOSED6, *(() if private else PRIVATE)):
        assert errno_of(lambda address=address: tcp(address, 443)) == NEW, address
        assert errno_of(lambda address=address: udp(address, 53)) == "EPERM", address
        refused(rig, address)
    echo = ipv4(ICMP, "192.0.2.77", struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1))
    assert errno_of(lambda: send_raw(echo, "192.0.2.77")) == "EPERM"
    refused(rig, "192.0.2.77")
    found = rows(nft, "reached")
    assert all(("tcp", address, 22) in found and ("udp", address, 53) in found for address in reachable)
    assert ("tcp", "100.64.0.1", 443) in rows(nft, "dropped")


def scenario_open_leaves_out_what_is_private(rig: Rig) -> None:
    open_to(rig, private=False)


def scenario_open_with_private_still_leaves_out_the_rest(rig: Rig) -> None:
    open_to(rig, private=True)


# --- record -------------------------------------------------------------------------------------------------------


def record(rig: Rig) -> Nft:
    nft = load("record", [])
    rulesrig.link_up("lo")
    rulesrig.make_local()
    return nft


def scenario_record_answers_every_address(rig: Rig) -> None:
    nft = record(rig)
    with (
        listen(socket.SOCK_STREAM, TCP_PORT, "127.0.0.1") as sink4,
        listen(socket.SOCK_STREAM, TCP_PORT, "::1") as sink6,
    ):
        for address, sink in (("93.184.216.34", sink4), ("169.254.169.254", sink4), (GOOD6, sink6)):
            with tcp(address, 443) as ours, sink.accept()[0] as theirs:
                assert original(theirs) == (address, 443)
                theirs.sendall(b"hi")
                assert ours.recv(2) == b"hi"
        with tcp("127.0.0.1", TCP_PORT), sink4.accept()[0] as theirs:
            assert theirs.getsockname() == ("127.0.0.1", TCP_PORT)
    assert errno_of(lambda: tcp("127.0.0.1", 443)) == "ECONNREFUSED", "loopback is left to itself"
    assert errno_of(lambda: tcp("::1", 443)) == "ECONNREFUSED"
    found = rows(nft, "seen")
    assert found.keys() == {
        ("tcp", "93.184.216.34", 443),
        ("tcp", "169.254.169.254", 443),
        ("tcp", GOOD6, 443),
    }
    assert all(packets >= 3 for packets in found.values()), "what the program sent, not only its first packet"


def original(theirs: socket.socket) -> tuple[str, int]:
    level, size = (socket.IPPROTO_IP, 16) if theirs.family == socket.AF_INET else (socket.IPPROTO_IPV6, 28)
    told = theirs.getsockopt(level, rulesrig.SO_ORIGINAL_DST, size)
    start, end = (4, 8) if theirs.family == socket.AF_INET else (8, 24)
    return socket.inet_ntop(theirs.family, told[start:end]), int.from_bytes(told[2:4], "big")


def scenario_record_knows_where_a_datagram_was_to_go(rig: Rig) -> None:
    nft = record(rig)
    with contextlib.ExitStack() as stack:
        sinks = {
            (4, port): stack.enter_context(listen(socket.SOCK_DGRAM, port, "127.0.0.1"))
            for port in (DNS_PORT, UDP_PORT)
        }
        sinks |= {
            (6, port): stack.enter_context(listen(socket.SOCK_DGRAM, port, "::1")) for port in (DNS_PORT, UDP_PORT)
        }
        for address, port in (("8.8.8.8", 53), (GOOD4, 123), (GOOD6, 53), (BAD6, 9999)):
            family = 6 if ":" in address else 4
            sink = sinks[family, DNS_PORT if port == 53 else UDP_PORT]
            with socket.socket(rulesrig.family_of(address), socket.SOCK_DGRAM) as ours:
                ours.settimeout(20)
                ours.connect((address, port))
                ours.send(b"ask")
                data, sender = sink.recvfrom(100)
                assert data == b"ask"
                assert (family, sender[1], address, port) in counters(nft).udp
                sink.sendto(b"answer", sender)
                assert ours.recv(100) == b"answer", "it comes from where it was sent to"
        with listen(socket.SOCK_DGRAM, 6000, "127.0.0.1") as own:
            udp("127.0.0.1", 6000, b"mine")
            assert own.recv(10) == b"mine"
    assert len(counters(nft).udp) == 4, "answers are not taken for datagrams of the program"
    assert rows(nft, "seen") == {
        ("udp", "8.8.8.8", 53): 1,
        ("udp", GOOD4, 123): 1,
        ("udp", GOOD6, 53): 1,
        ("udp", BAD6, 9999): 1,
    }


def scenario_one_source_port_may_stand_for_several_destinations(rig: Rig) -> None:
    nft = record(rig)
    ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listen(socket.SOCK_DGRAM, UDP_PORT, "127.0.0.1") as sink, ours:
        for address in (GOOD4, BAD4):
            ours.sendto(b"x", (address, 123))
            sink.recv(1)
        port = ours.getsockname()[1]
    assert {each for each in counters(nft).udp if each[1] == port} == {(4, port, GOOD4, 123), (4, port, BAD4, 123)}


def scenario_nothing_leaves_a_recording_lease_even_with_a_link(rig: Rig) -> None:
    """A link and a route that no recording lease has."""
    nft = record(rig)
    rulesrig.link_up("tap0")
    rulesrig.add_address("tap0", BOX4, 24)
    rulesrig.add_route("203.0.113.0/24", "tap0")
    assert errno_of(lambda: udp(BAD4, 123)) == "EPERM"
    for protocol in (ICMP, SCTP):
        packet = ipv4(protocol, BAD4, struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1))
        assert errno_of(lambda packet=packet: send_raw(packet, BAD4)) == "EPERM"
    assert rig.sent_to(BAD4) == []
    found = counters(nft)
    seen = rows(nft, "seen")
    assert seen["icmp", BAD4, 0] == seen["sctp", BAD4, 0] == 1
    assert seen["udp", BAD4, 123] == 1
    assert found.overflow == ()
    nft.run("delete table inet stockade")
    send_raw(ipv4(UDP, BAD4, udp_payload(123, b"out")), BAD4)
    assert rig.datagram(123) == b"out", "the rules were what kept it in"
    assert rig.sent_to(BAD4) == [(UDP, BAD4, 123)]


SCENARIOS = sorted(name.removeprefix("scenario_") for name in globals() if name.startswith("scenario_"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    before = os.readlink("/proc/self/ns/net")
    assert "done" in rulesrig.run_scenario(__file__, name)
    assert os.readlink("/proc/self/ns/net") == before


def test_a_scenario_that_fails_fails() -> None:
    with pytest.raises(AssertionError, match="KeyError"):
        rulesrig.run_scenario(__file__, "that_is_none")


if __name__ == "__main__":
    rulesrig.main(dict(globals()))
