"""Shell texts taken apart, and the files that a handler's command stands for."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.hooks.model import HookSpec
from stockade.sandbox.hooks.scripts import resolve_scripts, scripts
from stockade.sandbox.hooks.shelltext import commands, unfinished

LINES = [
    ("a b; c", [("a", "b"), ("c",)]),
    ("a && b || c & d | e", [("a",), ("b",), ("c",), ("d",), ("e",)]),
    ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
    ("X=1 Y=2 a", [("a",)]),
    ("if [ -f x ]; then a; else b; fi", [("[", "-f", "x", "]"), ("a",), ("b",)]),
    ("a > out 2>&1 < in", [("a",)]),
    ("a # b\nc", [("a",), ("c",)]),
    ("a <<EOF\nnot a command; x\nEOF\nb", [("a",), ("b",)]),
    ("a <<-'E'\n\tx\n\tE\nb", [("a",), ("b",)]),
    ('a "$(b "c d" | e)"', [("a", '"$(b "c d" | e)"'), ("b", "c d"), ("e",)]),
    ("a `b c`", [("a", "`b c`"), ("b", "c")]),
    ("sh -c 'a b; c'", [("sh", "-c", "a b; c"), ("a", "b"), ("c",)]),
    ("eval 'a b'", [("eval", "a b"), ("a", "b")]),
    ("a $V \"$V\" '$V' \\$V", [("a", "v", "v", "$V", "$V")]),
    ("a ${V} ${V:-x} ${W:-x} ${V%y}", [("a", "v", "v", "${W:-x}", "${V%y}")]),
    ("~/a ~", [("/h/a", "/h")]),
    ("(a; b)", [("a",), ("b",)]),
    ("a \\\n b", [("a", "b")]),
    ("a *.py", [("a", "*.py")]),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_a_shell_text_as_simple_commands(text, expected):
    assert [each.texts() for each in commands(text, {"V": "v", "HOME": "/h"})] == expected


def test_variables_outside_and_inside_of_quotes():
    (command,) = commands('a $X "$Y" ${Z}/b', {})
    assert [(word.bare, word.quoted) for word in command.words] == [
        ((), ()),
        (("X",), ()),
        ((), ("Y",)),
        (("Z",), ()),
    ]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', 'a "$(b', "a ${b"])
def test_what_is_never_closed_is_known(text):
    assert unfinished(text)
    assert commands(text, {})


@given(st.text("ab $\"'`(){}\\;|&<>\n~#=-*:!/EOF", max_size=80))
def test_any_text_is_taken_apart(text):
    commands(text, {"a": "b"})
    unfinished(text)


@pytest.fixture
def tree(tmp_path):
    """A plugin with a blank in its path."""
    root = tmp_path / "my plugin"
    (root / "hooks").mkdir(parents=True)
    for name, text in {
        "hooks/guard.sh": "#!/bin/sh\n",
        "hooks/guard.py": "",
        "hooks/lib.js": "",
        "data.txt": "x",
    }.items():
        (root / name).write_text(text)
    (root / "run").write_text("#!/bin/sh\n")
    os.chmod(root / "run", 0o755)
    return str(root)


def spec(command, tree: str, host="claude", provenance="plugin", source="hooks/hooks.json") -> HookSpec:
    form = "argv" if isinstance(command, tuple) else "shell"
    return HookSpec(
        host, "PreToolUse", "pre_tool", form, command, root=tree, provenance=provenance, source=f"{tree}/{source}"
    )


COMMANDS = [
    ('"${CLAUDE_PLUGIN_ROOT}/hooks/guard.sh"', ["hooks/guard.sh"]),
    ('python3 -u "$CLAUDE_PLUGIN_ROOT/hooks/guard.py" --x', ["hooks/guard.py"]),
    ('bash -c "exec node \\"$CLAUDE_PLUGIN_ROOT\\"/hooks/lib.js"', ["hooks/lib.js"]),
    ("env A=1 \"$CLAUDE_PLUGIN_ROOT\"/run && node \"$CLAUDE_PLUGIN_ROOT/hooks/lib.js\" || true", ["run", "hooks/lib.js"]),
    ('uv run --script "$CLAUDE_PLUGIN_ROOT/hooks/guard.py"', ["hooks/guard.py"]),
    ('cat "$CLAUDE_PLUGIN_ROOT/data.txt" > "$CLAUDE_PLUGIN_ROOT/run"', []),
    ('x=$(bash "$CLAUDE_PLUGIN_ROOT/hooks/guard.sh")', ["hooks/guard.sh"]),
    ('. "$CLAUDE_PLUGIN_ROOT/data.txt"', ["data.txt"]),
    ("/bin/sh -c true", []),
    ("echo hello", []),
    (("${CLAUDE_PLUGIN_ROOT}/run", "${CLAUDE_PLUGIN_ROOT}/hooks/lib.js"), ["run", "hooks/lib.js"]),
    (("sh", "-c", 'python3 "$CLAUDE_PLUGIN_ROOT/hooks/guard.py"'), ["hooks/guard.py"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_the_files_of_a_command(command, expected, tree):
    assert resolve_scripts(spec(command, tree), {}) == [f"{tree}/{each}" for each in expected]


def test_where_relative_paths_start_from(tree):
    assert resolve_scripts(spec("./hooks/guard.sh", tree, provenance="project"), {}) == [f"{tree}/hooks/guard.sh"]
    assert resolve_scripts(spec("./guard.sh", tree, host="agy", provenance="project"), {}) == [
        f"{tree}/hooks/guard.sh"
    ]
    (unknown,) = scripts(spec("./hooks/guard.sh", tree), {})
    assert (unknown.state, unknown.relative, unknown.path) == ("unresolved", True, "")


def test_homes_and_missing_files(tree):
    (there,) = scripts(spec("bash ~/run", tree), {"HOME": tree})
    assert (there.path, there.state, there.role) == (f"{tree}/run", "there", "script")
    (missing,) = scripts(spec("python3 /nowhere/x.py", tree), {})
    assert (missing.path, missing.state, missing.role) == ("/nowhere/x.py", "missing", "script")
    (folder,) = scripts(spec(f'"{tree}"', tree), {})
    assert (folder.state, folder.role) == ("no_file", "program")
    (unknown,) = scripts(spec("bash $WHO_KNOWS/x.sh", tree), {})
    assert (unknown.state, unknown.written) == ("unresolved", "$WHO_KNOWS/x.sh")


def test_a_fifo_is_never_read(tree):
    os.mkfifo(f"{tree}/pipe")
    assert resolve_scripts(spec(f'bash "{tree}/pipe"', tree), {}) == []
