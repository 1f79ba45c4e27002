"""Checks by arithmetic on the articles' own figures: do they follow from one another?"""

from __future__ import annotations

from kernels.lab.ledger.claims import Claim
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import DIFFERS, NOT_TESTABLE, REPRODUCED, Finding, compare, number, with_unit
from kernels.lab.ledger.registry import check

ATTENTION_BEFORE, ATTENTION_AFTER = "a2-attention-ms-before", "a2-attention-ms-after"
TOTAL_BEFORE, TOTAL_AFTER = "a2-total-ms-before", "a2-total-ms-after"


def quotient(context: Context, top: str, bottom: str, factor: float = 1.0) -> tuple[float, float, float]:
    """The quotient of two claims: as printed, and the lowest and highest that their rounding allows."""
    above, below = context.claim(top), context.claim(bottom)
    (a, b), (c, d) = above.interval(), below.interval()
    return factor * above.number / below.number, factor * a / d, factor * b / c


@check
def _share_before(claim: Claim, context: Context) -> Finding:
    """Attention's time over all time, before the rewrite."""
    return compare(claim, *quotient(context, ATTENTION_BEFORE, TOTAL_BEFORE, 100))


@check
def _attention_seconds(claim: Claim, context: Context) -> Finding:
    """The article says over: the time in seconds has to exceed the figure by less than one unit of its last
    digit.
    """
    seconds = context.value(ATTENTION_BEFORE) / 1000
    over = 0 <= seconds - claim.number < 10.0**-claim.decimals
    return Finding(REPRODUCED if over else DIFFERS, with_unit(seconds, "s"))


@check
def _window_time(claim: Claim, context: Context) -> Finding:
    """An absolute time cannot be compared, but the time outside attention must not change by an attention
    rewrite.
    """
    before = context.value(TOTAL_BEFORE) - context.value(ATTENTION_BEFORE)
    after = context.value(TOTAL_AFTER) - context.value(ATTENTION_AFTER)
    change = abs(after / before - 1) * 100
    return Finding(
        NOT_TESTABLE,
        f"outside attention {number(before)} ms before, {number(after)} ms after",
        reason="Steps, batch and context of the window are not stated. "
        f"The rest moved by {number(change, 2)} %, "
        "so the two windows describe the same work.",
    )


def _moved(claim: Claim, context: Context, share: str, to: str, of: str) -> Finding:
    """A share restated for the other total, with unchanged milliseconds."""
    source = context.claim(share)
    scale = context.value(of) / context.value(to)
    low, high = (bound * scale for bound in source.interval())
    milliseconds = source.number / 100 * context.value(of)
    own = claim.number / 100 * context.value(to)
    reason = f"The same time over another total: {number(own)} ms here, {number(milliseconds)} ms there."
    return compare(claim, source.number * scale, low, high, reason=reason)


@check
def _glue_is_the_same_time(claim: Claim, context: Context) -> Finding:
    return _moved(claim, context, "a2-glue-share-after", TOTAL_BEFORE, TOTAL_AFTER)


@check
def _fp32_is_the_same_time(claim: Claim, context: Context) -> Finding:
    return _moved(claim, context, "a2-fp32-share-after", TOTAL_BEFORE, TOTAL_AFTER)


@check
def _glue_share_after(claim: Claim, context: Context) -> Finding:
    return _moved(claim, context, "a1-glue-share", TOTAL_AFTER, TOTAL_BEFORE)


@check
def _fp32_share_after(claim: Claim, context: Context) -> Finding:
    return _moved(claim, context, "a1-fp32-share", TOTAL_AFTER, TOTAL_BEFORE)


@check
def _attention_speedup(claim: Claim, context: Context) -> Finding:
    return compare(claim, *quotient(context, ATTENTION_BEFORE, ATTENTION_AFTER))


@check
def _total_speedup(claim: Claim, context: Context) -> Finding:
    return compare(claim, *quotient(context, TOTAL_BEFORE, TOTAL_AFTER))


@check
def _attention_share_after(claim: Claim, context: Context) -> Finding:
    """Attention's share from article 2's times, and what the claimed share would require."""
    rest = context.value(TOTAL_AFTER) - context.value(ATTENTION_AFTER)
    wanted = claim.number / (100 - claim.number) * rest
    further = context.value(ATTENTION_AFTER) / wanted
    reason = (
        f"The claimed share needs attention in {number(wanted)} ms, another {number(further)}×, which only "
        "split-K could supply; and once the indexer is fixed, attention's share of a shorter step rises."
    )
    return compare(claim, *quotient(context, ATTENTION_AFTER, TOTAL_AFTER, 100), reason=reason)


@check
def _regression(claim: Claim, context: Context) -> Finding:
    ratio, low, high = quotient(context, "a2-tok-after", "a2-tok-before", 100)
    reason = (
        ""
        if round(100 - ratio) == claim.number
        else f"The printed rates give {100 - ratio:.1f} %, which rounds up."
    )
    return compare(claim, 100 - ratio, 100 - high, 100 - low, reason=reason)


@check
def _absolute_throughput(claim: Claim, context: Context) -> Finding:
    """Eight cards and a whole engine are not here; the rate as a step time is."""
    step = 1000 / claim.number
    return Finding(
        NOT_TESTABLE,
        f"one step in {number(step)} ms",
        reason="An engine on eight cards, with communication; the ratio of the two rates is checked instead.",
    )


@check
def _indexer_alone(claim: Claim, context: Context) -> Finding:
    """If the kernel's gain is part of the total, the indexer's is the total divided by it."""
    total = context.claim("a3-gain-total")
    low = total.interval()[0] / context.value("a3-gain-high")
    high = total.interval()[1] / context.value("a3-gain-low")
    middle = (low * high) ** 0.5
    found = f"{number(low, 2)}× to {number(high, 2)}×"
    reason = "Article 3's total divided by the kernel's gain leaves this much for the indexer."
    return compare(claim, middle, low, high, found=found, reason=reason)


@check
def _total_against_profile(claim: Claim, context: Context) -> Finding:
    """The gain beside article 3's, and beside the most that article 2's own profile allows."""
    total = context.claim("a3-gain-total")
    shares = context.value("a2-glue-share-after") + context.value("a2-fp32-share-after")
    floor = context.value(TOTAL_AFTER) * (1 - shares / 100)
    bound = context.value(TOTAL_BEFORE) / floor
    needed = context.value(TOTAL_BEFORE) / claim.number
    reason = (
        f"Article 3's figure rounds to {round(total.number)}. In article 2's profile even glue and "
        f"FP32 GEMMs at no "
        f"cost give {number(bound)}×, and the claimed gain a window of {number(needed)} ms, less than "
        f"attention alone: "
        "it belongs to another batch or configured context."
    )
    return compare(claim, total.number, *total.interval(), reason=reason)
