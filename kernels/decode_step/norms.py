"""RMS norms, computed in float32 and rounded to bfloat16."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x` over the root of its mean square, times `weight`; bfloat16."""
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).bfloat16()


def unit_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """The same without a weight, over the last dimension."""
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).bfloat16()


def split_latents(qkv: torch.Tensor, q_lora: int, q_weight, kv_weight, eps: float):
    """The two normed latents of `qkv` [B, q_lora + 512]: queries' [B, q_lora] and KV [B, 512]."""
    return rms_norm(qkv[:, :q_lora], q_weight, eps), rms_norm(qkv[:, q_lora:], kv_weight, eps)
