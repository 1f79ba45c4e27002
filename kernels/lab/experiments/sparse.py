"""Builds sparse-MLA points: a pool of quantised tokens, disjoint index sets, calls, and the check in
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels.lab import peers, timing
from kernels.lab.experiments.point import Point
from kernels.sparse_mla import layout
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.api import sparse_mla_decode
from kernels.sparse_mla.reference import sparse_mla_decode_reference
from kernels.sparse_mla.tiles import Tile

POOL_TOKENS, SWA_POOL_TOKENS, SWA_PAGE = 1 << 20, 1 << 18, 128
TOLERANCE = 3e-3
LSE_TOLERANCE = 1e-5
CHECKED_ROWS = 8
SCALE = layout.HEAD_DIM**-0.5
_CHUNK = 1 << 16
_pools: dict[tuple, torch.Tensor] = {}
Judge = Callable[..., tuple[float, str | None]]


def pool(tokens: int, page_size: int, device: str) -> torch.Tensor:
    """A cache of random tokens, made once a process; values of a few units, so that softmax is neither flat
    nor sharp.
    """
    key = (tokens, page_size, device)
    if key not in _pools:
        generator = torch.Generator(device=device).manual_seed(1)
        cache = layout.allocate_cache(tokens // page_size, page_size, device=device)
        for start in range(0, tokens, _CHUNK):
            count = min(_CHUNK, tokens - start)
            kv = torch.randn(count, layout.HEAD_DIM, device=device, generator=generator, dtype=torch.float32)
            slots = torch.arange(start, start + count, device=device)
            layout.store_kv(cache, slots, (kv * 0.5).to(torch.bfloat16))
        _pools[key] = cache
    return _pools[key]


def release() -> None:
    """Give the pools' memory back."""
    _pools.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def disjoint(sets: int, batch: int, width: int, tokens: int, device: str, seed: int) -> torch.Tensor:
    """int32 [sets, batch, width] of token slots, distinct within a set, and over all sets where the pool
    allows.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    need = batch * width
    if need > tokens:
        rows = [
            torch.randperm(tokens, device=device, generator=generator)[:width] for _ in range(sets * batch)
        ]
        return torch.stack(rows).to(torch.int32).reshape(sets, batch, width)
    per_order = tokens // need
    found = []
    while len(found) < sets:
        order = torch.randperm(tokens, device=device, generator=generator)
        found += list(order[: per_order * need].reshape(per_order, batch, width).to(torch.int32))
    return torch.stack(found[:sets])


@dataclass
class Inputs:
    """What every implementation of one shape gets; rotating inputs along the first dimension."""

    q: torch.Tensor
    kv: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor | None
    swa_kv: torch.Tensor | None
    swa_indices: torch.Tensor | None
    sink: torch.Tensor

    def arguments(self, index: int) -> dict[str, Any]:
        """Keyword arguments of `sparse_mla_decode` for one set: the sliding window is the main cache, if
        there.
        """
        if self.swa_kv is None:
            one = {"kv_cache": self.kv, "indices": self.indices[index], "topk_length": self.lengths}
        else:
            one = {
                "kv_cache": self.swa_kv,
                "indices": self.swa_indices[index],
                "topk_length": None,
                "extra_kv_cache": self.kv,
                "extra_indices": self.indices[index],
                "extra_topk_length": self.lengths,
            }
        return {"q": self.q[index], "softmax_scale": SCALE, "attn_sink": self.sink, **one}


def bytes_per_call(point: Point) -> int:
    """Distinct bytes that one call reads: live KV rows, the queries, the live indices."""
    live = min(point.topk, point.context or point.topk) + point.swa_tokens
    return point.batch * (live * (layout.ENTRY_BYTES + 4) + point.heads * layout.HEAD_DIM * 2)


def inputs(point: Point, device: str, sets: int, pool_tokens: int | None = None) -> Inputs:
    """Random inputs for a point; the same seed for every implementation of a shape."""
    tokens = pool_tokens or _pool_tokens(device)
    tokens -= tokens % point.page_size
    generator = torch.Generator(device=device).manual_seed(2)
    q = torch.randn(sets, point.batch, point.heads, layout.HEAD_DIM, device=device, generator=generator)
    live = point.context if point.context and point.context < point.topk else None
    lengths = None if live is None else torch.full((point.batch,), live, dtype=torch.int32, device=device)
    if live is None:
        indices = disjoint(sets, point.batch, point.topk, tokens, device, 3)
    else:  # positions past the length may hold anything: they hold absent entries
        indices = torch.full((sets, point.batch, point.topk), -1, dtype=torch.int32, device=device)
        indices[..., :live] = disjoint(sets, point.batch, live, tokens, device, 3)
    swa_kv = swa_indices = None
    if point.swa_tokens:
        swa_tokens = min(SWA_POOL_TOKENS, tokens)
        swa_kv = pool(swa_tokens - swa_tokens % SWA_PAGE, SWA_PAGE, device)
        width = swa_kv.shape[0] * SWA_PAGE
        swa_indices = disjoint(sets, point.batch, point.swa_tokens, width, device, 4)
    sink = torch.randn(point.heads, device=device, generator=generator)
    return Inputs(
        q.to(torch.bfloat16),
        pool(tokens, point.page_size, device),
        indices,
        lengths,
        swa_kv,
        swa_indices,
        sink,
    )


def _pool_tokens(device: str) -> int:
    if device == "cpu":
        return 512
    free, _ = torch.cuda.mem_get_info()
    return min(POOL_TOKENS, max(1 << 16, free // 8 // layout.ENTRY_BYTES // 4096 * 4096))


def planned(point: Point, device: str):
    """The launch plan that a point asks for, or the planner's own choice."""
    target = planning.device_of(torch.empty(0, device=device))
    main, extra = (point.swa_tokens, point.topk) if point.swa_tokens else (point.topk, 0)
    ragged = bool(point.context and point.context < point.topk)  # as `inputs` makes lengths
    if point.tile is not None:
        splits = point.num_splits
        if splits is None:
            splits = planning.plan(
                point.batch,
                point.heads,
                main,
                extra,
                device=target,
                impl=point.impl if point.impl in planning.SPLITTING else "split_k",
                tile_class=point.tile_class,
                ragged=ragged,
            ).num_splits
        splits = splits if point.impl in planning.SPLITTING else 1
        return planning.Plan(point.impl, Tile(*point.tile), splits, point.release)
    return planning.plan(
        point.batch,
        point.heads,
        main,
        extra,
        device=target,
        impl=point.impl,
        tile_class=point.tile_class,
        num_splits=point.num_splits,
        can_stage=device != "cpu",
        ragged=ragged,
    )


