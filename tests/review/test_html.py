"""The HTML report as a file: parsed, complete, without anything that loads or runs, readable in both themes."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import reviews

from stockade.policies.errors import RequestError
from stockade.sandbox.review import contacts, filetree, html, timeline
from stockade.sandbox.review.model import Review, Sighting, Touched

VOID = {"meta", "input", "br", "link", "img", "hr"}
OURS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "code", "div", "span", "strong", "p", "ul", "li",
    "b", "nav", "main", "section", "h2", "h3", "h4", "fieldset", "legend", "label", "input", "ol", "details", "summary", "dl",
    "dt", "dd", "pre", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "circle", "path", "desc", "g", "text",
    "footer", "br",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "href", "id", "aria-hidden", "aria-label", "aria-labelledby",
    "type", "checked", "open", "scope", "role", "tabindex", "x", "y", "width", "height", "rx", "cx", "cy", "r", "d",
    "stroke-width", "viewbox",
}  # fmt: skip


class Page(HTMLParser):
    """Every tag with its attributes, the text, and tags that were not closed as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.stack: list[str] = []
        self.faults: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture(scope="module", params=list(reviews.ALL))
def text(request: pytest.FixtureRequest) -> str:
    return html.render(reviews.ALL[request.param]())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


# --- nothing loads, nothing runs --------------------------------------------------------------------------


def test_only_our_own_tags_and_attributes(page: Page) -> None:
    """A tag or an attribute that foreign text brought in would be another one."""
    assert {tag for tag, _ in page.tags} <= OURS
    assert {name for _, attributes in page.tags for name in attributes} <= ATTRIBUTES
    assert not page.faults
    assert not page.stack
    assert not page.comments


def test_the_parser_sees_what_is_brought_in() -> None:
    found = Page(f"<p>{reviews.NASTY}</p>")
    assert {"script", "img"} <= {tag for tag, _ in found.tags}


def test_references_lead_into_the_page(page: Page) -> None:
    hrefs = [attributes["href"] or "" for _, attributes in page.tags if "href" in attributes]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert hrefs
    assert all(href[0] == "#" and href[1:] in ids for href in hrefs)
    assert len(ids) == len(set(ids))
    labels = [name for _, each in page.tags for name in (each.get("aria-labelledby") or "").split()]
    assert set(labels) <= set(ids)


def test_the_style_sheet_loads_nothing_and_is_the_one_that_the_policy_names(text: str, page: Page) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert not re.search(r"url\(|@import|expression|src:", style)
    policy = page.all("meta")[1]["content"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_no_control_characters(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", text)
    text.encode()


def test_template_code_of_foreign_text_is_not_run() -> None:
    text = html.render(reviews.hostile())
    assert "{{7*7}}" in text
    assert "{%raw%}" in text


def test_no_cell_of_a_table_is_a_formula() -> None:
    text = html.render(reviews.hostile())
    cells = re.findall(r"<t[dh][^>]*>(?:\s*<[^>]+>)*([^<]*)", text)
    assert any("HYPERLINK" in each for each in cells)
    assert [each for each in cells if each.startswith(tuple("=+-@\t"))] == []


# --- it is all there --------------------------------------------------------------------------------------


def test_the_bad_one_tells_everything() -> None:
    page = Page(html.render(reviews.bad()))
    said = " ".join("".join(page.texts).split())
    for part in (
        "Do not install", "sends a secret away", "requests.post(URL, data=key)", "What to do:", "prompt handlers are asked",
        "metrics.evil.example:443", "[2001:db8::7]:8443", "no free port", "secret: ssh-key", ".bashrc",
        "/var/lib/deep/nested/", "alias ll='ls -l'", "network is unreachable", "again, no network",
        "hooks/old.json is no hooks file", "observed by strace.",
    ):  # fmt: skip
        assert part in said, part
    assert len([each for each in page.all("li") if "finding" in (each.get("class") or "").split()]) == 6


def test_every_finding_has_its_evidence() -> None:
    review = reviews.many()
    said = "".join(Page(html.render(review)).texts)
    assert all(each.text in said for finding in review.findings for each in finding.evidence)


def test_an_empty_one_says_so() -> None:
    said = "".join(Page(html.render(Review("/x"))).texts)
    for part in (
        "No hooks found",
        "There are no findings",
        "Nothing was run",
        "tried to reach anything",
        "changed a file",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        (("full", "full"), "They ran confined, in a network that lets nothing out."),
        (
            ("full", "partial"),
            "They ran confined as far as this host can confine, in a network that lets nothing out.",
        ),
        (("full", "none"), "Not every run was confined."),
        (("full", ""), "Not every run was confined."),
    ],
)
def test_it_tells_how_the_runs_were_confined(levels: tuple[str, ...], told: str) -> None:
    runs = tuple(reviews.run(reviews.GUARD, "x", enforcement=each) for each in levels)
    assert told in html.render(reviews.clean().replace(exercises=runs))
    failed = tuple(each.replace(failed="no port") for each in runs)
    assert "confined" not in html.render(reviews.clean().replace(exercises=failed))


def test_a_reader_of_screens_finds_its_way(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("main")) == len(page.all("h1")) == 1
    sections = page.all("section")
    assert sections
    assert all(each["aria-labelledby"] for each in sections)
    assert all(each.get("aria-label") or each.get("aria-labelledby") for each in page.all("svg"))
    assert all(each["scope"] in ("row", "col") for each in page.all("th"))
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


def test_without_jinja_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RequestError) as raised:
        html.render(reviews.empty())
    assert raised.value.remedy == "pip install 'stockade[review]'"


# --- colours ----------------------------------------------------------------------------------------------

