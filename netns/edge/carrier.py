"""One connection of a program, carried by mitmproxy's connection handler on the socket that was passed (proxy only).

Bound to no port. The server is dialled at the one address that was given, when the first request may pass. Memory is
bounded by reading no further on one side than the other side takes. Counterpart: ``flows`` holds what is said to the
rules.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mitmproxy.options import Options
from mitmproxy.proxy import events, layers, mode_specs
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.server import LiveConnectionHandler
from OpenSSL import SSL

from stockade.netns.edge import ca
from stockade.netns.edge.bodies import Frames, Sent
from stockade.netns.edge.flows import EdgeHttpLayer, Visit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

HANDSHAKE_SECONDS, DIAL_SECONDS, STUCK_SECONDS, LAST_SECONDS = 10.0, 15.0, 600.0, 5.0
MOST_HELLO = 64 * 1024
MOST_WAITING, MOST_OF_SESSION = 4 << 20, 64 << 20
"""Bytes that wait inside the protocol layers for one side of a connection; and for all of its session, by equal shares."""
PIECE = 512
"""What a piece that waits costs beyond its bytes."""
FIRST_READ, LEAST_READ, MOST_READ = 8 * 1024, 1024, 65535
"""Bytes that are read at once: fewer where those before took long."""
LONG = 0.02
"""Seconds for what was read at once. What takes longer is paid for: its session rests as long as it took."""
NOBODY = ("0.0.0.0", 0)  # noqa: S104 an address for mitmproxy's records, which nobody reads
DEFAULTS: tuple[tuple[str, Any, Any], ...] = (
    ("connection_strategy", str, "lazy"),
    ("keep_host_header", bool, True),
    ("validate_inbound_headers", bool, True),
    ("normalize_outbound_headers", bool, True),
    ("http_connect_send_host_header", bool, True),
    ("store_streamed_bodies", bool, False),
    ("stream_large_bodies", str | None, None),
    ("body_size_limit", str | None, None),
    ("websocket", bool, False),
    ("rawtcp", bool, True),
    ("http2", bool, True),
    ("http3", bool, False),
    ("http2_ping_keepalive", int, 0),
    ("tcp_timeout", int, 600),
    ("udp_timeout", int, 20),
    ("proxy_debug", bool, False),
)


def make_options() -> Options:
    """The options that protocol layers ask for. Most are defined by parts of mitmproxy that are not used here."""
    options = Options()
    for name, kind, value in DEFAULTS:
        if name not in options:
            options.add_option(name, kind, value, "")
    options.update(**{name: value for name, _kind, value in DEFAULTS})
    return options


class Writer(asyncio.StreamWriter):
    """Counts, and knows no addresses."""

    count = 0

    def write(self, data: Any) -> None:
        self.count += len(data)
        super().write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return NOBODY if name in ("peername", "sockname") else default


class Reader:
    """Reads no more at once than its connection should, which is all that mitmproxy's handler asks of a reader."""

    def __init__(self, reader: asyncio.StreamReader, carrier: Carrier) -> None:
        self._reader, self._carrier = reader, carrier

    async def read(self, size: int) -> bytes:
        return await self._reader.read(min(size, self._carrier.at_once))


