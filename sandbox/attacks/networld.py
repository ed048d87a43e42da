"""A world for attacks on leased networks: ``python -m stockade.sandbox.attacks.networld USER`` prints their results.

A network and mount namespace of its own (below a user namespace, for an ordinary user) in which every address is
local and answers, with every packet noted. stockade runs in there whole, so that what its connector sends meets
this world: a leak has somebody to reach and is seen. Nothing leaves the machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import struct
import sys

from stockade.netns.hello import RETRY
from stockade.policies.errors import StockadeError
from stockade.policies.model import parse_tree
from stockade.sandbox import keeperlink
from stockade.sandbox.attacks import batch
from stockade.sandbox.attacks.bait import Bait, die_with_parent
from stockade.sandbox.attacks.programs import names
from stockade.sandbox.attacks.programs.packets import EVIL, GOOD, REBINDING, attribute, message
from stockade.sandbox.attacks.programs.sockets import SERVICES
from stockade.sandbox.attacks.toolbox import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stockade.policies.model import Policy
    from stockade.sandbox.attacks.judge import Result

MS_BIND = 0x1000
BOXES = ("allow", "record", "open", "none", names.BOX)
PORTS = (22, 80, 443, 853, 2222, 8080)
ALLOWED = {
    f"sent tcp {GOOD} 80",
    *(f"sent tcp {names.SHARED} {port}" for port in (80, 443)),
}
"""What the lists of the boxes name."""
LISTED = names.ONE, names.TWO, names.FAR
TALKING = (80, 443)
"""Ports whose servers answer."""
WORD = re.compile(rb"[a-z0-9-]+\." + re.escape(names.WORDS.encode()))
_HEAD = b"\3\3" + RETRY + b"\0\x13\1\0" + names.sized(b"\0\x2b\0\2\3\4", 2)
AGAIN = b"\x16\3\3" + names.sized(b"\2" + names.sized(_HEAD, 3), 2)
"""A ServerHello that asks for another ClientHello."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
PACKET_OUTGOING = 4
PROTOCOLS = {6: "tcp", 17: "udp"}
MARK = 9
SECONDS = 5.0


class World(Bait):
    """The bait, in a world of addresses; its facts are packets that were sent and names that were asked, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self.tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self.tap.settimeout(SECONDS)
        self.servers = [serve(port) for port in PORTS]
        talking = [each for each, port in zip(self.servers, PORTS, strict=True) if port in TALKING]
        self.processes = [start_name_server(), start(lambda: answer_all(talking))]

    def __exit__(self, *error: object) -> None:
        for pid in self.processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        super().__exit__(*error)
        for each in (self.tap, *self.servers):
            each.close()

    def facts(self) -> dict[str, Any]:
        """What was sent and asked since the last look is a fact of its own; nothing else is known by that name."""
        return super().facts() | dict.fromkeys(self.seen(), True)

    def seen(self) -> set[str]:
        """Reads up to a datagram that is sent now."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.sendto(b"mark", ("127.0.0.99", MARK))
        found: set[str] = set()
        while True:
            data, about = self.tap.recvfrom(65535)
            said = told(data) if about[2] == PACKET_OUTGOING else ()
            if f"sent udp 127.0.0.99 {MARK}" in said:
                return found - ALLOWED
            found.update(said)


def told(data: bytes) -> tuple[str, ...]:
    """What a packet says, if it begins something, asks for a name or has one of the words in it."""
    if data[0] >> 4 == 6:
        protocol, address, rest = data[6], socket.inet_ntop(socket.AF_INET6, data[24:40]), data[40:]
    else:
        protocol, address, rest = data[9], socket.inet_ntoa(data[16:20]), data[(data[0] & 15) * 4 :]
    if protocol not in PROTOCOLS:
        return ()
    source, port = struct.unpack_from("!HH", rest)
    if protocol == 6:
        asking = rest[(rest[12] >> 4) * 4 + 2 :] if port == 53 else b""
        first = rest[13] & 0x12 == 0x02
    else:
        asking, first = (rest[8:] if port == 53 else b""), source != 53
    sent = (f"sent {PROTOCOLS[protocol]} {address} {port}",) if first else ()
    said = tuple(f"said {word.decode()}" for word in WORD.findall(rest)) if protocol == 6 else ()
    return (*sent, *said, *((f"asked {name_in(asking)}",) if len(asking) > 12 else ()))


def serve(port: int) -> socket.socket:
    """Accepts on every address; nobody need answer."""
    made = socket.socket(socket.AF_INET6)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::", port))
    made.listen(512)
    return made


def start_name_server() -> int:
    """The host's name server, a process of its own: every name leads to EVIL."""
    by_datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    by_datagram.bind(("127.0.0.1", 53))
    by_stream = serve(53)
    pid = start(lambda: answer_names(by_datagram, by_stream))
    by_datagram.close()
    by_stream.close()
    return pid


