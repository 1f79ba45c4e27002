"""Checks against facts that data/ holds: the model, the cache format, the card, the names of tools."""

from __future__ import annotations

from kernels.lab.ledger.claims import Claim
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import DIFFERS, NOT_TESTABLE, REPRODUCED, Finding, compare, number, with_unit
from kernels.lab.ledger.registry import check

KIB = 1024
# Fact of data/devices.csv, and the factor from its unit to the claim's.
DEVICE_FACTS = {
    "capability": ("target", 1.0),
    "sm_count": ("sm_count", 1.0),
    "smem_optin_kib": ("shared_optin", 1 / KIB),
}


@check
def _not_testable(claim: Claim, context: Context) -> Finding:
    """Outside the book; the reason is the check's argument."""
    reason = claim.check_argument
    return Finding(NOT_TESTABLE, "–", "published", reason[:1].upper() + reason[1:] + ".")


@check
def _constant(claim: Claim, context: Context) -> Finding:
    """A figure that is a constant of the model, the format or the experiment plan."""
    return compare(claim, context.constant(claim.check_argument))


@check
def _device(claim: Claim, context: Context) -> Finding:
    """A figure that is a fact of the campaign's card."""
    fact, factor = DEVICE_FACTS[claim.check_argument]
    return compare(claim, context.fact(fact) * factor)


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("-", " ").split())


@check
def _name(claim: Claim, context: Context) -> Finding:
    """A name against the one its own documentation uses."""
    right = context.constants[f"name_{claim.check_argument}"]
    return Finding(REPRODUCED if _plain(right) == _plain(claim.value) else DIFFERS, right, "published")


@check
def _tool(claim: Claim, context: Context) -> Finding:
    """A profiler's name against those that NVIDIA documents."""
    tools = {
        name[5:]: full
        for name, full in context.constants.items()
        if name.startswith("name_n") or "sanitizer" in name
    }
    known = {_plain(text) for pair in tools.items() for text in pair}
    if _plain(claim.value) in known:
        return Finding(REPRODUCED, claim.value, "published")
    return Finding(
        DIFFERS, "no tool of this name", "published", f"Documented: {', '.join(sorted(tools.values()))}."
    )


@check
def _power(claim: Claim, context: Context) -> Finding:
    limit = context.fact("power")
    share = 100 * claim.number / limit
    return Finding(
        NOT_TESTABLE,
        f"{number(share, 2)} % of the {with_unit(limit, 'W')} limit",
        "published",
        "No such card at hand.",
    )


@check
def _value_width(claim: Claim, context: Context) -> Finding:
    return compare(claim, context.constant("nope_dim") + context.constant("rope_dim"))


@check
def _smem_per_sm(claim: Claim, context: Context) -> Finding:
    """What a block can have, and what the hardware reserves for it."""
    block, reserved = context.fact("shared_optin") / KIB, context.fact("shared_reserved") / KIB
    return compare(
        claim,
        block + reserved,
        reason=f"{number(block)} KiB for the block and {number(reserved)} KiB reserved.",
    )


@check
def _head_block(claim: Claim, context: Context) -> Finding:
    groups = context.constant("campaign_head_groups")
    return compare(
        claim,
        context.constant("heads") / groups,
        reason=f"Article 2's grid has {number(groups)} head groups, so the kernel as built halves the block.",
    )


@check
def _page_bytes(claim: Claim, context: Context) -> Finding:
    """The figure is one token's payload; a page holds many tokens and their scales."""
    tokens = context.constant("page_tokens_c4")
    page = tokens * context.constant("entry_bytes")
    unit = context.constant("token_bytes")
    stride = -(-page // unit) * unit
    reason = (
        f"{number(unit)} bytes are one token's values. A page of {number(tokens)} tokens has "
        f"{number(page)} bytes "
        f"with its scales, and a stride of {number(stride)}."
    )
    return compare(claim, page, reason=reason)


def tile_kib(context: Context, rows: float) -> float:
    """KiB of a bf16 tile of full rows."""
    return rows * context.constant("head_dim") * context.constant("bf16_bytes") / KIB


@check
def _tile_kib(claim: Claim, context: Context) -> Finding:
    """The shared memory of one tile, or of several joined by a plus."""
    return compare(claim, sum(tile_kib(context, float(rows)) for rows in claim.check_argument.split("+")))


@check
def _stages_need_more(claim: Claim, context: Context) -> Finding:
    """Pipeline stages multiply the tile that is loaded; they do not shrink it."""
    rows = context.value("a3-block-t-16")
    single, double = tile_kib(context, rows), claim.number * tile_kib(context, rows)
    found = (
        f"K tile of {number(rows)} tokens: {number(single)} KiB, in {claim.value} stages {number(double)} KiB"
    )
    status = DIFFERS if double > single else REPRODUCED
    return Finding(
        status, found, reason="A second stage hides latency and costs shared memory; it saves none."
    )
