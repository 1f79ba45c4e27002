"""data/published.csv: each figure names a source that the bibliography has."""

import csv
import re

from kernels.lab.ledger.claims import DATA

COLUMNS = ["id", "what", "value", "unit", "device", "source_key", "source_where", "url_or_ref"]


def _rows():
    with open(DATA / "published.csv", newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def _entries():
    text = (DATA.parent / "book" / "references.bib").read_text(encoding="utf-8")
    return dict(re.findall(r"^@\w+\{([^,]+),(.*?)^\}", text, re.MULTILINE | re.DOTALL))


def test_rows_are_complete_and_numeric():
    rows = _rows()
    assert rows
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert all(row[column] for column in COLUMNS), row["id"]
        assert float(row["value"]) > 0, row["id"]


def test_sources_are_in_the_bibliography_and_agree_with_the_reference():
    entries = _entries()
    for row in _rows():
        repository, _, number = row["url_or_ref"].partition("#")
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", repository), row["id"]
        assert row["source_key"] in entries, row["id"]
        assert repository in entries[row["source_key"]], row["id"]
        if number:
            assert re.search(rf"\b{number}\b", entries[row["source_key"]]), row["id"]


def test_the_bibliography_is_large_enough_and_complete():
    entries = _entries()
    assert len(entries) >= 30
    for key, body in entries.items():
        assert re.search(r"^\s*author = ", body, re.MULTILINE), key
        assert re.search(r"^\s*title = ", body, re.MULTILINE), key
        assert re.search(r"^\s*year = \{\d{4}\}", body, re.MULTILINE), key
