"""Adds up the JUnit files of several pytest runs and prints the closing line.

    _tally.py LABEL=FILE=STATUS ...

STATUS is the exit status of that run. A run that failed without a failed test (an internal error, a process left
behind, no report) counts as one failure, so the line never looks better than the runs were. Exits 1 unless
something was executed and nothing failed.
"""

from __future__ import annotations

import sys
from xml.etree import ElementTree

Counts = tuple[int, int, int]


def count(path: str) -> Counts:
    """(passed, failed, skipped) of one JUnit file; a test that failed twice (call and teardown) is one."""
    verdicts: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = (case.get("classname", ""), case.get("name", ""))
        tags = {child.tag for child in case}
        verdict = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        if verdicts.get(name) != "failed":
            verdicts[name] = verdict
    found = list(verdicts.values())
    return found.count("passed"), found.count("failed"), found.count("skipped")


def judge(run: str) -> Counts:
    label, path, status = run.split("=")
    try:
        passed, failed, skipped = count(path)
    except (OSError, ElementTree.ParseError) as error:
        print(f"could not read the report of {label}: {error}")
        return 0, 1, 0
    if status != "0" and not failed:
        print(f"{label}: pytest ended with {status} although no test failed")
        failed = 1
    if not passed and not failed:
        print(f"{label}: no test was executed")
        failed = 1
    print(f"{label}: {passed} passed, {failed} failed, {skipped} skipped")
    return passed, failed, skipped


def main(runs: list[str]) -> int:
    passed, failed, skipped = (sum(column) for column in zip(*map(judge, runs), strict=True))
    print(f"stockade: {passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
