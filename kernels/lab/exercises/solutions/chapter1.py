"""Reference solutions of chapter 1."""

import re

import triton
import triton.language as tl


def redundancy(heads, heads_per_program):
    return -(-heads // heads_per_program)


def amdahl(share, factor):
    return 1 / ((1 - share) + share / factor)


def intensity(batch, heads, candidates, heads_per_program):
    operations = 2 * 2 * 512 * batch * heads * candidates
    programs = batch * -(-heads // heads_per_program)
    return operations / (584 * candidates * programs)


def count_instructions(sass):
    # An address, perhaps a guard, then the opcode up to its first dot
    opcode = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)\b", re.MULTILINE)
    opcodes = opcode.findall(sass)
    return {"tensor": opcodes.count("HMMA"), "fma": opcodes.count("FFMA")}


@triton.jit
def gather_scores(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)  # [BLOCK_T]
    valid = slot >= 0
    # [BLOCK_T, WIDTH]; 64-bit addresses, because a cache can be larger than 2**31 elements
    address = tl.where(valid, slot, 0).to(tl.int64)[:, None] * WIDTH + column[None, :]
    rows = tl.load(rows_ptr + address, mask=valid[:, None], other=0.0)
    q = tl.load(q_ptr + column)
    scores = tl.where(valid, tl.sum(rows * q[None, :], 1), -float("inf"))
    tl.store(scores_ptr + position, scores, mask=position < count)
