"""What the Model Context Protocol server offers (pure): its tools with their schemas, their arguments, their answers.

Knows nothing of the SDK; ``mcp`` puts these values into its types.
"""

from __future__ import annotations

from stockade.policies.errors import RequestError, StockadeError
from stockade.policies.record import Record
from stockade.sandbox.bash.output import MARK, body_text, markers, render, whole_end
from stockade.sandbox.bash.result import SCHEMA, BashResult, Chunk, JobState
from stockade.sandbox.cli.style import escape
from stockade.sandbox.result import stream_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_AT_ONCE = 64_000
"""Bytes of a job's output in one answer."""
LONGEST_WAIT = 60.0
"""Seconds that ``bash_output`` waits at most."""

BACKGROUND = (
    "With background true it goes on by itself, without a time limit unless one is named: the answer has the id of "
    "its job at once, bash_output reads what it writes, bash_stop ends it."
)
OUTPUT = (
    "Reads what a background job of bash has written since a place, both streams in order, and says whether it still "
    "runs and, if not, how it ended. Ask with `since` = `next` of the answer before, and with `wait` instead of asking "
    "again and again."
)
STOP = "Asks a background job of bash to stop, kills it two seconds later if need be, and says how it ended."


class Argument(Record):
    """One argument of a tool."""

    kind: str
    """A type of JSON: ``string``, ``number``, ``integer`` or ``boolean``."""
    about: str
    least: float | None = None
    most: float | None = None
    required: bool = False

    def schema(self) -> dict[str, object]:
        bounds = {"minimum": self.least, "maximum": self.most}
        given = {key: value for key, value in bounds.items() if value is not None}
        return {"type": self.kind, "description": self.about, **given}


ARGUMENTS: dict[str, dict[str, Argument]] = {
    "bash": {
        "command": Argument("string", "The command, as the shell takes it after -c.", required=True),
        "timeout": Argument("number", "Seconds until it is stopped.", 0),
        "cwd": Argument("string", "Where it begins, relative to the workspace."),
        "background": Argument("boolean", "Start a job and answer at once."),
    },
    "bash_output": {
        "job": Argument("string", "The id that bash gave.", required=True),
        "since": Argument("integer", "The place to read from: 0, or `next` of the last answer.", 0),
        "wait": Argument(
            "number", "Seconds to wait for output when there is none yet, or for the end.", 0, LONGEST_WAIT
        ),
    },
    "bash_stop": {"job": Argument("string", "The id that bash gave.", required=True)},
}
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


def input_schema(tool: str) -> dict[str, object]:
    arguments = ARGUMENTS[tool]
    return {
        "type": "object",
        "properties": {name: argument.schema() for name, argument in arguments.items()},
        "required": [name for name, argument in arguments.items() if argument.required],
        "additionalProperties": False,
    }


def checked(tool: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a call, None for each that is missing. Raises RequestError for what can't be used."""
    arguments = ARGUMENTS[tool]
    values: dict[str, Any] = dict.fromkeys(arguments)
    for name, value in (given or {}).items():
        if name not in arguments:
            raise wrong(tool, name, "there is no such argument", f"It takes {', '.join(arguments)}.")
        if value is not None:
            values[name] = usable(tool, name, value, arguments[name])
    for name, argument in arguments.items():
        if argument.required and values[name] is None:
            raise wrong(tool, name, "it is missing")
    return values


def usable(tool: str, name: str, value: object, argument: Argument) -> object:
    """Numbers may come as text: models write them so."""
    if argument.kind in ("number", "integer") and isinstance(value, str):
        text = value[:40]
        try:
            value = float(text) if argument.kind == "number" else int(text)
        except ValueError:
            raise wrong(tool, name, f"{escape(text)!r} is not a number") from None
    if not isinstance(value, KINDS[argument.kind]) or (isinstance(value, bool) and argument.kind != "boolean"):
        raise wrong(tool, name, f"it is {type(value).__name__}, not a {argument.kind}")
    if isinstance(value, int | float) and not in_bounds(value, argument):
        least, most = argument.least or 0, argument.most
        raise wrong(tool, name, f"{value} is not {f'from {least:g} to {most:g}' if most else f'{least:g} or more'}")
    return value


def in_bounds(value: float, argument: Argument) -> bool:
    """NaN is in no bounds."""
    least = argument.least if argument.least is not None else float("-inf")
    return least <= value <= (argument.most if argument.most is not None else float("inf"))


def wrong(tool: str, name: str, why: str, remedy: str = "") -> RequestError:
    return RequestError(f"could not use the argument {escape(name)!r} of {tool}: {why}", remedy=remedy)


class Answer(Record):
    """What a call of a tool is answered with: text for the model, and the facts."""

    text: str
    facts: dict[str, Any]
    failed: bool = False
    """The tool could not do it. Not what a command made of it: that is a fact."""


def result_answer(result: BashResult) -> Answer:
    return Answer(render(result), {"running": False, **result.to_json()})


def started_answer(state: BashResult | JobState, job: str) -> Answer:
    facts = {"running": isinstance(state, JobState), **state.to_json()}
    return Answer(f"{MARK} job {job} is started: bash_output reads it, bash_stop ends it\n", facts)


def stopped_answer(result: BashResult) -> Answer:
    """How the job ended, without its output: that has its own tool."""
    ending = [*markers(result)] or ["exit code 0"]
    text = "".join(f"{MARK} {line}\n" for line in (f"job {result.job} has ended", *ending))
    return Answer(text, {"running": False, **result.to_json()})


def chunk_answer(chunk: Chunk, state: BashResult | JobState) -> Answer:
    """A piece of a job's output, cut between characters, and its end once all was read."""
    data = chunk.data[:MOST_AT_ONCE]
    more = len(chunk.data) > len(data)
    if more or chunk.running:
        data = data[: whole_end(data)]
    result = state if isinstance(state, BashResult) and not more and not chunk.running else None
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "job": chunk.job,
        "running": chunk.running,
        "since": chunk.since,
        "next": chunk.since + len(data),
        "dropped": chunk.dropped,
        "more": more,
        **stream_fields("output", data),
        "result": None if result is None else {"running": False, **result.to_json()},
    }
    return Answer(chunk_text(chunk, data, more=more, result=result), facts)


