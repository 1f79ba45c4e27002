"""Who arrives when a buffer is handed over: every thread for itself, or one thread for its group of warps.

In the shipped kernel all threads of a group arrive at a named barrier. The edits below bring back an earlier
version: there a group met, then one thread of it arrived at an mbarrier. Both order the same reads and writes;
compute-sanitizer's racecheck follows the shipped one only: data/racecheck.csv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pandas as pd

from kernels.lab.chapters.edited import Built, compile_versions
from kernels.lab.compile import sass
from kernels.lab.evidence import Evidence
from kernels.sparse_mla.tiles import Tile

LOG = Path(__file__).resolve().parents[3] / "data" / "racecheck.csv"
TILE = Tile(64, 16, 8, 2, False, 4)
MBARRIERS = (
    ("    fence_async_shared,\n    mma_v2,", "    fence_async_shared,\n    mbarrier,\n    mma_v2,"),
    ("def produce(\n    k_smem, bias_smem,", "def produce(\n    k_smem, bias_smem, full, empty, ready,"),
    ("    arrive(READY, THREADS)", "    mbarrier.arrive(ready, count=1)"),
    ("        if n >= BUFFERS:\n            wait(EMPTY + buffer, THREADS)",
     "        mbarrier.wait(empty.index(buffer), ((n // BUFFERS) & 1) ^ 1)"),
    ("        arrive(FULL + buffer, THREADS)", "        mbarrier.arrive(full.index(buffer), count=1)"),
    ("def consume(\n    q_smem, k_smem, bias_smem,",
     "def consume(\n    q_smem, k_smem, bias_smem, full, empty, ready,"),
    ("    wait(READY, THREADS)", "    mbarrier.wait(ready, 0)"),
    ("        wait(FULL + buffer, THREADS)", "        mbarrier.wait(full.index(buffer), (n // BUFFERS) & 1)"),
    ("        if n + BUFFERS < last - first:\n            arrive(EMPTY + buffer, THREADS)",
     "        mbarrier.arrive(empty.index(buffer), count=1)"),
    ("    THREADS: gl.constexpr = 32 * (WARPS + CONSUMER_WARPS)\n",
     """    THREADS: gl.constexpr = 32 * (WARPS + CONSUMER_WARPS)
    full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for b in gl.static_range(BUFFERS):
        mbarrier.init(full.index(b), count=1)
        mbarrier.init(empty.index(b), count=1)
    mbarrier.init(ready, count=1)
"""),
    ("(produce, (k_smem, bias_smem,", "(produce, (k_smem, bias_smem, full, empty, ready,"),
    ("(consume, (q_smem, k_smem, bias_smem,", "(consume, (q_smem, k_smem, bias_smem, full, empty, ready,"),
)  # fmt: skip
VERSIONS = {
    "one thread for its group, at an mbarrier": {"specialised": MBARRIERS},
    "every thread for itself, at a named barrier": {},
}


def build(target: str = "sm_120") -> dict[str, Built]:
    """Both versions compiled, by their names in `VERSIONS`."""
    return dict(zip(VERSIONS, compile_versions(list(VERSIONS.values()), TILE, target), strict=True))


def compare(versions: Mapping[str, Built]) -> pd.DataFrame:
    """Columns version, mbarriers, barriers (instructions), registers, spill_bytes of the versions' machine code."""
    rows = []
    for name, built in versions.items():
        opcodes = sass.count(sass.parse(built.sass)[0]).opcodes
        rows.append(
            {
                "version": name,
                "mbarriers": opcodes.get("SYNCS", 0),
                "barriers": opcodes.get("BAR", 0),
                "registers": built.registers,
                "spill_bytes": built.spill_bytes,
            }
        )
    return pd.DataFrame(rows)


def accesses_before_arrivals(ptx: str) -> list[int | None]:
    """For each arrival at an mbarrier: accesses to shared memory since the last barrier of its group of warps.

    0 means that what every thread of the group wrote or read lies before the barrier, and so before the arrival. None
    means that no barrier stands in front of it, or that a jump may lead in between. Empty where nobody arrives at one.
    """
    found, since = [], None
    for line in ptx.splitlines():
        if re.search(r"\bbar(rier)?\.sync\b", line):
            since = 0
        elif re.match(r"\s*\$\w+:", line):
            since = None
        elif "mbarrier.arrive" in line:
            found.append(since)
        elif since is not None and re.search(r"\b(ld|st)\.shared|\b(ld|st)matrix", line):
            since += 1
    return found


@lru_cache
def racecheck() -> tuple[pd.DataFrame, Evidence]:
    """What racecheck printed: version, tool, calls, hazards; with the evidence line of the log."""
    found = pd.read_csv(LOG)
    evidence = Evidence(
        "recorded", device=found["device"].iloc[0], date_utc=found["date"].iloc[0],
        note="a tool's counts, noted on one day",
    )  # fmt: skip
    return found, evidence
