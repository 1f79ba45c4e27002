"""The KV compressors: a token's row joins a ring, and a complete group of rows becomes one cache entry.

A learned softmax over the group, one weight a row and column, pools it. Groups of four overlap: an entry
also pools the group before, with the other half of the projection. The pool is computed at every step and
stored to a slot that counts only when the group is complete: nothing on the host depends on a length.
"""

from dataclasses import dataclass

import torch

from kernels.decode_step.norms import rms_norm
from kernels.decode_step.ranges import linear


@dataclass(frozen=True)
class Ring:
    """Projected rows that wait for their group: kv and score, float32 [B, 8 or 128, coff * width]."""

    kv: torch.Tensor
    score: torch.Tensor


def split_rows(kv_gate, position_bias, phase):
    """A token's row and its scores, float32, from the projection [B, 2 * coff * width]."""
    kv, score = kv_gate.float().chunk(2, -1)
    return kv, score + position_bias[phase]


def pool_overlapping(kv, score, order, first_group, norm, eps: float):
    """Pool the previous and the current group of four, float32 [B, 8, 2 * width] -> bfloat16 [B, width]."""
    width = kv.shape[2] // 2
    place = order[:, :, None].expand(-1, -1, kv.shape[2])
    kv, score = kv.gather(1, place), score.gather(1, place)
    kv = torch.cat([kv[:, :4, :width], kv[:, 4:, width:]], 1)
    previous = torch.where(first_group[:, None, None], -torch.inf, score[:, :4, :width])
    weight = torch.softmax(torch.cat([previous, score[:, 4:, width:]], 1), 1)
    return rms_norm((kv * weight).sum(1), norm, eps)


def pool_group(kv, score, norm, eps: float):
    """Pool 128 rows, float32 [B, 128, width] -> bfloat16 [B, width]."""
    return rms_norm((kv * torch.softmax(score, 1)).sum(1), norm, eps)


def compress(run, x, weights, ring: Ring, ratio: int) -> torch.Tensor:
    """Put this token's row into the ring and pool its group -> bfloat16 [B, width]."""
    tables, glue = run.tables, run.glue
    place, phase = (tables.ring4, tables.phase4) if ratio == 4 else (tables.ring128, tables.ring128)
    kv, score = glue.split_rows(linear(x, weights.kv_gate), weights.position_bias, phase)
    ring.kv[run.rows, place] = kv
    ring.score[run.rows, place] = score
    if ratio == 4:
        return glue.pool_overlapping(
            ring.kv, ring.score, tables.order4, tables.first4, weights.norm, run.shapes.eps
        )
    return glue.pool_group(ring.kv, ring.score, weights.norm, run.shapes.eps)
