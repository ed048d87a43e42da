"""A hooks file behind `stockade hook`: what each host's commands become, that nothing else changes, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks import config
from stockade.sandbox.hooks.quoting import OWN_SHELL_TEXT
from stockade.sandbox.hooks.rewrite import Choice, Needs, timeout_of
from stockade.sandbox.hooks.source import HooksFileError
from stockade.sandbox.hooks.wrap import unwrap, wrap

PROGRAM = ("/opt/a b/stockade",)
LEAD = "'/opt/a b/stockade' hook --dialect"


def seconds(spec):
    return Needs(spec.timeout if spec.timeout_given else 0.0)


def wrapping(data, path, dialect, originals=(), needs=seconds, **options):
    choice = Choice(**{"dialect": dialect, "program": PROGRAM, **options})
    return wrap(data, path, choice, lambda each: config.parse(each, path, dialect).specs, needs, originals)


def unwrapping(data, path, dialect, originals=()):
    return unwrap(data, path, dialect, lambda each: config.parse(each, path, dialect).specs, originals)


def claude(*handlers: str) -> bytes:
    """A settings file with these handlers, as text."""
    return b'{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [' + ", ".join(handlers).encode() + b"]}]}}"


def only(data: bytes):
    return json.loads(data)["hooks"]["PreToolUse"][0]["hooks"][0]


def command(text: str) -> str:
    return json.dumps({"type": "command", "command": text})


# --- each host ------------------------------------------------------------------------------------------------------


def test_claudes_list_of_arguments_stays_one():
    """The placeholders stay in elements of their own, where the host fills them in."""
    entry = '{"type": "command", "command": "node", "args": ["${CLAUDE_PLUGIN_ROOT}/a b.js", "-x"], "timeout": 30}'
    found = only(wrapping(claude(entry), "hooks.json", "claude").data)
    assert found == {
        "type": "command",
        "command": "/opt/a b/stockade",
        "args": [
            "hook", "--dialect", "claude", "--timeout", "29s", "--", "node", "${CLAUDE_PLUGIN_ROOT}/a b.js", "-x",
        ],
        "timeout": 30,
    }  # fmt: skip


def test_claudes_text_becomes_an_argument_where_the_host_puts_nothing_in():
    found = only(wrapping(claude(command("jq -r '.x' && echo \"$HOME\"")), "hooks.json", "claude").data)
    assert found["command"] == "/opt/a b/stockade"
    assert found["args"] == ["hook", "--dialect=claude", "--", "sh", "-c", "jq -r '.x' && echo \"$HOME\""]


@pytest.mark.parametrize(
    "text",
    [
        'python3 "${CLAUDE_PLUGIN_ROOT}/x y.py"', "$CLAUDE_PROJECT_DIR/x.sh", "echo ${HOME}",
        "run ${user_config.key}", 'node "$CLAUDE_PLUGIN_ROOT"/x.js',
    ],
)  # fmt: skip
def test_claudes_text_with_a_placeholder_stays_a_string_that_the_inner_shell_expands(text):
    """In an argument the host would put a path into the inner shell's text, spaces, quotes and all."""
    found = only(wrapping(claude(command(text)), "hooks.json", "claude").data)
    assert "args" not in found
    assert found["command"] == f"{LEAD} claude -- sh -c '{text}'"


def test_strings_stay_strings_on_request_and_where_a_shell_is_named():
    for entry, options, shell in (
        (command("jq ."), {"strings": True}, "sh"),
        ('{"type": "command", "command": "jq .", "shell": "bash"}', {}, "bash"),
    ):
        found = only(wrapping(claude(entry), "hooks.json", "claude", **options).data)
        assert found["command"] == f"{LEAD} claude -- {shell} -c 'jq .'"


def test_a_shell_that_is_none_of_ours_is_refused_by_its_place():
    data = claude(command("ok"), '{"type": "command", "command": "Get-X", "shell": "powershell"}')
    with pytest.raises(HooksFileError, match="/hooks/PreToolUse/0/hooks/1: its shell is 'powershell'"):
        wrapping(data, "hooks.json", "claude")


def test_codex_runs_the_text_in_the_users_own_shell():
    """Its placeholders are replaced by text before the shell sees them, inside quotes too: so they still are."""
    text = 'node "${PLUGIN_ROOT}/x.js"'
    done = wrapping(claude(command(text)), "/p/.codex/hooks.json", "codex")
    assert only(done.data)["command"] == f"{LEAD} codex -- {OWN_SHELL_TEXT} -c '{text}'"


