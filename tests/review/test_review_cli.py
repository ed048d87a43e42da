"""``stockade review`` as a user meets it: reports, exit codes, two versions, a policy, mistakes."""

from __future__ import annotations

import json
import pathlib
import shutil

import boxes
import pytest
from boxes import own_state  # noqa: F401

from stockade.policies.model import parse_policy, stated

HOOKS = pathlib.Path(__file__).parent / "hooks"
QUICK = (
    "--case",
    "benign-shell",
    "--case",
    "destructive-shell",
    "--case",
    "write-source",
    "--case",
    "benign-prompt",
)


def reviewing(*words, **options):
    return boxes.cli("review", *words, **options)


def plugin(parent, name, handlers, scripts=None):
    """A plugin of our own: handlers by event."""
    place = parent / name
    (place / "hooks").mkdir(parents=True)
    events = {event: [{"hooks": [each]}] for event, each in handlers.items()}
    (place / "hooks" / "hooks.json").write_text(json.dumps({"hooks": events}))
    for path, text in (scripts or {}).items():
        (place / path).write_text(text)
    return place


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("clean-guard", (), 0),
        ("telemetry", (), 1),
        ("telemetry", ("--fail-on", "critical"), 0),
        ("idle-guard", ("--fail-on", "low"), 1),
        ("idle-guard", (), 0),
    ],
)
def test_exit_codes(name, options, code):
    done = reviewing(*QUICK, *options, HOOKS / name)
    assert done.returncode == code, done.stdout + done.stderr
    assert str(HOOKS / name) in done.stdout
    assert done.stderr == ""


@pytest.mark.kernel
def test_every_report_of_one_review(tmp_path):
    html, sarif = tmp_path / "report.html", tmp_path / "report.sarif"
    done = reviewing(*QUICK, "--json", "--html", html, "--sarif", sarif, HOOKS / "exfil-http")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["schema"] == "stockade.review/1"
    assert {each["rule"] for each in document["findings"]} >= {"exfiltrates", "reads-secrets", "contacts-network"}
    log = json.loads(sarif.read_text())
    assert log["version"] == "2.1.0"
    assert "exfiltrates" in {each["ruleId"] for each in log["runs"][0]["results"]}
    assert "collect.example" in html.read_text()


@pytest.mark.kernel
def test_the_document_in_a_file_leaves_the_summary(tmp_path):
    done = reviewing(*QUICK, f"--json={tmp_path / 'report.json'}", HOOKS / "clean-guard")
    assert done.returncode == 0
    assert "clean-guard" in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "stockade.review/1"


@pytest.mark.kernel
def test_what_was_not_exercised_is_no_success(tmp_path):
    prompt = {"type": "prompt", "prompt": "Is this safe?"}
    place = plugin(tmp_path, "asking", {"PreToolUse": prompt})
    done = reviewing(place)
    assert done.returncode == 125
    assert "not reviewed: hooks/hooks.json PreToolUse 1" in done.stdout
    assert reviewing("--accept-unreviewed", place).returncode == 0
    missing = plugin(
        tmp_path, "missing", {"SessionStart": {"type": "command", "command": "python3 /no/such/hook.py"}}
    )
    done = reviewing(missing)
    assert done.returncode == 125
    assert "not reviewed: hooks/hooks.json SessionStart 1" in done.stdout


