"""``stockade mcp``: a client of the SDK against the server, and the bare protocol where a client would tidy up."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest
from boxes import PATIENCE, processes_with, wait_until
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from stockade.policies.errors import RequestError, SandboxUnavailable, StockadeError
from stockade.sandbox.bash import mcptools
from stockade.sandbox.bash.output import MARK
from stockade.sandbox.bash.result import Chunk, JobState
from stockade.sandbox.bash.tool import BashTool

COMMAND = (sys.executable, "-m", "stockade", "mcp")
KERNEL = pytest.mark.kernel
NO_BWRAP = (
    "import sys; from stockade.sandbox import bwrap\n"
    "bwrap.TRUSTED_DIRECTORIES, bwrap.beside_interpreter = (), lambda: None\n"
    "from stockade.sandbox.cli.main import console; console()"
)
NO_SDK = (
    "import sys; sys.modules['mcp_types'] = sys.modules['mcp'] = None\n"
    "from stockade.sandbox.cli.main import console; console()"
)


@pytest.fixture
def folder():
    """A workspace that a dropped root may come to and write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="stockade-test-") as top:
        made = pathlib.Path(top, "ws")
        made.mkdir()
        for path, mode in ((made, 0o777), (made.parent, 0o755)):
            path.chmod(mode)
        yield made


