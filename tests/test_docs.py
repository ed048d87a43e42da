"""The documents say what is true: examples are run, tables are compared with the code, named files exist.

Every fenced block of the documents has a language, and each language a way to be checked:
    console   lines "$ COMMAND" ("> ..." continues one) are run by sh in an empty directory of the block's own; what
              follows is the output of both streams, and "? N" the exit code (0 where none is given). In a line,
              [..] stands for anything; a line [...] for any number of lines.
    python    executed in an empty directory, warnings are errors
    toml      a policy, parsed
    sh        syntax only
    text      a drawing or a message, not checked here
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from stockade.policies.capability import CONNECTORS, EGRESS, REQUIRED, UNPRIVILEGED, WANTED
from stockade.policies.fields import ATTRIBUTES
from stockade.policies.model import parse_policy
from stockade.policies.presets import preset_names
from stockade.policies.resolve import load_policy
from stockade.sandbox.classify import OUTCOMES
from stockade.sandbox.result import RunResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/sandboxing.md", "docs/edge.md", "docs/hooks.md", "docs/bash.md", "docs/review.md")
REFERENCE = (ROOT / "docs/sandboxing.md").read_text(encoding="utf-8")
SECONDS = 60


class Block(NamedTuple):
    place: str
    language: str
    text: str


class Step(NamedTuple):
    command: str
    output: list[str]
    code: int


def blocks_of(name: str, text: str) -> list[Block]:
    """Every fenced block, named by file and line."""
    found = []
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(f"{name}:{line}", match[1], match[2]))
    return found


def steps_of(text: str) -> list[Step]:
    """A transcript as commands with what is expected of each."""
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], [], 0))
        elif line.startswith("> ") and not steps[-1].output:
            steps[-1] = steps[-1]._replace(command=f"{steps[-1].command}\n{line[2:]}")
        elif re.fullmatch(r"\? \d+", line):
            steps[-1] = steps[-1]._replace(code=int(line[2:]))
        else:
            steps[-1].output.append(line)
    return steps


def pattern_of(lines: list[str]) -> str:
    """Expected lines as a regular expression."""
    parts = []
    for line in lines:
        quoted = (re.escape(part) for part in line.split("[..]"))
        parts.append(r"(?:[^\n]*\n)*" if line == "[...]" else "[^\n]*".join(quoted) + r"\n")
    return "".join(parts)


def matches(lines: list[str], output: str) -> bool:
    ended = output if not output or output.endswith("\n") else output + "\n"
    return re.fullmatch(pattern_of(lines), ended) is not None


BLOCKS = [block for name in DOCUMENTS for block in blocks_of(name, (ROOT / name).read_text(encoding="utf-8"))]


def of(language: str) -> list[object]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.language == language]


# --- the reader of transcripts ----------------------------------------------------------------------------


def test_a_transcript_is_read() -> None:
    text = "$ one\nsaid\n? 3\n$ two <<E\n> more\n> E\n"
    assert steps_of(text) == [Step("one", ["said"], 3), Step("two <<E\nmore\nE", [], 0)]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        (["a"], "a\n", True),
        (["a"], "a", True),
        (["a"], "b\n", False),
        (["a"], "a\nb\n", False),
        ([], "", True),
        ([], "a\n", False),
        (["a [..] c"], "a b c\n", True),
        (["a [..] c"], "a\nc\n", False),
        (["a.c"], "abc\n", False),
        (["a", "[...]"], "a\nb\nc\n", True),
        (["a", "[...]"], "a\n", True),
        (["[...]", "c"], "a\nb\n", False),
    ],
)
def test_output_is_compared(expected: list[str], output: str, *, same: bool) -> None:
    assert matches(expected, output) is same


def test_blocks_are_found_with_their_lines() -> None:
    assert blocks_of("f", "a\n```sh\nx\n```\n\n```\ny\n```\n") == [
        Block("f:2", "sh", "x\n"),
        Block("f:6", "", "y\n"),
    ]


# --- the examples -----------------------------------------------------------------------------------------


def test_every_block_has_a_language_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} <= {"console", "python", "toml", "sh", "text"}
    assert {"console", "python", "toml"} <= {block.language for block in BLOCKS}


@pytest.fixture
def scene() -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory that anybody may enter and write (a root caller then takes another uid), and an environment with
    nothing of the caller's."""
    with tempfile.TemporaryDirectory(prefix="stockade-docs-") as top:
        place, home = Path(top, "project"), Path(top, "home")
        for path, mode in ((Path(top), 0o755), (home, 0o755), (place, 0o777)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "XDG_CACHE_HOME": f"{top}/cache",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONPATH": str(ROOT),
        }
        yield place, env


