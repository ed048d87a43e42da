"""The real proxy, servers with certificates of a test authority, and programs that speak through it byte by byte."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

from stockade.netns.edge.interpreter import child_argv
from stockade.netns.edge.link import EdgeProxy

SECRET = 'k9/+="Zq7&x~wLongEnough'
BEARER = f"Bearer {SECRET}"
BASIC = "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode()
SECONDS = 20
H2 = Path(__file__).with_name("edgeh2.py")


# --- certificates ------------------------------------------------------------------------------------------


class Certificates:
    """An authority, and certificates of it or not of it, made with the openssl program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = str(folder / "ca.pem")
        names = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        self._openssl("req", "-x509", *names, "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem")

    def leaf(self, name: str, hosts: str, *, days: int = 2, signed: bool = True) -> tuple[str, str]:
        """Paths of a certificate and its key."""
        key, request, cert = (f"{name}.{end}" for end in ("key", "csr", "crt"))
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={hosts}\n")
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
        self._openssl("req", "-new", *new, "-keyout", key, "-out", request)
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"] if signed else ["-signkey", key]
        self._openssl(
            "x509", "-req", "-in", request, *signer, "-days", str(days), "-extfile", f"{name}.ext", "-out", cert
        )
        return str(self.folder / cert), str(self.folder / key)

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)


# --- servers -----------------------------------------------------------------------------------------------


class Server:
    """``answer`` makes of head and body what is sent back: bytes, pieces sent one by one, or something that is
    called with the connection and has it for itself from then on."""

    def __init__(self, files: tuple[str, str] | None) -> None:
        self.context = None
        if files is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*files)
        self.answer = echo
        self.seen: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listening.getsockname()[1]
        in_thread(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                in_thread(self._serve, self.listening.accept()[0])

    def _serve(self, sock: socket.socket) -> None:
        self.connections += 1
        sock.settimeout(SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ValueError), contextlib.closing(sock):
            if self.context is not None:
                sock = self.context.wrap_socket(sock, server_side=True)
            with sock, sock.makefile("rb") as file:
                while head := read_head(file):
                    body = read_body(file, head)
                    self.seen.append((head, body))
                    made = self.answer(head, body)
                    if callable(made):
                        made(sock, file)
                        return
                    for piece in [made] if isinstance(made, bytes) else made:
                        sock.sendall(piece)


def read_head(file) -> bytes:
    lines = []
    while (line := file.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join(lines)


def read_body(file, head: bytes) -> bytes:
    fields = fields_of(head)
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        file.readline()
        return body
    return file.read(int(fields.get(b"content-length", b"0")))


def fields_of(head: bytes) -> dict[bytes, bytes]:
    return {
        name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.splitlines()[1:])
    }


def reply(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines))
    return head.encode("latin-1") + b"\r\n" + body


def echo(head: bytes, body: bytes) -> bytes:
    return reply(head + b"\n" + body)


# --- the proxy ---------------------------------------------------------------------------------------------


class Edge:
    """A proxy of its own, with what is needed to use it."""

    def __init__(self, python: str) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen(child_argv(python), stdin=theirs, env={}, **nowhere)
        self.python = python
        self.proxy = EdgeProxy(own)

    def close(self) -> int:
        self.proxy.close()
        return self.process.wait(SECONDS)


def rule(
    host: str, port: int, *, scheme="https", methods=(), paths=(), headers=(("Authorization", BEARER),)
) -> dict:
    head = {"host": f"{host}:{port}", "scheme": scheme, "methods": list(methods), "paths": list(paths)}
    return {**head, "headers": [list(pair) for pair in headers]}


