"""The generated parts of README.md: the speed table, and the campaign's waterfall with its pictures."""

from __future__ import annotations

import re
from pathlib import Path

from kernels.lab.records import place

CREATOR = re.compile(r"<dc:title>(.*?)</dc:title>")
DESCRIPTION = re.compile(r"<dc:description>(.*?)</dc:description>", re.DOTALL)


def path() -> Path:
    """README.md at the root."""
    return place.root() / "README.md"


def markers(part: str) -> tuple[str, str]:
    """The comments between which a part stands."""
    return f"<!-- {part}:begin -->", f"<!-- {part}:end -->"


def replaced(text: str, part: str, content: str) -> str:
    """The README's text with one part replaced. Raises ValueError where a marker is missing or doubled."""
    begin, end = markers(part)
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise ValueError(f"README.md has {text.count(marker)} lines {marker}; accepted: exactly one")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    middle = f"\n{content}\n" if content else "\n"
    return f"{head}{begin}{middle}{end}{tail}"


def updated(text: str) -> str:
    """The README's text with every part as the newest records have it."""
    from kernels.lab.pages import speed_table, waterfall

    return replaced(replaced(text, speed_table.PART, speed_table.block()), waterfall.PART, waterfall.block())


def wanted() -> dict[Path, str | None]:
    """Every generated file and its text; None for one that must not exist."""
    from kernels.lab.pages import waterfall

    pictures = waterfall.files(waterfall.campaign())
    return {**pictures, path(): updated(path().read_text(encoding="utf-8"))} if path().is_file() else pictures


def outdated() -> list[str]:
    """The names of the generated files that are not as the newest records have them."""
    return [file.name for file, text in wanted().items() if _differs(file, text)]


def write() -> list[str]:
    """Bring README.md and its pictures up to date; returns the names of the files that changed."""
    changed = []
    for file, text in wanted().items():
        if _differs(file, text):
            changed.append(file.name)
            if text is None:
                file.unlink()
            else:
                place.write_text(file, text)
    return changed


def _differs(file: Path, text: str | None) -> bool:
    """Whether a file is not the one wanted.

    Another matplotlib draws other bytes: then the values and the evidence, which both pictures hold, are compared.
    """
    if text is None or not file.is_file():
        return file.is_file() != (text is not None)
    old = file.read_text(encoding="utf-8")
    if CREATOR.findall(old) == CREATOR.findall(text):
        return old != text
    return DESCRIPTION.findall(old) != DESCRIPTION.findall(text)
