"""Where pins are kept, and the questions that are asked of them when hooks run.

Not beside the hooks file: there whatever can change the file could change its pins. They lie in the user's state
directory, which no confined program sees.
"""

from __future__ import annotations

import os
import stat

from stockade.policies.errors import StockadeError
from stockade.sandbox import state
from stockade.sandbox.hooks.pinned import (
    Change,
    Pin,
    PinBroken,
    Pins,
    Script,
    compare_command,
    compare_one,
    digest,
    file_id,
    never,
    pin_of,
)
from stockade.sandbox.hooks.rewrite import CannotWrap, Command, original

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from stockade.sandbox.hooks.model import HookSpec

SCHEMA = "stockade.pins/1"
LARGEST_SCRIPT = 64 << 20
LARGEST_TEXT = 64 << 10
"""Bytes of a script that are kept to show a difference later."""


def pins_directory() -> str:
    """``$XDG_STATE_HOME/stockade/pins`` or ``~/.local/state/stockade/pins``. Raises StockadeError without a home."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            raise StockadeError("could not find the pins: HOME is not set", remedy="Set HOME or XDG_STATE_HOME.")
        base = f"{home}/.local/state"
    return f"{base}/stockade/pins"


def load_pins(path: str) -> Pins | None:
    """The pins of a hooks file; None where it has none. Raises StockadeError where they can't be used."""
    return load_by_id(file_id(os.path.realpath(path)))


def load_by_id(name: str) -> Pins | None:
    place = os.path.join(pins_directory(), f"{name}.json")
    data = state.read_private(*os.path.split(place))
    if data is None:
        if not os.path.lexists(place):
            return None
        raise StockadeError(
            f"could not read the pins {place!r}: others can write them, or they are no plain file of at most 1 MiB",
            remedy="Look at who changed them; `stockade hooks pin --update` writes them anew.",
        )
    try:
        return decoded(data)
    except (ValueError, KeyError, TypeError):
        raise StockadeError(
            f"could not read the pins {place!r}: they are damaged",
            remedy="`stockade hooks pin --update` writes them anew.",
        ) from None


def decoded(data: bytes) -> Pins:
    from stockade.sandbox.hooks.jsontext import parse

    tree, _problems = parse(data.decode())
    if tree["schema"] != SCHEMA:
        raise ValueError(tree["schema"])
    return Pins(tree["file"], tree["dialect"], tuple(map(pin_from, tree["handlers"])))


def pin_from(tree: dict[str, Any]) -> Pin:
    form, words = tree["command"]
    return Pin(
        tree["id"],
        tree["pointer"],
        tree["event"],
        dict(tree["entry"]),
        Command(form, tuple(words)),
        tuple(tree["wrapper"]),
        tuple(Script(*each) for each in tree["scripts"]),
    )


def encoded(pins: Pins) -> bytes:
    """As it is stored; texts are left out, the longest first, where it would be too long to be read again."""
    import json

    while True:
        tree = {
            "schema": SCHEMA,
            "file": pins.file,
            "dialect": pins.dialect,
            "handlers": [
                each.as_dict()
                | {"command": tuple(each.command), "scripts": [tuple(script) for script in each.scripts]}
                for each in pins.handlers
            ],
        }
        data = json.dumps(tree, default=str).encode()
        longest = max((len(each.text or "") for pin in pins.handlers for each in pin.scripts), default=0)
        if len(data) <= state.MOST or not longest:
            return data
        pins = pins.replace(handlers=tuple(without_texts(each, longest) for each in pins.handlers))


def without_texts(pin: Pin, length: int) -> Pin:
    scripts = (each.replace(text=None) if len(each.text or "") >= length else each for each in pin.scripts)
    return pin.replace(scripts=tuple(scripts))


def store_pins(pins: Pins) -> str:
    """Keep them; returns where. Raises StockadeError."""
    directory = pins_directory()
    name = f"{file_id(pins.file)}.json"
    data = encoded(pins)
    try:
        if len(data) > state.MOST:
            raise OSError(0, f"{len(pins.handlers)} handlers are too many")
        os.makedirs(os.path.dirname(directory), 0o700, exist_ok=True)
        os.makedirs(directory, 0o700, exist_ok=True)
        parent = state.open_private(directory)
        try:
            state.replace(parent, name, data)
        finally:
            os.close(parent)
    except OSError as error:
        raise StockadeError(
            f"could not keep the pins in {directory!r}: {(error.strerror or str(error)).lower()}",
            remedy="Make that directory yours alone, or set XDG_STATE_HOME.",
        ) from None
    return os.path.join(directory, name)


