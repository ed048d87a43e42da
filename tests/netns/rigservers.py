"""The outside as a leased run sees it: servers on every address, a name server, and a note of every packet.

All of it is threads of one process in a network namespace where every address is local (see ``rig``). What is
not in ``Wire`` did not come out of a lease, whatever the product believes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from rulesrig import port_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TCP_PORTS = (22, 80, 853, 2222, 8080)
TLS_PORTS = (443,)
UDP_PORTS = (53, 123, 443, 5353)
SECONDS = 10.0
NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
PACKET_OUTGOING = 4
Packet = tuple[str, str, int]
"""Protocol, destination, port."""


def plain(address: str) -> str:
    """An IPv4 address without its IPv6 dress."""
    return address.removeprefix("::ffff:")


def listen(kind: int, port: int) -> socket.socket:
    """On every address of both families."""
    made = socket.socket(socket.AF_INET6, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::", port))
    if kind == socket.SOCK_STREAM:
        made.listen(1024)
    return made


def in_thread(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


# --- servers -----------------------------------------------------------------------------------------------


class Outside:
    """``zone`` says what names lead to, ``pages`` what paths of the HTTP servers answer; both may change any time."""

    def __init__(self) -> None:
        self.zone: dict[str, list[str] | list[list[str]]] = {}
        """Name to records (``A 192.0.2.1``, ``CNAME other``), or to a rcode (``NXDOMAIN``), or to ``SILENCE``;
        a list of lists gives them in turn."""
        self.pages: dict[str, tuple[str, bytes] | Callable[[], bytes]] = {}
        """Path to type and content; what is not here is answered with a tag: address, port and Host header."""
        self.asked: list[tuple[str, str, str]] = []
        """Server, name and type of every query."""
        self.served: list[tuple[str, int, str]] = []
        """Address, port and Host header of every HTTP request."""
        self.greeted: list[tuple[str, int, str | None]] = []
        """Address, port and server name of every ClientHello."""
        self.broken: list[str] = []
        """Faults of the name server itself."""
        self.mute = False
        """No name server answers anything."""
        self._turns: dict[str, int] = {}

    def start(self, certificate: str, sites: dict[str, str] | None = None) -> None:
        """``sites`` have certificates of their own, by server name; all else gets ``certificate``."""
        for port in TCP_PORTS:
            in_thread(self._accept, listen(socket.SOCK_STREAM, port), None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.set_alpn_protocols(["http/1.1"])
        contexts = {name: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for name in sites or {}}
        for name, path in (sites or {}).items():
            contexts[name].load_cert_chain(path)
            contexts[name].set_alpn_protocols(["http/1.1"])

        def greet(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            self.greeted.append((plain(connection.getsockname()[0]), connection.getsockname()[1], name))
            connection.context = contexts.get((name or "").lower().removesuffix("."), context)

        context.sni_callback = greet  # type: ignore[assignment]
        for port in TLS_PORTS:
            in_thread(self._accept, listen(socket.SOCK_STREAM, port), context)
        for port in UDP_PORTS:
            in_thread(self._datagrams, listen(socket.SOCK_DGRAM, port), port == 53)
        in_thread(self._accept_queries, listen(socket.SOCK_STREAM, 53))

    def _accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        while True:
            in_thread(self._serve, listening.accept()[0], context)

    def _serve(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        connection.settimeout(SECONDS)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                Handler(connection, connection.getpeername(), self)

    def _datagrams(self, bound: socket.socket, names: bool) -> None:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        bound.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: there is a route to it, not an address
        while True:
            data, told, _flags, peer = bound.recvmsg(65535, 128)
            # The address that was asked, which has to be the one that answers.
            own = [(level, kind, each[:16] + bytes(4)) for level, kind, each in told]
            server = plain(socket.inet_ntop(socket.AF_INET6, own[0][2][:16]))
            answer = self.answer(data, server) if names else b"echo " + data
            if answer:
                with contextlib.suppress(OSError):
                    bound.sendmsg([answer], own, 0, peer)

    def _accept_queries(self, listening: socket.socket) -> None:
        while True:
            in_thread(self._serve_queries, listening.accept()[0])

    def _serve_queries(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        with contextlib.suppress(OSError), connection, connection.makefile("rwb") as file:
            while head := file.read(2):
                answer = self.answer(file.read(int.from_bytes(head, "big")), plain(connection.getsockname()[0]))
                if answer:
                    file.write(len(answer).to_bytes(2, "big") + answer)
                    file.flush()

    def answer(self, wire: bytes, server: str) -> bytes | None:
        try:
            return self.reply_to(dns.message.from_wire(wire), server)
        except dns.exception.FormError:
            return None
        except Exception as error:  # told at the end of the world; until then the server goes on
            self.broken.append(repr(error))
            return None

    def reply_to(self, query: dns.message.Message, server: str) -> bytes | None:
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(query.question[0].rdtype)
        self.asked.append((server, name, kind))
        records = self.turn_of(name)
        if self.mute or records == ["SILENCE"]:
            return None
        reply = dns.message.make_response(query, recursion_available=True)
        if len(records) == 1 and " " not in records[0]:
            reply.set_rcode(dns.rcode.from_text(records[0]))
            return reply.to_wire()
        owner = query.question[0].name
        for record in records:
            type_, text = record.split(" ")
            text += "." if type_ == "CNAME" else ""
            if type_ in (kind, "CNAME"):
                reply.answer.append(dns.rrset.from_text(owner, 5, "IN", type_, text))
            if type_ == "CNAME":
                owner = dns.name.from_text(text)
        if kind != "A" and reply.answer and reply.answer[-1].rdtype == dns.rdatatype.CNAME:
            reply.answer.clear()
        return cut_to(reply, 4096)

    def turn_of(self, name: str) -> list[str]:
        known = self.zone.get(name, ["NXDOMAIN"])
        if known and isinstance(known[0], list):
            turn = self._turns.get(name, 0)
            self._turns[name] = turn + 1
            return list(known[turn % len(known)])
        return [str(each) for each in known]


def cut_to(reply: dns.message.Message, size: int) -> bytes:
    """A reply that is too large says so and is empty."""
    wire = reply.to_wire(max_size=65535)
    if len(wire) > size:
        reply.answer.clear()
        reply.flags |= dns.flags.TC
        wire = reply.to_wire()
    return wire


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, connection: socket.socket, peer: object, outside: Outside) -> None:
        self.outside = outside
        self.place = plain(connection.getsockname()[0]), connection.getsockname()[1]
        super().__init__(connection, peer, None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        self.outside.served.append((*self.place, host))
        found = self.outside.pages.get(self.path.partition("?")[0], ("text/plain", self.tag(host)))
        type_, content = found if isinstance(found, tuple) else ("text/plain", found())
        self.send_response(200)
        self.send_header("Content-Type", type_)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def tag(self, host: str) -> bytes:
        return f"tag {self.place[0]} {self.place[1]} {host}\n".encode()

    def log_message(self, *_args: object) -> None: ...


def make_certificate(path: str) -> str:
    """A key and a certificate of its own signature, in one file."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=secure.example", "-days", "2", "-addext", "subjectAltName=DNS:secure.example"]
    subprocess.run([*command, "-keyout", path, "-out", f"{path}.cert"], check=True, capture_output=True)
    with open(path, "a") as key, open(f"{path}.cert") as cert:
        key.write(cert.read())
    return path


