"""The site: rendered with warnings as errors, swapped in whole, and kept when anything has failed."""

import html
import shutil

import pytest
from _runner import pdf

from tests.book.tiny import TinyBook, notebook

pytestmark = pytest.mark.slow

WRITER = """
def status(staged, manifest):
    rows = [f"- {name}: {entry['status']}" for name, entry in manifest["chapters"].items()]
    (staged / "book" / "status.md").write_text("# Status\\n\\n" + "\\n".join(rows) + "\\n")

WRITERS = [status]
"""

WITHOUT_JUPYTER_BOOK = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "jupyter_book" else find(name, *rest)
"""


def add_kernels(book: TinyBook, pages: str) -> None:
    folder = book.root / "kernels" / "lab" / "pages"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(pages)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A book whose status page is computed, rendered once."""
    book = TinyBook(tmp_path_factory.mktemp("rendered"))
    book.write({"01-first": notebook("print('from the kernel')")}, {"status": "# To be replaced\n"})
    add_kernels(book, WRITER)
    result = book.run(site=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return book, result


def page(book: TinyBook, name: str) -> str:
    return (book.root / "_build" / "html" / "book" / f"{name}.html").read_text()


def test_the_site_holds_executed_and_computed_pages(rendered):
    book, result = rendered
    assert "from the kernel" in page(book, "01-first")
    # The parameters are shown as written, the injected ones are not.
    text = html.unescape(page(book, "01-first"))
    assert '"auto"</span>' in text and '"cpu"</span>' not in text
    assert "01-first: ok" in page(book, "status")
    index = book.root / "_build" / "html" / "index.html"
    assert "book/intro.html" in index.read_text()
    assert index.as_uri() in result.stdout


def test_a_repeat_renders_nothing(rendered):
    book, _ = rendered
    before = (book.root / "_build" / "html" / "index.html").stat().st_mtime_ns
    result = book.run(site=True)
    assert result.returncode == 0 and "site unchanged" in result.stdout
    assert (book.root / "_build" / "html" / "index.html").stat().st_mtime_ns == before


def test_the_last_good_site_stays(rendered):
    """A failing chapter, a warning of Sphinx, a missing page, a failing writer: one after the other."""
    book, _ = rendered
    good = page(book, "01-first")
    chapter, intro = book.root / "book" / "01-first.ipynb", book.root / "book" / "intro.md"
    toc, writers = book.root / "_toc.yml", book.root / "kernels" / "lab" / "pages" / "__init__.py"
    breakages = [
        (chapter, notebook("1 / 0"), "FAILED 01-first: cell 2 (1 / 0): ZeroDivisionError"),
        (intro, "# Introduction\n\n{ref}`nowhere`\n", "nowhere"),
        (
            toc,
            toc.read_text() + "- file: book/absent\n",
            "neither book/ nor a page writer delivers: book/absent",
        ),
        (
            writers,
            WRITER + "\ndef breaks(*_):\n    raise OSError('full')\n\nWRITERS.append(breaks)\n",
            "breaks",
        ),
    ]
    for path, text, message in breakages:
        before = path.read_text()
        path.write_text(text)
        result = book.run(site=True)
        path.write_text(before)
        assert result.returncode == 1, message
        assert message in result.stdout
        assert "site kept as it was" in result.stdout
        assert page(book, "01-first") == good
    assert book.run(site=True).returncode == 0


def test_the_pdf_needs_a_browser(rendered):
    result = rendered[0].run("--pdf", environment={"PATH": str(rendered[0].root)})
    assert result.returncode == 2 and "apt install chromium" in result.stderr


@pytest.mark.skipif(not any(map(shutil.which, pdf.BROWSERS)), reason="no Chromium on PATH")
def test_the_pdf_is_printed(rendered):
    book, _ = rendered
    result = book.run("--pdf")
    assert result.returncode == 0, result.stderr
    assert (book.root / "_build" / "book.pdf").read_bytes().startswith(b"%PDF")


def test_without_jupyter_book_the_chapters_run(tiny_book):
    tiny_book.write({"01-first": notebook("a = 1")})
    (tiny_book.root / "shadow").mkdir()
    (tiny_book.root / "shadow" / "sitecustomize.py").write_text(WITHOUT_JUPYTER_BOOK)
    result = tiny_book.run(site=True, environment={"PYTHONPATH": str(tiny_book.root / "shadow")})
    assert result.returncode == 0
    assert "site skipped: jupyter-book is not importable" in result.stdout
    assert tiny_book.manifest["chapters"]["01-first"]["status"] == "ok"
