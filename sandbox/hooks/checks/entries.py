"""Checks of a handler's entry: its timeout, matcher, filter, switches, address. Pure."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from stockade.policies.text import quoted
from stockade.sandbox.hooks.dialects import dialect
from stockade.sandbox.hooks.match import matcher_problem
from stockade.sandbox.hooks.permission import condition_problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from stockade.sandbox.hooks.checks.about import About
    from stockade.sandbox.hooks.finding import Finding

PATIENCE = 60.0
"""Seconds that a turn may wait for a handler without a timeout of its own."""
LONGEST_COMMAND = 2000
HEADER_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


def check_entry(about: About) -> Iterator[Finding]:
    yield from timeouts(about)
    yield from filters(about)
    yield from switches(about)
    if about.spec.form == "http":
        yield from address(about)
    text = about.codes[0].text
    if len(text) > LONGEST_COMMAND:
        yield about.told(
            "long_command", "low", f"the command has {len(text)} characters", "Put it into a script.", about.key
        )


def timeouts(about: About) -> Iterator[Finding]:
    spec = about.spec
    host = dialect(spec.dialect)
    if not spec.timeout_given:
        if about.blocks and spec.timeout >= PATIENCE and spec.form in ("shell", "argv", "http"):
            text = f"no timeout on an event that blocks: the turn can wait {spec.timeout:g} seconds"
            yield about.told("no_timeout", "medium", text, "Set a timeout of some seconds.")
        return
    given = spec.raw.get("timeout", 0)
    if host.TIMEOUT_UNIT < 1 and given < 1000:
        text = f"the timeout is {given} milliseconds; it looks like seconds"
        yield about.told("timeout_unit", "high", text, f"Write {int(given * 1000)} for {given} seconds.", "timeout")
    if host.TIMEOUT_UNIT == 1 and given >= 1000:
        text = f"the timeout is {given} seconds; it looks like milliseconds"
        yield about.told(
            "timeout_unit", "medium", text, f"Write {max(1, int(given / 1000))} for seconds.", "timeout"
        )


def filters(about: About) -> Iterator[Finding]:
    spec = about.spec
    problem = matcher_problem(spec)
    if problem is not None:
        bad = problem.code == "bad_pattern"
        remedy = "Correct the pattern." if bad else "Leave it out, the handler runs each time."
        yield about.told(problem.code, "high" if bad else "low", problem.text, remedy)
    problem = condition_problem(spec.condition, spec.event) if spec.condition else None
    if problem is not None:
        remedy = "Use a matcher there." if problem.code == "if_never" else "Write one rule, such as Bash(git *)."
        yield about.told(problem.code, "high", problem.text, remedy, "if")


def switches(about: About) -> Iterator[Finding]:
    spec = about.spec
    if spec.asynchronous and about.blocks:
        text = "it runs in the background, so it can't decide anything on an event that blocks"
        yield about.told(
            "async_guard", "high" if about.guards else "medium", text, "Leave async out of a guard.", "async"
        )
    if spec.dialect == "cursor" and about.blocks and about.guards and not spec.fail_closed:
        text = "it guards, and a crash or timeout of it lets the action go ahead"
        yield about.told("fails_open", "high", text, 'Write "failClosed": true.')


def address(about: About) -> Iterator[Finding]:
    spec = about.spec
    try:
        parts = urlsplit(spec.url)
        host, scheme = parts.hostname or "", parts.scheme
    except ValueError:
        host, scheme = "", ""
    if scheme not in ("http", "https") or not host:
        yield about.told("bad_url", "high", f"{quoted(spec.url)} is no address", "Write https://HOST/PATH.", "url")
        return
    if scheme == "http":
        text = "the event goes out unencrypted"
        yield about.told("plain_http", "high", text, "Use https.", "url")
    if private(host):
        text = f"the address {quoted(host)} is on this machine or a private network; hosts that confine refuse it"
        yield about.told("local_url", "medium", text, "Use a public address, or a command.", "url")
    used = [name for _key, value in spec.headers for name in HEADER_VARIABLE.findall(value)]
    for name in dict.fromkeys(used):
        if name not in spec.header_variables:
            text = f"the variable {name} is not in allowedEnvVars, so the header gets an empty text"
            yield about.told("header_variable", "medium", text, f"Add {name} to allowedEnvVars.", "headers")


def private(host: str) -> bool:
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
