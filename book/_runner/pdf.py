"""One printable PDF of the whole book: Sphinx's single page, printed by a headless Chromium."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from . import site
from .book import Book, BookError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LEAST_BYTES = 20_000
TIMEOUT_SECONDS = 300


def make(book: Book) -> Path:
    """Print the staged site to `_build/book.pdf`; raises BookError without a site or a browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise BookError("--pdf needs Chromium on PATH: sudo apt install chromium")
    staged = book.build / "site-src"
    if skip := site.reason_to_skip():
        raise BookError(f"--pdf: {skip}")
    if not (staged / "_toc.yml").is_file():
        raise BookError("--pdf prints the rendered book, and there is none: make book")
    output = site.build(book, staged, "singlehtml")
    # Sphinx puts the page where the root document lies, with addresses as if it lay at the top.
    page = shutil.copyfile(output / f"{book.entries[0]}.html", output / "book.html")
    target = book.build / "book.pdf"
    with tempfile.TemporaryDirectory() as scratch:
        printed = Path(scratch) / "book.pdf"
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={scratch}/profile",
            "--virtual-time-budget=120000",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            page.as_uri(),
        ]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BookError(f"{browser} did not print the book within {TIMEOUT_SECONDS} s") from None
        if not printed.is_file() or printed.stat().st_size < LEAST_BYTES:
            raise BookError(f"{browser} printed nothing:\n{result.stderr[-2000:]}")
        shutil.move(printed, target)
    return target
