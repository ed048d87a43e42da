"""What policy texts may grant at most: a second reading of the rules, small, slow and obvious.

Written from the documentation (keys, presets, layers, the project's own file), and not from the code that it checks:
it imports nothing of stockade. Where the product grants less than this, nothing is said.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import tomllib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

BASE: dict[str, Any] = {
    "filesystem.root": "host",
    "filesystem.workspace": "read-only",
    "filesystem.write": [],
    "filesystem.read": [],
    "filesystem.hide": ["**/.env*"],
    "filesystem.protect": [
        ".git/hooks", ".git/config", ".claude", ".codex", ".cursor", ".agents", ".gemini", ".envrc", ".vscode",
        ".stockade.toml",
    ],
    "filesystem.home": "empty",
    "filesystem.toolchains": "auto",
    "environment.pass": ["LANG", "LC_*", "TERM", "TZ"],
    "environment.set": {},
    "network.egress": "none",
    "network.allow": [],
    "network.private": False,
    "network.check": "auto",
    "network.edge": [],
    "network.mask_queries": False,
    "network.connector": "auto",
    "limits.timeout": "none",
    "limits.cpu": "none",
    "limits.memory": "2G",
    "limits.processes": 256,
    "limits.file_size": "1G",
    "limits.tmp": "512M",
    "limits.output": "1M",
    "limits.open_files": 1024,
    "syscalls.filter": "default",
    "process.user": "auto",
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "read-only": {},
    "workspace-write": {"filesystem.workspace": "read-write"},
    "hook": {"limits.timeout": "10s"},
    "build": {
        "filesystem.workspace": "read-write", "limits.memory": "8G", "limits.processes": 2048,
        "limits.file_size": "8G", "limits.tmp": "4G", "limits.open_files": 4096,
    },
    "full-access": {"mode": "off"},
}  # fmt: skip
WIDE_TO_NARROW: dict[str, list[Any]] = {
    "mode": ["off", None, "auto", "strict"],
    "filesystem.root": ["host", "minimal"],
    "filesystem.workspace": ["read-write", "overlay", "read-only", "none"],
    "filesystem.toolchains": ["auto", "none"],
    "network.egress": ["open", "allow", "record", "none"],
    "network.private": [True, False],
    "network.check": ["address", "auto", "name"],
    "network.mask_queries": [False, True],
    "syscalls.filter": ["off", "default", "strict"],
    "process.user": ["caller", "auto", "unprivileged"],
}
CHECKS = WIDE_TO_NARROW["network.check"]
EDGE_KEYS = {"host", "scheme", "methods", "paths", "headers"}
OF_A_CONNECTION = [
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive", "expect",
    "accept-encoding", "http2-settings",
]  # fmt: skip
CONNECTORS = ["auto", "slirp4netns", "pasta"]
LISTS = [key for key, value in BASE.items() if isinstance(value, list)]
PATHS = ["filesystem.write", "filesystem.read"]
SET_FOR_EVERY_RUN = ["HOME", "USER", "LOGNAME", "PATH", "SHELL"]
METADATA = ["169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"]
SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZES = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Refused(Exception):
    """The texts grant nothing: no run may follow from them."""


class Said:
    """One layer: its kind, what it says (by dotted key), and where its relative paths start."""

    def __init__(self, kind: str, values: Mapping[str, Any], folder: str) -> None:
        self.kind, self.values, self.folder = kind, dict(values), folder


# --- reading -----------------------------------------------------------------------------------------------


def read(text: str | bytes) -> dict[str, Any]:
    """What a policy file says, by dotted key."""
    try:
        tree = tomllib.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        raise Refused("not TOML") from None
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            values.update({f"{name}.{key}": each for key, each in value.items()})
        else:
            values[name] = value
    return values


def of_preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise Refused(f"no preset {name}")
    return {**BASE, **PRESETS[name]}


def check(key: str, value: Any) -> None:
    """A key that nobody knows, a value that is none of its own."""
    if key in WIDE_TO_NARROW:
        legal = [each for each in WIDE_TO_NARROW[key] if each is not None]
        if not any(value is each or (value == each and isinstance(value, str)) for each in legal):
            raise Refused(f"{key} is {value!r}")
    elif key == "network.connector":
        if value not in CONNECTORS:
            raise Refused(f"{key} is {value!r}")
    elif key.startswith("limits.") and key in BASE:
        amount(key, value)
    elif key == "network.edge":
        if not isinstance(value, list):
            raise Refused(f"{key} is no list")
        for each in value:
            edge_entry(each)
    elif key in LISTS:
        texts = (
            [entry_text(each) if key == "network.allow" else each for each in value]
            if isinstance(value, list)
            else [0]
        )
        if not all(isinstance(each, str) for each in texts):
            raise Refused(f"{key} is no list of texts")
        for each in texts:
            checked_entry(key, each)
    elif key == "environment.set":
        if not isinstance(value, dict) or not all(
            isinstance(each, str) and "\0" not in each for each in value.values()
        ):
            raise Refused(f"{key} is no table of texts")
    elif key == "filesystem.home":
        if not isinstance(value, str):
            raise Refused("home is no text")
        checked_path(value)
    else:
        raise Refused(f"there is no key {key}")


def checked_entry(key: str, text: str) -> None:
    if key == "network.allow":
        destination(text)
    elif key != "environment.pass":
        checked_path(text)
    elif text in ("", "*"):
        raise Refused("every variable")


def checked_path(text: str) -> None:
    if not text or "\0" in text or ".." in text.split("/") or (text.startswith("/") and not text.strip("/.")):
        raise Refused(f"the path {text!r}")


def amount(key: str, value: Any) -> float:
    """A limit as a number; none is infinite."""
    if value == "none":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Refused(f"{key} is {value!r}")
    if not isinstance(value, str):
        if not value > 0 or (isinstance(value, float) and key not in ("limits.timeout", "limits.cpu")):
            raise Refused(f"{key} is {value!r}")
        return float(min(value, 10**30))
    if key in ("limits.timeout", "limits.cpu"):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", value)
        if found:
            return float(found[1]) * SECONDS[found[2]]
    elif key not in ("limits.processes", "limits.open_files"):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
        if found:
            return float(found[1]) * 2 ** SIZES[found[2].upper()]
    raise Refused(f"{key} is {value!r}")


# --- hosts -------------------------------------------------------------------------------------------------


class Destination:
    """One entry of network.allow."""

    check: str | None = None

    def __init__(self, protocol: str, name: str, any_below: bool, network: Any, low: int, high: int) -> None:
        self.protocol, self.name, self.any_below, self.network = protocol, name, any_below, network
        self.low, self.high = low, high

    def checked(self, otherwise: str) -> str:
        """What is looked at, where ``network.check`` says ``otherwise``."""
        return "address" if self.network is not None or self.protocol == "udp" else self.check or otherwise

    def reaches(self, protocol: str, port: int, *, name: str = "", address: Address | None = None) -> bool:
        if protocol != self.protocol or not self.low <= port <= self.high:
            return False
        if address is not None:
            return self.network is not None and address in self.network
        if self.network is not None:
            return False
        return name.endswith("." + self.name) and name != "." + self.name if self.any_below else name == self.name


def entry_text(value: Any) -> Any:
    """An entry of network.allow that is a table, as a text."""
    if not isinstance(value, dict):
        return value
    if not set(value) <= {"host", "check"} or not isinstance(value.get("host"), str):
        raise Refused(f"the entry {value!r}")
    return f"{value['host']} check={value['check']}" if "check" in value else value["host"]


def destination(text: str) -> Destination:
    """``[udp://] name | *.name | address | range [:port | :low-high | :*] [ check=KIND]``."""
    plain, said, kind = text.partition(" check=")
    found = unchecked(plain)
    if said:
        if kind not in CHECKS or found.checked(kind) != kind:
            raise Refused(f"the check {kind!r}")
        found.check = kind
    return found


def loosest(entries: Iterable[Destination], check: str, protocol: str, port: int, **where: Any) -> int:
    """How a destination is checked by that of the entries that asks least; more than any where none reaches it."""
    kinds = [CHECKS.index(each.checked(check)) for each in entries if each.reaches(protocol, port, **where)]
    return min(kinds, default=len(CHECKS))


def edge_entry(value: Any) -> tuple[Any, ...]:
    """One table of network.edge in a form that compares."""
    if not isinstance(value, dict) or not set(value) <= EDGE_KEYS or not isinstance(value.get("host"), str):
        raise Refused(f"the edge entry {value!r}")
    host = destination(value["host"])
    if host.network is not None or host.protocol != "tcp" or host.check is not None:
        raise Refused(f"the edge host {value['host']}")
    methods, paths, headers = value.get("methods", []), value.get("paths", []), value.get("headers", {})
    if not all(re.fullmatch("[A-Z0-9_-]+", each) and each not in ("CONNECT", "TRACE") for each in methods):
        raise Refused("methods")
    if not all(each == "*" or (re.fullmatch(r"/[!-~]*", each) and not set("?#") & set(each)) for each in paths):
        raise Refused("paths")
    put = [edge_header(name, each) for name, each in headers.items()]
    if len({name.lower() for name, _source, _form in put}) < len(put):
        raise Refused("one header twice")
    place = (host.name, host.any_below, host.low, host.high)
    return (
        place,
        value.get("scheme", "https"),
        tuple(dict.fromkeys(methods)),
        tuple(dict.fromkeys(paths)),
        tuple(put),
    )


def edge_header(name: str, value: Any) -> tuple[str, str, str]:
    source, form = (value.get("from"), value.get("format", "{}")) if isinstance(value, dict) else (value, "{}")
    if not re.fullmatch("[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or name.lower() in OF_A_CONNECTION:
        raise Refused(f"the header {name!r}")
    if name.lower().startswith("proxy-"):
        raise Refused(f"the header {name!r}")
    if not isinstance(source, str) or not re.match("(env|file|command|literal):.", source):
        raise Refused(f"a header from {source!r}")
    if len(re.findall(r"\{\}|\{base64\}", form)) != 1:
        raise Refused(f"the format {form!r}")
    return name, source, form


def edge_of(lines: Iterable[str]) -> list[tuple[Any, ...]]:
    """The entries that the product carries, as ``edge_entry`` has them."""
    found = [json.loads(each) for each in lines]
    for each in found:
        each["headers"] = {name: {"from": source, "format": form} for name, source, form in each["headers"]}
    return [edge_entry(each) for each in found]


def unchecked(text: str) -> Destination:
    rest, protocol = text, "tcp"
    for scheme in ("tcp", "udp"):
        if text.startswith(scheme + "://"):
            rest, protocol = text[6:], scheme
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        ports = tail[1:]
    elif rest.count(":") == 1:
        host, _, ports = rest.partition(":")
    else:
        host, ports = rest, ""
    low, high = port_range(ports)
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        return Destination(protocol, *plain_name(host), None, low, high)
    if any(
        ipaddress.ip_address(each) in network
        for each in METADATA
        if ipaddress.ip_address(each).version == network.version
    ):
        raise Refused("a metadata address")
    return Destination(protocol, "", False, network, low, high)


def port_range(text: str) -> tuple[int, int]:
    if not text:
        return 443, 443
    if text == "*":
        return 1, 65535
    first, _, last = text.partition("-")
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?", text):
        raise Refused(f"the ports {text!r}")
    return int(first), int(last or first)


def plain_name(host: str) -> tuple[str, bool]:
    any_below = host.startswith("*.")
    bare = host[2:] if any_below else host
    try:
        name = bare.lower() if bare.isascii() else bare.encode("idna").decode().lower()
    except UnicodeError:
        raise Refused(f"the host {host!r}") from None
    if not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", name):
        raise Refused(f"the host {host!r}")
    return name, any_below


# --- all layers --------------------------------------------------------------------------------------------


class Ceiling:
    """What the layers come to; every path absolute."""

    def __init__(self, layers: Iterable[Said], expand: Callable[[str, str], str]) -> None:
        """``layers`` from the lowest up; ``expand`` makes a path of a folder absolute, links resolved."""
        self.expand = expand
        self.values: dict[str, Any] = {"mode": None}
        self.hidden: set[tuple[str, str]] = set()
        """Pairs of a directory and a glob below it."""
        for layer in layers:
            self.take(layer)
        self.settle()

    def take(self, layer: Said) -> None:
        """One layer on top. What it says is judged first, by itself and against what lies below."""
        said = {key: value for key, value in layer.values.items() if key != "extends"}
        for key, value in said.items():
            check(key, value)
        if layer.kind == "project":
            if "extends" in layer.values or "network.edge" in layer.values:
                raise Refused("a project extends, or says what is put in at the edge")
            for key, value in said.items():
                self.narrower(key, self.placed(key, value, layer.folder))
        for key, value in said.items():
            new = self.placed(key, value, layer.folder)
            if key == "environment.set":
                new = {**self.values.get(key, {}), **new}
            elif key in LISTS and adds(layer.kind, key):
                new = [*self.values[key], *new]
            self.values[key] = new

    def placed(self, key: str, value: Any, folder: str) -> Any:
        """Paths absolute; globs and protected names with the folder that they are meant from."""
        if key in PATHS:
            return [self.expand(each, folder) for each in value]
        if key in ("filesystem.hide", "filesystem.protect"):
            return [each if each.startswith(("/", "~")) or not folder else f"{folder}/{each}" for each in value]
        if key == "filesystem.home" and value != "empty":
            return self.expand(value, folder)
        if key == "network.allow":
            return [entry_text(each) for each in value]
        return value

    def narrower(self, key: str, value: Any) -> None:
        """A project's word must not be wider than what lies below."""
        below = self.values[key]
        if key in WIDE_TO_NARROW:
            fits = WIDE_TO_NARROW[key].index(value) >= WIDE_TO_NARROW[key].index(below)
        elif key == "network.connector":
            fits = value == below
        elif key.startswith("limits."):
            fits = amount(key, value) <= amount(key, below)
        elif key == "filesystem.home":
            fits = value in ("empty", below)
        elif key == "filesystem.write":
            fits = all(within(each, self.writable()) for each in value)
        elif key == "filesystem.read":
            fits = all(within(each, [*self.writable(), *self.readable()]) for each in value)
        elif key == "environment.pass":
            fits = all(passes(each, below) for each in value)
        elif key == "environment.set":
            fits = all(self.may_set(name, text) for name, text in value.items())
        elif key == "network.allow":
            fits = self.values["network.egress"] == "open" or not unreachable(value, below)
        else:
            fits = True
        if not fits:
            raise Refused(f"a project widens {key}")

    def may_set(self, name: str, text: str) -> bool:
        known = self.values["environment.set"]
        if name in known:
            return bool(known[name] == text)
        taken = name in SET_FOR_EVERY_RUN or passes(name, self.values["environment.pass"])
        return not taken and not name.startswith("LD_")

    def writable(self) -> list[str]:
        workspace = [self.expand(".", "")] if self.values["filesystem.workspace"] == "read-write" else []
        return [*self.values["filesystem.write"], *workspace]

    def readable(self) -> list[str]:
        workspace = [self.expand(".", "")] if self.values["filesystem.workspace"] != "none" else []
        return [*self.values["filesystem.read"], *workspace]

    def settle(self) -> None:
        """What follows from the whole."""
        values = self.values
        confines = values["network.egress"] != "none" or values["filesystem.workspace"] == "overlay"
        if confines and values["mode"] == "off":
            raise Refused("off contradicts the rest")
        if confines and values["mode"] is None:
            values["mode"] = "auto"
        if values["network.egress"] != "allow":
            values["network.allow"] = []
        places = [*self.readable(), *values["filesystem.write"]]
        globs = [each for each in values["filesystem.hide"] if not each.startswith(("/", "~"))]
        self.hidden = {(place, each) for place in places for each in globs}


def adds(kind: str, key: str) -> bool:
    return kind == "options" or (kind == "project" and key in ("filesystem.hide", "filesystem.protect"))


def within(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def passes(name: str, grants: Iterable[str]) -> bool:
    """Whether everything that ``name`` (or a ``PREFIX*``) stands for is passed."""
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in grants)


# --- comparing ---------------------------------------------------------------------------------------------


def exceeding(found: Any, top: Ceiling, reach: Callable[..., bool], *, project: bool = False) -> list[str]:
    """Where a resolved policy grants more than ``top``. ``reach(protocol, port, name=, address=)`` is what the
    product itself makes of its list of hosts. ``project``: one that ``top`` leaves out may have set variables."""
    too_much = [
        f"{key}: {value!r} over {top.values[key]!r}" for key, value in words(found) if wider(key, value, top)
    ]
    too_much += [f"{key}: {value!r}" for key, value in limits(found) if over(key, value, top)]
    if found.connector != top.values["network.connector"]:
        too_much.append("network.connector")
    place = top.expand
    too_much += [f"write {each}" for each in found.write if not within(place(each, ""), top.writable())]
    readable = [*top.readable(), *top.writable()]
    too_much += [f"read {each}" for each in found.read if not within(place(each, ""), readable)]
    if found.home != "empty" and place(found.home, "") != top.values["filesystem.home"]:
        too_much.append(f"home {found.home}")
    too_much += [f"pass {each}" for each in found.env_pass if not passes(each, top.values["environment.pass"])]
    if edge_of(found.edge) != list(dict.fromkeys(map(edge_entry, top.values["network.edge"]))):
        too_much.append(f"edge {found.edge}")
    unseen = [
        each for each in map(destination, found.allow) if each.protocol == "udp" and each.name and not each.check
    ]
    if unseen and found.check == "name":
        too_much.append("a name in UDP, which must be checked")
    granted = top.values["environment.set"].items()
    too_much += [
        f"set {name}"
        for name, text in found.env_set
        if (name, text) not in granted and not (project and top.may_set(name, text))
    ]
    too_much += [f"unprotected {each}" for each in top.values["filesystem.protect"] if each not in found.protect]
    too_much += [f"not hidden {each}" for each in top.values["filesystem.hide"] if each not in found.hide]
    too_much += [f"not hidden {each} in {root}" for root, each in top.hidden if not hides(found, root, each, top)]
    return too_much + reached(found, top, reach)


def words(found: Any) -> list[tuple[str, Any]]:
    return [
        ("mode", found.mode), ("filesystem.root", found.root), ("filesystem.workspace", found.workspace),
        ("filesystem.toolchains", found.toolchains), ("network.egress", found.egress),
        ("network.private", found.private), ("network.check", found.check), ("network.mask_queries", found.mask_queries),
        ("syscalls.filter", found.syscalls), ("process.user", found.user),
    ]  # fmt: skip


def wider(key: str, value: Any, top: Ceiling) -> bool:
    order = WIDE_TO_NARROW[key]
    return order.index(value) < order.index(top.values[key])


def limits(found: Any) -> list[tuple[str, Any]]:
    names = ("timeout", "cpu", "memory", "processes", "file_size", "tmp", "output", "open_files")
    return [(f"limits.{name}", getattr(found, name)) for name in names]


def over(key: str, value: float | None, top: Ceiling) -> bool:
    most = amount(key, top.values[key])
    return (math.inf if value is None else value) > most * (1 + 1e-12)


def hides(found: Any, root: str, glob: str, top: Ceiling) -> bool:
    """Whether a glob is looked for in a directory: with all relative ones, or by itself."""
    places = [top.expand(each, "") for each in (*found.write, *found.read)]
    if found.workspace != "none":
        places.append(top.expand(".", ""))
    return (glob in found.hide and root in places) or f"{root}/{glob}" in found.hide


def unreachable(texts: Iterable[str], grants: Iterable[str]) -> list[str]:
    """Destinations that the entries in ``texts`` reach and those in ``grants`` do not, or not as loosely, whatever
    ``network.check`` comes to."""
    inner, outer = [destination(each) for each in texts], [destination(each) for each in grants]
    return [
        f"{protocol} {where} {port} with {check}"
        for protocol, port, where in probes([*inner, *outer])
        for check in CHECKS
        if loosest(inner, check, protocol, port, **where) < loosest(outer, check, protocol, port, **where)
    ]


def reached(found: Any, top: Ceiling, reach: Callable[..., bool]) -> list[str]:
    """Destinations that the product lets through and the texts do not grant."""
    if found.egress != "allow":
        return [f"hosts with egress {found.egress}"] if found.allow else []
    grants = [destination(each) for each in top.values["network.allow"]]
    everything = top.values["network.egress"] == "open"
    listed = [destination(each) for each in found.allow]
    too_much = []
    for protocol, port, where in probes([*grants, *listed]):
        if reach(protocol, port, **where):
            address = where.get("address")
            public = address is None or address.is_global or top.values["network.private"]
            least = loosest(grants, top.values["network.check"], protocol, port, **where)
            granted = least <= loosest(listed, found.check, protocol, port, **where) and least < len(CHECKS)
            if not (granted or (everything and public)):
                too_much.append(f"{protocol} {where} {port}")
    return too_much


def probes(entries: Iterable[Destination]) -> list[tuple[str, int, dict[str, Any]]]:
    """Destinations at and just beyond the edges of all entries."""
    names, addresses, ports = {"other.example"}, set(), {1, 80, 443, 65535}
    for each in entries:
        ports |= {each.low - 1, each.low, each.high, each.high + 1}
        if each.network is None:
            parent = each.name.partition(".")[2]
            names |= {each.name, f"a.{each.name}", f"b.a.{each.name}", f"x{each.name}", f"{each.name}.evil.example"}
            names |= {parent} if parent else set()
        else:
            low, high = int(each.network.network_address), int(each.network.broadcast_address)
            kind = type(each.network.network_address)
            for number in (low - 1, low, (low + high) // 2, high, high + 1):
                if 0 <= number < 2**each.network.max_prefixlen:
                    addresses.add(kind(number))
    places = [{"name": each} for each in sorted(names)] + [{"address": each} for each in sorted(addresses, key=str)]
    tried = sorted(port for port in ports if 1 <= port <= 65535)
    return [(protocol, port, place) for protocol in ("tcp", "udp") for port in tried for place in places]


def places_of(home: str, workspace: str) -> Callable[[str, str], str]:
    """An ``expand``: ``~`` is the home, a relative path starts at ``folder``, or at the workspace."""

    def expand(path: str, folder: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return os.path.realpath(os.path.join(folder or workspace, path))

    return expand
