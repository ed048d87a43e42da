"""``stockade shell``: an interactive shell that is confined, with its policy in the prompt.

It is a run with a terminal of its own (``terminal``) and a shell as its program; nothing here confines anything.
"""

from __future__ import annotations

import os
import sys

from stockade.policies.errors import RequestError
from stockade.sandbox.cli import exits, run, shared
from stockade.sandbox.cli.options import FLAG, VALUE, Option, parse, render_help
from stockade.sandbox.keeperlink import fork_keeper_if_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import Any

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.order import Order
    from stockade.sandbox.result import RunResult
else:
    import _signal as signal  # ``signal`` itself costs as much as enum

SHELLS = ("bash", "sh")
"""The default: the first of these that is there."""
OPTIONS = (
    *shared.POLICY_OPTIONS,
    Option(
        ("--keep",),
        "keep",
        VALUE,
        "CHOICE",
        "what --workspace overlay captured: ask, yes (apply it) or no",
        "Policy",
    ),
    Option(("--shell",), "shell", VALUE, "PROGRAM", "the shell to run (bash, or sh where there is none)"),
    Option(("-c",), "command", VALUE, "COMMAND", "run this with the shell, and need no terminal"),
    Option(("-v", "--verbose"), "verbose", FLAG, "", "end with the verdict and its evidence, on stderr"),
    shared.HELP,
)
USAGE = "stockade shell [OPTIONS]"
SUMMARY = (
    "A confined shell to work in. The default policy is read-only, no network, an empty HOME. "
    "The prompt says which policy holds; what the shell starts is under it too."
)
EPILOG = "Exit codes: the shell's own; 124 timed out; 125 stockade failed or refused; 128+N after signal N."
PASSED = ("COLORTERM", "NO_COLOR")
"""Of the caller's variables, beside those that the policy passes: how to look on its terminal."""
SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def main(argv: Sequence[str]) -> int:
    values = parse(OPTIONS, argv, rest="none").values
    if values["help"]:
        sys.stdout.write(render_help(USAGE, SUMMARY, OPTIONS, EPILOG))
        return exits.OK
    if values["command"] is None:
        need_terminal()
    fork_keeper_if_ours(leased=bool(values["allow"] or values["record_egress"] or values["open_egress"]))
    order = order_of(values)
    choice = run.choice_of(values, order)
    # An interactive shell ignores a request to terminate, and ends when its terminal is gone.
    interactive = values["command"] is None
    passed_as = {int(signal.SIGTERM): int(signal.SIGHUP)} if interactive else {}
    result = run.supervised(order, capture=False, passed_as=passed_as)
    closing(result, verbose=bool(values["verbose"]), interactive=interactive)
    return run.settle(result, choice, show=True)


def need_terminal() -> None:
    """Raises RequestError where nobody could type, or see what a shell says."""
    for number, name in ((0, "input"), (1, "output")):
        if not run.is_terminal(number):
            raise RequestError(
                f"could not open a shell: standard {name} is no terminal",
                remedy="Run one command with -c COMMAND, or with `stockade run`.",
            )


def order_of(values: dict[str, Any]) -> Order:
    """The shell as an order; its prompt says what is in force, so that is found out first."""
    from stockade.sandbox.conduct import judge
    from stockade.sandbox.order import make_order
    from stockade.sandbox.request import make_request

    shell = values["shell"]
    if shell is None:
        shell = first_shell(os.environ.get("PATH", os.defpath))
    command = values["command"]
    order = make_order(
        [shell, "-c", command] if command is not None else [shell, "-i"],
        policy=values["policy"],
        cwd=values["cwd"],
        stdin=0,
        options=shared.policy_layer(values),
    )
    settled, _host = judge(order)
    from stockade.sandbox.cli.style import colour_on

    on = command is None and colour_on(sys.stdout)
    words, more = prompt(shell, label(order.policy, settled.level if settled else "none"), on)
    env = {**terminal_look(), **(more if command is None else {}), **shared.variables(values["env"])}
    argv = [shell, *words, "-i"] if command is None else order.request.argv
    return order.replace(request=make_request(argv, cwd=order.request.cwd, env=env))


def first_shell(path: str) -> str:
    places = [place for place in path.split(":") if place]
    for name in SHELLS:
        if any(os.access(f"{place}/{name}", os.X_OK) for place in places):
            return name
    return SHELLS[-1]


def terminal_look() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED if name in os.environ}


def label(policy: Resolved, enforcement: str) -> str:
    """What the prompt calls the policy: its name, and what is not to be seen by that (pure).

    Of letters that no shell gives a meaning in quotes or prompts.
    """
    name = policy.name.rsplit("/", 1)[-1].removesuffix(".toml")
    words = ["".join(letter if letter in SAFE else "_" for letter in name)]
    if enforcement == "none":
        return f"{words[0]} UNCONFINED"
    if dict(policy.origin).get("filesystem.workspace") == "options" and policy.workspace != policy.name:
        words.append(policy.workspace)
    if policy.egress != "none":
        words.append(f"net-{policy.egress}")
    if enforcement != "full":
        words.append(enforcement)
    return " ".join(words)


def prompt(shell: str, text: str, on: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and variables with which a shell shows ``text`` in its prompt (pure). ``on``: in colour.

    bash takes PS1 from its start-up files, so it is set before the first prompt, which comes after them.
    """
    name = os.path.basename(shell)
    if name == "bash":
        painted = rf"\[\e[33m\]{text}\[\e[0m\]" if on else text
        return (), {"PROMPT_COMMAND": rf"PS1='stockade {painted} \w \$ '; unset PROMPT_COMMAND"}
    if name == "zsh":
        return (), {"PS1": f"stockade {text} %~ %# "}
    if name == "fish":
        return ("-C", f"function fish_prompt; echo -n 'stockade {text} '(prompt_pwd)' > '; end"), {}
    return (), {"PS1": f"stockade {text} $PWD $ "}


def closing(result: RunResult, *, verbose: bool, interactive: bool) -> None:
    """As after a run; but a shell that ends with 130 ends with the code of its last command, it was not killed."""
    quiet = result.outcome == "signalled" and interactive and not verbose
    if quiet and not (result.denials or result.notes or result.degraded or result.policy.egress == "record"):
        return
    run.closing(result, verbose=verbose)