@pytest.mark.parametrize(
    ("dialect", "path", "name"),
    [
        ("codex", "/it's/.codex/hooks.json", "PLUGIN_ROOT"),
        ("claude", "/it's/hooks/hooks.json", "CLAUDE_PLUGIN_ROOT"),
    ],
)
def test_a_plugin_whose_path_would_end_our_quotes_is_refused(dialect, path, name):
    """The host may put it there as it is. An argument of its own has no quotes that could end."""
    with pytest.raises(HooksFileError, match="would end our quotes"):
        wrapping(claude(command(f'node "${{{name}}}/x.js"')), path, dialect)
    assert wrapping(claude(command("node x.js")), path, dialect).data
    entry = '{"type": "command", "command": "node", "args": ["${CLAUDE_PLUGIN_ROOT}/x.js"]}'
    assert wrapping(claude(entry), "/it's/hooks/hooks.json", "claude").data


TOML = b"""\
# mine
model = "x"

[mcp_servers.one]
command = "./guard.sh"  # not a hook

[[hooks.PreToolUse]]
matcher = "^Bash$"
[[hooks.PreToolUse.hooks]]
type = "command"
command = "./guard.sh"   # the hook
timeout = 20
[[hooks.PreToolUse.hooks]]
type = "command"
"command" = 'C:\\x "y"'
"""


def test_codex_in_toml_changes_that_string_alone():
    done = wrapping(TOML, "/p/.codex/config.toml", "codex")
    before, after = tomllib.loads(TOML.decode()), tomllib.loads(done.data.decode())
    hooks = after["hooks"]["PreToolUse"][0]["hooks"]
    assert hooks[0]["command"] == f"{LEAD} codex --timeout 19s -- {OWN_SHELL_TEXT} -c ./guard.sh"
    assert hooks[1]["command"] == f"{LEAD} codex -- {OWN_SHELL_TEXT} -c 'C:'\\\\'x \"y\"'"
    for old, new in zip(before["hooks"]["PreToolUse"][0]["hooks"], hooks, strict=True):
        new["command"] = old["command"]
    assert after == before
    changed = [line for line in done.data.split(b"\n") if line not in TOML.split(b"\n")]
    assert len(changed) == 2
    assert changed[0].endswith(b"   # the hook")
    assert wrapping(done.data, "/p/.codex/config.toml", "codex").data == done.data
    assert unwrapping(done.data, "/p/.codex/config.toml", "codex", [TOML]).data == TOML


def test_a_toml_command_on_several_lines_is_refused_by_its_place():
    data = b'[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = """\nls"""\n'
    with pytest.raises(HooksFileError, match="/hooks/Stop/0/hooks/0: its command is no string on one line"):
        wrapping(data, "/p/.codex/config.toml", "codex")


def test_gemini_takes_milliseconds_and_what_it_puts_in_is_out_of_reach_of_our_quotes():
    data = json.dumps({"hooks": {"BeforeTool": [{"hooks": [
        {"type": "command", "command": "$GEMINI_PROJECT_DIR/it's.sh", "timeout": 5000},
        {"type": "command", "command": "plain"},
    ]}]}}).encode()  # fmt: skip
    first, second = json.loads(wrapping(data, "/p/.gemini/settings.json", "gemini").data)["hooks"]["BeforeTool"][0][
        "hooks"
    ]
    assert first["command"] == (
        f"{LEAD} gemini --timeout 4s -- bash -c \"$(cat <<'STOCKADE'\n$GEMINI_PROJECT_DIR/it's.sh\nSTOCKADE\n)\""
    )
    assert first["timeout"] == 5000
    assert second["command"] == f"{LEAD} gemini -- bash -c plain"


def test_gemini_knows_some_handlers_by_their_command():
    """Another command would be another handler, that is not switched off."""
    data = json.dumps({"hooks": {"disabled": ["evil"], "BeforeTool": [{"hooks": [
        {"type": "command", "command": "evil"}, {"type": "command", "command": "good"},
    ]}]}}).encode()  # fmt: skip
    done = wrapping(data, "/p/.gemini/settings.json", "gemini")
    assert [each.state for each in done.handlers] == ["skipped", "wrapped"]
    assert "switched off" in done.handlers[0].reason


