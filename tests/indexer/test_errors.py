"""Every argument that a kernel would misread is refused by name, and nothing is written."""

import pytest
import torch

from kernels.indexer import indexer_logits, indexer_topk, layout
from kernels.indexer.validate import ArgumentError
from tests.indexer.cases import make_case

META = torch.device("meta")


def logits_arguments():
    case = make_case([65, 3])
    names = ("q", "index_cache", "weights", "seq_lens", "block_table")
    return dict(zip(names, case.inputs, strict=True), out=torch.full((2, 128), 7.0))


def topk_arguments():
    return {
        "logits": torch.zeros(2, 128), "seq_lens": torch.tensor([3, 128], dtype=torch.int32),
        "block_table": torch.zeros(2, 2, dtype=torch.int32), "k": 4,
        "out": torch.full((2, 4), 7, dtype=torch.int32),
    }  # fmt: skip


def strided(tensor, dimension):
    """The same values at twice the stride in one dimension."""
    shape = list(tensor.shape)
    shape[dimension] *= 2
    wide = torch.zeros(shape, dtype=torch.float32).to(tensor.dtype)
    return wide[tuple(slice(None, None, 2) if i == dimension else slice(None) for i in range(tensor.dim()))]


def pages_at(stride, offset):
    storage = torch.zeros(4 * 8450, dtype=torch.uint8)
    return storage.as_strided((3, 64, 1, 132), (stride, 132, 132, 1), offset)


LOGITS_ERRORS = [
    ("impl", "fast"),
    ("q", [1]),
    ("q", torch.zeros(2, 64, 128)),
    ("q", torch.zeros(2, 32, 128, dtype=torch.bfloat16)),
    ("q", torch.zeros(2, 64, 64, dtype=torch.bfloat16)),
    ("q", torch.zeros(2, 2, 64, 128, dtype=torch.bfloat16)),
    ("q", lambda a: strided(torch.zeros(2, 64, 128, dtype=torch.bfloat16), 2)),
    ("index_cache", None),
    ("index_cache", lambda a: a["index_cache"].view(torch.int8)),
    ("index_cache", lambda a: a["index_cache"][:, :32]),
    ("index_cache", lambda a: a["index_cache"][..., :128]),
    ("index_cache", lambda a: a["index_cache"][:0]),
    ("index_cache", lambda a: strided(a["index_cache"], 3)),
    ("index_cache", lambda a: pages_at(8444, 0)),
    ("index_cache", lambda a: pages_at(8450, 0)),
    ("index_cache", lambda a: pages_at(8448, 2)),
    ("index_cache", lambda a: a["index_cache"].to(META)),
    ("weights", lambda a: a["weights"].double()),
    ("weights", lambda a: a["weights"][:, :63]),
    ("weights", lambda a: a["weights"][:1]),
    ("weights", lambda a: strided(a["weights"], 1)),
    ("weights", lambda a: a["weights"].to(META)),
    ("seq_lens", [65, 3]),
    ("seq_lens", lambda a: a["seq_lens"].long()),
    ("seq_lens", lambda a: a["seq_lens"][:1]),
    ("seq_lens", lambda a: a["seq_lens"][:, None].expand(2, 2)),
    ("seq_lens", lambda a: a["seq_lens"].to(META)),
    ("block_table", lambda a: a["block_table"].long()),
    ("block_table", lambda a: a["block_table"][:1]),
    ("block_table", lambda a: a["block_table"][0]),
    ("block_table", lambda a: a["block_table"][:, :0]),
    ("max_seq_len", 0),
    ("max_seq_len", 1.5),
    ("max_seq_len", 2**31),
    ("out", torch.zeros(2, 128, dtype=torch.float64)),
    ("out", torch.zeros(3, 128)),
    ("out", lambda a: strided(torch.zeros(2, 128), 1)),
    ("out", lambda a: torch.zeros(128).expand(2, 128)),
    ("cap", 64),
    ("compute_dtype", torch.float16),
]  # fmt: skip


@pytest.mark.parametrize("name,value", LOGITS_ERRORS)
def test_logits_refuses(name, value):
    arguments = logits_arguments()
    out = arguments["out"]
    arguments[name] = value(arguments) if callable(value) else value
    with pytest.raises(ArgumentError, match=f"^{name}: got .*, accepted is "):
        indexer_logits(**arguments)
    assert bool((out == 7.0).all())


def test_logits_refuses_an_out_of_another_width():
    with pytest.raises(ArgumentError, match="^out: got shape"):
        indexer_logits(**logits_arguments(), max_seq_len=64)


def test_logits_refuses_a_cap_that_is_no_width():
    with pytest.raises(ArgumentError, match="^cap: got 0, accepted"):
        indexer_logits(**logits_arguments(), impl="capped", cap=0)


def test_checking_mode_names_row_and_position():
    arguments = logits_arguments()
    arguments["block_table"][0, 1] = 99
    message = "^block_table: got page 99 at row 0, position 1, accepted is a page below"
    with pytest.raises(ArgumentError, match=message):
        indexer_logits(**arguments, check_indices=True)
    assert bool((arguments["out"] == 7.0).all())
    arguments = logits_arguments()
    arguments["block_table"][1, 1] = 99
    indexer_logits(**arguments, check_indices=True)


TOPK_ERRORS = [
    ("impl", "sort"),
    ("logits", [1.0]),
    ("logits", torch.zeros(2, 128, dtype=torch.float64)),
    ("logits", torch.zeros(128)),
    ("logits", torch.zeros(2, 0)),
    ("logits", lambda a: strided(a["logits"], 1)),
    ("seq_lens", lambda a: a["seq_lens"].long()),
    ("seq_lens", lambda a: a["seq_lens"][:1]),
    ("seq_lens", lambda a: a["seq_lens"].to(META)),
    ("block_table", lambda a: a["block_table"][:1]),
    ("block_table", lambda a: a["block_table"].float()),
    ("k", 0),
    ("k", 2049),
    ("k", 4.0),
    ("out", torch.zeros(2, 4, dtype=torch.int64)),
    ("out", torch.zeros(2, 5, dtype=torch.int32)),
    ("out", lambda a: strided(a["out"], 1)),
    ("workspace", torch.zeros(2, 2, 4, dtype=torch.int32)),
    ("workspace", torch.zeros(1, dtype=torch.uint8)),
    ("workspace", lambda a: torch.zeros(4, 2, 8, 2, dtype=torch.int32).permute(3, 1, 2, 0)),
]


@pytest.mark.parametrize("name,value", TOPK_ERRORS)
def test_topk_refuses(name, value):
    arguments = topk_arguments()
    out = arguments["out"]
    arguments[name] = value(arguments) if callable(value) else value
    with pytest.raises(ArgumentError, match=f"^{name}: got .*, accepted is "):
        indexer_topk(**arguments)
    assert bool((out == 7).all())


def test_an_explicit_rung_never_falls_back(monkeypatch):
    from kernels.indexer import api

    monkeypatch.setattr(api, "INTERPRETED", False)
    with pytest.raises(ArgumentError, match="^impl: got 'paged' with tensors on cpu, accepted is a CUDA"):
        indexer_logits(**logits_arguments(), impl="paged")
    with pytest.raises(ArgumentError, match="^impl: got 'radix'"):
        indexer_topk(**topk_arguments())
    assert layout.PAGE_BYTES == 8448
