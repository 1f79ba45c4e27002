"""Every page of the built site in a real browser, opened from the file system."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from _runner import book as books

from tests.site.conftest import ROOT
from tests.site.visit import PHONE, THEMES, WIDE

BOOK = books.load(ROOT)
CHAPTERS = {chapter.entry for chapter in BOOK.chapters}
NAMES = [*BOOK.entries, "genindex", "search"]
FEWEST_WORDS_OF_ALT = 4
# Brightness of the ground in each theme; how much of its contrast the ink may lose when the theme turns.
LIGHT, DARK, LOSS = 0.8, 0.25, 0.12

every_page = pytest.mark.parametrize("name", NAMES)


@every_page
def test_a_page_loads_in_silence_and_from_here(seen, name):
    visit = seen(name)
    assert not visit.messages
    assert not visit.failed
    assert not visit.remote
    assert visit.requests


@every_page
def test_no_page_scrolls_sideways_on_a_phone(seen, name):
    sideways = seen(name).sideways
    assert sideways["width"] <= PHONE and sideways["moved"] == 0, sideways
    assert not sideways["out"]


@every_page
def test_images_are_drawn_and_described(seen, name):
    for image in seen(name).content["images"]:
        assert image["drawn"], image
        assert len((image["alt"] or "").split()) >= FEWEST_WORDS_OF_ALT, image


@every_page
def test_headings_are_in_order(seen, name):
    headings = seen(name).content["headings"]
    levels = [level for level, _ in headings]
    assert levels[0] == 1 and levels.count(1) == 1, headings
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), headings
    assert all(text for _, text in headings)


@cache
def anchors(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\sid="([^"]+)"', file.read_text(encoding="utf-8")))


@every_page
def test_links_and_anchors_resolve(seen, html, name):
    visit = seen(name)
    inside = [link for link in visit.content["links"] if urlparse(link).scheme == "file"]
    assert inside
    for link in inside:
        address, anchor = urldefrag(link)
        target = Path(unquote(urlparse(address).path))
        assert target.is_relative_to(html) and target.is_file(), link
        if anchor:
            known = visit.content["ids"] if target == visit.file else anchors(target)
            assert unquote(anchor) in known, link


@every_page
def test_mathematics_is_typeset(seen, name):
    content = seen(name).content
    assert not content["untypeset"] and not content["faulty"]
    assert not content["raw"], "marks of mathematics in the text"
    assert content["displayed"] >= formulas_in_source(name)


def formulas_in_source(name: str) -> int:
    """Displayed formulas between `$$` in the page's source; computed pages have none."""
    page, notebook = ROOT / f"{name}.md", ROOT / f"{name}.ipynb"
    if notebook.is_file():
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    else:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return text.count("$$") // 2


@every_page
def test_figures_and_tables_follow_the_theme(seen, name):
    visit = seen(name)
    light, dark = (visit.looks[theme] for theme in THEMES)
    assert [look.name for look in light] == [look.name for look in dark]
    if name in CHAPTERS:
        assert {look.kind for look in light} == {"figure", "table"}, "an empty list would pass what follows"
    for by_day, by_night in zip(light, dark, strict=True):
        assert by_day.ground > LIGHT and by_night.ground < DARK, (by_day, by_night)
        # Coloured marks are bright in both themes; the text has to change from dark to bright.
        assert by_day.darkest < 0.5 and by_night.brightest > 1 - by_day.darkest - LOSS, (by_day, by_night)


@every_page
def test_text_stands_out_in_both_themes(seen, name):
    assert seen(name).contrast == {theme: [] for theme in THEMES}


@every_page
def test_screenshots_are_left_for_a_person(seen, name):
    stem = Path(name).name
    written = {path.name for path in seen(name).pictures if path.stat().st_size > 5_000}
    assert written == {f"{stem}-{width}-{theme}.jpg" for width in (WIDE, PHONE) for theme in THEMES}


def test_the_book_has_formulas():
    """An empty list of them would pass the test above."""
    assert sum(map(formulas_in_source, BOOK.entries)) > 5
