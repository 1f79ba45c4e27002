"""The lightning indexer of a ratio-4 layer: which compressed entries does attention read?"""

import torch

from kernels.decode_step.compressor import compress
from kernels.decode_step.ranges import forced_linear, linear, mark
from kernels.decode_step.shapes import INDEX_DIM, INDEX_HEADS
from kernels.decode_step.store import store_index_entry
from kernels.indexer import indexer_logits, indexer_topk
from kernels.indexer.layout import AMAX_FLOOR, FP8_MAX


def hadamard(size: int, device="cpu") -> torch.Tensor:
    """The orthogonal Hadamard matrix, bfloat16 [size, size]; it spreads outliers over all columns."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return (matrix * size**-0.5).bfloat16().to(device)


def quantize_index_query(q, head_weights):
    """e4m3 queries [B, 64, 128], one scale a head, and float32 weights [B, 64] with every scale folded in."""
    q = q.float()
    scale = q.abs().amax(-1).clamp_min(AMAX_FLOOR) / FP8_MAX
    quantised = (q / scale[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return quantised, head_weights * scale * (INDEX_DIM**-0.5 * INDEX_HEADS**-0.5)


def select_entries(run, caches, weights, x, q_lora) -> torch.Tensor:
    """Store this step's index key, score every entry, take the best -> slots int32 [B, index_topk], -1 for
    none.
    """
    glue, stage, tables, state = run.glue, run.stage, run.tables, run.state
    keys = compress(run, x, weights.compressor, caches.index_ring, 4)
    keys = linear(glue.rotate(keys, *tables.angles4), state.hadamard)
    store_index_entry(run, caches.index, tables.index_slot, keys)

    q = linear(q_lora, weights.query).unflatten(-1, (INDEX_HEADS, INDEX_DIM))
    q = linear(glue.rotate(q, *tables.angles), state.hadamard)
    head_weights = forced_linear(
        x, weights.heads if stage.gemm_dtype == torch.float32 else weights.heads_bf16
    )
    q, head_weights = glue.quantize_index_query(q, head_weights)

    in_pytorch = stage.logits == "uncapped"
    with mark("indexer", launches=None if in_pytorch else 1):
        logits = indexer_logits(
            q,
            caches.index,
            head_weights,
            tables.c4_count,
            state.block_table,
            impl=stage.logits,
            out=state.index_logits,
            fill_tail=in_pytorch,
            compute_dtype=stage.gemm_dtype if in_pytorch else torch.bfloat16,
        )
    # Slices of a row, then their merge
    with mark("topk", launches=None if stage.topk == "torch" else 2):
        return indexer_topk(
            logits, tables.c4_count, state.block_table, run.shapes.index_topk, impl=stage.topk
        )
