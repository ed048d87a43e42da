"""Loads rules into this network namespace and reads them back, by libnftables in process or by the ``nft`` program.

Works in the holder, which has neither site-packages nor any thread, and which the first leased run of a command line
waits for: the directory of the Python binding is given, and ``json`` is not imported, which takes 4 ms there.
It decides nothing; texts come from ``netns.ruleset``. What can't be loaded, read back or found equal to what was
loaded raises ``LeaseFailed``: there is no state in which nothing was loaded and a program runs.
"""

from __future__ import annotations

import sys

from stockade.netns.errors import LeaseFailed
from stockade.netns.ruletext import TABLE, shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Protocol

    class Engine(Protocol):
        """Where commands go. Answers (0 if all of them took effect, output, messages)."""

        def cmd(self, text: str, *, reading: bool) -> tuple[int, str, str]: ...


BINDING = "nftables"
LIBRARY = "libnftables.so.1"
PRIORITIES = {"mangle": -150, "filter": 0}
DIVERTING = "type nat hook output priority -100; policy accept;"
LONGEST_MESSAGE = 300
NFT_SECONDS = 10


def locate_binding() -> str | None:
    """The directory to import the binding of libnftables from; None where it is not installed.

    Looked for by hand: ``importlib.util`` costs more than everything that is done with the answer.
    """
    import os

    places = (place for place in sys.path if os.path.isabs(place))
    return next((place for place in places if os.path.isfile(f"{place}/{BINDING}.py")), None)


def import_binding(site: str | None) -> ModuleType:
    """The binding, from ``site`` if it is not there otherwise.

    It imports ``json`` for commands in JSON, which nobody gives it here: it gets it when it should need it.
    """
    # Last, so that nothing beside the binding can stand in for a module of ours or of Python's.
    if site is not None and site not in sys.path:
        sys.path.append(site)
    if "json" in sys.modules:
        return __import__(BINDING)
    sys.modules["json"] = type(sys)("json")
    sys.modules["json"].__getattr__ = of_json  # type: ignore[method-assign]
    try:
        return __import__(BINDING)
    finally:
        del sys.modules["json"]


def of_json(name: str) -> object:
    import json

    return getattr(json, name)


def open_nft(binary: str | None, site: str | None = None) -> Nft:
    """The library if it can be used, else the program ``binary``. ``site`` is what ``locate_binding`` found.

    To be called in the namespace it is for: the library opens its socket now and keeps it. Raises LeaseFailed.
    """
    try:
        return Nft(_Library(site))
    except (ImportError, OSError, AttributeError) as error:
        if binary is not None:
            return Nft(_Program(binary))
        raise LeaseFailed(
            f"could not load packet rules: neither the nft program nor libnftables can be used: {error}",
            part="nft",
            remedy="Install the package nftables.",
        ) from error


