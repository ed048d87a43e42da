"""A relay on 127.0.0.1 whose connections are meant for a server of the test's, and what they are judged by."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from stockade.netns import relay as module
from stockade.netns.namecheck import Decision, judge
from stockade.netns.relay import Relay
from stockade.policies.hosts import parse_rule

SECONDS = 30.0
NAMES = ("a.example", "b.example", "unasked.example")


class Running:
    """A relay with a poll loop of its own in a thread, as the service's; ``target`` is where everything was meant to go."""

    def __init__(
        self, target=None, *, rules=NAMES, edges=(), kind="allow", leads=None, free=(), still=False, **options
    ):
        self.events, self.again, self.handed = [], [], []
        self.ahead = 0.0
        self.began = time.monotonic() if still else None
        self.target = target
        self.rules = [parse_rule(f"{each}:*") for each in rules]
        self.edges, self.kind = edges, kind
        self.leads = leads or (lambda name, _address: name != "unasked.example")
        self.free = free
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        self.place = listening.getsockname()
        self.relay = Relay(
            listening,
            judge=self._judge,
            check_again=self._check_again,
            record=self.events.append,
            first_without_name=lambda address, port: (address, port) in self.free,
            **{
                "destination": lambda sock: self.target or sock.getsockname(),
                "clock": self.now,
                "transform": self._take,
            }
            | options,
        )
        self._wake_read, self._wake = os.pipe()
        self._stopping = False
        self._turned = threading.Condition()
        self.error = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def now(self):
        return (time.monotonic() if self.began is None else self.began) + self.ahead

    def pass_time(self, seconds):
        self.ahead += seconds
        os.write(self._wake, b"t")

    def connect(self, data=b""):
        client = socket.create_connection(self.place, timeout=SECONDS)
        try:
            client.sendall(data)
        except OSError:  # refused already
            client.close()
            raise
        return client

    def event(self, count=1):
        """The ``count``-th event, once it is there."""
        self.until(lambda: len(self.events) >= count)
        return self.events[count - 1]

    def until(self, done):
        end = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < end, f"still waiting, after {self.events}"
            assert self.error is None, self.error
            with self._turned:
                self._turned.wait(0.005)  # what is waited for may also happen elsewhere

    def stop_turning(self):
        """End the poll loop: what is there stays as it is."""
        self._stopping = True
        os.write(self._wake, b"s")
        self.thread.join()

    def stop(self):
        self.stop_turning()
        self.relay.close()
        os.close(self._wake)
        os.close(self._wake_read)
        for client in self.handed:
            client[0].close()
        assert self.error is None, self.error

    def _judge(self, opening, address, port):
        return judge(opening, address, port, rules=self.rules, edges=self.edges, leads=self.leads, kind=self.kind)

    def _check_again(self, name, address, port):
        self.again.append((name, address, port))
        from stockade.netns.namecheck import Opening

        found = self._judge(Opening("http", name), address, port)
        return found.reason if found.action != "pass" else ""

    def _take(self, client, data, decision: Decision, address, port):
        self.handed.append((client, data, decision, address, port))

    def _run(self):
        try:
            while not self._stopping:
                self.relay.tick(self.now())
                left = self.relay.timeout(self.now())
                poll = select.poll()
                poll.register(self._wake_read, select.POLLIN)
                owned = dict(self.relay.fds())
                for fd, events in owned.items():
                    poll.register(fd, events)
                for fd, events in poll.poll(None if left is None else left * 1000 + 1):
                    if fd in owned:
                        self.relay.handle(fd, events)
                    else:
                        os.read(fd, 100)
                with self._turned:
                    self._turned.notify_all()
        except BaseException as error:
            self.error = error


class Server:
    """Listens on 127.0.0.1; ``serve(connection)`` is called in a thread for each."""

    def __init__(self, serve):
        self.serve = serve
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(1024)
        self.place = self.listening.getsockname()
        self.accepted = 0
        self.closed = threading.Event()
        self.connections = []
        self.threads = []
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    def _accept(self):
        while not self.closed.is_set():
            try:
                connection, _peer = self.listening.accept()
            except OSError:  # closed, or no descriptor is left
                self.closed.wait(0.01)
                continue
            connection.settimeout(SECONDS)
            self.accepted += 1
            self.connections.append(connection)
            self.threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self.threads[-1].start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            self.serve(connection)

    def close(self):
        self.closed.set()
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listening.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


@contextlib.contextmanager
def relayed(serve, **options):
    """A relay before a server; both with ``.event``, ``.connect``."""
    server = Server(serve)
    running = None
    kept = module.never_dialled
    module.never_dialled = lambda _address: False
    try:
        running = Running(server.place, **options)
        running.server = server
        yield running
    finally:
        if running:
            running.stop()
        server.close()
        module.never_dialled = kept


def all_of(connection):
    """Until the other end has said all."""
    found = bytearray()
    while piece := connection.recv(1 << 20):
        found += piece
    return bytes(found)
