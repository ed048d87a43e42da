"""Two network namespaces and a wire between them, for tests of the packet rules in the real kernel.

A scenario is a function of a test module that takes a ``Rig``; ``run_scenario`` runs it in a process of its own,
which makes the namespaces and takes them with it. *box* is where the rules are and the program would be. *peer*
answers on every address there is, so that what is not reached was refused. The wire is a thread that carries
packets from one tun device to the other and keeps a note of each: what did not leave is not on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
BOX4, BOX6 = "10.0.2.100", "2001:db8:f::64"
TCP_PORTS = (22, 80, 443, 8443)
UDP_PORTS = (53, 123, 443)
SECONDS = 20.0

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE = 16, 20, 24
REQUEST = 0x1 | 0x4 | 0x400
"""NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE."""
MAIN, STATIC, UNICAST, LOCAL = 254, 4, 1, 2
IFA_F_NODAD = 0x2
IFF_UP = 0x1
RTF_LOCAL = 0x80000000
SO_ORIGINAL_DST = 80

Packet = tuple[int, str, int]
"""Protocol, destination, destination port (0 where there is none)."""

libc = ctypes.CDLL(None, use_errno=True)


def run_scenario(module: str, name: str) -> str:
    """Runs ``scenario_<name>`` of the file ``module``; its output. An AssertionError with the traceback if it fails."""
    argv = [sys.executable, module, name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def main(scenarios: dict[str, object]) -> None:
    """What a test module does when it is run as a program: the scenario that is named."""
    scenario = scenarios[f"scenario_{sys.argv[1]}"]
    assert callable(scenario)
    with Rig() as rig:
        scenario(rig)
    print("done")


class Rig:
    """The calling process must be alone in its thread; it stays in *box*."""

    def __init__(self) -> None:
        unshare(CLONE_NEWUSER | CLONE_NEWNET, map_ids=True)
        self.peer = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.peer_tun = open_tun("wire0")
        set_up_peer()
        unshare(CLONE_NEWNET)
        self.box = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.box_tun = open_tun("tap0")
        self.left: list[Packet] = []
        """What left the box, in order."""
        self.listeners: dict[tuple[int, int], socket.socket] = {}
        with self.in_peer():
            for port in TCP_PORTS:
                self.listeners[socket.SOCK_STREAM, port] = listen(socket.SOCK_STREAM, port)
            for port in UDP_PORTS:
                self.listeners[socket.SOCK_DGRAM, port] = listen(socket.SOCK_DGRAM, port)
        self._stop, self._stopper = os.pipe()
        self._wire = threading.Thread(target=self._carry)

    def __enter__(self) -> Rig:
        self._wire.start()
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._stopper)
        self._wire.join()
        for each in self.listeners.values():
            each.close()

    def connect_box(self) -> None:
        """Addresses and default routes, which come after the rules."""
        link_up("lo")
        link_up("tap0")
        add_address("tap0", BOX4, 24)
        add_address("tap0", BOX6, 64)
        add_route("0.0.0.0/0", "tap0")
        add_route("::/0", "tap0")
        wait_local(BOX6)

    @contextlib.contextmanager
    def in_peer(self) -> Iterator[None]:
        """Sockets made here are the peer's."""
        set_namespace(self.peer)
        try:
            yield
        finally:
            set_namespace(self.box)

    def accept(self, port: int) -> socket.socket:
        """The peer's end of the next connection to its ``port``."""
        return self.listeners[socket.SOCK_STREAM, port].accept()[0]

    def datagram(self, port: int) -> bytes:
        """The next datagram that the peer got on ``port``."""
        return self.listeners[socket.SOCK_DGRAM, port].recv(65535)

    def sent_to(self, address: str) -> list[Packet]:
        """What left for this address."""
        return [packet for packet in self.left if packet[1] == address]

    def _carry(self) -> None:
        poll = select.poll()
        for fd in (self.box_tun, self.peer_tun, self._stop):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _events in poll.poll():
                if fd == self._stop:
                    return
                packet = os.read(fd, 65536)
                if fd == self.box_tun:
                    self.left.append(read_packet(packet))
                with contextlib.suppress(OSError):
                    os.write(self.peer_tun if fd == self.box_tun else self.box_tun, packet)


# --- namespaces and devices ---------------------------------------------------------------------------------------


def unshare(flags: int, *, map_ids: bool = False) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if map_ids:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)


def set_namespace(fd: int) -> None:
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def set_up_peer() -> None:
    link_up("lo")
    link_up("wire0")
    add_route(f"{BOX4}/32", "wire0")
    add_route(f"{BOX6}/128", "wire0")
    make_local()


def make_local() -> None:
    """Every address is one of this namespace's own."""
    add_route("0.0.0.0/0", "lo", LOCAL)
    add_route("::/0", "lo", LOCAL)


