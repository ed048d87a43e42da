"""A resolver with a made-up upstream and a thread that polls it; run as a program, in a namespace of its own.

    python dnsrig.py '{"rules": [...], "answers": {name: [address]}, "commands": [[argv], ...], "site": directory}'

prints what each command did, what was asked of the upstream, and the links that this namespace has.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager

from stockade.netns.names import load
from stockade.netns.resolver import NameEvent, Resolver
from stockade.netns.upstream import Lookup
from stockade.policies.hosts import parse_rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

SITE = "203.0.113.80"
SITE_PORT = 8000
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1


class Answers:
    """An upstream of which everything is known. While ``gate`` is not set, nobody gets an answer."""

    def __init__(self, answers: Mapping[str, Sequence[str] | Lookup]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.busy = self.most_busy = 0
        self._guard = threading.Lock()

    def lookup(self, name: str) -> Lookup:
        with self._guard:
            self.asked.append(name)
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        self.gate.wait(20)
        with self._guard:
            self.busy -= 1
        found = self.answers.get(name, Lookup(error="unknown"))
        return found if isinstance(found, Lookup) else Lookup(tuple(found))


class Rig:
    """A resolver on loopback, and everything it said: ``admitted`` and ``events``."""

    def __init__(
        self, answers: Mapping[str, Any], rules: Sequence[str] = (), port: int = 0, **options: Any
    ) -> None:
        self.upstream = Answers(answers)
        self.admitted: list[tuple[tuple[str, ...], tuple[str, ...], int]] = []
        self.events: list[NameEvent] = []
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", port))
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.bind(("127.0.0.1", port))
        tcp.listen(128)
        self.udp, self.tcp = udp.getsockname(), tcp.getsockname()
        options = {"kind": "allow", "admit": self.admit, "upstream": self.upstream, **options}
        parsed = [parse_rule(rule) for rule in rules]
        self.resolver = Resolver(udp, tcp, rules=parsed, record=self.events.append, **options)

    def admit(self, rules: Sequence[Any], _name: str, addresses: Sequence[str], seconds: int) -> None:
        self.admitted.append((tuple(rule.text for rule in rules), tuple(addresses), seconds))

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(event.name, event.type, event.outcome) for event in self.events]

    def step(self, wait: float = 0.0) -> None:
        """One round of the loop."""
        poll = select.poll()
        for fd, events in self.resolver.fds():
            poll.register(fd, events)
        for fd, events in poll.poll(min(wait, self.resolver.tick()) * 1000):
            self.resolver.handle(fd, events)

    @contextmanager
    def serving(self) -> Iterator[Rig]:
        """In a thread until the block ends; then closed."""
        over = threading.Event()

        def loop() -> None:
            load()
            while not over.is_set():
                self.step(0.02)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()
            self.upstream.gate.set()
            self.resolver.close()


# --- in a namespace of its own -----------------------------------------------------------------------------


def raise_loopback() -> None:
    """lo is up and has the address of the site, besides its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        address = struct.pack("hH4s8x", socket.AF_INET, 0, socket.inet_aton(SITE))
        fcntl.ioctl(sock, SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


def serve_site(directory: str) -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None: ...

    server = ThreadingHTTPServer((SITE, SITE_PORT), partial(Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main(job: dict[str, Any]) -> dict[str, Any]:
    raise_loopback()
    serve_site(job["site"])
    rig = Rig(job["answers"], job["rules"], port=53)
    done = []
    with rig.serving():
        for argv in job["commands"]:
            before = len(rig.events)
            ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
            events = [[event.name, event.type, event.outcome] for event in rig.events[before:]]
            done.append({"code": ran.returncode, "text": ran.stdout + ran.stderr, "events": events})
    links = [name for _, name in socket.if_nameindex()]
    return {"done": done, "asked": rig.upstream.asked, "admitted": rig.admitted, "links": links}


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
    sys.stdout.flush()
    os._exit(0)
