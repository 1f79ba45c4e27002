"""A budget for a head-shared attention tile, from first principles: what must a block keep, and where?

Nothing here looks at the compiler. Two products share a tile of keys: scores = Q K^T over 512 columns, and
output = P V, where V is K. Operands of tensor instructions come from shared memory or sit in registers as
fragments; accumulators sit in registers. From that follow

    shared = Q (unless in registers) + K tile * stages + P + partial maxima and sums of the rows
    registers = accumulator + row state + bookkeeping + what the three phases need: gather, scores, output

The phases follow one another, so a perfect schedule needs the largest of the three (`registers_low`), and one
that keeps everything needs their sum (`registers_high`). `kernels.lab.budget_compare` puts a budget beside
what the compiler made.
"""

from dataclasses import dataclass

from kernels.lab.devices import target_of
from kernels.lab.occupancy import occupancy

SPLIT_COLUMNS = (256, 128, 64, 64)  # 448 as three powers of two, and the rotary part
PADDED_COLUMNS = (512,)  # one block; with 448 padded to 512 the rotary part is a second one
PLACES = ("shared", "registers")
BOOKKEEPING = 20  # loop counters, base pointers, masks and constants; a round guess, stated before compiling


@dataclass(frozen=True)
class TileBudget:
    """What a tile needs.

    Attributes:
        block_h, block_t, num_warps, num_stages, columns, query_in: the tile.
        shared: part to bytes. registers: part to 32-bit registers a thread.
    """

    block_h: int
    block_t: int
    num_warps: int
    num_stages: int
    columns: tuple[int, ...]
    query_in: str
    shared: dict[str, int]
    registers: dict[str, float]

    @property
    def shared_bytes(self) -> int:
        return sum(self.shared.values())

    @property
    def threads(self) -> int:
        return 32 * self.num_warps

    def _kept(self) -> float:
        return sum(self.registers[part] for part in ("accumulator", "query", "state", "bookkeeping"))

    @property
    def phases(self) -> dict[str, float]:
        """Registers a thread of the phases that take turns: gather, scores, output."""
        r = self.registers
        return {
            "gather": r["raw_bytes"] + r["addresses"],
            "scores": r["scores"] + r["key_operand"],
            "output": r["probabilities"] + r["value_operand"],
        }

    @property
    def registers_low(self) -> int:
        """Registers a thread if the phases reuse each other's."""
        return round(self._kept() + max(self.phases.values()))

    @property
    def registers_high(self) -> int:
        """Registers a thread if nothing is reused within a tile."""
        return round(self._kept() + sum(self.phases.values()))


def _check(name: str, value: int, multiple_of: int = 1) -> None:
    if value < 1 or value & (value - 1) or value % multiple_of:
        raise ValueError(f"{name}: got {value}, accepted are powers of two from {multiple_of} up")


def tile_budget(
    block_h: int,
    block_t: int,
    num_warps: int = 4,
    num_stages: int = 1,
    *,
    columns=SPLIT_COLUMNS,
    query_in: str = "shared",
    operand_bytes: int = 2,
    entry_bytes: int = 576,
) -> TileBudget:
    """The budget of one tile of `block_h` heads by `block_t` tokens.

    Registers assume that the warps share out the columns of the output (each holds all heads) and the tokens
    of the scores, at least 8 each, which is one tensor instruction. A warp's fragment of R rows by C columns
    of 16-bit numbers is R*C/64 registers a thread.

    Args:
        columns: widths of the column blocks: `SPLIT_COLUMNS`, or `PADDED_COLUMNS`, possibly with 64 for rope.
        query_in: where Q waits between tiles, "shared" or "registers".
        operand_bytes: bytes of an operand's number, 2 for bfloat16 and 1 for FP8.
        entry_bytes: gathered bytes a token, 576 without its scales.

    Raises:
        ValueError: a size that is no power of two, or an unknown place.
    """
    _check("block_h", block_h)
    _check("block_t", block_t)
    _check("num_warps", num_warps)
    if query_in not in PLACES:
        raise ValueError(f"query_in: got {query_in!r}, accepted are {PLACES}")
    if num_stages < 1:
        raise ValueError(f"num_stages: got {num_stages}, accepted is 1 or more")
    width, threads = sum(columns), 32 * num_warps
    rows = max(block_h, 16)  # a tensor instruction has 16 rows, also for fewer heads
    tile_bytes = block_t * width * operand_bytes
    shared = {
        "query": rows * width * operand_bytes if query_in == "shared" else 0,
        "key_tile": tile_bytes,
        "value_view": 0,  # V is the key tile, read transposed
        "probabilities": rows * block_t * operand_bytes,
        "row_reduction": 4 * rows * num_warps,
        "pipelining": (num_stages - 1) * block_t * entry_bytes,
    }
    half = operand_bytes / 4  # registers a number takes in an operand
    loads = max(block_t * entry_bytes / (16 * threads), 1)
    tokens_a_warp = max(block_t / num_warps, 8)
    registers = {
        "accumulator": rows * width / threads,
        "scores": rows * tokens_a_warp / 32,
        "probabilities": rows * block_t * half / 32,
        # Warps that share out tokens each need all heads of Q.
        "query": rows * width * half / 32 if query_in == "registers" else 0,
        "key_operand": tokens_a_warp * width * half / 32,
        "value_operand": block_t * width / num_warps * half / 32,
        "addresses": 2 * loads,
        "raw_bytes": block_t * entry_bytes / 4 / threads if num_stages == 1 else 0,
        "state": 3 * 2 * rows / 16,  # maximum, sum and rescaling of two rows per 16
        "bookkeeping": BOOKKEEPING,
    }
    return TileBudget(block_h, block_t, num_warps, num_stages, tuple(columns), query_in, shared, registers)