def start(work: Callable[[], None]) -> int:
    """In a process of its own."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        try:
            work()
        finally:
            os._exit(1)
    return pid


def answer_all(listening: Sequence[socket.socket]) -> None:
    """A word to each that comes, whatever it says: a server that takes whom it is called."""
    known: list[socket.socket] = []
    while True:
        for ready in select.select([*listening, *known], [], [])[0]:
            if ready in listening:
                known.append(ready.accept()[0])
                continue
            try:
                data = ready.recv(65536)
                ready.sendall((AGAIN if data[:1] == b"\x16" else OK) if data else b"")
            except OSError:
                data = b""
            if not data:
                known.remove(ready)
                ready.close()


def answer_names(by_datagram: socket.socket, by_stream: socket.socket) -> None:
    while True:
        for ready in select.select([by_datagram, by_stream], [], [])[0]:
            if ready is by_datagram:
                data, peer = by_datagram.recvfrom(4096)
                by_datagram.sendto(answer_to(data), peer)
                continue
            with by_stream.accept()[0] as made:
                made.settimeout(0.5)
                try:
                    answer = answer_to(made.recv(4096)[2:])
                    made.sendall(struct.pack("!H", len(answer)) + answer)
                except OSError:
                    continue


def answer_to(query: bytes) -> bytes:
    record = b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton(EVIL)
    return query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + query[12:] + record


def name_in(query: bytes) -> str:
    labels, at = [], 12
    while at < len(query) and query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
        at += 1 + query[at]
    return ".".join(labels).lower()


# --- the namespaces ----------------------------------------------------------------------------------------


def enter() -> None:
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWNS | CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER))
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        asked(link, 16, struct.pack("=BxHiII", 0, 0, 1, 1, 1))  # lo up
        for family in (socket.AF_INET, socket.AF_INET6):
            # Every address there is, local to lo.
            body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 254, 4, 254, 2, 0) + attribute(
                4, struct.pack("=I", 1)
            )
            asked(link, 24, body)


def asked(link: socket.socket, kind: int, body: bytes) -> None:
    link.send(message(kind, body, 0x405))
    code = struct.unpack_from("i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, os.strerror(-code), f"rtnetlink {kind}")


def configure(top: str) -> list[socket.socket]:
    """The host's view of names in this world, and a /run with the sockets of services in it."""
    call("mount", b"run", b"/run", b"tmpfs", ctypes.c_ulong(0), None)
    lines = [
        "127.0.0.1 localhost",
        f"{GOOD} good.example",
        f"{names.SHARED} {names.ONE} {names.TWO}",
        f"{names.ELSEWHERE} {names.FAR}",
        *(f"{each[1]} {each[0]}" for each in REBINDING.values()),
    ]
    texts = {
        "hosts": "\n".join(lines) + "\n",
        "resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for name, text in texts.items():
        own, target = f"{top}/{name}", os.path.realpath(f"/etc/{name}")
        with open(own, "w") as file:
            file.write(text)
        os.chmod(own, 0o644)
        if target.startswith("/run/"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w"):
                pass
        call("mount", own.encode(), target.encode(), None, ctypes.c_ulong(MS_BIND), None)
    return [service(path.replace("UID", str(os.geteuid()))) for paths in SERVICES.values() for path in paths[1:2]]


def service(path: str) -> socket.socket:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen(64)
    os.chmod(path, 0o777)  # noqa: S103  (as such sockets are)
    return made


def drop_capabilities() -> None:
    """Those over this world, for an ordinary user has none over the host."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())


# --- the attempts ------------------------------------------------------------------------------------------


def policy_of(box: str, bait: Bait, user: str, filtered: bool) -> Policy:
    network: dict[str, Any] = {"egress": box}
    if box == "allow":
        network["allow"] = ["good.example:80", *(f"{name}:*" for name, _address in REBINDING.values())]
    if box == names.BOX:
        network |= {"egress": "allow", "allow": [*LISTED, f"{names.ONE}:80", f"{names.TWO}:80"]}
    tree: dict[str, Any] = {
        "extends": "workspace-write", "mode": "auto", "network": network, "process": {"user": user},
        "syscalls": {"filter": "default" if filtered else "off"},
    }  # fmt: skip
    return parse_tree(tree, "the attacks")


def results(user: str, only: str = "") -> list[Result]:
    attempts = [
        each for each in batch.load(("names", "packets", "sockets")) if each.box in BOXES and only in each.name
    ]
    enter()
    with World() as world:
        services = configure(world.top)
        world.lay_rest()
        if os.geteuid() != 0:
            drop_capabilities()
        found = batch.try_all(attempts, user, world, world, policy_of)
        for each in services:
            each.close()
    return found


def main() -> None:
    try:
        print(json.dumps([each.as_dict() for each in results(*sys.argv[1:])]))
    except (OSError, StockadeError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        sys.exit(1)
    finally:
        keeperlink.end_keeper()


if __name__ == "__main__":
    main()
