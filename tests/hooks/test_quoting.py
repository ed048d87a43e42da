"""Whatever a command's text is: the real shell hands exactly that text to what stands in front of it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks.quoting import (
    CONTINUED,
    OWN_SHELL,
    join,
    literal,
    quote,
    split,
    taken_apart,
    taken_apart_words,
    unliteral,
    wrapped,
)

NASTY = (
    "", " ", "'", "''", "'''", '"', "\\", "\\\\", "\\'", "'\\''", "$HOME", "${CLAUDE_PLUGIN_ROOT}/x", "`id`", "$(id)", "!x",
    "a\nb", "a\n", "a\n\n", "a\n#", "a\n##", "#", "\n", "\n#", "\r\n", "a;b|c&d", "*?[a]{b,c}", "~", "=ls", "x=y", "%1",
    "STOCKADE", "x\nSTOCKADE\n)", "x\nSTOCKADE\nSTOCKADE_1\ny", "é \u202e 漢", "-n", "--", "tab\there", "a\\\nb", "a \\\n",
    "cat <<'X'\n$a\nX", "case x in x) echo ')';; esac", "echo \"it's\"", '"$SHELL"',
)  # fmt: skip
CONTROL = "\x01\x7f"
texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.sampled_from("ab '\"\\$`!\n\r\t#;&|<>(){}[]*?~=%-/é"), max_size=24),
    st.text(st.characters(exclude_characters="\0\x01\x7f", exclude_categories=("Cs",)), max_size=24),
)
heads = st.lists(texts.filter(lambda each: each != "--"), max_size=4).map(
    lambda more: ("/opt/a b/stockade", "hook", "--dialect", "claude", *more)
)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    """A program that writes its arguments to stdout, each ended by a NUL, and may be called by any user."""
    top = tmp_path_factory.mktemp("with space ' and quote")
    path = top / "stockade"
    path.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def shells(*names: str) -> list[str]:
    """Those of the shells that this host has; ``sh`` is always there."""
    return [name for name in names if shutil.which(name)]


def heard(shell: str, line: str) -> list[str]:
    done = subprocess.run(
        [shell, "-c", line],
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "SHELL": "/bin/the own sh"},
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, b""), (line, done)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("shell", shells("sh", "dash", "bash", "zsh", "fish"))
@pytest.mark.parametrize("text", [*NASTY, CONTROL])
def test_each_nasty_text_reaches_the_program_as_it_is(shell, text, recorder):
    assert heard(shell, wrapped((recorder, "hook"), "sh", text)) == ["hook", "--", "sh", "-c", text]


@settings(max_examples=150, deadline=None)
@given(words=st.lists(texts, min_size=1, max_size=6))
@example(words=list(NASTY))
def test_any_words_reach_the_program_as_they_are(words, recorder):
    line = join((recorder, *words))
    assert heard("sh", line) == words
    assert split(line) == (recorder, *words)


@pytest.mark.parametrize("shell", shells("bash", "dash"))
@pytest.mark.parametrize("text", NASTY)
def test_a_literal_reaches_the_program_as_it_is_but_for_a_comment_that_keeps_its_end(shell, text, recorder):
    *before, got = heard(shell, wrapped((recorder, "hook"), "bash", text, as_literal=True))
    assert before == ["hook", "--", "bash", "-c"]
    assert got == text + "#" * (text.rstrip("#").endswith("\n"))


@settings(max_examples=100, deadline=None)
@given(text=texts)
@example(text="\\\n")
def test_any_literal_is_heard_and_read_back(text, recorder):
    if CONTINUED.search(text):
        with pytest.raises(ValueError, match="ends in a backslash"):
            literal(text)
        return
    got = heard("bash", f"{quote(recorder)} {literal(text)}")[0]
    assert got in (text, text + "#")
    assert unliteral(literal(text)) == text


@pytest.mark.parametrize(
    "put", ["/plain/path", "'/with space'", '"it\'s"', "/back\\\\slash", "/dollar\\$x", "'/a;touch pwned'"]
)
def test_what_a_host_puts_into_a_literal_is_text_for_the_inner_shell(put, recorder):
    """A host that replaces a placeholder by a quoted path does so before any shell sees the line."""
    text = 'node $GEMINI_PROJECT_DIR/hook.js "it\'s"'
    line = wrapped((recorder, "hook"), "bash", text, as_literal=True).replace("$GEMINI_PROJECT_DIR", put)
    assert heard("bash", line)[-1] == text.replace("$GEMINI_PROJECT_DIR", put)


def test_the_same_in_plain_quotes_would_break_out(recorder, tmp_path, monkeypatch):
    """The control of the test above: why a literal is needed."""
    monkeypatch.chdir(tmp_path)
    line = wrapped((recorder, "hook"), "bash", "node $P").replace("$P", "'/a;touch pwned;'")
    heard_it = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert heard_it.returncode != 0
    assert (tmp_path / "pwned").exists()


def test_the_callers_own_shell_is_filled_in_by_the_outer_shell(recorder):
    line = wrapped((recorder, "hook"), OWN_SHELL, "echo $SHELL")
    assert '-- "$SHELL" -c ' in line
    assert heard("sh", line) == ["hook", "--", "/bin/the own sh", "-c", "echo $SHELL"]


@given(head=heads, text=texts, shell=st.sampled_from(["sh", "bash", OWN_SHELL]), as_literal=st.booleans())
def test_what_was_wrapped_is_taken_apart_again(head, text, shell, as_literal):
    found = taken_apart(wrapped(head, shell, text, as_literal=as_literal))
    assert found is not None
    assert found.head == head
    assert found.inner == (shell, "-c", text)


@given(head=heads, rest=st.lists(texts, min_size=1, max_size=4))
def test_so_are_a_program_and_its_arguments(head, rest):
    assert taken_apart_words((*head, "--", *rest)) == (head, tuple(rest))


@pytest.mark.parametrize(
    ("line", "head", "rest"),
    [
        ("stockade hook -- ./guard.sh", ("stockade", "hook"), "./guard.sh"),
        (
            "uv run stockade hook --observe -- true; evil",
            ("uv", "run", "stockade", "hook", "--observe"),
            "true; evil",
        ),
        (
            'python3 -m stockade hook -- node "$CLAUDE_PROJECT_DIR/x.js"',
            ("python3", "-m", "stockade", "hook"),
            'node "$CLAUDE_PROJECT_DIR/x.js"',
        ),
        ("'/opt/a b/stockade' hook  --  sh", ("/opt/a b/stockade", "hook"), "sh"),
    ],
)
def test_a_wrapper_in_somebody_elses_words_is_seen_with_all_that_follows_it(line, head, rest):
    found = taken_apart(line)
    assert found is not None
    assert (found.head, found.rest) == (head, rest)


@pytest.mark.parametrize(
    "line",
    [
        "", "echo stockade hook -- x", "stockade hook", "stockade run -- x", "cd /x && stockade hook -- y",
        "hook -- x", "true; stockade hook -- x", "`stockade hook -- x`", '"stockade" hook -- x',
        "$(evil) stockade hook -- x", "stockade hook --policy $(evil) -- x", "rm -rf stockade hook -- x",
        "python3 evil.py stockade hook -- x", "notstockade hook -- x", "stockade\nhook -- x",
        "stockade hook --\nevil",
    ],
)  # fmt: skip
def test_no_other_command_is_taken_for_a_wrapped_one(line):
    assert taken_apart(line) is None


@given(st.text(st.sampled_from("stockade hook--'\"$;&\\ \n()<>"), max_size=40))
def test_reading_back_never_fails(line):
    taken_apart(line)
    taken_apart("stockade hook -- " + line)
    split(line)
    unliteral(line)


def test_what_no_argument_can_hold_is_refused():
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")
    with pytest.raises(ValueError, match="control"):
        literal(CONTROL)
