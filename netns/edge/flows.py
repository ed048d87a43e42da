"""mitmproxy's protocol layers, held to the rules of a session (proxy only).

mitmproxy carries TLS, HTTP/1, HTTP/2 and the translation between them. Here every request is judged before anything
of it is sent, bodies are only ever passed through, answers are masked, and no text of the other side or of an error
reaches the program unchecked. Counterparts: ``heads`` and ``bodies`` decide, ``carrier`` moves the bytes.
"""

from __future__ import annotations

from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream, SendHttp, _http1
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestHeaders,
    ResponseData,
    ResponseHeaders,
    ResponseProtocolError,
)

from stockade.netns.edge.bodies import Body, Frames, Sent, accept_of, without_interim
from stockade.netns.edge.heads import TOO_LARGE, Asked, Going, Place, answer_fault, content_codings, judge_head
from stockade.netns.edge.rules import Refused
from stockade.netns.edge.session import Pending, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

MOST_HEAD = 64 * 1024
"""Bytes of the head of a message in HTTP/1; in HTTP/2 the library has about the same bound."""
GONE = "the connection was closed before the answer was complete"
BAD_ANSWER = "from server, refusing"
"""In mitmproxy's words for an answer whose head is faulty."""
BUSY = Refused(503, "too many requests of this run wait for their answers")
CONTINUE, BAD_REQUEST, BAD_GATEWAY = 100, 400, 502
FRAMING = (b"content-length", b"transfer-encoding")
"""Headers of which mitmproxy has made sure that they hold a number and the word ``chunked``."""


class Told(str):
    """A reason in our own words, which may be shown."""

    __slots__ = ()


class Visit:
    """What is known of one connection of a program: its session, where it leads, its requests that are not over."""

    def __init__(self, session: Session, connection: int, place: Place) -> None:
        self.session, self.connection, self.place = session, connection, place
        self.pending: dict[str, Pending] = {}
        self.frames: Frames | None = None
        self.sent: Sent | None = None
        self.asked = False
        """Whether the head of a request has come, or what went wrong before is recorded."""

    def requestheaders(self, flow: http.HTTPFlow, *, multiplexed: bool) -> None:
        """Judge a request, and make of it what may be sent; or answer it here."""
        self.asked = True
        pending = self.pending[flow.id] = Pending(self.session, self.connection, self.place)
        asked = read_asked(flow.request, multiplexed=multiplexed)
        pending.method, pending.target = asked.method, asked.target
        if flow.error:
            pending.reason, pending.status = "the request is not valid HTTP", BAD_REQUEST
            return
        verdict: Going | Refused = BUSY
        if pending.cost(sum(len(name) + len(value) for name, value in asked.headers) + len(asked.target)):
            verdict = judge_head(asked, self.session.rules, self.session.values, self.place)
        if isinstance(verdict, Refused):
            pending.reason = verdict.reason
            flow.request.headers.pop("expect", None)
            flow.response = refusal(verdict, asked)
            return
        write_going(flow.request, verdict)
        pending.transformed, pending.upgrade = bool(self.session.values[verdict.index]), verdict.upgrade

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Mask the head of an answer, and see to it that its body is masked as it passes."""
        response, pending = flow.response, self.pending[flow.id]
        assert response is not None
        pending.status = response.status_code
        if pending.reason:
            return
        pairs = latin(response.headers.fields)
        coding = "".join(content_codings(pairs))
        mask = self.session.masker.bytes
        response.data.reason = printable(mask(response.data.reason))
        fields = [
            (mask(name), value if name.lower() in FRAMING else mask(one_line(value)))
            for name, value in response.headers.fields
        ]
        response.headers.fields = tuple(fields if not coding else without_length(fields, flow))
        response.stream = Body(self.session.masker, coding)

    def response(self, flow: http.HTTPFlow) -> None:
        """An answer is complete but for its trailers."""
        response = flow.response
        assert response is not None
        mask = self.session.masker.bytes
        if response.trailers:
            response.trailers.fields = tuple((mask(name), mask(value)) for name, value in response.trailers.fields)
        pending = self.pending.pop(flow.id, None)
        if pending is None:
            return
        body = response.stream
        pending.status = response.status_code
        pending.size = body.size if isinstance(body, Body) else len(response.raw_content or b"")
        pending.tell()

    def request(self, flow: http.HTTPFlow) -> None:
        """A request's body is over. Nothing that may stand in a head is left to trailers."""
        flow.request.trailers = None

    def error(self, flow: http.HTTPFlow) -> None:
        """A request came to nothing."""
        pending = self.pending.pop(flow.id, None)
        if pending is None:
            return
        message = flow.error.msg if flow.error else ""
        if pending.status is None and BAD_ANSWER in message:
            pending.status = BAD_GATEWAY
        if flow.response is not None and isinstance(flow.response.stream, Body):
            pending.size = flow.response.stream.size
        pending.reason = pending.reason or (self.words if BAD_ANSWER in message else program_words)(message)
        pending.tell()

    def failed(self, reason: str) -> None:
        """Nothing was asked."""
        self.asked = True
        pending = Pending(self.session, self.connection, self.place)
        pending.reason = reason
        pending.tell()

    def give_up(self) -> None:
        """The connection is over."""
        if not self.asked:
            self.failed("no request came that is valid HTTP")
        for pending in self.pending.values():
            pending.reason = pending.reason or GONE
            pending.tell()
        self.pending.clear()

    def words(self, message: str) -> Told:
        """Why an answer failed, without a byte of the other side."""
        if isinstance(message, Told):
            return message
        mark = "Certificate verify failed: "
        host = self.place.host
        if message.startswith(mark):
            cause = "".join(
                letter for letter in message[len(mark) :][:100] if letter.isalnum() or letter in " -'.,"
            )
            return Told(f"the certificate of {host} was refused: {cause}")
        if any(mark in message for mark in ("HTTP/", "HTTP response", "server response", BAD_ANSWER)):
            return Told(f"the answer of {host} is not valid HTTP")
        return Told(f"the connection to {host} failed")


