"""Chapter 1's counts: the KV bytes a per-head grid asks for, and the times it cannot beat."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kernels.lab import roofline
from kernels.lab.compile.result import Compiled
from kernels.lab.devices import Device, device_of

KNOWN_HEADS, KNOWN_TOPK = 64, 512


def traffic(
    batches: Iterable[int], heads: int = KNOWN_HEADS, topk: int = KNOWN_TOPK, block_h: int = 1
) -> pd.DataFrame:
    """KV bytes that a batch needs and that a grid of (batch, head groups) asks for.

    Returns:
        batch, blocks, needed_mb and requested_mb (10**6 bytes), ratio; one row a batch.
    """
    rows = []
    for batch in batches:
        needed = roofline.attention(batch, heads, topk).parts["kv"]
        requested = roofline.requested_kv_bytes(batch, heads, topk, block_h)
        rows.append(
            {
                "batch": batch,
                "blocks": batch * roofline.redundancy(heads, block_h),
                "needed_mb": needed / 1e6,
                "requested_mb": requested / 1e6,
                "ratio": requested / needed,
            }
        )
    return pd.DataFrame(rows)


def intensities(heads: int = KNOWN_HEADS, topk: int = KNOWN_TOPK, block_h: int = 1) -> dict[str, float]:
    """Operations a byte: of the KV that is asked for, and of everything that must move once. Any batch."""
    work = roofline.attention(1, heads, topk)
    return {
        "requested": work.flops / roofline.requested_kv_bytes(1, heads, topk, block_h),
        "compulsory": work.intensity,
    }


def issue_us(compiled: Compiled, blocks: int, passes: float, device: str | Device) -> float:
    """Microseconds in which the schedulers could at best issue the main loops of a grid.

    passes: through the main loop, a block. Every scheduler issues an instruction at every clock, and blocks
    are shared out to the last fraction: no real launch is as fast.

    Raises:
        ValueError: the kernel did not compile, or has no loop.
    """
    if compiled.main_loop is None:
        raise ValueError(f"compiled: got a kernel without a main loop ({compiled.error or 'no loop'})")
    device = device_of(device)
    issued = compiled.main_loop.counts.total * (compiled.max_threads // 32) * passes
    per_sm = issued * blocks / device["sm_count"]
    return per_sm / device["issue_slots"] / device["boost_clock"]


def bounds(
    compiled: Compiled,
    batch: int,
    device: str | Device = "rtx-pro-6000",
    heads: int = KNOWN_HEADS,
    topk: int = KNOWN_TOPK,
) -> pd.DataFrame:
    """Four times that the per-head kernel cannot beat on a device, each as if nothing else took time.

    compiled: the per-head kernel for the device's target, whose loop handles one tile a pass.

    Returns:
        bound, count (words), us.
    """
    device = device_of(device)
    work = roofline.attention(batch, heads, topk)
    requested = roofline.requested_kv_bytes(batch, heads, topk)
    passes = -(-topk // compiled.tile["block_t"])
    loop = compiled.main_loop.counts.total * (compiled.max_threads // 32) if compiled.main_loop else 0
    rows = [
        (
            "all bytes once, from DRAM",
            f"{work.bytes / 1e6:,.1f} MB",
            roofline.roof(work, device).memory_us,
        ),
        (
            "multiply-adds on the float32 lanes",
            f"{work.flops / 1e9:,.2f} GFLOP",
            roofline.roof(work, device, arithmetic="fp32").arithmetic_us,
        ),
        (
            "requested KV bytes, from L2",
            f"{requested / 1e6:,.0f} MB",
            requested / device["l2_bandwidth"] / 1e3,
        ),
        (
            "issuing the main loops",
            f"{batch * heads * passes:,} passes of {loop:,} instructions",
            issue_us(compiled, batch * heads, passes, device),
        ),
    ]
    return pd.DataFrame(rows, columns=["bound", "count", "us"])


def per_head(target: str = "sm_120", impl: str = "simt") -> Compiled:
    """A per-head rung compiled for a target, with the tile that its launcher takes there."""
    from kernels.lab.compile import compile_kernel
    from kernels.lab.compile.plans import default_tile

    return compile_kernel("sparse_mla", impl, default_tile("sparse_mla", impl, target), target)


def chained(rows: pd.DataFrame, *impls: str) -> pd.DataFrame:
    """Rows of the `ladder` experiment that hold a time of the chain timer, of these rungs."""
    return rows[(rows["timer"] == "chain") & (rows["status"] == "ok") & rows["impl"].isin(impls)]


def against_clock(rows: pd.DataFrame, device_name: str | None, batch: int = 16) -> tuple[pd.DataFrame, str]:
    """The bounds on the card that measured, with the time it took, and that card's name.

    rows: of the `ladder` experiment. Without a time at this batch, or on a card that data/devices.csv does
    not hold, the campaign's card is taken and nothing is set beside the bounds.

    Returns:
        (bound, count, us, share: of the measured time or NaN), and the device's name.
    """
    found = chained(rows, "simt")
    found = found[found["batch"] == batch]
    try:
        device = device_of(device_name or "rtx-pro-6000")
    except ValueError:
        device, found = device_of("rtx-pro-6000"), found.iloc[0:0]
    table = bounds(per_head(device.target.name), batch, device)
    clock = float(found["median_us"].iloc[0]) if len(found) else float("nan")
    if len(found):
        table.loc[len(table)] = ["measured", "one call", clock]
    return table.assign(share=table["us"] / clock), device.name
