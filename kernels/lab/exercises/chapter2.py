"""Chapter 2: bytes of a tile, blocks that fit a multiprocessor, the largest tile, a policy for tiles."""

from __future__ import annotations

from kernels.lab.exercises.compare import check_scalar_function, describe
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.running import brief, call, need_function
from kernels.lab.occupancy import occupancy, registers_per_block

SHARED_LIMIT = 101_376
SM90_LIMIT = 232_448
ROW_BYTES = 1024  # 512 columns of bfloat16


@exercise(2, "a function", "How many bytes do a query tile and the staged key tiles need?")
def check_tile_bytes(f):
    """Check `f(block_h, block_t, stages) -> int`: bytes of Q and `stages` K tiles of 512 columns."""
    cases = [
        {"block_h": h, "block_t": t, "stages": s}
        for h, t, s in ((64, 64, 1), (32, 32, 1), (64, 16, 2), (16, 32, 3))
    ]
    mistakes = [
        (
            "bfloat16 has two bytes; these are numbers, not bytes.",
            lambda block_h, block_t, stages: 512 * (block_h + stages * block_t),
        ),
        (
            "bfloat16 has two bytes, not four.",
            lambda block_h, block_t, stages: 2048 * (block_h + stages * block_t),
        ),
        (
            "Q is read once and stays: only the K tiles in flight are staged.",
            lambda block_h, block_t, stages: ROW_BYTES * stages * (block_h + block_t),
        ),
        (
            "Each further stage holds another K tile.",
            lambda block_h, block_t, stages: ROW_BYTES * (block_h + block_t),
        ),
        (
            "Q must wait somewhere between the tiles: it needs its own place.",
            lambda block_h, block_t, stages: ROW_BYTES * stages * block_t,
        ),
        (
            "K is 512 columns wide, not 448: the rotary part is multiplied, too.",
            lambda block_h, block_t, stages: 896 * (block_h + stages * block_t),
        ),
    ]
    check_scalar_function(
        f,
        "f(block_h, block_t, stages) -> int",
        lambda block_h, block_t, stages: ROW_BYTES * (block_h + stages * block_t),
        cases,
        mistakes,
        whole=True,
        what="The number of bytes",
        otherwise="Rows times 512 columns times the bytes of one number, for Q and for K.",
    )
    return Praise(
        "64 heads with 64 tokens need 128 KiB, and a block of sm_120 may have 99: something must give."
    )


