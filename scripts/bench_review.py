"""How long a review takes, and its report to open: ``scripts/bench review``.

A plugin of 25 handlers (five scripts of the test's hooks, five times each), and a report of 1,000 findings in the
distribution's Chromium. Times of a shared machine: compare what was measured in one sitting.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests/review"
sys.path.insert(0, str(TESTS))

import reviews  # noqa: E402

from stockade.sandbox.review import html  # noqa: E402
from stockade.sandbox.review.review import review  # noqa: E402

SCRIPTS = ("clean-guard", "clean-formatter", "telemetry", "secret-reader", "sandbox-detector")
TIMES = 5
ROUNDS = 9
LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd"


def plugin(folder: Path) -> Path:
    """Every script of the chosen hooks, declared over and over."""
    declared: dict[str, list] = {}
    for name in SCRIPTS:
        own = TESTS / "hooks" / name
        shutil.copytree(own, folder / name)
        events = json.loads((own / "hooks/hooks.json").read_text())["hooks"]
        for event, groups in events.items():
            text = json.dumps(groups[:1]).replace("${CLAUDE_PLUGIN_ROOT}", f"${{CLAUDE_PLUGIN_ROOT}}/{name}")
            declared.setdefault(event, []).extend(json.loads(text) * TIMES)
            break
    for name in SCRIPTS:
        shutil.rmtree(folder / name / "hooks")
    (folder / "hooks").mkdir()
    (folder / "hooks/hooks.json").write_text(json.dumps({"hooks": declared}))
    return folder


def reviewed() -> str:
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir="/var/tmp") as work:
        folder = Path(work, "plugin")
        folder.mkdir()
        began = time.perf_counter()
        found = review(plugin(folder))
        taken = time.perf_counter() - began
    done = f"{len(found.handlers)} handlers, {len(found.exercises)} runs reviewed"
    return f"{done}: {taken:.1f} s on {os.cpu_count()} cores (goal 60 s on 2)"


def opened() -> str:
    from playwright.sync_api import sync_playwright

    began = time.perf_counter()
    text = html.render(reviews.many(1000))
    made = (time.perf_counter() - began) * 1000
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        path = Path(work, "report.html")
        path.write_text(text, encoding="utf-8")
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to confine itself for root
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=options)
        taken = []
        for _ in range(ROUNDS):
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(path.as_uri())
            taken.append(page.evaluate(LOADED))
            page.close()
        browser.close()
    median = statistics.median(taken)
    return f"report of 1,000 findings: made in {made:.0f} ms, {len(text) >> 10} KiB, opens in {median:.0f} ms (goal 1000)"


if __name__ == "__main__":
    print(opened())
    print(reviewed())
