"""Rotary positions on the last 64 columns, in interleaved pairs, and their inverse.

Sliding-window layers turn by theta 1e4; layers with compressed entries by theta 160,000 with YaRN's
interpolation. A rotation by the negative angle is the complex conjugate: that is how the attention's output
is turned back.
"""

import math

import torch

from kernels.decode_step.shapes import ROPE_DIM, Shapes


def frequencies(shapes: Shapes, compressed: bool, device="cpu") -> torch.Tensor:
    """Angle a position, float32 [32]."""
    exponent = torch.arange(0, ROPE_DIM, 2, dtype=torch.float64) / ROPE_DIM
    if not compressed:
        return (shapes.rope_theta**-exponent).float().to(device)
    base = shapes.compress_theta**-exponent

    def dimension(rotations: float) -> float:
        """The pair that turns `rotations` times over the original context."""
        turns = math.log(shapes.yarn_original / (rotations * 2 * math.pi))
        return ROPE_DIM * turns / (2 * math.log(shapes.compress_theta))

    fast, slow = shapes.yarn_beta
    low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), ROPE_DIM - 1)
    ramp = ((torch.arange(ROPE_DIM // 2) - low) / max(high - low, 1e-3)).clamp(0, 1).double()
    return (base / shapes.yarn_factor * ramp + base * (1 - ramp)).float().to(device)


def angles(positions: torch.Tensor, frequency: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [B, 32], of int `positions` [B]."""
    angle = positions[:, None].float() * frequency[None, :]
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the last 64 columns of `x` [B, D] or [B, H, D] by the rows' angles; dtype and shape stay."""
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    pairs = x[..., -ROPE_DIM:].float().unflatten(-1, (ROPE_DIM // 2, 2))
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(-2)
    return torch.cat([x[..., :-ROPE_DIM], turned.to(x.dtype)], -1)


def unrotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Undo `rotate`."""
    return rotate(x, cos, -sin)
