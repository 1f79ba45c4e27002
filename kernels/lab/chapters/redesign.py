"""The redesign of the sm_120 tiles: each candidate, whether it was kept, and the number that speaks for it."""

from __future__ import annotations

import pandas as pd

from kernels.lab.chapters import staged
from kernels.lab.chapters.machine_code import issued_over_needed
from kernels.lab.compile.result import Compiled

NOPE, ROTARY, WIDTH = 448, 64, 512


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
            "products batched over column groups",
            "rejected",
            f"time over plain: {1 - staged.gain('batched_dot', 'plain'):.2f}, mean over batches",
            "recorded",
        ),
        ("value columns split over blocks", "not tried", "–", "–"),
        ("tl.dot_scaled on the cache's own scales", "not tried", "–", "–"),
    ]
    return pd.DataFrame(rows, columns=["candidate", "decision", "evidence", "kind"])
