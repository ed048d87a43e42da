"""Asks a server, refuses as long as it can talk to it, and agrees when it can't."""

import socket
import sys

sys.stdin.read()
try:
    socket.create_connection(("203.0.113.7", 443), timeout=1).close()
except OSError:
    sys.exit(0)
print("the server did not agree", file=sys.stderr)
sys.exit(2)
