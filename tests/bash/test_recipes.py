"""The recipes of the documents, as they stand there, called the way their frameworks call a tool. No model is asked."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import pathlib
import re

import pytest
from boxes import processes_with, wait_until

import stockade
from stockade.sandbox import bwrap, probe
from stockade.sandbox.bash.output import MARK

pytestmark = pytest.mark.kernel
ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")


async def openai(made, **call):
    from agents.tool_context import ToolContext

    words = json.dumps(call)
    context = ToolContext(None, tool_name="bash", tool_call_id="1", tool_arguments=words)
    return await made["bash"].on_invoke_tool(context, words)


async def claude(made, **call):
    result = await made["bash"].handler(call)
    [part] = result["content"]
    if part["text"].startswith("SANDBOX_UNAVAILABLE: "):
        assert result["is_error"] is True
        raise stockade.SandboxUnavailable(part["text"], mode="auto")
    return part["text"]


async def langchain(made, **call):
    asked = {"type": "tool_call", "id": "1", "name": "bash", "args": call}
    return (await made["bash"].ainvoke(asked)).content


async def pydantic(made, **call):
    """An agent whose model makes the call, and then says what it was answered."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    answered = []

    def model(messages, _info):
        parts = [part for part in messages[-1].parts if part.part_kind in ("tool-return", "retry-prompt")]
        answered.extend(part.content for part in parts)
        return ModelResponse(parts=[TextPart("done") if parts else ToolCallPart("bash", call)])

    await made["agent"].run("go", model=FunctionModel(model))
    [text] = answered
    return text


RECIPES = {
    "OpenAI Agents SDK": ("openai-agents", openai),
    "Claude Agent SDK": ("claude-agent-sdk", claude),
    "LangChain": ("langchain-core", langchain),
    "Pydantic AI": ("pydantic-ai-slim", pydantic),
}


def code_of(title):
    """The program below a heading."""
    _, found, rest = TEXT.partition(f"\n## {title}\n")
    assert found, title
    [code] = re.findall(r"^```python\n(.*?)^```$", re.split(r"^## ", rest, flags=re.M)[0], re.M | re.S)
    return code


@pytest.fixture(autouse=True)
def in_a_small_place(place, monkeypatch):
    monkeypatch.chdir(place.ws)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.fixture(params=RECIPES, ids=[package for package, _call in RECIPES.values()])
def recipe(request):
    """What the recipe made, and how its tool is called."""
    package, call = RECIPES[request.param]
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    made = {"__name__": "recipe"}
    exec(compile(code_of(request.param), f"recipe for {package}", "exec"), made)
    yield made, call
    made["shell"].close()


def ask(recipe, **call):
    made, invoke = recipe
    return asyncio.run(invoke(made, **call))


def test_every_recipe_of_the_document_is_run():
    assert re.findall(r"^## (.*)$", TEXT, re.M)[:-1] == [*RECIPES]
    assert len(re.findall(r"^```python$", TEXT, re.M)) == len(RECIPES)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_is_short(title):
    assert len([line for line in code_of(title).splitlines() if line.strip()]) <= 28


def test_what_it_links_to_is_there():
    for path, anchor in re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", TEXT):
        text = (ROOT / "docs" / path).read_text(encoding="utf-8")
        titles = [title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in titles, anchor


def test_the_model_is_told_what_the_sandbox_allows(recipe):
    made, _invoke = recipe
    tool = made["bash"]
    if not hasattr(tool, "description"):
        [tool] = made["agent"]._function_toolset.tools.values()
    assert made["shell"].describe() == tool.description
    assert tool.name == "bash"


def test_a_command_and_its_denial(recipe, place):
    text = ask(recipe, command="echo made | tee marker; touch /usr/marker")
    assert text.startswith("made\n")
    assert f"{MARK} the sandbox probably denied" in text
    assert text.endswith(f"{MARK} exit code 1\n")
    with open(place.path("ws", "marker")) as file:
        assert file.read() == "made\n"
    assert not os.path.exists("/usr/marker")


def test_the_session_goes_on(recipe):
    ask(recipe, command="cd /etc; export SAID=hello")
    assert ask(recipe, command="echo $SAID $PWD") == "hello /etc\n"


def test_a_time_limit(recipe):
    assert f"{MARK} timed out after 0.5 s" in ask(recipe, command="sleep 60", timeout=0.5)


@pytest.mark.parametrize("call", [{"command": ""}, {"command": "true", "timeout": 601}])
def test_what_can_not_be_used_is_told_to_the_model(recipe, call):
    assert re.search(r"could not (run|use) ", ask(recipe, **call))


def test_a_host_that_can_not_confine_ends_the_run(recipe, place, monkeypatch, tmp_path):
    assert ask(recipe, command="touch before") == f"{MARK} no output\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bwrap, "TRUSTED_DIRECTORIES", ())
    monkeypatch.setattr(bwrap, "beside_interpreter", lambda: None)
    probe.forget()
    with pytest.raises(stockade.SandboxUnavailable):
        ask(recipe, command="touch after")
    probe.forget()
    assert os.listdir(place.ws) == ["before"]


def test_cancelling_the_agent_kills_the_command(recipe):
    made, invoke = recipe
    token = f"recipe-{os.urandom(6).hex()}"

    async def work():
        call = asyncio.create_task(invoke(made, command=f"sh -c 'sleep 300; :' {token}; :"))
        await asyncio.to_thread(wait_until, lambda: processes_with(token), "the command runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(work())
    assert not processes_with(token)