@pytest.mark.parametrize(
    ("dialect", "path", "tree", "pointer"),
    [
        (
            "antigravity", ".agents/hooks.json",
            {"g": {"pre_tool_execution": [{"matcher": "*", "hooks": [{"type": "command", "command": "a 'b'"}]}]}},
            ("g", "pre_tool_execution", 0, "hooks", 0),
        ),
        ("agy", ".agents/hooks.json", {"g": {"Stop": [{"type": "command", "command": "a 'b'"}]}}, ("g", "Stop", 0)),
        (
            "cursor", ".cursor/hooks.json",
            {"version": 1, "hooks": {"preToolUse": [{"command": "a 'b'", "failClosed": True}]}},
            ("hooks", "preToolUse", 0),
        ),
    ],
)  # fmt: skip
def test_other_hosts_take_one_string(dialect, path, tree, pointer):
    done = wrapping(json.dumps(tree).encode(), path, dialect)
    at = json.loads(done.data)
    for step in pointer:
        at = at[step]
    assert at["command"] == f"{LEAD} {dialect} -- sh -c 'a '\\''b'\\'"
    assert unwrapping(done.data, path, dialect).data == json.dumps(tree).encode()


def test_what_runs_no_program_here_is_left_alone_and_told():
    data = claude(
        '{"type": "http", "url": "https://x.example"}', '{"type": "prompt", "prompt": "?"}', command("x"),
        '{"type": "agent", "prompt": "?"}', '{"type": "mcp_tool", "server": "s", "tool": "t"}',
    )  # fmt: skip
    done = wrapping(data, "hooks.json", "claude")
    assert [each.state for each in done.handlers] == ["skipped", "skipped", "wrapped", "skipped", "skipped"]
    assert all(each.reason for each in done.handlers if each.state == "skipped")
    before, after = (json.loads(each)["hooks"]["PreToolUse"][0]["hooks"] for each in (data, done.data))
    assert [*before[:2], *before[3:]] == [*after[:2], *after[3:]]


