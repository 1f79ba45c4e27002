"""Writes the ledger's tables into the staged page `book/ledger.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from kernels.lab.evidence import MARKS
from kernels.lab.figures.tables import table
from kernels.lab.ledger import STATUSES, Row, build, counts
from kernels.lab.ledger.claims import TEXT_UNITS
from kernels.lab.ledger.findings import ABOUT, RATIO_FACTOR, SAME_CARD, SHARE_POINTS, attach, number

MARKER = "% generated: ledger"
SIGNS = {"reproduced": "✓", "consistent": "≈", "differs": "≠", "not testable here": "–", "pending": "…"}
CHAPTERS = {
    0: "The setting and the names",
    1: "The baseline",
    2: "Shared memory",
    3: "The rewrite for tensor cores",
    4: "Split-K",
    5: "The combine",
    6: "The indexer and the whole campaign",
}
COLUMNS = {
    "claim": "Claim (article)",
    "figure": "Article's figure",
    "found": "The book found",
    "status": "Status, evidence",
    "note": "Note",
}


def write(staged_dir: Path, manifest: dict[str, Any]) -> None:
    """Replace the marker line in the staged ledger page by the rules, a summary and a table for each chapter.

    staged_dir: the folder that Sphinx will read, with the page at book/ledger.md. manifest: unused.
    Raises ValueError: the page has no marker line.
    """
    page = Path(staged_dir) / "book" / "ledger.md"
    text = page.read_text(encoding="utf-8")
    if MARKER not in text.splitlines():
        raise ValueError(f"{page.name}: no line {MARKER!r}; the tables go in its place")
    page.write_text(text.replace(MARKER, render(build()), 1), encoding="utf-8")


def render(rows: list[Row]) -> str:
    """The generated part of the page, as MyST Markdown."""
    parts = [_rules(), _summary(rows)]
    for chapter, title in CHAPTERS.items():
        chosen = [row for row in rows if row.claim.chapter == chapter]
        if chosen:
            caption = f"The articles' claims, {title[0].lower()}{title[1:]}"
            parts.append(f"## {title}\n\n{_table(chosen, f'ledger-chapter-{chapter}', caption)}")
    return "\n".join(parts)


def figure(row: Row) -> str:
    """The article's figure with its unit, for a reader."""
    claim = row.claim
    if claim.unit in TEXT_UNITS:
        return claim.value
    return ("about " if claim.about else "") + attach(f"{claim.number:,.{claim.decimals}f}", claim.unit)


def _table(rows: list[Row], name: str, caption: str) -> str:
    return table(
        pd.DataFrame(
            {
                "claim": f"{claim.quantity[0].upper()}{claim.quantity[1:]} ({claim.article[0]})",
                "figure": figure(row),
                "found": finding.found,
                "status": f"{SIGNS[finding.status]}\u00a0{finding.status}, {_evidence(finding.evidence)}",
                "note": " ".join(part for part in (finding.reason, claim.note) if part),
            }
            for row in rows
            for claim, finding in [(row.claim, row.finding)]
        ),
        name,
        caption,
        columns=COLUMNS,
        stacked=True,
    )


def _evidence(kind: str) -> str:
    return f"{MARKS[kind]}\u00a0{kind}" if kind in MARKS else kind


def _summary(rows: list[Row]) -> str:
    lines = [
        {"part": title, **counts([row for row in rows if row.claim.chapter == chapter])}
        for chapter, title in CHAPTERS.items()
    ]
    lines.append({"part": "**All**", **counts(rows)})
    columns = {"part": "Part", **{status: f"{SIGNS[status]} {status}" for status in STATUSES}}
    return table(
        pd.DataFrame(lines), "ledger-summary", "Claims by part and status", columns=columns, sortable=False
    )


def _rules() -> str:
    return f"""## The rules

A status is never typed: code computes it whenever the site is built.

reproduced
: The value found, rounded as the article rounds, is the article's. Figures that an article calls approximate
  may be off by {number(100 * ABOUT)} %, a ratio measured on the campaign's kind of card by
  {number(100 * SAME_CARD)} %.

consistent
: For arithmetic, the rounding of the printed inputs allows the figure. For a ratio measured on another card,
  the direction is the same and the size within a factor of {number(RATIO_FACTOR)}; for a share, it is within
  {number(SHARE_POINTS)} percentage points.

differs
: Neither; the note says why.

not testable here
: An absolute time of an unstated window, a machine with eight cards, or a file that is not part of this book.

pending
: It takes a recorded run, which the note names. {{doc}}`rerun` says how to record one.
"""
