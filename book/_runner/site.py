"""Renders the site: stage the sources, run Sphinx on the stage, swap the result in.

Sphinx never scans the repository, only `_build/site-src`. It reads changed pages only and writes every page,
because numbers and titles of one page stand on others. The folder that people read, `_build/html`, changes by
a rename and only after a build without warnings.
"""

import filecmp
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from . import hooks, keys
from .book import Book, BookError, find_page

NOT_PAGES = {"run.py", "_runner", "_static", "__pycache__", ".ipynb_checkpoints"}
BOOK_FOLDER = Path(__file__).resolve().parents[1]
RENDERERS = (
    "jupyter-book",
    "sphinx",
    "myst-nb",
    "sphinx-book-theme",
    "sphinx-exercise",
    "sphinxcontrib-bibtex",
)


def reason_to_skip() -> str | None:
    """Why no site can be rendered with this interpreter, or None."""
    if importlib.util.find_spec("jupyter_book") is None:
        return f"jupyter-book is not importable in {sys.executable}"
    return None


def inputs_key(book: Book, manifest: dict, shared: dict) -> str:
    """Key of everything that the site is made from."""
    chapters = {
        name: {key: value for key, value in entry.items() if key != "cached"}
        for name, entry in manifest["chapters"].items()
    }
    configuration = [keys.sha256_file(book.root / name) for name in ("_config.yml", "_toc.yml")]
    versions = {name: metadata.version(name) for name in RENDERERS if _installed(name)}
    return keys.digest([chapters, configuration, keys.sha256_tree(book.root / "book"), shared, versions])


def stage(book: Book, manifest: dict) -> Path:
    """Fill site-src with pages, executed chapters and generated pages; unchanged files keep their times."""
    fresh, staged = book.build / "site-src.new", book.build / "site-src"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copyfile(book.root / name, fresh / name)
    pages = book.root / "book"
    if (pages / "_static").is_dir():
        shutil.copytree(pages / "_static", fresh / "_static")
    shutil.copytree(
        pages, fresh / "book", ignore=lambda _, names: [name for name in names if name in NOT_PAGES]
    )
    for chapter in book.chapters:
        shutil.copyfile(book.executed / f"{chapter.name}.ipynb", fresh / f"{chapter.entry}.ipynb")
    hooks.write_pages(book, fresh, manifest)
    missing = [entry for entry in book.entries if find_page(fresh, entry) is None]
    if missing:
        raise BookError(
            f"_toc.yml names pages that neither book/ nor a page writer delivers: {', '.join(missing)}"
        )
    _mirror(fresh, staged)
    shutil.rmtree(fresh)
    return staged


def build(book: Book, staged: Path, builder: str = "html", *, fresh: bool = False) -> Path:
    """Run Sphinx with warnings as errors; returns the output folder, raises BookError with Sphinx's words."""
    output = book.build / f"{builder}.new"
    doctrees = book.build / "doctrees" / builder
    shutil.rmtree(output, ignore_errors=True)
    if fresh:
        shutil.rmtree(doctrees, ignore_errors=True)
    arguments = [sys.executable, str(BOOK_FOLDER / "_runner" / "sphinx_build.py")]
    arguments += [str(staged), str(output), str(doctrees), builder]
    environment = {**os.environ, "PYTHONPATH": _python_path(book.root), "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    log = book.build / "logs" / f"sphinx-{builder}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(result.stdout + result.stderr, encoding="utf-8")
    if result.returncode != 0:
        # Sphinx reads an unchanged page no second time: without its doctrees, the next build warns again.
        shutil.rmtree(doctrees, ignore_errors=True)
        words = [line for line in result.stderr.splitlines() if line.strip()] or result.stdout.splitlines()
        raise BookError("Sphinx refused the site:\n" + "\n".join(words[-40:]) + f"\n(whole log: {log})")
    return output


def swap(finished: Path, target: Path) -> None:
    """Put a finished build in place of the one that is being read."""
    outgoing = target.with_name(f"{target.name}.old")
    shutil.rmtree(outgoing, ignore_errors=True)
    if target.exists():
        os.replace(target, outgoing)
    os.replace(finished, target)
    shutil.rmtree(outgoing, ignore_errors=True)


def _mirror(source: Path, target: Path) -> None:
    """Make target equal to source, writing only files that differ: Sphinx goes by modification times."""
    target.mkdir(parents=True, exist_ok=True)
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(target) not in wanted:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name in sorted(wanted):
        if (target / name).is_file() and filecmp.cmp(source / name, target / name, shallow=False):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _python_path(root: Path) -> str:
    return os.pathsep.join(path for path in (str(root), os.environ.get("PYTHONPATH", "")) if path)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
