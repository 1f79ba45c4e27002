"""Inputs whose every unused byte is poison, and the comparison with the reference."""

from dataclasses import dataclass

import torch

from kernels.indexer import layout
from kernels.indexer.reference import indexer_logits_reference

INT_MAX = 2**31 - 1
# e4m3 has NaN at 0x7F and 0xFF; four 0xFF bytes are a NaN scale.
NAN_BYTE = 0xFF


@dataclass
class Case:
    q: torch.Tensor
    cache: torch.Tensor
    weights: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_seq_len: int

    @property
    def inputs(self):
        return self.q, self.cache, self.weights, self.seq_lens, self.block_table

    def reference(self):
        return indexer_logits_reference(*self.inputs, self.max_seq_len)


def poisoned_table(rows: list[list[int]], width: int, past: int = INT_MAX, device="cpu") -> torch.Tensor:
    """int32 [B, width] view with `past` behind each row's pages and behind the view itself."""
    buffer = torch.full((len(rows), width + 3), past, dtype=torch.int32)
    for row, pages in enumerate(rows):
        buffer[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    return buffer.to(device)[:, :width]


def make_case(
    lengths, *, width=None, max_seq_len=None, page_stride=None, storage_offset=0, past=INT_MAX, seed=0,
    query_dtype=torch.float8_e4m3fn, device="cpu",
) -> Case:  # fmt: skip
    """Random signed inputs. Page 0, gaps, dead entries and dead columns are NaN or `past`."""
    generator = torch.Generator().manual_seed(seed)
    live = [max(int(length), 0) for length in lengths]
    needed = [layout.pages_for(length) for length in live]
    width = max(1, *needed) if width is None else width
    max_seq_len = width * layout.PAGE_ENTRIES if max_seq_len is None else max_seq_len
    num_pages = 1 + sum(needed)
    cache = layout.allocate_index_cache(
        num_pages + 1, page_stride=page_stride, storage_offset=storage_offset, fill=NAN_BYTE
    )
    order = (torch.randperm(num_pages, generator=generator) + 1).tolist()
    rows = []
    for count in needed:
        rows.append([order.pop() for _ in range(count)])
    for pages, length in zip(rows, live, strict=True):
        if length:
            position = torch.arange(length)
            slots = torch.tensor(pages)[position // 64] * 64 + position % 64
            layout.store_index_keys(cache, slots, torch.randn(length, 128, generator=generator))
    batch = len(live)
    # Neighbours of q and of the weights are NaN: views of wider buffers.
    q = torch.full((batch, 80, 128), torch.nan, dtype=torch.bfloat16)
    q[:, 8:72] = torch.randn(batch, 64, 128, generator=generator).bfloat16()
    weights = torch.full((batch, 80), torch.nan)
    weights[:, :64] = torch.randn(batch, 64, generator=generator) * 128**-0.5 / 8
    seq_lens = torch.tensor([int(length) for length in lengths], dtype=torch.int32)
    storage = torch.empty(cache.untyped_storage().nbytes(), dtype=torch.uint8, device=device)
    storage.copy_(torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()))
    cache = storage.as_strided(cache.shape, cache.stride(), cache.storage_offset())
    table = poisoned_table(rows, width, past, device)
    return Case(
        q.to(query_dtype).to(device)[:, 8:72], cache, weights.to(device)[:, :64], seq_lens.to(device), table,
        max_seq_len,
    )  # fmt: skip


def assert_logits(out, reference, tolerance):
    """Same live elements as the reference, -inf elsewhere, and a small relative RMS error."""
    live = reference.isfinite()
    assert torch.equal(out.isfinite(), live)
    assert bool((out[~live] == -torch.inf).all())
    if live.any():
        error = (out[live].double() - reference[live]).norm() / reference[live].norm()
        assert error <= tolerance, float(error)
