"""The FP8 variants' arithmetic in PyTorch: the same roundings in the same places, everything else in float64.

It separates the two questions about such a kernel. Does it compute what it says? It must agree with this to the
class of bfloat16. What does FP8 cost? That is the distance of this from the float64 reference.
"""

from __future__ import annotations

import torch

from kernels.sparse_mla.layout import (
    E4M3_MAX,
    GROUP,
    HEAD_DIM,
    NOPE_DIM,
    NUM_GROUPS,
    load_kv,
    scale_rows,
)

BLOCK = 32


def round_blocks(x: torch.Tensor) -> torch.Tensor:
    """float64 `[..., N]` rounded to e4m3, with one power of two for each 32 numbers of the last dimension."""
    blocks = x.double().unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True)
    # Not `scale_exponents`: the cache's quantiser has a floor, this one has none
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)
    exponent = torch.where(amax > 0, exponent - (mantissa == 0.5).int(), -126)
    scaled = torch.ldexp(blocks, -exponent).clamp(-E4M3_MAX, E4M3_MAX)
    return torch.ldexp(scaled.float().to(torch.float8_e4m3fn).double(), exponent).flatten(-2)


def decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None = None,
    *,
    softmax_scale: float = HEAD_DIM**-0.5,
    block_t: int = 32,
    fp8_values: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE, float64, of `scaled_scores`, or of `scaled_both` with `fp8_values`; one split.

    Shapes as in `sparse_mla_decode`. A tile is `block_t` places of a row's indices.
    """
    batch, heads, _ = q.shape
    out = torch.zeros(batch, heads, HEAD_DIM, dtype=torch.float64, device=q.device)
    lse = torch.full((batch, heads), float("inf"), dtype=torch.float64, device=q.device)
    query = torch.cat([round_blocks(q[..., :NOPE_DIM]), q[..., NOPE_DIM:].double()], -1)
    for b in range(batch):
        length = indices.shape[1] if topk_length is None else int(topk_length[b])
        most = torch.full((heads,), -float("inf"), dtype=torch.float64, device=q.device)
        total = torch.zeros(heads, dtype=torch.float64, device=q.device)
        for start in range(0, length, block_t):
            slots = indices[b, start : min(start + block_t, length)]
            live = slots >= 0
            if not bool(live.any()):
                continue
            kv = torch.zeros(block_t, HEAD_DIM, dtype=torch.float64, device=q.device)
            place = live.nonzero()[:, 0]
            kv[place] = load_kv(kv_cache, slots[live])
            scores = torch.full((heads, block_t), -float("inf"), dtype=torch.float64, device=q.device)
            scores[:, place] = query[b] @ kv[place].T * softmax_scale
            now = torch.maximum(most, scores.amax(1))
            weights = torch.exp(scores - now[:, None])
            rescale = torch.exp(most - now)
            most, total = now, total * rescale + weights.sum(1)
            out[b] *= rescale[:, None]
            if fp8_values:
                slot = slots[live].long()
                byte = scale_rows(kv_cache)[slot // kv_cache.shape[1], slot % kv_cache.shape[1]]
                for group in range(NUM_GROUPS):
                    factor = torch.zeros(block_t, dtype=torch.float64, device=q.device)
                    factor[place] = torch.exp2(byte[:, group].double() - 127)
                    columns = slice(group * GROUP, (group + 1) * GROUP)
                    unit = kv[:, columns] / factor.clamp_min(2.0**-127)[:, None]
                    out[b][:, columns] += round_blocks(weights * factor) @ unit
                out[b][:, NOPE_DIM:] += weights @ kv[:, NOPE_DIM:]
            else:
                out[b] += weights @ kv
        if bool((total > 0).all()):
            out[b] /= total[:, None]
            lse[b] = most + total.log()
    return out, lse
