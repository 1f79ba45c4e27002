"""Small kernels with known contents, for the tests of the compile laboratory."""

import os

import torch
import triton
import triton.language as tl

from kernels.spec import specialise


@triton.jit
def dot_loop(a, b, c, length, BLOCK: tl.constexpr):
    """c = a @ b, with a tl.dot in its only loop."""
    row = tl.arange(0, BLOCK)
    accumulator = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        left = tl.load(a + row[:, None] * length + start + row[None, :])
        right = tl.load(b + (start + row)[:, None] * BLOCK + row[None, :])
        accumulator += tl.dot(left, right)
    tl.store(c + row[:, None] * BLOCK + row[None, :], accumulator)


@triton.jit
def simt_loop(a, b, c, length, BLOCK: tl.constexpr):
    """c[i] = sum over j of a[j] * b[j, i], multiplied and added without a tl.dot."""
    column = tl.arange(0, BLOCK)
    accumulator = tl.zeros([BLOCK], tl.float32)
    for row in range(0, length):
        accumulator += tl.load(a + row) * tl.load(b + row * BLOCK + column)
    tl.store(c + column, accumulator)


@triton.jit
def too_wide(a, b, c, length, BLOCK: tl.constexpr):
    """Never compiles: a range must have a power of two of elements."""
    tl.store(c + tl.arange(0, 3 * BLOCK), 0.0)


def signature(impl, tile, *, crash=False):
    if crash:
        os._exit(7)
    fn = {"dot": dot_loop, "simt": simt_loop, "broken": too_wide}[impl]
    dtype = torch.bfloat16 if impl == "dot" else torch.float32
    values = {
        "a": torch.empty(64, dtype=dtype, device="meta"),
        "b": torch.empty(64, dtype=dtype, device="meta"),
        "c": torch.empty(64, device="meta"),
        "length": 1024,
        "BLOCK": tile.block,
    }
    return specialise(impl, fn, values, num_warps=tile.num_warps, num_stages=tile.num_stages)