@pytest.fixture(autouse=True)
def in_a_small_place(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def token():
    return f"mcp-{os.urandom(6).hex()}"


def served(work, *options, mode="auto", command=COMMAND):
    """Do some work with a client of the SDK."""
    server = StdioServerParameters(command=command[0], args=[*command[1:], *options], env=dict(os.environ))

    async def session():
        async with Client(stdio_client(server), mode=mode) as client:
            return await asyncio.wait_for(work(client), PATIENCE * 3)

    return asyncio.run(session())


def text_of(result):
    [part] = result.content
    return part.text


async def called(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return text_of(result), result.structured_content


# --- what is offered --------------------------------------------------------------------------------------


@KERNEL
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_three_tools_with_schemas(mode):
    async def work(client):
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in served(work, mode=mode)}
    assert [*tools] == ["bash", "bash_output", "bash_stop"]
    with BashTool() as own:
        assert tools["bash"].description.startswith(own.describe())
    assert tools["bash"].input_schema["required"] == ["command"]
    assert tools["bash"].annotations.destructive_hint is True
    for name, tool in tools.items():
        assert tool.input_schema == mcptools.input_schema(name)
        assert tool.output_schema == mcptools.output_schema(name)


@KERNEL
def test_the_description_says_what_the_command_line_allows():
    async def work(client):
        [bash, *_others] = (await client.list_tools()).tools
        return bash

    bash = served(work, "--policy", "read-only", "--record-egress", "--session")
    assert "read-only" in bash.description
    assert "carry over" in bash.description
    assert "recorded" in bash.description
    assert bash.annotations.read_only_hint is True


# --- calls ------------------------------------------------------------------------------------------------


@KERNEL
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_command_a_denial_and_a_failure(folder, mode):
    """A denial and a code other than 0 are facts of a result, not errors of the tool."""

    async def work(client):
        first = await called(client, "bash", command="echo made | tee marker; echo aside >&2")
        second = await called(client, "bash", command="touch /usr/marker")
        third = await called(client, "bash", command="exit 7", cwd=".")
        return first, second, third

    (text, facts), (denied_text, denied), (failed_text, failed) = served(work, mode=mode)
    assert (facts["exit_code"], facts["stdout"], facts["stderr"]) == (0, "made\n", "aside\n")
    assert (facts["schema"], facts["running"], facts["sandbox"]["denied"]) == ("stockade.bash/1", False, False)
    assert text == "made\naside\n"
    assert (folder / "marker").read_text() == "made\n"
    assert denied["sandbox"]["denied"] is True
    assert denied["sandbox"]["denials"][0]["kind"] == "filesystem"
    assert f"{MARK} the sandbox probably denied" in denied_text
    assert not os.path.exists("/usr/marker")
    assert (failed["exit_code"], failed["sandbox"]["denied"]) == (7, False)
    assert failed_text == f"{MARK} exit code 7\n"


@KERNEL
def test_output_that_is_no_text():
    async def work(client):
        return await called(client, "bash", command=r"printf 'a\377\033[2Jb'")

    text, facts = served(work)
    assert base64.b64decode(facts["stdout_base64"]) == b"a\xff\x1b[2Jb"
    assert facts["stdout"] == "a�\x1b[2Jb"
    assert text == "a\\xff\\x1b[2Jb\n"


@KERNEL
def test_a_time_limit_of_a_call():
    async def work(client):
        return await called(client, "bash", command="echo begun; sleep 60", timeout=0.5)

    text, facts = served(work)
    assert (facts["timed_out"], facts["stdout"]) == (True, "begun\n")
    assert f"{MARK} timed out after 0.5 s" in text


@KERNEL
@pytest.mark.parametrize(
    ("options", "carried"),
    [((), False), (("--session",), True), (("--keep",), True)],
    ids=["fresh", "session", "keep"],
)
def test_state_from_call_to_call(options, carried):
    async def work(client):
        await called(client, "bash", command="export SAID=hello; cd /etc")
        return await called(client, "bash", command="echo [$SAID] $PWD")

    _text, facts = served(work, *options)
    assert (facts["stdout"] == "[hello] /etc\n") is carried


@KERNEL
def test_options_of_the_command_line_hold(folder):
    async def work(client):
        _text, facts = await called(client, "bash", command="echo $GIVEN; echo $0; pwd; touch marker")
        return facts

    (folder / "below").mkdir(mode=0o777)
    (folder / "below").chmod(0o777)
    facts = served(work, "--cwd", "below", "--policy", "read-only", "--env", "GIVEN=this", "--shell", "sh")
    assert facts["stdout"] == f"this\nsh\n{os.path.realpath(folder)}/below\n"
    assert (facts["exit_code"] != 0, facts["sandbox"]["mode"]) == (True, "read-only")
    assert list((folder / "below").iterdir()) == []


@KERNEL
def test_calls_at_the_same_time_do_not_wait_for_each_other():
    """The one that was asked later ends the one that was asked first."""

    async def work(client):
        waits = asyncio.create_task(
            called(client, "bash", command="until [ -e go ]; do sleep 0.05; done; echo went")
        )
        await called(client, "bash", command="touch go")
        return await waits

    assert served(work)[1]["stdout"] == "went\n"


@KERNEL
def test_progress_of_a_long_call():
    seen = []

    async def work(client):
        async def note(progress, total, message):
            seen.append((progress, total, message))

        await client.call_tool("bash", {"command": "sleep 1.4", "timeout": 30}, progress_callback=note)

    served(work)
    assert seen
    assert seen[0][0] >= 1
    assert seen[0][1] == 30
    assert seen[0][2] == "running for 1 s"


@KERNEL
@pytest.mark.parametrize("options", [(), ("--session",), ("--keep",)], ids=["fresh", "session", "keep"])
def test_cancelling_kills_the_whole_run(token, options):
    async def work(client):
        command = f"sh -c 'sleep 300; :' {token} & setsid sh -c 'sleep 300; :' {token}; wait"
        call = asyncio.create_task(client.call_tool("bash", {"command": command}))
        await asyncio.to_thread(wait_until, lambda: len(processes_with(token)) >= 2, "the command runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(wait_until, lambda: not processes_with(token), "it is gone")
        return await called(client, "bash", command="echo still here")

    assert served(work, *options)[1]["stdout"] == "still here\n"


@KERNEL
@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("bash", {}, "'command' of bash: it is missing"),
        ("bash", {"command": ""}, "it is empty"),
        ("bash", {"command": " \n"}, "it is empty"),
        ("bash", {"command": "a\0b"}, "NUL"),
        ("bash", {"command": 5}, "it is int, not a string"),
        ("bash", {"command": ["ls"]}, "it is list, not a string"),
        ("bash", {"command": "true", "timeout": 601}, "600"),
        ("bash", {"command": "true", "timeout": 0}, "timeout"),
        ("bash", {"command": "true", "timeout": -1}, "-1 is not 0 or more"),
        ("bash", {"command": "true", "timeout": "soon"}, "'soon' is not a number"),
        ("bash", {"command": "true", "background": "yes"}, "it is str, not a boolean"),
        ("bash", {"command": "true", "cwd": "no/such"}, "no/such"),
        ("bash", {"command": "true", "mode": "full-access"}, "'mode' of bash: there is no such argument"),
        ("bash", {"command": "true", "\x1b[2J": 1}, "x1b[2J"),
        ("bash_output", {"job": "job-99"}, "'job-99'"),
        ("bash_output", {"job": "job-99", "since": -1}, "-1 is not 0 or more"),
        ("bash_output", {"job": "job-99", "wait": 61}, "61 is not from 0 to 60"),
        ("bash_stop", {"job": ""}, "''"),
        ("bash_stop", {}, "'job' of bash_stop: it is missing"),
        ("rm", {}, "'rm': there is no such tool"),
    ],
)
def test_what_can_not_be_used_is_an_error_of_the_tool(server, tool, arguments, said):
    """With a code, and the words for the model. ``server`` serves all of these: none of them ends it."""
    result = server(tool, arguments)
    assert result["isError"] is True
    [part] = result["content"]
    assert part["text"].startswith("REQUEST_REFUSED: could not ")
    assert said in part["text"]
    assert part["text"].replace("\n", "").isprintable()
    assert result["structuredContent"]["error"]["code"] == "REQUEST_REFUSED"


