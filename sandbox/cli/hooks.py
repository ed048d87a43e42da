"""``stockade hooks``: which of its subcommands."""

from __future__ import annotations

import sys

from stockade.sandbox.cli import exits
from stockade.sandbox.cli.options import UsageError, edit_distance
from stockade.sandbox.cli.style import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "list": ("stockade.sandbox.cli.hooks_list", "every handler that is found, and where"),
    "check": ("stockade.sandbox.cli.hooks_check", "what is wrong with handlers, and the remedies"),
    "run": ("stockade.sandbox.cli.hooks_run", "run the handlers of one event, as their host would"),
    "wrap": ("stockade.sandbox.cli.hooks_wrap", "put `stockade hook` in front of each command"),
    "unwrap": ("stockade.sandbox.cli.hooks_unwrap", "take it away again"),
    "pin": ("stockade.sandbox.cli.hooks_pin", "record what each handler is now; refuse it once it changed"),
}
USAGE = """\
Usage: stockade hooks COMMAND [OPTIONS]

Work on the hooks files of coding agents.

Commands:
{commands}

stockade hooks COMMAND --help tells more.
"""


def main(argv: Sequence[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        rows = "\n".join(f"  {each:{width}}  {about}" for each, (_module, about) in COMMANDS.items())
        sys.stdout.write(USAGE.format(commands=rows))
        return exits.OK if argv else exits.FAILED
    if name not in COMMANDS:
        raise unknown(name)
    code: int = __import__(COMMANDS[name][0], fromlist=["main"]).main(argv[1:])
    return code


def unknown(name: str) -> UsageError:
    near = min(COMMANDS, key=lambda each: edit_distance(name, each))
    hint = (
        f"Did you mean `stockade hooks {near}`?"
        if edit_distance(name, near) <= 2
        else "stockade hooks --help lists the commands."
    )
    return UsageError(
        f"could not understand the command {escape(f'hooks {name}')!r}: there is no such command", remedy=hint
    )
