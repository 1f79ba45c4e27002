"""The redesign of the sm_120 tiles: each candidate, whether it was kept, and the number that speaks for it."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd
import torch

from kernels.lab import variants
from kernels.lab.chapters import rung_check, staged
from kernels.lab.chapters.machine_code import issued_over_needed
from kernels.lab.compile import compile_many, legal, make_request
from kernels.lab.compile.result import Compiled
from kernels.lab.experiments.redesign import errors
from kernels.lab.variants.plan import BF16_TOLERANCE, SAME_TILE
from kernels.sparse_mla import layout, sparse_mla_decode_reference
from kernels.sparse_mla.tiles import choices

NOPE, ROTARY, WIDTH = 448, 64, 512
RUNGS = {"split_k": "rung split_k, for comparison", "staged": "rung staged, for comparison"}
HELD = "query_registers"
CONTROL = "byte_tiles"
ONE_TILE = rung_check.Shape(1, 4, 32, 1)
FAR = 20  # powers of two between ordinary numbers and those of the range check


def query_registers(num_warps: int, block_h: int) -> int:
    """32-bit registers a thread that queries would take as operands of mma.sync: 16 heads of 512 columns a warp.

    Raises:
        ValueError: fewer warps than groups of 16 heads, each of which needs a warp of its own here.
    """
    if num_warps < block_h // 16:
        raise ValueError(f"num_warps={num_warps}, accepted are at least {block_h // 16} for {block_h} heads")
    return 16 * WIDTH * 2 // (32 * 4)


def candidates(plain: Compiled, by_hand: Compiled) -> pd.DataFrame:
    """Columns candidate, decision, evidence, kind.

    plain: split-K in plain Triton; by_hand: the staged rung with the same block, both for sm_120.
    """
    block_h, block_t = by_hand.tile["block_h"], by_hand.tile["block_t"]
    warps = by_hand.max_threads // 32
    loads = plain.main_loop.counts, by_hand.main_loop.counts
    wide = [counts.widths["global_load"].get(16, 0) for counts in loads]
    every = [sum(counts.widths["global_load"].values()) for counts in loads]
    conversions = [counts["conversion"] for counts in loads]
    values = block_t * NOPE // (32 * warps)
    tuned = [row for row in choices() if row.device_class == "sm120"]
    kib = 1024
    rows = [
        (
            "448 columns as 256 + 128 + 64, rotary part alone",
            "kept in plain Triton",
            f"columns multiplied over needed: 1; with 448 padded to 512 it would be {(WIDTH + ROTARY) / WIDTH:.4g}",
            "arithmetic",
        ),
        (
            "nope and rotary part side by side in one tile of 512",
            "kept by hand",
            f"products issued over needed: {issued_over_needed(by_hand):.3g}, against {issued_over_needed(plain):.3g} "
            "plain",
            "compiled",
        ),
        (
            "packed dequantisation",
            "kept",
            f"conversions in the loop: {conversions[0]} plain, {conversions[1]} by hand, for {values} values "
            "a thread",
            "compiled",
        ),
        (
            "gathers of 16 bytes",
            "kept",
            f"global loads of 16 bytes: {wide[0]} of {every[0]} plain, {wide[1]} of {every[1]} by hand",
            "compiled",
        ),
        (
            "V read from the K tile, one buffer",
            "kept",
            f"shared memory: {by_hand.shared_bytes / kib:.0f} KiB against {plain.shared_bytes / kib:.0f} KiB plain; "
            f"another buffer would add {block_t * WIDTH * 2 / kib:.0f} KiB",
            "compiled",
        ),
        (
            "queries in shared memory",
            "kept",
            f"{block_h * WIDTH * 2 / kib:.0f} KiB; in registers {query_registers(warps, block_h)} of 255 a thread",
            "arithmetic",
        ),
        (
            "the gather one tile ahead, in words",
            "kept",
            f"time over plain: {1 - staged.gain('prefetch', 'plain'):.2f}, mean over batches",
            "recorded",
        ),
        (
            "warps that only fetch and dequantise",
            "kept by hand",
            f"in {sum(row.tile.dequantises_apart for row in tuned)} of {len(tuned)} rows of the tuned table, where "
            "they were fastest",
            "recorded",
        ),
        (
            "products batched over column groups",
            "rejected",
            f"time over plain: {1 - staged.gain('batched_dot', 'plain'):.2f}, mean over batches",
            "recorded",
        ),
    ]
    return pd.DataFrame(rows, columns=["candidate", "decision", "evidence", "kind"])


def compile_variants(target: str = "sm_120") -> dict[str, Compiled]:
    """Two rungs, every variant and the staged rung with held queries: all with one tile, 32 heads by 32 tokens."""
    module = "kernels.lab.variants.signatures"
    asked = [("sparse_mla", rung) for rung in RUNGS] + [(module, name) for name in (*variants.VARIANTS, HELD)]
    tile = asdict(SAME_TILE)
    found = compile_many([make_request(op, impl, tile, target) for op, impl in asked])
    return {one.impl: one for one in found}


def per_pair(one: Compiled, parts: int = 1) -> float:
    """Instructions of all warps for a head and a token: of every loop with products, where each part has its own.

    Raises:
        RuntimeError: the kernel does not compile, or has not one loop a part.
    """
    loops = [loop.counts.total for loop in one.loops if loop.counts["tensor"]]
    if len(loops) != parts:
        raise RuntimeError(
            f"{one.impl} for {one.target}: {len(loops)} loops with products. {one.error or ''}"
        )
    return sum(loops) * (one.max_threads // 32) / (one.tile["block_h"] * one.tile["block_t"])


def products(one: Compiled) -> tuple[int, int]:
    """(16-bit products, block-scaled 8-bit products) in the loops of a kernel."""
    counts = [loop.counts.opcodes for loop in one.loops]
    return tuple(sum(opcodes.get(name, 0) for opcodes in counts) for name in ("HMMA", "QMMA"))


def accuracy(device: str, shape: rung_check.Shape | None = None) -> pd.DataFrame:
    """Columns impl, rel_error, lse_error, tolerance, right: every variant against the float64 reference.

    shape: of the inputs, which hold no absent candidate; one tile on a CPU, a full shape on a GPU when None.
    """
    shape = shape or (rung_check.FULL if device == "cuda" else ONE_TILE)
    given = rung_check.inputs(shape, device, absent=False)
    want, rows = sparse_mla_decode_reference(**given), []
    for name, variant in variants.VARIANTS.items():
        out, lse = variants.decode(name, **given)
        error, wrong = errors(out, lse, *want, variant.lse_tolerance(shape.topk))
        right = error <= variant.tolerance and wrong is None
        off = float((lse.double() - want[1]).abs().max())
        rows.append((name, error, off, variant.tolerance, right))
    return pd.DataFrame(rows, columns=["impl", "rel_error", "lse_error", "tolerance", "right"])


def far_range(device: str, names=(CONTROL, "half", "folded_half"), shift: int = FAR) -> pd.Series:
    """Relative error of the nope columns, by variant, when every scale of the cache is `2**-shift` of itself."""
    given = rung_check.inputs(ONE_TILE, device, absent=False)
    slots = given["indices"].unique().long()
    page, offset = slots // rung_check.PAGE, slots % rung_check.PAGE
    scales = layout.scale_rows(given["kv_cache"])[..., : layout.NUM_GROUPS]
    scales[page, offset] = (scales[page, offset].int() - shift).to(torch.uint8)
    want = sparse_mla_decode_reference(**given)[0][..., :NOPE]
    errors_of = {}
    for name in names:
        got = variants.decode(name, **given)[0].double()[..., :NOPE]
        errors_of[name] = float((got - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt())
    return pd.Series(errors_of)


def timed(rows: pd.DataFrame) -> pd.Series:
    """Time over rung `split_k`'s in the same run, by impl: "0.91 / 0.95 / 1.02" for batches 1, 16 and 64.

    A variant that could not be timed has the reason of its row.
    """
    said: dict[str, list[str]] = {}
    for _, mine in rows.groupby("batch"):
        base = mine[(mine["impl"] == "split_k") & (mine["status"] == "ok")]["median_us"]
        first = mine.drop_duplicates("impl")  # the control's second tile comes later
        for row in first.itertuples():
            if row.status != "ok":
                text = row.reason
            else:
                text = f"{row.median_us / base.iloc[0]:.2f}" if len(base) else "–"
            said.setdefault(row.impl, []).append(text)
    joined = {impl: " / ".join(dict.fromkeys(t) if len(set(t)) == 1 else t) for impl, t in said.items()}
    return pd.Series(joined, dtype=object)


def decision(row: dict, control: float, far: pd.Series) -> str:
    """Kept or rejected, by the first rule that speaks: legal? the book's accuracy? its range? less work?"""
    if row["reasons"]:
        name = row["reasons"][0].partition(":")[0]
        return f"rejected: {name}s" if name == "spill" else f"rejected: {name}"
    if row["rel_error"] > BF16_TOLERANCE:
        return "rejected: accuracy"
    if far.get(row["impl"], 0.0) > BF16_TOLERANCE:
        return "rejected: range"
    if row["per_pair"] >= control:
        return "rejected: more instructions"
    return "kept"