STYLE = Path(html.FOLDER, "report.css").read_text(encoding="utf-8")
SEVERITIES = ("critical", "high", "medium", "low", "info")
PAIRS = [
    *((each, "card") for each in ("text", "muted", "link", *SEVERITIES[:3], "added", "good")),
    *((each, "page") for each in ("text", "muted", "link")),
    *(("text", each) for each in ("soft", "good-soft", "bad-soft", "warn-soft", "none-soft")),
    *(("on", each) for each in SEVERITIES),
    ("critical", "bad-soft"), ("good", "good-soft"), ("muted", "soft"), ("critical", "soft"),
]  # fmt: skip


def themes() -> list[dict[str, str]]:
    """The colours by name: light, dark, print."""
    roots = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    light, dark, paper = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", root)) for root in roots]
    return [light, {**light, **dark}, {**light, **paper}]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_right() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize(("front", "back"), PAIRS)
def test_text_can_be_read(theme: int, front: str, back: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[front], colours[back]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("front", ["bar", "bar-deny", "bar-ask", "bar-allow", "focus"])
def test_shapes_can_be_seen(theme: int, front: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[front], colours["card"]) >= 3


# --- contacts, times, files -------------------------------------------------------------------------------


def test_contacts_that_carried_a_secret_come_first() -> None:
    found = contacts.contacts(reviews.bad())
    assert [(each.destination, each.leaks, each.times) for each in found] == [
        ("metrics.evil.example:443", ("ssh-key",), 2),
        ("metrics.evil.example", (), 1),
        ("cdn.example:80", (), 1),
        ("[2001:db8::7]:8443", (), 1),
    ]


@pytest.mark.parametrize(
    ("place", "leaking"),
    [
        ("a.example:443", ["a.example:443"]),
        ("a.example:443, b.example", ["a.example:443", "b.example"]),
        ("https://a.example:443/x", ["a.example:443"]),
        ("elsewhere.example", []),
        ("", []),
    ],
)
def test_where_a_secret_went(place: str, leaking: list[str]) -> None:
    assert contacts.named(place, ["a.example:443", "b.example", "c.example:80"]) == leaking


def test_a_secret_that_went_somewhere_unknown_is_drawn_too() -> None:
    seen = Sighting("ssh-key", "egress", "plain", "other.example:53")
    review = reviews.review(exercises=(reviews.run("A", "x", sightings=(seen,)),))
    (found,) = contacts.contacts(review)
    assert (found.destination, found.leaks) == ("other.example:53", ("ssh-key",))


def test_a_drawing_has_room_for_so_many_and_says_what_is_left_out() -> None:
    sent = tuple(reviews.attempt(f"h{at}.example") for at in range(100))
    found = contacts.contacts(reviews.review(exercises=(reviews.run("A", "x", egress=sent),)))
    drawn = contacts.drawing(found)
    assert (len(found), len(drawn.destinations), drawn.left_out) == (100, contacts.MOST_DRAWN, 76)
    assert contacts.drawing(()) is None


def test_boxes_do_not_overlap() -> None:
    drawn = contacts.drawing(contacts.contacts(reviews.many()))
    for boxes in (drawn.handlers, drawn.destinations):
        tops = [each.y for each in boxes]
        assert all(later - earlier > contacts.BOX for earlier, later in pairwise(tops))
        assert tops[0] >= 0
        assert tops[-1] + contacts.BOX <= drawn.height


def test_times_are_on_one_scale() -> None:
    sent = (reviews.attempt("a.example", at=1.0), reviews.attempt("b.example", at=99.0))
    runs = [reviews.run("A", "x", duration=2.0), reviews.run("A", "y", duration=0.5, egress=sent)]
    rows = timeline.rows(runs)
    assert [each.width for each in rows] == ["100.0%", "25.0%"]
    assert [each.at for each in rows[1].marks] == ["50.0%", "100.0%"]
    assert rows[1].words == "0.50 seconds, 2 contacts"
    assert timeline.rows([reviews.run("A", "x", duration=0.0)])[0].width == "0.0%"


def test_files_are_a_tree() -> None:
    touched = tuple(
        Touched(path, "changed") for path in ("src/a/x.py", "src/a/y.py", "src/b.py", "/etc/passwd", "top")
    )
    runs = tuple(reviews.run(f"H{at}", "c", touched=touched) for at in range(7))
    (tree,) = filetree.trees(reviews.review(exercises=runs))
    assert tree.title == "Elsewhere"
    assert [each.name for each in tree.top.branches] == ["/etc/", "src/"]
    assert [each.name for each in tree.top.leaves] == ["top"]
    assert [each.name for each in tree.top.branches[1].branches] == ["a/"]
    leaf = tree.top.leaves[0]
    assert (leaf.runs, leaf.kinds, leaf.handlers[-1]) == (7, ("changed",), "and 2 more")


@pytest.mark.parametrize("path", ["a/" * 400 + "x", "/" * 50, "", "..", "a//b/./c"])
def test_odd_paths_are_in_the_tree_once(path: str) -> None:
    touched = Touched(path, "created", "", "home")
    review = reviews.review(exercises=(reviews.run("A", "x", touched=(touched,)),))
    (tree,) = filetree.trees(review)
    assert len(list(filetree.leaves_of(tree.top))) == 1
    html.render(review)


def test_more_files_than_can_be_shown_are_counted() -> None:
    touched = tuple(Touched(f"f{at}", "created", "", "tmp") for at in range(1000))
    (tree,) = filetree.trees(reviews.review(exercises=(reviews.run("A", "x", touched=touched),)))
    assert (tree.files, tree.left_out) == (1000, 600)
