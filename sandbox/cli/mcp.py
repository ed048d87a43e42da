"""``stockade mcp``: the bash tool for clients of the Model Context Protocol, by standard input and output."""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import StockadeError
from stockade.sandbox.cli import exits, shared
from stockade.sandbox.cli.options import FLAG, VALUE, Option, UsageError, parse, render_help

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.sandbox.bash.tool import BashTool

OPTIONS = (
    *shared.POLICY_OPTIONS,
    Option(("--session",), "session", FLAG, "", "directory, variables and functions carry over between calls"),
    Option(("--keep",), "keep", FLAG, "", "one shell in one sandbox serves all calls (fastest)"),
    Option(("--shell",), "shell", VALUE, "PROGRAM", "the shell that runs the commands (bash)"),
    Option(("--jobs",), "jobs", VALUE, "NUMBER", "background jobs at once, at most (16)"),
    shared.HELP,
)
USAGE = "stockade mcp [OPTIONS]"
SUMMARY = (
    "Serve bash, bash_output and bash_stop to a client of the Model Context Protocol, each command confined. The "
    "default policy is workspace-write in the current directory, no network, an empty HOME. The policy is that of "
    "this command line; no client can widen it."
)
EPILOG = (
    "Needs the extra: pip install 'stockade[mcp]'. A client's configuration:\n\n"
    '  {"command": "stockade", "args": ["mcp", "--cwd", "/path/to/project"]}\n\n'
    "When the client leaves, whatever still runs is ended."
)


def main(argv: Sequence[str]) -> int:
    values = parse(OPTIONS, argv, rest="none").values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    tool = make_tool(values)
    try:
        return serve(tool)
    finally:
        tool.close()


def make_tool(values: dict[str, Any]) -> BashTool:
    """Raises StockadeError for what can't be used: before a client is waiting."""
    from stockade.sandbox.bash.modes import WORKSPACE_WRITE
    from stockade.sandbox.bash.tool import BashTool

    return BashTool(
        values["policy"] or WORKSPACE_WRITE,
        cwd=values["cwd"],
        shell=values["shell"] or "bash",
        session=values["session"],
        keep=values["keep"],
        env=shared.variables(values["env"]),
        jobs=16 if values["jobs"] is None else number(values["jobs"]),
        options=shared.policy_layer(values),
    )


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"could not use --jobs {text!r}: it is not a number", remedy="Write --jobs 16.")
    return int(text)


def serve(tool: BashTool) -> int:
    try:
        from stockade.sandbox.bash import mcp
    except ImportError as error:
        raise StockadeError(
            f"could not serve the Model Context Protocol: its SDK is not installed, or too old ({error})",
            remedy="pip install 'stockade[mcp]'",
        ) from None
    import asyncio

    if os.isatty(0):
        sys.stderr.write("stockade: waiting for a client on standard input; Ctrl-C ends.\n")
    if tool.enforcement == "unavailable":
        sys.stderr.write("stockade: this host can't confine: every call will be refused. See `stockade doctor`.\n")
    asyncio.run(mcp.serve(tool))
    return exits.OK
