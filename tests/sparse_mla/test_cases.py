"""The harness sees the faults that it is for: wrong decoders, written out in torch, are all found out."""

import pytest
import torch

from kernels.sparse_mla import layout
from tests.sparse_mla import cases
from tests.sparse_mla.conftest import fault_table


def a_case(rows, width=40, sink=None, **options):
    cache = cases.make_cache(53, 30, **options)
    main = cases.make_side(cache, rows, width, 16, seed=3)
    return cases.Case(cases.make_query(len(rows), 2, view="slices"), main, sink=sink)


def decoder(case, *, masked_value=0.0, score_of_masked=-torch.inf, base=1.0, sink_in_lse=False,
            drop_last=False, past_length=False, empty_lse=torch.inf):  # fmt: skip
    """float64 attention with one classic mistake at a time."""
    side = case.main
    indices = side.indices.long()
    valid = indices >= 0
    if not past_length:
        valid &= torch.arange(indices.shape[1]) < side.length.long()[:, None]
    else:
        indices = indices.clamp(max=int(side.cache.slots.max()))
    keys = layout.load_kv(side.cache.tensor, torch.where(valid, indices, 0).reshape(-1))
    keys = keys.reshape(*indices.shape, 512)
    if masked_value == 0.0:
        keys = torch.where(valid[..., None], keys, 0.0)
    if drop_last:
        valid[:, -1] = False
    scores = (case.q.double() @ keys.mT * case.scale).masked_fill(~valid[:, None], score_of_masked)
    total = torch.logsumexp(scores, -1)
    out = torch.exp(scores - total[..., None]).nan_to_num(0.0) @ keys
    empty = ~valid.any(-1)
    lse = total * base
    if score_of_masked == -torch.inf:
        lse = lse.masked_fill(empty[:, None], empty_lse)
    if case.sink is not None:
        out = out * torch.sigmoid(total - case.sink.double()).nan_to_num(0.0)[..., None]
        if sink_in_lse:
            lse = torch.logaddexp(lse, case.sink.double())
    return out.bfloat16(), lse.float()


ROWS = [("dense", "K"), ("last", "K"), ("alternating", 17), ("none", "K"), ("dense", 0)]


def test_a_right_decoder_passes():
    case = a_case(ROWS, sink=torch.tensor([0.5, -torch.inf]))
    assert cases.compare(*decoder(case), case.expected(), 0) == []


def test_the_oracle_is_the_same_in_parts(monkeypatch):
    case = a_case(ROWS, sink=torch.tensor([0.5, -torch.inf]))
    whole = case.expected()
    monkeypatch.setattr(cases, "KEY_BYTES", 2 * 40 * 512 * 8)  # two rows of five
    parts = case.expected()
    for name in ("out", "lse", "magnitude", "score_size"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "mistake",
    [
        {"masked_value": float("nan")},  # row 0 is fetched for a masked candidate, and 0 * NaN reaches V
        {"score_of_masked": -1e30},  # a finite sentinel gives an empty row an LSE of its own
        {"base": 1.4426950408889634},  # the LSE in base 2
        {"sink_in_lse": True},
        {"drop_last": True},  # the remainder of a split range is lost
        {"past_length": True},
        {"empty_lse": -torch.inf},
    ],
)
def test_a_wrong_decoder_fails(mistake):
    case = a_case(ROWS, sink=torch.tensor([0.5, -torch.inf]))
    assert cases.compare(*decoder(case, **mistake), case.expected(), 2) != []


def test_bounds_are_tight():
    """Two units in the last place of the result are too many where nothing else was rounded."""
    case = a_case([("dense", "K")])
    expected = case.expected()
    off = expected.out * (1 + 2**-6)
    assert cases.compare(off, expected.lse, expected, 0) != []
    assert cases.compare(expected.out, expected.lse + 1e-4, expected, 2) != []


def test_every_other_byte_is_poison():
    for stride, offset in (("packed", 0), ("padded", 3), ("wide", 12), ("odd", 6)):
        cache = cases.make_cache(53, 30, stride=stride, offset=offset)
        raw = torch.empty(0, dtype=torch.uint8).set_(cache.tensor.untyped_storage())
        dead = torch.ones(raw.numel(), dtype=torch.bool)
        for slot in cache.slots.tolist():
            page = offset + slot // 53 * cache.tensor.stride(0)
            token, scale = page + slot % 53 * 576, page + 53 * 576 + slot % 53 * 8
            dead[token : token + 576] = dead[scale : scale + 7] = False
        assert int((~dead).sum()) == 30 * 583
        assert bool((raw[dead] == cases.NAN_BYTE).all())
        assert int(cache.slots.min()) > 0
        tail = cache.tensor.storage_offset() + (cache.tensor.shape[0] - 1) * cache.tensor.stride(0) + 584 * 53
        assert tail == raw.numel()
        assert cache.tensor.storage_offset() == offset


def test_patterns_and_lengths():
    for width in (0, 1, 2, 16, 17, 133):
        for pattern in cases.PATTERNS:
            mask = cases.present_mask(pattern, width, 16)
            assert mask.shape == (width,)
            if width and pattern in ("dense", "leading", "last"):
                assert bool(mask[-1])
    assert not cases.present_mask("leading", 133, 16)[:16].any()
    assert [cases.row_length(name, 40, 16) for name in ("tile-1", "tile+1", "K+5", -3, None)] == [
        15,
        17,
        45,
        -3,
        None,
    ]


def test_guards():
    tensor, raw = cases.guarded((2, 3), torch.float32, "cpu")
    assert bool(tensor.isnan().all()) and not cases.trespassed(raw)
    tensor.zero_()
    assert not cases.trespassed(raw)
    raw[-1] = 0
    assert cases.trespassed(raw)


def test_the_fault_table():
    class Report:
        when, failed = "call", True
        user_properties = [
            ("fault_class", ["sinks", 5, None]),
            ("fault_class", ["sinks", 1000, 2]),
            ("other", 1),
        ]

    lines = fault_table([Report]).splitlines()
    assert lines[0] == "fault class |    cases | failures"
    assert lines[2] == "sinks       |    1,005 |        3" and lines[3].startswith("total       |    1,005 |")
