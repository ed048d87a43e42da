"""HTTP/2 for the tests of the edge, run under the edge's own interpreter, which has the ``h2`` library.

client PORT HOST CA   JSON on standard input: requests, sent one after the other; JSON on standard output: answers
server FD CERT KEY    serves the listening socket until it is killed
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.events


def pump(connection, sock):
    """Events of what comes next; None at the end."""
    sock.sendall(connection.data_to_send())
    data = sock.recv(65536)
    return connection.receive_data(data) if data else None


def texts(headers):
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


class Answer:
    def __init__(self):
        self.headers, self.trailers, self.body, self.reset, self.over = [], [], b"", None, False

    def take(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            self.headers = texts(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers = texts(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.body += event.data
        elif isinstance(event, h2.events.StreamReset):
            self.reset, self.over = int(event.error_code), True
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.reset, self.over = -1, True
        elif isinstance(event, h2.events.StreamEnded):
            self.over = True

    def plain(self):
        shown = {"headers": self.headers, "trailers": self.trailers, "reset": self.reset}
        return {**shown, "body": self.body.decode("latin-1"), "status": dict(self.headers).get(":status")}


def ask(connection, sock, wanted):
    stream, answer = connection.get_next_available_stream_id(), Answer()
    body, trailers = wanted.get("body", "").encode("latin-1"), wanted.get("trailers")
    connection.send_headers(stream, wanted["headers"], end_stream=not body and not trailers)
    if body:
        connection.send_data(stream, body, end_stream=not trailers)
    if trailers:
        connection.send_headers(stream, trailers, end_stream=True)
    while not answer.over:
        events = pump(connection, sock)
        if events is None:
            answer.reset, answer.over = -2, True
        for event in events or ():
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            answer.take(event)
    return answer.plain()


def client(port, host, bundle):
    context = ssl.create_default_context(cafile=bundle)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(socket.create_connection(("127.0.0.1", int(port))), server_hostname=host) as sock:
        sock.settimeout(20)
        assert sock.selected_alpn_protocol() == "h2"
        loose = {"validate_outbound_headers": False, "normalize_outbound_headers": False}
        connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None, **loose))
        connection.initiate_connection()
        json.dump([ask(connection, sock, wanted) for wanted in json.load(sys.stdin)], sys.stdout)


def server(descriptor, certificate, key):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    listening = socket.socket(fileno=int(descriptor))
    while True:
        accepted = listening.accept()[0]
        try:
            with context.wrap_socket(accepted, server_side=True) as sock:
                serve(sock)
        except OSError:
            continue


def serve(sock):
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    requests = {}
    while True:
        events = pump(connection, sock)
        if events is None:
            return
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                requests[event.stream_id] = [dict(map(tuple, texts(event.headers))), b""]
            elif isinstance(event, h2.events.DataReceived):
                requests[event.stream_id][1] += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                answer(connection, sock, event.stream_id, *requests.pop(event.stream_id))


def answer(connection, sock, stream, headers, body):
    secret = headers.get("authorization", "").encode("latin-1")
    kind = headers[":path"]
    told = {**headers, "authorization": hashlib.sha256(secret).hexdigest(), "body": body.decode("latin-1")}
    head = [(":status", "200"), ("x-echo", secret), ("content-type", "text/plain")]
    if kind == "/split":
        connection.send_headers(stream, head)
        for at in range(len(secret)):
            connection.send_data(stream, secret[at : at + 1])
            connection.send_data(stream, b"")
            sock.sendall(connection.data_to_send())
        connection.end_stream(stream)
    elif kind == "/trailers":
        connection.send_headers(stream, head)
        connection.send_data(stream, b"body")
        connection.send_headers(stream, [("x-trailer", secret)], end_stream=True)
    else:
        connection.send_headers(stream, head)
        connection.send_data(stream, json.dumps(told).encode(), end_stream=True)


if __name__ == "__main__":
    {"client": client, "server": server}[sys.argv[1]](*sys.argv[2:])
