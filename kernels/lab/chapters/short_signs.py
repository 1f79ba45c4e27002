"""Why only one pair of a word's bytes gets its signs from `prmt`: both pairs so, compiled beside the shipped kernel."""

from __future__ import annotations

import re

import pandas as pd

from kernels.lab.chapters.early_use import TILE, producers_body
from kernels.lab.chapters.edited import compile_versions, edited
from kernels.sparse_mla._dequantize import PACKED

# The second pair as the first: its selector, one mask instead of two and an `or`
EDITS = (
    ("sub.u32 a, $6, 0x5d5c;", "add.u32 a, $6, 0x2222;"),
    ("shr.u32 b, high, 4;", "shl.b32 high, high, 4;"),
    ("and.b32 high, high, 0x80008000;\n", ""),
    ("and.b32 b, b, 0x07f007f0;\nor.b32 high, high, b;", "and.b32 high, high, 0x87f087f0;"),
)
BOTH_PAIRS = edited(PACKED.value, EDITS)
"""The text of the kernels with the short way for all four bytes. It gives the same bits."""
_IMPORT = "from kernels.sparse_mla._dequantize import HALVES, PACKED, SELECTOR\n"
_INSTEAD = (_IMPORT, f'{_IMPORT}PACKED = gl.constexpr("""{BOTH_PAIRS}""")\n')
VERSIONS = {"one pair, as shipped": {}, "both pairs": {"_rows": (_INSTEAD,)}}
SHAPES = {"one cache": {}, "two caches, with lengths": {"extra_topk": 512, "has_length": True}}


def compare() -> pd.DataFrame:
    """A tile with producers, compiled for sm_90.

    Returns:
        version, caches, integer (instructions of one pass of the producers' loop that take words apart: PRMT, LOP3,
        and shifts), spill_bytes (stored and loaded again by a thread, in all).
    """
    rows = []
    for caches, shape in SHAPES.items():
        built = compile_versions(list(VERSIONS.values()), TILE, **shape)
        for version, one in zip(VERSIONS, built, strict=True):
            body = producers_body(one.sass)
            parts = [line for line in body if re.match(r"(PRMT|LOP3|SHF|IMAD\.SHL)", line.mnemonic)]
            rows.append((version, caches, len(parts), one.spill_bytes))
    return pd.DataFrame(rows, columns=["version", "caches", "integer", "spill_bytes"])
