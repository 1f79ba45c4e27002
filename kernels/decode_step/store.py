"""Quantise-and-store: an entry is turned, cut to FP8 and written to its slot of a cache.

The quantiser's arithmetic is the cache layout's (`sparse_mla.layout.quantize_kv`), said in float32 and
integers so that a compiler can fuse it; a test holds the bytes equal.
"""

import torch

from kernels.decode_step.rope import rotate
from kernels.decode_step.shapes import NOPE_DIM
from kernels.indexer.layout import quantize_index_keys, store_quantized
from kernels.sparse_mla.layout import E4M3_MAX, GROUP, MIN_AMAX, NUM_GROUPS, scale_rows, token_rows


def quantize_entry(kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 [B, 512] -> payload uint8 [B, 576] and scales uint8 [B, 7], as the page layout wants them."""
    groups = kv[:, :NOPE_DIM].float().unflatten(-1, (NUM_GROUPS, GROUP))
    quotient = groups.abs().amax(-1).clamp_min(MIN_AMAX) / E4M3_MAX
    bits = quotient.view(torch.int32)
    # The exponent, one up unless the quotient is a power of two: the smallest power that covers it
    biased = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    inverse = ((254 - biased) << 23).view(torch.float32)
    nope = (groups * inverse[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    rope = kv[:, NOPE_DIM:].contiguous().view(torch.uint8)
    return torch.cat([nope.flatten(1), rope], 1), biased.to(torch.uint8)


def turn_and_quantize(kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    """Rotate the last 64 columns of bfloat16 [B, 512] and quantise the row."""
    return quantize_entry(rotate(kv, cos, sin))


def store_entry(cache: torch.Tensor, slots, payload: torch.Tensor, scales: torch.Tensor) -> None:
    """Write rows to `slots`, a pair (page, offset) of int64 [B] each; the unused scale byte is left alone."""
    page, offset = slots
    token_rows(cache)[page, offset] = payload
    scale_rows(cache)[..., :NUM_GROUPS][page, offset] = scales


def store_kv_entry(run, cache, slots, kv, cos, sin) -> None:
    """Turn, quantise and store bfloat16 [B, 512]."""
    payload, scales = run.glue.turn_and_quantize(kv, cos, sin)
    store_entry(cache, slots, payload, scales)


def store_index_entry(run, cache, slots, keys) -> None:
    """Quantise and store the indexer's keys, bfloat16 [B, 128]; `slots` as flat int64 [B]."""
    payload, scales = run.glue.quantize_index_keys(keys)
    store_quantized(cache, slots, payload, scales)


__all__ = [
    "quantize_entry",
    "quantize_index_keys",
    "store_entry",
    "store_index_entry",
    "store_kv_entry",
    "turn_and_quantize",
]
