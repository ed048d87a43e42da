"""What a command is going to execute: tables, and the real shell as the judge of words."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks.words import simple_words, target

ENV = {"R": "/a b", "HOME": "/h", "E": "", "S": " x "}


@pytest.mark.parametrize(
    ("argv", "program", "script"),
    [
        (["python3", "guard.py"], "python3", "guard.py"),
        (["python3.11", "-u", "h.py", "x"], "python3.11", "h.py"),
        (["python3", "-W", "ignore", "h.py"], "python3", "h.py"),
        (["python3", "-c", "import x", "y"], "python3", ""),
        (["python3", "-m", "pkg"], "python3", ""),
        (["python3"], "python3", ""),
        (["node", "--require", "./r.js", "s.js"], "node", "s.js"),
        (["node", "-e", "1", "s.js"], "node", ""),
        (["node", "--", "s.js"], "node", "s.js"),
        (["bash", "x.sh", "arg"], "bash", "x.sh"),
        (["deno", "run", "-A", "x.ts"], "deno", "x.ts"),
        (["deno", "fmt"], "deno", ""),
        (["bun", "./x.ts"], "bun", "./x.ts"),
        (["bun", "install"], "bun", ""),
        (["env", "A=1", "python3", "h.py"], "python3", "h.py"),
        (["env", "-i", "python3", "h.py"], "env", ""),
        (["sh", "-c", 'python3 "$R/h.py"'], "python3", "/a b/h.py"),
        (["sh", "-c", "python3 $R/h.py"], "python3", "/a"),
        (["bash", "-lc", "node ~/h.js"], "node", "/h/h.js"),
        (["sh", "-c", "X=1 ${R}"], "/a", ""),
        (["sh", "-c", "bash -c 'node h.js'"], "node", "h.js"),
        (["jq", "."], "jq", ""),
    ],
)
def test_the_program_and_its_script(argv, program, script):
    found = target(argv, ENV)
    assert (found.program, found.script) == (program, script)


@pytest.mark.parametrize(
    "text",
    [
        "a | b",
        "a && b",
        "a; b",
        "$(a)",
        "`a`",
        "a > b",
        "a *",
        "${R:-x}",
        "if a",
        "'a",
        '"a',
        "a\\",
        "~bob/x",
        "a\nb",
        "$1",
        '"`a`"',
    ],
)
def test_nothing_is_claimed_of_more_syntax(text):
    if text == "if a":
        assert simple_words(text, ENV) == ["if", "a"]  # the shell's own complaint, not ours
    else:
        assert target(["sh", "-c", text], ENV) is None


def test_nesting_ends():
    words = ["sh", "-c", "sh"]
    for _ in range(10):
        words = ["env", *words]
    assert target(words, ENV) is None


PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            "b/c",
            " ",
            "  ",
            "\t",
            "'x y'",
            '"x y"',
            "$R",
            '"$R"',
            "${E}",
            "$S",
            "\\ ",
            "\\'",
            '"\\""',
            "=",
            "-",
            "'$R'",
            "é",
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=120, deadline=None)
@given(PIECES)
def test_words_are_those_of_the_real_shell(text):
    words = simple_words("printf %s\\\\0 " + text, ENV)
    done = subprocess.run(
        ["/bin/sh", "-c", "printf '%s\\0' " + text], env=ENV, capture_output=True, check=True, timeout=20
    )
    expected = done.stdout.decode().split("\0")[:-1]
    assert words is not None
    assert (words[2:] or [""]) == expected