def test_options_reach_the_wrapper():
    found = only(
        wrapping(
            claude(command("x")), "hooks.json", "claude",
            policy="/p/my policy.toml", allow=("a.example", "b.example:80"), observe=True,
            needs=lambda _spec: Needs(3.0, root="/the/root", reads=("/shown",), pins=("f.1", "f.2")),
        ).data
    )  # fmt: skip
    assert found["args"] == [
        "hook", "--dialect=claude", "--policy", "/p/my policy.toml", "--allow", "a.example", "--allow", "b.example:80",
        "--observe", "--timeout", "2s", "--root", "/the/root", "--read", "/shown",
        "--pinned", "f.1", "--pinned", "f.2", "--", "sh", "-c", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(("host", "ours"), [(600.0, 599.0), (10.0, 9.0), (2.0, 1.0), (1.5, 0.75), (0.1, 0.05)])
def test_the_deny_comes_before_the_host_gives_up(host, ours):
    assert timeout_of(host) == pytest.approx(ours)


# --- every byte ------------------------------------------------------------------------------------------------------

ODD = (
    '\ufeff// mine\r\n{\r\n\t"permissions": {"allow": ["Bash(ls)"],}, /* keep */\r\n'
    '\t"hooks": {"PreToolUse": [ {"matcher":"Bash" ,"hooks":[\r\n'
    '\t\t{ "type":"command", "command" : "a\\u0062\\/c \\"$CLAUDE_PROJECT_DIR\\"", "x-mine": [1 , 2] }, // one\r\n'
    '\t\t{ "args": [ ], "command": "n\\u006fde" , "type": "command"},\r\n'
    '\t\t{\r\n\t\t\t"type": "command",\r\n\t\t\t"command": "jq .",\r\n\t\t\t"timeout": 5\r\n\t\t},\r\n'
    '\t\t{"type": "command", "args": [\r\n\t\t\t"é\\u00e9", // why\r\n\t\t\t"b"\r\n\t\t], "command": "node"},\r\n'
    '\t\t{"command": "same", "type": "command"}, {"type": "command", "command": "s\\u0061me"},\r\n'
    "\t]} ]}\r\n}\r\n"
).encode()


def test_unwrapped_with_its_copy_a_file_is_what_it_was_byte_for_byte():
    done = wrapping(ODD, "settings.json", "claude")
    assert {each.state for each in done.handlers} == {"wrapped"}
    assert unwrapping(done.data, "settings.json", "claude", [ODD]).data == ODD


def test_wrapping_leaves_every_other_byte():
    """Without the strings of command and args, both are the same text."""
    done = wrapping(ODD, "settings.json", "claude").data.decode()
    for kept in (
        "\ufeff// mine\r\n{",
        '"Bash(ls)"],}, /* keep */',
        '"x-mine": [1 , 2] }, // one\r\n',
        ", // why\r\n",
    ):
        assert kept in done
    assert done.count("\r\n") == ODD.decode().count("\r\n") + 1
    assert "\n" not in done.replace("\r\n", "")


def test_a_layout_with_a_member_per_line_stays_one():
    data = claude('{\n  "type": "command",\n  "command": "x"\n}')
    done = wrapping(data, "hooks.json", "claude").data.decode()
    assert '\n  "command": "/opt/a b/stockade",\n  "args": ["hook",' in done


def test_without_a_copy_the_commands_are_the_same_and_the_rest_stays():
    done = unwrapping(wrapping(ODD, "settings.json", "claude").data, "settings.json", "claude")
    assert done.data != ODD
    as_values = [config.parse(each, "settings.json", "claude") for each in (ODD, done.data)]
    assert [each.raw for each in as_values[0].specs] == [each.raw for each in as_values[1].specs]
    assert b'"x-mine": [1 , 2] }, // one\r\n' in done.data


def test_a_file_that_was_edited_since_keeps_the_edits():
    done = wrapping(ODD, "settings.json", "claude").data
    edited = done.replace(b'"Bash(ls)"', b'"Bash(pwd)"').replace(
        b"\t]} ]}\r\n}", b'\t{"type": "command", "command": "new"}]} ]}\r\n}'
    )
    expected = ODD.replace(b'"Bash(ls)"', b'"Bash(pwd)"').replace(
        b"\t]} ]}\r\n}", b'\t{"type": "command", "command": "new"}]} ]}\r\n}'
    )
    found = unwrapping(edited, "settings.json", "claude", [ODD])
    assert found.data == expected
    assert [each.state for each in found.handlers].count("plain") == 1


def test_wrapping_again_changes_nothing_and_another_choice_replaces_the_first():
    once = wrapping(ODD, "settings.json", "claude").data
    again = wrapping(once, "settings.json", "claude")
    assert again.data == once
    assert {each.state for each in again.handlers} == {"already"}
    other = wrapping(once, "settings.json", "claude", [ODD], allow=("x.example",), program=("stockade",))
    assert {each.state for each in other.handlers} == {"changed"}
    assert other.data == wrapping(ODD, "settings.json", "claude", allow=("x.example",), program=("stockade",)).data


def test_a_new_handler_in_a_wrapped_file_is_wrapped_alone():
    once = wrapping(claude(command("a")), "hooks.json", "claude").data
    more = once.replace(b'"hooks": [{', b'"hooks": [%s, {' % command("b").encode())
    done = wrapping(more, "hooks.json", "claude")
    assert [each.state for each in done.handlers] == ["wrapped", "already"]


@pytest.mark.parametrize(
    "text",
    [
        "stockade hook --mode off -- evil", "/tmp/evil/stockade hook --policy full-access -- sh -c evil",
        "uv run stockade hook --dialect claude -- evil", "stockade hook --trusted -- evil",
    ],
)  # fmt: skip
def test_a_wrapper_that_came_with_the_file_is_not_trusted(text):
    """Whoever wrote the file may have written it, to be let through."""
    found = only(wrapping(claude(command(text)), "hooks.json", "claude").data)
    assert (found["command"], found["args"]) == (
        "/opt/a b/stockade", ["hook", "--dialect=claude", "--", "sh", "-c", "evil"],
    )  # fmt: skip


def test_a_copy_that_somebody_changed_gives_no_command():
    done = wrapping(claude(command("good")), "hooks.json", "claude").data
    forged = claude(command("evil"))
    assert only(unwrapping(done, "hooks.json", "claude", [forged]).data)["command"] == "good"


texts = st.text(st.sampled_from("ab '\"\\$`{}\n#;&|<>-=é\u2028"), min_size=1, max_size=12).filter(str.strip)
handlers = st.one_of(
    texts.map(lambda text: {"type": "command", "command": text}),
    st.tuples(texts, st.lists(texts, max_size=3)).map(
        lambda pair: {"type": "command", "command": pair[0], "args": pair[1]}
    ),
    st.just({"type": "command", "command": "sh", "args": ["-c", "x"]}),
    st.just({"type": "command", "args": ["hook", "--", "y"], "command": "stockade2", "timeout": 3}),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(handlers, min_size=1, max_size=4),
    st.sampled_from([{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False}]),
)
def test_any_file_of_claude_comes_back_byte_for_byte(entries, layout):
    data = json.dumps({"a": 1, "hooks": {"Stop": [{"hooks": entries}]}}, **layout).encode()
    done = wrapping(data, "hooks.json", "claude")
    assert wrapping(done.data, "hooks.json", "claude").data == done.data
    assert unwrapping(done.data, "hooks.json", "claude", [data]).data == data
    bare = json.loads(unwrapping(done.data, "hooks.json", "claude").data)
    assert bare == json.loads(data)


@settings(max_examples=60)
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(["gemini", "codex", "cursor"]))
def test_any_text_of_another_host_comes_back_byte_for_byte(commands, dialect):
    paths = {"gemini": ".gemini/settings.json", "codex": ".codex/hooks.json", "cursor": ".cursor/hooks.json"}
    entries = [{"type": "command", "command": text} for text in commands]
    listed = entries if dialect == "cursor" else [{"hooks": entries}]
    event = {"gemini": "BeforeTool", "codex": "PreToolUse", "cursor": "preToolUse"}[dialect]
    data = json.dumps({"version": 1, "hooks": {event: listed}}).encode()
    done = wrapping(data, paths[dialect], dialect)
    assert unwrapping(done.data, paths[dialect], dialect, [data]).data == data
    assert json.loads(unwrapping(done.data, paths[dialect], dialect).data) == json.loads(data)


