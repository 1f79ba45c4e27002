"""What the book consists of: its table of contents, its chapters and its folders."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

SUFFIXES = (".ipynb", ".md", ".rst")


class BookError(Exception):
    """The book cannot be run as asked; the message says what to change."""


@dataclass(frozen=True)
class Chapter:
    """One notebook of the table of contents."""

    name: str
    source: Path
    entry: str


@dataclass(frozen=True)
class Book:
    """A book's root and the build folder below it; entries are _toc.yml's files without suffix, in order."""

    root: Path
    build: Path
    entries: tuple[str, ...]

    @property
    def manifest(self) -> Path:
        return self.build / "manifest.json"

    @property
    def executed(self) -> Path:
        return self.build / "executed"

    @property
    def html(self) -> Path:
        return self.build / "html"

    @property
    def chapters(self) -> list[Chapter]:
        """The entries that are notebooks."""
        found = []
        for entry in self.entries:
            path = self.root / f"{entry}.ipynb"
            if path.is_file():
                found.append(Chapter(name=path.stem, source=path, entry=entry))
        return found

    @property
    def missing(self) -> list[str]:
        """Entries for which no source exists (a page may still be generated before the site is built)."""
        return [entry for entry in self.entries if find_page(self.root, entry) is None]


def find_page(folder: Path, entry: str) -> Path | None:
    """The file that delivers a toc entry, or None."""
    for suffix in SUFFIXES:
        path = folder / f"{entry}{suffix}"
        if path.is_file():
            return path
    return None


def load(root: Path, build: Path | None = None) -> Book:
    """Read _toc.yml below root; the build folder is root/_build if not given."""
    toc = root / "_toc.yml"
    if not toc.is_file():
        raise BookError(f"no _toc.yml in {root}: --root takes the folder that holds _toc.yml and book/")
    entries = list(_files(yaml.safe_load(toc.read_text(encoding="utf-8")) or {}))
    twice = sorted({entry for entry in entries if entries.count(entry) > 1})
    if twice:
        raise BookError(f"_toc.yml names a page twice: {', '.join(twice)}")
    names = [Path(entry).name for entry in entries if (root / f"{entry}.ipynb").is_file()]
    if len(set(names)) != len(names):
        raise BookError("_toc.yml names two notebooks of the same file name")
    return Book(root=root, build=build or root / "_build", entries=tuple(entries))


def select(chapters: list[Chapter], only: list[str]) -> list[Chapter]:
    """The chapters whose name starts with one of the given prefixes; all of them without a prefix."""
    if not only:
        return chapters
    for prefix in only:
        if not any(chapter.name.startswith(prefix) for chapter in chapters):
            names = ", ".join(chapter.name for chapter in chapters)
            raise BookError(f"--only {prefix} matches no chapter; there are: {names}")
    return [chapter for chapter in chapters if chapter.name.startswith(tuple(only))]


def title(source: Path) -> str:
    """The first heading of a notebook, or its name."""
    try:
        cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError):
        return source.stem
    for cell in cells:
        if cell.get("cell_type") == "markdown":
            for line in "".join(cell["source"]).splitlines():
                if line.startswith("# "):
                    return line[2:].strip()
    return source.stem


def _files(node):
    """Walk a jb-book table of contents: root, parts, chapters, sections."""
    if "root" in node:
        yield _stem(node["root"])
    if "file" in node:
        yield _stem(node["file"])
    for key in ("parts", "chapters", "sections"):
        for child in node.get(key) or []:
            yield from _files(child)


def _stem(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name
