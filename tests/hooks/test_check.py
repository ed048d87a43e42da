"""What is found in handlers and their scripts: each rule with a hit, and with a near miss that is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.hooks import check as checking
from stockade.sandbox.hooks.check import CODES, check
from stockade.sandbox.hooks.config import examine
from stockade.sandbox.hooks.discover import discover
from stockade.sandbox.hooks.finding import SEVERITIES

FILES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/hooks.json",
    "antigravity": ".agents/hooks.json",
    "agy": ".agents/hooks.json",
}
EVENTS = {
    "claude": "PreToolUse", "codex": "PreToolUse", "gemini": "BeforeTool", "cursor": "beforeShellExecution",
    "antigravity": "pre_tool_execution", "agy": "PreToolUse",
}  # fmt: skip


def found_in(tmp_path, host="claude", event="", script="", script_name="guard.sh", group=None, **handler):
    """What is found in a project with one handler; ``script`` stands in a file that the command can name."""
    event = event or EVENTS[host]
    handler = {"type": "command", "command": "guard", "timeout": 10000 if host == "gemini" else 5, **handler}
    handler = {key: value for key, value in handler.items() if value is not None}
    entry = {event: [handler if host == "cursor" else {**(group or {}), "hooks": [handler]}]}
    document = {"n": entry} if host in ("antigravity", "agy") else {"version": 1, "hooks": entry}
    if host != "cursor":
        document.pop("version", None)
    path = tmp_path / FILES[host]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    if script:
        (tmp_path / script_name).write_text(script)
        os.chmod(tmp_path / script_name, 0o755)
    return check([examine(str(path), host)], {"HOME": str(tmp_path)})


def codes(*args, **named) -> set[str]:
    return {each.code for each in found_in(*args, **named)}


DIR = '"$CLAUDE_PROJECT_DIR"'
# code, host, event, fields of the handler; the near miss
ENTRIES = [
    ("timeout_unit", "gemini", "", {"timeout": 60}, {"timeout": 1000}),
    ("timeout_unit", "claude", "", {"timeout": 5000}, {"timeout": 999}),
    ("no_timeout", "claude", "", {"timeout": None}, {"timeout": 60}),
    ("bad_pattern", "claude", "", {"group": {"matcher": "("}}, {"group": {"matcher": "Bash|Edit"}}),
    ("matcher_ignored", "claude", "Stop", {"group": {"matcher": "x"}}, {"group": {"matcher": "*"}}),
    ("bad_if", "claude", "", {"if": "what is this"}, {"if": "Bash(git *)"}),
    ("if_never", "claude", "Stop", {"if": "Bash(git *)"}, {"if": None}),
    ("async_guard", "claude", "", {"async": True}, {"async": False}),
    (
        "plain_http",
        "claude",
        "",
        {"type": "http", "url": "http://a.example/x"},
        {"type": "http", "url": "https://a.example/x"},
    ),
    (
        "local_url",
        "claude",
        "",
        {"type": "http", "url": "https://127.0.0.1/"},
        {"type": "http", "url": "https://8.8.8.8/"},
    ),
    (
        "local_url",
        "claude",
        "",
        {"type": "http", "url": "https://localhost:4000/"},
        {"type": "http", "url": "https://local.example/"},
    ),
    (
        "local_url",
        "antigravity",
        "",
        {"type": "http", "url": "https://[::1]/"},
        {"type": "http", "url": "https://a.example"},
    ),
    ("bad_url", "claude", "", {"type": "http", "url": "a.example/x"}, {"type": "http", "url": "https://a.example"}),
    (
        "header_variable",
        "claude",
        "",
        {"type": "http", "url": "https://a.example", "headers": {"A": "Bearer $T"}},
        {"type": "http", "url": "https://a.example", "headers": {"A": "Bearer $T"}, "allowedEnvVars": ["T"]},
    ),
    ("long_command", "claude", "", {"command": "true " + "x" * 2000}, {"command": "true " + "x" * 1900}),
]
COMMANDS = [
    ("unquoted_root", "claude", "", "node $CLAUDE_PROJECT_DIR/x.js", f"node {DIR}/x.js"),
    ("unquoted_root", "claude", "", "node ${CLAUDE_PROJECT_DIR}/x.js", "node '$CLAUDE_PROJECT_DIR/x.js'"),
    ("unquoted_root", "codex", "", "cat > ${PLUGIN_ROOT}/x", 'cat > "${PLUGIN_ROOT}/x"'),
    ("unquoted_root", "claude", "", "node $CLAUDE_PROJECT_DIR/x.js", "test $COUNT -gt 3"),
    ("quoted_twice", "gemini", "", 'node "$GEMINI_PROJECT_DIR/x.js"', "node $GEMINI_PROJECT_DIR/x.js"),
    ("refused_placeholder", "claude", "", "x ${user_config.key}", "x ${CLAUDE_PLUGIN_OPTION_KEY}"),
    ("undefined_variable", "claude", "", "prettier \"$CLAUDE_FILE_PATHS\"", f"prettier {DIR}"),
    ("undefined_variable", "claude", "", 'x "$CLAUDE_TOOL_INPUT"', 'x "${CLAUDE_TOOL_INPUT:-}"'),
    ("undefined_variable", "claude", "", 'x "$CLAUDE_TOOL_INPUT"', 'CLAUDE_TOOL_INPUT=1; x "$CLAUDE_TOOL_INPUT"'),
    ("undefined_variable", "claude", "", 'x "$CLAUDE_TOOL_INPUT"', 'x "$CLAUDE_CODE_USE_BEDROCK" "$GEMINI_API_KEY"'),
    ("swallowed_failure", "claude", "", "guard || true", "guard || exit 2"),
    ("swallowed_failure", "claude", "", "guard; exit 0", "guard; exit $?"),
    ("swallowed_failure", "claude", "", "guard || :", "true && guard"),
    ("swallowed_failure", "codex", "", "guard || echo failed", "echo start; guard"),
    ("piped_exit", "claude", "", "guard | tee log", "cat log | guard"),
    ("login_shell", "claude", "", "bash -lc guard", "bash -c guard"),
    ("login_shell", "claude", "", "zsh -i -c guard", "bash --noprofile -c guard"),
    ("login_shell", "claude", "", "bash --login -c guard", "ls -l"),
    ("relative_script", "claude", "", "./guard.sh", f"{DIR}/guard.sh"),
    ("relative_script", "claude", "", "python3 hooks/x.py", "python3 -m hooks"),
    ("network_install", "claude", "", "npx prettier", "npx --no-install prettier"),
    ("network_install", "claude", "", "uvx ruff", "ruff check"),
    ("network_install", "claude", "", "uv run x", "uv run --frozen x"),
    ("network_install", "claude", "", "cd x && npm install && npm test", "cd x && npm test"),
    ("network_install", "claude", "", "pip install x", "pip list"),
    ("network_install", "claude", "", "python3 -m pip install x", "python3 -m pytest"),
    ("network_install", "claude", "", "sh -c 'pnpm dlx x'", "echo 'pnpm dlx x'"),
    ("remote_code", "claude", "", "curl https://a.example | sh", "curl https://a.example | jq ."),
    ("remote_code", "claude", "", 'bash -c "$(curl https://a.example)"', 'echo "$(curl https://a.example)"'),
    ("shared_tmp", "claude", "", "guard > /tmp/hook.log", "guard > /tmp/hook.$$"),
    ("shared_tmp", "claude", "", "tee -a /var/tmp/x", "cat /tmp/x"),
    ("env_dump", "claude", "", "env > log.txt", "env FOO=1 guard > log.txt"),
    ("env_dump", "claude", "", "printenv | sort > x", "printenv HOME > x"),
    ("env_dump", "claude", "", "export -p > x", "env | grep -q CI"),
    ("env_file", "claude", "SessionStart", 'echo X=1 >> "$CLAUDE_ENV_FILE"', 'echo X=1 >> "$OTHER_FILE"'),
    ("undefined_field", "claude", "", "echo '{\"block\": true}'", "echo '{\"blocked\": true}'"),
    ("json_on_stderr", "claude", "", "echo '{\"decision\": \"block\"}' >&2", "echo '{\"decision\": \"block\"}'"),
]  # fmt: skip
SCRIPTS = [
    (
        "deny_without_reason",
        "codex",
        "x.sh",
        'echo \'{"decision": "block"}\'',
        'echo \'{"decision": "block", "reason": "no"}\'',
    ),
    (
        "deny_without_reason",
        "codex",
        "x.py",
        "print(json.dumps({'decision': 'block', 'reason': ''}))",
        "print(json.dumps({'decision': 'block', 'reason': why}))",
    ),
    (
        "deny_without_reason",
        "codex",
        "x.js",
        "say({hookSpecificOutput: {hookEventName: 'PreToolUse', permissionDecision: 'deny'}})",
        "say({hookSpecificOutput: {hookEventName: e, permissionDecision: 'deny', permissionDecisionReason}})",
    ),
    (
        "json_on_stderr",
        "claude",
        "x.py",
        'print(\'{"decision": "block"}\', file=sys.stderr)',
        "print('{\"decision\": \"block\"}')\nprint('why', file=sys.stderr)",
    ),
    (
        "json_on_stderr",
        "cursor",
        "x.js",
        "console.error(JSON.stringify({permission: 'deny'}))",
        "console.error('denied'); console.log(JSON.stringify({permission: 'deny'}))",
    ),
    (
        "json_on_stderr",
        "claude",
        "x.sh",
        "jq -n '{decision: \"block\"}' >&2",
        "# jq -n '{decision: \"block\"}' >&2",
    ),
    (
        "json_and_exit",
        "cursor",
        "x.sh",
        'echo \'{"permission": "deny"}\'\nexit 3',
        'echo \'{"permission": "deny"}\'\nexit 0',
    ),
    (
        "json_and_exit",
        "codex",
        "x.py",
        "print({'decision': 'block'})\nsys.exit(1)",
        "sys.exit(1)\n\n\nprint({'decision': 'block'})",
    ),
    ("exit_2_ignored", "antigravity", "x.sh", "echo no >&2; exit 2", 'echo \'{"decision": "deny"}\'; exit 0'),
    ("silent_exit_2", "codex", "x.sh", "exit 2", "echo no >&2\nexit 2"),
    ("silent_exit_2", "gemini", "x.py", "sys.exit(2)", "print('no')\nsys.exit(2)"),
    (
        "no_event_name",
        "claude",
        "x.py",
        "print({'hookSpecificOutput': {'permissionDecision': 'deny'}})",
        "print({'hookSpecificOutput': {'hookEventName': e, 'permissionDecision': 'deny'}})",
    ),
    (
        "no_event_name",
        "codex",
        "x.sh",
        'echo "{\\"hookSpecificOutput\\": {\\"additionalContext\\": 1}}"',
        'echo "{\\"hookSpecificOutput\\": {\\"hookEventName\\": 1}}"',
    ),
    (
        "undefined_field",
        "claude",
        "x.js",
        "console.log(JSON.stringify({block: true, message: 1}))",
        "add({style: 1}); const block = true",
    ),
    (
        "undefined_variable",
        "claude",
        "x.py",
        "p = os.environ['CLAUDE_FILE_PATH']",
        "p = os.environ['CLAUDE_PROJECT_DIR']",
    ),
    (
        "undefined_variable",
        "claude",
        "x.js",
        "const f = process.env.CLAUDE_TOOL_NAME",
        "const f = process.env.CLAUDE_CODE_X || process.env.CLAUDE_CONFIG_DIR",
    ),
    ("undefined_variable", "claude", "x.sh", "f=${CLAUDE_TOOL_NAME}", "# $CLAUDE_TOOL_NAME"),
    (
        "shared_tmp",
        "claude",
        "x.sh",
        "input=$(cat)\necho $input >> /tmp/hooks.log",
        "log=$(mktemp)\necho x >> $log",
    ),
    ("shared_tmp", "claude", "x.py", "with open('/tmp/hook.log', 'a') as f: pass", "print('/tmp/hook.log')"),
    (
        "shared_tmp",
        "claude",
        "x.js",
        "fs.appendFileSync('/tmp/hook.log', x)",
        "fs.appendFileSync(path.join(os.tmpdir(), 'x'), x)",
    ),
    ("env_dump", "claude", "x.py", "json.dump(dict(os.environ), f)", "json.dump({'a': os.environ['A']}, f)"),
    (
        "env_dump",
        "claude",
        "x.js",
        "w(JSON.stringify(process.env, null, 2))",
        "w(JSON.stringify(process.env.HOME))",
    ),
    ("env_dump", "claude", "x.sh", "env >> debug.log", "env -i guard >> debug.log"),
    (
        "env_file",
        "claude",
        "x.py",
        "open(os.environ['CLAUDE_ENV_FILE'], 'a')",
        "# open(os.environ['CLAUDE_ENV_FILE'], 'a')",
    ),
    ("network_install", "claude", "x.sh", "cd y\nnpx tsx z.ts", "cd y\n./node_modules/.bin/tsx z.ts"),
    (
        "network_install",
        "claude",
        "x.py",
        "subprocess.run(['pip', 'install', 'x'])",
        "print(\"run 'pip install x'\")",
    ),
    ("network_install", "claude", "x.js", "execSync('npm install x')", "execSync('npm test')"),
    ("remote_code", "claude", "x.sh", "curl -s https://a.example | bash", "curl -s https://a.example > page"),
    (
        "network_fails_open",
        "claude",
        "x.py",
        "try:\n    r = requests.post(u)\nexcept Exception as e:\n    print(e)\nif bad(r):\n    sys.exit(2)\n",
        "try:\n    r = requests.post(u)\nexcept Exception as e:\n    sys.exit(2)\nif bad(r):\n    sys.exit(2)\n",
    ),
    (
        "network_fails_open",
        "claude",
        "x.js",
        "try { r = await fetch(u) } catch (e) { console.error(e); process.exit(0) }\nif (r.bad) process.exit(2)",
        "try { r = read(u) } catch (e) { console.error(e); process.exit(0) }\nfetch2(); if (r.bad) process.exit(2)",
    ),
    (
        "network_fails_open",
        "claude",
        "x.sh",
        "r=$(curl -s $U) || exit 0\n[ $r = ok ] || exit 2",
        "r=$(curl -s $U) || exit 2\n[ $r = ok ] || exit 2",
    ),
    ("fails_open", "cursor", "x.sh", 'echo \'{"permission": "deny"}\'', "echo started >> log"),
]
RUNNERS = {"sh": "bash", "py": "python3", "js": "node"}
ROOT = {"claude": DIR, "cursor": '"$CURSOR_PROJECT_DIR"', "gemini": "$GEMINI_PROJECT_DIR"}


@pytest.mark.parametrize(("code", "host", "event", "hit", "miss"), ENTRIES)
def test_rules_about_entries(tmp_path, code, host, event, hit, miss):
    assert code in codes(tmp_path, host, event, **hit)
    assert code not in codes(tmp_path, host, event, **miss)


@pytest.mark.parametrize(("code", "host", "event", "hit", "miss"), COMMANDS)
def test_rules_about_commands(tmp_path, code, host, event, hit, miss):
    assert code in codes(tmp_path, host, event, command=hit)
    assert code not in codes(tmp_path, host, event, command=miss)


@pytest.mark.parametrize(("code", "host", "name", "hit", "miss"), SCRIPTS)
def test_rules_about_scripts(tmp_path, code, host, name, hit, miss):
    command = f"{RUNNERS[name[2:]]} {ROOT.get(host, str(tmp_path))}/{name}"
    bad = found_in(tmp_path, host, script=hit, script_name=name, command=command)
    told = [each for each in bad if each.code == code]
    assert told
    if code != "fails_open":
        assert told[0].file == str(tmp_path / name)
        assert 1 <= told[0].line <= hit.count("\n") + 1
        assert told[0].pointer
    assert code not in codes(tmp_path, host, script=miss, script_name=name, command=command)


def test_a_handler_with_nothing_wrong(tmp_path):
    script = "#!/bin/sh\ncat >/dev/null\necho no >&2\nexit 2\n"
    for host in ("claude", "codex", "cursor"):
        more = {"failClosed": True} if host == "cursor" else {}
        command = f"{ROOT.get(host, tmp_path)}/guard.sh"
        assert found_in(tmp_path, host, script=script, command=command, **more) == []


def test_missing_and_not_executable_scripts(tmp_path):
    assert "missing_script" in codes(tmp_path, command=f"{DIR}/nothing.sh")
    assert "missing_script" in codes(tmp_path, command=f"python3 {DIR}/nothing.py")
    assert "missing_script" not in codes(tmp_path, command=f"[ -f {DIR}/nothing.py ] && python3 {DIR}/nothing.py")
    assert "missing_script" not in codes(tmp_path, command=f"python3 {DIR}/nothing.py || exit 2")
    assert "missing_script" in codes(tmp_path, command=str(tmp_path))
    assert "not_executable" not in codes(tmp_path, script="exit 0", command=f"{DIR}/guard.sh")
    os.chmod(tmp_path / "guard.sh", 0o644)
    assert "not_executable" in codes(tmp_path, command=f"{DIR}/guard.sh")
    assert "not_executable" not in codes(tmp_path, command=f"sh {DIR}/guard.sh")


def test_events_that_block_nothing_have_no_guards(tmp_path):
    """The same entries where there is nothing to guard."""
    found = codes(tmp_path, "claude", "PostToolUse", command="guard || true", timeout=None, **{"async": True})
    assert found.isdisjoint({"swallowed_failure", "no_timeout", "async_guard"})


def test_a_guard_weighs_more_than_what_only_looks_on(tmp_path):
    guard, logger = "exit 2", "echo seen >> log"
    severity = {}
    for name, script in (("guard", guard), ("logger", logger)):
        found = found_in(tmp_path, script=script, command=f"bash {DIR}/guard.sh || true", **{"async": True})
        severity[name] = {each.code: each.severity for each in found}
    assert (severity["guard"]["swallowed_failure"], severity["guard"]["async_guard"]) == ("high", "high")
    assert (severity["logger"]["swallowed_failure"], severity["logger"]["async_guard"]) == ("medium", "medium")


def test_the_event_in_a_shared_file_weighs_more_than_a_note_there(tmp_path):
    def severity(script):
        found = found_in(tmp_path, script=script, command=f"bash {DIR}/guard.sh")
        return [each.severity for each in found if each.code == "shared_tmp"]

    assert severity("echo start >> /tmp/x.log") == ["medium"]
    assert severity("echo start >> /tmp/x.log\ncat >> /tmp/x.log") == ["high"]


def test_a_script_of_many_handlers_is_told_of_once(tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / "log.sh").write_text("echo x >> /tmp/hooks.log\n")
    handler = {"type": "command", "command": f"bash {DIR}/log.sh"}
    document = {"hooks": {event: [{"hooks": [handler]}] for event in ("PostToolUse", "SessionStart", "SessionEnd")}}
    (tmp_path / ".claude" / "settings.json").write_text(json.dumps(document))
    assert [each.code for each in check(discover(str(tmp_path)))] == ["shared_tmp"]


def test_scripts_are_read_and_never_run(tmp_path):
    canary = tmp_path / "canary"
    script = f"#!/bin/sh\ntouch {canary}\n"
    found_in(tmp_path, script=script, command=f"{DIR}/guard.sh $(touch {canary}) `touch {canary}`")
    assert not canary.exists()


def test_a_script_that_is_not_text_or_too_large_is_no_trouble(tmp_path):
    (tmp_path / "bin").write_bytes(b"\x7fELF\0\0" + os.urandom(2000))
    os.chmod(tmp_path / "bin", 0o755)
    assert found_in(tmp_path, command=f"{DIR}/bin") == []
    (tmp_path / "big.sh").write_text("# x\n" * 600_000)
    assert [each.code for each in found_in(tmp_path, command=f"bash {DIR}/big.sh")] == ["not_read"]


def test_any_json_is_checked_without_a_fault(tmp_path):
    keys = st.sampled_from(
        ["hooks", "PreToolUse", "Stop", "stop", "BeforeTool", "pre_tool_execution", "matcher", "type", "command", "args",
         "url", "headers", "timeout", "if", "async", "enabled", "version", "disableAllHooks", "x", "env", "name"]
    )  # fmt: skip
    leaves = st.none() | st.booleans() | st.integers(-5, 5000) | st.sampled_from(
        ["command", "http", "", "x || true", "$A", "https://a", "(", "\x00", "~/x", "http://[", "\ud800"]
    )  # fmt: skip
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
    )

    @given(values, st.sampled_from([*FILES, None]))
    @settings(max_examples=300, deadline=None)
    def inner(value, host):
        path = tmp_path / "hooks.json"
        path.write_text(json.dumps(value))
        for each in check([examine(str(path), host)], {"HOME": str(tmp_path)}):
            assert each.code in CODES
            assert each.severity in SEVERITIES

    inner()


def test_every_code_is_listed():
    folder = Path(checking.__file__).parent
    texts = "".join(path.read_text() for path in folder.rglob("*.py") if path.name != "check.py")
    assert [code for code in CODES if f'"{code}"' not in texts] == []
    tested = {row[0] for row in (*ENTRIES, *COMMANDS, *SCRIPTS)}
    assert tested <= set(CODES)


@pytest.mark.parametrize(
    "piece",
    [
        "{" * 20000,
        "x" * 50000,
        '{"decision": "block"' * 2000,
        "catch (e) {" * 3000,
        "\\" * 20000,
        "$(" * 5000,
        "hookSpecificOutput = {" * 3000,
    ],
)
def test_hostile_scripts_are_read_in_bounded_time(tmp_path, piece):
    for name in ("guard.sh", "guard.py", "guard.js"):
        runner = RUNNERS[name[6:]]
        found_in(tmp_path, "codex", script=piece, script_name=name, command=f"{runner} {tmp_path}/{name}")
