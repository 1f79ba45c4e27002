"""Reads the campaign's figures and the constants that the checks may use."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "data"
KINDS = ("computed", "compiled", "measured", "predicted", "published-only")
COLUMNS = (
    "id", "article", "quote_short", "quantity", "value", "about", "unit", "stage", "kind", "chapter", "check",
    "note",
)  # fmt: skip
# Units whose values are words and not numbers.
TEXT_UNITS = ("name", "word")


@dataclass(frozen=True)
class Claim:
    """One figure of an article. `value` is the figure as printed there; `about` is set where it is called
    approximate.
    """

    id: str
    article: str
    quote_short: str
    quantity: str
    value: str
    about: str
    unit: str
    stage: str
    kind: str
    chapter: int
    check: str
    note: str

    @property
    def number(self) -> float:
        """The figure as a number. Raises ValueError for a name."""
        return float(self.value)

    @property
    def decimals(self) -> int:
        """Digits printed after the decimal point."""
        return len(self.value.partition(".")[2])

    @property
    def check_name(self) -> str:
        return self.check.partition(":")[0]

    @property
    def check_argument(self) -> str:
        return self.check.partition(":")[2]

    def interval(self) -> tuple[float, float]:
        """Every value that would be printed as this figure: half a unit of the last digit either way."""
        half = 0.5 * 10.0**-self.decimals
        return self.number - half, self.number + half


def load_claims(path: Path | None = None) -> list[Claim]:
    """Read the campaign's figures, sorted by chapter and otherwise in the file's order.

    path: a CSV with the columns `COLUMNS`, or None for data/campaign.csv.
    Raises ValueError: a column is missing, an id occurs twice, or a field is not of the accepted form.
    """
    path = path or DATA / "campaign.csv"
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path.name}: columns {reader.fieldnames}; accepted: {list(COLUMNS)}")
        claims = [_claim(row, path.name) for row in reader]
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise ValueError(f"{path.name}: id {claim.id!r} occurs twice; ids are unique")
        seen.add(claim.id)
    return sorted(claims, key=lambda claim: claim.chapter)


def _claim(row: dict[str, str], name: str) -> Claim:
    if row["kind"] not in KINDS:
        raise ValueError(f"{name}: {row['id']}: kind={row['kind']!r}; accepted: {', '.join(KINDS)}")
    if row["about"] not in ("", "about"):
        raise ValueError(f"{name}: {row['id']}: about={row['about']!r}; accepted: 'about' or nothing")
    claim = Claim(**{**row, "chapter": int(row["chapter"])})
    if claim.unit not in TEXT_UNITS:
        float(claim.value)
    return claim


def load_constants(path: Path | None = None) -> dict[str, str]:
    """Read data/constants.csv: name to value, as text."""
    with open(path or DATA / "constants.csv", newline="", encoding="utf-8") as file:
        return {row["name"]: row["value"] for row in csv.DictReader(file)}