def errors(out, lse, want_out, want_lse) -> tuple[float, str | None]:
    """(relative RMS error of the output, what is wrong with the LSE or None)."""
    if not bool(torch.isfinite(out).all()):
        return float("nan"), "the output holds NaN or infinity"
    scale = want_out.pow(2).mean().sqrt().clamp_min(1e-30)
    error = float(((out.double() - want_out).pow(2).mean().sqrt() / scale).item())
    off = float(((lse.double() - want_lse).abs() / want_lse.abs().clamp_min(1.0)).max().item())
    return error, None if off <= LSE_TOLERANCE else f"LSE is off by {off:.2g}, accepted {LSE_TOLERANCE:.0e}"


def build(
    point: Point, device: str = "cuda", sets: int | None = None, pool_tokens: int | None = None
) -> timing.Case:
    """A case ready to be checked and timed.

    sets: rotating inputs, by default as many as exceed the L2. Raises LookupError with the reason when the
    point's peer cannot take it here.
    """
    if sets is None:
        sets = timing.sets_needed(bytes_per_call(point), timing.device_l2_bytes())
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    if point.impl == "flash_mla":
        reason = peers.flash_mla_why_not(point.heads, point.topk, capability, point.swa_tokens)
        if reason is None and point.context is not None:
            reason = "the peer is timed with full rows only"
        if reason is not None:
            raise LookupError(reason)
    given = inputs(point, device, sets, pool_tokens)
    row = point.row()
    if point.impl == "flash_mla":
        calls = _flash_mla_calls(given, sets)
    else:
        chosen = planned(point, device)
        tile = chosen.tile
        row.update(
            num_splits=chosen.num_splits,
            block_h=tile.block_h,
            block_t=tile.block_t,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        scratch = getattr(torch, point.scratch)
        decode = partial(sparse_mla_decode, plan=chosen, scratch_dtype=scratch)
        calls = own_calls(decode, point, given, sets, chosen.scratch_splits, scratch)
    return timing.Case(row, calls, check_of(calls, point, given), TOLERANCE, bytes_per_call(point))


def check_of(calls: Sequence[timing.Call], point: Point, given: Inputs, judge: Judge = errors) -> Callable:
    """The check of a case: some rows of the first timed call against the float64 reference, as `judge` sees them."""

    def check() -> tuple[float, str | None]:
        out, lse = calls[0]()
        count = min(point.batch, CHECKED_ROWS)
        rows = torch.linspace(0, point.batch - 1, count, device=out.device).round().long()
        arguments = given.arguments(0)
        for name in ("q", "indices", "topk_length", "extra_indices", "extra_topk_length"):
            if arguments.get(name) is not None:
                arguments[name] = arguments[name][rows]
        return judge(out[rows], lse[rows], *sparse_mla_decode_reference(**arguments))

    return check


def own_calls(
    decode: Callable,
    point: Point,
    given: Inputs,
    sets: int,
    splits: int,
    scratch: torch.dtype = torch.bfloat16,
) -> list[timing.Call]:
    """A call of `decode` for each set, with results of its own and one workspace for `splits` partial outputs a row."""
    size = planning.workspace_bytes(point.batch, point.heads, splits, scratch)
    workspace = torch.empty(size, dtype=torch.uint8, device=given.q.device)
    out = torch.empty_like(given.q)
    lse = torch.empty(sets, point.batch, point.heads, device=given.q.device)

    def one(index: int) -> timing.Call:
        arguments = given.arguments(index)
        return lambda: decode(**arguments, workspace=workspace, out=out[index], lse=lse[index])

    return [one(index) for index in range(sets)]


def _flash_mla_calls(given: Inputs, sets: int):
    peer = peers.FlashMla(SCALE)

    def one(index: int):
        arguments = given.arguments(index)
        names = ("q", "kv_cache", "indices", "attn_sink", "extra_kv_cache", "extra_indices")
        chosen = {name: arguments.get(name) for name in names}
        return lambda: peer.decode(**chosen)

    return [one(index) for index in range(sets)]