def run(words: list[str], scene: tuple[Path, dict[str, str]]) -> subprocess.CompletedProcess[str]:
    place, env = scene
    return subprocess.run(
        words,
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.kernel
@pytest.mark.parametrize("block", of("console"))
def test_a_transcript_is_what_happens(block: Block, scene: tuple[Path, dict[str, str]]) -> None:
    stockade = f"stockade() {{ '{sys.executable}' -m stockade \"$@\"; }}\n"
    for step in steps_of(block.text):
        done = run(["/bin/sh", "-c", stockade + step.command], scene)
        wanted = "\n".join(step.output)
        assert matches(step.output, done.stdout), f"$ {step.command}\n{done.stdout}\n--- expected\n{wanted}"
        assert done.returncode == step.code, f"$ {step.command}\n{done.stdout}"


@pytest.mark.kernel
@pytest.mark.parametrize("block", of("python"))
def test_a_program_runs(block: Block, scene: tuple[Path, dict[str, str]]) -> None:
    done = run([sys.executable, "-W", "error", "-c", block.text], scene)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("block", of("toml"))
def test_a_policy_is_one(block: Block) -> None:
    parse_policy(block.text, block.place)


@pytest.mark.parametrize("block", of("sh"))
def test_shell_is_well_formed(block: Block) -> None:
    done = subprocess.run(["/bin/sh", "-n"], input=block.text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


# --- the tables -------------------------------------------------------------------------------------------


def first_cells(heading: str) -> list[str]:
    """The code in the first column of the first table below a heading."""
    _, found, rest = REFERENCE.partition(f"\n{heading}\n")
    assert found, heading
    section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [
        name for row in re.findall(r"^\|([^|]*)\|", section, re.MULTILINE) for name in re.findall("`([^`]+)`", row)
    ]


def test_every_key_of_a_policy_is_in_the_reference() -> None:
    assert first_cells("### Keys") == [*ATTRIBUTES]


def test_every_preset_is_listed() -> None:
    assert first_cells("### Presets") == [*preset_names()]


@pytest.mark.parametrize("name", preset_names())
def test_presets_say_what_the_table_says(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|(.*)\|$", REFERENCE, re.MULTILINE)
    assert row
    cells = [cell.strip().strip("`") for cell in row[1].split("|")]
    policy = load_policy(name)
    limits = policy.limits
    said = [
        policy.filesystem.workspace,
        limits.timeout,
        limits.memory,
        limits.processes,
        limits.file_size,
        limits.tmp,
    ]
    assert cells[: len(said)] == [str(each) for each in said]


def test_every_outcome_is_listed() -> None:
    assert first_cells("### Outcomes") == [*OUTCOMES]


def test_every_field_of_a_result_is_described() -> None:
    described = first_cells("### The result, field by field")
    assert set(described) == {"schema", "stdout_base64", "stderr_base64", "error", "diff", *RunResult._fields}


def test_every_capability_is_described() -> None:
    needed = {*REQUIRED, *WANTED, *EGRESS["allow"], "seccomp", "limits", "drop-root", "overlay", UNPRIVILEGED.name}
    needed |= {"cgroup", "edge", *(CONNECTORS[asked] for asked in ("slirp4netns", "pasta"))}
    assert set(first_cells("## What the host must offer, and what degrades")) == needed


@pytest.mark.parametrize("name", [*DOCUMENTS, "SECURITY.md", "CHANGELOG.md"])
def test_what_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    files = re.findall(r"`((?:tests|scripts|examples|docs|policies|sandbox|netns)/[\w./-]+)`", text)
    missing = [path for path in links if not ((ROOT / name).parent / path).exists()]
    missing += [path for path in files if not (ROOT / path).exists()]
    assert not missing


def test_the_headings_that_are_linked_exist() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", REFERENCE, re.M)
    }
    wanted = re.findall(r"\(#([^)]+)\)", REFERENCE)
    wanted += re.findall(r"\(docs/sandboxing\.md#([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [each for each in wanted if each not in anchors] == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
    assert os.access(ROOT / "scripts/demo", os.X_OK)
    assert os.access(ROOT / "scripts/test", os.X_OK)


def test_the_page_on_hooks_names_every_finding_and_dialect() -> None:
    from stockade.sandbox.hooks.check import CODES
    from stockade.sandbox.hooks.dialects import NAMES

    words = set(re.findall(r"[a-z_0-9]+", (ROOT / "docs/hooks.md").read_text(encoding="utf-8")))
    assert set(CODES) - words == set()
    assert set(NAMES) - words == set()
