"""The candidate's tile and shares, from shapes alone. The compiler's processes look for `Tile` here."""

from __future__ import annotations

from kernels.sparse_mla.tiles import Tile

TILE = Tile(64, 32, 8, 1, True)
"""64 heads by a chunk of 32 candidates, multiplied by wgmma."""
PER_PASS = 4  # chunks whose buffers, with the queries, fit into a block's shared memory
MOST_CHUNKS = 5  # the words of more would not fit into the registers


def chunks_of(topk: int, extra_topk: int, num_splits: int) -> int:
    """Chunks of the largest share of a row, from the widths alone.

    Raises:
        ValueError: more than `MOST_CHUNKS`.
    """
    in_row = -(-topk // TILE.block_t) + -(-extra_topk // TILE.block_t)
    chunks = -(-in_row // num_splits)
    if chunks > MOST_CHUNKS:
        raise ValueError(
            f"num_splits: got {num_splits}, so {chunks} chunks a share; accepted are {MOST_CHUNKS} at most"
        )
    return chunks
