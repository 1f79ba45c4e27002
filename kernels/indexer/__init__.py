"""The lightning indexer's decode step: logits over the paged FP8 index cache, then top-k, each as a ladder.

Logits: `uncapped` (the whole block table), `capped` (a bucket of it), `paged` (follows the lengths on the
device). Top-k: `torch` (the whole row), `radix` (follows the lengths on the device).
"""

from kernels import triton_mode

triton_mode.ensure()

from .api import LOGITS_IMPLS, TOPK_IMPLS, indexer_logits, indexer_topk, topk_workspace  # noqa: E402
from .layout import (  # noqa: E402
    INDEX_DIM,
    INDEX_HEADS,
    PAGE_BYTES,
    PAGE_ENTRIES,
    allocate_index_cache,
    load_index_keys,
    quantize_index_keys,
    store_index_keys,
)
from .plan import context_cap  # noqa: E402
from .reference import indexer_logits_reference, topk_reference  # noqa: E402

__all__ = [
    "INDEX_DIM",
    "INDEX_HEADS",
    "LOGITS_IMPLS",
    "PAGE_BYTES",
    "PAGE_ENTRIES",
    "TOPK_IMPLS",
    "allocate_index_cache",
    "context_cap",
    "indexer_logits",
    "indexer_logits_reference",
    "indexer_topk",
    "load_index_keys",
    "quantize_index_keys",
    "store_index_keys",
    "topk_reference",
    "topk_workspace",
]