@KERNEL
@pytest.mark.parametrize(("given", "code"), [({"timeout": "5"}, 0), ({"timeout": None}, 0), ({"cwd": None}, 0)])
def test_arguments_as_models_write_them(server, given, code):
    assert server("bash", {"command": "true", **given})["structuredContent"]["exit_code"] == code


# --- background jobs --------------------------------------------------------------------------------------


@KERNEL
def test_a_job_from_start_to_end():
    async def work(client):
        text, facts = await called(client, "bash", command="echo one; sleep 0.2; echo two; exit 3", background=True)
        assert facts["running"] is True
        job = facts["job"]
        assert job in text
        texts, since = [], 0
        while True:
            text, facts = await called(client, "bash_output", job=job, since=since, wait=10)
            texts.append(facts["output"])
            since = facts["next"]
            if not facts["running"]:
                return "".join(texts), since, text, facts, await called(client, "bash_stop", job=job)

    output, since, text, facts, (stop_text, stopped) = served(work)
    assert (output, since, facts["dropped"]) == ("one\ntwo\n", 8, 0)
    assert (facts["result"]["exit_code"], facts["result"]["stdout"]) == (3, "one\ntwo\n")
    assert text.endswith(f"has ended\n{MARK} exit code 3\n")
    assert (stopped["exit_code"], "one" in stop_text) == (3, False)


@KERNEL
def test_a_job_is_stopped(token):
    async def work(client):
        _text, facts = await called(
            client, "bash", command=f"echo on; sh -c 'sleep 300; :' {token}", background=True
        )
        await called(client, "bash_output", job=facts["job"], wait=20)
        text, stopped = await called(client, "bash_stop", job=facts["job"])
        return text, stopped, await called(client, "bash_output", job=facts["job"])

    text, stopped, (_text, last) = served(work)
    assert not processes_with(token)
    assert (stopped["running"], stopped["outcome"]) == (False, "stopped")
    assert f"{MARK} stopped: " in text
    assert (last["output"], last["running"], last["result"]["outcome"]) == ("on\n", False, "stopped")


@KERNEL
def test_there_is_a_most_of_jobs(token):
    async def work(client):
        for _number in range(2):
            await called(client, "bash", command=f"sleep 300; : {token}", background=True)
        refused = await client.call_tool("bash", {"command": "true", "background": True})
        return refused.is_error, text_of(refused), await called(client, "bash", command="echo in front")

    failed, text, (_text, facts) = served(work, "--jobs", "2")
    assert failed
    assert "2" in text
    assert facts["stdout"] == "in front\n"
    wait_until(lambda: not processes_with(token), "the jobs went with their client")


# --- the bare protocol ------------------------------------------------------------------------------------


