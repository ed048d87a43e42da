"""A host made of a dictionary, and records to plan with: what the tests of pure files share."""

from __future__ import annotations

import os

from stockade.policies.resolved import Resolved
from stockade.sandbox.bwrap import OPTIONAL_OPTIONS, Bwrap
from stockade.sandbox.request import Request
from stockade.sandbox.survey import Facts
from stockade.sandbox.tree import Node

DIR, FILE, SOCKET, OTHER = (
    Node("dir", 0o755, 0),
    Node("file", 0o644, 0),
    Node("socket", 0o666, 0),
    Node("other", 0o666, 0),
)


class FakeTree:
    """Paths and what they are: a ``Node``, a text (a file that holds it), or ``("link", target)``.

    Directories above what is listed exist by themselves.
    """

    def __init__(self, entries):
        self.texts = {path: what for path, what in entries.items() if isinstance(what, str)}
        self.links = {path: what[1] for path, what in entries.items() if type(what) is tuple}
        self.nodes = {path: what for path, what in entries.items() if isinstance(what, Node)}
        self.nodes |= dict.fromkeys(self.texts, FILE)
        self.nodes |= dict.fromkeys(self.links, Node("link", 0o777, 0))
        for path in list(self.nodes):
            while path != "/":
                path = os.path.dirname(path)
                self.nodes.setdefault(path, DIR)

    def node(self, path):
        """What a name is; links above it are followed, as the kernel does."""
        parent, name = os.path.split(path)
        return self.nodes.get(path if path == "/" else os.path.join(self.real(parent), name))

    def may_read(self, path):
        """As Ann: uid 1000, in no group of interest."""
        node = self.node(path)
        return node is not None and bool(node.mode & (0o500 if node.uid == 1000 else 0o005))

    def readlink(self, path):
        parent, name = os.path.split(path)
        return self.links[os.path.join(self.real(parent), name)]

    def names(self, path):
        top = self.real(path)
        return sorted(os.path.basename(each) for each in self.nodes if each != "/" and os.path.dirname(each) == top)

    def real(self, path):
        at, waiting, followed = "/", path.split("/")[::-1], 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            step = os.path.dirname(at) if part == ".." else os.path.join(at, part)
            target = self.links.get(step)
            if target is None or followed > 40:
                at = step
                continue
            followed += 1
            at = "/" if target.startswith("/") else at
            waiting += target.split("/")[::-1]
        return at

    def text(self, path):
        return self.texts.get(self.real(path), "")


def link(target):
    return "link", target


PASSWD = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann:/home/ann:/bin/bash\n"

HOST = {
    "/bin": link("usr/bin"),
    "/lib": link("usr/lib"),
    "/lib64": link("usr/lib64"),
    "/usr/bin/env": FILE,
    "/usr/lib/x86_64-linux-gnu": DIR,
    "/usr/lib64": DIR,
    "/usr/local/bin": DIR,
    "/etc/passwd": PASSWD,
    "/etc/shadow": Node("file", 0o640, 0),
    "/etc/group": FILE,
    "/etc/hosts": FILE,
    "/etc/ld.so.cache": FILE,
    "/etc/resolv.conf": link("../run/systemd/resolve/stub-resolv.conf"),
    "/etc/ssl/certs": DIR,
    "/etc/ssl/private": Node("dir", 0o710, 0),
    "/etc/ssh/ssh_host_ed25519_key": Node("file", 0o600, 0),
    "/etc/ssh/ssh_host_ed25519_key.pub": FILE,
    "/etc/localtime": link("/usr/share/zoneinfo/UTC"),
    "/usr/share/zoneinfo/UTC": FILE,
    "/var/lib/docker": Node("dir", 0o710, 0),
    "/var/log": DIR,
    "/var/run": link("/run"),
    "/opt/tool": DIR,
    "/srv/project/src/main.py": FILE,
    "/srv/project/.git/config": FILE,
    "/srv/project/.git/hooks": DIR,
    "/srv/project/.env": FILE,
    "/sys/devices/system": DIR,
    "/proc": DIR,
    "/dev/null": OTHER,
    "/tmp": DIR,
    "/run/systemd/resolve/stub-resolv.conf": FILE,
    "/run/docker.sock": SOCKET,
    "/home/ann/.pyenv/shims": DIR,
    "/home/ann/.ssh/id_ed25519": Node("file", 0o600, 1000),
    "/initrd.img": link("boot/initrd.img-6"),
}
"""A small host of a user Ann with a project, a version manager and secrets."""


def tree(**more):
    """``HOST``, and more: keyword arguments can't spell paths, so pass ``tree(**{"/x": DIR})``."""
    return FakeTree({**HOST, **more})


BASE = Resolved(
    name="read-only",
    mode=None,
    root="host",
    workspace="read-only",
    write=(),
    read=(),
    hide=("**/.env*",),
    protect=(".git/hooks", ".git/config", ".claude"),
    home="empty",
    toolchains="auto",
    env_pass=("LANG", "LC_*", "TERM", "TZ"),
    env_set=(),
    egress="none",
    allow=(),
    private=False,
    connector="auto",
    timeout=None,
    cpu=None,
    memory=2 << 30,
    processes=256,
    file_size=1 << 30,
    tmp=512 << 20,
    output=1 << 20,
    open_files=1024,
    syscalls="default",
    user="auto",
    origin=(("filesystem.read", "options"), ("filesystem.write", "options")),
)


def policy(**changes):
    return BASE.replace(**changes)


def request(*argv, cwd="/srv/project", env=()):
    return Request(argv or ("true",), cwd, tuple(env))


BWRAP = Bwrap("/usr/bin/bwrap", OPTIONAL_OPTIONS)

FACTS = Facts(
    uid=1000,
    gid=1000,
    user="ann",
    home="/home/ann",
    workspace="/srv/project",
    path=("/home/ann/.pyenv/shims", "/usr/local/bin", "/usr/bin", "/bin"),
    environ=(("LANG", "C.UTF-8"), ("LC_ALL", "C"), ("SECRET", "sk-1"), ("TERM", "xterm")),
    credentials=None,
    kept_root=False,
    fresh_proc=True,
    bwrap=BWRAP,
    sockets=("/run/docker.sock",),
    hidden=("/srv/project/.env",),
    own_state=("/home/ann/.cache/stockade", "/home/ann/.config/stockade"),
)


def facts(**changes):
    return FACTS.replace(**changes)
