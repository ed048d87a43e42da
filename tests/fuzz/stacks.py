"""Whole stacks of policy layers: made of choices, written as files into a world of their own, and resolved."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile

from ceiling import BASE, Ceiling, Refused, Said, of_preset, places_of, read

from stockade.policies.hosts import matches_name, parse_rule
from stockade.policies.resolve import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from choices import Choices

    from stockade.policies.resolved import Resolved

SELECTABLE = ("read-only", "workspace-write", "hook", "build", "full-access")
EXTENDED = ("base", *SELECTABLE, "./other.toml", "nothing", "./missing.toml")
PATHS = (
    "sub", "sub/deep", ".", "link", "link/inner", "~/data", "~", "~/other", "{outside}", "{outside}/inner", "./sub/",
    "{work}/sub", "{work}", "{repo}", "sub//deep/.", "new", "../repo", "sub/../..", "/", "/.", "", "a\0b", "*",
    "~root", "/etc",
)  # fmt: skip
GLOBS = ("**/.env*", "secrets/", "*.pem", "sub/*", "~/data/*", "{outside}/*", "a[b", "../x", "", "/", "key")
NAMES = ("LANG", "LC_*", "LC_ALL", "TERM", "CI", "C*", "HOME", "PATH", "LD_PRELOAD", "L*", "*", "", "A=B", "X")
HOSTS = (
    "api.example", "*.api.example", "a.api.example", "*.example", "example", "api.example:*", "api.example:80",
    "api.example:8000-8010", "api.example:8004", "udp://api.example:443", "192.0.2.0/24", "192.0.2.7", "192.0.2.7:80",
    "10.0.0.0/8:*", "0.0.0.0/0", "169.254.169.254", "169.254.0.0/16", "[2001:db8::]/32", "2001:db8::/32", "::/0",
    "[2001:db8::1]:443", "API.Example", "b\u00fccher.example", "xn--bcher-kva.example", "127.0.0.1:*", "a_b.example",
    "https://api.example", "api.example:0", "api.example:9-8", "api.example.", "*", "*.*.example", "0x7f.1",
    "::ffff:10.0.0.1", "api.example check=name", "api.example check=auto", "*.example check=address",
    {"host": "a.api.example", "check": "name"}, {"host": "api.example"}, "udp://api.example:443 check=address",
    "192.0.2.7 check=name", "udp://api.example check=name", "api.example check=none", {"host": "api.example", "chek": "name"},
)  # fmt: skip
EDGES: tuple[Any, ...] = (
    {"host": "api.example"}, {"host": "API.example:443", "methods": ["GET"], "paths": ["/v1/*"]},
    {"host": "*.example", "headers": {"X-Key": "env:KEY"}},
    {"host": "api.example:80", "scheme": "http", "methods": ["GET", "GET"]},
    {"host": "api.example", "headers": {"Authorization": {"from": "file:~/key", "format": "Bearer {}"}}},
    {"host": "api.example", "headers": {"Authorization": "sk-1"}}, {"host": "192.0.2.7"},
    {"host": "api.example", "methods": ["get"]},
    {"host": "api.example", "paths": ["v1"]}, {"host": "api.example", "headers": {"Host": "literal:x"}}, {}, "api.example",
)  # fmt: skip
TIMES = ("none", "500ms", "10s", "2m", "1h", 3, 0.5, "1.5s", "0s", "soon", -1, True, 10**30, "10S", "\u0663s")
AMOUNTS = (
    "none",
    "64K",
    "512M",
    "1G",
    "2G",
    "8G",
    "1T",
    4096,
    "1.5G",
    "0.3K",
    "2GiB",
    "100b",
    0,
    -5,
    "2X",
    1.5,
    True,
)
COUNTS = ("none", 1, 64, 256, 1024, 4096, 10**12, 0, -1, "64", 1.5, True)
VALUES: dict[str, tuple[Any, ...]] = {
    "mode": ("auto", "strict", "off", "Auto", 1),
    "filesystem.root": ("host", "minimal", "all"),
    "filesystem.workspace": ("read-only", "read-write", "overlay", "none", "rw"),
    "filesystem.home": ("empty", "~/data", "sub", "{outside}", "~", "./empty", "", "/"),
    "filesystem.toolchains": ("auto", "none"),
    "network.egress": ("none", "record", "allow", "open", "all"),
    "network.private": (True, False, 1, "true"),
    "network.check": ("auto", "name", "address", "names"),
    "network.mask_queries": (True, False, 1),
    "network.connector": ("auto", "slirp4netns", "pasta"),
    "limits.timeout": TIMES, "limits.cpu": TIMES,
    **dict.fromkeys(("limits.memory", "limits.file_size", "limits.tmp", "limits.output"), AMOUNTS),
    **dict.fromkeys(("limits.processes", "limits.open_files"), COUNTS),
    "syscalls.filter": ("default", "strict", "off"),
    "process.user": ("auto", "caller", "unprivileged"),
    "filesystem.nothing": (1,),
}  # fmt: skip
LISTED = {
    "filesystem.write": PATHS, "filesystem.read": PATHS, "filesystem.hide": GLOBS, "filesystem.protect": PATHS,
    "environment.pass": NAMES, "network.allow": HOSTS, "network.edge": EDGES,
}  # fmt: skip
KEYS = (*(key for key in VALUES if key != "filesystem.nothing"), *LISTED, "environment.set")


class World:
    """Directories that policies speak of; made once for each process, removed at its end."""

    def __init__(self) -> None:
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="stockade-fuzz-"))
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        self.home, self.repo, self.work = (f"{self.root}/{each}" for each in ("home", "repo", "repo/work"))
        self.outside = f"{self.root}/outside"
        for place in (f"{self.home}/data", f"{self.repo}/.git", f"{self.work}/sub/deep", f"{self.outside}/inner"):
            os.makedirs(place)
        os.symlink(self.outside, f"{self.work}/link")
        self.files = {
            "base": f"{self.root}/base.toml", "other": f"{self.root}/other.toml", "system": f"{self.root}/system.toml",
            "user": f"{self.root}/user.toml", "outer": f"{self.repo}/.stockade.toml", "inner": f"{self.work}/.stockade.toml",
        }  # fmt: skip

    def filled(self, text: str) -> str:
        for name in ("outside", "work", "repo"):
            text = text.replace("{" + name + "}", getattr(self, name))
        return text

    def write(self, texts: dict[str, str]) -> None:
        for name, path in self.files.items():
            if name in texts:
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(texts[name])
            elif os.path.lexists(path):
                os.unlink(path)


class Stack:
    """What one input comes to: the texts of the files by their role, and the rest of the call."""

    def __init__(self, texts: dict[str, str], preset: str, mode: str | None, options: dict[str, Any]) -> None:
        self.texts, self.preset, self.mode, self.options = texts, preset, mode, options

    def __repr__(self) -> str:
        return f"preset {self.preset}, mode {self.mode}, options {self.options}\n" + "\n".join(
            f"--- {name}\n{text}" for name, text in self.texts.items()
        )


_worlds: list[World] = []


def world() -> World:
    if not _worlds:
        _worlds.append(World())
    return _worlds[0]


# --- making ------------------------------------------------------------------------------------------------


def made(choices: Choices) -> Stack:
    """A stack; each of its parts may be missing. Values are mostly legal, and often the same in several layers."""
    texts = {
        role: text_of(layer(choices, role, 4), choices)
        for role in ("base", "other", "system", "user", "outer", "inner")
        if choices.flag(2)
    }
    preset = "" if "base" in texts else choices.pick(SELECTABLE)
    mode = choices.pick((None, None, None, "auto", "strict", "off", "Off"))
    options = layer(choices, "options", 3) if choices.flag(3) else {}
    return Stack(texts, preset, mode, options)


def layer(choices: Choices, role: str, most: int) -> dict[str, Any]:
    """What one layer says, by dotted key."""
    found: dict[str, Any] = {}
    if role in ("base", "other", "system", "user") and choices.flag(2):
        found["extends"] = choices.pick(EXTENDED[:6]) if not choices.flag(8) else choices.pick(EXTENDED)
    for _each in range(choices.number(most) + (1 if role != "options" else 0)):
        key = choices.pick(KEYS) if not choices.flag(64) else "filesystem.nothing"
        found[key] = value_of(choices, key)
    if found.get("network.allow") and not choices.flag(4):
        found.setdefault("network.egress", "allow")
    return found


def value_of(choices: Choices, key: str) -> Any:
    usual = not choices.flag(16)
    if key == "environment.set":
        return {
            choices.pick(NAMES): choices.pick(("1", "C", "", "a\0b" if not usual else "x"))
            for _ in range(choices.number(2))
        }
    if key in LISTED:
        options = LISTED[key]
        count = len(options) * (2 if usual else 3) // 3
        return [filled(choices.pick(options[:count])) for _each in range(choices.number(3))]
    return filled(choices.pick(VALUES[key][: max(2, len(VALUES[key]) * (2 if usual else 3) // 3)]))


def filled(value: Any) -> Any:
    return world().filled(value) if isinstance(value, str) else value


def text_of(values: dict[str, Any], choices: Choices) -> str:
    """TOML; now and then with something odd in it."""
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {written(value)}")
    top = sections.pop("", [])
    lines = [*top, *(line for name, body in sections.items() for line in (f"[{name}]", *body))]
    if choices.flag(48):
        lines.insert(
            choices.number(len(lines)), choices.pick(("[filesystem]", "# \u00fc", "x = ", "[network", "mode = 1\r"))
        )
    return "\n".join(lines) + "\n"


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {written(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return json.dumps(value)


# --- what it comes to --------------------------------------------------------------------------------------


def resolved(stack: Stack) -> Resolved:
    """The product's word. Raises PolicyError."""
    here = world()
    here.write(stack.texts)
    environ = {"HOME": here.home} | ({} if stack.mode is None else {"STOCKADE_MODE": stack.mode})
    return resolve(
        base=here.files["base"] if "base" in stack.texts else stack.preset,
        workspace=here.work,
        options=stack.options,
        environ=environ,
        system_file=here.files["system"],
        user_file=here.files["user"],
    ).resolved


