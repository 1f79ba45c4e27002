"""Builds the indexer's points: logits over a paged cache, and top-k over logits, with disjoint pages a set."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.indexer import indexer_logits, indexer_topk, layout, topk_workspace
from kernels.indexer.plan import context_cap
from kernels.indexer.reference import indexer_logits_reference, topk_reference
from kernels.lab import peers, timing
from kernels.lab.experiments.point import ENTRY_TOKENS, Point

CHECKED_ROWS = 4
# Rungs of PyTorch round to bf16 before the head sum; the others accumulate in fp32, or in what FP8 MMA has.
TOLERANCES = {"uncapped": 1e-2, "capped": 1e-2, "paged": 2e-3, "deep_gemm": 2e-3}
MIN_PAGES = 1 << 14
_CHUNK_PAGES = 1024
_pools: dict[tuple, torch.Tensor] = {}


def pool(pages: int, device: str) -> torch.Tensor:
    """An index cache of random keys; grown, never shrunk, within a process."""
    for (kept, where), cache in _pools.items():
        if where == device and kept >= pages:
            return cache
    for key in [key for key in _pools if key[1] == device]:
        del _pools[key]
    generator = torch.Generator(device=device).manual_seed(5)
    cache = layout.allocate_index_cache(pages, device=device)
    for start in range(0, pages, _CHUNK_PAGES):
        count = min(_CHUNK_PAGES, pages - start) * layout.PAGE_ENTRIES
        keys = torch.randn(count, layout.INDEX_DIM, device=device, generator=generator)
        first = start * layout.PAGE_ENTRIES
        layout.store_index_keys(cache, torch.arange(first, first + count, device=device), keys)
    _pools[(pages, device)] = cache
    return cache


def release() -> None:
    """Give the pool's memory back."""
    _pools.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def entries(point: Point) -> tuple[int, int]:
    """(live, configured) entries of a row: a quarter of the tokens."""
    if not point.context or not point.max_context or point.context > point.max_context:
        raise ValueError(
            f"context={point.context}, max_context={point.max_context}; accepted: context <= max_context"
        )
    return point.context // ENTRY_TOKENS, point.max_context // ENTRY_TOKENS


def bytes_per_call(point: Point) -> int:
    """Distinct bytes of the index cache that one call reads."""
    live, configured = entries(point)
    if point.impl == "uncapped":
        read = configured
    elif point.impl == "capped":
        read = context_cap(live, configured)
    else:
        read = live
    return point.batch * (read * layout.ENTRY_BYTES + layout.INDEX_HEADS * (layout.INDEX_DIM + 4))


@dataclass
class Inputs:
    """Rotating queries, weights and block tables over one cache; lengths and output are shared."""

    q: torch.Tensor
    weights: torch.Tensor
    cache: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    out: torch.Tensor


