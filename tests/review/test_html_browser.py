"""The HTML report in a real browser: silent, without a request, usable with keys alone, in both themes and on paper.

The browser is the distribution's Chromium, without a network. Screenshots are kept in the test's temporary directory
for who wants to look.
"""

from __future__ import annotations

import os
import shutil

import pytest
import reviews
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from stockade.sandbox.review import html

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
UNFOLD = "() => document.querySelectorAll('details').forEach(each => { each.open = true })"
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"
FOCUSED = """() => {
    const at = document.activeElement;
    return [at.tagName, at.closest('.finding')?.id ?? '', at.id, at.getAttribute('href') ?? ''];
}"""
HANDLERS = """() => [...document.querySelectorAll('*')]
    .flatMap(each => each.getAttributeNames()).filter(name => name.startsWith('on'))"""
LINKS = "() => [...document.querySelectorAll('a')].map(each => each.getAttribute('href')[0])"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    # Chromium refuses to confine itself for root. What it opens here is our own file.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=options)
        yield started
        started.close()


class Opened:
    """A page, and everything that it did by itself."""

    def __init__(self, browser: Browser, path: Path, **options: object) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page: Page = self.context.new_page()
        self.noise: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.noise.append(dialog.message), dialog.dismiss()))
        self.page.on("popup", lambda _page: self.noise.append("popup"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_error: object) -> None:
        self.context.close()


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.html"
    path.write_text(html.render(reviews.ALL[name]()), encoding="utf-8")
    return path


def open_details(page: Page) -> int:
    return page.evaluate("() => document.querySelectorAll('.finding > details[open]').length")


# --- what it does by itself: nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["empty", "clean", "bad", "hostile"])
def test_silent_without_requests_and_accessible(browser: Browser, tmp_path: Path, name: str, scheme: str) -> None:
    path = written(tmp_path, name)
    with Opened(browser, path, color_scheme=scheme, viewport={"width": 1200, "height": 900}) as opened:
        opened.page.evaluate(UNFOLD)
        found = Axe().run(opened.page, options=AXE)
        opened.page.screenshot(path=tmp_path / f"{name}-{scheme}.png", full_page=True)
        assert found.violations_count == 0, found.generate_report()
        assert opened.noise == []
        assert opened.requests == [path.as_uri()]
    assert (tmp_path / f"{name}-{scheme}.png").stat().st_size > 10_000


def test_axe_finds_faults(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><title>x</title><img src=data:,><p style='color:#aaa'>grey</p>", encoding="utf-8"
    )
    with Opened(browser, path) as opened:
        assert Axe().run(opened.page, options=AXE).violations_count > 1


@pytest.mark.parametrize(
    "script", ["<script>document.title = 'owned'</script>", "<img src=x onerror=\"document.title = 'owned'\">"]
)
def test_the_policy_holds_even_for_what_would_not_be_escaped(browser: Browser, tmp_path: Path, script: str) -> None:
    """Were the template ever wrong: the same page with live markup in it neither runs nor loads anything."""
    text = html.render(reviews.clean())
    lax = text.replace("Content-Security-Policy", "x-nothing")
    for name, page_text, title in (("strict", text, "Nothing found"), ("lax", lax, "owned")):
        path = tmp_path / f"{name}.html"
        path.write_text(page_text.replace("<main>", f"<main>{script}"), encoding="utf-8")
        with Opened(browser, path) as opened:
            assert opened.page.title().startswith(title)


def test_hostile_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "hostile")) as opened:
        page = opened.page
        assert page.title().startswith("Do not install: review of <script>")
        assert page.locator("script, img, iframe, object, embed, link, form, base").count() == 0
        assert set(page.evaluate(LINKS)) == {"#"}
        assert page.evaluate(HANDLERS) == []
        assert opened.noise == []


# --- with keys alone --------------------------------------------------------------------------------------


def focus_order(page: Page, most: int = 300) -> list[list[str]]:
    """What Tab reaches, in order, until it leaves the page."""
    order: list[list[str]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at[0] == "BODY" and order:
            break
        order.append(at)
    return order


def test_tab_reaches_every_finding_in_order(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "bad")) as opened:
        order = focus_order(opened.page)
    findings = [each[1] for each in order if each[0] == "SUMMARY" and each[1]]
    assert findings == [f"finding-{at}" for at in range(1, 7)]
    assert [each[2] for each in order if each[2].startswith("show-")][:2] == ["show-critical", "show-high"]
    links = ["#findings", "#findings", "#open", "#limits", "#runs", "#contacts", "#files", "#secrets"]
    assert [each[3] for each in order if each[0] == "A"] == links


def test_enter_opens_and_closes_a_finding(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "bad")) as opened:
        page = opened.page
        evidence = page.locator("#finding-6 pre")
        assert (open_details(page), evidence.is_visible()) == (3, False)
        page.locator("#finding-6 summary").focus()
        page.keyboard.press("Enter")
        assert (open_details(page), evidence.is_visible()) == (4, True)
        assert "goes ahead" in evidence.inner_text()
        page.keyboard.press("Space")
        assert (open_details(page), evidence.is_visible()) == (3, False)


def test_the_skip_link_leads_to_the_findings(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "bad")) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        assert page.locator(".skip").bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED)[2] == "show-critical"


def test_a_severity_is_hidden_by_its_box(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "bad")) as opened:
        page = opened.page
        shown = page.locator(".finding:visible")
        assert shown.count() == 6
        page.locator("#show-critical").focus()
        page.keyboard.press("Space")
        assert shown.count() == 4
        page.keyboard.press("Space")
        assert shown.count() == 6


# --- themes, paper, small screens -------------------------------------------------------------------------


def test_it_is_dark_where_that_is_wanted(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path, "bad")
    colours = {}
    for scheme in ("light", "dark"):
        with Opened(browser, path, color_scheme=scheme) as opened:
            colours[scheme] = opened.page.evaluate(BACKGROUND)
    assert colours == {"light": "rgb(245, 247, 249)", "dark": "rgb(17, 21, 25)"}


def test_on_paper_everything_is_unfolded(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, "bad"), color_scheme="dark") as opened:
        page = opened.page
        evidence = page.locator("#finding-6 pre")
        assert not evidence.is_visible()
        page.emulate_media(media="print")
        assert evidence.bounding_box()["height"] > 10
        assert not page.locator(".bar").is_visible()
        assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
        assert page.pdf(path=tmp_path / "bad.pdf", format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("name", ["clean", "bad", "hostile"])
def test_a_small_screen_scrolls_down_only(browser: Browser, tmp_path: Path, name: str) -> None:
    with Opened(browser, written(tmp_path, name), viewport={"width": 320, "height": 640}) as opened:
        opened.page.evaluate(UNFOLD)
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") <= 320


# --- many -------------------------------------------------------------------------------------------------


def test_a_thousand_findings(browser: Browser, tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """All there and each can be opened; how long it takes to open is told in the report of the tests."""
    with Opened(browser, written(tmp_path, "many"), viewport={"width": 1200, "height": 900}) as opened:
        page = opened.page
        taken = page.evaluate("() => performance.getEntriesByType('navigation')[0].loadEventEnd")
        record_property("milliseconds_to_load_1000_findings", round(taken))
        assert page.locator(".finding").count() == 1000
        page.locator("#finding-1000 summary").focus()
        page.keyboard.press("Enter")
        assert page.locator("#finding-1000 pre").first.is_visible()
        assert opened.noise == []
        assert len(opened.requests) == 1
