"""Inputs whose every unused byte is poison, a dense oracle, and error bounds derived from the arithmetic."""

from dataclasses import dataclass, field, fields

import pytest
import torch

from kernels.sparse_mla import IMPLS, layout, sparse_mla_decode, workspace_bytes
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.tiles import FEW_HEADS_TILES, Tile

INT_MAX = 2**31 - 1
INT_MIN = -(2**31)
# 0xFF is NaN as e4m3, as bfloat16, as float32 and as a scale.
NAN_BYTE = 0xFF
# Large and finite as bfloat16 and float32, close to INT_MAX as int32: what a NaN check downstream would miss.
HUGE_BYTE = 0x7F
GUARD = 4096
# Gathered keys that the oracle holds at a time: many processes share a GPU's memory.
KEY_BYTES = 2**28
INTERPRETABLE = ("serial", "simt", "mma", "split_k")
# Rung `staged` runs other kernels for tiles with producers, for wide tiles and for few heads. The planner takes them
# for some shapes only, so that tests ask for them by a plan. Those that multiply by wgmma are for Hopper, and so is a
# pair of blocks, which needs more shared memory than sm_120 has.
OTHER_KERNELS = {
    "staged-producers": Tile(64, 16, 8, 2, False, 4),
    "staged-producers-16": Tile(16, 32, 4, 2, False, 4),
    "staged-producers-wgmma": Tile(64, 64, 8, 2, True, 4),
    "staged-wide": Tile(64, 128, 8, 1, True),
    "staged-few": Tile(*FEW_HEADS_TILES[0]),
    "staged-few-pair": Tile(*FEW_HEADS_TILES[1]),
}
PATTERNS = ("dense", "tail", "leading", "alternating", "none", "last")


def on_every_device(function):
    """Parametrise a test over every rung where it runs: interpreted on the CPU, compiled on a GPU.

    The rungs of a GPU are followed by the tiles of the staged rung's other kernels: `how` makes arguments of either.
    """
    interpreted = [(impl, "cpu") for impl in interpretable_impls()]
    compiled = [pytest.param(impl, "cuda", marks=pytest.mark.gpu) for impl in (*IMPLS, *runnable_tiles())]
    return pytest.mark.parametrize("impl,device", interpreted + compiled)(function)


def interpretable_impls() -> tuple[str, ...]:
    """The rungs that Triton's interpreter runs; the others are compiled, and run under `-m gpu`."""
    return tuple(impl for impl in IMPLS if impl in INTERPRETABLE)


def runnable_tiles() -> tuple[str, ...]:
    """The names of `OTHER_KERNELS` that this machine's GPU can run; all of them without a GPU."""
    hopper = not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == 9
    return tuple(name for name, tile in OTHER_KERNELS.items() if hopper or not (tile.wgmma or tile.pair))


def copies_rows(name: str) -> bool:
    """Whether a name of `OTHER_KERNELS` is that of a tile that needs rows at multiples of 16 bytes."""
    return name in OTHER_KERNELS and OTHER_KERNELS[name].few


def tile_plan(name: str, num_splits: int | None = None) -> planning.Plan:
    """The plan behind a name of `OTHER_KERNELS`: two splits unless others are asked for."""
    return planning.Plan("staged", OTHER_KERNELS[name], num_splits or 2)


def how(impl: str, **options) -> dict:
    """The arguments of a call that choose a rung and what goes with it, or a tile of another kernel.

    A plan that is given looks at no batch and at no class of tiles: the options that ask for it are left out.
    """
    if impl not in OTHER_KERNELS:
        return {"impl": impl} | options
    kept = {n: v for n, v in options.items() if n not in ("num_splits", "batch_invariant", "tile_class")}
    return {"plan": tile_plan(impl, options.get("num_splits"))} | kept


@dataclass
class Cache:
    """A cache of poison with some live slots.

    Attributes:
        tensor: uint8 `[pages, P, 1, 584]`.
        slots: int64 `[N]`, the live ones; slot 0 never is.
        values: float64 `[N + 1, 512]`, what they hold; the last row, zeros, stands for an absent candidate.
    """

    tensor: torch.Tensor
    slots: torch.Tensor
    values: torch.Tensor