def program_words(message: str) -> Told:
    """Why a request failed on the side of the program."""
    if isinstance(message, Told):
        return message
    return Told("the request is not valid HTTP" if "protocol error" in message else GONE)


class EdgeStream(HttpStream):  # type: ignore[misc]
    """One request and its answer."""

    visit: Visit

    def state_wait_for_request_headers(self, event: Any) -> Generator[Any, Any, None]:
        """A request that was refused is answered at once; what it still sends is dropped, not kept."""
        yield from super().state_wait_for_request_headers(event)
        waits: Any = self.client_state
        if self.flow.response is not None and waits == self.state_consume_request_body:
            self.client_state: Any = self.state_errored
            self.visit.responseheaders(self.flow)
            yield from self.send_response()
            yield from self.flow_done()

    def start_request_stream(self) -> Generator[Any, Any, None]:
        """A body without a length, which HTTP/2 allows, is sent in chunks where the server speaks HTTP/1."""
        steps, reply = super().start_request_stream(), None
        while True:
            try:
                command = steps.send(reply)
            except StopIteration:
                return
            if isinstance(command, SendHttp) and isinstance(command.event, RequestHeaders):
                self._frame(command)
            reply = yield command

    def state_wait_for_response_headers(self, event: Any) -> Generator[Any, Any, None]:
        """An answer that can't be looked into is none."""
        fault = self._answer_fault(event)
        if fault:
            yield commands.CloseConnection(self.flow.server_conn)
            error = ResponseProtocolError(self.stream_id, Told(fault), ResponseProtocolError.code)
            yield from self.handle_protocol_error(error)
        else:
            yield from super().state_wait_for_response_headers(event)

    def state_stream_request_body(self, event: Any) -> Generator[Any, Any, None]:
        """An empty piece, which HTTP/2 knows, would end a chunked body twice."""
        if not isinstance(event, RequestData) or event.data:
            yield from super().state_stream_request_body(event)

    def state_stream_response_body(self, event: Any) -> Generator[Any, Any, None]:
        """An empty piece would be taken for the end, and what is held back would be let go."""
        if not isinstance(event, ResponseData) or event.data:
            yield from super().state_stream_response_body(event)

    def handle_protocol_error(self, event: Any) -> Generator[Any, Any, None]:
        """Only our own words go on."""
        of_server = isinstance(event, ResponseProtocolError)
        event.message = (self.visit.words if of_server else program_words)(event.message)
        pending = self.visit.pending.get(self.flow.id)
        if pending is not None and of_server:
            pending.status = pending.status or BAD_GATEWAY
        yield from super().handle_protocol_error(event)

    def _answer_fault(self, event: ResponseHeaders) -> str:
        pending = self.visit.pending.get(self.flow.id)
        if pending is None:
            return GONE
        response = event.response
        if self.context.server.alpn != b"h2":
            response.http_version = "HTTP/1.1"
        if fault := answer_fault(response.status_code, latin(response.headers.fields), upgrade=pending.upgrade):
            return fault
        wanted = accept_of(self.flow.request.headers.get("sec-websocket-key", ""))
        if response.status_code == 101 and response.headers.get("sec-websocket-accept", "") != wanted:
            return "the server did not agree to a websocket as it should"
        return ""

    def _frame(self, command: SendHttp) -> None:
        request = command.event.request
        if command.connection.alpn == b"h2" or not request.is_http2 or "content-length" in request.headers:
            return
        framed = request.copy()
        framed.headers["transfer-encoding"] = "chunked"
        command.event = RequestHeaders(self.stream_id, framed, end_stream=False)


class EdgeHttpLayer(HttpLayer):  # type: ignore[misc]
    """All requests of one connection."""

    visit: Visit

    def make_stream(self, stream_id: int) -> Generator[Any, Any, None]:
        """As the layer's own, with our kind of stream."""
        stream = self.streams[stream_id] = EdgeStream(self.context.fork(), stream_id)
        stream.visit = self.visit
        yield from self.event_to_child(stream, events.Start())

    def event_to_child(self, child: Any, event: Any) -> Generator[Any, Any, None]:
        """Also the way of errors to the program."""
        if isinstance(event, ResponseProtocolError):
            event.message = self.visit.words(event.message)
        yield from super().event_to_child(child, event)


