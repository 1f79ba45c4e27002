"""Chapter 1: redundant traffic, Amdahl's law, arithmetic intensity, instruction counts, a gather kernel."""

from __future__ import annotations

import math
import re

from kernels.lab.exercises.compare import check_scalar_function
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.gathering import BLOCK_T, WIDTH, check_scores
from kernels.lab.exercises.running import brief, call, need_function

HEAD_DIM, ENTRY_BYTES = 512, 584


@exercise(1, "a function", "How often does a grid ask for each selected entry?")
def check_redundancy(f):
    """Check `f(heads, heads_per_program) -> int`: how often each selected row is asked for."""
    cases = [
        {"heads": heads, "heads_per_program": group}
        for heads, group in ((64, 1), (64, 32), (64, 64), (20, 16), (8, 16))
    ]
    mistakes = [
        (
            "A last group that is not full is still a program, and it reads every row: round up.",
            lambda heads, heads_per_program: heads // heads_per_program,
        ),
        (
            "A part of a program does not exist: the last one reads whole rows, too.",
            lambda heads, heads_per_program: heads / heads_per_program,
        ),
        (
            "Heads that share a program share its loads: count programs, not heads.",
            lambda heads, heads_per_program: heads,
        ),
        (
            "That is how many heads share one read. How many programs are left?",
            lambda heads, heads_per_program: heads_per_program,
        ),
    ]
    check_scalar_function(
        f,
        "f(heads, heads_per_program) -> int",
        lambda heads, heads_per_program: -(-heads // heads_per_program),
        cases,
        mistakes,
        whole=True,
        what="The number of times a row is asked for",
        otherwise="Each program of a row's grid reads all of its entries once. How many programs are there?",
    )
    return Praise(
        "Every program reads every row once; a program that is not full reads as much as a full one."
    )


def _amdahl(share, factor):
    return 1 / (1 - share + share / factor)


@exercise(1, "a function", "By how much does the whole speed up when one part does?")
def check_amdahl(f):
    """Check `f(share, factor) -> float`: the speed-up of the whole."""
    cases = [
        {"share": share, "factor": factor}
        for share, factor in ((0.5, 2.0), (0.571, 6.3), (0.8, math.inf), (0.0, 10.0), (1.0, 4.0), (0.25, 0.5))
    ]
    mistakes = [
        (
            "That is the time that is left, as a share; a speed-up is its inverse.",
            lambda share, factor: 1 - share + share / factor,
        ),
        (
            "The shares are swapped: `share` is the part that gets faster.",
            lambda share, factor: 1 / (share + (1 - share) / factor),
        ),
        (
            "Speed-ups cannot be averaged with weights; times can be added.",
            lambda share, factor: 1 - share + share * factor,
        ),
        (
            "The rest of the time does not vanish: it stays and adds up with the shortened part.",
            lambda share, factor: factor / share,
        ),
        ("Only the part gets that much faster, not the whole.", lambda share, factor: factor),
        ("1 / (1 - share) is the limit for an infinitely fast part.", lambda share, factor: 1 / (1 - share)),
    ]
    check_scalar_function(
        f,
        "f(share, factor) -> float",
        _amdahl,
        cases,
        mistakes,
        whole=False,
        what="The whole's speed-up",
        otherwise="Take the old time as 1. How long does the part take afterwards, how long the rest?",
    )
    return Praise(
        "It also holds at the ends: an infinitely fast part, a part of no time, and a part that got slower."
    )


def _intensity(batch, heads, candidates, heads_per_program, flops=4 * HEAD_DIM, entry=ENTRY_BYTES):
    return flops * batch * heads * candidates / (entry * batch * candidates * -(-heads // heads_per_program))


@exercise(1, "a function", "How many operations does a launch do for a byte that it requests?")
def check_intensity(f):
    """Check `f(batch, heads, candidates, heads_per_program) -> float`: FLOPs a requested KV byte."""
    names = ("batch", "heads", "candidates", "heads_per_program")
    cases = [
        dict(zip(names, values, strict=True))
        for values in ((1, 64, 512, 1), (16, 64, 512, 32), (4, 20, 640, 16), (1, 64, 512, 64))
    ]
    mistakes = [
        (
            "These are the bytes that are needed, read once for all heads. Count those that are requested: "
            "each program asks for every row again.",
            lambda heads, **_: 4 * HEAD_DIM * heads / ENTRY_BYTES,
        ),
        (
            "A last group that is not full still reads every row: round up.",
            lambda heads, heads_per_program, **_: (
                4 * HEAD_DIM * heads / (ENTRY_BYTES * (heads // heads_per_program))
            ),
        ),
        (
            "An entry is multiplied twice for each head: once for the score and once for the output.",
            lambda **a: _intensity(**a, flops=2 * HEAD_DIM),
        ),
        ("A multiply-add is two operations.", lambda **a: _intensity(**a, flops=HEAD_DIM)),
        ("Each token also has 8 scale bytes at its page's end.", lambda **a: _intensity(**a, entry=576)),
        (
            "The cache holds e4m3 for 448 of the 512 columns, not bfloat16.",
            lambda **a: _intensity(**a, entry=1024),
        ),
        (
            "That is for one head; the heads of a program multiply the same bytes.",
            lambda **_: 4 * HEAD_DIM / ENTRY_BYTES,
        ),
        ("Bytes and operations are swapped: operations a byte.", lambda **a: 1 / _intensity(**a)),
    ]
    check_scalar_function(
        f,
        "f(batch, heads, candidates, heads_per_program) -> float",
        _intensity,
        cases,
        mistakes,
        whole=False,
        what="The intensity",
        otherwise="Write operations and requested bytes of one candidate of one row: batch and candidates "
        "cancel.",
    )
    return Praise("Batch and candidates cancel: only sharing among heads raises the intensity.")


_CODE = "        /* 0x000000040a0c723c */"
LISTINGS = {
    "three plain lines": (
        f"        /*0a00*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;{_CODE}\n"
        f"        /*0a10*/                   HMMA.16816.F32.BF16 R4, R8, R14, R4 ;{_CODE}\n"
        f"        /*0a20*/                   FFMA R9, R2, R3, R9 ;{_CODE}\n",
        {"tensor": 2, "fma": 1},
    ),
    "lines with guards (@P0, @!UP2)": (
        f"        /*0b00*/              @P0  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;{_CODE}\n"
        f"        /*0b10*/             @!P1  FFMA.FTZ R9, R2, R3, R9 ;{_CODE}\n"
        f"        /*0b20*/            @!UP2  FFMA R9, R2, R3, R9 ;{_CODE}\n"
        f"        /*0b30*/                   FFMA R9, R2, R3, R9 ;{_CODE}\n",
        {"tensor": 1, "fma": 3},
    ),
    "with FFMA2 and HFMA2, other instructions": (
        "        /*0c00*/                   FFMA2 R8, R2.F32x2.HI_LO, R4.F32x2.HI_LO, R8.F32x2.HI_LO "
        f";{_CODE}\n"
        f"        /*0c10*/                   HFMA2.BF16_V2 R5, R2, R3, R5 ;{_CODE}\n"
        f"        /*0c20*/                   FFMA R9, R2, R3, R9 ;{_CODE}\n",
        {"tensor": 0, "fma": 1},
    ),
    "with a label and a comment that contain the words": (
        ".L_x_HMMA_loop:\n"
        "        // HMMA and FFMA come next\n"
        f"        /*0d00*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;{_CODE}\n"
        f"        /*0d10*/                   BRA `(.L_x_HMMA_loop) ;{_CODE}\n",
        {"tensor": 1, "fma": 0},
    ),
    "an empty listing": ("", {"tensor": 0, "fma": 0}),
}


_SPELLING = "FFMA2 is another opcode (two products at once), and HFMA2 works on halves: match whole opcodes."
_ELSEWHERE = (
    "The opcode is the first word after the address and the guard; labels, branches to them and comments "
    "contain the letters without being that instruction."
)
_BY_CASE = {"FFMA2": _SPELLING, "label": _ELSEWHERE}


def _slips(text: str) -> list[tuple[str, dict[str, int]]]:
    opcodes = re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\d\s+)?([A-Z0-9]+)", text)
    plain = re.findall(r"/\*[0-9a-f]{4}\*/\s+([A-Z0-9]+)", text)
    return [
        (
            "A guarded instruction is one, too: between the address and the opcode may stand @P0, @!P1 or "
            "@!UP2.",
            {
                "tensor": plain.count("HMMA"),
                "fma": plain.count("FFMA"),
            },
        ),
        (_SPELLING, {"tensor": opcodes.count("HMMA"), "fma": sum(op.startswith("FFMA") for op in opcodes)}),
        (_ELSEWHERE, {"tensor": text.count("HMMA"), "fma": text.count("FFMA")}),
    ]


@exercise(1, "a function", "Count tensor and multiply-add instructions in a disassembly.")
def check_count_instructions(f):
    """Check `f(sass) -> {"tensor": HMMA instructions, "fma": FFMA instructions}`."""
    need_function(f, 'f(sass) -> {"tensor": int, "fma": int}')
    for case, (text, expected) in LISTINGS.items():
        got = call(f, case, sass=text)
        if not isinstance(got, dict) or not {"tensor", "fma"} <= set(got):
            raise Wrong("A dict with the keys 'tensor' and 'fma' is asked for.", case=case, got=brief(got))
        if {key: got[key] for key in expected} != expected:
            counts = {key: got[key] for key in expected}
            hint = next((hint for hint, slip in _slips(text) if slip == counts), None)
            hint = hint or next((slip for word, slip in _BY_CASE.items() if word in case), None)
            raise Wrong(
                "The counts are not right yet.",
                case=f"{case}:\n{text.rstrip()}",
                expected=str(expected),
                got=str(counts),
                hint=hint or "Look at one line at a time: address, guard if any, opcode, operands.",
            )
    return Praise("Guards, neighbours in spelling, labels and comments are all told apart.")


@exercise(1, "a kernel", "Write a kernel that gathers rows by slot and scores them against one query.")
def check_gather_scores(kernel):
    """Check `(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr)`.

    Grid (cdiv(count, 16),). q float32 [64], rows float32 [R, 64], slots int32 [count], scores float32
    [count]: scores[i] = q . rows[slots[i]], and -inf where slots[i] < 0. Nothing past `count` is
    written.
    """
    return check_scores(kernel, 1, {"WIDTH": WIDTH, "BLOCK_T": BLOCK_T})