class Reply:
    """An answer, and every byte that came."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.head, _, rest = raw.partition(b"\r\n\r\n")
        self.fields = fields_of(self.head)
        self.status = int(self.head.split(b" ")[1]) if self.head.startswith(b"HTTP/") else None
        self.body = rest
        self.whole = True
        if self.fields.get(b"transfer-encoding") == b"chunked":
            self.body, self.whole = unchunk(rest)


def unchunk(data: bytes) -> tuple[bytes, bool]:
    """What the chunks hold, and whether they came to their end, with nothing behind it."""
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return out, data == b"\r\n"
        out, data = out + data[:length], data[length + 2 :]
    return out, False


def unframe(data: bytes) -> list[tuple[int, bytes]]:
    """Frames of a websocket's server: messages put together again, and control frames, in the order of their ends."""
    found, kind, parts = [], 0, b""
    while data:
        opcode, final, short = data[0] & 15, data[0] & 128, data[1]
        assert short < 128
        extra = {126: 2, 127: 8}.get(short, 0)
        length = int.from_bytes(data[2 : 2 + extra], "big") if extra else short
        payload, data = data[2 + extra : 2 + extra + length], data[2 + extra + length :]
        assert len(payload) == length
        if opcode >= 8:
            found.append((opcode, payload))
            continue
        assert bool(opcode) != bool(kind), "the first frame of a message names its kind, and no other"
        kind, parts = opcode or kind, parts + payload
        if final:
            found.append((kind, parts))
            kind, parts = 0, b""
    return found


class Program:
    """The far end of a connection that was handed to the proxy."""

    def __init__(self, session, server: Server | int, host: str, *, tls=True, alpn=(), ca=None, data=b"") -> None:
        self.sock, given = socket.socketpair()
        self.sock.settimeout(SECONDS)
        port = server if isinstance(server, int) else server.port
        place = {"host": host, "address": "127.0.0.1", "port": port, "tls": tls}
        self.number = session.take(given, data, **place, began=time.monotonic())
        if tls and not data:
            context = ssl.create_default_context(cadata=ca or session.ca)
            if alpn:
                context.set_alpn_protocols(list(alpn))
            try:
                self.sock = context.wrap_socket(self.sock, server_hostname=host)
            except BaseException:
                self.sock.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_details) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read_all(self) -> bytes:
        data = b""
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            while piece := self.sock.recv(65536):
                data += piece
        return data

    def read_until(self, mark: bytes) -> bytes:
        data = b""
        while mark not in data:
            piece = self.sock.recv(65536)
            assert piece, data
            data += piece
        return data


def ask(session, server: Server, host: str, raw: bytes, **options) -> Reply:
    """One request, which says that it is the last of its connection, and all that comes back."""
    with Program(session, server, host, **options) as program:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            program.send(raw)
        return Reply(program.read_all())


def get(target: str, host: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    """A request that is the last of its connection."""
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "".join(f"{line}\r\n" for line in head).encode("latin-1") + b"\r\n" + body


class Forwarder:
    """A port whose connections are handed to the proxy, for programs that want an address."""

    def __init__(self, session, host: str, port: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self._give = lambda sock: session.take(
            sock, b"", host=host, address="127.0.0.1", port=port, tls=True, began=time.monotonic()
        )
        in_thread(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_details) -> None:
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._give(self.listening.accept()[0])


def leaks(data: bytes, secret: str = SECRET) -> list[bytes]:
    """Forms of the secret, computed here and not by what is tried, that stand in ``data``."""
    raw = secret.encode()
    wanted = {
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(secret).encode(),
        quote(secret, safe="").encode(),
    }
    wanted |= {quote(secret, safe="").lower().encode(), raw.replace(b'"', b'\\"'), raw[: len(raw) // 2 + 1]}
    for before in (b"", b"x", b"xx"):
        text = base64.b64encode(before + raw)
        wanted |= {text[4:-4], text[4:-4].replace(b"+", b"-").replace(b"/", b"_")}
    return [each for each in wanted if each in data]


def until(condition) -> None:
    """Wait for what other threads and processes do."""
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.005)


def in_thread(function, *values) -> None:
    threading.Thread(target=function, args=values, daemon=True).start()


def descriptors_of(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
