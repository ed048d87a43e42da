"""What a probe in a box can do: source text that is put before the test's own, for an interpreter without packages.

A probe fills ``found``. Each of these answers with what came back, or the name of the errno that refused it.
"""

from __future__ import annotations

import textwrap

PRELUDE = '''
import ctypes, errno, fcntl, json, os, socket, struct, sys
found = {}

def tried(act, *arguments):
    try:
        made = act(*arguments)
    except OSError as error:
        return named(error)
    if isinstance(made, socket.socket):
        made.close()
    return "ok"

def named(error):
    if isinstance(error, socket.gaierror):
        return {-2: "EAI_NONAME", -3: "EAI_AGAIN", -5: "EAI_NODATA", -4: "EAI_FAIL"}.get(error.errno, str(error))
    if isinstance(error, TimeoutError):
        return "timeout"
    return errno.errorcode.get(error.errno, str(error))

def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET

def http(address, port=80, host=None, path="/", wait=10):
    """The last line of what a server says."""
    try:
        with socket.create_connection((address, port), wait) as made:
            made.sendall(f"GET {path} HTTP/1.0\\r\\nHost: {host or address}\\r\\n\\r\\n".encode())
            return b"".join(iter(lambda: made.recv(65536), b"")).decode().strip().rpartition("\\n")[2]
    except OSError as error:
        return named(error)

def tcp(address, port=80, wait=10):
    return tried(socket.create_connection, (address, port), wait)

def udp(address, port, data=b"ping", wait=10, connected=True):
    try:
        with socket.socket(family(address), socket.SOCK_DGRAM) as made:
            made.settimeout(wait)
            if connected:
                made.connect((address, port))
                made.send(data)
            else:
                made.sendto(data, (address, port))
            return made.recv(65535).decode("latin-1")
    except OSError as error:
        return named(error)

def query(name, kind=1, number=7):
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split(".") if each)
    return struct.pack("!6H", number, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, 1)

def ask(name, kind=1, server="127.0.0.1", port=53, stream=False, wait=10):
    """rcode, number of answers and the addresses among them, of the server that is asked."""
    wire = query(name, kind)
    try:
        with socket.socket(family(server), socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as made:
            made.settimeout(wait)
            made.connect((server, port))
            made.sendall(struct.pack("!H", len(wire)) + wire if stream else wire)
            answer = made.recv(65535)
            while stream and (len(answer) < 2 or len(answer) < 2 + struct.unpack("!H", answer[:2])[0]):
                more = made.recv(65535)
                if not more:
                    return "ended"
                answer += more
            answer = answer[2:] if stream else answer
    except OSError as error:
        return named(error)
    return read(answer, len(wire))

def read(answer, start):
    count, addresses, ttl = struct.unpack("!H", answer[6:8])[0], [], None
    same = answer[12:start].decode("latin-1")
    for _ in range(count):
        while answer[start] and answer[start] < 0xC0:
            start += 1 + answer[start]
        start += 2 if answer[start] else 1
        kind, _class, ttl, size = struct.unpack("!HHIH", answer[start : start + 10])
        if size in (4, 16):
            packed = answer[start + 10 : start + 10 + size]
            addresses.append(socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, packed))
        start += 10 + size
    return {"rcode": answer[3] & 15, "answers": count, "addresses": addresses, "ttl": ttl, "question": same}

def lookup(name, kind=socket.AF_INET):
    """What the C library finds."""
    try:
        return [each[4][0] for each in socket.getaddrinfo(name, None, kind, socket.SOCK_STREAM)]
    except OSError as error:
        return named(error)
'''


def command(python: str, body: str, *arguments: object) -> list[str]:
    """Prints what the probe found, as JSON."""
    return [python, "-I", "-S", "-c", source(body), *map(str, arguments)]


def source(body: str) -> str:
    return PRELUDE + textwrap.dedent(body) + "\nprint(json.dumps(found))\n"