# --- the command line ------------------------------------------------------------------------------------------------

SETTINGS = """\
{
  // mine
  "hooks": {
    "PreToolUse": [
      {"matcher": "Bash", "hooks": [
        {"type": "command", "command": "python3 \\"$CLAUDE_PROJECT_DIR\\"/scripts/guard.py", "timeout": 20},
        {"type": "command", "command": "cat > /dev/null; echo plain >&2"},
        {"type": "http", "url": "https://x.example/hook"}
      ]}
    ]
  }
}
"""
GUARD = """\
import json, os, sys
event = json.load(sys.stdin)
if "rm " in event["tool_input"]["command"]:
    print("no rm here", file=sys.stderr)
    sys.exit(2)
try:
    open("left-behind", "w").close()
except OSError as error:
    print(error.strerror, file=sys.stderr)
"""


@pytest.fixture
def project(place):
    place.put("ws/scripts/guard.py", GUARD)
    place.file = place.put("ws/.claude/settings.json", SETTINGS)
    return place


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_wrap_shows_the_difference_and_writes_nothing(project):
    done = project.call("hooks", "wrap", project.file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n+") == 3  # two commands, and the name of the file
    assert b"http" in done.stderr
    assert b"--write" in done.stderr
    assert b"scripts/guard.py can be changed" in done.stderr
    assert content(project.file) == SETTINGS.encode()
    assert os.listdir(os.path.dirname(project.file)) == ["settings.json"]


def test_write_and_back_again(project):
    os.chmod(project.file, 0o640)
    done = project.call("hooks", "wrap", "--write", project.file)
    assert done.returncode == 0, done.stderr
    wrapped = content(project.file)
    assert wrapped != SETTINGS.encode()
    assert os.stat(project.file).st_mode & 0o777 == 0o640
    backup = f"{project.file}.stockade-backup"
    assert content(backup) == SETTINGS.encode()
    again = project.call("hooks", "wrap", "--write", project.file)
    assert (again.returncode, again.stdout, content(project.file)) == (0, b"", wrapped)
    back = project.call("hooks", "unwrap", "--write", project.file)
    assert back.returncode == 0, back.stderr
    assert b"byte for byte" in back.stderr
    assert content(project.file) == SETTINGS.encode()
    assert os.listdir(os.path.dirname(project.file)) == ["settings.json"]


def test_a_copy_is_never_overwritten(project):
    other = project.put("ws/.claude/settings.json.stockade-backup", "somebody's own")
    assert project.call("hooks", "wrap", "--write", project.file).returncode == 0
    assert content(other) == b"somebody's own"
    assert content(f"{other}.1") == SETTINGS.encode()
    assert project.call("hooks", "unwrap", "--write", project.file).returncode == 0
    assert content(project.file) == SETTINGS.encode()
    assert content(other) == b"somebody's own"
    assert not os.path.exists(f"{other}.1")


def test_a_second_wrap_keeps_what_the_file_would_be_without_the_first(project):
    assert project.call("hooks", "wrap", "--write", project.file).returncode == 0
    edited = content(project.file).replace(b"// mine", b"// ours")
    with open(project.file, "wb") as file:
        file.write(edited)
    assert project.call("hooks", "wrap", "--write", "--allow", "x.example", project.file).returncode == 0
    assert content(f"{project.file}.stockade-backup.1") == SETTINGS.replace("// mine", "// ours").encode()
    assert project.call("hooks", "unwrap", "--write", project.file).returncode == 0
    assert content(project.file) == SETTINGS.replace("// mine", "// ours").encode()


def test_a_symlink_is_followed_and_stays_one(project):
    real = project.put("other/dotfiles/settings.json", SETTINGS)
    os.unlink(project.file)
    os.symlink(real, project.file)
    done = project.call("hooks", "wrap", "--write", project.file)
    assert done.returncode == 0, done.stderr
    assert b"is a symlink" in done.stderr
    assert os.readlink(project.file) == real
    assert content(real) != SETTINGS.encode()
    assert project.call("hooks", "unwrap", "--write", project.file).returncode == 0
    assert content(real) == SETTINGS.encode()


def test_as_a_document(project):
    done = project.call("hooks", "wrap", "--json", project.file)
    told = json.loads(done.stdout)
    assert (told["schema"], told["written"], told["changed"], told["dialect"]) == (
        "stockade.wrap/1", False, True, "claude",
    )  # fmt: skip
    assert [each["state"] for each in told["handlers"]] == ["wrapped", "wrapped", "skipped"]
    assert told["diff"].startswith("--- ")


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ((), b"no file was given"),
        (("a", "b"), b"one too many"),
        (("missing.json",), b"could not read missing.json"),
        (("--policy", "nosuch", "FILE"), b"nosuch"),
        (("--allow", "bad host", "FILE"), b"bad host"),
        (("--command", "echo", "FILE"), b"--command"),
        (("--command", "stock'ade", "FILE"), b"--command"),
        (("--dialect", "nous", "FILE"), b"nous"),
        (("--dialect", "nosuch", "FILE"), b"nosuch"),
    ],
)
def test_mistakes_are_named(project, words, about):
    done = project.call("hooks", "wrap", "--write", *(project.file if each == "FILE" else each for each in words))
    assert (done.returncode, done.stdout) == (125, b"")
    assert about in done.stderr
    assert b"Traceback" not in done.stderr
    assert content(project.file) == SETTINGS.encode()