def forget_pins(path: str) -> bool:
    """Remove the pins of a hooks file; whether there were any."""
    place = os.path.join(pins_directory(), f"{file_id(os.path.realpath(path))}.json")
    there = os.path.lexists(place)
    state.remove(*os.path.split(place))
    return there


def script_at(path: str) -> Script:
    """A script as it is now. Raises StockadeError for one that is too long to be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return Script(path, "")
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Script(path, "")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(LARGEST_SCRIPT + 1)
    except OSError:
        return Script(path, "")
    finally:
        os.close(fd)
    if len(data) > LARGEST_SCRIPT:
        raise StockadeError(f"could not pin {path!r}: it has more than {LARGEST_SCRIPT >> 20} MiB")
    return Script(path, digest(data), text_of(data))


def text_of(data: bytes) -> str | None:
    if len(data) > LARGEST_TEXT or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def script_paths(spec: HookSpec) -> tuple[str, ...]:
    """The files that a handler executes, as far as its command tells; those that are missing too."""
    from stockade.sandbox.hooks.scripts import scripts

    found = () if (plain := unwrapped_spec(spec)) is None else scripts(plain)
    return tuple(dict.fromkeys(each.path for each in found if each.path))


def unwrapped_spec(spec: HookSpec) -> HookSpec | None:
    """A handler without stockade's wrapper; None for one that runs no program."""
    if spec.form not in ("shell", "argv"):
        return None
    try:
        command, _wrapper = original(spec.raw, spec.dialect)
    except CannotWrap:
        return None
    if command.form == "shell":
        return spec.replace(form="shell", command=command.text)
    return spec.replace(form="argv", command=command.words)


def pins_now(path: str, dialect: str, specs: Iterable[HookSpec]) -> Pins:
    """What pins of a hooks file would say now."""
    real = os.path.realpath(path)
    found = (pin_now(spec, real) for spec in specs)
    return Pins(real, dialect, tuple(each for each in found if each is not None))


def pin_now(spec: HookSpec, real: str) -> Pin | None:
    return pin_of(spec, real, map(script_at, script_paths(spec)))


def verify_spec(spec: HookSpec, pins: Pins | None = None) -> list[Change]:
    """What of a handler is not as it was pinned; nothing where its file has no pins. Raises StockadeError.

    ``pins``: those of its file, for callers with many handlers.
    """
    known = pins if pins is not None else load_pins(spec.source)
    now = None if known is None else pin_now(spec, known.file)
    if known is None or now is None:
        return []
    old = known.find(now.id) or next((each for each in known.handlers if each.pointer == spec.pointer), None)
    return [never(spec.pointer)] if old is None else compare_one(old, now)


def verify_command(argv: Sequence[str], pin_id: str) -> list[Change]:
    """What of a call ``stockade hook --pinned ID -- ARGV...`` is not as it was pinned. Raises StockadeError."""
    name, dot, _entry = pin_id.partition(".")
    pins = load_by_id(name) if dot and name.isalnum() else None
    pin = pins.find(pin_id) if pins is not None else None
    if pin is None:
        return [Change("record", "", f"there is no pin {pin_id!r}")]
    return compare_command(pin, argv, [script_at(each.path) for each in pin.scripts])


def require(pin_ids: Iterable[str], argv: Sequence[str]) -> None:
    """Raises PinBroken, naming what changed, unless the command is as it was pinned under each of these."""
    for each in pin_ids:
        if changes := verify_command(argv, each):
            raise broken(changes)


def broken(changes: Sequence[Change]) -> PinBroken:
    """The error for a hook that is not as it was pinned."""
    return PinBroken(
        f"could not run the hook: it is not as it was pinned: {'; '.join(each.text for each in changes)}",
        remedy="`stockade hooks pin --check FILE` shows the difference, `--update` accepts it.",
        changes=tuple(changes),
    )
