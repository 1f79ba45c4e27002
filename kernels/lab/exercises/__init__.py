"""Exercises that check themselves: `check_combine(your_kernel)` says what is wrong and draws it.

Every check takes the reader's answer, or None ("not attempted yet"), prints its verdict and returns a
`Result`. It never raises for an answer. `catalogue()` lists all of them in the book's order. Kernels run
where the chapter's do: in the interpreter on a CPU, compiled on a GPU.
"""

from kernels.lab.exercises.chapter1 import (
    check_amdahl,
    check_count_instructions,
    check_gather_scores,
    check_intensity,
    check_redundancy,
)
from kernels.lab.exercises.chapter2 import (
    check_blocks_per_sm,
    check_choose_tile,
    check_largest_block_t,
    check_tile_bytes,
)
from kernels.lab.exercises.chapter3 import (
    check_break_even,
    check_grid,
    check_online_softmax,
    check_shared_scores,
)
from kernels.lab.exercises.chapter4 import (
    check_batch_invariant_policy,
    check_split_policy,
    check_split_ranges,
    check_waves,
)
from kernels.lab.exercises.chapter5 import check_combine, check_merge, check_scratch_bytes, check_sink
from kernels.lab.exercises.chapter6 import check_cap_ladder, check_index_bytes, check_stride, check_topk
from kernels.lab.exercises.framework import CATALOGUE, Exercise, Result


def catalogue() -> list[Exercise]:
    """Every exercise, by chapter and place in it."""
    return sorted(CATALOGUE, key=lambda entry: (entry.chapter, entry.order))


__all__ = [
    "Exercise",
    "Result",
    "catalogue",
    "check_amdahl",
    "check_batch_invariant_policy",
    "check_blocks_per_sm",
    "check_break_even",
    "check_cap_ladder",
    "check_choose_tile",
    "check_combine",
    "check_count_instructions",
    "check_gather_scores",
    "check_grid",
    "check_index_bytes",
    "check_intensity",
    "check_largest_block_t",
    "check_merge",
    "check_online_softmax",
    "check_redundancy",
    "check_scratch_bytes",
    "check_shared_scores",
    "check_sink",
    "check_split_policy",
    "check_split_ranges",
    "check_stride",
    "check_tile_bytes",
    "check_topk",
    "check_waves",
]