@pytest.mark.user
def test_a_directory_that_cant_be_written_leaves_the_file_as_it_was(project):
    folder = os.path.dirname(project.file)
    os.chmod(folder, 0o555)
    try:
        done = project.call("hooks", "wrap", "--write", project.file)
    finally:
        os.chmod(folder, 0o755)
    assert done.returncode == 125
    assert b"could not keep a copy" in done.stderr
    assert content(project.file) == SETTINGS.encode()
    assert os.listdir(folder) == ["settings.json"]


def test_what_a_terminal_would_obey_is_spelt_out(project):
    project.put("ws/.claude/settings.json", SETTINGS.replace("// mine", "// \u202e\x9b31m"))
    done = project.call("hooks", "wrap", project.file)
    assert "\u202e" not in done.stdout.decode()
    assert b"\x9b" not in done.stdout


# --- for real --------------------------------------------------------------------------------------------------------


def as_the_host(place, handler, event, **env):
    """What Claude Code does with a command handler."""
    command = handler["command"]
    argv = [command, *handler["args"]] if "args" in handler else ["sh", "-c", command]
    return subprocess.run(
        argv,
        input=json.dumps(event).encode(),
        capture_output=True,
        check=False,
        cwd=place.ws,
        env={**place.env, "CLAUDE_PROJECT_DIR": place.ws, **env},
        timeout=60,
    )


def told(command: str, place) -> dict:
    return {
        "session_id": "s", "transcript_path": "", "cwd": place.ws, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": command}, "tool_use_id": "t",
    }  # fmt: skip