def limits(shared_bytes: int, registers: int, threads: int, target="sm_120", spill_bytes: int = 0) -> dict:
    """Which limit kills a tile on a target, and how many blocks of it fit a multiprocessor.

    Returns:
        killed_by ("shared memory", "registers", "spill" or None), blocks_by_shared, blocks_by_registers,
        blocks_by_warps, blocks (0 where killed), limiter.
    """
    target = target_of(target)
    killed = None
    if shared_bytes > target.shared_optin:
        killed = "shared memory"
    elif registers > target.registers_per_thread or registers * threads > target.registers_per_sm:
        killed = "registers"
    elif spill_bytes:
        killed = "spill"
    fit = occupancy(shared_bytes, max(1, min(registers, target.registers_per_thread)), threads, target)
    return {
        "killed_by": killed,
        "blocks_by_shared": fit.by_shared,
        "blocks_by_registers": fit.by_registers,
        "blocks_by_warps": fit.by_warps,
        "blocks": 0 if killed else fit.blocks,
        "limiter": killed or fit.limiter,
    }


def tile_map(
    block_hs=(16, 32, 64),
    block_ts=(16, 32, 64),
    warps=(4, 8),
    stages=(1,),
    target="sm_120",
    *,
    compiled=None,
    **options,
) -> list[dict]:
    """The tile space, one row a tile: what it needs, which limit kills it, and how many blocks fit.

    Args:
        block_hs, block_ts, warps, stages: the grid of budgets; `options` go to `tile_budget`.
        compiled: `Compiled` results; then these are mapped instead of budgets.

    Returns:
        rows with the tile, source ("budget" or "compiled"), shared_bytes, registers, and what `limits` says.
        A budget's registers are its lower bound: a tile that even that kills cannot be saved by scheduling.
    """
    rows = []
    if compiled is not None:
        for c in compiled:
            row = {**c.tile, "impl": c.impl, "source": "compiled", "shared_bytes": c.shared_bytes}
            if c.error:
                rows.append(
                    row | {"registers": None, "killed_by": "compiler", "blocks": 0, "reason": c.error}
                )
                continue
            row |= {"registers": c.registers, "spill_bytes": c.spill_bytes}
            spilled = c.spill_bytes + c.stack_bytes
            rows.append(row | limits(c.shared_bytes, c.registers, c.max_threads, target, spilled))
        return rows
    for num_stages in stages:
        for num_warps in warps:
            for block_h in block_hs:
                for block_t in block_ts:
                    tile = {
                        "block_h": block_h,
                        "block_t": block_t,
                        "num_warps": num_warps,
                        "num_stages": num_stages,
                    }
                    need = tile_budget(**tile, **options)
                    row = tile | {"source": "budget", "shared_bytes": need.shared_bytes}
                    row |= {"registers": need.registers_low, "registers_high": need.registers_high}
                    rows.append(row | limits(need.shared_bytes, need.registers_low, need.threads, target))
    return rows


def _option(name: str, target: str, **tile) -> dict:
    need = tile_budget(num_warps=tile.pop("num_warps", 8), columns=PADDED_COLUMNS, entry_bytes=1024, **tile)
    verdict = limits(need.shared_bytes, need.registers_low, need.threads, target)
    limit = target_of(target).shared_optin
    return {
        "option": name,
        "block_h": need.block_h,
        "block_t": need.block_t,
        "query_bytes": need.shared["query"],
        "key_bytes": need.shared["key_tile"] + need.shared["pipelining"],
        "other_bytes": need.shared["probabilities"] + need.shared["row_reduction"],
        "shared_bytes": need.shared_bytes,
        "left_bytes": limit - need.shared_bytes,
        "registers": need.registers_low,
        "fits": verdict["killed_by"] is None,
        "killed_by": verdict["killed_by"],
    }


def campaign_budget(target: str = "sm_120") -> list[dict]:
    """The campaign's arithmetic, and what each of its three ways out costs, as rows.

    64 tokens and 64 heads of 512 bfloat16 numbers are 64 KB of K and 64 KB of Q, over the 99 KB that a block
    may have. Its options: a smaller BLOCK_T, Q in registers, and staging with num_stages = 2 (here with
    bfloat16 tiles in flight, as the campaign counts them). Fewer heads a block, which it chose in the end, is
    the last row.
    """
    return [
        _option("64 heads, 64 tokens", target, block_h=64, block_t=64),
        _option("smaller BLOCK_T: 32", target, block_h=64, block_t=32),
        _option("smaller BLOCK_T: 16", target, block_h=64, block_t=16),
        _option("Q in registers", target, block_h=64, block_t=64, query_in="registers"),
        _option("Q in registers, 16 heads", target, block_h=16, block_t=64, query_in="registers"),
        _option("staging: two stages of 64", target, block_h=64, block_t=64, num_stages=2),
        _option("staging: two stages of 16", target, block_h=64, block_t=16, num_stages=2),
        _option("fewer heads: 32, 32 tokens", target, block_h=32, block_t=32),
    ]
