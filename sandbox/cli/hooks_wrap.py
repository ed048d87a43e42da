"""``stockade hooks wrap``: shows, and with ``--write`` makes, a hooks file's commands go through ``stockade hook``."""

from __future__ import annotations

import os
import sys

from stockade.sandbox.cli import exits, hooksfile, shared
from stockade.sandbox.cli.options import APPEND, FLAG, VALUE, Option, UsageError, parse, render_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stockade.sandbox.cli.hooksfile import Opened
    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.pinned import Pins
    from stockade.sandbox.hooks.rewrite import Choice, Needs

OPTIONS = (
    hooksfile.DIALECT,
    Option(("--policy",), "policy", VALUE, "NAME|FILE", "the hooks' policy (default: hook)", "Hooks"),
    Option(("--allow",), "allow", APPEND, "HOST[:PORT]", "let the hooks reach this host (and only those)", "Hooks"),
    Option(("--observe",), "observe", FLAG, "", "change no outcome yet; write down what the hooks do", "Hooks"),
    Option(
        ("--command",), "command", VALUE, "WORDS", "how to start stockade (default: this one, by its path)", "Hooks"
    ),
    Option(
        ("--string",),
        "string",
        FLAG,
        "",
        "keep strings where Claude Code could take a list of arguments: for older releases, and other hosts",
        "Hooks",
    ),
    Option(("--write",), "write", FLAG, "", "change the file; a copy is kept beside it"),
    shared.JSON,
    shared.HELP,
)
USAGE = "stockade hooks wrap [OPTIONS] FILE"
SUMMARY = (
    "Put `stockade hook` in front of every command of a settings or hooks file of Claude Code, Codex, Antigravity, "
    "Gemini CLI or Cursor. Shows the difference; only --write changes the file."
)
EPILOG = "What is wrapped already is written anew with the options given now. `stockade hooks unwrap` undoes it."
NEXT = {
    "codex": "Codex skips a changed hook until it is approved again.",
    "gemini": "Gemini CLI warns of changed hooks of a project once more.",
}
UNNAMED = ("antigravity", "agy")
"""Hosts whose payloads do not name their event."""
ROOT_TOLD = ("claude", "codex")
"""Hosts that tell a plugin's hooks where it lies, by a variable."""


def main(argv: Sequence[str]) -> int:
    parsed = parse(OPTIONS, argv, rest="args")
    values: dict[str, Any] = parsed.values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    as_json = shared.as_document(values)
    file = hooksfile.opened(hooksfile.only(parsed.rest, USAGE), values["dialect"])
    policy, limit = policy_of(values)
    choice = choice_of(values, file.dialect, policy)
    return carry_out(file, choice, limit, write=values["write"] is True, as_json=as_json)


def carry_out(file: Opened, choice: Choice, limit: float | None, *, write: bool, as_json: bool) -> int:
    from stockade.sandbox.hooks import ondisk
    from stockade.sandbox.hooks.pin import load_pins
    from stockade.sandbox.hooks.wrap import unwrap, wrap

    kept = tuple(reversed(ondisk.backups(file.target.real).values()))
    pins = load_pins(file.target.real)
    done = wrap(file.target.data, file.target.path, choice, file.load, needs_of(pins, file, limit), kept)
    backup = ""
    if write and done.data != file.target.data:
        plain = unwrap(file.target.data, file.target.path, file.dialect, file.load, kept).data
        backup = ondisk.keep(file.target.real, plain)
        ondisk.replace(file.target, done.data)
        hooksfile.note_wrappers(file, done.data)
    notes = [*notes_of(file, choice, done.data), *unpinned(pins, file)]
    hooksfile.report("wrap", file, done, write=write, backup=backup, notes=notes, as_json=as_json)
    return exits.OK


def policy_of(values: dict[str, Any]) -> tuple[str | None, float | None]:
    """The policy as the hooks' command lines are to name it, and the timeout that it sets, in seconds.

    What `stockade hook` would refuse at every call is refused here: raises PolicyError.
    """
    from stockade.policies.files import is_path
    from stockade.sandbox import policycache

    name = values["policy"]
    if name is not None and is_path(name):
        name = os.path.abspath(os.path.expanduser(name))
    layer = {"network.egress": "allow", "network.allow": list(values["allow"])} if values["allow"] else {}
    found = policycache.work_out(name or "hook", None, "/usr", layer)[0]
    return name, None if name is None else found.timeout


