"""Confines the programs of examples/, prints each verdict with its evidence, then looks at the host.

Started by scripts/demo. Uses the public API alone. Secrets are planted in a temporary home; each promise is checked
on the host, and the hook is first run without a fence to show that the checks can fail. Exits 1 if one does.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EVENT = {
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "rm -rf ~/"},
}
COLLECTORS = (("collect.guard.example", 443), ("192.0.2.1", 8443))
"""Whom the confined hook calls beside the ear: a name and an address that are reserved for documentation."""
OUTSIDE = ("/usr/local/bin/stockade-demo-widget", "/etc/cron.d/stockade-demo-widget")
COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


# --- printing ----------------------------------------------------------------------------------------------


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURED else text


def title(text: str) -> None:
    print(f"\n{paint(text, '1')}")


def row(label: str, text: object) -> None:
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    print(f"  {label:<10} {printable}")


def verdict_of(result) -> str:
    code = "" if result.exit_code is None else f" {result.exit_code}"
    denied = ", denied" if result.denied else ""
    return f"{result.outcome}{code}{denied}"


def show(result, cwd: Path) -> None:
    row("verdict", f"{verdict_of(result)} · enforcement {result.enforcement} · {result.duration * 1000:.0f} ms")
    if result.outcome not in ("exited", "signalled"):
        row("reason", result.reason)
    for missing in result.degraded:
        row("degraded", missing)
    for denial in result.denials:
        row("denied", f"{denial.kind} {denial.subject} ({denial.certainty}) {denial.detail}")
    for attempt in result.egress:
        sent = attempt.data.partition("\n")[0]
        row("called", f"{attempt.host}:{attempt.port} by {attempt.via}, {attempt.bytes} bytes, {sent!r}")
    if result.files_written is not None:
        written = [f"{os.path.relpath(file.path, cwd)} ({file.kind})" for file in result.files_written]
        row("wrote", ", ".join(written) or "nothing that stays")


# --- the stage ---------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """A home with secrets, a project, and an ear on the loopback; counts the checks that failed."""

    home: Path
    project: Path
    ear: socket.socket
    planted: list[str] = field(default_factory=list)
    checks: int = 0
    failed: int = 0

    def check(self, what: str, *, holds: bool, about: str = "host") -> None:
        self.checks += 1
        self.failed += not holds
        row(f"  {about}", f"{paint('ok', '32') if holds else paint('FAILED', '31')}  {what}")

    def visitors(self) -> int:
        count = 0
        try:
            while True:
                self.ear.accept()[0].close()
                count += 1
        except BlockingIOError:
            return count

    def seen_in(self, result) -> int:
        output = (result.stdout + result.stderr).decode("utf-8", "replace")
        return sum(secret in output for secret in self.planted)


def set_stage(base: Path, ear: socket.socket) -> Stage:
    """Plants five secrets: three files of the home, two variables of the environment."""
    base.chmod(0o755)
    stage = Stage(home=base / "home", project=base / "project", ear=ear)
    for name in (".ssh/id_ed25519", ".aws/credentials", ".netrc"):
        plant(stage, stage.home / name)
    (stage.home / ".bashrc").write_text("# mine\n")
    # The first scene hands its whole environment to the hook: nothing of the real one goes there.
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM", "TMPDIR") if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, HOME=str(stage.home), XDG_CACHE_HOME=str(base / "cache"))
    for name in ("DEPLOY_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = new_secret(stage)
    shutil.copytree(EXAMPLES / "third-party-hook", stage.project / "plugins" / "guard")
    shutil.copytree(EXAMPLES / "install-script", stage.project / "download")
    (stage.project / ".git" / "hooks").mkdir(parents=True)
    return stage


def new_secret(stage: Stage) -> str:
    stage.planted.append(f"planted-{secrets.token_hex(8)}")
    return stage.planted[-1]


def plant(stage: Stage, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new_secret(stage) + "\n")
    path.chmod(0o600)


def listing(tree: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in tree.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(tree))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def call_collectors(stage: Stage, *lines: str) -> None:
    ours = f"127.0.0.1 {stage.ear.getsockname()[1]}"
    (stage.project / "plugins/guard/collectors").write_text("\n".join((*lines, ours, "")))


# --- the scenes --------------------------------------------------------------------------------------------


def scene_hook_without_a_fence(stage: Stage, run) -> None:
    """The positive control: what the next scene checks for does happen when nothing prevents it."""
    title("1  A third-party hook, without a fence (trusted: it runs directly, on planted secrets)")
    call_collectors(stage)
    before = listing(stage.home)
    result = run(
        [str(stage.project / "plugins/guard/guard.sh")],
        trusted=True,
        cwd=str(stage.project),
        stdin=json.dumps(EVENT).encode(),
    )
    show(result, stage.project)
    cache, planted_hook = stage.home / ".guard-cache", stage.project / ".git/hooks/post-commit"
    stage.check(f"it took {stage.seen_in(result)} of 5 secrets", holds=stage.seen_in(result) == 5)
    stage.check("it left a file in the home and a git hook", holds=cache.exists() and planted_hook.exists())
    stage.check("it reached the collector", holds=stage.visitors() == 1)
    cache.unlink(missing_ok=True)
    planted_hook.unlink(missing_ok=True)
    stage.check("(cleaned up for the next scene)", holds=listing(stage.home).keys() == before.keys())


def scene_hook_confined(stage: Stage, run) -> None:
    title("2  The same hook, confined, in a network that lets nothing out and records who is called")
    call_collectors(stage, *(f"{host} {port}" for host, port in COLLECTORS))
    home, project = listing(stage.home), listing(stage.project)
    result = run(
        [str(stage.project / "plugins/guard/guard.sh")],
        policy="hook",
        record_egress=True,
        cwd=str(stage.project),
        stdin=json.dumps(EVENT).encode(),
    )
    show(result, stage.project)
    answer = result.stdout.decode("utf-8", "replace")
    row("answer", answer.strip())
    stage.check("it still guards: deny", holds='"permissionDecision":"deny"' in answer, about="answer")
    stage.check("none of the 5 secrets is in its output", holds=stage.seen_in(result) == 0)
    told = " ".join(map(str, result.egress))
    stage.check("nor in what it tried to send", holds=not any(secret in told for secret in stage.planted))
    called = [(attempt.host, attempt.port) for attempt in result.egress]
    stage.check("both collectors outside are on record", holds=called == [*COLLECTORS], about="record")
    stage.check("nothing of it left", holds=not any(attempt.allowed for attempt in result.egress), about="record")
    stage.check("the collector on this host heard nothing", holds=stage.visitors() == 0)
    stage.check("the home is as it was", holds=listing(stage.home) == home)
    stage.check("the project is as it was, .git/hooks too", holds=listing(stage.project) == project)


def scene_installer(stage: Stage, run) -> None:
    title("3  An installer, confined to the project (workspace-write)")
    home, git = listing(stage.home), listing(stage.project / ".git")
    result = run(["sh", "download/install.sh"], policy="workspace-write", cwd=str(stage.project), timeout=30.0)
    show(result, stage.project)
    for line in result.stdout.decode("utf-8", "replace").splitlines():
        row("said", line)
    widget = stage.project / "vendor/widget/widget"
    stage.check("what it built is in the project", holds=widget.is_file() and os.access(widget, os.X_OK))
    stage.check("the home is as it was: no ~/.local/bin, .bashrc untouched", holds=listing(stage.home) == home)
    stage.check("no git hook was planted", holds=listing(stage.project / ".git") == git)
    for path in OUTSIDE:
        stage.check(f"{path} does not exist", holds=not os.path.lexists(path))


def scene_verdicts(stage: Stage, run) -> None:
    title("4  Endings that look alike, told apart")
    table = [
        ("sh -c 'exit 3'", {}, "exited", 3),
        ("sh -c 'kill -9 $$'", {}, "signalled", 137),
        ("sleep 30", {"timeout": 0.3}, "timed_out", 124),
        ("stockade-no-such-command", {}, "not_executed", 127),
        ("touch /usr/stockade-demo", {}, "exited", 1),
    ]
    for command, options, outcome, returncode in table:
        result = run(split(command), policy="read-only", cwd=str(stage.project), **options)
        row("$", command)
        row("", f"{verdict_of(result)} · the CLI exits {result.returncode} · {result.reason}")
        right = (result.outcome, result.returncode) == (outcome, returncode)
        stage.check(f"{outcome}, {returncode}", holds=right, about="expected")
    stage.check("/usr/stockade-demo does not exist", holds=not os.path.lexists("/usr/stockade-demo"))


def split(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


def play(base: Path, ear: socket.socket) -> Stage:
    stage = set_stage(base, ear)
    import stockade  # after the stage is set: the home and the environment are the planted ones

    for scene in (scene_hook_without_a_fence, scene_hook_confined, scene_installer, scene_verdicts):
        try:
            scene(stage, stockade.run)
        except stockade.StockadeError as error:
            print(error, file=sys.stderr)
            stage.check("the scene could be played", holds=False)
    return stage


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="stockade-demo-") as base,
        socket.create_server(("127.0.0.1", 0)) as ear,
    ):
        ear.setblocking(False)
        stage = play(Path(base), ear)
    print(f"\n{stage.checks} checks, {stage.failed} failed")
    return int(stage.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
