"""The oracle against the formula written out, and its rule for ties."""

import torch

from kernels.indexer import layout
from kernels.indexer.reference import topk_reference
from tests.indexer.cases import make_case


def test_reference_is_the_formula():
    case = make_case([70], seed=3)
    reference = case.reference()
    for position in (0, 63, 64, 69):
        slot = case.block_table[0, position // 64].long() * 64 + position % 64
        key = layout.load_index_keys(case.cache, slot[None])[0]
        expected = 0.0
        for head in range(64):
            expected += max(float(case.q[0, head].double() @ key), 0.0) * float(case.weights[0, head])
        assert abs(float(reference[0, position]) - expected) < 1e-9
    assert bool((reference[0, 70:] == -torch.inf).all())
    assert bool((reference[0, :70] < 0).any())


def test_ties_go_to_the_smaller_position():
    logits = torch.tensor([[1.0, 2.0, 1.0, -0.0, 0.0, 2.0, 1.0, torch.nan]])
    table = torch.tensor([[5]], dtype=torch.int32)
    lens = torch.tensor([8], dtype=torch.int32)
    assert topk_reference(logits, lens, table, 4).tolist() == [[320, 321, 322, 325]]
    assert topk_reference(logits, lens, table, 6).tolist() == [[320, 321, 322, 323, 325, 326]]
    # NaN ranks last, and a row with fewer entries than k has them all.
    assert topk_reference(logits, lens, table, 9).tolist() == [[320, 321, 322, 323, 324, 325, 326, 327, -1]]
    assert topk_reference(logits, torch.tensor([-3], dtype=torch.int32), table, 2).tolist() == [[-1, -1]]