def make_cache(page_size, live, *, stride="padded", offset=0, seed=0, scale=1.0, device="cpu") -> Cache:
    """About half of the slots behind slot 0 are live. The storage ends with the last page's last used byte.

    Args:
        stride: "packed" (584 * P), "padded", "wide" (one layer of several in a block) or "odd" (odd bytes).
        offset: bytes before the first page.
    """
    generator = torch.Generator().manual_seed(seed)
    num_pages = 2 + 2 * live // page_size
    padded = layout.padded_page_stride(page_size)
    used = layout.ENTRY_BYTES * page_size
    strides = {"packed": used, "padded": padded, "wide": 4 * padded + 576, "odd": padded + 37}
    page_stride = strides[stride]
    size = offset + (num_pages - 1) * page_stride + used
    storage = torch.full((size,), NAN_BYTE, dtype=torch.uint8, device=device)
    cache = layout.view_pages(storage, num_pages, page_size, page_stride, offset)
    slots = (1 + torch.randperm(num_pages * page_size - 1, generator=generator)[:live]).to(device)
    kv = (torch.randn(live, layout.HEAD_DIM, generator=generator) * scale).bfloat16().to(device)
    layout.store_kv(cache, slots, kv)
    values = torch.cat(
        [layout.load_kv(cache, slots), torch.zeros(1, layout.HEAD_DIM, dtype=torch.float64, device=device)]
    )
    return Cache(cache, slots, values)


