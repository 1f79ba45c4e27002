"""Every rung of the logits against the reference, under the faults that public versions had."""

import pytest
import torch

from kernels.indexer import LOGITS_IMPLS, indexer_logits, layout, plan
from tests.indexer.cases import INT_MAX, Case, assert_logits, make_case, poisoned_table

# bf16 rounds each head's score once; fp8 tensor cores keep fewer than 24 bits of an accumulator.
TOLERANCE = {"uncapped": 5e-3, "capped": 5e-3, "paged": 2e-3}
LENGTHS = [0, 1, 63, 64, 65, 130, 192, -1]
every_impl = pytest.mark.parametrize("impl", LOGITS_IMPLS)


def tolerance(impl, device):
    return 1e-6 if impl == "paged" and device == "cpu" else TOLERANCE[impl]


@every_impl
def test_lengths_at_page_borders_with_poison_everywhere_else(impl, device):
    case = make_case(LENGTHS, device=device)
    out = torch.full((len(LENGTHS), case.max_seq_len), torch.nan, device=device)
    result = indexer_logits(*case.inputs, impl=impl, out=out)
    assert result is out
    assert_logits(out, case.reference(), tolerance(impl, device))


@every_impl
@pytest.mark.parametrize("lengths", [list(range(1, 10)), [127, 128, 129], [255, 256, 257]])
def test_partial_groups_of_four_tokens(impl, lengths, device):
    """The entry after the last whole group is NaN: visible = seq_len // 4."""
    case = make_case([length // 4 for length in lengths], device=device)
    out = indexer_logits(*case.inputs, impl=impl)
    assert_logits(out, case.reference(), tolerance(impl, device))


@every_impl
@pytest.mark.parametrize(
    "page_stride,storage_offset", [(8452, 4), (4 * 8448, 8448), (8512, 16)], ids=["odd", "packed", "padded"]
)
def test_page_strides_and_offsets(impl, page_stride, storage_offset, device):
    case = make_case([100, 3], page_stride=page_stride, storage_offset=storage_offset, device=device)
    assert_logits(indexer_logits(*case.inputs, impl=impl), case.reference(), tolerance(impl, device))


@every_impl
def test_planar_page_value_t_scale_two_to_the_t(impl, device):
    """An interleaved reading of the page mixes scales and values; here that is off by powers of two."""
    cache = layout.allocate_index_cache(2)
    payload = (torch.arange(64) % 16 + 1.0)[:, None].expand(64, 128).to(torch.float8_e4m3fn)
    scales = 2.0 ** (torch.arange(64) % 32 - 16).float()
    layout.store_quantized(cache, torch.arange(64) + 64, payload.contiguous().view(torch.uint8), scales)
    q = torch.zeros(1, 64, 128)
    q[0, :2, :2] = 1.0
    weights = torch.zeros(1, 64)
    weights[0, :2] = torch.tensor([2.0, -0.5])
    table = torch.tensor([[1]], dtype=torch.int32)
    inputs = (q.to(torch.float8_e4m3fn), cache, weights, torch.tensor([64], dtype=torch.int32), table)
    out = indexer_logits(*(tensor.to(device) for tensor in inputs), impl=impl)
    torch.testing.assert_close(out.cpu()[0], (torch.arange(64) % 16 + 1.0) * 3.0 * scales, rtol=0, atol=0)


@every_impl
def test_weights_are_signed(impl, device):
    case = make_case([65, 64], device=device)
    case.weights.neg_().abs_().neg_()
    reference = case.reference()
    assert bool((reference[reference.isfinite()] < 0).all())
    assert_logits(indexer_logits(*case.inputs, impl=impl), reference, tolerance(impl, device))


@every_impl
@pytest.mark.parametrize("past", [-1, INT_MAX])
def test_block_table_exactly_wide_enough(impl, past, device):
    case = make_case([64, 129, 1], past=past, device=device)
    assert case.block_table.shape[1] == 3 and int(case.block_table[0, 1]) == past
    assert_logits(indexer_logits(*case.inputs, impl=impl), case.reference(), tolerance(impl, device))


@every_impl
@pytest.mark.parametrize("page", [-1, -(2**20)])
def test_a_negative_page_inside_the_length_scores_minus_infinity(impl, page, device):
    case = make_case([192, 70], device=device)
    case.block_table[0, 1] = page
    out = indexer_logits(*case.inputs, impl=impl)
    assert bool((out[0, 64:128] == -torch.inf).all()) and bool(out[0, 128:192].isfinite().all())
    assert_logits(out, case.reference(), tolerance(impl, device))


@every_impl
@pytest.mark.parametrize("max_seq_len", [1, 65, 100, 192, 200, 333])
def test_any_width(impl, max_seq_len, device):
    """Narrower than the table, a page's fraction, wider than the table."""
    case = make_case([192, 20, 0], max_seq_len=max_seq_len, device=device)
    out = torch.full((3, max_seq_len + 5), torch.nan, device=device)
    indexer_logits(*case.inputs, impl=impl, out=out[:, :max_seq_len])
    assert_logits(out[:, :max_seq_len], case.reference(), tolerance(impl, device))
    assert bool(out[:, max_seq_len:].isnan().all())


@every_impl
@pytest.mark.parametrize("query_dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_query_dtypes_and_four_dimensions(impl, query_dtype, device):
    case = make_case([66], query_dtype=query_dtype, device=device)
    out = indexer_logits(case.q[:, None], *case.inputs[1:], impl=impl)
    assert_logits(out, case.reference(), tolerance(impl, device))


@every_impl
def test_lengths_of_two_dimensions_and_strided_slices(impl, device):
    case = make_case([65, 1, 64, 0], device=device)
    expected = indexer_logits(*case.inputs, impl=impl)
    wide = torch.full((4, 6), INT_MAX, dtype=torch.int32, device=device)
    wide[:, 3] = case.seq_lens
    tables = torch.full((4, 2, 2), -1, dtype=torch.int32, device=device)
    tables[:, :, 1] = case.block_table
    for seq_lens in (wide[:, 3], wide[:, 3:4]):
        for table in (case.block_table, tables[:, :, 1]):
            out = indexer_logits(*case.inputs[:3], seq_lens, table, impl=impl)
            assert torch.equal(out, expected)


def test_paged_leaves_the_tail_alone_when_told_to(device):
    case = make_case(LENGTHS, device=device)
    out = torch.full((len(LENGTHS), case.max_seq_len), 7.0, device=device)
    indexer_logits(*case.inputs, impl="paged", out=out, fill_tail=False)
    dead = ~case.reference().isfinite()
    assert bool((out[dead] == 7.0).all())
    assert_logits(out.masked_fill(dead, -torch.inf), case.reference(), tolerance("paged", device))


@pytest.mark.parametrize("cap", [64, 100, 128, 5000])
def test_the_cap_bounds_the_work_and_keeps_the_stride(cap, device):
    case = make_case([60, 33, 0], width=4, device=device)
    buffer = torch.full((3, 300), 7.0, device=device)
    out = buffer[:, :256]
    indexer_logits(*case.inputs, impl="capped", out=out, cap=cap, fill_tail=False)
    columns = min(cap, 256)
    assert_logits(out[:, :columns], case.reference()[:, :columns], TOLERANCE["capped"])
    assert bool((buffer[:, columns:] == 7.0).all())


def test_repacking_a_captured_stride_is_the_trap():
    """Row 0 survives a narrowed stride, every other row of the captured reader does not."""
    from kernels.indexer.capped import capped_columns, repacked_columns

    captured = torch.full((3, 256), -torch.inf)
    fresh = torch.arange(3 * 64, dtype=torch.float32).reshape(3, 64)
    repacked_columns(captured, 64).copy_(fresh)
    assert torch.equal(captured[0, :64], fresh[0])
    assert not torch.equal(captured[1, :64], fresh[1])
    capped_columns(captured, 64).copy_(fresh)
    assert torch.equal(captured[:, :64], fresh)


def test_a_forced_fp32_gemm_is_closer_than_bf16(device):
    case = make_case([150], device=device)
    reference = case.reference()
    errors = []
    for dtype in (torch.float32, torch.bfloat16):
        out = indexer_logits(*case.inputs, impl="uncapped", compute_dtype=dtype)
        errors.append((out[0, :150] - reference[0, :150]).norm())
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize("batch", [1, 2, 31, 33, 40])
def test_programs_share_rows_of_any_batch(batch, device):
    """A long row among short ones, more rows than a group holds, and no row twice."""
    lengths = [(37 * row) % 5 for row in range(batch)]
    lengths[-1] = 300
    case = make_case(lengths, device=device)
    out = indexer_logits(*case.inputs, impl="paged")
    assert_logits(out, case.reference(), tolerance("paged", device))


@pytest.mark.parametrize("block_t,num_warps", [(64, 4), (128, 4), (128, 8)])
def test_tiles_agree(block_t, num_warps, device):
    case = make_case([0, 65, 129, 320], device=device)
    tile = plan.LogitsTile(block_t=block_t, num_warps=num_warps, num_stages=2, programs_per_sm=1)
    out = indexer_logits(*case.inputs, impl="paged", tile=tile)
    assert_logits(out, case.reference(), tolerance("paged", device))


def test_a_row_does_not_depend_on_its_batch(device):
    """Bit for bit: a page is scored the same way whichever program meets it."""
    case = make_case([200, 64, 13, 0, 150], device=device)
    out = indexer_logits(*case.inputs, impl="paged")
    for row in range(5):
        alone = [tensor[row : row + 1] if tensor is not case.cache else tensor for tensor in case.inputs]
        assert torch.equal(indexer_logits(*alone, impl="paged")[0], out[row])


def test_the_width_changes_nothing(device):
    """The same lengths under a table and a result 8 times as wide."""
    case = make_case([130, 64], device=device)
    narrow = indexer_logits(*case.inputs, impl="paged")
    rows = [case.block_table[row].tolist() for row in range(2)]
    table = poisoned_table([rows[0], rows[1][:1]], 24, device=device)
    wide = indexer_logits(*case.inputs[:4], table, impl="paged", fill_tail=False)
    for row, length in enumerate((130, 64)):
        assert torch.equal(wide[row, :length], narrow[row, :length])


@every_impl
def test_an_empty_batch(impl, device):
    case = make_case([1], device=device)
    empty = Case(
        case.q[:0], case.cache, case.weights[:0], case.seq_lens[:0], case.block_table[:0], case.max_seq_len
    )
    assert indexer_logits(*empty.inputs, impl=impl).shape == (0, 64)
