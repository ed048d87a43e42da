"""A world for tests of whole leased runs: every address answers, every packet is seen, and nothing leaves it.

    found = rig.run(scenario, identity)      in a test: the function runs in a process in a world of its own
    def scenario(world): ...                 there; what it returns comes back as JSON

The world is a private network and mount namespace (below a user namespace, for an ordinary user) in which every
address is local to ``lo``, with servers on all of them, a name server that logs what it is asked, and /etc/hosts,
/etc/resolv.conf and /etc/nsswitch.conf of its own. The product runs in there whole, so that its connector dials
into this world: a leak meets a server, and is on the wire.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import rulesrig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rigservers import Outside, Wire

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
SECONDS = 60
ROOT = os.geteuid() == 0
IDENTITIES = ["dropped", "kept"] if ROOT else ["user", "mapped"]
"""``dropped``: root's run takes an unprivileged uid; ``kept``: it stays root; ``user``: an ordinary user;
``mapped``: one who is uid 0 of a user namespace, as in a rootless container."""
FIRST = IDENTITIES[:1]
BY_PASTA = [f"{each}, pasta" for each in IDENTITIES]
"""The same with the other connector."""
USERS = {"dropped": "unprivileged", "kept": "caller"}
GOOD, EVIL = "203.0.113.80", "203.0.113.66"
"""Where good.example is, and an address that nothing leads to."""
SITES = ("one.example", "two.example")
"""Servers with certificates of the rig's own authority (``world.authority``, a file)."""
HERE = pathlib.Path(__file__).parent
BOOT = "import sys; sys.path[:0] = sys.argv[1:3]; import rig; rig.main()"

libc = ctypes.CDLL(None, use_errno=True)


# --- in a test ---------------------------------------------------------------------------------------------