def link_up(name: str) -> None:
    request(RTM_NEWLINK, struct.pack("BxHiII", 0, 0, socket.if_nametoindex(name), IFF_UP, IFF_UP))


def add_address(name: str, text: str, prefix: int) -> None:
    packed = ipaddress.ip_address(text).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = struct.pack("BBBBI", family, prefix, IFA_F_NODAD, 0, socket.if_nametoindex(name))
    request(RTM_NEWADDR, body + attribute(1, packed) + attribute(2, packed))


def add_route(text: str, device: str, type_: int = UNICAST) -> None:
    network = ipaddress.ip_network(text)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    scope = 254 if type_ == LOCAL else 253 if network.version == 4 else 0
    body = struct.pack("BBBBBBBBI", family, network.prefixlen, 0, 0, MAIN, STATIC, scope, type_, 0)
    if network.prefixlen:
        body += attribute(1, network.network_address.packed)
    request(RTM_NEWROUTE, body + attribute(4, struct.pack("I", socket.if_nametoindex(device))))


def wait_local(text: str) -> None:
    """The kernel makes a new IPv6 address its own a little later; until then answers to it take the default route."""
    wanted = ipaddress.ip_address(text).packed.hex()
    until = time.monotonic() + SECONDS
    while not any(
        route[0] == wanted and int(route[8], 16) & RTF_LOCAL
        for route in map(str.split, Path("/proc/thread-self/net/ipv6_route").read_text().splitlines())
    ):
        assert time.monotonic() < until, f"{text} never became local"
        time.sleep(0.001)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("HH", 4 + len(data), kind) + data


def request(kind: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.send(struct.pack("IHHII", 16 + len(body), kind, REQUEST, 1, 0) + body)
        code = struct.unpack_from("i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, os.strerror(-code), f"rtnetlink {kind}")


# --- talking ------------------------------------------------------------------------------------------------------


def listen(kind: int, port: int, address: str = "::") -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(SECONDS)
    made.bind((address, port))
    if kind == socket.SOCK_STREAM:
        made.listen(512)
    return made


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def tcp(address: str, port: int) -> socket.socket:
    """A connection from here, by a connect that blocks. OSError with the kernel's errno."""
    made = socket.socket(family_of(address), socket.SOCK_STREAM)
    # Python's own time limit would make it a connect that does not block, which takes refusals otherwise.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SECONDS), 0))
    try:
        made.connect((address, port))
    except OSError:
        made.close()
        raise
    made.settimeout(SECONDS)
    return made


def udp(address: str, port: int, data: bytes = b"x") -> int:
    """Sends one datagram; the port it came from. OSError with the kernel's errno."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as made:
        made.connect((address, port))
        made.send(data)
        return int(made.getsockname()[1])


def errno_of(act: Callable[[], object]) -> str:
    """The name of the errno that ``act`` fails with; empty when it works."""
    try:
        result = act()
    except TimeoutError:
        return "timeout"
    except OSError as error:
        import errno

        return errno.errorcode.get(error.errno or 0, f"{error}")
    if isinstance(result, socket.socket):
        result.close()
    return ""


def read_packet(packet: bytes) -> Packet:
    """Protocol, destination and port of an IP packet; the port of a later fragment is 0."""
    if packet[0] >> 4 == 6:
        address = str(ipaddress.IPv6Address(packet[24:40]))
        return packet[6], address, port_of(packet[6], packet[40:])
    later = struct.unpack_from("!H", packet, 6)[0] & 0x1FFF
    start = (packet[0] & 15) * 4
    address = str(ipaddress.IPv4Address(packet[16:20]))
    return packet[9], address, 0 if later else port_of(packet[9], packet[start:])


def port_of(protocol: int, payload: bytes) -> int:
    return int.from_bytes(payload[2:4], "big") if protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP) else 0


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ipv4(protocol: int, address: str, payload: bytes, *, offset: int = 0, options: bytes = b"") -> bytes:
    """An IPv4 packet from the box; ``offset`` in units of 8 bytes. The kernel fills the checksum of the header in."""
    words = 5 + len(options) // 4
    length = words * 4 + len(payload)
    ends = ipaddress.ip_address(BOX4).packed + ipaddress.ip_address(address).packed
    return struct.pack("!BBHHHBBH", 0x40 | words, 0, length, 7, offset, 64, protocol, 0) + ends + options + payload


def send_raw(packet: bytes, address: str, *, keep_fragments: bool = False) -> None:
    """Sends a whole IPv4 packet as it is; ``keep_fragments`` has connection tracking leave fragments alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as made:
        if keep_fragments:
            made.setsockopt(socket.IPPROTO_IP, 22, 1)  # IP_NODEFRAG
        made.sendto(packet, (address, 0))
