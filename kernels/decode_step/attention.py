"""The attention sublayer: latent projections, caches, one sparse softmax over both, output projections."""

import torch

from kernels.decode_step.compressor import compress
from kernels.decode_step.indexing import select_entries
from kernels.decode_step.norms import unit_norm
from kernels.decode_step.ranges import linear, mark
from kernels.decode_step.rope import rotate
from kernels.decode_step.shapes import HEAD_DIM
from kernels.decode_step.store import store_kv_entry
from kernels.sparse_mla import sparse_mla_decode


def prepare_query(q, cos, sin, eps: float):
    """Norm each head's query [B, H, 512] without a weight and turn its last 64 columns."""
    return rotate(unit_norm(q, eps), cos, sin)


def extra_candidates(run, layer, caches, x, q_lora) -> dict:
    """Compress, store and select what a layer reads beside its window; empty for a sliding-window layer."""
    weights, tables = layer.attention, run.tables
    if layer.kind == "swa":
        return {}
    ratio = 4 if layer.kind == "c4" else 128
    slot, turn = (tables.c4_slot, tables.angles4) if ratio == 4 else (tables.c128_slot, tables.angles128)
    entry = compress(run, x, weights.compressor, caches.ring, ratio)
    store_kv_entry(run, caches.extra, slot, entry, *turn)
    if ratio == 128:
        indices, length = tables.c128_indices, tables.c128_length
    else:
        indices = run.probe.choose("topk", select_entries(run, caches, weights.indexer, x, q_lora))
        length = tables.c4_length
    return {"extra_kv_cache": caches.extra, "extra_indices": indices, "extra_topk_length": length}


def attention(run, layer, caches, x) -> torch.Tensor:
    """bfloat16 [B, hidden] -> bfloat16 [B, hidden]."""
    s, glue, tables, weights = run.shapes, run.glue, run.tables, layer.attention
    turn = tables.plain_angles if layer.kind == "swa" else tables.angles
    latents = linear(x, weights.qkv_a)
    q_lora, kv = glue.split_latents(latents, s.q_lora, weights.q_norm, weights.kv_norm, s.eps)
    q = linear(q_lora, weights.q_b).unflatten(-1, (s.heads, HEAD_DIM))
    q = glue.prepare_query(q, *turn, s.eps)
    store_kv_entry(run, caches.swa, tables.swa_slot, kv, *turn)
    extra = extra_candidates(run, layer, caches, x, q_lora)

    with mark("attention", launches=1):
        out, _ = sparse_mla_decode(
            q,
            caches.swa,
            tables.swa_indices,
            tables.swa_length,
            attn_sink=weights.sink,
            impl=run.stage.attention,
            **extra,
        )
        if run.stage.attention == "split_k":
            with mark("combine", launches=1):
                pass  # launched by the call above; a profile knows it by its name
    run.probe.see("attention", out)
    out = glue.unrotate(out, *turn)
    # [groups, B, heads of a group * 512]
    grouped = out.reshape(out.shape[0], s.o_groups, -1).transpose(0, 1)
    with mark("gemm"):
        low = torch.bmm(grouped, weights.o_a)
    return linear(low.transpose(0, 1).flatten(1), weights.o_b)