def table(
    found: dict[str, Compiled], checked: pd.DataFrame, far: pd.Series, clock: pd.Series
) -> pd.DataFrame:
    """One row a candidate: what it needs and issues on sm_120, its error, its time where recorded, the decision.

    A variant is judged by the control, which is judged by rung `split_k`; held queries by rung `staged`.
    Columns: impl, idea, shared_kib, registers, spill_bytes, halves and scaled (products in the loop), per_pair,
    rel_error, time, decision.
    """
    ideas = RUNGS | {name: v.idea for name, v in variants.VARIANTS.items()} | {HELD: "queries in registers"}
    error_of = checked.set_index("impl")["rel_error"]
    rows = []
    for name, idea in ideas.items():
        one = found[name]
        parts = variants.VARIANTS[name].parts if name in variants.VARIANTS else 1
        halves, scaled = products(one)
        row = {
            "impl": name,
            "idea": idea,
            "shared_kib": one.shared_bytes / 1024,
            "registers": one.registers,
            "spill_bytes": one.spill_bytes,
            "halves": halves,
            "scaled": scaled,
            "per_pair": per_pair(one, parts),
            "rel_error": error_of.get(name),
            "time": clock.get(name, "–"),
            "reasons": legal(one),
        }
        rows.append(row)
    work = {row["impl"]: row["per_pair"] for row in rows}
    for row in rows:
        against = {CONTROL: "split_k", HELD: "staged"}.get(row["impl"], CONTROL)
        known = row | {"rel_error": row["rel_error"] or 0.0}
        row["decision"] = "–" if row["impl"] in RUNGS else decision(known, work[against], far)
    return pd.DataFrame(rows).drop(columns="reasons")