def choice_of(values: dict[str, Any], dialect: str, policy: str | None) -> Choice:
    from stockade.sandbox.hooks.rewrite import SHELLS, Choice

    if dialect not in SHELLS:
        raise UsageError(
            f"could not wrap hooks of {dialect}: it has no hooks file", remedy=f"Use one of {', '.join(SHELLS)}."
        )
    return Choice(
        dialect=dialect,
        program=program_words(values["command"]),
        policy=policy,
        allow=values["allow"],
        observe=values["observe"],
        strings=values["string"],
    )


def program_words(given: str | None) -> tuple[str, ...]:
    """How hosts are to start stockade: as the user says, else the one that runs now, by an absolute path."""
    if given is not None:
        return words_given(given)
    import shutil

    called = sys.argv[0] if os.path.basename(sys.argv[0]) == "stockade" else ""
    found = called if "/" in called else shutil.which("stockade") or ""
    beside = os.path.join(os.path.dirname(sys.executable), "stockade")
    for path in (found, beside) if called else (beside, found):
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return (os.path.abspath(path),)
    # -P: a directory with hooks in it is not to be searched for modules.
    return (sys.executable, "-P", "-m", "stockade")


def words_given(text: str) -> tuple[str, ...]:
    """``--command`` as words. Raises UsageError."""
    import shlex

    from stockade.sandbox.hooks.quoting import calls_stockade

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"could not read --command {text!r}: {error}", remedy="Quote it as for sh.") from None
    if not calls_stockade(words):
        raise UsageError(
            f"could not use --command {text!r}: `unwrap` would not know it again",
            remedy="It ends in a program named stockade: stockade, /path/stockade, uv run stockade ...",
        )
    return words


def patience(host: float, limit: float | None) -> float:
    """Seconds that the wrapper is told; 0 where the user's own policy is stricter than the host."""
    from stockade.sandbox.hooks.rewrite import timeout_of

    return 0.0 if limit is not None and limit < timeout_of(host) else host


def reads_of(spec: HookSpec) -> tuple[str, ...]:
    """Places of scripts that `stockade hook` would not show: those in a command that is more than plain words."""
    from stockade.sandbox.hooks.pin import script_paths, unwrapped_spec
    from stockade.sandbox.hooks.view import code_place, may_show
    from stockade.sandbox.hooks.words import target
    from stockade.sandbox.mounts import below

    home = os.path.expanduser("~")
    plain = unwrapped_spec(spec)
    if plain is None or plain.form != "shell" or target(("sh", "-c", str(plain.command)), {"HOME": home}):
        return ()
    own = spec.root if spec.provenance != "user" else ""
    places = (code_place(each, "/", home) for each in script_paths(spec) if not (own and below(each, own)))
    return tuple(dict.fromkeys(each for each in places if each and may_show(each, home)))


def needs_of(pins: Pins | None, file: Opened, limit: float | None) -> Callable[[HookSpec], Needs]:
    """``limit``: the timeout of the policy that the user named; None where none is, or it has none."""
    from stockade.sandbox.hooks.pinned import pin_of
    from stockade.sandbox.hooks.rewrite import Needs

    def needs(spec: HookSpec) -> Needs:
        now = pin_of(spec, file.target.real, ())
        known = now.id if now is not None and pins is not None and pins.find(now.id) else ""
        root = spec.root if spec.provenance in ("plugin", "extension") and file.dialect not in ROOT_TOLD else ""
        return Needs(
            seconds=patience(spec.timeout, limit),
            event=spec.event if file.dialect in UNNAMED else "",
            root=root,
            reads=reads_of(spec),
            pins=(known,) if known else (),
        )

    return needs


def unpinned(pins: Pins | None, file: Opened) -> list[str]:
    """What is to be said of handlers of a pinned file that have no pin."""
    from stockade.sandbox.hooks.pinned import pin_of

    if pins is None:
        return []
    found = [(spec, pin_of(spec, file.target.real, ())) for spec in file.load(file.target.data)]
    return [
        f"{spec.pointer} is not as it was pinned: `stockade hooks pin --check` shows how."
        for spec, now in found
        if now is not None and pins.find(now.id) is None
    ]


def notes_of(file: Opened, choice: Choice, data: bytes) -> list[str]:
    from stockade.sandbox.hooks.rewrite import CONVERTED

    notes = [NEXT[choice.dialect]] if data != file.target.data and choice.dialect in NEXT else []
    if CONVERTED.encode() in data:
        notes.append(
            "Lists of arguments need a Claude Code that knows `args` (an older one, and other readers of the file, "
            "get a deny); --string keeps strings, which all understand."
        )
    return [*notes, *hooksfile.open_scripts(file)]
