"""The sizes of the candidate's blocks, from shapes alone."""

from __future__ import annotations

from kernels.sparse_mla.tiles import Tile

CHUNK_T = 32
PER_PASS = 4  # chunks whose buffers, with the queries, fit into a block's shared memory
MOST_CHUNKS = 5  # words of more would not fit into the registers
WARPS = 8


def chunks_of(topk: int, extra_topk: int, num_splits: int) -> int:
    """Chunks of the largest share of a row, from the widths alone."""
    return -(-(-(-topk // CHUNK_T) + -(-extra_topk // CHUNK_T)) // num_splits)


__all__ = ["CHUNK_T", "MOST_CHUNKS", "PER_PASS", "WARPS", "Tile", "chunks_of"]