class Nft:
    """The rules of one network namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: dict[str, tuple[str, int]] = {}

    def run(self, text: str) -> None:
        """Run commands as one transaction: all take effect or, with LeaseFailed, none does."""
        self._command(text, "run packet rules", reading=False)
        self._loaded |= shape(text)

    def query(self, text: str) -> dict[str, Any]:
        """What a ``list`` command tells, as libnftables' JSON document. Raises LeaseFailed."""
        output = self._command(text, "read packet rules", reading=True)
        try:
            document = read_json(output) if output.strip() else {"nftables": []}
        except ValueError as error:
            raise _failed("read packet rules", f"the answer is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise _failed("read packet rules", "the answer is no document")
        return document

    def verify(self, kind: str, *, relay: bool = False) -> None:
        """Compare the kernel's chains with what was loaded for ``kind``. Raises LeaseFailed where they differ.

        ``relay``: connections are led to one, as in every recording lease.
        """
        found = found_chains(self.query(f"list table {TABLE}"))
        if fault := mismatch(kind, self._loaded, found, relay=relay):
            raise _failed("verify packet rules", fault)

    def _command(self, text: str, verb: str, *, reading: bool) -> str:
        try:
            code, output, messages = self._engine.cmd(text, reading=reading)
        except OSError as error:
            raise _failed(verb, f"{error}") from error
        if code != 0:
            raise _failed(verb, first_message(messages) or f"nft ended with {code} and said nothing")
        return output


class _Library:
    """libnftables in this process; one context, one netlink socket."""

    def __init__(self, site: str | None) -> None:
        self._context: Any = import_binding(site).Nftables()
        # Numbers: names of protocols would be looked up in /etc/protocols, one element after the other.
        self._context.set_numeric_proto_output(True)

    def cmd(self, text: str, *, reading: bool) -> tuple[int, str, str]:
        self._context.set_json_output(reading)
        code, output, messages = self._context.cmd(text)
        return int(code), str(output), str(messages)


class _Program:
    """The nft program, started once a command."""

    def __init__(self, path: str) -> None:
        self._path = path

    def cmd(self, text: str, *, reading: bool) -> tuple[int, str, str]:
        import subprocess

        # Never --json with a file: nft 1.0.6 reads it up as JSON, finds the rest empty and reports success.
        how = ["--json", "--numeric-protocol", text] if reading else ["--file", "-"]
        given = b"" if reading else text.encode()
        try:
            done = subprocess.run([self._path, *how], input=given, capture_output=True, timeout=NFT_SECONDS, env={})
        except subprocess.TimeoutExpired:
            return 1, "", f"it did not end within {NFT_SECONDS} s"
        return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


class _Plain:
    """How ``json.loads`` has its scanner read."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_int, parse_float, parse_constant = int, float, float


def read_json(text: str) -> object:
    """As ``json.loads``, by the part of it that is written in C. Raises ValueError."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)
    try:
        found, end = make_scanner(_Plain)(text, len(text) - len(text.lstrip()))  # type: ignore[arg-type]
    except StopIteration as error:
        raise ValueError(f"nothing to read at {error.value}") from None
    if text[end:].strip():
        raise ValueError(f"more than one value, the second at {end}")
    document: object = found
    return document


def found_chains(document: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """The chains of a ``list table`` document (pure), in the terms of ``ruleset.shape``."""
    found: dict[str, tuple[str, int]] = {}
    for entry in document.get("nftables", ()):
        if chain := entry.get("chain"):
            found[chain["name"]] = (_base_line(chain), 0)
    for entry in document.get("nftables", ()):
        if rule := entry.get("rule"):
            base, count = found[rule["chain"]]
            found[rule["chain"]] = (base, count + 1)
    return found


def mismatch(
    kind: str, loaded: dict[str, tuple[str, int]], found: dict[str, tuple[str, int]], *, relay: bool = False
) -> str:
    """Why ``found`` may not be trusted to police a lease of ``kind`` (pure); empty if it may."""
    expected = {name: (_numbered(base), count) for name, (base, count) in loaded.items()}
    for name, hook in (("output", "output"), ("input", "input"), ("forward", "forward")):
        if expected.get(name, ("", 0))[0] != f"type filter hook {hook} priority 0; policy drop;":
            return f"no rules were loaded that drop by default on {hook}"
    if ("witness" in expected) != (kind == "record"):
        return f"the rules that were loaded are not those of {kind}"
    diverting = expected.get("divert", ("", 0))[0]
    if diverting != (DIVERTING if relay or kind == "record" else ""):
        return "no rules were loaded that divert" if relay else "rules were loaded that divert"
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            return f"chain {name}: loaded {_told(expected.get(name))}, found {_told(found.get(name))}"
    return ""


def first_message(messages: str) -> str:
    """What nft said, on one line: the first message without the excerpt of our text under it."""
    line = messages.strip().partition("\n")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in line[:LONGEST_MESSAGE])


def _base_line(chain: dict[str, Any]) -> str:
    if "hook" not in chain:
        return ""
    return (
        f"type {chain.get('type')} hook {chain['hook']} priority {chain.get('prio')}; policy {chain.get('policy')};"
    )


def _numbered(base: str) -> str:
    for word, number in PRIORITIES.items():
        base = base.replace(f"priority {word};", f"priority {number};")
    return base


def _told(chain: tuple[str, int] | None) -> str:
    if chain is None:
        return "nothing"
    return f"{chain[1]} rules ({chain[0]})" if chain[0] else f"{chain[1]} rules"


def _failed(verb: str, cause: str) -> LeaseFailed:
    return LeaseFailed(f"could not {verb}: {cause}", part="nft", remedy="Run `stockade doctor`.")