def test_nothing_to_review(tmp_path):
    done = reviewing(tmp_path)
    assert done.returncode == 0
    assert "No hooks found" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no path was given"),
        (("/no/such/place",), "there is no such file"),
        (("a", "b", "c"), "'c' is one too many"),
        (("--fail-on", "bad", "."), "it is no severity"),
        (("--jobs", "0", "."), "--jobs"),
        (("--timeout", "soon", "."), "--timeout"),
        (("--case", "no-such", "."), "there is none"),
        (("--html", "x.html", "a", "b"), "about one version"),
        (("--html", "/no/such/folder/x.html", "."), "could not write"),
    ],
)
def test_mistakes(words, text, tmp_path):
    done = reviewing(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_help():
    done = reviewing("--help")
    assert done.returncode == 0
    assert "--suggest-policy" in done.stdout
    assert "review" in boxes.cli("--help").stdout


@pytest.mark.kernel
def test_a_link_in_the_tree_is_not_followed(tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(HOOKS / "clean-guard", tree)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tree / "report.html").symlink_to(precious)
    done = reviewing(*QUICK, "--html", tree / "report.html", tree)
    assert done.returncode == 125
    assert "symlink" in done.stderr
    assert precious.read_text() == "mine"
    assert reviewing(*QUICK, "--html", tree / "other.html", tree).returncode == 0
    assert (tree / "other.html").stat().st_size


@pytest.mark.kernel
def test_two_versions(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(HOOKS / "clean-guard", old)
    shutil.copytree(HOOKS / "clean-guard", new)
    shutil.copy(HOOKS / "telemetry" / "count.py", new / "guard.py")
    done = reviewing(*QUICK, old, new)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "+ hooks/hooks.json PreToolUse 1 contacts tcp telemetry.example:80" in done.stdout
    assert "destructive-shell: exit 0, deny  ->  destructive-shell: exit 0, no objection" in done.stdout
    back = reviewing(*QUICK, "--json", new, old)
    assert back.returncode == 0
    document = json.loads(back.stdout)
    assert document["schema"] == "stockade.review-compare/1"
    assert {each["rule"] for each in document["gone"]} == {"contacts-network", "never-blocks"}
    assert not document["same"]


@pytest.mark.kernel
def test_the_same_version_twice():
    done = reviewing(*QUICK, HOOKS / "clean-guard", HOOKS / "clean-guard")
    assert (done.returncode, done.stdout) == (0, "No change in behaviour was seen.\n")


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clean-guard", {"network.egress": "none", "filesystem.workspace": "none", "filesystem.root": "minimal"}),
        ("clean-formatter", {"network.egress": "none", "filesystem.workspace": "read-write"}),
        ("online-guard", {"network.egress": "allow", "network.allow": ("203.0.113.7",)}),
    ],
)
def test_a_policy_is_suggested_and_proved(name, expected, tmp_path):
    path = tmp_path / "policy.toml"
    done = reviewing(*QUICK, f"--suggest-policy={path}", HOOKS / name)
    assert "suggested policy: proved" in done.stdout, done.stdout + done.stderr
    policy = stated(parse_policy(path.read_text(), "x"))
    assert expected.items() <= policy.items()
    assert boxes.cli("policy", "check", path).returncode == 0


@pytest.mark.kernel
def test_a_suggested_policy_works(tmp_path):
    """The hook under its policy, by the command that hosts would call; and what that policy keeps from another."""
    done = reviewing(*QUICK, "--suggest-policy", HOOKS / "clean-guard")
    assert (done.returncode, "clean-guard" in done.stderr) == (0, True)
    path = tmp_path / "policy.toml"
    path.write_text(done.stdout)
    event = {
        "hook_event_name": "PreToolUse",
        "session_id": "s",
        "tool_name": "Bash",
        "tool_input": {"command": "rm -rf /"},
    }
    script = tmp_path / "guard.py"
    shutil.copy(HOOKS / "clean-guard" / "guard.py", script)
    words = ("hook", "--policy", path, "--read", script, "--", boxes.PYTHON, script)
    answer = boxes.cli(*words, input=json.dumps(event), stdin=None, cwd=tmp_path)
    assert json.loads(answer.stdout)["hookSpecificOutput"]["permissionDecisionReason"].startswith("clean-guard:"), (
        answer.stderr
    )


@pytest.mark.kernel
def test_no_policy_for_what_steals():
    done = reviewing(*QUICK, "--suggest-policy", "--json", HOOKS / "exfil-http")
    suggestion = json.loads(done.stdout)["suggestion"]
    assert suggestion["proved"] is False
    assert suggestion["differences"]
    assert "network.allow" not in suggestion["settings"]