class Trailerless(_http1.ChunkedReader):  # type: ignore[misc]
    """Chunks, all that are there as one: how small they are is the other side's choice, and each is worked on.

    Trailers, which mitmproxy can't pass on in HTTP/1, are left out, as the protocol allows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next: Any = None

    def __call__(self, buffer: Any) -> Any:
        pieces: list[bytes] = []
        event, self._next = self._next, None
        event = event or self._read(buffer)
        while isinstance(event, _http1.h11.Data):
            pieces.append(bytes(event.data))
            event = self._read(buffer)
        if pieces:
            self._next = event
            return _http1.h11.Data(data=b"".join(pieces))
        if isinstance(event, Exception):
            raise event
        return event

    def _read(self, buffer: Any) -> Any:
        """One chunk, the end, or what is wrong with what came."""
        try:
            event = super().__call__(buffer)
        except _http1.h11.ProtocolError as error:
            return error
        return _http1.h11.EndOfMessage() if isinstance(event, _http1.h11.EndOfMessage) else event


def bound_http1() -> None:
    """Give mitmproxy's HTTP/1 the bounds that it lacks. Called once, before any connection."""
    reader_for, handle = _http1.make_body_reader, _http1.Http1Connection._handle_event

    def make_body_reader(expected_size: int | None) -> Any:
        return Trailerless() if expected_size is None else reader_for(expected_size)

    def handle_bounded(self: Any, event: Any) -> Generator[Any, Any, None]:
        if (
            self.state == self.read_headers
            and isinstance(event, events.DataReceived)
            and self.conn is not self.context.client
        ):
            kept = self.buf.maybe_extract_at_most(len(self.buf)) or b""
            event = events.DataReceived(event.connection, without_interim(bytes(kept) + event.data))
        yield from handle(self, event)
        if self.state in (self.read_headers, self.read_body) and len(self.buf) > MOST_HEAD:
            if self.state == self.read_headers and self.conn is self.context.client:
                yield commands.SendData(self.conn, _http1.make_error_response(TOO_LARGE, "the head is too large"))
            yield commands.CloseConnection(self.conn)
            if self.stream_id:
                kind = self.ReceiveProtocolError
                yield ReceiveHttp(kind(self.stream_id, "HTTP/1 protocol error: head too large", kind.code))
            self.state = self.done
        if (response := getattr(self, "response", None)) is not None and response.status_code == CONTINUE:
            self.response = None  # or an error that comes later would not be told to the program

    _http1.make_body_reader = make_body_reader
    _http1.Http1Connection._handle_event = handle_bounded


def read_asked(request: http.Request, *, multiplexed: bool) -> Asked:
    """The head of a request as plain data."""
    data = request.data
    texts = [each.decode("latin-1") for each in (data.http_version, data.method, data.path, data.authority)]
    return Asked(texts[0], texts[1], texts[2], texts[3], latin(request.headers.fields), multiplexed)


def write_going(request: http.Request, going: Going) -> None:
    """Make ``request`` what may be sent. Its body is passed through."""
    expects = [(b"expect", b"100-continue")] if going.expects else []  # mitmproxy answers it, and takes it out
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in going.headers]
    request.headers.fields = (*fields, *expects)
    request.data.authority = going.authority.encode("latin-1")
    request.stream = True


def refusal(refused: Refused, asked: Asked) -> http.Response:
    """The answer to a request that may not pass."""
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
    if not asked.multiplexed:
        headers["Connection"] = "close"
    text = "" if asked.method.upper() == "HEAD" else f"stockade: {refused.reason}\n"
    return http.Response.make(refused.status, text.encode(), headers)


def latin(fields: Any) -> tuple[tuple[str, str], ...]:
    """Headers as text."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)


def one_line(value: bytes) -> bytes:
    """A header's value; a folded one is unfolded."""
    return b" ".join(value.replace(b"\0", b" ").splitlines()) if any(each < 32 for each in value) else value


def printable(reason: bytes) -> bytes:
    """The text of a status line."""
    return bytes(each if 32 <= each < 127 else 63 for each in reason)


def without_length(fields: list[tuple[bytes, bytes]], flow: http.HTTPFlow) -> list[tuple[bytes, bytes]]:
    """The headers of an answer whose body is decoded here."""
    dropped = (b"content-length", b"content-encoding", b"transfer-encoding")
    kept = [pair for pair in fields if pair[0].lower() not in dropped]
    bodiless = flow.request.method == "HEAD" or flow.response.status_code in (204, 304)
    if bodiless or flow.response.is_http2 or flow.request.http_version == "HTTP/1.0":
        return kept
    return [*kept, (b"Transfer-Encoding", b"chunked")]
