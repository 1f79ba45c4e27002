"""The rendered book, read by a parser: headings, alternative texts, links, evidence, and no place of this machine."""

import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from _runner import book as books

from tests.book.conftest import BUILD, render_the_book

ROOT = Path(__file__).resolve().parents[2]
HTML = BUILD / "html"
BOOK = books.load(ROOT)
GENERATED = ("genindex", "search")
VOID = {"img", "br", "hr", "input", "link", "meta", "source", "wbr", "col"}
FEWEST_WORDS_OF_ALT = 4

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What the tests ask of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.headings, self.images, self.links, self.ids = [], [], [], set()
        self.remote, self.figures, self.buttons = [], [], []
        self.level, self.open_button, self.figure = None, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id"):
            self.ids.add(attrs["id"])
        if re.fullmatch("h[1-6]", tag):
            self.level = int(tag[1])
            self.headings.append([self.level, ""])
        elif tag == "figure":
            self.figure = {"id": attrs.get("id"), "images": 0, "number": False}
            self.figures.append(self.figure)
        elif tag == "img":
            self.images.append(attrs)
            if self.figure:
                self.figure["images"] += 1
        elif tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        elif tag == "button":
            self.open_button = [attrs.get("aria-label") or attrs.get("title") or "", ""]
            self.buttons.append(self.open_button)
        elif tag == "span" and "caption-number" in (attrs.get("class") or "") and self.figure:
            self.figure["number"] = True
        address = attrs.get("src") or (attrs.get("href") if tag == "link" else None)
        if address and urlparse(address).scheme in ("http", "https"):
            self.remote.append(address)

    def handle_endtag(self, tag):
        if re.fullmatch("h[1-6]", tag):
            self.level = None
        elif tag == "button":
            self.open_button = None
        elif tag == "figure":
            self.figure = None

    def handle_data(self, data):
        if self.level:
            self.headings[-1][1] += data
        if self.open_button:
            self.open_button[1] += data


@pytest.fixture(scope="module", autouse=True)
def rendered():
    result = render_the_book()
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def pages() -> list[str]:
    return [*BOOK.entries, *GENERATED]


@cache
def page(name: str) -> Page:
    return Page((HTML / f"{name}.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", pages())
def test_headings_form_an_outline(name):
    levels = [level for level, _ in page(name).headings]
    assert levels.count(1) == 1, page(name).headings
    assert levels[0] == 1
    skips = [(a, b) for a, b in zip(levels, levels[1:], strict=False) if b > a + 1]
    assert not skips, page(name).headings


@pytest.mark.parametrize("name", pages())
def test_pictures_are_described_and_figures_numbered(name):
    for image in page(name).images:
        assert len((image.get("alt") or "").split()) >= FEWEST_WORDS_OF_ALT, image
        assert image["src"].endswith(".svg"), f"{image['src']} is no vector picture"
    for figure in page(name).figures:
        assert figure["id"] and figure["number"], figure


@pytest.mark.parametrize("name", pages())
def test_buttons_have_names_and_nothing_is_remote(name):
    assert all(label.strip() or text.strip() for label, text in page(name).buttons)
    assert page(name).remote == []


@pytest.mark.parametrize("name", pages())
def test_internal_links_and_anchors_resolve(name):
    here = HTML / f"{name}.html"
    for link in page(name).links:
        if urlparse(link).scheme:
            continue
        path, anchor = urldefrag(link)
        target = (here.parent / unquote(path)).resolve() if path else here
        assert target.is_file(), f"{name}: {link}"
        if anchor and target.suffix == ".html":
            other = page(target.relative_to(HTML).with_suffix("").as_posix())
            assert unquote(anchor) in other.ids, f"{name}: {link}"


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_a_chapter_predicts_and_offers_its_executed_notebook(chapter):
    shown = page(chapter.entry)
    assert any("Predict" in text for _, text in shown.headings), "no section asks for a prediction"
    [download] = [link for link in shown.links if link.endswith(".ipynb")]
    notebook = json.loads(
        (HTML / chapter.entry).parent.joinpath(unquote(download)).read_text(encoding="utf-8")
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code), "the download is a notebook without results"


def test_every_chapter_has_its_command():
    text = (ROOT / "book" / "rerun.md").read_text(encoding="utf-8")
    absent = [chapter.name for chapter in BOOK.chapters if f"papermill book/{chapter.name}.ipynb" not in text]
    assert not absent


def test_cited_threads_are_links():
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    numbers = re.findall(r"title = \{(?:Pull request|Issue|Thread) (\d+)", text)
    ends = {link.rsplit("/issues/", 1)[-1] for link in page("book/references").links if "/issues/" in link}
    assert len(numbers) > 10 and set(numbers) <= ends, set(numbers) - ends


def test_every_drawn_result_says_where_it_comes_from():
    """A figure that carries an evidence line says it in its alternative text, too."""
    kinds = ("Measured", "Recorded", "Compiled", "Predicted", "Published", "Not recorded yet")
    told = [
        image["alt"]
        for chapter in BOOK.chapters
        for image in page(chapter.entry).images
        if any(f". {kind}" in image.get("alt", "") for kind in kinds)
    ]
    assert len(told) >= len(BOOK.chapters)
    for alt in told:
        if ". Compiled" in alt or ". Predicted" in alt or ". Recorded" in alt:
            assert re.search(r"20\d\d-\d\d-\d\d", alt), alt


def places() -> list[str]:
    """The paths that give this machine away."""
    home = str(Path.home())
    return [str(ROOT), str(Path(sys.prefix)), *([home + "/"] if len(home) > 1 else [])]


def text_files() -> list[Path]:
    found = [path for folder in ("executed", "html") for path in (BUILD / folder).rglob("*")]
    return [path for path in found if path.suffix in {".ipynb", ".html", ".js", ".txt", ".md", ".svg"}]


def test_no_page_tells_where_it_was_made():
    leaks = []
    for path in text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        leaks += [f"{path.relative_to(BUILD)}: {place}" for place in places() if place in text]
        leaks += [
            f"{path.relative_to(BUILD)}: {match}" for match in re.findall(r"/home/\w+/|/Users/\w+/", text)
        ]
    assert not leaks
