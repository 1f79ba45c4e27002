"""When is a loaded register used? The producers' loop with rotary words kept whole, and with them taken apart.

A load does not make its warp wait; the first instruction that reads the loaded register does. The edit brings
back how the first producers loaded the rotary part: as 16-bit numbers, which the compiler loads by the word and
unpacks at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from kernels.lab.chapters.edited import ANYTHING, compile_versions
from kernels.lab.compile import sass
from kernels.sparse_mla.tiles import Tile

TILE = Tile(64, 64, 8, 2, True, 4)
EDITS = (
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
VERSIONS = {"as words, taken apart when stored": (), "as bfloat16": EDITS}
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
        load (mnemonic), between (instructions up to the first that reads one of its registers, through the end of
        the body and on from its start; missing where none does), same_pass (whether that is before the end).
    """
    rows = []
    for place, instruction in enumerate(body):
        if instruction.opcode != "LDG":
            continue
        wanted = loaded(instruction)
        later = [*body[place + 1 :], *body[: place + 1]]
        between = next((n for n, one in enumerate(later) if reads(one) & wanted), None)
        same = between is not None and place + 1 + between < len(body)
        rows.append((instruction.mnemonic, between, same))
    return pd.DataFrame(rows, columns=["load", "between", "same_pass"])


def producers_body(text: str) -> list[sass.Instruction]:
    """The instructions of the producers' loop of a disassembly, from its head on.

    Raises:
        ValueError: no loop without products loads from global memory.
    """
    instructions, labels = sass.parse(text)
    found = producers_loop(sass.loops(instructions, labels))
    if found is None:
        raise ValueError("text: no loop without products loads from global memory")
    return sass.body(instructions, labels, found)


def producers_loop(loops: Sequence[sass.Loop]) -> sass.Loop | None:
    """The loop that loads from global memory most often and multiplies nothing; the inner one of several."""
    found = [loop for loop in loops if not loop.counts["tensor"] and loop.counts["global_load"]]
    return max(found, key=lambda loop: (loop.counts["global_load"], loop.depth), default=None)


def compare(tile: Tile = TILE) -> pd.DataFrame:
    """Both versions compiled for sm_90.

    Returns:
        rotary (how the rotary part is loaded), loads (of 16 bytes, in a pass of the producers' loop), same_pass (how
        many of them are first read in the pass that asked), shortest and median (instructions in between).
    """
    rows = []
    for name, built in zip(VERSIONS, compile_versions(list(VERSIONS.values()), tile), strict=True):
        uses = first_uses(producers_body(built.sass))
        wide = uses[uses["load"].str.contains(r"\.128")]
        rows.append(
            {
                "rotary": name,
                "loads": len(wide),
                "same_pass": int(wide["same_pass"].sum()),
                "shortest": int(wide["between"].min()),
                "median": float(wide["between"].median()),
            }
        )
    return pd.DataFrame(rows)
