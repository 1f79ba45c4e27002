"""Builds the ledger: one row for each claim, with its finding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Importing a module of checks registers them.
from kernels.lab.ledger import checks_arithmetic, checks_code, checks_facts, checks_records  # noqa: F401
from kernels.lab.ledger.claims import Claim, load_claims
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import STATUSES, Finding
from kernels.lab.ledger.registry import CHECKS


@dataclass(frozen=True)
class Row:
    """A claim and what the book found for it."""

    claim: Claim
    finding: Finding


def build(context: Context | None = None) -> list[Row]:
    """Run every claim's check, in the order of the chapters.

    Raises ValueError: a claim names a check that does not exist.
    """
    context = context or Context(load_claims())
    rows = []
    for claim in context.claims:
        if claim.check_name not in CHECKS:
            raise ValueError(
                f"{claim.id}: check={claim.check!r} does not exist; accepted: {', '.join(sorted(CHECKS))}"
            )
        rows.append(Row(claim, CHECKS[claim.check_name](claim, context)))
    return rows


def counts(rows: list[Row]) -> dict[str, int]:
    """How many rows have each status, every status present."""
    found = Counter(row.finding.status for row in rows)
    return {status: found[status] for status in STATUSES}