def ceiling(stack: Stack, *, projects: bool = True) -> Ceiling:
    """The checker's word. Raises Refused."""
    here = world()
    layers = [Said("preset", BASE, "")]
    layers += (
        chain(stack, "preset", "base") if "base" in stack.texts else [Said("preset", of_preset(stack.preset), "")]
    )
    for role in ("system", "user"):
        layers += chain(stack, role, role) if role in stack.texts else []
    if projects:
        for role, folder in (("outer", here.repo), ("inner", "")):
            layers += [Said("project", read(stack.texts[role]), folder)] if role in stack.texts else []
    if stack.mode is not None:
        layers.append(Said("environment", {"mode": stack.mode}, ""))
    return Ceiling([*layers, Said("options", stack.options, "")], places_of(here.home, here.work))


def chain(stack: Stack, kind: str, role: str, deep: int = 0) -> list[Said]:
    """A file's layer on top of those of all that it extends."""
    values = read(stack.texts[role])
    extends = values.pop("extends", None)
    if deep > 8:
        raise Refused("a circle of extends")
    if extends is None:
        below = []
    elif extends == "./other.toml" and "other" in stack.texts:
        below = chain(stack, kind, "other", deep + 1)
    else:
        below = [Said(kind, of_preset(str(extends)), "")]
    return [*below, Said(kind, values, "")]


def reach_of(policy: Resolved) -> Callable[..., bool]:
    """What the product makes of a resolved list of hosts."""
    rules = [parse_rule(text) for text in policy.allow]

    def reach(protocol: str, port: int, *, name: str = "", address: Any = None) -> bool:
        import ipaddress

        for rule in rules:
            if rule.protocol == protocol and rule.low <= port <= rule.high:
                if name and matches_name(rule, name):
                    return True
                if address is not None and rule.network and address in ipaddress.ip_network(rule.network):
                    return True
        return False

    return reach
