"""Sparse MLA decode: one operator and the ladder of kernels that leads to it.

`layout` knows the cache's bytes and `reference` defines the result. The rungs are `serial`, `simt`, `mma` and
`split_k` with `combine`; `plan` chooses among them; `api` is the front door and `flash_mla` wears FlashMLA's.
"""

from kernels import triton_mode

triton_mode.ensure()

from kernels.sparse_mla.api import sparse_mla_decode, workspace_bytes  # noqa: E402
from kernels.sparse_mla.layout import allocate_cache, load_kv, pack_cache, quantize_kv, store_kv  # noqa: E402
from kernels.sparse_mla.plan import IMPLS, Plan, campaign_num_splits  # noqa: E402
from kernels.sparse_mla.reference import sparse_mla_decode_reference  # noqa: E402
from kernels.sparse_mla.tiles import Tile  # noqa: E402
from kernels.sparse_mla.validate import ArgumentError  # noqa: E402

__all__ = [
    "IMPLS",
    "ArgumentError",
    "Plan",
    "Tile",
    "allocate_cache",
    "campaign_num_splits",
    "load_kv",
    "pack_cache",
    "quantize_kv",
    "sparse_mla_decode",
    "sparse_mla_decode_reference",
    "store_kv",
    "workspace_bytes",
]
