"""The real book: every chapter runs in `quick`, the site renders without a warning.

It runs in the repository's own build folder, so a `make book` before or after it finds the work done.
"""

import ast
import json
from pathlib import Path

import nbformat
import pytest
import yaml
from _runner import book as books

from tests.book.conftest import BUILD, render_the_book

ROOT = Path(__file__).resolve().parents[2]
BOOK = books.load(ROOT)
CAMPAIGN = [f"{number:02d}-" for number in range(1, 7)]


@pytest.mark.slow
def test_every_chapter_runs_and_the_site_renders():
    result = render_the_book()
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    chapters = json.loads((BUILD / "manifest.json").read_text())["chapters"]
    assert [name[:3] for name in sorted(chapters)][:6] == CAMPAIGN
    assert all(entry["status"] == "ok" for entry in chapters.values())
    for entry in BOOK.entries:
        assert (BUILD / "html" / f"{entry}.html").is_file()


def test_the_table_of_contents_holds_the_campaign_in_order():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    assert toc["root"] == "book/intro"
    names = [Path(entry).name for entry in BOOK.entries]
    assert [name[:3] for name in names[1:7]] == CAMPAIGN


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_a_source_holds_no_results(chapter):
    notebook = nbformat.read(chapter.source, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None
    [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    # Comments may say what else they take; papermill reads assignments of constants
    assert [ast.unparse(line) for line in ast.parse(parameters.source).body] == [
        "device = 'auto'",
        "profile = 'quick'",
    ]
