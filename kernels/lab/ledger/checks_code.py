"""Checks by the kernels' own code: the planner, the redundancy of a grid, the scratch, what the compiler
emits.
"""

from __future__ import annotations

import math

from kernels.lab.ledger.checks_facts import tile_kib
from kernels.lab.ledger.claims import Claim
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import (
    CONSISTENT,
    DIFFERS,
    REPRODUCED,
    Finding,
    compare,
    number,
    pending,
    with_unit,
)
from kernels.lab.ledger.registry import check

SCRATCH_BATCH = 16
LARGEST_COMPILED = 64
# Half a unit in the last place of bfloat16: what the bf16 output loses in any case.
BF16_ROUNDING = 2.0**-8


@check
def _redundancy(claim: Claim, context: Context) -> Finding:
    """Programs of one request that fetch the same rows: one for each head, or one for each head group."""
    per_request = {"simt": "heads", "mma": "campaign_head_groups"}[claim.check_argument]
    found = context.constant(per_request) / context.constant("kv_heads")
    return compare(claim, found)


@check
def _head_groups(claim: Claim, context: Context) -> Finding:
    return compare(claim, context.blocks(1))


@check
def _blocks_unsplit(claim: Claim, context: Context) -> Finding:
    return compare(claim, context.blocks(int(claim.check_argument)), reason="With one block an SM.")


@check
def _idle_unsplit(claim: Claim, context: Context) -> Finding:
    return compare(claim, context.fact("sm_count") - context.blocks(int(claim.check_argument)))


@check
def _splits(claim: Claim, context: Context) -> Finding:
    return compare(claim, context.splits(int(claim.check_argument)))


def blocks_split(context: Context, batch: int) -> int:
    return context.blocks(batch) * context.splits(batch)


@check
def _blocks_split(claim: Claim, context: Context) -> Finding:
    return compare(claim, blocks_split(context, int(claim.check_argument)))


@check
def _blocks_ratio(claim: Claim, context: Context) -> Finding:
    batch = int(claim.check_argument)
    return compare(claim, blocks_split(context, batch) / context.blocks(batch))


@check
def _busy_share(claim: Claim, context: Context) -> Finding:
    """The most SMs that can have work, in percent."""
    sms, blocks = context.fact("sm_count"), blocks_split(context, int(claim.check_argument))
    return compare(
        claim, 100 * min(1.0, blocks / sms), reason=f"{number(blocks)} blocks on {number(sms)} SMs."
    )


@check
def _wave_efficiency(claim: Claim, context: Context) -> Finding:
    """Block slots that do work over the slots of all waves, with one block an SM."""
    sms, blocks = int(context.fact("sm_count")), blocks_split(context, int(claim.check_argument))
    waves = math.ceil(blocks / sms)
    last = blocks - (waves - 1) * sms
    shared = (context.fact("shared_per_sm") / 2 - context.fact("shared_reserved")) / 1024
    reason = (
        f"{waves} waves, the last of {last} blocks. Two blocks share an SM, and the tail goes, only "
        f"if each takes "
        f"at most {number(shared)} KiB."
    )
    return compare(claim, 100 * blocks / (waves * sms), reason=reason)


def _in_target(context: Context, batches) -> bool:
    low, high = context.value("a2-target-low"), context.value("a2-target-high")
    return all(low <= blocks_split(context, batch) <= high for batch in batches)


def _target(claim: Claim, context: Context) -> Finding:
    """Whether the block count stays in the aimed range, for every batch and for the campaign's batches."""
    top = int(context.constant("concurrency_high"))
    own = range(int(context.constant("concurrency_low")), top + 1)
    all_blocks = [blocks_split(context, batch) for batch in range(1, top + 1)]
    first = next(
        (
            b
            for b in range(1, top + 1)
            if all(n >= context.value("a2-target-low") for n in all_blocks[b - 1 :])
        ),
        None,
    )
    found = f"{min(all_blocks)} to {max(all_blocks)} blocks at batch 1 to {top}"
    if _in_target(context, range(1, top + 1)):
        return Finding(REPRODUCED, found)
    status = CONSISTENT if _in_target(context, own) else DIFFERS
    return Finding(status, found, reason=f"The cap on splits keeps it below the range until batch {first}.")


@check
def _target_low(claim: Claim, context: Context) -> Finding:
    return _target(claim, context)


@check
def _target_high(claim: Claim, context: Context) -> Finding:
    return _target(claim, context)