@pytest.mark.kernel
def test_a_wrapped_guard_decides_as_before_and_can_do_no_more(project):
    """The control is the unwrapped guard: it leaves a file behind, the wrapped one can't."""
    marker = os.path.join(project.ws, "left-behind")
    os.chmod(project.ws, 0o777)
    (guard, _inline, _http) = json.loads(SETTINGS.replace("// mine", ""))["hooks"]["PreToolUse"][0]["hooks"]
    assert as_the_host(project, guard, told("ls", project)).returncode == 0
    assert os.path.exists(marker)
    os.unlink(marker)

    assert project.call("hooks", "wrap", "--write", project.file).returncode == 0
    text = content(project.file).decode().replace("// mine", "")
    (guard, inline, _http) = json.loads(text)["hooks"]["PreToolUse"][0]["hooks"]
    refused = as_the_host(project, guard, told("rm -rf /", project))
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, b"", b"no rm here\n")
    passed = as_the_host(project, guard, told("ls", project))
    assert (passed.returncode, passed.stdout, passed.stderr) == (0, b"", b"Read-only file system\n")
    assert not os.path.exists(marker)
    assert "args" in inline
    spoken = as_the_host(project, inline, told("ls", project))
    assert (spoken.returncode, spoken.stderr) == (0, b"plain\n")


@pytest.mark.kernel
@pytest.mark.parametrize(
    "text",
    ["python3 ~/.claude/hooks/guard.py", "test -f ~/.claude/hooks/guard.py && python3 ~/.claude/hooks/guard.py"],
)
def test_a_users_own_guard_is_shown_to_itself(place, text):
    """Its HOME is an empty one inside, but for what the hook is; nothing else of it is there."""
    path = place.put("home/.claude/settings.json", claude(command(text)).decode())
    place.put("home/.claude/hooks/guard.py", GUARD)
    secret = place.put("home/.claude/secret", "the treasure")
    assert place.call("hooks", "wrap", "--write", path).returncode == 0
    done = as_the_host(place, only(content(path)), told("rm x", place))
    assert (done.returncode, done.stderr) == (2, b"no rm here\n")
    place.put("home/.claude/hooks/guard.py", f"print(open({secret!r}).read())")
    assert b"the treasure" in as_the_host(place, json.loads(command(text)), told("ls", place)).stdout
    assert b"treasure" not in as_the_host(place, only(content(path)), told("ls", place)).stdout


@pytest.mark.parametrize(("seconds_", "ours"), [("2s", ""), ("1h", "29s"), ("none", "29s")])
def test_a_policys_own_timeout_is_kept_where_it_is_stricter_than_the_hosts(place, seconds_, ours):
    policy = place.put("policy.toml", f'extends = "hook"\n[limits]\ntimeout = "{seconds_}"\n')
    path = place.put(
        "ws/.claude/settings.json", claude('{"type": "command", "command": "x", "timeout": 30}').decode()
    )
    assert place.call("hooks", "wrap", "--write", "--policy", policy, path).returncode == 0
    words = only(content(path))["args"]
    assert words[words.index("--policy") + 1] == policy
    assert (words[words.index("--timeout") + 1] if "--timeout" in words else "") == ours


def test_the_program_is_the_one_that_runs_by_its_path_or_what_is_given(project):
    for words, expected in (
        ((), None),
        (("--command", "uv run stockade"), "uv"),
        (("--command", "stockade"), "stockade"),
    ):
        assert project.call("hooks", "wrap", "--write", *words, project.file).returncode == 0
        tree = json.loads(content(project.file).decode().replace("// mine", ""))
        program = tree["hooks"]["PreToolUse"][0]["hooks"][1]["command"]
        assert program == expected if expected else os.access(program, os.X_OK)


@pytest.mark.kernel
def test_a_project_with_spaces_and_quotes_in_its_path(place):
    top = os.path.join(place.ws, 'it\'s a "place"')
    os.makedirs(os.path.join(top, "scripts"))
    shutil.copy(place.put("ws/guard.py", GUARD), os.path.join(top, "scripts/guard.py"))
    path = place.put(os.path.join("ws", os.path.basename(top), ".claude/settings.json"), SETTINGS)
    assert place.call("hooks", "wrap", "--write", path).returncode == 0
    guard = json.loads(content(path).decode().replace("// mine", ""))["hooks"]["PreToolUse"][0]["hooks"][0]
    place.ws = top
    done = as_the_host(place, guard, told("rm x", place), CLAUDE_PROJECT_DIR=top)
    assert (done.returncode, done.stderr) == (2, b"no rm here\n")


