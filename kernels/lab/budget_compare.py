"""A tile's budget beside what the compiler made of it, with the moves that explain the difference."""

from dataclasses import dataclass
from itertools import combinations

from kernels.lab.budget import TileBudget


@dataclass(frozen=True)
class Comparison:
    """Difference between a budget and a compiled kernel.

    Attributes:
        shared_difference: compiled minus budgeted bytes.
        moves: the compiler's moves that together come closest to the compiled bytes, each with its bytes.
        residual: bytes that the moves leave unexplained.
        registers_difference: compiled registers above `registers_high` (positive) or below `registers_low`
            (negative), 0 in between.
        category: one of `CATEGORIES`, for the registers. explanation: a sentence.
    """

    budget: TileBudget
    shared_bytes: int
    registers: int
    spill_bytes: int
    shared_difference: int
    moves: dict[str, int]
    residual: int
    registers_difference: int
    category: str
    explanation: str

    @property
    def explained(self) -> bool:
        """Whether the moves account for the shared bytes to within 4 KB or 10 %."""
        return abs(self.residual) <= max(4096, self.shared_bytes // 10)


CATEGORIES = {
    "within": "the compiled kernel lies between a perfect schedule and none",
    "below": "the compiler needs fewer registers than the budget: it recomputes, or streams operands",
    "above": "more is live than one tile needs: both operand layouts of a block, or loads of the next tile",
    "spilled": "more registers are needed than a thread may have: the rest goes to local memory",
}


KEPT_TWICE = "K in two layouts"


def moves(budget: TileBudget) -> dict[str, int]:
    """What a compiler may do to the shared memory of a budget: name of the move to bytes that it adds.

    operand layouts: K goes from gathered bytes straight to register fragments, through a buffer of bytes that
        is as wide as the widest column block and is used again for the next one (or from the staged bytes).
    one block at a time: K's column blocks pass through one bfloat16 buffer.
    K in two layouts: the whole tile lies in shared memory once for each product.
    rope kept: the rotary block, which is bfloat16 in memory, stays in shared memory for the second product.
    reuse: P and the row reduction lie where K was.
    two layouts of P: the products want P with different inner strides, so it is stored twice.
    query in registers: Q is held as fragments.
    staged bytes: buffers of a pipelined gather, one more than the budget has.
    """
    part, tokens = budget.shared, budget.block_t
    widest = max(budget.columns)
    staged = budget.num_stages > 1
    return {
        "operand layouts": (0 if staged else tokens * widest) - part["key_tile"],
        "one block at a time": 2 * tokens * widest - part["key_tile"],
        KEPT_TWICE: part["key_tile"],
        "rope kept": 128 * tokens,
        "reuse": -(part["probabilities"] + part["row_reduction"]),
        "two layouts of P": part["probabilities"],
        "query in registers": -part["query"],
        "staged bytes": 576 * tokens if staged else 0,
    }


_EXCLUSIVE = {
    frozenset(("operand layouts", "one block at a time")),
    frozenset((KEPT_TWICE, "operand layouts")),
    frozenset((KEPT_TWICE, "one block at a time")),
    frozenset(("reuse", "two layouts of P")),
}
MOST_MOVES = 3
WORTH = 512


def explain_shared(budget: TileBudget, shared_bytes: int) -> tuple[dict[str, int], int]:
    """The fewest moves that come closest to the compiled bytes, and the bytes left unexplained.

    A further move counts only if it brings the sum at least 512 bytes closer.
    """
    available = {name: value for name, value in moves(budget).items() if value}
    apart = shared_bytes - budget.shared_bytes
    best, least = (), abs(apart)
    for count in range(1, MOST_MOVES + 1):
        for chosen in combinations(available, count):
            if any(pair <= set(chosen) for pair in _EXCLUSIVE):
                continue
            left = abs(apart - sum(available[name] for name in chosen))
            if left + WORTH * (count - len(best)) <= least:
                best, least = chosen, left
    picked = {name: available[name] for name in best}
    return picked, apart - sum(picked.values())


def compare(budget: TileBudget, compiled) -> Comparison:
    """Compare a budget with a `Compiled` of the same tile.

    Raises:
        ValueError: the kernel did not compile, or it is another tile.
    """
    if compiled.error:
        raise ValueError(f"compiled: this tile has no machine code to compare with ({compiled.error})")
    own = (budget.block_h, budget.block_t, budget.num_warps)
    theirs = (compiled.block_h, compiled.block_t, compiled.num_warps)
    if own != theirs:
        raise ValueError(f"compiled: got the tile {theirs}, accepted is the budget's {own}")
    picked, residual = explain_shared(budget, compiled.shared_bytes)
    over = compiled.registers - budget.registers_high
    under = compiled.registers - budget.registers_low
    if compiled.spill_bytes:
        category = "spilled"
    elif over > 0:
        category = "above"
    else:
        category = "below" if under < 0 else "within"
    said = ", ".join(f"{name} ({value:+,} B)" for name, value in picked.items()) or "no move needed"
    return Comparison(
        budget,
        compiled.shared_bytes,
        compiled.registers,
        compiled.spill_bytes,
        compiled.shared_bytes - budget.shared_bytes,
        picked,
        residual,
        max(over, 0) or min(under, 0),
        category,
        f"shared: {said}, {residual:+,} B unexplained; registers: {CATEGORIES[category]}",
    )
