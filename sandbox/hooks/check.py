"""What is wrong with hooks files, as far as can be told without running anything.

Reads files and the scripts that their handlers name; executes nothing and asks nobody.
"""

from __future__ import annotations

from stockade.sandbox.hooks.checks.about import about
from stockade.sandbox.hooks.checks.answers import answers, ends
from stockade.sandbox.hooks.checks.asking import unguarded
from stockade.sandbox.hooks.checks.commands import check_commands
from stockade.sandbox.hooks.checks.effects import installs, variables, writes
from stockade.sandbox.hooks.checks.entries import check_entry
from stockade.sandbox.hooks.finding import SEVERITIES, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stockade.sandbox.hooks.config import Loaded
    from stockade.sandbox.hooks.model import HookSpec

CODES: Mapping[str, str] = {
    "unreadable": "the file can't be read",
    "unknown_host": "a hooks file of a host that is not known",
    "not_looked_at": "a directory could not be searched",
    "wrong_shape": "an entry is not what the host reads",
    "missing_field": "a handler lacks what its type needs",
    "missing_type": "a handler has no type",
    "unknown_type": "a type of handler that the host does not know",
    "idle_type": "a type of handler that the host reads and skips",
    "unknown_field": "a field that the host does not know",
    "null_field": "a field is null",
    "unknown_event": "an event that the host does not send",
    "bare_events": "the events are not under hooks",
    "misplaced_event": "an event beside hooks",
    "no_hooks": "a hooks file without hooks",
    "no_version": "a Cursor file without a version",
    "unknown_version": "a Cursor file of another version",
    "disabled": "a switch turns the handlers off",
    "duplicate_key": "a key stands twice",
    "bom": "the file begins with a byte order mark",
    "bad_timeout": "a timeout that is none",
    "timeout_unit": "milliseconds and seconds mixed up",
    "no_timeout": "no timeout on an event that blocks",
    "bad_pattern": "a matcher that is no pattern",
    "matcher_ignored": "a matcher that the host does not look at",
    "bad_if": "a filter that is no rule",
    "if_never": "a filter on an event that has none",
    "async_guard": "in the background on an event that blocks",
    "fails_open": "a Cursor guard without failClosed",
    "bad_url": "an address that is none",
    "plain_http": "an event sent unencrypted",
    "local_url": "an address on this machine or a private network",
    "header_variable": "a header's variable that is not allowed",
    "long_command": "a very long command",
    "unquoted_root": "a path variable outside of quotes",
    "quoted_twice": "quotes around a path that Gemini quotes",
    "refused_placeholder": "a placeholder that the host refuses in a shell's text",
    "undefined_variable": "a variable that no host sets",
    "swallowed_failure": "`|| true` and the like behind a guard",
    "piped_exit": "a pipe that hides a guard's exit code",
    "login_shell": "a login shell, whose profile may print",
    "missing_script": "a program or script that is not there",
    "not_read": "a script that could not be read to its end",
    "not_executable": "a program that may not be executed",
    "relative_script": "a path that depends on the session's directory",
    "network_install": "packages fetched when the hook runs",
    "remote_code": "code from the network run as it comes",
    "deny_without_reason": "a deny that Codex takes for invalid",
    "json_on_stderr": "a decision on stderr",
    "json_and_exit": "a decision and an exit code that cancels it",
    "exit_2_ignored": "exit code 2 where it blocks nothing",
    "silent_exit_2": "exit code 2 without a word",
    "no_event_name": "hookSpecificOutput without hookEventName",
    "undefined_field": "a field that no host defines",
    "env_file": "variables planted in the agent's shell",
    "shared_tmp": "a fixed name in a shared directory",
    "env_dump": "the whole environment written out",
    "network_fails_open": "a guard that goes ahead when its network call fails",
}
"""Every code that a finding can have, and what it is about."""


def check(found: Iterable[Loaded], env: Mapping[str, str] | None = None) -> list[Finding]:
    """Every finding about files and their handlers, the worst first within a file.

    ``env`` is where HOME comes from; None is the process's own.
    """
    findings: list[Finding] = []
    for loaded in found:
        findings += ordered((*loaded.problems, *check_specs(loaded.specs, env)))
    return findings


def check_specs(specs: Sequence[HookSpec], env: Mapping[str, str] | None = None) -> list[Finding]:
    """The findings about handlers alone, in their order, each once."""
    findings: list[Finding] = []
    seen: set[tuple[object, ...]] = set()
    for spec in specs:
        for each in check_spec(spec, env):
            # A script that many handlers run is told of once.
            place = (each.code, each.file, each.line) if each.file != spec.source else (each,)
            if place not in seen:
                findings.append(each)
            seen.add(place)
    return findings


def check_spec(spec: HookSpec, env: Mapping[str, str] | None = None) -> Iterator[Finding]:
    handler = about(spec, env)
    yield from check_entry(handler)
    yield from check_commands(handler)
    for code in handler.codes:
        for look in (answers, ends, variables, writes, unguarded, installs):
            yield from look(handler, code)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))
