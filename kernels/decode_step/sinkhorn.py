"""Sinkhorn's normalisation of the hyper-connections' 4 x 4 mixing matrices: rows and columns in turns.
 In PyTorch every half iteration is three launches on 16 numbers a request, and there are 39 of them twice a
layer. A compiler cannot merge them, because each sum needs the others' results; one small kernel that keeps
the matrix in registers can.
"""

import torch
import triton
import triton.language as tl


def sinkhorn(mixing: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
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


def sinkhorn_fused(mixing: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """`sinkhorn` in one launch."""
    mixing = mixing.contiguous()
    out = torch.empty_like(mixing)
    sinkhorn_kernel[(mixing.shape[0],)](
        mixing, out, eps, ITERATIONS=iterations, N=mixing.shape[1], num_warps=1
    )
    return out
