"""The bash tool over the Model Context Protocol, with the official SDK (extra ``stockade[mcp]``).

One client by standard input and output. When it leaves, or a signal comes, every job ends with it. The mode of the
tool is that of its maker: no client can ask for another.
"""

from __future__ import annotations

import asyncio
import os
import time

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from stockade import __version__
from stockade.policies.errors import StockadeError
from stockade.sandbox.bash import mcptools
from stockade.sandbox.bash.mcptools import Answer
from stockade.sandbox.bash.modes import READ_ONLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    from stockade.sandbox.bash.result import BashResult
    from stockade.sandbox.bash.tool import BashTool

    Context = ServerRequestContext[Any, Any]
    T = TypeVar("T")

PROGRESS = 1.0
"""Seconds between two reports of progress."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def make_server(tool: BashTool) -> Server[Any]:
    """A server that offers ``tool``; whoever runs it closes the tool afterwards."""

    async def list_tools(_context: Context, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=await in_thread(lambda: tools_of(tool)))

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = await answered(tool, context, params)
        except StockadeError as error:
            answer = mcptools.error_answer(error)
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text)], structured_content=answer.facts, is_error=answer.failed
        )

    return Server("stockade", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def tools_of(tool: BashTool) -> list[types.Tool]:
    about = {
        "bash": f"{tool.describe()}\n{mcptools.BACKGROUND}",
        "bash_output": mcptools.OUTPUT,
        "bash_stop": mcptools.STOP,
    }
    safe = tool.mode == READ_ONLY
    hints = {
        "bash": types.ToolAnnotations(read_only_hint=safe, destructive_hint=not safe, open_world_hint=not safe),
        "bash_output": types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        "bash_stop": types.ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False),
    }
    return [
        types.Tool(
            name=name,
            description=text,
            input_schema=mcptools.input_schema(name),
            output_schema=mcptools.output_schema(name),
            annotations=hints[name],
        )
        for name, text in about.items()
    ]


async def answered(tool: BashTool, context: Context, params: types.CallToolRequestParams) -> Answer:
    """Raises StockadeError where nothing could be run, or the sandbox failed."""
    if params.name not in mcptools.ARGUMENTS:
        names = ", ".join(mcptools.ARGUMENTS)
        raise StockadeError(
            f"could not call {params.name!r}: there is no such tool", remedy=f"The tools are {names}."
        )
    values = mcptools.checked(params.name, params.arguments)
    if params.name == "bash":
        return await bash(tool, context, values)
    if params.name == "bash_output":
        return await bash_output(tool, values)
    return mcptools.stopped_answer(await in_thread(lambda: tool.stop(values["job"])))


async def bash(tool: BashTool, context: Context, values: dict[str, Any]) -> Answer:
    command, timeout, cwd = values["command"], values["timeout"], values["cwd"]
    if values["background"]:
        job = await in_thread(lambda: tool.start(command, timeout, cwd))
        return mcptools.started_answer(tool.poll(job), job)
    seconds = tool.timeout if timeout is None else timeout
    return mcptools.result_answer(await watched(tool.arun(command, timeout, cwd), context, seconds))


async def bash_output(tool: BashTool, values: dict[str, Any]) -> Answer:
    job, since, wait = values["job"], values["since"] or 0, values["wait"]
    chunk = await in_thread(lambda: tool.read(job, since, wait=wait))
    # In this order: what the answer calls the end must come after the last that was written.
    return mcptools.chunk_answer(chunk, tool.poll(job))


async def watched(running: Awaitable[BashResult], context: Context, seconds: float) -> BashResult:
    """Report progress while it runs. When this is cancelled, by its client or the end, the run is killed first."""
    work = asyncio.ensure_future(running)
    began = time.monotonic()
    try:
        while not (await asyncio.wait({work}, timeout=PROGRESS))[0]:
            past = time.monotonic() - began
            await context.session.report_progress(round(past, 1), seconds, f"running for {past:.0f} s")
        return work.result()
    finally:
        if not work.done():
            work.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({work})


async def in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def serve(tool: BashTool) -> None:
    """Serve until the client closes our standard input, then end all that runs.

    While this serves, descriptor 1 leads to standard error: nothing that anybody prints gets into the protocol.
    """
    import signal

    loop = asyncio.get_running_loop()
    for name in SIGNALS:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, leave, tool, number)
    server = make_server(tool)
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(tool.close)


def leave(tool: BashTool, number: int) -> None:
    """End everything, and this process: the thread that reads standard input can't be woken."""
    import threading

    def end() -> None:
        from stockade.sandbox import keeperlink

        tool.close()
        keeperlink.end_keeper()
        os._exit(128 + number)

    threading.Thread(target=end, name="stockade-leave").start()
