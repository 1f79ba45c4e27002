"""What every layer needs to know of this step's positions, computed once a step on the device.

Everything follows from the lengths, which change in place: which slots are written, which are read, by which
angles is turned. Shapes follow from the configured context alone, so a captured graph stays valid.
"""

from dataclasses import dataclass

import torch

from kernels.decode_step.rope import angles
from kernels.decode_step.shapes import PAGE_ENTRIES, PAGE_TOKENS, SWA_PAGE


@dataclass(frozen=True)
class Tables:
    """Index rows int32, counts int32 [B], slots int64 [B], angles float32 [B, 32] as (cos, sin) pairs.

    Attributes:
        swa_indices, swa_length: newest token first, -1 before the first one.
        c4_count: entries of ratio 4 that exist; c4_length: those that attention reads, at least 1 as
            engines pass it.
        c128_indices, c128_length: all entries of ratio 128, padded with -1 to the configured width.
        c4_slot, c128_slot, swa_slot: (page, offset) to store to; a page nobody reads where no group is
            complete.
        ring4, ring128: places in the compressors' rings. order4: a ring's previous group, then the current
            one.
        first4: no previous group yet.
    """

    swa_indices: torch.Tensor
    swa_length: torch.Tensor
    swa_slot: tuple
    c4_count: torch.Tensor
    c4_length: torch.Tensor
    c4_slot: tuple
    index_slot: torch.Tensor
    c128_indices: torch.Tensor
    c128_length: torch.Tensor
    c128_slot: tuple
    phase4: torch.Tensor
    ring4: torch.Tensor
    order4: torch.Tensor
    first4: torch.Tensor
    ring128: torch.Tensor
    plain_angles: tuple
    angles: tuple
    angles4: tuple
    angles128: tuple


def sliding_window(positions, table, window: int):
    """Slots of the last `window` tokens and of the current one."""
    token = positions[:, None] - torch.arange(window, device=positions.device)[None, :]
    seen = token.clamp_min(0)
    page = table.gather(1, (seen // SWA_PAGE) % table.shape[1])
    indices = torch.where(token >= 0, page * SWA_PAGE + seen % SWA_PAGE, -1).int()
    return indices, page[:, 0], positions % SWA_PAGE


def long_entries(lengths, table, width: int):
    """Slots of every ratio-128 entry; -1 from the row's count on."""
    place = torch.arange(width, device=table.device)
    page = table[:, (place // 2).clamp_max(table.shape[1] - 1)]
    return torch.where(place[None, :] < lengths[:, None] // 128, page * 2 + place[None, :] % 2, -1).int()


def step_tables(lengths, block_table, swa_table, plain, compressed, window, topk, c128_width, spare_page):
    """Everything in `Tables`, in its order, as nested tuples; `spare_page` takes what no group needs yet."""
    positions = (lengths - 1).long()
    swa_indices, swa_page, swa_offset = sliding_window(positions, swa_table, window)
    inside = positions % PAGE_TOKENS
    page = block_table.gather(1, positions[:, None] // PAGE_TOKENS)[:, 0].long()
    page4 = torch.where((positions + 1) % 4 == 0, page, spare_page)
    page128 = torch.where((positions + 1) % 128 == 0, page, spare_page)
    current = (positions // 4 % 2)[:, None] * 4
    order4 = (current + 4 + torch.arange(8, device=lengths.device)[None, :]) % 8
    return (
        swa_indices,
        lengths.clamp_max(window),
        (swa_page, swa_offset),
        lengths // 4,
        (lengths // 4).clamp(1, topk),
        (page4, inside // 4),
        page4 * PAGE_ENTRIES + inside // 4,
        long_entries(lengths, block_table, c128_width),
        (lengths // 128).clamp_min(1),
        (page128, inside // 128),
        positions % 4,
        positions % 8,
        order4,
        positions < 4,
        positions % 128,
        angles(positions, plain),
        angles(positions, compressed),
        angles(positions // 4 * 4, compressed),
        angles(positions // 128 * 128, compressed),
    )


def prepare(run) -> Tables:
    """This step's tables."""
    s, state = run.shapes, run.state
    return Tables(
        *run.glue.step_tables(
            state.lengths,
            state.block_table,
            state.swa_table,
            state.plain_frequency,
            state.frequency,
            s.window,
            s.index_topk,
            state.c128_width,
            state.spare_page,
        )
    )
