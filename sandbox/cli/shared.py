"""Options that several commands have, and what they mean as the option layer of a policy."""

from __future__ import annotations

import os

from stockade.sandbox.cli.options import APPEND, FLAG, OPTIONAL_FILE, VALUE, Option, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLICY_OPTIONS = (
    Option(("--policy",), "policy", VALUE, "NAME|FILE", "a preset (see: stockade policy list) or a policy file", "Policy"),
    Option(("--mode",), "mode", VALUE, "MODE", "auto, strict (refuse where anything is missing) or off", "Policy"),
    Option(("--cwd",), "cwd", VALUE, "DIR", "run there; it is the workspace", "Policy"),
    Option(("--workspace",), "workspace", VALUE, "KIND", "read-only, read-write, none, overlay (captures writes)", "Policy"),
    Option(("--write",), "write", APPEND, "PATH", "let it write there", "Policy"),
    Option(("--read",), "read", APPEND, "PATH", "show this path", "Policy"),
    Option(("--hide",), "hide", APPEND, "GLOB", "cover what matches in the workspace", "Policy"),
    Option(("--env",), "env", APPEND, "NAME[=VALUE]", "set a variable, or pass the caller's", "Policy"),
    Option(("--allow",), "allow", APPEND, "HOST[:PORT]", "let it reach this host (and only those)", "Network"),
    Option(("--check",), "check_names", VALUE, "KIND", "look at names inside TLS and HTTP: auto, name or address", "Network"),
    Option(("--record-egress",), "record_egress", FLAG, "", "let nothing out, record every attempt", "Network"),
    Option(("--open-egress",), "open_egress", FLAG, "", "let it reach anything public, and count it", "Network"),
    Option(("--timeout",), "timeout", VALUE, "TIME", "stop after TIME: 10, 10s, 500ms, 2m, 1h", "Limits"),
    Option(("--memory",), "memory", VALUE, "SIZE", "memory: 512M, 2G (of each process, if it has no cgroup)", "Limits"),
)  # fmt: skip
JSON = Option(
    ("--json",), "json", OPTIONAL_FILE, "FILE", "print a JSON document (to FILE: leave the streams alone)"
)
HELP = Option(("-h", "--help"), "help", FLAG, "", "show this text")

_KEYS = {
    "mode": "mode",
    "check_names": "network.check",
    "workspace": "filesystem.workspace",
    "timeout": "limits.timeout",
    "memory": "limits.memory",
    "write": "filesystem.write",
    "read": "filesystem.read",
    "hide": "filesystem.hide",
}


def policy_layer(values: dict[str, Any]) -> dict[str, object]:
    """The option layer that a command line stands for. Raises UsageError for a contradiction."""
    layer: dict[str, object] = {
        key: list(values[name]) if isinstance(values[name], tuple) else values[name]
        for name, key in _KEYS.items()
        if values.get(name) not in (None, ())
    }
    kinds = [name for name in ("allow", "record_egress", "open_egress") if values[name]]
    if len(kinds) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in kinds)
        raise UsageError(f"could not combine {flags}: each is a network of its own kind", remedy="Use one of them.")
    if values["allow"]:
        layer |= {"network.egress": "allow", "network.allow": list(values["allow"])}
    for name, egress in (("record_egress", "record"), ("open_egress", "open")):
        if values[name]:
            layer["network.egress"] = egress
    return layer


def as_document(values: dict[str, Any]) -> bool:
    """Whether ``--json`` was given, in a command whose document can only go to stdout."""
    if values["json"] not in (None, True):
        raise UsageError("could not use --json=FILE here: the document goes to stdout", remedy="Write --json.")
    return values["json"] is True


def variables(given: tuple[str, ...]) -> dict[str, str]:
    """``--env NAME=VALUE`` sets, ``--env NAME`` passes the caller's. Raises UsageError for one that is not set."""
    chosen: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if equals:
            chosen[name] = value
        elif name in os.environ:
            chosen[name] = os.environ[name]
        else:
            raise UsageError(
                f"could not pass the variable {name!r}: it is not set",
                remedy=f"Set it, or write --env {name}=VALUE.",
            )
    return chosen
