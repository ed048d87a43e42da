"""Which outcomes are right after a fault (pure), and what is wrong with the one that came.

A run of these tests either goes on for ever, so that only a fault or its time limit ends it, or ends by itself with
CODE; it prints UP first. So whether its program was started is known from what it printed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CODE = 7
UP = "up\n"
OUTCOMES = {"exited", "signalled", "timed_out", "stopped", "lost", "runner_failed", "not_executed"}

BOX = "bubblewrap could not set up the sandbox"
KILLED: dict[str, list[tuple[str, bool, str]]] = {
    # role: (outcome, started, what the reason has to say)
    "keeper": [
        ("lost", True, "the keeper of the sandbox ended during the run"),
        ("runner_failed", False, "the keeper of the sandbox ended before the program was started"),
        ("runner_failed", False, "could not lease a network: "),
        ("runner_failed", True, "the leased network broke: "),  # it took the holder along, and that was seen first
    ],
    "monitor": [
        ("lost", True, "bubblewrap was killed by SIGKILL; the program may have run"),
        ("runner_failed", False, "bubblewrap was killed by SIGKILL before the program was started"),
    ],
    "init": [
        ("signalled", True, "likely killed by SIGKILL"),
        ("runner_failed", False, BOX),
        # one that is just dying is not shown to an ordinary user
        ("runner_failed", False, "the program was not let go: could not look at its namespaces"),
    ],
    "program": [("signalled", True, "likely killed by SIGKILL"), ("runner_failed", False, BOX)],
}
for _part in ("holder", "slirp4netns", "pasta"):
    KILLED[_part] = [
        ("runner_failed", True, f"the leased network broke: {_part} ended during the run"),
        ("runner_failed", False, f"the leased network broke: {_part} ended during the run"),
        ("runner_failed", False, f"could not lease a network: {_part}: "),
    ]
# What is seen as a holder may be the child that has just entered its namespaces, to become bubblewrap.
KILLED["holder"] += KILLED["monitor"]
# A child that waits, and may become any of these before the signal reaches it.
KILLED["spare"] = [("runner_failed", False, "the program was not let go: could not limit processes: interrupted")]
KILLED["spare"] += [each for role in ("monitor", "holder", "slirp4netns", "pasta") for each in KILLED[role]]


def wrong_with(answer: Mapping[str, Any]) -> str:
    """What no answer may be, whatever was done to the run. Empty: nothing."""
    if "raised" in answer:
        if loading(answer):
            return ""
        return "" if answer["raised"] in ("StockadeError", "SandboxUnavailable") else "an error of no kind of ours"
    if answer["outcome"] not in OUTCOMES:
        return "no outcome of the contract"
    if answer["stdout"] not in ("", UP):
        return "output that the program did not make"
    if answer["stdout"] and not answer["started"]:
        return "the program ran, and it is said that it was not started"
    if answer["outcome"] in ("exited", "signalled", "lost") and not answer["started"]:
        return "an outcome that only a started program has"
    return ""


def loading(answer: Mapping[str, Any]) -> bool:
    """Python itself could not open the file of a module: nothing has begun yet."""
    return answer["raised"] in ("OSError", "ImportError") and ".py" in answer["message"]


def ended_by_itself(answer: Mapping[str, Any]) -> bool:
    return (answer.get("outcome"), answer.get("exit_code"), answer.get("stdout")) == ("exited", CODE, UP)


def timed_out(answer: Mapping[str, Any]) -> bool:
    return answer.get("outcome") == "timed_out" and answer["returncode"] == 124


def fits_kill(answer: Mapping[str, Any], role: str, *, forever: bool) -> bool:
    """Whether this is a right answer to the death of ``role``; a run that was not for ever may have been over."""
    if ended_by_itself(answer):
        return not forever
    if role == "spare" and timed_out(answer):
        return forever  # another child takes its place, and the run goes on
    return any(
        (answer.get("outcome"), answer.get("started")) == (outcome, started)
        and str(answer.get("reason", "")).startswith(reason)
        for outcome, started, reason in KILLED[role]
    )