def run(scenario: Callable[..., object], identity: str, *arguments: object) -> Any:
    """What ``scenario(world, *arguments)`` returned. An AssertionError with its traceback if it failed."""
    with tempfile.TemporaryDirectory(prefix="stockade-rig-") as top:
        os.chmod(top, 0o755)
        answer = os.path.join(top, "answer")
        job = [inspect.getfile(scenario), scenario.__name__, identity, top, json.dumps(arguments)]
        argv = [sys.executable, "-c", BOOT, str(HERE), str(HERE.parent.parent)]
        done = subprocess.run(
            [*argv, *job], cwd=top, env=environment(top), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{scenario.__name__} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        with open(answer) as file:
            return json.load(file)


def environment(top: str) -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    home = os.path.join(top, "home")
    return {"HOME": home, "PATH": path, "LANG": "C.UTF-8", "XDG_CACHE_HOME": os.path.join(top, "cache")}


def plain_python() -> str:
    """An interpreter that every box shows: the one under /usr."""
    own = os.path.realpath(sys.executable)
    return own if own.startswith("/usr/") else str(shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"))


def egress_of(found: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    """The attempts on record that are like ``wanted``."""
    return [each for each in found["egress"] if all(each[name] == value for name, value in wanted.items())]


def denied(found: dict[str, Any], subject: str) -> list[dict[str, Any]]:
    """The observed network denials of one subject."""
    return [
        each
        for each in found["denials"]
        if (each["kind"], each["certainty"], each["subject"]) == ("network", "observed", subject)
    ]


# --- the world ---------------------------------------------------------------------------------------------


def main() -> None:
    _file, _here, _root, module, name, identity, top, arguments = sys.argv
    identity, _comma, connector = identity.partition(", ")
    for directory in ("home", "cache", "place", "authority"):
        os.mkdir(os.path.join(top, directory))
    os.chmod(os.path.join(top, "place"), 0o777)
    enter(identity)
    world = World(identity, top, connector or "auto")
    scenario = getattr(load(module), name)
    answer = scenario(world, *json.loads(arguments))
    world.end()
    assert not world.outside.broken, world.outside.broken
    with open(os.path.join(top, "answer"), "w") as file:
        json.dump(answer, file)


def load(path: str) -> object:
    spec = importlib.util.spec_from_file_location("scenarios", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class World:
    """What a scenario works with."""

    outside: Outside
    wire: Wire

    def __init__(self, identity: str, top: str, connector: str) -> None:
        from rigservers import Outside, Wire, make_authority, make_certificate

        self.identity, self.top, self.connector = identity, top, connector
        self.place = os.path.join(top, "place")
        self.wire, self.outside = Wire(), Outside()
        self.authority = os.path.join(top, "authority", "ca.pem")
        self.outside.start(make_certificate(os.path.join(top, "key")), make_authority(self.authority, SITES))
        self.zone, self.pages = self.outside.zone, self.outside.pages
        self.zone["good.example"] = [f"A {GOOD}"]
        self.mounted: list[str] = []
        self.configure("resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
        self.configure("hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
        self.configure("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
        if identity == "user":
            drop_capabilities()

    def configure(self, name: str, text: str) -> None:
        """What a file of /etc says in this world; one that was given here before can be changed at any time."""
        own = os.path.join(self.top, name)
        with open(own, "w") as file:
            file.write(text)
        if name not in self.mounted:
            target = os.path.realpath(f"/etc/{name}")
            check(libc.mount(own.encode(), target.encode(), None, MS_BIND, None), f"mount {target}")
            self.mounted.append(name)

    def policy(self, egress: str, allow: Sequence[str] = (), **sections: dict[str, object]) -> object:
        from stockade.policies.model import parse_tree

        network: dict[str, object] = {"egress": egress, "connector": self.connector, **sections.pop("network", {})}
        if allow:
            network["allow"] = list(allow)
        tree: dict[str, object] = {"extends": "workspace-write", "network": network, **sections}
        tree["process"] = {"user": USERS.get(self.identity, "auto")}
        return parse_tree(tree, "a test")

    def run(
        self, command: Sequence[str] | str, egress: str = "allow", allow: Sequence[str] = (), **options: Any
    ) -> Any:
        """One run and what was seen of it: its result, and from outside ``wire``, ``asked`` and ``served``."""
        import stockade

        names = ("network", "filesystem", "limits", "environment", "syscalls")
        sections = {name: options.pop(name) for name in names if name in options}
        policy = options.pop("policy", None) or self.policy(egress, allow, **sections)
        self.seen()
        result = stockade.run(command, **{"policy": policy, "cwd": self.place, "timeout": 60, **options})
        return {**brief(result), **self.seen()}

    def probe(self, body: str, *arguments: object, **options: Any) -> Any:
        """``run`` for a probe (see ``rigprobe``); what it found is ``found``."""
        from rigprobe import command

        seen = self.run(command(plain_python(), body, *arguments), **options)
        assert (seen["outcome"], seen["code"]) == ("exited", 0), seen
        return {**seen, "found": json.loads(seen["stdout"])}

    def seen(self) -> dict[str, Any]:
        wire = self.wire.take()
        asked, self.outside.asked = self.outside.asked, []
        served, self.outside.served = self.outside.served, []
        greeted, self.outside.greeted = self.outside.greeted, []
        return {"wire": wire, "asked": asked, "served": served, "greeted": greeted}

    def end(self) -> None:
        """Sees the keeper off, and with it every process of the product."""
        from stockade.sandbox import keeperlink

        keeperlink.end_keeper()


def brief(result: Any) -> dict[str, Any]:
    document = result.to_json()
    wanted = (
        "outcome",
        "reason",
        "started",
        "stdout",
        "stderr",
        "egress",
        "denials",
        "notes",
        "enforcement",
        "rule",
    )
    found = {name: document[name] for name in wanted}
    dropped = document["egress_dropped"]
    return {**found, "code": document["exit_code"], "dropped": dropped and dropped["packets"]}


# --- namespaces --------------------------------------------------------------------------------------------


def enter(identity: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    own = 0 if ROOT else CLONE_NEWUSER
    check(libc.unshare(own | CLONE_NEWNS | CLONE_NEWNET), "unshare")
    if own:
        inside = (0, 0) if identity == "mapped" else (uid, gid)
        write("setgroups", "deny")
        write("uid_map", f"{inside[0]} {uid} 1")
        write("gid_map", f"{inside[1]} {gid} 1")
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    rulesrig.link_up("lo")
    rulesrig.make_local()


def write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


def drop_capabilities() -> None:
    """Those of this thread over the world: an ordinary user has none."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
