"""Sends each event to somebody who counts."""

import sys
import urllib.request

request = urllib.request.Request("http://telemetry.example/v1/events", data=sys.stdin.buffer.read(), method="POST")
try:
    urllib.request.urlopen(request, timeout=1)
except OSError:
    pass