@pytest.mark.kernel
def test_gemini_puts_its_quoted_path_in_and_the_guard_is_found(place):
    top = os.path.join(place.ws, "it's a place")
    os.makedirs(top)
    shutil.copy(place.put("ws/guard.py", GUARD), os.path.join(top, "guard.py"))
    entry = {"type": "command", "command": "python3 $GEMINI_PROJECT_DIR/guard.py"}
    path = place.put(
        "ws/it's a place/.gemini/settings.json", json.dumps({"hooks": {"BeforeTool": [{"hooks": [entry]}]}})
    )
    assert place.call("hooks", "wrap", "--write", path).returncode == 0
    line = json.loads(content(path))["hooks"]["BeforeTool"][0]["hooks"][0]["command"]
    line = line.replace("$GEMINI_PROJECT_DIR", f'"{top}"')
    event = {
        "session_id": "s", "transcript_path": "", "cwd": top, "hook_event_name": "BeforeTool", "timestamp": "",
        "tool_name": "run_shell_command", "tool_input": {"command": "rm x"},
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", line],
        input=json.dumps(event).encode(),
        capture_output=True,
        check=False,
        cwd=top,
        env=place.env,
    )
    assert (done.returncode, done.stderr) == (2, b"no rm here\n")


ANSWER = """\
import json, sys
evil = "rm " in sys.stdin.read()
print(json.dumps({"decision": "deny" if evil else "allow", "reason": "no rm here"}))
"""
EXIT = """\
import sys
if "rm " in sys.stdin.read():
    print("no rm here", file=sys.stderr)
    sys.exit(2)
"""
HOSTS = {
    "codex": (
        ".codex/hooks.json", lambda entry: {"hooks": {"PreToolUse": [{"hooks": [entry]}]}}, ("bash", "-lc"), EXIT,
        {
            "session_id": "s", "transcript_path": None, "hook_event_name": "PreToolUse", "model": "m",
            "permission_mode": "default", "turn_id": "t", "tool_name": "Bash", "tool_use_id": "u",
        },
        "tool_input",
    ),
    "cursor": (
        ".cursor/hooks.json", lambda entry: {"version": 1, "hooks": {"preToolUse": [entry]}}, ("sh", "-c"), EXIT,
        {
            "conversation_id": "c", "generation_id": "g", "model": "m", "hook_event_name": "preToolUse",
            "cursor_version": "1", "workspace_roots": [], "tool_name": "Shell", "tool_use_id": "u",
        },
        "tool_input",
    ),
    "antigravity": (
        ".agents/hooks.json", lambda entry: {"g": {"pre_tool_execution": [{"matcher": "*", "hooks": [entry]}]}},
        ("sh", "-c"), ANSWER, {"environment_id": "e"}, "tool_call",
    ),
    "agy": (
        ".agents/hooks.json", lambda entry: {"g": {"PreToolUse": [{"hooks": [entry]}]}}, ("sh", "-c"), ANSWER,
        {"conversationId": "c", "workspacePaths": [], "stepIdx": 1}, "toolCall",
    ),
}  # fmt: skip


@pytest.mark.kernel
@pytest.mark.parametrize("host", HOSTS)
def test_a_guard_of_every_other_host_decides_as_before(place, host):
    """Read as that host reads it; the control is the harmless call."""
    from stockade.sandbox.hooks.dialects import dialect
    from stockade.sandbox.hooks.model import HookRun

    name, tree, shell, guard, event, field = HOSTS[host]
    script = place.put("ws/it's a guard.py", guard)
    entry = {"type": "command", "command": f'python3 "{script}"'}
    path = place.put(f"ws/{name}", json.dumps(tree(entry)))
    assert place.call("hooks", "wrap", "--write", "--dialect", host, path).returncode == 0
    (spec,) = config.load(path, host).specs
    for command_, verdict in (("rm x", "deny"), ("ls", "go")):
        tool = {"command": command_}
        told_ = {**event, "cwd": place.ws, field: tool if field == "tool_input" else {"name": "run", "args": tool}}
        done = subprocess.run(
            [*shell, spec.command],
            input=json.dumps(told_).encode(),
            capture_output=True,
            check=False,
            cwd=place.ws,
            env={**place.env, "SHELL": "/bin/bash"},
            timeout=60,
        )
        run = HookRun(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
        found = dialect(host).decode(spec.event, run)
        assert (found.verdict == "deny") is (verdict == "deny"), (done, found)
        assert found.reason == "no rm here" if verdict == "deny" else found.verdict in ("allow", "none")
        assert found.status in ("ok", "blocked")
