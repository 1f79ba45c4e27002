"""Random shapes, lengths and scores; the examples are the same on every machine (derandomised)."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.indexer import indexer_logits, indexer_topk, plan, topk_reference
from tests.indexer.cases import assert_logits, make_case
from tests.indexer.test_topk import SMALL, make_rows

lengths = st.lists(st.integers(-2, 260), min_size=1, max_size=5)


@settings(max_examples=8)
@given(
    lengths=lengths,
    stride=st.integers(0, 40).map(lambda words: 8448 + 4 * words),
    offset=st.integers(0, 20).map(lambda words: 4 * words),
    spare=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_paged_follows_any_lengths(lengths, stride, offset, spare, seed):
    needed = max(1, *(-(-length // 64) for length in [1, *lengths]))
    case = make_case(lengths, width=needed + spare, page_stride=stride, storage_offset=offset, seed=seed)
    out = torch.full((len(lengths), case.max_seq_len), torch.nan)
    indexer_logits(*case.inputs, impl="paged", out=out)
    assert_logits(out, case.reference(), 1e-6)


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(-2, 500), min_size=1, max_size=3),
    k=st.integers(1, 64),
    scores=st.sampled_from(["normal", "negative", "ties", "equal", "zeros", "wild"]),
    held=st.sampled_from([64, 128, 256]),
    seed=st.integers(0, 1000),
)
def test_radix_follows_any_lengths(lengths, k, scores, held, seed):
    logits, lens, table = make_rows(lengths, 512, scores=scores, seed=seed)
    tile = plan.TopkTile(**{**vars(SMALL), "held": held})
    out = indexer_topk(logits, lens, table, k, impl="radix", tile=tile)
    assert torch.equal(out, topk_reference(logits, lens, table, k))
