"""What a reader does with the site: search, copy, switch the theme, sort, unfold, go by keyboard."""

import pytest

SEARCHED, CHAPTER = "combine", "book/05-combine-kernel.html"
MOST_PLACES = 3
RESULTS = "#search-results ul.search li a"
# A block's text as the button should copy it.
BLOCKS = """() => [...document.querySelectorAll('button.copybtn')].filter(
  (e) => e.checkVisibility({visibilityProperty: true})
).map((button) => {
  const block = document.querySelector(button.dataset.clipboardTarget).cloneNode(true);
  block.querySelectorAll('.linenos').forEach((e) => e.remove());
  return [button.dataset.clipboardTarget, block.textContent.trim()];
})"""


def places(page) -> list[str]:
    """The pages that a finished search lists, in order."""
    page.wait_for_selector(RESULTS)
    page.wait_for_function("document.querySelector('#search-results .search-summary')?.innerText.length > 0")
    return page.eval_on_selector_all(
        RESULTS, "all => all.map((e) => e.getAttribute('href').split(/[?#]/)[0])"
    )


@pytest.fixture(params=["file", "http"])
def base(request, html, address) -> str:
    """The site opened from the file system, and served."""
    return html.as_uri() if request.param == "file" else address


def test_search_finds_a_kernel_by_name(page, base):
    """From the field of a page, opened by keyboard, to the result and on to the chapter."""
    page.goto(f"{base}/book/glossary.html")
    page.keyboard.press("Control+k")
    page.keyboard.type(SEARCHED)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    found = list(dict.fromkeys(places(page)))
    assert CHAPTER in [place.removeprefix("./") for place in found[:MOST_PLACES]], found
    page.locator(RESULTS).and_(page.locator(f"a[href*='{CHAPTER}']")).first.click()
    page.wait_for_url(f"**/{CHAPTER}*")
    assert "combine" in page.locator("h1").inner_text()


def test_search_finds_nothing_for_nonsense(page, address):
    page.goto(f"{address}/search.html?q=xyzzyplugh")
    page.wait_for_function("document.querySelector('#search-results .search-summary')?.innerText.length > 0")
    assert page.locator(RESULTS).count() == 0


@pytest.mark.parametrize("name", ["rerun", "05-combine-kernel"])
def test_copy_buttons_copy(page, address, name):
    page.goto(f"{address}/book/{name}.html")
    page.wait_for_selector("button.copybtn", state="attached")
    blocks = page.evaluate(BLOCKS)
    assert len(blocks) >= 4
    for target, text in blocks:
        page.evaluate("navigator.clipboard.writeText('')")
        page.click(f"button.copybtn[data-clipboard-target='{target}']")
        page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
        assert page.evaluate("navigator.clipboard.readText()").strip() == text


def test_copying_works_from_the_file_system(page, html):
    page.goto((html / "book" / "rerun.html").as_uri())
    page.wait_for_selector("button.copybtn", state="attached")
    (target, text), *_ = page.evaluate(BLOCKS)
    page.click(f"button.copybtn[data-clipboard-target='{target}']")
    page.evaluate("document.querySelector('.bd-article').prepend(document.createElement('textarea'))")
    page.focus("textarea")
    page.keyboard.press("Control+v")
    assert page.input_value("textarea").strip() == text


def test_the_theme_button_switches_and_is_remembered(page, address):
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/book/intro.html")
    shown = []
    for _ in range(3):
        page.click("button.theme-switch-button:visible")
        shown.append(page.evaluate("document.documentElement.dataset.theme"))
    assert set(shown) == {"light", "dark"}
    while page.evaluate("document.documentElement.dataset.theme") != "dark":
        page.click("button.theme-switch-button:visible")
    page.goto(f"{address}/book/glossary.html")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_long_table_sorts_by_keyboard(page, html):
    page.goto((html / "book" / "ledger.html").as_uri())
    page.wait_for_selector("table.sortable th button")
    button = page.locator("table.sortable th button").first
    first_column = (
        "table => [...table.tBodies[0].rows].map((row) => row.cells[0].innerText.trim().toLowerCase())"
    )
    table = page.locator("table.sortable").first
    before = table.evaluate(first_column)
    orders = []
    for direction in ("ascending", "descending"):
        button.press("Enter")
        assert page.locator("table.sortable th").first.get_attribute("aria-sort") == direction
        orders.append(table.evaluate(first_column))
    assert sorted(before) == sorted(orders[0]) == sorted(orders[1])
    assert orders[0][0] < orders[0][-1] and orders[1][0] > orders[1][-1]


def test_a_wide_table_of_words_is_cards_on_a_phone(page, html):
    page.goto((html / "book" / "ledger.html").as_uri())
    second = page.locator("table.stacked td:nth-child(2)").first
    heading = page.locator("table.stacked th:nth-child(2)").first.inner_text()
    name = "cell => getComputedStyle(cell, '::before').content"
    assert second.evaluate(name) == "none"
    page.set_viewport_size({"width": 390, "height": 900})
    assert second.evaluate(name).strip('"') == heading
    assert second.bounding_box()["width"] > 300 and second.get_attribute("role") == "cell"


def test_the_first_tab_leads_past_the_navigation(page, html):
    page.goto((html / "book" / "intro.html").as_uri())
    page.keyboard.press("Tab")
    assert "main" in page.evaluate("document.activeElement.textContent").lower()
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-content")


def test_a_solution_is_folded_and_opens_by_keyboard(page, html):
    page.goto((html / "book" / "05-combine-kernel.html").as_uri())
    solution = page.locator(".admonition.solution").first
    code = solution.locator("pre").first
    assert not code.is_visible()
    solution.locator("button").first.press("Enter")
    code.wait_for(state="visible")


def test_what_scrolls_on_a_phone_can_be_scrolled_by_keyboard(page, html):
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto((html / "book" / "01-baseline-simt.html").as_uri())
    page.wait_for_selector("figure[tabindex='0']")
    figure = page.locator("figure[tabindex='0']").first
    assert "scrolls sideways" in figure.get_attribute("aria-label")
    figure.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")


def test_the_download_is_the_executed_notebook(page, address):
    page.goto(f"{address}/book/02-shared-memory-budget.html")
    page.click(".dropdown-download-buttons > button")
    with page.expect_download() as download:
        page.click("a.btn-download-source-button")
    assert download.value.suggested_filename == "02-shared-memory-budget.ipynb"
    assert '"output_type"' in download.value.path().read_text(encoding="utf-8")
