"""Top-k against the reference: ties, tails, short rows, long rows in slices, poison in every scratch byte."""

import pytest
import torch

from kernels.indexer import indexer_topk, plan, topk_reference, topk_workspace
from kernels.indexer.topk import encode_score
from tests.indexer.cases import INT_MAX, poisoned_table

SMALL = plan.TopkTile(
    chunk=64, held=128, num_warps=1, merge_chunk=64, merge_held=128, merge_warps=1, max_slices=4
)


def make_rows(lengths, width, *, scores="normal", seed=0, device="cpu"):
    """Logits whose tail is NaN or +inf, and a table whose dead columns are INT_MAX."""
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    logits = torch.full((batch, width + 9), torch.inf)
    logits[::2] = torch.nan
    for row, length in enumerate(lengths):
        length = max(0, min(length, width))
        values = torch.randn(length, generator=generator)
        if scores == "negative":
            values = -values.abs()
        elif scores == "ties":
            values = values.round()
        elif scores == "equal":
            values = torch.full_like(values, -1.5)
        elif scores == "zeros":
            values = torch.where(values > 0, 0.0, -0.0)
        elif scores == "wild":
            values = values * 10.0 ** torch.randint(-44, 38, (length,), generator=generator)
            values[::7], values[3::11], values[5::13] = -torch.inf, torch.inf, torch.nan
        logits[row, :length] = values
    columns = -(-width // 64)
    pages = torch.randperm(3 * batch * columns, generator=generator)
    rows = []
    for row, length in enumerate(lengths):
        need = -(-max(0, min(length, width)) // 64)
        rows.append(pages[row * columns : row * columns + need].tolist())
    table = poisoned_table(rows, columns, INT_MAX, device)
    return logits.to(device)[:, :width], torch.tensor(lengths, dtype=torch.int32, device=device), table


def as_sets(indices):
    return [sorted(row) for row in indices.tolist()]


@pytest.mark.parametrize("scores", ["normal", "negative", "ties", "equal", "zeros", "wild"])
def test_radix_is_the_reference(scores, device):
    """Row lengths around k, around a chunk, around one program's share, and many slices."""
    lengths = [0, 1, 31, 32, 33, 65, 128, 129, 400, -5, 1000]
    logits, lens, table = make_rows(lengths, 448, scores=scores, device=device)
    expected = topk_reference(logits, lens, table, 32)
    out = torch.full((len(lengths), 40), -77, dtype=torch.int32, device=device)
    indexer_topk(logits, lens, table, 32, impl="radix", out=out[:, :32], tile=SMALL)
    # Listed by position, so that equality is more than equality of sets.
    assert torch.equal(out[:, :32], expected)
    assert bool((out[:, 32:] == -77).all())


@pytest.mark.parametrize("k", [1, 2, 63, 64])
@pytest.mark.parametrize("batch", [1, 3])
def test_any_k_with_long_rows(k, batch, device):
    lengths = [700, 64, 5][:batch]
    logits, lens, table = make_rows(lengths, 704, scores="ties", seed=k, device=device)
    out = indexer_topk(logits, lens, table, k, tile=SMALL)
    assert torch.equal(out, topk_reference(logits, lens, table, k))


def test_the_model_k_at_default_tiles(device):
    lengths = [511, 512, 513, 2049, 5000]
    logits, lens, table = make_rows(lengths, 5056, device=device)
    assert torch.equal(indexer_topk(logits, lens, table), topk_reference(logits, lens, table, 512))


def test_scratch_may_hold_anything(device):
    logits, lens, table = make_rows([600, 300], 640, device=device)
    expected = topk_reference(logits, lens, table, 48)
    workspace = topk_workspace(2, 48, device, SMALL)
    for poison in (INT_MAX, 0x7FC00000):
        workspace.fill_(poison)
        assert torch.equal(indexer_topk(logits, lens, table, 48, workspace=workspace, tile=SMALL), expected)
    # Stale candidates of a longer row must not come back.
    short = lens // 3
    again = indexer_topk(logits, short, table, 48, workspace=workspace, tile=SMALL)
    assert torch.equal(again, topk_reference(logits, short, table, 48))


def test_torch_takes_the_same_sets_without_ties(device):
    lengths = [0, 1, 40, 64, 65, 300, -1]
    logits, lens, table = make_rows(lengths, 320, scores="negative", device=device)
    out = indexer_topk(logits, lens, table, 64, impl="torch")
    assert as_sets(out) == as_sets(topk_reference(logits, lens, table, 64))
    narrow = indexer_topk(logits[:, :40], lens, table, 64, impl="torch")
    assert as_sets(narrow) == as_sets(topk_reference(logits[:, :40], lens, table, 64))


@pytest.mark.parametrize("impl", ["torch", "radix"])
def test_a_live_score_of_minus_infinity_is_still_an_entry(impl, device):
    logits = torch.full((1, 64), torch.inf, device=device)
    logits[0, :3] = torch.tensor([-torch.inf, 1.0, -torch.inf])
    table = torch.tensor([[2]], dtype=torch.int32, device=device)
    lens = torch.tensor([3], dtype=torch.int32, device=device)
    out = indexer_topk(logits, lens, table, 5, impl=impl)
    assert as_sets(out) == [[-1, -1, 128, 129, 130]]


@pytest.mark.parametrize("impl", ["torch", "radix"])
def test_a_negative_page_is_missing(impl, device):
    logits, lens, table = make_rows([130], 192, device=device)
    table[0, 1] = -1
    out = indexer_topk(logits, lens, table, 130, impl=impl, tile=plan.TopkTile(chunk=256, held=512))
    assert int((out == -1).sum()) == 64
    assert as_sets(out) == as_sets(topk_reference(logits, lens, table, 130))


@pytest.mark.parametrize("impl", ["torch", "radix"])
def test_block_table_is_indexed_by_page(impl, device):
    """A table read by token would take column 70, where there is poison."""
    logits = torch.zeros(1, 128, device=device)
    logits[0, 70] = 9.0
    table = poisoned_table([[11, 7]], 2, device=device)
    lens = torch.tensor([[128]], dtype=torch.int32, device=device)
    assert indexer_topk(logits, lens, table, 1, impl=impl).tolist() == [[7 * 64 + 6]]


def test_strided_inputs(device):
    logits, lens, table = make_rows([300, 20], 320, device=device)
    wide = torch.full((2, 4), INT_MAX, dtype=torch.int32, device=device)
    wide[:, 2] = lens
    out = indexer_topk(logits, wide[:, 2], table, 32, tile=SMALL)
    assert torch.equal(out, topk_reference(logits, lens, table, 32))


def test_repeats_bit_for_bit(device):
    logits, lens, table = make_rows([400, 256], 448, scores="ties", device=device)
    first = indexer_topk(logits, lens, table, 64, tile=SMALL)
    for _ in range(2 if device == "cpu" else 50):
        assert torch.equal(indexer_topk(logits, lens, table, 64, tile=SMALL), first)


def test_an_empty_batch(device):
    logits, lens, table = make_rows([5], 64, device=device)
    assert indexer_topk(logits[:0], lens[:0], table[:0], 7).shape == (0, 7)


def test_keys_are_in_the_order_of_the_scores():
    """Equal where scores are equal, NaN with -inf, and none as small as the padding's key."""
    from kernels.indexer.api import INTERPRETED

    if not INTERPRETED:
        pytest.skip("calls a Triton function from Python, which needs the interpreter")
    import triton
    import triton.language as tl

    @triton.jit
    def encode_kernel(scores_ptr, out_ptr, BLOCK: tl.constexpr):
        index = tl.arange(0, BLOCK)
        tl.store(out_ptr + index, encode_score(tl.load(scores_ptr + index)))

    inf, nan = torch.inf, torch.nan
    ordered = [-inf, nan, -3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38, inf]
    scores = torch.tensor([*ordered, -nan, 2.0, 2.5, -2.5, -2.0])
    keys = torch.empty(16, dtype=torch.int32)
    encode_kernel[(1,)](scores, keys, BLOCK=16)
    ranks = torch.where(scores.isnan(), -inf, scores)
    assert torch.equal(keys[:, None] < keys[None, :], ranks[:, None] < ranks[None, :])
    assert int(keys.min()) > -(2**31) + 1