@check
def _splits_deterministic(claim: Claim, context: Context) -> Finding:
    """One batch, asked for repeatedly and after other batches, has to give one split count."""
    top = int(context.constant("concurrency_high"))
    seen: dict[int, set[int]] = {}
    for _ in range(2):
        for batch in range(1, top + 1):
            seen.setdefault(batch, set()).add(context.splits(batch))
    return compare(
        claim, max(len(counts) for counts in seen.values()), reason="Batch is all that the policy looks at."
    )


def scratch_bytes(context: Context) -> float:
    """Partial outputs of one layer in bf16, one way."""
    rows = SCRATCH_BATCH * context.constant("heads") * context.splits(SCRATCH_BATCH)
    return rows * context.constant("head_dim") * context.constant("bf16_bytes")


@check
def _scratch_layer(claim: Claim, context: Context) -> Finding:
    size = scratch_bytes(context)
    found = f"{size / 1e6:.2f} MB ({size / 2**20:.2f} MiB)"
    return compare(
        claim, size / 1e6, found=found, reason="One way: the partials are written once and read once."
    )


@check
def _scratch_step(claim: Claim, context: Context) -> Finding:
    return compare(claim, 2 * scratch_bytes(context) * context.constant("layers") / 1e6)


@check
def _scratch_over_kv(claim: Claim, context: Context) -> Finding:
    """Scratch traffic over the distinct KV bytes of the same layer."""
    kv = SCRATCH_BATCH * context.constant("index_topk") * context.constant("entry_bytes")
    ratio = 2 * scratch_bytes(context) / kv
    groups = context.constant("campaign_head_groups")
    asked = f"{number(ratio / groups, 2)} times what the {number(groups)} head groups ask for"
    status = DIFFERS if ratio > 0.1 else REPRODUCED
    found = f"{number(ratio, 2)}× the distinct KV bytes"
    return Finding(status, found, reason=f"And {asked}; the L2 cache absorbs much of it.")


@check
def _scratch_error(claim: Claim, context: Context) -> Finding:
    """Error that bf16 partials add, on random partials, beside what the bf16 output loses anyway."""
    from kernels.lab.ledger.combine import partial_rounding_error

    error = partial_rounding_error(int(context.splits(SCRATCH_BATCH)), int(context.constant("head_dim")))
    status = CONSISTENT if error <= BF16_ROUNDING else DIFFERS
    reason = (
        f"The error of rounding the partials; the bf16 output itself rounds by up to {BF16_ROUNDING:.1e}."
    )
    return Finding(status, f"{claim.value} bits: {error:.1e} relative", reason=reason)


@check
def _combine_identity(claim: Claim, context: Context) -> Finding:
    """A maximum first and the weighted sum second give the softmax over everything."""
    from kernels.lab.ledger.combine import two_pass_error

    error = two_pass_error(int(context.splits(SCRATCH_BATCH)), int(context.constant("head_dim")))
    layers = number(context.constant("layers"))
    status = REPRODUCED if error < 1e-12 else DIFFERS
    return Finding(
        status,
        f"{claim.value} passes equal one softmax to {error:.0e}",
        reason=f"Launches added in a step: {layers}.",
    )


@check
def _tile_fits(claim: Claim, context: Context) -> Finding:
    """Q and K tiles against what a block can have, by arithmetic; and what the compiler makes of them."""
    heads, tokens, expected = claim.check_argument.split("/")
    budget = context.fact("shared_optin") / 1024
    planned = tile_kib(context, float(heads)) + tile_kib(context, float(tokens))
    found = f"Q and K tiles take {number(planned)} of {number(budget)} KiB"
    compiled = None
    # Larger tiles spill so much that they take minutes to compile.
    if int(tokens) <= LARGEST_COMPILED:
        compiled = context.compiled("mma", block_h=int(heads), block_t=int(tokens), num_warps=8, num_stages=1)
    evidence, reason = "arithmetic", ""
    if compiled is not None and compiled.ok:
        evidence = "compiled"
        reason = (
            f"This book's kernel with this tile takes {number(compiled.shared_bytes / 1024)} KiB: the "
            f"compiler keeps operands in registers and spills {number(compiled.spill_bytes)} bytes a thread."
        )
    status = REPRODUCED if (planned <= budget) == (expected == "yes") else DIFFERS
    return Finding(status, found, evidence, reason)


@check
def _tensor_instructions(claim: Claim, context: Context) -> Finding:
    """Tensor instructions in the whole compiled kernel."""
    compiled = context.compiled(claim.check_argument, block_h=1, block_t=16, num_warps=4, num_stages=1)
    if compiled is None or not compiled.ok:
        return pending(f"the {claim.check_argument} kernel compiled for sm_120")
    return compare(
        claim,
        compiled.counts["tensor"],
        found=with_unit(compiled.counts["tensor"], f"of {number(compiled.counts.total)} instructions"),
        evidence="compiled",
    )
