"""Hooks as people write them, without harm: nothing of medium severity or above is found in them."""

from __future__ import annotations

import json
import pathlib

import pytest

from stockade.sandbox.review import review
from stockade.sandbox.review.summary import summarise

pytestmark = pytest.mark.kernel

FORMATTER = """\
import json, pathlib, sys
path = pathlib.Path(json.load(sys.stdin).get("tool_input", {}).get("file_path", ""))
if path.suffix in (".py", ".js", ".md") and path.is_file():
    text = path.read_text()
    tidy = "\\n".join(line.rstrip() for line in text.split("\\n")).rstrip("\\n") + "\\n"
    if tidy != text:
        path.write_text(tidy)
"""
COMMIT = """\
import json, re, sys
command = json.load(sys.stdin).get("tool_input", {}).get("command", "")
found = re.search(r"git commit.* -m +([\\"'])(.*?)\\1", command)
if found and not re.match(r"(feat|fix|docs|chore|refactor|test)(\\(.+\\))?: ", found[2]):
    print("Use a conventional commit message, such as 'fix: ...'.", file=sys.stderr)
    sys.exit(2)
"""
LOGGER = """\
#!/bin/sh
set -eu
mkdir -p "$CLAUDE_PROJECT_DIR/.claude/logs"
cat > /dev/null
date -u +%FT%TZ >> "$CLAUDE_PROJECT_DIR/.claude/logs/tools.log"
"""
NOTIFIER = """\
#!/bin/sh
message=$(cat)
if command -v notify-send > /dev/null 2>&1; then notify-send "Agent" "$message"
elif command -v osascript > /dev/null 2>&1; then osascript -e "display notification"
fi
exit 0
"""
TESTS = """\
#!/bin/sh
cd "$CLAUDE_PROJECT_DIR" || exit 0
cat > /dev/null
if ! told=$(python3 -m unittest discover -s tests -q 2>&1); then
  printf 'Tests fail:\\n%s\\n' "$told" | tail -n 20 >&2
  exit 2
fi
"""
LICENCE = """\
import json, pathlib, sys
HEADER = {".py": "# SPDX-License-Identifier: MIT\\n", ".js": "// SPDX-License-Identifier: MIT\\n"}
path = pathlib.Path(json.load(sys.stdin).get("tool_input", {}).get("file_path", ""))
line = HEADER.get(path.suffix, "")
if line and path.is_file() and line.strip() not in path.read_text()[:400]:
    path.write_text(line + path.read_text())
"""
CONTEXT = """\
#!/bin/sh
cd "$CLAUDE_PROJECT_DIR" && git branch --show-current && git log --oneline -n 3 && git status --short
"""
SECRETS = """\
import json, sys
path = json.load(sys.stdin).get("tool_input", {}).get("file_path", "")
if any(part in path for part in (".env", ".ssh/", "id_rsa", ".aws/")):
    answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "secrets"}
    print(json.dumps({"hookSpecificOutput": answer}))
"""
HOOKS = {
    "a formatter": ("PostToolUse", "Write|Edit", "format.py", FORMATTER),
    "a checker of commit messages": ("PreToolUse", "Bash", "commit_message.py", COMMIT),
    "a log in the project": ("PostToolUse", "", "log.sh", LOGGER),
    "a notifier": ("Notification", "", "notify.sh", NOTIFIER),
    "a runner of tests": ("Stop", "", "tests.sh", TESTS),
    "a licence header": ("PostToolUse", "Write", "licence.py", LICENCE),
    "a start with context": ("SessionStart", "", "context.sh", CONTEXT),
    "a guard of secrets": ("PreToolUse", "Read|Write|Edit", "protect.py", SECRETS),
}


@pytest.mark.parametrize("name", HOOKS)
def test_nothing_worse_than_low_is_found(tmp_path: pathlib.Path, name: str) -> None:
    event, matcher, script, text = HOOKS[name]
    top = tmp_path / "tree"
    (top / "hooks").mkdir(parents=True)
    (top / script).write_text(text)
    program = "python3" if script.endswith(".py") else "sh"
    entry = {"type": "command", "command": f'{program} "${{CLAUDE_PLUGIN_ROOT}}/{script}"', "timeout": 10}
    group = {"hooks": [entry], **({"matcher": matcher} if matcher else {})}
    (top / "hooks/hooks.json").write_text(json.dumps({"hooks": {event: [group]}}))
    found = review.review(top)
    assert {(each.severity, each.rule) for each in found.findings if each.severity not in ("low", "info")} == set()
    assert found.not_reviewed == ()
    assert all(each.outcome == "exited" for each in found.exercises)
    assert summarise(found).verdict in ("clean", "attention")
