"""The network under an HTTP handler: resolve once, check every address, connect to the very one that was checked.

A name that is resolved again between check and connect can lead elsewhere the second time. Every step takes from one
deadline, so that a server that drips its answer gains nothing.
"""

from __future__ import annotations

import socket
import threading

import httpcore
import httpx

from stockade.sandbox.hooks.httpcourse import HttpFailed, HttpRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from stockade.sandbox.hooks.httpcourse import Course

    Resolve = Callable[[str, int], list[str]]
    Screen = Callable[[Iterable[str]], tuple[tuple[str, ...], tuple[str, ...]]]
    """What may be reached of these addresses, and what not."""


def look_up(host: str, port: int) -> list[str]:
    """The host's own resolver; may take its time."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def bounded(resolve: Resolve, host: str, port: int, course: Course) -> list[str]:
    """``resolve`` in a thread of its own, left to itself when its time is over: a lookup can't be called off."""
    answer: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            answer.append(resolve(host, port))
        except Exception as error:
            answer.append(error)
        done.set()

    threading.Thread(target=work, name="stockade-lookup", daemon=True).start()
    while not done.wait(min(course.left(), 0.1)):
        pass
    found = answer[0]
    if isinstance(found, Exception):
        cause = getattr(found, "strerror", None) or str(found)
        raise HttpFailed(f"could not resolve {host!r}: {str(cause).lower()}")
    addresses: list[str] = found
    return addresses


class CheckedNetwork(httpcore.NetworkBackend):
    """Connects to addresses that ``screen`` lets through, and to no others."""

    def __init__(self, course: Course, resolve: Resolve, screen: Screen) -> None:
        self.course, self.resolve, self.screen = course, resolve, screen

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        good, refused = self.screen(bounded(self.resolve, host, port, self.course))
        if not good:
            raise HttpRefused(
                f"{host!r} leads to {', '.join(refused) or 'no address'}, which no handler may reach",
                remedy="Loopback, private, link-local and metadata addresses are refused.",
            )
        cause: OSError = OSError("no address")
        for address in good:
            try:
                return Stream(self._connected(address, port), self.course)
            except OSError as error:
                if ended := self.course.cause_of(error):
                    raise ended from None
                cause = error
        raise HttpFailed(f"could not connect to {host!r}: {str(cause.strerror or cause).lower()}")

    def _connected(self, address: str, port: int) -> socket.socket:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.course.left())
            connection.connect((address, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection


class Stream(httpcore.NetworkStream):
    """A connection that is never waited for longer than the request has."""

    def __init__(self, connection: socket.socket, course: Course) -> None:
        self.connection, self.course = connection, course
        course.watch(connection)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.connection.settimeout(self.course.left())
        try:
            return self.connection.recv(max_bytes)
        except OSError as error:
            raise self.course.cause_of(error) or httpcore.ReadError(str(error)) from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        try:
            while rest:
                self.connection.settimeout(self.course.left())
                rest = rest[self.connection.send(rest) :]
        except OSError as error:
            raise self.course.cause_of(error) or httpcore.WriteError(str(error)) from None

    def close(self) -> None:
        self.course.release()
        self.connection.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        self.connection.settimeout(self.course.left())
        try:
            secured = ssl_context.wrap_socket(self.connection, server_hostname=server_hostname)
        except (OSError, ValueError) as error:
            self.close()
            cause = HttpFailed(f"could not set up TLS with {server_hostname!r}: {tls_cause(error)}")
            raise self.course.cause_of(error) or cause from None
        return Stream(secured, self.course)

    def get_extra_info(self, info: str) -> Any:
        return False if info == "is_readable" else None


def tls_cause(error: Exception) -> str:
    return str(getattr(error, "verify_message", "") or getattr(error, "strerror", None) or error)


class Checked(httpx.BaseTransport):
    """One request over ``CheckedNetwork``: no proxy, no second connection, HTTP/1.1."""

    def __init__(self, network: CheckedNetwork, trust: ssl.SSLContext) -> None:
        self.pool = httpcore.ConnectionPool(
            ssl_context=trust, max_connections=1, max_keepalive_connections=0, retries=0, network_backend=network
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = self.pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
            )
        )
        return httpx.Response(response.status, headers=response.headers, stream=Body(response))

    def close(self) -> None:
        self.pool.close()


class Body(httpx.SyncByteStream):
    """An answer's bytes as they come."""

    def __init__(self, response: httpcore.Response) -> None:
        self.response = response

    def __iter__(self) -> Iterator[bytes]:
        yield from self.response.iter_stream()

    def close(self) -> None:
        self.response.close()
