"""Every argument that a kernel would misread is refused by name before a launch, and nothing is written."""

import pytest
import torch

from kernels.sparse_mla import ArgumentError, Plan, Tile, pack_cache, sparse_mla_decode, workspace_bytes
from kernels.sparse_mla.validate import MAX_PAGE_SIZE

META = torch.device("meta")
BF16 = torch.bfloat16


def arguments():
    kv = torch.randn(12, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    return {
        "q": torch.zeros(2, 3, 512, dtype=BF16),
        "kv_cache": pack_cache(kv, 4),
        "indices": torch.zeros(2, 5, dtype=torch.int32),
        "topk_length": torch.tensor([5, 1], dtype=torch.int32),
        "attn_sink": torch.zeros(3),
        "extra_kv_cache": pack_cache(kv, 2),
        "extra_indices": torch.ones(2, 4, dtype=torch.int32),
        "extra_topk_length": torch.tensor([0, 4], dtype=torch.int32),
        "out": torch.full((2, 3, 512), 7.0, dtype=BF16),
        "lse": torch.full((2, 3), 7.0),
        "workspace": torch.full((2**16,), 7, dtype=torch.uint8),
        "impl": "split_k",
        "num_splits": 2,
    }


def every_second(tensor):
    """The same values at twice the stride in the last dimension."""
    return torch.stack([tensor, tensor], -1).flatten(-2)[..., ::2]


def cache_view(stride, page_stride=584, dtype=torch.uint8):
    storage = torch.zeros(2**16, dtype=torch.uint8).view(dtype)
    return storage.as_strided((3, 4, 1, 584), (stride, page_stride, 584, 1))


def huge_page(argument):
    return torch.zeros(1, dtype=torch.uint8, device="cpu").expand(1, MAX_PAGE_SIZE + 1, 1, 584)


ERRORS = [
    ("q", None),
    ("q", lambda a: a["q"].half()),
    ("q", lambda a: a["q"][..., :448]),
    ("q", lambda a: a["q"][0]),
    ("q", lambda a: a["q"][:, :0]),
    ("q", lambda a: torch.zeros(2, 2, 3, 512, dtype=BF16)),
    ("q", lambda a: every_second(a["q"])),
    ("q", lambda a: a["q"].to(META)),
    *(
        (prefix + name, change)
        for prefix in ("", "extra_")
        for name, change in (
            ("kv_cache", "cache"),
            ("kv_cache", lambda a, k: a[k].float()),
            ("kv_cache", lambda a, k: a[k][..., :576]),
            ("kv_cache", lambda a, k: a[k][:, :0]),
            ("kv_cache", lambda a, k: a[k][0, 0]),
            ("kv_cache", lambda a, k: a[k].expand(-1, -1, 2, -1)),
            ("kv_cache", lambda a, k: a[k].to(META)),
            ("kv_cache", lambda a, k: cache_view(584 * 4 - 1)),
            ("kv_cache", lambda a, k: cache_view(584 * 8, 584 * 2)),
            ("kv_cache", lambda a, k: every_second(cache_view(584 * 4))),
            ("kv_cache", lambda a, k: huge_page(a)),
            ("indices", [[1]]),
            ("indices", lambda a, k: a[k].long()),
            ("indices", lambda a, k: a[k][:1]),
            ("indices", lambda a, k: a[k][0]),
            ("indices", lambda a, k: a[k][:, :0]),
            ("indices", lambda a, k: every_second(a[k])),
            ("indices", lambda a, k: a[k][:, None].expand(2, 2, -1)),
            ("indices", lambda a, k: a[k].to(META)),
            ("topk_length", 5),
            ("topk_length", lambda a, k: a[k].long()),
            ("topk_length", lambda a, k: a[k][:1]),
            ("topk_length", lambda a, k: a[k][:, None].expand(2, 2)),
            ("topk_length", lambda a, k: a[k].to(META)),
        )
    ),
    ("extra_indices", None),
    ("extra_kv_cache", None),
    ("attn_sink", 1.0),
    ("attn_sink", lambda a: a["attn_sink"].double()),
    ("attn_sink", lambda a: a["attn_sink"][:2]),
    ("attn_sink", lambda a: every_second(a["attn_sink"])),
    ("attn_sink", lambda a: a["attn_sink"].to(META)),
    ("softmax_scale", torch.tensor(1.0)),
    ("softmax_scale", "1"),
    ("impl", "fast"),
    ("num_splits", 0),
    ("num_splits", 65),
    ("num_splits", True),
    ("num_splits", 2.0),
    ("tile_class", "sm90"),
    ("scratch_dtype", torch.float16),
    ("plan", 3),
    ("plan", Plan("fast", Tile(16, 32, 4))),
    ("plan", Plan("split_k", Tile(16, 32, 4), 65)),
    ("plan", Plan("mma", Tile(16, 32, 4), 2)),
    ("plan", Plan("staged", Tile(16, 32, 4), 2, "later")),
    ("out", [1]),
    ("out", torch.zeros(2, 3, 512)),
    ("out", torch.zeros(2, 4, 512, dtype=BF16)),
    ("out", torch.zeros(2, 3, 1024, dtype=BF16)[..., ::2]),
    ("out", torch.zeros(3, 512, dtype=BF16).expand(2, 3, 512)),
    ("out", torch.zeros(8, 512, dtype=BF16).as_strided((2, 3, 512), (1024, 512, 1))),
    ("out", lambda a: a["out"].to(META)),
    ("lse", torch.zeros(2, 3, dtype=torch.float64)),
    ("lse", torch.zeros(3, 2)),
    ("lse", torch.zeros(3, 2).T),
    ("lse", torch.zeros(3).expand(2, 3)),
    ("workspace", [1]),
    ("workspace", torch.zeros((), dtype=torch.uint8)),
    ("workspace", torch.zeros(2**16, dtype=torch.int8)),
    ("workspace", torch.zeros(2**8, 2**8, dtype=torch.uint8)),
    ("workspace", torch.zeros(2**17, dtype=torch.uint8)[::2]),
    ("workspace", torch.zeros(2 * 2 * 3 * 1028 - 1, dtype=torch.uint8)),
    ("workspace", torch.zeros(2**16, dtype=torch.uint8)[1:]),
    ("workspace", lambda a: a["workspace"].to(META)),
]


@pytest.mark.parametrize(
    "number", range(len(ERRORS)), ids=[f"{n}-{name}" for n, (name, _) in enumerate(ERRORS)]
)
def test_refused(number, tally):
    tally("errors")
    name, value = ERRORS[number]
    given = arguments()
    if callable(value):
        value = value(given) if value.__code__.co_argcount == 1 else value(given, name)
    before = {key: given[key] for key in ("out", "lse", "workspace")}
    given[name] = value
    with pytest.raises(ArgumentError, match=f"^{name}: got .+, accepted is .+"):
        sparse_mla_decode(**given)
    for key, tensor in before.items():
        assert bool((tensor == 7).all()), f"{key} was written"


@pytest.mark.parametrize("name", ["extra_indices", "extra_topk_length"])
def test_half_of_an_extra_cache(name):
    given = {key: value for key, value in arguments().items() if not key.startswith("extra_")}
    given[name] = arguments()[name]
    with pytest.raises(ArgumentError, match="^extra_kv_cache: got None, accepted is"):
        sparse_mla_decode(**given)


def test_splits_of_a_rung_that_does_not_split():
    for impl in ("serial", "simt", "mma"):
        with pytest.raises(ArgumentError, match=f"^num_splits: got 2 with impl='{impl}'"):
            sparse_mla_decode(**arguments() | {"impl": impl})
    with pytest.raises(ArgumentError, match="^num_splits: got 2, accepted is None, because batch_invariant"):
        sparse_mla_decode(**arguments(), batch_invariant=True)


def test_the_environment_is_checked_as_an_argument(monkeypatch):
    monkeypatch.setenv("SPARSE_MLA_IMPL", "fastest")
    with pytest.raises(ArgumentError, match="^SPARSE_MLA_IMPL: got 'fastest', accepted is"):
        sparse_mla_decode(**arguments() | {"impl": "auto"})
    with pytest.raises(ArgumentError, match="^SPARSE_MLA_IMPL: got 'fastest', accepted is"):
        workspace_bytes(2, 3, 5)


@pytest.mark.parametrize("prefix", ["", "extra_"])
@pytest.mark.parametrize("slot", [12, 2**31 - 1])
def test_the_checking_mode_names_row_and_position(prefix, slot, tally):
    tally("slots past the cache")
    given = arguments() | {"validate": True}
    given[f"{prefix}topk_length"][:] = 4
    given[f"{prefix}indices"][1, 3] = slot
    message = f"^{prefix}indices: got slot {slot} at row 1, position 3, accepted is slots below 12"
    with pytest.raises(ArgumentError, match=message):
        sparse_mla_decode(**given)
    assert bool((given["out"] == 7).all() and (given["lse"] == 7).all() and (given["workspace"] == 7).all())


def test_the_checking_mode_looks_at_what_counts_only():
    given = arguments() | {"validate": True, "topk_length": torch.tensor([[5], [3]], dtype=torch.int32)}
    given["indices"][1, 3:] = 2**31 - 1
    given["indices"][0, 2] = -(2**31)
    given["extra_topk_length"] = None
    out, _ = sparse_mla_decode(**given)
    assert out is given["out"] and not bool((out == 7).any())


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(
        ArgumentError, match="^q: got device cpu, accepted is cuda, or cpu where Triton interprets"
    ):
        sparse_mla_decode(**arguments())


@pytest.mark.gpu
def test_mixed_devices():
    given = arguments()
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and name != "q":
            on_gpu = {
                k: v.cuda() if isinstance(v, torch.Tensor) and k != name else v for k, v in given.items()
            }
            with pytest.raises(
                ArgumentError, match=f"^{name}: got device cpu, accepted is the device of q, cuda:0"
            ):
                sparse_mla_decode(**on_gpu)
            assert value.device.type == "cpu"
