"""Each part of a layer against its definition, written another way."""

import pytest
import torch

from kernels.decode_step import compressor, experts, hyper, indexing, rope, store, tables
from kernels.decode_step.shapes import flash, tiny
from kernels.decode_step.sinkhorn import sinkhorn, sinkhorn_reference
from kernels.decode_step.state import EXTRA_PAGE
from kernels.decode_step.weights import random_weights, weight_bytes
from kernels.sparse_mla.layout import quantize_kv

EPS = 1e-6


def test_the_model_has_its_layers():
    kinds = flash().kinds
    assert len(kinds) == 43
    assert [kinds.count(kind) for kind in ("swa", "c4", "c128")] == [2, 21, 20]
    assert kinds[:5] == ("swa", "swa", "c4", "c128", "c4") and kinds[-1] == "c4"


def test_index_rows_are_as_wide_as_an_engine_makes_them():
    s = flash()
    assert s.table_width(1 << 20) == 4096
    assert s.c128_width(1 << 20) == 8192
    assert s.c128_width(256) == 64
    assert s.index_width(1 << 20) == 262144


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_active_experts_are_those_that_random_choices_touch(batch):
    s = flash()
    generator = torch.Generator().manual_seed(0)
    touched = []
    for _ in range(300):
        chosen = torch.stack([torch.randperm(s.experts, generator=generator)[:6] for _ in range(batch)])
        touched.append(len({int(e) for e in chosen.flatten() if e % s.expert_ranks == 0}))
    mean = sum(touched) / len(touched)
    assert mean - 0.5 <= s.active_experts(batch) <= mean + 1.5


def test_weight_bytes_is_what_is_allocated():
    s = tiny()
    assert weight_bytes(s) == pytest.approx(random_weights(s).nbytes(), rel=0.03)
    assert weight_bytes(flash()) < 20e9


def test_layers_of_a_kind_take_turns():
    weights = random_weights(tiny(4))
    first, second = (layer for layer in weights.layers if layer.kind == "c4")
    assert first.attention.q_b.data_ptr() != second.attention.q_b.data_ptr()


def test_rotation_is_multiplication_by_a_phase():
    x = torch.randn(3, 2, 128)
    cos, sin = rope.angles(torch.tensor([0, 7, 100_000]), rope.frequencies(flash(), True))
    turned = rope.rotate(x, cos, sin)
    phase = torch.complex(cos, sin)[:, None]
    wanted = torch.view_as_real(torch.view_as_complex(x[..., 64:].unflatten(-1, (32, 2))) * phase).flatten(-2)
    assert torch.allclose(turned[..., 64:], wanted, atol=1e-5)
    assert torch.equal(turned[..., :64], x[..., :64])
    assert torch.allclose(rope.unrotate(turned, cos, sin), x, atol=1e-5)


def test_yarn_slows_the_slow_pairs_only():
    s = flash()
    plain = s.compress_theta ** -(torch.arange(0, 64, 2).double() / 64)
    ratio = plain / rope.frequencies(s, True).double()
    assert ratio[0] == pytest.approx(1, rel=1e-5) and ratio[-1] == pytest.approx(s.yarn_factor, rel=1e-5)
    assert (ratio.diff() > -1e-4).all()
    assert rope.frequencies(s, False)[1] == pytest.approx(1e4 ** (-1 / 32), rel=1e-5)


def test_sinkhorn_in_one_launch():
    mixing = torch.rand(3, 4, 4) + 0.1
    wanted = sinkhorn_reference(mixing, 20, EPS)
    assert torch.allclose(sinkhorn(mixing, 20, EPS), wanted, atol=1e-6)
    assert torch.allclose(wanted.sum(1), torch.ones(3, 4), atol=1e-4)
    assert torch.allclose(wanted.sum(2), torch.ones(3, 4), atol=1e-3)


def test_streams_are_written_by_the_formula():
    streams, y = torch.randn(2, 4, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    post, mixing = torch.rand(2, 4), torch.rand(2, 4, 4)
    wanted = post[..., None].double() * y[:, None].double()
    wanted += torch.einsum("bij,bid->bjd", mixing.double(), streams.double())
    got = hyper.write_streams(streams, y, post, mixing)
    assert torch.allclose(got.double(), wanted, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-3, 1.0, 448.0, 1e4, 1e30])
def test_an_entry_has_the_layouts_bytes(scale):
    kv = (torch.randn(32, 512) * scale).bfloat16()
    kv[0, :64] = 0
    kv[1, :64] = torch.tensor(448.0 * 2**-7)
    payload, scales = store.quantize_entry(kv)
    wanted_payload, wanted_scales = quantize_kv(kv)
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(payload, wanted_payload)


def test_the_hadamard_matrix_is_orthogonal():
    matrix = indexing.hadamard(128).double()
    assert torch.allclose(matrix @ matrix.T, torch.eye(128, dtype=torch.float64), atol=5e-3)


def test_the_querys_scale_moves_into_the_weights():
    q, weights = torch.randn(2, 64, 128).bfloat16() * 3, torch.randn(2, 64)
    quantised, folded = indexing.quantize_index_query(q, weights)
    assert quantised.dtype == torch.float8_e4m3fn
    got = quantised.float() * folded[..., None]
    wanted = q.float() * weights[..., None] * 128**-0.5 * 64**-0.5
    assert torch.allclose(got, wanted, atol=float(wanted.abs().max()) * 0.05)


def pool(rows, scores):
    return (rows * torch.softmax(scores, 0)).sum(0)


