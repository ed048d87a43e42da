"""The option table, its parser and its help, by tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import RequestError
from stockade.sandbox.cli.options import Option, UsageError, edit_distance, parse, render_help, wrap

TABLE = (
    Option(("-p", "--policy"), "policy", "value", "NAME", "the policy"),
    Option(("--allow",), "allow", "append", "HOST", "one more host"),
    Option(("--trusted",), "trusted", "flag", "", "it is your own code"),
    Option(("-v", "--verbose"), "verbose"),
    Option(("--json",), "json", "optional-file", "FILE", "the result as a document", "Output"),
)
NOTHING = {"policy": None, "allow": (), "trusted": False, "verbose": False, "json": None}


@pytest.mark.parametrize(
    ("argv", "values", "words"),
    [
        ([], {}, ()),
        (["--policy", "p"], {"policy": "p"}, ()),
        (["--policy=p"], {"policy": "p"}, ()),
        (["--policy=a=b"], {"policy": "a=b"}, ()),
        (["--policy="], {"policy": ""}, ()),
        (["--policy", ""], {"policy": ""}, ()),
        (["--policy=--trusted"], {"policy": "--trusted"}, ()),
        (["-p", "p"], {"policy": "p"}, ()),
        (["-p", "-"], {"policy": "-"}, ()),
        (["-p", "-5"], {"policy": "-5"}, ()),
        (["--allow", "a", "--allow=b", "--allow", "c"], {"allow": ("a", "b", "c")}, ()),
        (["--trusted", "-v", "--trusted"], {"trusted": True, "verbose": True}, ()),
        (["--json"], {"json": True}, ()),
        (["--json=f"], {"json": "f"}, ()),
        (["--json", "f"], {"json": True}, ("f",)),
        (["ls", "-l", "--trusted"], {}, ("ls", "-l", "--trusted")),
        (["--trusted", "ls", "--", "x"], {"trusted": True}, ("ls", "--", "x")),
        (["--trusted", "--", "ls", "-l"], {"trusted": True}, ("ls", "-l")),
        (["--", "--policy"], {}, ("--policy",)),
        (["--"], {}, ()),
        (["--", "--"], {}, ("--",)),
        (["-", "--trusted"], {}, ("-", "--trusted")),
        (["", "--trusted"], {}, ("", "--trusted")),
    ],
)
def test_command_lines_that_start_a_command(argv, values, words):
    parsed = parse(TABLE, argv, rest="command")
    assert parsed.values == {**NOTHING, **values}
    assert parsed.rest == words


@pytest.mark.parametrize(
    ("argv", "values", "words"),
    [
        (["a", "--trusted", "b"], {"trusted": True}, ("a", "b")),
        (["a", "--", "--trusted"], {}, ("a", "--trusted")),
        (["-"], {}, ("-",)),
    ],
)
def test_words_between_options(argv, values, words):
    assert tuple(parse(TABLE, argv, rest="args")) == ({**NOTHING, **values}, words)


@pytest.mark.parametrize(
    ("argv", "message", "remedy"),
    [
        (
            ["--polcy", "p"],
            "could not read the option '--polcy': there is no such option",
            "did you mean --policy?",
        ),
        (["--verbsoe"], "'--verbsoe': there is no such option", "did you mean --verbose?"),
        (["--zzzzzzzzz"], "'--zzzzzzzzz': there is no such option", "--help lists the options"),
        (["-x"], "'-x': there is no such option", ""),
        (["-pname"], "'-pname': there is no such option", "stand alone: -p 'name'"),
        (["--pol=x"], "'--pol': there is no such option", ""),
        (["---"], "'---': there is no such option", ""),
        (["--\x1b[2J"], "'--\\x1b[2J': there is no such option", ""),
        (["--policy"], "'--policy': its value is missing", "write --policy NAME"),
        (["-p"], "'-p': its value is missing", "write -p NAME"),
        (["--policy", "--"], "'--policy': its value is missing", "--policy=-- if that is the value"),
        (["--policy", "--trusted"], "'--policy': its value is missing", "--policy=--trusted if that is the value"),
        (["--policy", "--json=f"], "'--policy': its value is missing", ""),
        (["--policy=a", "-p", "b"], "'-p': it is given twice", "once"),
        (["--json", "--json=f"], "'--json': it is given twice", ""),
        (["--json="], "'--json': the file name is empty", ""),
        (["--trusted=yes"], "'--trusted': it takes no value", "write --trusted alone"),
        (["--trusted="], "'--trusted': it takes no value", ""),
        (["word"], "could not use the argument 'word': none is expected here", ""),
        (["--", "word"], "could not use the argument 'word'", ""),
    ],
)
def test_mistakes(argv, message, remedy):
    with pytest.raises(UsageError) as caught:
        parse(TABLE, argv, rest="none")
    assert isinstance(caught.value, RequestError)
    assert message in caught.value.message
    assert remedy in caught.value.remedy
    assert caught.value.message.isprintable()
    assert caught.value.remedy.isprintable()


def test_an_empty_table_knows_no_option():
    with pytest.raises(UsageError):
        parse([], ["--help"], rest="none")


words = st.sampled_from(
    [
        "--policy",
        "--policy=x",
        "-p",
        "--allow",
        "--trusted",
        "-v",
        "--json",
        "--json=f",
        "--",
        "-",
        "",
        "ls",
        "--nope",
    ]
)


@given(st.lists(words), st.sampled_from(["command", "args", "none"]))
def test_every_line_is_read_or_refused_and_nothing_is_lost(argv, rest):
    try:
        parsed = parse(TABLE, argv, rest=rest)
    except UsageError:
        return
    assert parsed.values.keys() == NOTHING.keys()
    if rest == "command":
        assert list(parsed.rest) == argv[len(argv) - len(parsed.rest) :]
    assert parsed.rest == () or rest != "none"


@given(st.lists(st.text()))
def test_what_follows_the_dashes_is_the_command_exactly(command):
    assert parse(TABLE, ["-v", "--", *command], rest="command").rest == tuple(command)


@given(st.text(), st.lists(st.text(), max_size=4))
def test_a_value_after_an_equals_sign_is_exact(value, hosts):
    parsed = parse(TABLE, [f"--policy={value}", *(f"--allow={host}" for host in hosts)], rest="none")
    assert (parsed.values["policy"], parsed.values["allow"]) == (value, tuple(hosts))


@pytest.mark.parametrize(
    ("one", "two", "distance"),
    [
        ("", "", 0), ("a", "", 1), ("", "ab", 2), ("abc", "abc", 0), ("abc", "abd", 1), ("abc", "acb", 1),
        ("abcd", "acbd", 1), ("ab", "ba", 1), ("kitten", "sitting", 3), ("a" * 99, "a" * 40, 0),
    ],
)  # fmt: skip
def test_edit_distance(one, two, distance):
    assert edit_distance(one, two) == edit_distance(two, one) == distance


HELP = """\
usage: stockade run [options] -- CMD...

Run a command, confined.

Options:
  -p, --policy NAME  the policy
  --allow HOST       one more host
  --trusted          it is your own code
  -v, --verbose

Output:
  --json[=FILE]      the result as a document

Examples:
  stockade run -- true
"""


def test_help():
    usage = "stockade run [options] -- CMD..."
    assert render_help(usage, "Run a command, confined.", TABLE, "Examples:\n  stockade run -- true") == HELP


@pytest.mark.parametrize(("width", "used"), [(20, 80), (80, 80), (90, 90), (300, 100)])
def test_help_is_wrapped(width, used):
    long = Option(("--a-very-long-option-name-indeed",), "x", "value", "SOMETHING", "word " * 60)
    text = render_help("x", "word " * 80, [long, *TABLE], "", width=width)
    assert max(map(len, text.splitlines())) <= used
    assert max(map(len, text.splitlines())) > used - 6
    assert "  --a-very-long-option-name-indeed SOMETHING\n      " in text
    assert text.count("word") == 140


@given(st.text(" ab\n", max_size=60), st.integers(1, 12))
def test_wrapping_keeps_every_word_in_order(text, width):
    lines = wrap(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or " " not in line for line in lines)
