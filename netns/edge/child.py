"""The proxy's process: started as a program, its end of the link as descriptor 0, bound to no port.

It imports everything, gives up every right it has, and only then hears of rules and secrets. It writes no file, logs
nothing, and ends when the link does. Runs under an interpreter of its own: of this project it needs ``policies.hosts``,
``policies.edge``, ``policies.record`` and this package. Counterpart: ``netns.edge.link``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import socket
    from typing import Any

LINK = 0
NOBODY = 65534
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
MOST_BUNDLE = 16 << 20
MOST_QUEUED = 100_000
LAST_SECONDS = 1.5
RESERVED = 64
"""Descriptors that connections may not take: others want to be opened too."""
NO_ROOM = "the proxy has too many open files"


def find_package() -> None:
    """Make ``stockade`` importable, and nothing that may lie beside it: it belongs to another interpreter."""
    import importlib.util

    place = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.path.join(place, "__init__.py")
    spec = importlib.util.spec_from_file_location("stockade", path, submodule_search_locations=[place])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["stockade"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def silence() -> int:
    """Take the link to a descriptor of its own; nothing is read from or written to the standard ones again."""
    import logging
    import warnings

    link = os.dup(LINK)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    logging.disable(logging.CRITICAL)
    logging.raiseExceptions = False
    warnings.simplefilter("ignore")
    sys.excepthook = lambda *_details: None
    sys.unraisablehook = lambda _details: None
    return link


def give_up_rights() -> None:
    """No dumps, no new privileges, and of root nothing. Every import has to be done."""
    import ctypes
    import resource

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError("no new privileges is not to be had")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.chdir("/")
    if os.geteuid() == 0 and is_mapped(NOBODY):
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:  # last: a change of user sets it anew
        raise OSError("memory can't be kept from others")


def is_mapped(user: int) -> bool:
    """Whether this user namespace has ``user``; the real root does."""
    with open("/proc/self/uid_map") as file:
        rows = [[int(word) for word in line.split()] for line in file]
    return any(first <= user < first + length for first, _outside, length in rows)


class Server:
    """The proxy's end of the link: sessions, and the connections that are handed in."""

    def __init__(self, sock: socket.socket) -> None:
        import collections

        from stockade.netns.edge.carrier import make_options

        self.sock = sock
        self.options = make_options()
        self.sessions: dict[int, Any] = {}
        self.tasks: dict[int, set[asyncio.Task[None]]] = {}
        self.closing: set[asyncio.Task[None]] = set()
        self.contexts: dict[bytes, Any] = {}
        self.queue: collections.deque[bytes] = collections.deque()

    async def serve(self) -> None:
        """Until the link is closed."""
        import asyncio

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        over = loop.create_future()
        self.sock.setblocking(False)
        loop.add_reader(self.sock, self._read, over)
        await over

    def _read(self, over: asyncio.Future[None]) -> None:
        import json
        import socket

        from stockade.netns.edge.messages import LARGEST

        try:
            data, descriptors, _flags, _peer = socket.recv_fds(self.sock, LARGEST, 4)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            os._exit(0)
        try:
            self._hear(json.loads(data), descriptors)
        except Exception:  # noqa: S110 a message that can't be followed is not followed
            pass
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _hear(self, message: dict[str, Any], descriptors: list[int]) -> None:
        import asyncio
        import socket

        kind, number = message["type"], int(message["session"])
        if kind in ("open", "take") and not descriptors:  # the kernel drops one that there is no room for
            self._refuse(kind, number, message)
        elif kind == "open":
            self._open(number, message, descriptors)
        elif kind == "take":
            sock = socket.socket(fileno=os.dup(descriptors[0]))
            task = asyncio.get_running_loop().create_task(self._take(number, message, sock))
            tasks = self.tasks.setdefault(number, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        elif kind == "close":
            closing = asyncio.get_running_loop().create_task(self._close(number))
            self.closing.add(closing)
            closing.add_done_callback(self.closing.discard)

    def _refuse(self, kind: str, number: int, message: dict[str, Any]) -> None:
        """What was asked for is told to be impossible: nobody has to wait for it."""
        from stockade.netns.edge.heads import Place
        from stockade.netns.edge.session import Pending

        if kind == "open":
            self.send("failed", session=number, cause=NO_ROOM)
            return
        session, connection = self.sessions.get(number), int(message["connection"])
        if session is not None:
            place = Place(message["host"], message["address"], message["port"], message["tls"])
            pending = Pending(session, connection, place)
            pending.reason = NO_ROOM
            pending.tell()
        self.send("ended", session=number, connection=connection, sent=0, received=0)

    def _open(self, number: int, message: dict[str, Any], descriptors: list[int]) -> None:
        from stockade.netns.edge.session import Session
        from stockade.policies.errors import PolicyError

        def told(**fields: Any) -> None:
            self.send("request", session=number, **fields)

        try:
            session = Session(message, self._context(descriptors[0]), told)
        except (ValueError, PolicyError) as error:
            text = error.message if isinstance(error, PolicyError) else str(error)
            return self.send("failed", session=number, cause=text)
        except Exception:
            return self.send("failed", session=number, cause="the session can't be made")
        self.sessions[number] = session
        return self.send("opened", session=number, ca=session.authority.pem)

    def _context(self, descriptor: int) -> Any:
        """What verifies servers; the same for the same certificates."""
        import hashlib

        from stockade.netns.edge.ca import client_context

        with open(os.dup(descriptor), "rb") as file:
            bundle = file.read(MOST_BUNDLE)
        key = hashlib.sha256(bundle).digest()
        if key not in self.contexts:
            self.contexts[key] = client_context(bundle)
        return self.contexts[key]

    async def _take(self, number: int, message: dict[str, Any], sock: socket.socket) -> None:
        import base64

        from stockade.netns.edge.carrier import carry
        from stockade.netns.edge.flows import Visit
        from stockade.netns.edge.heads import Place
        from stockade.netns.edge.session import Pending

        session, connection = self.sessions.get(number), int(message["connection"])
        sent = received = 0
        try:
            sock.setblocking(False)
            if session is None:
                return
            place = Place(message["host"], message["address"], message["port"], message["tls"])
            if fault := self._full(session):
                pending = Pending(session, connection, place)
                pending.reason = fault
                pending.tell()
                return
            session.connections[connection] = sock.close
            data = base64.b64decode(message["data"])
            sent, received = await carry(sock, data, self.options, Visit(session, connection, place))
        except Exception:  # noqa: S110 the connection is over, the others go on
            pass
        finally:
            sock.close()
            if session is not None:
                session.connections.pop(connection, None)
            self.send("ended", session=number, connection=connection, sent=sent, received=received)

    def _full(self, session: Any) -> str:
        """Why the session can't have one more connection; empty if it can. All together have two descriptors each."""
        import resource

        from stockade.netns.edge.session import MOST_CONNECTIONS

        if len(session.connections) >= MOST_CONNECTIONS:
            return f"more than {MOST_CONNECTIONS} connections at one time"
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        taken = sum(len(each.connections) for each in self.sessions.values())
        return NO_ROOM if most != resource.RLIM_INFINITY and 2 * taken + 2 + RESERVED > most else ""

    async def _close(self, number: int) -> None:
        import asyncio

        session = self.sessions.pop(number, None)
        for cut in list(session.connections.values()) if session is not None else []:
            cut()
        tasks = self.tasks.pop(number, set())
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=LAST_SECONDS)
            for task in late:
                task.cancel()
        self.send("closed", session=number)

    def send(self, kind: str, **fields: Any) -> None:
        """Say it as soon as there is room."""
        import asyncio

        from stockade.netns.edge.messages import write_message

        self.queue.append(write_message(kind, **fields))
        if len(self.queue) == 1:
            asyncio.get_running_loop().add_writer(self.sock, self._write)
        elif len(self.queue) > MOST_QUEUED:
            os._exit(1)

    def _write(self) -> None:
        import asyncio

        try:
            while self.queue:
                self.sock.send(self.queue[0])
                self.queue.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            os._exit(0)
        asyncio.get_running_loop().remove_writer(self.sock)


def main() -> None:
    """Never returns."""
    os.environ.clear()
    link = silence()
    find_package()
    import asyncio
    import signal
    import socket

    from stockade.netns.edge import flows
    from stockade.netns.edge.warm import warm_up

    flows.bound_http1()
    warm_up()
    give_up_rights()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the supervisor says when it is over
    try:
        asyncio.run(Server(socket.socket(fileno=link)).serve())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
