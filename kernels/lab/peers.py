"""The peers, on the very same inputs: FlashMLA (sgl-flash-mla) and DeepGEMM (sgl-deep-gemm).

Both are optional packages. `why_not` says why a peer cannot take a shape here; its row is then skipped with
that reason. Nothing falls back to another implementation.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

HEADS_OF_FLASH_MLA = (64, 128)
TOPK_STEP_OF_FLASH_MLA = 64


@lru_cache
def _module(name: str, package: str) -> tuple[Any, str | None]:
    try:
        return importlib.import_module(name), None
    except Exception as error:  # a wheel for another torch or GPU fails in many ways; each is a reason
        kind = (
            "is not installed"
            if isinstance(error, ModuleNotFoundError)
            else f"does not load ({type(error).__name__})"
        )
        return None, f"{package} {kind}"


def flash_mla_why_not(
    heads: int, topk: int, capability: tuple[int, int] | None, swa_tokens: int = 0
) -> str | None:
    """Why FlashMLA's SM90 kernel cannot run this shape here, or None when it can."""
    if capability is None:
        return "no CUDA device"
    if capability[0] != 9:
        return f"FlashMLA's kernel is for sm_90, this device is sm_{capability[0]}{capability[1]}"
    if heads not in HEADS_OF_FLASH_MLA:
        return f"FlashMLA takes 64 or 128 heads, not {heads}"
    if topk % TOPK_STEP_OF_FLASH_MLA or swa_tokens % TOPK_STEP_OF_FLASH_MLA:
        return "FlashMLA takes index widths that are multiples of 64"
    return _module("flash_mla", "sgl-flash-mla")[1]


class FlashMla:
    """FlashMLA's decode for one shape; the scheduler's metadata is made once, as an engine does a step."""

    def __init__(self, softmax_scale: float):
        self.module, reason = _module("flash_mla", "sgl-flash-mla")
        if self.module is None:
            raise RuntimeError(reason)
        self.metadata = self.module.get_mla_metadata()[0]
        self.softmax_scale = softmax_scale

    def decode(self, q, kv_cache, indices, attn_sink=None, extra_kv_cache=None, extra_indices=None):
        """Same arguments as `sparse_mla_decode` without lengths; (out bf16 [B, H, 512], lse fp32 [B, H])."""
        extra = (None, None) if extra_kv_cache is None else (extra_kv_cache, extra_indices[:, None])
        out, lse = self.module.flash_mla_with_kvcache(
            q[:, None],
            kv_cache,
            None,
            None,
            q.shape[-1],
            self.metadata,
            None,
            self.softmax_scale,
            False,
            True,
            indices[:, None],
            attn_sink,
            *extra,
            use_legacy=True,
        )
        return out[:, 0], lse[..., 0] if lse.shape[-1] == 1 else lse[:, 0]


def deep_gemm_why_not(capability: tuple[int, int] | None) -> str | None:
    """Why DeepGEMM's paged logits cannot run here, or None when they can."""
    if capability is None:
        return "no CUDA device"
    if capability[0] not in (9, 10):
        return f"DeepGEMM's kernel is for sm_90 and sm_100, this device is sm_{capability[0]}{capability[1]}"
    return _module("deep_gemm", "sgl-deep-gemm")[1]


class DeepGemm:
    """DeepGEMM's paged FP8 logits; its schedule is computed once a set of lengths, outside the timed call."""

    def __init__(self, seq_lens, sm_count: int):
        self.module, reason = _module("deep_gemm", "sgl-deep-gemm")
        if self.module is None:
            raise RuntimeError(reason)
        self.seq_lens = seq_lens.reshape(-1, 1)
        self.metadata = self.module.get_paged_mqa_logits_metadata(self.seq_lens, 64, sm_count)

    def logits(self, q, index_cache, weights, block_table, max_seq_len: int):
        """q fp8 [B, 64, 128], cache uint8 [pages, 64, 1, 132]; float32 [B, max_seq_len], its tail
        undefined.
        """
        return self.module.fp8_paged_mqa_logits(
            q[:, None], index_cache, weights, self.seq_lens, block_table, self.metadata, max_seq_len, False
        )
