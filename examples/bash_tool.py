"""A model's bash tool: run its command confined to the project, and answer with what really happened.

python examples/bash_tool.py 'ls; touch ~/x; cat /etc/shadow'
"""

from __future__ import annotations

import os
import sys

import stockade


def bash_tool(command: str, project: str, *, hosts: tuple[str, ...] = ()) -> str:
    """What the model is shown: output, verdict, and each denial with the way to ask for more."""
    result = stockade.run(command, policy="workspace-write", cwd=project, allow=hosts, timeout=60.0)
    lines = [
        result.stdout.decode("utf-8", "replace"),
        result.stderr.decode("utf-8", "replace"),
        f"[{result.outcome}, exit code {result.exit_code}] {result.reason}",
        *(f"[denied: {d.kind} {d.subject} ({d.certainty})] {d.hint}" for d in result.denials),
    ]
    return "\n".join(line.rstrip() for line in lines if line.strip())


if __name__ == "__main__":
    try:
        print(bash_tool(" ".join(sys.argv[1:]), os.getcwd()))
    except stockade.StockadeError as error:  # refused, or never started: nothing was run
        sys.exit(str(error))