def _blocks(
    shared_bytes,
    registers,
    threads,
    *,
    reserved=1024,
    unit=128,
    register_unit=256,
    warps_limit=48,
    slots=24,
    optin=SHARED_LIMIT,
):
    warps = -(-threads // 32)
    a_warp = -(-registers * 32 // register_unit) * register_unit
    granted = -(-shared_bytes // unit) * unit + reserved
    if shared_bytes > optin:
        return 0
    by_shared = 102_400 // granted if granted else slots
    return min(by_shared, 65_536 // (warps * a_warp), warps_limit // warps, slots)


BLOCK_CASES = (
    (32_768, 64, 128),  # shared memory
    (50_432, 64, 128),  # shared memory; fits twice only if the system's share is forgotten
    (8_192, 97, 128),  # registers, rounded up
    (0, 168, 256),  # registers
    (4_096, 32, 512),  # warps
    (1_024, 32, 32),  # block slots
    (102_000, 64, 128),  # does not fit
    (101_376, 128, 256),
    (5_340, 32, 64),
)


@exercise(2, "a function", "How many blocks of a kernel fit a multiprocessor of sm_120 at once?")
def check_blocks_per_sm(f):
    """Check `f(shared_bytes, registers, threads) -> int` for sm_120."""
    cases = [
        dict(zip(("shared_bytes", "registers", "threads"), values, strict=True)) for values in BLOCK_CASES
    ]
    mistakes = [
        (
            "The system takes 1,024 bytes of shared memory for each block, beside the kernel's.",
            lambda **a: _blocks(**a, reserved=0),
        ),
        (
            "A block may have less shared memory than a multiprocessor has: past 101,376 it cannot start.",
            lambda **a: _blocks(**a, optin=1 << 30),
        ),
        (
            "Registers are given to a warp in units of 256: round a warp's share up before dividing.",
            lambda **a: _blocks(**a, register_unit=1),
        ),
        ("A multiprocessor holds at most 24 blocks, however small.", lambda **a: _blocks(**a, slots=1 << 20)),
        ("sm_120 holds 48 warps on a multiprocessor, not 64.", lambda **a: _blocks(**a, warps_limit=64)),
        (
            "Warps are a limit of their own: 48 on a multiprocessor.",
            lambda **a: _blocks(**a, warps_limit=1 << 20),
        ),
        ("Shared memory is given in units of 128 bytes: round up.", lambda **a: _blocks(**a, unit=1)),
        ("Registers bind, too: each thread has its own.", lambda registers, **a: _blocks(registers=1, **a)),
        (
            "Only shared memory was counted; registers, warps and block slots are limits as well.",
            lambda shared_bytes, **_: 102_400 // (shared_bytes + 1024) if shared_bytes <= SHARED_LIMIT else 0,
        ),
    ]

    def truth(shared_bytes, registers, threads):
        return occupancy(shared_bytes, registers, threads, "sm_120").blocks

    check_scalar_function(
        f,
        "f(shared_bytes, registers, threads) -> int",
        truth,
        cases,
        mistakes,
        whole=True,
        what="The number of resident blocks",
        otherwise="Four limits, each gives a whole number of blocks: shared memory, registers, warps, "
        "slots. The smallest binds.",
    )
    return Praise(
        "All four limits bind in one of the cases, and a block that is too large does not start at all."
    )


def _largest(block_h, limit, *, probabilities=True, step=2, at_least=16, strict=False):
    best, block_t = 0, at_least
    while True:
        need = ROW_BYTES * (block_h + block_t) + (2 * block_h * block_t if probabilities else 0)
        if need > limit or (strict and need == limit):
            return best
        best, block_t = block_t, block_t * step


@exercise(2, "a function", "What is the largest tile of tokens that fits beside the queries?")
def check_largest_block_t(f):
    """Check `f(block_h, limit) -> int`: the largest power of two >= 16 whose Q, K and P fit, or 0."""
    exact = ROW_BYTES * (32 + 32) + 2 * 32 * 32
    cases = [
        {"block_h": h, "limit": limit}
        for h, limit in (
            (64, SHARED_LIMIT),
            (32, SHARED_LIMIT),
            (16, SHARED_LIMIT),
            (128, SHARED_LIMIT),
            (64, SM90_LIMIT),
            (32, exact),
            (32, exact - 1),
        )
    ]

    def rounded_down(block_h, limit):
        free = (limit - ROW_BYTES * block_h) // (ROW_BYTES + 2 * block_h)
        return free // 16 * 16

    mistakes = [
        (
            "P, the probabilities between the two products, needs a place, too: block_h x block_t numbers.",
            lambda block_h, limit: _largest(block_h, limit, probabilities=False),
        ),
        ("Only powers of two are asked for: tl.arange knows no others.", rounded_down),
        (
            "A tile that fills the limit to the last byte fits.",
            lambda block_h, limit: _largest(block_h, limit, strict=True),
        ),
        (
            "Where not even 16 tokens fit the answer is 0.",
            lambda block_h, limit: _largest(block_h, limit) or 16,
        ),
        (
            "Smaller than 16 tokens is no tile for a tensor instruction: 0 in that case.",
            lambda block_h, limit: _largest(block_h, limit, at_least=1),
        ),
    ]
    check_scalar_function(
        f,
        "f(block_h, limit) -> int",
        _largest,
        cases,
        mistakes,
        whole=True,
        what="The tile",
        otherwise="Add Q, K and P in bytes of bfloat16 and double block_t while the sum stays within the "
        "limit.",
    )
    return Praise("Q takes the room: with half as many heads twice as many tokens fit.")


def _row(block_h, block_t, num_warps, shared_bytes, registers, spill_bytes=0, error=None) -> dict:
    if error:
        shared_bytes = registers = spill_bytes = None
    return {
        "block_h": block_h,
        "block_t": block_t,
        "num_warps": num_warps,
        "shared_bytes": shared_bytes,
        "registers": registers,
        "spill_bytes": spill_bytes,
        "error": error,
    }


GOOD = _row(32, 32, 8, 98_304, 200)
FEW_HEADS = _row(16, 32, 4, 60_000, 180)
TILE_LISTS = {
    "two legal tiles": [FEW_HEADS, GOOD],
    "one that needs too much shared memory": [_row(64, 64, 8, 131_072, 200), GOOD],
    "one that fits but spills": [_row(64, 16, 8, 98_304, 255, spill_bytes=8), GOOD, FEW_HEADS],
    "one that the compiler refused": [_row(64, 64, 4, 0, 0, error="out of resources"), FEW_HEADS],
    "one whose block needs more registers than there are": [_row(64, 16, 16, 90_000, 200), GOOD],
    "a tie that resident warps decide": [_row(32, 32, 8, 90_000, 128), _row(32, 16, 8, 49_000, 112)],
    "a tie that block_t decides": [_row(32, 16, 8, 80_000, 200), GOOD],
    "a tie that the number of warps leaves to occupancy": [_row(32, 32, 4, 98_304, 255), GOOD],
    "no legal tile": [_row(64, 64, 8, 131_072, 200), _row(64, 64, 4, 0, 0, error="out of resources")],
    "an empty list": [],
}


def _resident_warps(row: dict) -> int:
    return occupancy(row["shared_bytes"], row["registers"], 32 * row["num_warps"], "sm_120").warps


def _faults(row: dict) -> str | None:
    """Why a tile is not legal, or None."""
    if row["error"] is not None:
        return f"the compiler refused it ({row['error']})"
    if row["shared_bytes"] > SHARED_LIMIT:
        return (
            f"it needs {row['shared_bytes']:,} bytes of shared memory and a block may have {SHARED_LIMIT:,}"
        )
    if row["spill_bytes"]:
        return f"it spills {row['spill_bytes']} bytes a thread to memory"
    if row["registers"] > 255 or registers_per_block(row["registers"], 32 * row["num_warps"]) > 65_536:
        return "its threads together need more registers than a multiprocessor has"
    return None


def _rank(row: dict) -> tuple:
    return -(-64 // row["block_h"]), -_resident_warps(row), -row["block_t"], row["num_warps"]


def _why_worse(chosen: dict, best: dict) -> str:
    reads, reads_best = -(-64 // chosen["block_h"]), -(-64 // best["block_h"])
    if reads != reads_best:
        return f"it reads the rows {reads} times for 64 heads, where {reads_best} is possible"
    if _resident_warps(chosen) != _resident_warps(best):
        return "the reads are equal, and another tile has more warps resident on a multiprocessor"
    if chosen["block_t"] != best["block_t"]:
        return "reads and resident warps are equal, and another tile takes more tokens a step"
    return "all else is equal, and another tile needs fewer warps"


@exercise(2, "a policy", "Choose the best legal tile from what the compiler reported.")
def check_choose_tile(f):
    """Check `f(rows) -> dict | None`: the legal row with the fewest reads of the keys, or None."""
    need_function(f, "f(rows) -> dict | None")
    for name, rows in TILE_LISTS.items():
        case = f"{name}: " + "; ".join(
            describe({k: v for k, v in row.items() if v is not None}) for row in rows
        )
        for order in (rows, rows[::-1]):
            _check_choice(call(f, case, rows=[dict(row) for row in order]), order, case)
    return Praise(
        "Every illegal kind of tile is refused, and ties fall as they should, in any order of the rows."
    )


def _check_choice(chosen, rows: list[dict], case: str) -> None:
    legal = [row for row in rows if _faults(row) is None]
    best = min(legal, key=_rank, default=None)
    if chosen is None and best is None:
        return
    if chosen is None:
        raise Wrong(
            "None was returned, but there is a legal tile.",
            case=case,
            hint="Which condition refuses it? A limit itself is still allowed.",
        )
    if not isinstance(chosen, dict) or chosen not in rows:
        raise Wrong("One of the given rows is asked for.", case=case, got=brief(chosen))
    fault = _faults(chosen)
    name = describe({key: chosen[key] for key in ("block_h", "block_t", "num_warps")})
    if fault:
        raise Wrong(
            f"The chosen tile ({name}) is not legal: {fault}.",
            case=case,
            expected="None" if best is None else "a legal row",
        )
    if chosen != best:
        raise Wrong(
            f"The chosen tile ({name}) is legal but not the best: {_why_worse(chosen, best)}.",
            case=case,
            hint="The order of the criteria: reads of the keys, resident warps, block_t, then fewer warps.",
        )