def inputs(point: Point, device: str, sets: int) -> Inputs:
    """Live pages are disjoint over all sets; table entries past a row's need name arbitrary valid pages, as
    an engine's do.
    """
    live, configured = entries(point)
    live_pages, width = layout.pages_for(live), layout.pages_for(configured)
    distinct = sets * point.batch * live_pages
    # Dead table entries must not all hit the L2 either, or the uncapped rung would look too good.
    cache = pool(max(distinct, MIN_PAGES if device == "cuda" else 64), device)
    generator = torch.Generator(device=device).manual_seed(6)
    shape = (sets, point.batch)
    tables = torch.randint(
        cache.shape[0], (*shape, width), device=device, generator=generator, dtype=torch.int32
    )
    order = torch.randperm(cache.shape[0], device=device, generator=generator)[:distinct]
    tables[..., :live_pages] = order.reshape(*shape, live_pages).to(torch.int32)
    heads, dim = layout.INDEX_HEADS, layout.INDEX_DIM
    q = torch.randn(*shape, heads, dim, device=device, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.randn(*shape, heads, device=device, generator=generator) * (heads * dim) ** -0.5
    lengths = torch.full((point.batch,), live, dtype=torch.int32, device=device)
    out = torch.empty(point.batch, configured, device=device)
    return Inputs(q, weights, cache, tables, lengths, out)


def build_logits(point: Point, device: str = "cuda", sets: int | None = None) -> timing.Case:
    """A case of op indexer_logits. Raises LookupError with the reason when the peer cannot run here."""
    live, configured = entries(point)
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    if point.impl == "deep_gemm":
        reason = peers.deep_gemm_why_not(capability)
        if reason is not None:
            raise LookupError(reason)
    if sets is None:
        sets = timing.sets_needed(bytes_per_call(point), timing.device_l2_bytes())
    given = inputs(point, device, sets)
    if point.impl == "deep_gemm":
        sm_count = torch.cuda.get_device_properties(0).multi_processor_count
        peer = peers.DeepGemm(given.lengths, sm_count)

        def one(index: int):
            return lambda: peer.logits(
                given.q[index], given.cache, given.weights[index], given.tables[index], configured
            )
    else:
        # The consumer follows the lengths, so the tail is not filled: capturing needs the cap from the host.
        options = {"cap": context_cap(live, configured)} if point.impl == "capped" else {}

        def one(index: int):
            return lambda: indexer_logits(
                given.q[index],
                given.cache,
                given.weights[index],
                given.lengths,
                given.tables[index],
                impl=point.impl,
                max_seq_len=configured,
                out=given.out,
                fill_tail=False,
                **options,
            )

    calls = [one(index) for index in range(sets)]

    def check() -> tuple[float, str | None]:
        got = calls[0]()
        rows = (
            torch.linspace(0, point.batch - 1, min(point.batch, CHECKED_ROWS), device=device).round().long()
        )
        want = indexer_logits_reference(
            given.q[0][rows],
            given.cache,
            given.weights[0][rows],
            given.lengths[rows],
            given.tables[0][rows],
            live,
        )
        got = got[rows, :live].double()
        error = (got - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt()
        return float(error.item()), None if bool(torch.isfinite(got).all()) else "a live logit is not finite"

    return timing.Case(point.row(), calls, check, TOLERANCES[point.impl], bytes_per_call(point))


def build_topk(point: Point, device: str = "cuda", sets: int | None = None) -> timing.Case:
    """A case of op indexer_topk: the logits are in the L2, as right after the kernel that wrote them.

    The relative error is the share of selected indices that the reference does not have; the tolerance is 0.
    """
    live, configured = entries(point)
    sets = sets or timing.MIN_SETS
    width = layout.pages_for(configured)
    generator = torch.Generator(device=device).manual_seed(7)
    logits = torch.full((sets, point.batch, configured), -torch.inf, device=device)
    logits[..., :live] = torch.randn(sets, point.batch, live, device=device, generator=generator)
    table = torch.arange(point.batch * width, device=device, dtype=torch.int32).reshape(point.batch, width)
    lengths = torch.full((point.batch,), live, dtype=torch.int32, device=device)
    out = torch.empty(sets, point.batch, point.topk, dtype=torch.int32, device=device)
    options = {"workspace": topk_workspace(point.batch, point.topk, device)} if point.impl == "radix" else {}

    def one(index: int):
        return lambda: indexer_topk(
            logits[index], lengths, table, point.topk, impl=point.impl, out=out[index], **options
        )

    calls = [one(index) for index in range(sets)]

    def check() -> tuple[float, str | None]:
        got = calls[0]()
        rows = (
            torch.linspace(0, point.batch - 1, min(point.batch, CHECKED_ROWS), device=device).round().long()
        )
        want = topk_reference(logits[0][rows], lengths[rows], table[rows], point.topk)
        wrong = (got[rows].sort(dim=1).values != want.sort(dim=1).values).double().mean()
        return float(wrong.item()), None

    return timing.Case(point.row(), calls, check, 0.0, None)
