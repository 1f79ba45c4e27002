"""When is a loaded register read? The producers' loop as shipped, and as other versions have it.

A load does not make its warp wait; the first instruction that reads the loaded register does. One edit fetches a
tile as one piece. Another loads the rotary part as the first producers did: as 16-bit numbers, which the compiler
loads by the word and takes apart at once. The last lets it take the other words apart as early as it likes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from kernels.lab.chapters.edited import ANYTHING, compile_versions
from kernels.lab.compile import sass
from kernels.sparse_mla.tiles import Tile

TILE = Tile(64, 64, 8, 2, True, 4)
ROTARY = (
    (
        "R2: gl.constexpr = LAYOUTS[1]",
        "R2: gl.constexpr = gl.SliceLayout(1, LAYOUTS[2])",
    ),
    (
        "address = rows.load(gl.SliceLayout(1, R2))\n"
        "    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.int32))\n"
        "    word = 112 + gl.arange(0, 32,",
        "address = rows.load(gl.SliceLayout(1, R2))\n"
        "    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.bfloat16))\n"
        "    word = 224 + gl.arange(0, 64,",
    ),
    (
        f"low, high = gl.inline_asm_elementwise({ANYTHING}gl.SliceLayout(1, K3), assert_trivial=True{ANYTHING})\n",
        "r = rope\n",
    ),
)
ONE_PIECE = (("PARTS: gl.constexpr = 2 if BLOCK_T >= 64 else 1", "PARTS: gl.constexpr = 1"),)
NOT_HELD = (
    ("nope, rope, scale_bytes, scale_bytes.to(gl.int32)", "nope, rope, scale_bytes, scale_bytes.to(gl.int32) * 0"),
    ("nope_1, rope_1, scale_bytes, scale_bytes.to(gl.int32)",
     "nope_1, rope_1, scale_bytes, scale_bytes.to(gl.int32) * 0"),
)  # fmt: skip
VERSIONS = {
    "as shipped": {},
    "a tile as one piece": {"specialised": ONE_PIECE},
    "rotary part as bfloat16": {"_rows": ROTARY},
    "words not held back": {"specialised": NOT_HELD},
}
# Instructions without a destination: every operand is read
_READS_ALL = ("BAR", "BRA", "R2UR", "ST", "STG", "STL", "STS", "STSM", "SYNCS")
_WIDTHS = {"64": 2, "128": 4}


def _registers(operand: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", operand)}


def loaded(instruction: sass.Instruction) -> set[int]:
    """The registers that a load from global memory fills."""
    first = min(_registers(instruction.operands.partition(",")[0]))
    width = next((count for bits, count in _WIDTHS.items() if f".{bits}" in instruction.mnemonic), 1)
    return set(range(first, first + width))


def reads(instruction: sass.Instruction) -> set[int]:
    """The registers that an instruction names as sources. Of a wide source the first register is named."""
    operands = instruction.operands.split(",")
    if instruction.opcode not in _READS_ALL:
        # A destination in brackets is an address, which is read
        operands = [one for place, one in enumerate(operands) if place or "[" in one]
    return set().union(*map(_registers, operands)) if operands else set()


def first_uses(body: Sequence[sass.Instruction]) -> pd.DataFrame:
    """Each load from global memory of a loop's body, in the order of issue, and when its value is first read.

    Returns:
        place (in the body), load (mnemonic), between (instructions up to the first that reads one of its registers,
        through the end of the body and on from its start; missing where none does), same_pass (whether that is
        before the end).
    """
    rows = []
    for place, instruction in enumerate(body):
        if instruction.opcode != "LDG":
            continue
        wanted = loaded(instruction)
        later = [*body[place + 1 :], *body[: place + 1]]
        between = next((n for n, one in enumerate(later) if reads(one) & wanted), None)
        same = between is not None and place + 1 + between < len(body)
        rows.append((place, instruction.mnemonic, between, same))
    return pd.DataFrame(rows, columns=["place", "load", "between", "same_pass"])


def producers_body(text: str) -> list[sass.Instruction]:
    """The instructions of the producers' loop of a disassembly, from its head on.

    Raises:
        ValueError: no loop without products loads from global memory.
    """
    instructions, labels = sass.parse(text)
    loops = sass.loops(instructions, labels)
    fetching = [loop for loop in loops if not loop.counts["tensor"] and loop.counts["global_load"]]
    if not fetching:
        raise ValueError("text: no loop without products loads from global memory")
    found = max(fetching, key=lambda loop: (loop.counts["global_load"], loop.depth))
    return sass.body(instructions, labels, found)


def compare(tile: Tile = TILE) -> pd.DataFrame:
    """Every version compiled for sm_90.

    Returns:
        version, loads (of 16 bytes, in a pass of the producers' loop), before_store (how many of them are issued
        before the pass's last store of 16 bytes into shared memory), same_pass (how many are first read in the pass
        that asked), shortest and median (instructions in between).
    """
    rows = []
    for name, built in zip(VERSIONS, compile_versions(list(VERSIONS.values()), tile), strict=True):
        body = producers_body(built.sass)
        last_store = max(place for place, one in enumerate(body) if one.mnemonic == "STS.128")
        uses = first_uses(body)
        wide = uses[uses["load"].str.contains(r"\.128")]
        rows.append(
            {
                "version": name,
                "loads": len(wide),
                "before_store": int((wide["place"] < last_store).sum()),
                "same_pass": int(wide["same_pass"].sum()),
                "shortest": int(wide["between"].min()),
                "median": float(wide["between"].median()),
            }
        )
    return pd.DataFrame(rows)
