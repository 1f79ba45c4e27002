"""Sinkhorn's normalisation of the hyper-connections' 4 x 4 mixing matrices: rows and columns in turns.

In PyTorch it would be some 117 launches on 16 numbers a request, twice a layer: each sum needs the others'
results, so that no compiler of elementwise chains merges them. The reference ships one kernel,
and so does every stage here: the glue that a profile shows is none that nobody runs that way.
"""

import torch
import triton
import triton.language as tl

from kernels.decode_step.ranges import mark


def sinkhorn_reference(mixing: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Normalise float32 `[B, n, n]`: columns once, then rows and columns `iterations - 1` times."""
    mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(2, keepdim=True) + eps)
        mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
    return mixing


@triton.jit
def sinkhorn_kernel(mixing_ptr, out_ptr, eps, ITERATIONS: tl.constexpr, N: tl.constexpr):
    """Grid: (B,). One matrix a program, all iterations in registers."""
    base = tl.program_id(0) * N * N
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    # [N, N]
    mixing = tl.load(mixing_ptr + base + place)
    mixing = mixing / (tl.sum(mixing, 0)[None, :] + eps)
    for _ in range(ITERATIONS - 1):
        mixing = mixing / (tl.sum(mixing, 1)[:, None] + eps)
        mixing = mixing / (tl.sum(mixing, 0)[None, :] + eps)
    tl.store(out_ptr + base + place, mixing)


def sinkhorn(mixing: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """`sinkhorn_reference` in one launch."""
    with mark("glue", launches=1):
        mixing = mixing.contiguous()
        out = torch.empty_like(mixing)
        sinkhorn_kernel[(mixing.shape[0],)](
            mixing, out, eps, ITERATIONS=iterations, N=mixing.shape[1], num_warps=1
        )
        return out
