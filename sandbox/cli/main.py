"""The command line's front: which command, and the only place that turns errors into text and exit codes."""

from __future__ import annotations

import gc
import io
import os
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox.cli import exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

COMMANDS = {
    "run": ("stockade.sandbox.cli.run", "run a command confined and report what happened"),
    "hook": ("stockade.sandbox.cli.hook", "put in front of a hook: run it confined, deny where it fails"),
    "hooks": ("stockade.sandbox.cli.hooks", "list, check, run, wrap and pin the handlers of hooks files"),
    "review": ("stockade.sandbox.cli.review", "run foreign hooks in the recorder and report what they do"),
    "shell": ("stockade.sandbox.cli.shell", "a confined shell to work in"),
    "mcp": ("stockade.sandbox.cli.mcp", "the bash tool for clients of the Model Context Protocol"),
    "policy": ("stockade.sandbox.cli.policy", "list, show, check and explain policies"),
    "doctor": ("stockade.sandbox.cli.doctor", "what this host can enforce, and what to do about the rest"),
}

USAGE = """\
Usage: stockade COMMAND [OPTIONS]

Run code you did not write, confined, and know truthfully what happened.

Commands:
{commands}

  stockade run -- ls -la ~             a first confined command
  stockade run --policy workspace-write -- npm install
  stockade doctor                      what this host can enforce

stockade COMMAND --help tells more. Exit codes of run: the program's own; 124 timed
out; 125 stockade failed or refused; 126 not executable; 127 not found; 128+N after
a signal.
"""


def console() -> NoReturn:
    """The console script. Ends without the interpreter's own clean-up, which costs milliseconds."""
    # A process this short is over before a collection pays.
    gc.disable()
    open_streams()
    # Until there is something to stop, Ctrl-C simply ends this process; the keeper clears away.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stockade.sandbox import keeperlink

    keeperlink.ours_alone = True
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or exits.FAILED
    keeperlink.end_keeper()
    os._exit(code)


def open_streams() -> None:
    """Give a process that was started with closed streams empty ones: other descriptors must not get their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a letter that it lacks is no reason to fail


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit code. Raises nothing for a user's mistake."""
    argv = list(argv)
    try:
        return dispatch(argv)
    except StockadeError as error:
        report(error)
        return exits.FAILED
    except KeyboardInterrupt:
        return last_deny(argv) if argv[:1] == ["hook"] else 130
    except BrokenPipeError:
        return exits.FAILED
    except Exception as error:
        if os.environ.get("STOCKADE_TRACEBACK"):
            raise
        say(f"internal error: {type(error).__name__}: {error}")
        say("This is a fault of stockade. STOCKADE_TRACEBACK=1 shows where; please report it.", plain=True)
        return last_deny(argv) if argv[:1] == ["hook"] else exits.FAILED


def last_deny(argv: Sequence[str]) -> int:
    """For a hook whose own module could not even be loaded: no host may take that for consent."""
    if any(word.removeprefix("--dialect=") in ("antigravity", "agy") for word in argv):
        os.write(1, b'{"decision":"deny","reason":"stockade could not be loaded"}\n')
        return exits.OK
    return exits.DENIED


def dispatch(argv: list[str]) -> int:
    if not argv and event_waits():
        from stockade.sandbox.cli.hook import blind_deny

        return blind_deny("claude", "stockade was called without `hook` and its arguments; wrap the hooks again")
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        rows = "\n".join(f"  {each:{width}}  {about}" for each, (_module, about) in COMMANDS.items())
        sys.stdout.write(USAGE.format(commands=rows))
        return exits.OK if argv else exits.FAILED
    if name in ("-V", "--version"):
        return version()
    if name not in COMMANDS:
        raise unknown(name)
    # Not importlib.import_module: importing importlib costs more than most commands' own imports.
    code: int = __import__(COMMANDS[name][0], fromlist=["main"]).main(argv[1:])
    return code


def event_waits() -> bool:
    """Whether a host has a hook's event for us: one that drops the arguments of a wrapped hook must not read consent."""
    import select
    import stat

    if not stat.S_ISFIFO(os.fstat(0).st_mode) and not stat.S_ISSOCK(os.fstat(0).st_mode):
        return False
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(1000)) and os.read(0, 4096).lstrip().startswith(b"{")


def unknown(name: str) -> StockadeError:
    from stockade.sandbox.cli.options import UsageError, edit_distance
    from stockade.sandbox.cli.style import escape

    near = min(COMMANDS, key=lambda each: edit_distance(name, each))
    hint = (
        f"Did you mean `stockade {near}`?"
        if edit_distance(name, near) <= 2
        else "stockade --help lists the commands."
    )
    return UsageError(f"could not understand the command {escape(name)!r}: there is no such command", remedy=hint)


def version() -> int:
    """What a report of a fault needs to say."""
    import platform

    from stockade import __version__

    sys.stdout.write(f"stockade {__version__} (Python {platform.python_version()}, Linux {platform.release()})\n")
    return exits.OK


def report(error: StockadeError) -> None:
    say(error.message)
    if error.remedy:
        say(error.remedy, plain=True)


def say(text: str, *, plain: bool = False) -> None:
    """A line on stderr, control bytes made visible."""
    from stockade.sandbox.cli.style import colour_on, escape, paint

    on = colour_on(sys.stderr)
    lead = "" if plain else paint("stockade:", "red", on) + " "
    sys.stderr.write(f"{lead}{escape(text)}\n")
