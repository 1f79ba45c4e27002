"""Hyper-connections: four residual streams, read by a learned mix before a sublayer and written by one
after it.

The weights of both mixes are computed from the streams themselves: one projection of all 16,384 numbers to
24, four for reading, four for writing, sixteen for mixing the streams among themselves (made doubly
stochastic by Sinkhorn's iterations).
"""

import torch

from kernels.decode_step.norms import rms_norm
from kernels.decode_step.ranges import forced_linear
from kernels.decode_step.sinkhorn import sinkhorn


def gates(flat, mixes, scale, base, streams: int, eps: float):
    """Turn the projection into weights.

    Args:
        flat: bfloat16 [B, streams * hidden], whose root mean square divides the projection.
        mixes: float32 [B, (2 + streams) * streams].

    Returns:
        float32 pre [B, n], post [B, n], and mixing [B, n, n] before Sinkhorn.
    """
    root = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    mixes = mixes * root
    pre = torch.sigmoid(mixes[:, :streams] * scale[0] + base[:streams]) + eps
    post = 2 * torch.sigmoid(mixes[:, streams : 2 * streams] * scale[1] + base[streams : 2 * streams])
    mixing = (mixes[:, 2 * streams :] * scale[2] + base[2 * streams :]).unflatten(-1, (streams, streams))
    return pre, post, torch.softmax(mixing, -1) + eps


def read_streams(streams, pre, norm, eps: float) -> torch.Tensor:
    """The weighted sum of the streams [B, n, hidden], normed: the sublayer's input, bfloat16 [B, hidden]."""
    mixed = (streams.float() * pre[..., None]).sum(1).bfloat16()
    return rms_norm(mixed, norm, eps)


def write_streams(streams, y, post, mixing) -> torch.Tensor:
    """`X'_j = post_j * y + sum_i mixing[i, j] X_i`, bfloat16 [B, n, hidden]."""
    carried = (mixing[..., None] * streams.float()[:, :, None]).sum(1)
    return (post[..., None] * y.float()[:, None] + carried).bfloat16()


def before(run, streams, hyper, norm):
    """Read the streams for a sublayer -> (its input bfloat16 [B, hidden], post, mixing)."""
    s, glue = run.shapes, run.glue
    flat = streams.flatten(1)
    mixes = forced_linear(flat, hyper.in_type(run.stage.gemm_dtype))
    pre, post, mixing = glue.gates(flat, mixes, hyper.scale, hyper.base, s.streams, s.eps)
    mixing = sinkhorn(mixing, s.sinkhorn_iterations, s.eps)
    return glue.read_streams(streams, pre, norm, s.eps), post, mixing


def after(run, streams, y, post, mixing):
    """Write a sublayer's result back into the streams."""
    return run.glue.write_streams(streams, y, post, mixing)


def head_mix(flat, mixes, scale, base, norm, streams: int, eps: float) -> torch.Tensor:
    """The head's read: one weight a stream, then the final norm."""
    root = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    pre = torch.sigmoid(mixes * root * scale[0] + base) + eps
    return read_streams(flat.unflatten(-1, (streams, -1)), pre, norm, eps)
