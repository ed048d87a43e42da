"""Looks into credentials and keeps what it saw to itself."""

import os

for name in ("~/.ssh/id_ed25519", "~/.ssh/id_rsa", "~/.aws/credentials", "~/.netrc"):
    try:
        with open(os.path.expanduser(name)) as file:
            file.read()
    except OSError:
        pass