@pytest.mark.parametrize("last", [3, 7, 11])
def test_groups_of_four_overlap(last):
    """Tokens go through the ring one by one; the pool is that of the last eight, the first four's other
    half.
    """
    width, generator = 8, torch.Generator().manual_seed(last)
    rows = torch.randn(12, 2 * width, generator=generator)
    scores = torch.randn(12, 2 * width, generator=generator)
    kv, score = torch.full((1, 8, 2 * width), 9.0), torch.full((1, 8, 2 * width), 9.0)
    for position in range(last + 1):
        kv[0, position % 8], score[0, position % 8] = rows[position], scores[position]
    lengths = torch.tensor([last + 1], dtype=torch.int32)
    known = small_tables(lengths)
    norm = torch.ones(width)
    got = compressor.pool_overlapping(kv, score, known.order4, known.first4, norm, EPS)
    current = slice(last - 3, last + 1)
    parts = [(rows[current, width:], scores[current, width:])]
    if last > 3:
        before = slice(last - 7, last - 3)
        parts.insert(0, (rows[before, :width], scores[before, :width]))
    wanted = pool(torch.cat([r for r, _ in parts]), torch.cat([s for _, s in parts]))
    wanted = wanted / (wanted.square().mean() + EPS).sqrt()
    assert torch.allclose(got[0].float(), wanted, atol=2e-2)


def small_tables(lengths, max_context=512):
    s = tiny()
    batch = len(lengths)
    block_table = torch.arange(batch * 2, dtype=torch.int32).view(batch, 2).flip(1)
    swa_table = torch.arange(batch * 2).view(batch, 2).flip(1)
    frequency = torch.ones(32)
    return tables.Tables(
        *tables.step_tables(
            lengths, block_table, swa_table, frequency, frequency, s.window, s.index_topk,
            s.c128_width(max_context), 99,
        )
    )  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 3, 4, 15, 16, 17, 127, 128, 129, 255, 256, 257, 500, 512])
def test_tables_say_where_everything_lies(length):
    lengths = torch.tensor([length, 1], dtype=torch.int32)
    known = small_tables(lengths)
    block, window_pages = [1, 0], [1, 0]
    position = length - 1

    def swa_slot(token):
        return window_pages[token // 128 % 2] * 128 + token % 128

    wanted = [swa_slot(token) if token >= 0 else -1 for token in range(position, position - 16, -1)]
    assert known.swa_indices[0].tolist() == wanted
    assert known.swa_length.tolist() == [min(length, 16), 1]
    page, offset = known.swa_slot
    assert int(page[0]) * 128 + int(offset[0]) == swa_slot(position)

    assert int(known.c4_count[0]) == length // 4
    assert int(known.c4_length[0]) == min(max(length // 4, 1), 16)
    page, offset = known.c4_slot
    complete = length % 4 == 0
    assert int(page[0]) == (block[position // 256] if complete else 99)
    assert int(offset[0]) == position % 256 // 4 < EXTRA_PAGE["c4"]
    assert int(known.index_slot[0]) == int(page[0]) * 64 + int(offset[0])

    entries = [block[j // 2] * 2 + j % 2 for j in range(length // 128)]
    assert known.c128_indices[0].tolist() == entries + [-1] * (64 - len(entries))
    assert int(known.c128_length[0]) == max(length // 128, 1)
    page, offset = known.c128_slot
    assert int(page[0]) == (block[position // 256] if length % 128 == 0 else 99)
    if length % 128 == 0:
        assert int(page[0]) * 2 + int(offset[0]) == entries[-1], "a complete group is visible at once"
    assert float(known.angles4[0][0, 0]) == pytest.approx(float(torch.tensor(position // 4 * 4.0).cos()))


def test_experts_are_a_loop_over_experts():
    s, batch = tiny(), 3
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, s.hidden, generator=generator).bfloat16()
    logits, bias = torch.randn(batch, s.experts, generator=generator), torch.zeros(s.experts)
    layer = random_weights(s).layers[0].experts
    active, inner = 2, s.moe_intermediate
    scores, chosen = experts.choose_experts(logits, bias, s.experts_per_token)
    mask = experts.expert_mask(scores, chosen, s.routed_scale, s.expert_ranks, active)

    both = (x @ layer.up[: active * 2 * inner].T).view(batch, active, 2 * inner)
    got = experts.masked_swiglu(both, mask, s.swiglu_limit).flatten(1) @ layer.down[: active * inner]

    wanted = torch.zeros(batch, s.hidden, dtype=torch.float64)
    scores = torch.nn.functional.softplus(logits.double()).sqrt()
    for row in range(batch):
        best = scores[row].argsort(descending=True)[: s.experts_per_token].tolist()
        for e in best:
            if e % s.expert_ranks:
                continue  # another rank's
            place = e // s.expert_ranks % active
            up = layer.up.double()[place * 2 * inner : (place + 1) * 2 * inner] @ x[row].double()
            gate, value = up[:inner].clamp(max=10), up[inner:].clamp(-10, 10)
            hidden = gate * torch.sigmoid(gate) * value
            weight = 1.5 * scores[row, e] / scores[row, best].sum()
            wanted[row] += weight * (hidden @ layer.down.double()[place * inner : (place + 1) * inner])
    assert (got.double() - wanted).norm() <= 2e-2 * wanted.norm()
    assert wanted.norm() > 0


def test_the_activation_is_clamped():
    both = torch.tensor([[100.0, -100.0, 50.0, -50.0]])
    out = experts.clamped_swiglu(both, 10.0)
    assert out[0, 0].item() == pytest.approx(100, rel=1e-2) and out[0, 1].item() == pytest.approx(0, abs=1e-3)
