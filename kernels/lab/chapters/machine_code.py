"""What a compiled main loop issues, class by class, for one query head and one token: chapters 1 and 3."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab.compile.result import Compiled
from kernels.lab.evidence import Evidence
from kernels.lab.figures import style

GROUPS = {
    "tensor": ("tensor",),
    "multiply and add": ("fma",),
    "conversion": ("conversion",),
    "integer and logic": ("integer", "compare", "uniform"),
    "move": ("move",),
    "global loads": ("global_load", "async_copy", "bulk_copy"),
    "shared memory": ("shared_load", "shared_store"),
    "exchange in a warp": ("shuffle",),
    "exponential": ("special",),
    "barrier, branch, other": ("barrier", "control", "constant", "other", "atomic", "global_store"),
    "local memory": ("local_load", "local_store"),
}


def loop_work(compiled: Compiled) -> int:
    """Head-token pairs that one pass through the main loop handles: a block's heads times a tile's tokens."""
    heads = 1 if compiled.impl in ("serial", "simt") else compiled.tile["block_h"]
    return heads * (1 if compiled.impl == "serial" else compiled.tile["block_t"])


def mix(compiled: Compiled) -> pd.DataFrame:
    """Instructions of the main loop by group.

    Returns:
        group, instructions (of one warp, one pass), share, per_pair (issued by all warps of the loop for one
        head and one token).

    Raises:
        ValueError: the kernel did not compile, or has no loop.
    """
    if compiled.main_loop is None:
        raise ValueError(f"compiled: got no main loop to count ({compiled.error or 'the kernel has none'})")
    counts = compiled.main_loop.counts
    warps, pairs = compiled.main_warps, loop_work(compiled)
    rows = []
    for group, classes in GROUPS.items():
        number = sum(counts.classes.get(name, 0) for name in classes)
        rows.append((group, number, number / counts.total, number * warps / pairs))
    left = counts.total - sum(row[1] for row in rows)
    if left:
        rows.append(("not named above", left, left / counts.total, left * warps / pairs))
    return pd.DataFrame(rows, columns=["group", "instructions", "share", "per_pair"])


def one_tile_a_pass(compiled: Compiled) -> bool:
    """Whether the loop fetches the bytes of one tile a pass, not of two: the compiler has not unrolled it.

    The token's payload, 576 bytes, is loaded once; indices, scales and repeated lanes add less than as much
    again where loads are wide. Only meaningful for the rungs with tensor products.
    """
    loop, warps = compiled.main_loop, compiled.main_warps
    if compiled.producer_loop is not None:
        loop, warps = compiled.producer_loop, compiled.producer_warps
    loaded = sum(loop.counts.bytes_of(name) for name in ("global_load", "async_copy"))
    return loaded * warps < 2 * 576 * compiled.tile["block_t"]


def issued_over_needed(compiled: Compiled) -> float:
    """Tensor operations that a pass issues, over the 4 * 512 a head-token pair that it needs."""
    counts = compiled.main_loop.counts
    return counts.tensor_flops * compiled.main_warps / (4 * 512 * loop_work(compiled))


MEANING = {
    "BAR": "all warps of the block meet",
    "F2FP": "convert to a shorter float",
    "FADD": "add, float32",
    "FFMA": "multiply and add, float32",
    "FMUL": "multiply, float32",
    "HADD2": "widen a 16-bit float",
    "HMMA": "multiply small matrices on a tensor core",
    "I2F": "convert an integer to a float",
    "IADD": "add integers",
    "IMAD": "multiply and add integers",
    "LDG": "load from global memory",
    "LDS": "load from shared memory",
    "LOP3": "combine bits",
    "MOV": "copy a register",
    "MUFU": "exponential, reciprocal and the like",
    "PRMT": "rearrange bytes",
    "SHF": "shift bits",
    "SHFL": "exchange between lanes of a warp",
    "STS": "store to shared memory",
}


def opcodes(compiled: Compiled, top: int = 8) -> pd.DataFrame:
    """The main loop's most frequent opcodes: opcode, does, instructions, share; HMMA is always listed."""
    counts = compiled.main_loop.counts
    frequent = sorted(counts.opcodes.items(), key=lambda item: (-item[1], item[0]))[:top]
    if "HMMA" not in dict(frequent):
        frequent.append(("HMMA", counts.opcodes.get("HMMA", 0)))
    return pd.DataFrame(
        [(name, MEANING.get(name), number, number / counts.total) for name, number in frequent],
        columns=["opcode", "does", "instructions", "share"],
    )


def bars(table: pd.DataFrame, impl: str, evidence: Evidence | None = None) -> Figure:
    """Groups of instructions of one main loop as bars; a group without any keeps its line."""
    rows = table[(table["instructions"] > 0) | (table["group"] == "tensor")]
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.0 + 0.33 * len(rows)))
    for place, row in enumerate(rows.itertuples()):
        ax.barh(place, row.instructions, height=0.64, color=style.colour(impl))
        none = row.instructions == 0
        ax.annotate(
            "none" if none else f"{row.instructions:,}  ({row.share:.0%})",
            (row.instructions, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            fontweight="bold" if none else "normal",
        )
    ax.set_yticks(range(len(rows)), rows["group"])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlim(0, rows["instructions"].max() * 1.2)
    ax.set_xlabel("instructions of one warp in one pass through the main loop")
    return style.finish(fig, evidence)


def compared(tables: Mapping[str, pd.DataFrame], evidence: Evidence | None = None) -> Figure:
    """Two main loops side by side: instructions issued for one head and one token, a dot a rung.

    tables: impl -> `mix`. A group that a rung lacks is written as "none".
    """
    if len(tables) != 2:
        raise ValueError(f"tables: got {len(tables)} rungs, accepted are 2")
    wide = pd.DataFrame({impl: table.set_index("group")["per_pair"] for impl, table in tables.items()})
    wide = wide[(wide > 0).any(axis=1)].fillna(0)
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.3 + 0.36 * len(wide)))
    floor = wide[wide > 0].min().min() / 3
    for place, values in enumerate(wide.itertuples(index=False)):
        known = [max(value, floor) for value in values]
        ax.plot(known, [place, place], color=style.RULE, linewidth=3, zorder=1)
        for impl, value, x in zip(wide.columns, values, known, strict=True):
            mine = style.look(impl)
            right, none = x == max(known), not value
            if value:
                ax.plot(x, place, marker=mine.marker, color=mine.colour, markersize=8, zorder=3)
            ax.annotate(
                "none" if none else f"{value:.3g}",
                (x, place),
                xytext=(8 if right or none else -8, 7 * none),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                fontsize=8.5,
            )
    ax.set_xscale("log")
    ax.set_xlim(floor / 2.2, wide.max().max() * 3)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_yticks(range(len(wide)), wide.index)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("instructions issued for one head and one token (log scale)")
    for place, impl in enumerate(wide.columns):
        mine = style.look(impl)
        ax.plot(
            0.02 + 0.3 * place,
            1.045,
            marker=mine.marker,
            color=mine.colour,
            markersize=8,
            transform=ax.transAxes,
            clip_on=False,
        )
        ax.text(
            0.045 + 0.3 * place,
            1.045,
            mine.label,
            transform=ax.transAxes,
            va="center",
            fontsize=9.5,
            color=mine.ink,
            fontweight="bold",
        )
    return style.finish(fig, evidence)
