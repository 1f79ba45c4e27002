"""A tiny book in a temporary folder, and a way to run it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

RUN = Path(__file__).resolve().parents[2] / "book" / "run.py"
PARAMETERS = 'device = "auto"\nprofile = "quick"'


def notebook(*cells: str, parameters: bool = True, kernelspec: dict | None = None) -> str:
    """The text of a chapter with the given code cells after its heading and parameters."""
    nb = nbformat.v4.new_notebook()
    nb.cells.append(nbformat.v4.new_markdown_cell("# A chapter"))
    if parameters:
        nb.cells.append(nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    nb.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    if kernelspec is None:
        kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    if kernelspec:
        nb.metadata["kernelspec"] = kernelspec
    return nbformat.writes(nb)


@dataclass
class TinyBook:
    """A book below `root` whose chapters are written by the test."""

    root: Path

    def write(self, chapters: dict[str, str], pages: dict[str, str] | None = None) -> None:
        (self.root / "book").mkdir(parents=True, exist_ok=True)
        pages = {"intro": "# Introduction\n", **(pages or {})}
        for name, text in pages.items():
            (self.root / "book" / f"{name}.md").write_text(text)
        for name, text in chapters.items():
            (self.root / "book" / f"{name}.ipynb").write_text(text)
        names = [name for name in [*chapters, *pages] if name != "intro"]
        toc = ["format: jb-book", "root: book/intro", "chapters:"] + [
            f"- file: book/{name}" for name in names
        ]
        (self.root / "_toc.yml").write_text("\n".join(toc) + "\n")
        (self.root / "_config.yml").write_text('title: A tiny book\nexecute:\n  execute_notebooks: "off"\n')

    def run(self, *arguments: str, site: bool = False, environment: dict | None = None):
        """Run book/run.py on this book, on the CPU."""
        command = [sys.executable, str(RUN), "--root", str(self.root), "--device", "cpu", *arguments]
        if not site:
            command.append("--no-site")
        environment = {**os.environ, **(environment or {})}
        return subprocess.run(
            command, capture_output=True, text=True, cwd=self.root, env=environment, timeout=120
        )

    @property
    def manifest(self) -> dict:
        return json.loads((self.root / "_build" / "manifest.json").read_text())

    def executed(self, name: str):
        return nbformat.read(self.root / "_build" / "executed" / f"{name}.ipynb", as_version=4)