class Bare:
    """A client that tidies nothing up: lines in, lines out."""

    def __init__(self, *options, command=COMMAND, **more):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, *options], stdin=pipe, stdout=pipe, stderr=pipe, **more)
        self.count = 0
        self.lines = []

    def send(self, method, params=None, *, answered=True):
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if answered:
            self.count += 1
            message["id"] = self.count
        self.raw(json.dumps(message).encode())
        return self.count

    def raw(self, line):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def greet(self):
        info = {"name": "bare", "version": "0"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info})
        self.send("notifications/initialized", answered=False)
        return self

    def ask(self, method, params=None):
        return self.answer(self.send(method, params))

    def answer(self, number):
        while True:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.lines.append(json.loads(line))
            if self.lines[-1].get("id") == number:
                return self.lines[-1]

    def call(self, tool, arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["result"]

    def end(self):
        """Exit code; every line that came on standard output was one of the protocol's."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        rest = self.process.stdout.read()
        self.lines += [json.loads(line) for line in rest.splitlines()]
        assert all(line.get("jsonrpc") == "2.0" for line in self.lines)
        self.said = self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.wait(PATIENCE)


@pytest.fixture
def bare():
    made = []

    def make(*options, **more):
        made.append(Bare(*options, **more))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for what leaves nothing behind."""
    place = tmp_path_factory.mktemp("served")
    place.chmod(0o777)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.getbasetemp() / "own-cache")}
    made = Bare("--cwd", str(place), env=env).greet()
    yield made.call
    assert made.end() == 0
    assert made.said == ""


@KERNEL
def test_nothing_but_the_protocol_on_standard_output(bare, folder):
    """Also where the tool has something to say, and where lines come that are none of the protocol's."""
    client = bare("--policy", "full-access").greet()
    client.raw(b"what is this")
    client.raw(b"\xff\xfe{}")
    client.raw(b'{"jsonrpc": "2.0", "id": 77, "method": "no/such"}')
    assert (
        client.call("bash", {"command": "echo hi; echo err >&2; touch marker"})["structuredContent"]["stdout"]
        == "hi\n"
    )
    assert "error" in client.ask("tools/call", {"arguments": {}})
    assert client.end() == 0
    assert (folder / "marker").exists()
    assert "Traceback" not in client.said


@KERNEL
def test_a_client_that_closes_its_end_ends_all_that_runs(bare, token):
    client = bare().greet()
    client.call("bash", {"command": f"sh -c 'sleep 300; :' {token}", "background": True})
    client.send("tools/call", {"name": "bash", "arguments": {"command": f"sh -c 'sleep 301; :' {token}"}})
    client.send("tools/call", {"name": "bash_output", "arguments": {"job": "job-1", "wait": 60}})
    wait_until(lambda: len(processes_with(token)) >= 2, "both run")
    assert client.end() == 0
    assert processes_with(token) == []
    assert "Traceback" not in client.said


@KERNEL
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_all_that_runs(bare, token, number, tmp_path):
    """And leaves nothing in the place for temporary files, but for SIGKILL, after which the next one clears away."""
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    env = {**os.environ, "TMPDIR": str(spilled)}
    client = bare(env=env).greet()
    result = client.call("bash", {"command": "head -c 200000 /dev/zero"})["structuredContent"]
    assert os.path.getsize(result["stdout_file"]) == 200000
    assert result["stdout_file"].startswith(str(spilled))
    client.call("bash", {"command": f"sh -c 'sleep 300; :' {token}", "background": True})
    wait_until(lambda: processes_with(token), "the job runs")
    client.process.send_signal(number)
    assert client.process.wait(PATIENCE) == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not processes_with(token), "the job is gone")
    client.process.stdin.close()
    client.end()
    assert "Traceback" not in client.said
    assert bool(os.listdir(spilled)) == (number == signal.SIGKILL)
    with BashTool(spill_dir=spilled) as tool:
        assert tool.run("head -c 200000 /dev/zero").stdout_file is not None
    assert os.listdir(spilled) == []


