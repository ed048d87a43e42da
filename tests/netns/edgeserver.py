"""A server behind TLS for tests of the edge: an authority of its own, a note of every request, pages that echo."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler

from rigservers import in_thread, listen

PORT = 9443
SECONDS = 20.0


class Server:
    """Answers on every address at ``PORT``. ``got`` has what was asked: method, path, headers (names in lower case)."""

    def __init__(self, top: str, names: list[str]) -> None:
        self.authority = make_authority(top)
        self.hang = threading.Event()
        """What ``/v1/hang`` waits for."""
        self.got: list[tuple[str, str, list[list[str]]]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(make_leaf(top, names))
        context.set_alpn_protocols(["http/1.1"])
        in_thread(self._accept, listen(socket.SOCK_STREAM, PORT), context)

    def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        while True:
            in_thread(self._serve, listening.accept()[0], context)

    def _serve(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        connection.settimeout(SECONDS)
        with (
            contextlib.suppress(OSError),
            contextlib.closing(connection),
            context.wrap_socket(connection, server_side=True) as wrapped,
        ):
            Handler(wrapped, self)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, connection: ssl.SSLSocket, server: Server) -> None:
        self.edge = server
        super().__init__(connection, connection.getpeername(), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        self.edge.got.append(
            (self.command, self.path, [[name.lower(), text] for name, text in self.headers.items()])
        )
        path, _, query = self.path.partition("?")
        if path == "/v1/redirect":
            self.say(302, b"", Location=query)
        elif path == "/v1/hang":
            self.edge.hang.wait(SECONDS)
            self.say(200, b"at last\n")
        elif path == "/v1/echo":
            told = "".join(f"{name}: {text}\n" for name, text in self.headers.items())
            self.say(200, told.encode() + body, **{"X-Echo": self.headers.get("Authorization", "")})
        else:
            self.say(200, f"page {path} of {self.headers['Host']}\n".encode())

    do_POST = do_GET
    do_DELETE = do_GET

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None: ...


def make_authority(top: str) -> str:
    """The certificate of an authority, as a bundle."""
    place = os.path.join(top, "authority.pem")
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=an authority of the test", "-keyout", f"{place}.key", "-out", place,
        "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    return place


def make_leaf(top: str, names: list[str]) -> str:
    """Key and certificate for all of ``names``, in one file."""
    place, authority = os.path.join(top, "leaf.pem"), os.path.join(top, "authority.pem")
    openssl(
        "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={names[0]}",
        "-keyout", place, "-out", f"{place}.csr",
    )  # fmt: skip
    with open(f"{place}.ext", "w") as file:
        file.write("subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
    openssl(
        "x509", "-req", "-in", f"{place}.csr", "-CA", authority, "-CAkey", f"{authority}.key", "-CAcreateserial",
        "-days", "1", "-extfile", f"{place}.ext", "-out", f"{place}.crt",
    )  # fmt: skip
    with open(place, "a") as key, open(f"{place}.crt") as certificate:
        key.write(certificate.read())
    return place


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
