"""What a call asks for is checked before anything happens; each refusal says what is wrong."""

from __future__ import annotations

import os
import pathlib
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import RequestError, StockadeError
from stockade.sandbox.request import MAX_ARGUMENT, check_size, command_argv, directory, make_request


def request(command=("true",), *, cwd="/usr", env=None):
    return make_request(command, cwd=cwd, env=env)


def refused(*given, **named):
    with pytest.raises(RequestError) as caught:
        request(*given, **named)
    assert isinstance(caught.value, ValueError)
    assert caught.value.message.startswith("could not ")
    assert caught.value.message.isprintable()
    return caught.value.message


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("echo a  b", ("/bin/sh", "-c", "echo a  b")),
        (" ls ", ("/bin/sh", "-c", " ls ")),
        (["ls"], ("ls",)),
        (("ls", "", " ", "-l"), ("ls", "", " ", "-l")),
        ([b"ls", "-l"], ("ls", "-l")),
        ([b"a\xff"], ("a\udcff",)),
        ([pathlib.Path("/bin/ls")], ("/bin/ls",)),
        (iter(["a", "b"]), ("a", "b")),
    ],
)
def test_commands(command, argv):
    assert command_argv(command) == argv


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "it is empty"),
        ("   \n\t", "it is empty"),
        ([], "it is empty"),
        ([""], "it is empty"),
        ([b""], "it is empty"),
        (b"ls", "it is bytes, not a string or a list"),
        (bytearray(b"ls"), "it is bytearray, not"),
        (None, "it is NoneType, not"),
        (5, "it is int, not"),
        ([5], "argument 0: it is int, not text"),
        (["ls", None], "argument 1: it is NoneType, not text"),
        (["a\0b"], "argument 0: it has a NUL"),
        (["ls", b"\0"], "argument 1: it has a NUL"),
        ("ls\0", "the command: it has a NUL"),
        (["\ud800"], "argument 0: it has a lone surrogate"),
        ("\ud800", "the command: it has a lone surrogate"),
    ],
)
def test_commands_that_can_not_be_run(command, said):
    assert said in refused(command)


@pytest.mark.parametrize(
    ("env", "pairs"),
    [
        (None, ()),
        ({}, ()),
        ({"A": "1", "B": ""}, (("A", "1"), ("B", ""))),
        ({"a b": "x=y=z"}, (("a b", "x=y=z"),)),
        ({"P": pathlib.Path("/x")}, (("P", "/x"),)),
        ({b"A": b"\xff"}, (("A", "\udcff"),)),
    ],
)
def test_variables(env, pairs):
    assert request(env=env).env == pairs


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"": "x"}, "a name is not empty and has no '='"),
        ({"A=B": "x"}, "could not set the variable 'A=B'"),
        ({"=": ""}, "a name is not empty"),
        ({"A\0": "x"}, "has a NUL"),
        ({"A": "x\0"}, "the value of 'A': it has a NUL"),
        ({"A": 5}, "the value of 'A': it is int, not text"),
        ({5: "x"}, "it is int, not text"),
        ({"A": None}, "it is NoneType, not text"),
        ({"A": "\ud800"}, "lone surrogate"),
        ({"A\n\x1b[2J": 5}, r"A\n\x1b[2J"),
    ],
)
def test_variables_that_can_not_be_set(env, said):
    assert said in refused(env=env)


# --- sizes ------------------------------------------------------------------------------------------------


def test_one_argument_may_be_as_long_as_the_kernel_takes():
    assert request(["true", "x" * (MAX_ARGUMENT - 1)]).argv[1]
    assert "argument 1 has 131072 bytes, the kernel takes 131071" in refused(["true", "x" * MAX_ARGUMENT])
    assert "the command" in refused("x" * MAX_ARGUMENT)


def test_bytes_are_counted_and_not_letters():
    assert "argument 1 has" in refused(["true", "é" * (MAX_ARGUMENT // 2)])


def test_a_variable_counts_with_its_name():
    request(env={"A": "x" * (MAX_ARGUMENT - 3)})
    assert "the variable 'A' has" in refused(env={"A": "x" * (MAX_ARGUMENT - 2)})


def test_three_megabytes_are_too_much_together():
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    words = ["x" * 100_000] * (30 if stack == 8 << 20 else 70)
    assert "its arguments have" in refused(["true", *words])
    request(["true", *words[:5]])


def test_what_is_let_through_the_kernel_takes_too():
    """The largest command that passes here can really be executed."""
    words = ["x" * 100_000]
    while True:
        try:
            check_size((*words, words[0]), ())
        except StockadeError:
            break
        words.append(words[0])
    pid = os.fork()
    if pid == 0:
        try:
            os.execve("/bin/true", ["true", *words[1:]], {})
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- directories ------------------------------------------------------------------------------------------


def test_a_directory_is_resolved(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    real = str(tmp_path.resolve() / "real")
    for given_path in ("link", "./real", tmp_path / "link", f"{tmp_path}/real/../link/", "real/."):
        assert directory(given_path) == real
    monkeypatch.chdir("link")
    assert directory(None) == real


@pytest.mark.parametrize(
    "name", ["with space", "new\nline", "é", "\udcff\udcfe", "--write", "'", "$(id)", "a\tb", "*"]
)
def test_any_name_will_do(tmp_path, name):
    path = os.path.join(os.path.realpath(tmp_path), name)
    os.mkdir(path)
    assert directory(path) == path
    assert directory(os.fsencode(path)) == path


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("/nonexistent/x", "could not use the directory '/nonexistent/x': no such file"),
        ("/etc/passwd", "it is not a directory"),
        ("/etc/passwd/x", "not a directory"),
        ("", None),
        ("a\0b", "it has a NUL"),
        (5, "it is int, not text"),
        ("\ud800", "lone surrogate"),
        ("/none\n\x1b[2J", r"'/none\n\x1b[2J'"),
        ("x" * 5000, "file name too long"),
    ],
)
def test_directories_that_can_not_be_used(cwd, said):
    if said is not None:
        assert said in refused(cwd=cwd)


@pytest.mark.user
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100, 0o300])
def test_a_directory_that_is_closed_to_us(tmp_path, mode):
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut").chmod(mode)
    assert "permission denied" in refused(cwd=tmp_path / "shut")
    (tmp_path / "shut").chmod(0o500)
    assert request(cwd=tmp_path / "shut")


def test_a_current_directory_that_was_deleted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RequestError, match="could not use the current directory") as caught:
        request(cwd=None)
    assert "--cwd" in caught.value.remedy
    assert request(cwd="/usr").cwd == "/usr"
    monkeypatch.undo()


# --- anything ---------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(
    ANYTHING,
    st.none() | st.dictionaries(st.text(max_size=3) | st.binary(max_size=3) | st.integers(), ANYTHING, max_size=3),
)
def test_whatever_is_passed_is_taken_or_refused_in_words(command, env):
    try:
        made = request(command, env=env)
    except RequestError as error:
        said = error.message
    else:
        said = "could not "
        assert made.argv
        assert all("\0" not in word for word in (*made.argv, *(part for pair in made.env for part in pair)))
        assert all(os.fsencode(word) is not None for word in made.argv)
    assert said.startswith("could not ")