@KERNEL
def test_a_host_that_can_not_confine(bare, folder, tmp_path):
    """Refused with the code of it, in the text and as a fact; told to the person too. Nothing ran."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    client = bare(command=(sys.executable, "-c", NO_BWRAP, "mcp"), env=env).greet()
    result = client.call("bash", {"command": "touch marker"})
    job = client.call("bash", {"command": "touch marker", "background": True})
    if not job["isError"]:
        job = client.call("bash_output", {"job": "job-1", "wait": 20})
        assert job["structuredContent"]["result"]["sandbox"]["runner_failed"] is True
    assert client.end() == 0
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("SANDBOX_UNAVAILABLE: could not confine")
    assert result["structuredContent"]["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert result["structuredContent"]["error"]["remedy"]
    assert "can't confine" in client.said
    assert not (folder / "marker").exists()


# --- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["more"], "could not use the argument 'more'"),
        (["--session", "--keep"], "could not use session and keep together"),
        (["--jobs", "many"], "could not use --jobs 'many'"),
        (["--cwd", "no/such"], "could not use the directory 'no/such'"),
        (["--policy", "no-such"], "no-such"),
        (["--shell", "-x"], "could not use the shell '-x'"),
        (["--shell", "sh", "--session"], "session"),
        (["--allow", "a.example", "--record-egress"], "could not combine"),
        (["--trusted"], "there is no such option"),
    ],
)
def test_what_the_command_line_can_not_use(words, said):
    done = subprocess.run([*COMMAND, *words], input=b"", capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (125, b""), done.stderr
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_without_the_sdk_it_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", NO_SDK, "mcp"], input=b"", capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.decode().splitlines()[-1] == "pip install 'stockade[mcp]'"
    helped = subprocess.run([sys.executable, "-c", NO_SDK, "mcp", "--help"], capture_output=True, timeout=PATIENCE)
    assert (helped.returncode, b"stockade[mcp]" in helped.stdout) == (0, True)


def test_a_client_that_says_nothing():
    done = subprocess.run(COMMAND, input=b"", capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# --- values (pure) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "usable"),
    [
        *((good, True) for good in (0, 0.5, "7.5", 600)),
        *((bad, False) for bad in (True, "", float("nan"), "nan", -0.1, [], "x" * 5000)),
    ],
)
def test_numbers(value, usable):
    if usable:
        assert mcptools.checked("bash", {"command": "x", "timeout": value})["timeout"] == float(value)
    else:
        with pytest.raises(RequestError, match="could not use the argument 'timeout' of bash"):
            mcptools.checked("bash", {"command": "x", "timeout": value})


STATE = JobState("job-1", "x", "read-only", 1.0, 0)


@pytest.mark.parametrize(
    ("data", "running", "output", "after", "more"),
    [
        (b"", True, "", 10, False),
        (b"ab", True, "ab", 12, False),
        (b"ab\xc3", True, "ab", 12, False),
        (b"ab\xc3", False, "ab�", 13, False),
        (b"ab\xff", True, "ab�", 13, False),
        (b"a" * 64_001, True, "a" * 64_000, 64_010, True),
        (b"a" * 63_999 + "é".encode(), False, "a" * 63_999, 64_009, True),
    ],
)
def test_pieces_of_output_are_cut_between_characters(data, running, output, after, more):
    answer = mcptools.chunk_answer(Chunk("job-1", data, 10, 10 + len(data), 0, running), STATE)
    assert (answer.facts["output"], answer.facts["next"], answer.facts["more"]) == (output, after, more)
    assert f"since={after}" in answer.text


def test_what_was_dropped_is_said_and_foreign_text_is_spelt_out():
    answer = mcptools.chunk_answer(Chunk("job-1", b"x\x1b[2J\n[stockade] fake", 100, 120, 90, True), STATE)
    assert answer.text == (
        f"{MARK} 90 bytes before this are not kept any more\nx\\x1b[2J\n\\[stockade] fake\n"
        f"{MARK} job job-1 is running: go on with since=121\n"
    )
    assert answer.facts["dropped"] == 90


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("could not x: y", remedy="Do z."), "REQUEST_REFUSED"),
        (SandboxUnavailable("could not x: y", mode="auto", remedy="Do z."), "SANDBOX_UNAVAILABLE"),
        (StockadeError("could not x: y", remedy="Do z."), "REQUEST_REFUSED"),
    ],
)
def test_errors_have_codes(error, code):
    answer = mcptools.error_answer(error)
    assert (answer.failed, answer.text) == (True, f"{code}: could not x: y\nDo z.\n")
    assert answer.facts["error"] == {"code": code, "message": "could not x: y", "remedy": "Do z."}


@pytest.mark.parametrize("tool", [*mcptools.ARGUMENTS])
def test_schemas_are_schemas(tool):
    import jsonschema

    for schema in (mcptools.input_schema(tool), mcptools.output_schema(tool)):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