class Carrier(LiveConnectionHandler):  # type: ignore[misc]
    """Runs until either side is done."""

    def __init__(self, reader: asyncio.StreamReader, writer: Writer, options: Options, visit: Visit) -> None:
        super().__init__(reader, writer, options, mode_specs.ProxyMode.parse("regular"))
        self.visit = visit
        self.sent = 0
        self.http: EdgeHttpLayer | None = None
        self.at_once = FIRST_READ
        self._progress = asyncio.Event()
        self._cut = False
        place, server = visit.place, self.layer.context.server
        server.address, server.tls = (place.address, place.port), place.tls
        if place.tls:
            server.sni = place.host

    def abort(self) -> None:
        """Cut the connection. Nothing that its layers still want is done."""
        self._cut = True
        transport = self.transports.get(self.client)
        if transport is None:
            return
        if transport.handler is not None:
            transport.handler.cancel()
        elif transport.writer is not None:
            transport.writer.transport.abort()

    def stalled(self) -> None:
        """Cut the connection if nothing has come of it."""
        if not (self.client.tls_established if self.visit.place.tls else self.visit.asked):
            self.abort()

    # --- what mitmproxy calls

    async def handle_hook(self, hook: Any) -> None:
        """A fault here ends this connection, and no other."""
        try:
            if (answer := getattr(self, f"on_{hook.name}", None)) is not None:
                answer(*hook.args())
        except Exception:
            self.abort()

    def log(self, message: str, level: int = 0, exc_info: Any = None) -> None:
        """Nothing is logged. What comes with an exception left a layer in an unknown state."""
        if exc_info:
            self.abort()

    async def server_event(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived) and event.connection is self.client:
            self.sent += len(event.data)
        if not self._cut:
            began = time.thread_time()
            await super().server_event(event)
            self._paid(time.thread_time() - began)
        if self.visit.place.tls and not self.client.tls_established and self.sent > MOST_HELLO:
            self.abort()
        self._progress.set()

    async def handle_connection(self, connection: Any) -> None:
        transport = self.transports[connection]
        transport.reader = Reader(transport.reader, self)
        await super().handle_connection(connection)

    async def open_connection(self, command: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(
            DIAL_SECONDS, lambda: command.connection.connected or task.cancel()
        )
        try:
            await super().open_connection(command)
        finally:
            timer.cancel()

    async def drain_writers(self) -> None:
        """Wait until what was read is taken, also inside the protocol layers, and until it is this session's turn."""
        await super().drain_writers()
        await asyncio.sleep(max(0.0, self.visit.session.rests_until - time.monotonic()))
        transport = self.transports.get(self.client)
        upward = transport is not None and transport.handler is asyncio.current_task()
        most = min(MOST_WAITING, MOST_OF_SESSION // max(1, len(self.visit.session.connections)))
        while self.http is not None and waiting(self.http, upward=upward) > most:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), STUCK_SECONDS)
            except TimeoutError:
                self.abort()
                return

    def _paid(self, seconds: float) -> None:
        """Other sessions wait meanwhile: tiny frames, for one, take a thousand times as long as others."""
        session = self.visit.session
        if seconds > LONG:
            self.at_once = max(LEAST_READ, self.at_once // 2)
            session.rests_until = max(session.rests_until, time.monotonic()) + seconds
        elif seconds < LONG / 4:
            self.at_once = min(MOST_READ, self.at_once * 2)

    # --- hooks

    def on_next_layer(self, data: Any) -> None:
        context = data.context
        if not context.layers:
            data.layer = layers.modes.TransparentProxy(context)
        elif self.visit.place.tls and len(context.layers) == 1:
            data.layer = layers.ClientTLSLayer(context)
        else:
            data.layer = self.http = EdgeHttpLayer(context, HTTPMode.transparent)
            self.http.visit = self.visit

    def on_tls_clienthello(self, data: Any) -> None:
        name = (data.client_hello.sni or "").removesuffix(".").lower()
        if name != self.visit.place.host:
            self.abort()

    def on_tls_start_client(self, data: Any) -> None:
        data.ssl_conn = SSL.Connection(self.visit.session.authority.context(self.visit.place.host))
        data.ssl_conn.set_accept_state()

    def on_tls_start_server(self, data: Any) -> None:
        spoken = {b"h2": (b"h2", b"http/1.1"), b"http/1.1": (b"http/1.1",)}.get(self.client.alpn or b"", ())
        data.conn.sni = self.visit.place.host
        data.ssl_conn = ca.dial(self.visit.session.upstream, self.visit.place.host, spoken)

    def on_tls_failed_client(self, _data: Any) -> None:
        self.visit.failed("the program broke off TLS: it may not trust the certificate authority of this run")

    def on_server_connect(self, data: Any) -> None:
        place = self.visit.place
        if data.server.address != (place.address, place.port) or data.server.via or data.server.tls != place.tls:
            data.server.error = "another address"

    def on_requestheaders(self, flow: Any) -> None:
        self.visit.requestheaders(flow, multiplexed=self.client.alpn == b"h2")

    def on_request(self, flow: Any) -> None:
        self.visit.request(flow)

    def on_responseheaders(self, flow: Any) -> None:
        self.visit.responseheaders(flow)

    def on_response(self, flow: Any) -> None:
        self.visit.response(flow)

    def on_error(self, flow: Any) -> None:
        self.visit.error(flow)

    def on_tcp_start(self, _flow: Any) -> None:
        self.visit.frames, self.visit.sent = Frames(self.visit.session.masker), Sent()

    def on_tcp_message(self, flow: Any) -> None:
        message = flow.messages[-1]
        flow.messages.clear()
        way = self.visit.sent if message.from_client else self.visit.frames
        came, message.content = message.content, b""
        assert way is not None
        message.content = way.feed(came)


async def carry(sock: socket.socket, data: bytes, options: Options, visit: Visit) -> tuple[int, int]:
    """Carry one connection to its end. Bytes that came from the program, and that went to it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    if data:
        reader.feed_data(data)  # before the socket's own bytes can come
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _protocol = await loop.create_connection(lambda: protocol, sock=sock)
    writer = Writer(transport, protocol, reader, loop)
    carrier = Carrier(reader, writer, options, visit)
    visit.session.connections[visit.connection] = carrier.abort
    timer = loop.call_later(HANDSHAKE_SECONDS, carrier.stalled)
    try:
        await carrier.handle_client()
    finally:
        timer.cancel()
        visit.give_up()
        await close_within(writer, LAST_SECONDS)
    return carrier.sent, writer.count


async def close_within(writer: Writer, seconds: float) -> None:
    """What was written goes out, unless the program does not take it."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), seconds)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()  # the loop has to let go of the descriptor before its number is used again


def waiting(layer: EdgeHttpLayer, *, upward: bool) -> int:
    """About how many bytes wait for the server (``upward``) or for the program."""
    program = layer.connections.get(layer.context.client)
    if not upward:
        return _sent_later(program)
    total = sum(
        _cost(stream._paused_event_queue) for stream in layer.streams.values() if stream._paused_event_queue
    )
    if getattr(program, "state", None) == getattr(program, "wait", ""):
        total += len(program.buf) * (MOST_WAITING >> 16)  # a request that comes before its turn
    for connection, found in layer.connections.items():
        if connection is not layer.context.client:
            total += _sent_later(getattr(getattr(found, "child_layer", found), "child_layer", found))
    return total


def _sent_later(layer: Any) -> int:
    """What HTTP/2 keeps until the other side opens its window or takes another stream."""
    buffers = getattr(getattr(layer, "h2_conn", None), "stream_buffers", {})
    queued = getattr(layer, "stream_queue", {})
    return sum(map(_cost, buffers.values())) + sum(map(_cost, queued.values()))


def _cost(pieces: Any) -> int:
    return sum(len(getattr(each, "data", b"") or b"") + PIECE for each in pieces)
