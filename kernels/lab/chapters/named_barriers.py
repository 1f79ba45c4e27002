"""Who arrives when a buffer is handed over: one thread for its group of warps, or every thread for itself.

The shipped kernel's producers meet, then one thread of theirs arrives at an mbarrier. The edits below take a named
barrier instead, one of a block's 16, at which all threads of one group arrive and all of the other wait. Both order
the same reads and writes; compute-sanitizer's racecheck follows the second only: data/racecheck.csv.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pandas as pd

from kernels.lab.chapters.edited import ANYTHING, compile_versions
from kernels.lab.compile import compile_many, make_request, sass
from kernels.lab.evidence import Evidence
from kernels.sparse_mla.tiles import Tile

LOG = Path(__file__).resolve().parents[3] / "data" / "racecheck.csv"
TILE = Tile(64, 16, 8, 2, False, 4)
HELPERS = """@gluon.constexpr_function
def barrier_text(what, threads):
    return f"barrier.{what} $1, {threads}; // dummy $0"


@gluon.jit
def arrive(number, THREADS: gl.constexpr):
    TEXT: gl.constexpr = barrier_text("arrive", THREADS)
    gl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait(number, THREADS: gl.constexpr):
    TEXT: gl.constexpr = barrier_text("sync", THREADS)
    gl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [number], dtype=gl.int32, is_pure=False, pack=1)


"""
"""Barriers 8 and 9: buffer 0 or 1 is full; 10 and 11: it is empty; 12: the queries are there."""
NAMED = (
    ("@gluon.jit\ndef produce(\n    k_smem, bias_smem, full, empty, ready,",
     f"{HELPERS}@gluon.jit\ndef produce(\n    k_smem, bias_smem,"),
    ('BUFFERS: gl.constexpr,\n):  # fmt: skip\n    """Fill',
     'BUFFERS: gl.constexpr, THREADS: gl.constexpr,\n):  # fmt: skip\n    """Fill'),
    ("mbarrier.arrive(ready, count=1)", "arrive(gl.to_tensor(12), THREADS)"),
    ("        mbarrier.wait(empty.index(buffer), ((n // BUFFERS) & 1) ^ 1)",
     "        if n >= BUFFERS:\n            wait(10 + buffer, THREADS)"),
    ("mbarrier.arrive(full.index(buffer), count=1)", "arrive(8 + buffer, THREADS)"),
    ("    q_smem, k_smem, bias_smem, full, empty, ready,\n    sink_ptr",
     "    q_smem, k_smem, bias_smem,\n    sink_ptr"),
    ('FINAL: gl.constexpr, OVERLAP: gl.constexpr,\n):  # fmt: skip\n    """Read',
     'FINAL: gl.constexpr, OVERLAP: gl.constexpr, THREADS: gl.constexpr,\n):  # fmt: skip\n    """Read'),
    ("mbarrier.wait(ready, 0)", "wait(gl.to_tensor(12), THREADS)"),
    ("mbarrier.wait(full.index(buffer), (n // BUFFERS) & 1)", "wait(8 + buffer, THREADS)"),
    ("        mbarrier.arrive(empty.index(buffer), count=1)",
     "        if n + BUFFERS < last - first:\n            arrive(10 + buffer, THREADS)"),
    (f"    full = gl.allocate_shared_memory{ANYTHING}    mbarrier.init(ready, count=1)\n",
     "    THREADS: gl.constexpr = 32 * (WARPS + CONSUMER_WARPS)\n"),
    ("(produce, (k_smem, bias_smem, full, empty, ready,", "(produce, (k_smem, bias_smem,"),
    ("UNIT, HAS_EXTRA, BLOCK_T, BUFFERS)),", "UNIT, HAS_EXTRA, BLOCK_T, BUFFERS, THREADS)),"),
    ("(consume, (q_smem, k_smem, bias_smem, full, empty, ready,", "(consume, (q_smem, k_smem, bias_smem,"),
    ("BUFFERS, WGMMA, FINAL, OVERLAP)),", "BUFFERS, WGMMA, FINAL, OVERLAP, THREADS)),"),
)  # fmt: skip
VERSIONS = {"one thread for its group (shipped)": {}, "every thread for itself": {"specialised": NAMED}}


def compare(target: str = "sm_120") -> pd.DataFrame:
    """Columns version, mbarriers, barriers (instructions), registers, spill_bytes of both versions' machine code."""
    rows = []
    for name, built in zip(VERSIONS, compile_versions(list(VERSIONS.values()), TILE, target), strict=True):
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
    means that no barrier stands in front of it, or that a jump may lead in between.
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


def shipped_arrivals(target: str = "sm_120") -> list[int | None]:
    """`accesses_before_arrivals` of the shipped kernel with the tile of `compare`."""
    [one] = compile_many([make_request("kernels.sparse_mla.signatures", "staged", TILE, target)])
    return accesses_before_arrivals(one.ptx)


@lru_cache
def racecheck() -> tuple[pd.DataFrame, Evidence]:
    """What racecheck printed: version, tool, calls, hazards; with the evidence line of the log."""
    found = pd.read_csv(LOG)
    evidence = Evidence(
        "recorded", device=found["device"].iloc[0], date_utc=found["date"].iloc[0],
        note="a tool's counts, noted on one day",
    )  # fmt: skip
    return found, evidence
