"""data/campaign.csv is in form, complete, and every row has a check."""

import csv
import re

import pytest

from kernels.lab.ledger.build import CHECKS
from kernels.lab.ledger.claims import COLUMNS, DATA, KINDS, TEXT_UNITS, load_claims, load_constants

CLAIMS = load_claims()
# Figures that no edit may lose: article and value.
MUST = {
    1: "57 28 8.8 64 1 512 448 340 99 13324 2.2 2.9 17",
    2: "57.1 5.3 5350 850 6.3 9364 4828 54 17 6000 11.5 8.1 29 188 186 2 8 16 6 192 256 376 6.2 43 530 32 64",
    3: "57 28 8.8 17.9 2.2 2.9 10 64 128 99 100 512 448 576 2 32 16",
}


@pytest.mark.parametrize("article", MUST)
def test_every_figure_of_an_article_has_a_row(article):
    present = {c.number for c in CLAIMS if c.article.startswith(str(article)) and c.unit not in TEXT_UNITS}
    missing = {float(value) for value in MUST[article].split()} - present
    assert not missing


def test_form():
    assert len(CLAIMS) >= 40
    titles = {c.article for c in CLAIMS}
    assert {title[0] for title in titles} == {"1", "2", "3"} and len(titles) == 3
    for claim in CLAIMS:
        assert re.fullmatch(r"a[123](-[a-z0-9]+)+", claim.id) and claim.id[1] == claim.article[0], claim.id
        assert 0 <= claim.chapter <= 6, claim.id
        assert claim.quantity and claim.unit and claim.kind in KINDS, claim.id
        assert 1 <= len(claim.quote_short.split()) <= 12, f"{claim.id}: a few words, not a sentence"


def test_every_row_has_a_check_and_no_row_has_a_status():
    assert "status" not in COLUMNS
    assert {c.check_name for c in CLAIMS} <= set(CHECKS)


def test_no_check_is_left_over():
    assert set(CHECKS) <= {c.check_name for c in CLAIMS}


def test_checks_on_constants_name_constants():
    constants = load_constants()
    for claim in CLAIMS:
        if claim.check_name == "constant":
            assert claim.check_argument in constants, claim.id
        if claim.check_name == "name":
            assert f"name_{claim.check_argument}" in constants, claim.id


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "guessed"}, "kind='guessed'"),
        ({"about": "roughly"}, "about='roughly'"),
        ({"value": "many"}, "many"),
    ],
)
def test_a_bad_row_is_refused(tmp_path, change, words):
    row = {column: getattr(CLAIMS[0], column) for column in COLUMNS}
    assert row["unit"] not in TEXT_UNITS
    _write(tmp_path / "claims.csv", [row | change])
    with pytest.raises(ValueError, match=re.escape(words)):
        load_claims(tmp_path / "claims.csv")


def test_a_repeated_id_and_a_missing_column_are_refused(tmp_path):
    row = {column: getattr(CLAIMS[0], column) for column in COLUMNS}
    _write(tmp_path / "claims.csv", [row, row])
    with pytest.raises(ValueError, match="occurs twice"):
        load_claims(tmp_path / "claims.csv")
    del row["note"]
    _write(tmp_path / "claims.csv", [row])
    with pytest.raises(ValueError, match="columns"):
        load_claims(tmp_path / "claims.csv")


def test_constants_have_units_and_sources_and_repeat_no_device_fact():
    with open(DATA / "constants.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert all(row[column] for column in ("name", "value", "unit", "source")), row
        if row["unit"] != "name":
            float(row["value"])


def _write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