def present_mask(pattern: str, width: int, tile: int) -> torch.Tensor:
    """Which of a row's first `width` candidates exist, bool `[width]`."""
    position = torch.arange(width)
    if pattern == "dense":
        return position >= 0
    if pattern == "tail":
        return position < width - -(-width // 3)
    if pattern == "leading":  # a whole tile and more, where the row has one to spare
        return position >= min(max(tile, width // 2), width - 1)
    if pattern == "alternating":
        return position % 2 == 1
    if pattern == "none":
        return position < 0
    if pattern == "last":
        return position == width - 1
    raise ValueError(f"pattern: got {pattern!r}, accepted are {PATTERNS}")


def row_length(symbol, width: int, tile: int) -> int | None:
    """A length by name: None, an integer, "tile-1", "tile", "tile+1", "K" or "K+5"."""
    names = {"tile-1": tile - 1, "tile": tile, "tile+1": tile + 1, "K": width, "K+5": width + 5}
    return names.get(symbol, symbol)


@dataclass
class Side:
    """One cache's part of a case; `rows` `[B, K]`: the row of `cache.values` that a candidate is."""

    cache: Cache
    indices: torch.Tensor
    length: torch.Tensor | None
    rows: torch.Tensor


def make_side(cache: Cache, rows, width: int, tile: int, *, seed=0, view="plain") -> Side:
    """Indices and lengths for `rows`, a list of (pattern, length by name).

    Behind a row's length lie INT_MAX and the poisoned slot 0 in turn. `view` is "plain", or "slices": indices
    and lengths are cut from wider buffers of poison.
    """
    generator = torch.Generator().manual_seed(seed)
    device = cache.tensor.device
    batch, live = len(rows), cache.slots.numel()
    has_length = rows[0][1] is not None
    absent = torch.tensor([-1, -1, -1, -2, INT_MIN])
    table = torch.full((batch, width), live)
    indices = torch.empty(batch, width, dtype=torch.int64)
    slots = cache.slots.cpu()
    lengths = []
    for row, (pattern, symbol) in enumerate(rows):
        length = row_length(symbol, width, tile)
        lengths.append(length)
        counted = width if length is None else max(0, min(length, width))
        chosen = torch.randint(0, live, (width,), generator=generator)
        position = torch.arange(width)
        indices[row] = torch.where(position % 2 == 0, INT_MAX, 0)
        mask = torch.zeros(width, dtype=torch.bool)
        mask[:counted] = present_mask(pattern, counted, tile)
        indices[row, :counted] = absent[torch.randint(0, 5, (counted,), generator=generator)]
        indices[row, mask] = slots[chosen[mask]]
        table[row, mask] = chosen[mask]
    indices, length = indices.to(torch.int32), None
    if has_length:
        length = torch.tensor(lengths, dtype=torch.int32)
    if view == "slices":
        wide = torch.full((batch + 1, width + 7), INT_MAX, dtype=torch.int32)
        wide[:batch, 1 : width + 1] = indices
        indices = wide.to(device)[:batch, 1 : width + 1]
        if has_length:
            wide = torch.full((batch, 3), INT_MAX, dtype=torch.int32)
            wide[:, 1] = length
            length = wide.to(device)[:, 1:2]
    return Side(cache, indices.to(device), None if length is None else length.to(device), table.to(device))


def make_query(batch: int, heads: int, *, view="plain", seed=0, scale=1.0, device="cpu") -> torch.Tensor:
    """bfloat16 `[B, H, 512]`; as "slices" some heads of every second row of a buffer of NaN."""
    generator = torch.Generator().manual_seed(seed)
    q = (torch.randn(batch, heads, layout.HEAD_DIM, generator=generator) * scale).bfloat16()
    if view == "plain":
        return q.to(device)
    wide = torch.full((2 * batch + 1, heads + 11, layout.HEAD_DIM), torch.nan, dtype=torch.bfloat16)
    wide[1::2, 4 : 4 + heads] = q
    return wide.to(device)[1::2, 4 : 4 + heads]


@dataclass
class Expected:
    """The oracle's answer and what bounds a correct kernel's distance from it.

    Attributes:
        out, lse: float64 `[B, H, 512]`, `[B, H]`.
        magnitude: the same attention over absolute values, `[B, H, 512]`: the size of what is summed.
        score_size: largest sum of `|q| * |k| * scale` over a row's candidates, `[B, H]`.
    """

    out: torch.Tensor
    lse: torch.Tensor
    magnitude: torch.Tensor
    score_size: torch.Tensor


@dataclass
class Case:
    q: torch.Tensor
    main: Side
    extra: Side | None = None
    sink: torch.Tensor | None = None
    scale: float = layout.HEAD_DIM**-0.5
    options: dict = field(default_factory=dict)

    def starts_at_multiples_of(self, count: int) -> bool:
        """Whether the first byte of every page does, in memory."""
        caches = [side.cache.tensor for side in (self.main, self.extra) if side is not None]
        return not any(cache.data_ptr() % count or cache.stride(0) % count for cache in caches)

    @property
    def arguments(self) -> dict:
        """The operator's arguments."""
        given = {
            "q": self.q,
            "kv_cache": self.main.cache.tensor,
            "indices": self.main.indices,
            "topk_length": self.main.length,
            "softmax_scale": self.scale,
            "attn_sink": self.sink,
        }
        if self.extra is not None:
            given |= {
                "extra_kv_cache": self.extra.cache.tensor,
                "extra_indices": self.extra.indices,
                "extra_topk_length": self.extra.length,
            }
        return given

    def expected(self) -> Expected:
        """Dense float64 attention over the gathered rows, absent candidates masked; no cache byte is read."""
        width = self.main.rows.shape[1] + (0 if self.extra is None else self.extra.rows.shape[1])
        step = max(1, KEY_BYTES // (width * layout.HEAD_DIM * 8))
        parts = [self._expected(slice(row, row + step)) for row in range(0, len(self.q), step)]
        return Expected(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Expected)))

    def _expected(self, some: slice) -> Expected:
        sides = [self.main] if self.extra is None else [self.main, self.extra]
        keys = torch.cat([side.cache.values[side.rows[some]] for side in sides], 1)
        present = torch.cat([side.rows[some] < side.cache.slots.numel() for side in sides], 1)[:, None]
        q = self.q[some].double()
        scores = (q @ keys.mT * self.scale).masked_fill(~present, -torch.inf)
        lse = torch.logsumexp(scores, -1)
        empty = ~present.any(-1)
        weights = torch.exp(scores - lse[..., None]).masked_fill(~present, 0.0)
        lse = lse.masked_fill(empty, torch.inf)
        if self.sink is not None:
            weights = weights * torch.sigmoid(lse - self.sink.double()).masked_fill(empty, 0.0)[..., None]
        out = weights @ keys
        score_size = (q.abs() @ keys.abs().mT * abs(self.scale)).masked_fill(~present, 0.0).amax(-1)
        return Expected(out, lse, weights @ keys.abs(), score_size)


def rounded_factors(impl: str, scratch_dtype=torch.bfloat16) -> int:
    """How many factors of a summand are rounded to bfloat16 on its way: weights, and partial outputs."""
    if impl in ("serial", "simt"):
        return 0
    if impl == "mma":
        return 1
    return 2 if scratch_dtype == torch.bfloat16 else 1


def bounds(expected: Expected, factors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest error of out `[B, H, 512]` and of lse `[B, H]` that the formats explain.

    Each rounding to bfloat16 (8 significant bits) is off by at most 2**-8 of its operand: once for the result
    and once a summand for each rounded factor. A score is a float32 sum of 512 products: its error grows like
    sqrt(512) * 2**-24 of the products' absolute sum, and doubles as the weight's relative error, because the
    LSE moves, too. float32 exponentials and sums add a few units of 2**-23.
    """
    score = expected.score_size * 2**-19
    relative = (factors * 2**-8 + 2**-18 + 2 * score)[..., None]
    # 2**-126: results below float32's normal range may be flushed
    out = expected.out.abs() * 2**-8 + expected.magnitude * relative * (1 + 2**-7) + 2**-126
    finite = expected.lse.masked_fill(expected.lse.isinf(), 0.0)
    return out, score + finite.abs() * 2**-21 + 2**-18


def compare(out, lse, expected: Expected, factors: int) -> list[str]:
    """What is wrong with a result, one line a finding; empty when nothing is."""
    found = []
    out, lse = out.double(), lse.double()
    out_bound, lse_bound = bounds(expected, factors)
    wrong = ~((out - expected.out).abs() <= out_bound)
    if wrong.any():
        row, head, column = wrong.nonzero()[0].tolist()
        found.append(
            f"out[{row}, {head}, {column}] is {float(out[row, head, column])!r}, expected "
            f"{float(expected.out[row, head, column])!r} within {float(out_bound[row, head, column]):.2e}; "
            f"{int(wrong.sum())} such elements in rows {sorted(set(wrong.nonzero()[:, 0].tolist()))[:8]}"
        )
    empty = expected.lse.isinf()
    close = torch.where(empty, lse == torch.inf, (lse - expected.lse).abs() <= lse_bound)
    if not close.all():
        row, head = (~close).nonzero()[0].tolist()
        found.append(
            f"lse[{row}, {head}] is {float(lse[row, head])!r}, expected {float(expected.lse[row, head])!r} "
            f"within {float(lse_bound[row, head]):.2e}; {int((~close).sum())} such elements"
        )
    if bool((out[empty] != 0).any()):
        found.append("out of an empty row is not exactly 0")
    return found


def guarded(shape, dtype, device, fill=NAN_BYTE) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous tensor of poison, and the bytes around it, which nobody may write."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    raw = torch.full((GUARD + size + GUARD,), fill, dtype=torch.uint8, device=device)
    return raw[GUARD : GUARD + size].view(dtype).view(shape), raw


def trespassed(raw: torch.Tensor, fill=NAN_BYTE) -> bool:
    """Whether a guard around a tensor of `guarded` was written."""
    return bool((raw[:GUARD] != fill).any() or (raw[-GUARD:] != fill).any())


def case_of_shares(device, caches, topk, heads, tile) -> Case:
    """Rows that are full, empty, short and full of gaps, in one cache, or with another of small pages behind it."""
    rows = [("alternating", "K"), ("none", "K"), ("dense", 1), ("dense", 0), ("dense", "K"), ("tail", "K")]
    main = make_side(make_cache(53, 40, device=device), rows, topk, tile)
    extra = make_side(make_cache(2, 40, device=device), rows[::-1], 40, tile) if caches == 2 else None
    q = make_query(len(rows), heads, device=device)
    return Case(q, main, extra, torch.zeros(heads, device=device))


def needed_workspace(case: Case, impl: str, **options) -> int:
    """What the public function asks for this call."""
    batch, heads, _ = case.q.shape
    if impl in OTHER_KERNELS:
        splits = tile_plan(impl, options.get("num_splits")).scratch_splits
        return planning.workspace_bytes(batch, heads, splits, options.get("scratch_dtype", torch.bfloat16))
    extra = 0 if case.extra is None else case.extra.indices.shape[1]
    return workspace_bytes(
        batch, heads, case.main.indices.shape[1], extra, device=case.q.device, impl=impl, **options
    )


def decode_guarded(case: Case, impl: str, *, scratch_fill=NAN_BYTE, **options):
    """Run the operator into poisoned, guarded results and scratch; (out, lse, findings about the guards)."""
    batch, heads, _ = case.q.shape
    device = case.q.device
    out, raw_out = guarded((batch, heads, layout.HEAD_DIM), torch.bfloat16, device)
    lse, raw_lse = guarded((batch, heads), torch.float32, device)
    workspace, raw_scratch = guarded(
        (needed_workspace(case, impl, **options),), torch.uint8, device, scratch_fill
    )
    sparse_mla_decode(**case.arguments, **how(impl, **options), workspace=workspace, out=out, lse=lse)
    found = [f"wrote outside {name}" for name, raw, fill in (
        ("out", raw_out, NAN_BYTE), ("lse", raw_lse, NAN_BYTE), ("workspace", raw_scratch, scratch_fill),
    ) if trespassed(raw, fill)]  # fmt: skip
    return out, lse, found


def planned(impl: str, heads: int, topk: int, extra_topk: int = 0, device="cpu", batch: int = 1):
    """The plan of a call, for its tile."""
    if impl in OTHER_KERNELS:
        return tile_plan(impl)
    target = planning.device_of(torch.empty(0, device=device))
    can_stage = torch.device(device).type == "cuda"
    return planning.plan(
        batch, heads, topk, extra_topk, device=target, impl=impl, can_stage=can_stage, ragged=True
    )
