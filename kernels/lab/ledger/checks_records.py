"""Checks against recorded GPU runs: ratios, shares and slopes, never absolute times of another machine."""

from __future__ import annotations

import numpy as np

from kernels.lab.ledger.checks_arithmetic import TOTAL_AFTER, TOTAL_BEFORE, quotient
from kernels.lab.ledger.claims import Claim
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import (
    CONSISTENT,
    DIFFERS,
    Finding,
    judge_ratio,
    judge_share,
    number,
    pending,
)
from kernels.lab.ledger.recorded import newest, origin, pick, same_card, step_ratios, widest
from kernels.lab.ledger.registry import check

PROFILED_BATCH = 16
LINEAR = 0.15


def _with_reason(finding: Finding, reason: str) -> Finding:
    text = " ".join(part for part in (finding.reason, reason) if part)
    return Finding(finding.status, finding.found, finding.evidence, text)


@check
def _op_speedup(claim: Claim, context: Context) -> Finding:
    """One rung of the operator over another within sm_120's limits, at a batch or the next larger one."""
    before, after, wanted = claim.check_argument.split("/")
    rows = pick(
        context.measurements, experiment="ladder", op="sparse_mla_decode", timer="chain", tile_class="sm120"
    )
    rows = newest(rows[rows["batch"] >= int(wanted)] if len(rows) else rows)
    times = {impl: pick(rows, impl=impl) for impl in (before, after)}
    batches = set.intersection(*(set(part["batch"]) if len(part) else set() for part in times.values()))
    if not batches:
        return pending(f"the experiment ladder with impl {before} and {after} at batch {wanted} or more")
    batch = min(batches)
    ratio = float(
        pick(times[before], batch=batch)["median_us"].min()
        / pick(times[after], batch=batch)["median_us"].min()
    )
    found = f"{number(ratio, 2)}× on {origin(rows)} at batch {batch}"
    return judge_ratio(claim, ratio, same_card=same_card(rows), found=found)


@check
def _step_ratio(claim: Claim, context: Context) -> Finding:
    """Throughput of one decode step, a later stage over an earlier one, at a batch and the largest configured
    context.
    """
    before, after, batch = claim.check_argument.split("/")
    rows = widest(pick(step_ratios(context.measurements, before, after), batch=int(batch)))
    if rows.empty:
        return pending(f"decode_step at stages {before} and {after}, batch {batch}")
    ratio = float(rows["ratio"].iloc[0])
    configured = number(rows["max_context"].iloc[0], 7)
    found = f"{number(ratio)}× on {origin(rows)}, {configured} tokens configured"
    return judge_ratio(claim, ratio, same_card=same_card(rows), found=found)


@check
def _step_gain(claim: Claim, context: Context) -> Finding:
    """The lowest or the highest gain of the decode step over all recorded batches."""
    before, after, end = claim.check_argument.split("/")
    gain = quotient(context, TOTAL_BEFORE, TOTAL_AFTER)[0]
    share = context.value("a2-attention-ms-before") / context.value(TOTAL_BEFORE)
    if end == "high":
        wanted = 100 * (1 - 1 / claim.number)
        reason = (
            f"In article 2's profile attention at no cost would give {number(1 / (1 - share))}×; this "
            f"gain needs a "
            f"batch where attention takes {number(wanted)} % or more."
        )
    else:
        reason = f"Article 2's totals give {number(gain)}× before split-K."
    rows = widest(step_ratios(context.measurements, before, after))
    if rows.empty:
        return _with_reason(pending(f"decode_step at stages {before} and {after}, every batch"), reason)
    row = rows.loc[rows["ratio"].idxmax() if end == "high" else rows["ratio"].idxmin()]
    found = f"{number(row['ratio'])}× on {origin(rows)} at batch {int(row['batch'])}"
    return _with_reason(judge_ratio(claim, row["ratio"], same_card=same_card(rows), found=found), reason)


def _profile_rows(context: Context, stage: str):
    rows = newest(widest(pick(context.profile, stage=stage, batch=PROFILED_BATCH)))
    return rows if {"group", "share"} <= set(rows.columns) else rows.iloc[0:0]


@check
def _share_measured(claim: Claim, context: Context) -> Finding:
    """A group's share of the decode step's GPU time."""
    stage, group = claim.check_argument.split("/")
    rows = pick(_profile_rows(context, stage), group=group)
    if rows.empty:
        return pending(f"decode_step's profile at stage {stage}, batch {PROFILED_BATCH}")
    share = float(rows["share"].sum())
    share *= 100 if share <= 1 else 1
    found = f"{number(share)} % on {origin(rows)} at batch {PROFILED_BATCH}"
    return judge_share(claim, share, same_card=same_card(rows), found=found)


@check
def _glue_launches(claim: Claim, context: Context) -> Finding:
    """Launches of elementwise, copy and reduce kernels in one step, and what the article's own figures say of
    them.
    """
    glue_ms = context.value("a2-glue-share-after") / 100 * context.value(TOTAL_AFTER)
    each = 1000 * glue_ms / claim.number
    reason = f"Over the whole window each would take {number(each)} µs: the count can only be one step's."
    rows = pick(_profile_rows(context, "mma"), group="glue")
    if rows.empty or "launches" not in rows:
        return _with_reason(pending(f"decode_step's profile at stage mma, batch {PROFILED_BATCH}"), reason)
    launches = float(rows["launches"].sum())
    found = f"{number(launches, 5)} a step on {origin(rows)}"
    return _with_reason(judge_ratio(claim, launches, same_card=False, found=found), reason)


@check
def _indexer_exponent(claim: Claim, context: Context) -> Finding:
    """Slope of log time over log configured context, at one batch and live context, where time is well above
    a launch.
    """
    rows = newest(pick(context.measurements, experiment="indexer_context", impl="uncapped"))
    keys = ["batch", "context"]
    groups = (
        [group for _, group in rows.groupby(keys) if group["max_context"].nunique() >= 3] if len(rows) else []
    )
    if not groups:
        return pending(
            "the experiment indexer_context with impl uncapped at three or more configured contexts"
        )
    best = max(groups, key=lambda group: group["median_us"].max())
    times = best.groupby("max_context")["median_us"].min()
    times = times[times >= 0.02 * times.max()]
    slope = float(np.polyfit(np.log(times.index.to_numpy(float)), np.log(times.to_numpy(float)), 1)[0])
    found = f"time grows as max_context to the power {slope:.2f} on {origin(best)}"
    return Finding(CONSISTENT if abs(slope - claim.number) <= LINEAR else DIFFERS, found, "recorded")
