"""What a check finds, and the rules by which a figure counts as reproduced, consistent or different.

Rules for computed figures. The value found is computed twice: from the printed inputs, and as the range that
the inputs' own rounding allows. A figure is reproduced when the value found, rounded as the article rounds,
is the article's; consistent when the two ranges overlap; and differs otherwise. A figure that the article
calls approximate may be off by `ABOUT` of its size.

Rules for ratios measured on another card than the campaign's. A ratio is consistent when it lies on the same
side of one and within a factor of `RATIO_FACTOR` of the article's; a share, when it is within `SHARE_POINTS`
percentage points. On the campaign's own kind of card a ratio within `SAME_CARD` of the article's is
reproduced. Absolute times of another machine are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.lab.ledger.claims import Claim

REPRODUCED, CONSISTENT, DIFFERS = "reproduced", "consistent", "differs"
NOT_TESTABLE, PENDING = "not testable here", "pending"
STATUSES = (REPRODUCED, CONSISTENT, DIFFERS, NOT_TESTABLE, PENDING)

# Units that the quantity's own words name.
BARE_UNITS = ("exponent", "capability", "line", "generation")

ABOUT = 0.05
RATIO_FACTOR = 2.0
SHARE_POINTS = 15.0
SAME_CARD = 0.15


@dataclass(frozen=True)
class Finding:
    """One check's result.

    status: one of `STATUSES`. found: what the book has, for a reader. evidence: arithmetic, or a kind of
    `kernels.lab.evidence.KINDS`. reason: why it differs, what is missing, or what else follows; may be empty.
    """

    status: str
    found: str
    evidence: str = "arithmetic"
    reason: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is not a status; accepted: {', '.join(STATUSES)}")


def number(value: float, digits: int = 3) -> str:
    """A number for a reader: thousands separated, at most `digits` significant digits after rounding."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """A number and its unit; ratios are written with a multiplication sign."""
    return attach(number(value, digits), unit)


def attach(text: str, unit: str) -> str:
    """A number that is written already, and its unit."""
    if unit == "x":
        return f"{text}×"
    if unit in BARE_UNITS:
        return text
    return f"{text} {unit.removesuffix('s') if text == '1' and len(unit) > 1 else unit}"


def compare(
    claim: Claim,
    value: float,
    low: float | None = None,
    high: float | None = None,
    *,
    found: str | None = None,
    evidence: str = "arithmetic",
    reason: str = "",
) -> Finding:
    """Judge a figure by the value found for it, under the rules for computed figures.

    value: from the inputs as printed. low, high: the range that the inputs' rounding allows.
    """
    low, high = (value if low is None else low), (value if high is None else high)
    claim_low, claim_high = claim.interval()
    if claim.about:
        # An approximate figure still has to be near: the slack grows with its size.
        slack = ABOUT * abs(claim.number)
        claim_low, claim_high = min(claim_low, claim.number - slack), max(claim_high, claim.number + slack)
    if round(value, claim.decimals) == claim.number or (claim.about and claim_low <= value <= claim_high):
        status = REPRODUCED
    elif low <= claim_high and high >= claim_low:
        status = CONSISTENT
    else:
        status = DIFFERS
    return Finding(status, found or with_unit(value, claim.unit), evidence, reason)


def judge_ratio(
    claim: Claim, ratio: float, *, same_card: bool, found: str, evidence: str = "recorded"
) -> Finding:
    """Judge a measured ratio, under the rules for other cards."""
    article = claim.number
    if same_card and abs(ratio / article - 1) <= SAME_CARD:
        return Finding(REPRODUCED, found, evidence)
    if (ratio > 1) != (article > 1):
        return Finding(DIFFERS, found, evidence, "The direction is another one.")
    if 1 / RATIO_FACTOR <= ratio / article <= RATIO_FACTOR:
        return Finding(CONSISTENT, found, evidence)
    size = "larger" if abs(ratio - 1) > abs(article - 1) else "smaller"
    return Finding(DIFFERS, found, evidence, f"Same direction, {size} effect.")


def judge_share(
    claim: Claim, share: float, *, same_card: bool, found: str, evidence: str = "recorded"
) -> Finding:
    """Judge a measured share in percent, under the rules for other cards."""
    distance = abs(share - claim.number)
    if same_card and distance <= SAME_CARD * claim.number:
        return Finding(REPRODUCED, found, evidence)
    if distance <= SHARE_POINTS:
        return Finding(CONSISTENT, found, evidence)
    return Finding(
        DIFFERS, found, evidence, "Another card, other projections and no communication shift the shares."
    )


def pending(experiment: str) -> Finding:
    """Nothing is recorded yet. experiment: what a recorded run must contain."""
    return Finding(PENDING, "not recorded yet", "recorded", f"Needs a recorded run of {experiment}.")