def make_authority(authority: str, sites: tuple[str, ...]) -> dict[str, str]:
    """The certificate of an authority, and for each site a file with its key and its certificate."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    found = {}
    own = [
        "openssl",
        "req",
        "-x509",
        *key,
        "-subj",
        "/CN=authority",
        "-keyout",
        f"{authority}.key",
        "-out",
        authority,
    ]
    subprocess.run([*own, "-addext", "keyUsage=critical,keyCertSign"], check=True, capture_output=True)
    for site in sites:
        path = f"{authority}.{site}"
        command = ["openssl", "req", "-x509", *key, "-CA", authority, "-CAkey", f"{authority}.key"]
        named = ["-addext", f"subjectAltName=DNS:{site}", "-addext", "basicConstraints=critical,CA:FALSE"]
        command += ["-subj", f"/CN={site}", *named, "-keyout", path, "-out", f"{path}.cert"]
        subprocess.run(command, check=True, capture_output=True)
        with open(path, "a") as file, open(f"{path}.cert") as cert:
            file.write(cert.read())
        found[site] = path
    return found


# --- the wire ----------------------------------------------------------------------------------------------


class Wire:
    """Every packet that begins something on this namespace's loopback, but for queries to the host's name server."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self._marks = 0
        self._seen = threading.Condition()
        self._tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self._tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self._tap.bind(("lo", 3))
        in_thread(self._watch)

    def take(self) -> list[Packet]:
        """What was seen until now; the next call tells what comes after."""
        with self._seen:
            wanted = self._marks + 1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.sendto(b"mark", ("127.0.0.99", 9))
        with self._seen:
            assert self._seen.wait_for(lambda: self._marks >= wanted, SECONDS), "the wire is not watched"
            taken, self.packets = self.packets, []
        return list(dict.fromkeys(taken))

    def _watch(self) -> None:
        while True:
            data, (_device, _protocol, direction, *_rest) = self._tap.recvfrom(65535)
            found = beginning(data) if direction == PACKET_OUTGOING else None
            if found is None:
                continue
            with self._seen:
                if found == ("udp", "127.0.0.99", 9):
                    self._marks += 1
                    self._seen.notify_all()
                else:
                    self.packets.append(found)


def beginning(data: bytes) -> Packet | None:
    """None for answers, for what belongs to a connection, and for the host's own lookups."""
    if data[0] >> 4 == 6:
        protocol, address, payload = data[6], str(ipaddress.IPv6Address(data[24:40])), data[40:]
    else:
        protocol, address = data[9], str(ipaddress.IPv4Address(data[16:20]))
        payload = data[(data[0] & 15) * 4 :]
    name, port = NAMES.get(protocol, str(protocol)), port_of(protocol, payload)
    if name == "tcp" and payload[13] & 0x12 != 0x02:
        return None
    if name == "udp" and (struct.unpack_from("!H", payload)[0] in UDP_PORTS or (address, port) in HOST_RESOLVERS):
        return None
    if name in ("icmp", "icmpv6") and payload[0] in (0, 1, 3, 129, 131, 132, 133, 143):
        return None  # answers, errors, the kernel's own neighbour discovery
    if name == "tcp" and (address, port) in HOST_RESOLVERS:
        return None
    return name, address, port


HOST_RESOLVERS = {("127.0.0.1", 53), ("127.0.0.53", 53)}