def chunk_text(chunk: Chunk, data: bytes, *, more: bool, result: BashResult | None) -> str:
    lines = [f"{MARK} {chunk.dropped} bytes before this are not kept any more"] if chunk.dropped else []
    if data:
        lines.append(body_text(data).removesuffix("\n"))
    where = f"job {chunk.job}"
    if result is not None:
        lines += [f"{MARK} {line}" for line in (f"{where} has ended", *([*markers(result)] or ["exit code 0"]))]
    else:
        state = "has more to read" if more else "is running" if chunk.running else "has ended"
        lines.append(f"{MARK} {where} {state}: go on with since={chunk.since + len(data)}")
    return "\n".join(lines) + "\n"


def error_answer(error: StockadeError) -> Answer:
    """Nothing was run, or the sandbox failed: with a code that no command's failure has."""
    code = getattr(error, "code", None) or "REQUEST_REFUSED"
    facts = {"schema": SCHEMA, "error": {"code": code, "message": error.message, "remedy": error.remedy}}
    result = getattr(error, "result", None)
    if isinstance(result, BashResult):
        facts["result"] = {"running": False, **result.to_json()}
    text = f"{code}: {escape(error.message)}\n"
    return Answer(text + (f"{escape(error.remedy)}\n" if error.remedy else ""), facts, failed=True)


def _nullable(*kinds: str) -> dict[str, object]:
    return {"type": [*kinds, "null"]}


_RESULT: dict[str, object] = {
    "exit_code": _nullable("integer"),
    "signal": _nullable("integer"),
    "timed_out": {"type": "boolean"},
    "outcome": {"type": "string"},
    "reason": {"type": "string"},
    "stdout": {"type": "string"},
    "stderr": {"type": "string"},
    "stdout_truncated": {"type": "boolean"},
    "stderr_truncated": {"type": "boolean"},
    "stdout_file": _nullable("string"),
    "stderr_file": _nullable("string"),
    "sandbox": {
        "type": "object",
        "description": "What the sandbox did, apart from what the command did.",
        "properties": {
            "mode": {"type": "string"},
            "enforcement": {"type": "string"},
            "denied": {"type": "boolean"},
            "denials": {"type": "array", "items": {"type": "object"}},
            "runner_failed": {"type": "boolean"},
        },
    },
    "duration": {"type": "number"},
    "cwd": {"type": "string"},
}
_CHUNK: dict[str, object] = {
    "output": {"type": "string"},
    "since": {"type": "integer"},
    "next": {"type": "integer"},
    "dropped": {"type": "integer"},
    "more": {"type": "boolean"},
    "result": {"type": ["object", "null"], "properties": _RESULT},
}


def output_schema(tool: str) -> dict[str, object]:
    """What there is depends on how it went, so only the schema's name is sure."""
    own = _CHUNK if tool == "bash_output" else _RESULT
    common = {
        "schema": {"const": SCHEMA},
        "job": _nullable("string"),
        "running": {"type": "boolean"},
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("code", "message", "remedy")},
            "required": ["code", "message"],
        },
    }
    return {"type": "object", "properties": {**common, **own}, "required": ["schema"]}
