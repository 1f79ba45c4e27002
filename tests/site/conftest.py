"""Fixtures of the browser's tests: the built site, Debian's Chromium under Playwright, and what a page showed.

`make test-site` runs them on what `make book` has rendered; BOOK_BUILD_DIR names another build folder.
"""

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from _runner import pdf
from xdist.scheduler import LoadScopeScheduling

from tests.site.visit import Visit, visit

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BOOK_BUILD_DIR") or ROOT / "_build").resolve()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark this folder's tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.site)


class ByPage(LoadScopeScheduling):
    """The tests of one page in one process, which loads it once. xdist's groups do not see pytest 9.2's tests."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, name = nodeid.partition("::")
        return name.partition("[")[2] if module.endswith("test_pages.py") and "[" in name else nodeid


def pytest_xdist_make_scheduler(config, log):
    return ByPage(config, log)


@pytest.fixture(scope="session")
def html() -> Path:
    folder = BUILD / "html"
    if not (folder / "index.html").is_file():
        pytest.fail(f"there is no site in {folder.parent.name}/html: make book")
    return folder


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("Playwright is missing: make test-site installs it into .venv")
    program = next((found for name in pdf.BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.fail("the site's tests need Chromium on PATH: sudo apt install chromium")
    with sync_playwright() as playwright:
        # As root, and in most containers, Chromium starts only without its sandbox. It opens nothing but this site.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def seen(browser, html):
    """A function from a page's name to its `Visit`; each page is loaded once, also where that fails."""
    known: dict[str, Visit | Exception] = {}
    shots = BUILD / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)

    def look(name: str) -> Visit:
        if name not in known:
            try:
                known[name] = visit(browser, html, name, shots)
            except Exception as error:
                known[name] = error
        if isinstance(known[name], Exception):
            raise known[name]
        return known[name]

    return look


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address(html):
    """The site over HTTP on a free local port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=html))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def page(browser):
    """A page of a new context that may use the clipboard."""
    context = browser.new_context(
        viewport={"width": 1400, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()
