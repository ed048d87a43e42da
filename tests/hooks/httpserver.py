"""An HTTPS server on loopback that notes what it is sent and answers by a script; for tests of HTTP handlers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "hook.example"
SECONDS = 20.0


def certificate(directory: str) -> str:
    """A key with a certificate for HOST, in one file; it is its own authority."""
    path = f"{directory}/server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", f"/CN={HOST}", "-days", "2", "-addext", f"subjectAltName=DNS:{HOST},DNS:other.example"]
    subprocess.run([*command, "-keyout", path, "-out", f"{path}.cert"], check=True, capture_output=True)
    with open(path, "a") as key, open(f"{path}.cert") as cert:
        key.write(cert.read())
    return path


def answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Server:
    """``replies`` maps a path to bytes, or to a function that writes to the connection."""

    def __init__(self, pem: str, address: str = "127.0.0.1") -> None:
        self.replies: dict[str, bytes | Callable[[ssl.SSLSocket], None]] = {}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        """Request line, headers in lower case, and body."""
        self.connections = 0
        self.release = threading.Event()
        """Set at the end: functions that hold an answer back wait for it."""
        self.pem = pem
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self._listening = socket.create_server((address, 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=f"{self.pem}.cert")

    def url(self, path: str = "/", host: str = HOST) -> str:
        return f"https://{host}:{self.port}{path}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _peer = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(SECONDS)
        secured = self._context.wrap_socket
        with contextlib.suppress(OSError), plain, secured(plain, server_side=True) as connection:
            line = self._receive(connection)
            reply = self.replies.get(line.split(" ")[1], answer())
            reply(connection) if callable(reply) else connection.sendall(reply)

    def _receive(self, connection: ssl.SSLSocket) -> str:
        with connection.makefile("rb") as file:
            line = file.readline().decode().strip()
            headers = {}
            while (field := file.readline().decode("latin-1").strip()) != "":
                name, _, value = field.partition(":")
                headers[name.lower()] = value.strip()
            self.requests.append((line, headers, file.read(int(headers.get("content-length", 0)))))
            return line

    def close(self) -> None:
        self.release.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(SECONDS)


@contextlib.contextmanager
def serving(directory: str) -> Iterator[Server]:
    server = Server(certificate(directory))
    try:
        yield server
    finally:
        server.close()
