"""What lives between steps: lengths, block tables at their real width, and every layer's caches and rings.

Lengths and tokens change in place, so that a captured graph goes on with the next step. The caches are
filled with random entries in the right format. Entries of the block table past a request's pages name
arbitrary pages of the pool, as an engine's stale table does: whoever follows the table and not the lengths
reads them.
"""

from dataclasses import dataclass

import torch

from kernels.decode_step.compressor import Ring
from kernels.decode_step.errors import reject, whole
from kernels.decode_step.indexing import hadamard
from kernels.decode_step.rope import frequencies
from kernels.decode_step.shapes import (
    HEAD_DIM,
    INDEX_DIM,
    PAGE_ENTRIES,
    PAGE_TOKENS,
    SWA_PAGE,
    Shapes,
)
from kernels.indexer.layout import PAGE_BYTES, allocate_index_cache, store_index_keys
from kernels.sparse_mla.layout import allocate_cache, padded_page_stride, store_kv

EXTRA_PAGE = {"c4": PAGE_TOKENS // 4, "c128": PAGE_TOKENS // 128}
SWA_PAGES_PER_ROW = 2
ROOM = 256  # tokens that every request may still grow by
TEMPLATE_PAGES = 1024  # distinct pages of a cache; the others repeat them


@dataclass(frozen=True)
class LayerCaches:
    """One layer's memory; what its kind lacks is None."""

    swa: torch.Tensor
    extra: torch.Tensor | None = None
    ring: Ring | None = None
    index: torch.Tensor | None = None
    index_ring: Ring | None = None


@dataclass(frozen=True)
class Plan:
    """How much memory a batch needs, from arithmetic alone."""

    shapes: Shapes
    batch: int
    context: int
    max_context: int
    pool_pages: int

    @property
    def row_pages(self) -> int:
        """Pages that a request owns: its context and room to grow."""
        return self.shapes.table_width(min(self.context + ROOM, self.max_context))

    def cache_bytes(self) -> int:
        """Bytes of every cache, ring and table."""
        s, batch = self.shapes, self.batch
        pages = self.pool_pages + 1
        swa = batch * SWA_PAGES_PER_ROW * padded_page_stride(SWA_PAGE)
        ring = {"c4": 8 * 2 * (HEAD_DIM + INDEX_DIM), "c128": 128 * HEAD_DIM}
        total = batch * (4 * s.table_width(self.max_context) + 4 * s.index_width(self.max_context))
        total += s.layers * swa
        for kind in ("c4", "c128"):
            count = s.kinds.count(kind)
            total += count * (pages * padded_page_stride(EXTRA_PAGE[kind]) + 8 * batch * ring[kind])
        return total + s.kinds.count("c4") * pages * PAGE_BYTES


def plan_state(
    shapes: Shapes, batch: int, context: int, max_context: int, pool_pages: int | None = None
) -> Plan:
    """Check a batch against its configuration.

    pool_pages: pages of 256 tokens in the cache; as many as the batch needs, but at least the shapes'
        least, when None.

    Raises:
        StepError: names the argument, what came and what is accepted.
    """
    whole("batch", batch)
    whole("context", context)
    whole("max_context", max_context)
    if max_context < context:
        reject("max_context", max_context, f"at least the context, {context}")
    needed = Plan(shapes, batch, context, max_context, 0).row_pages
    if pool_pages is None:
        pool_pages = max(shapes.min_pool_pages, batch * needed)
    whole("pool_pages", pool_pages)
    if batch * needed > pool_pages:
        reject(
            "batch",
            f"{batch} requests of {needed} pages each",
            f"at most {pool_pages // needed}: the cache has {pool_pages} pages of {PAGE_TOKENS} tokens",
        )
    return Plan(shapes, batch, context, max_context, pool_pages)


class State:
    """The memory of a batch on a device.

    Attributes:
        lengths: int32 [B], tokens of each request including the current one. tokens: int64 [B].
        block_table: int32 [B, ceil(max_context / 256)]. swa_table: int64 [B, 2], a ring of two pages.
        caches: `LayerCaches` for each layer. index_logits: float32 [B, max_context / 4], shared by the
            layers.
    """

    def __init__(self, plan: Plan, device="cpu", seed: int = 0):
        s, batch = plan.shapes, plan.batch
        self.plan = plan
        self.device = torch.device(device)
        generator = torch.Generator(device=device).manual_seed(seed)
        self._random = {"device": device, "generator": generator}
        self.lengths = torch.full((batch,), plan.context, dtype=torch.int32, device=device)
        self.tokens = torch.randint(s.vocab, (batch,), **self._random)
        width = s.table_width(plan.max_context)
        pages = torch.randperm(plan.pool_pages, **self._random)[: batch * plan.row_pages]
        self.block_table = torch.randint(plan.pool_pages, (batch, width), dtype=torch.int32, **self._random)
        self.block_table[:, : plan.row_pages] = pages.view(batch, -1).int()
        self.swa_table = torch.randperm(batch * SWA_PAGES_PER_ROW, **self._random).view(batch, -1)
        self.spare_page = plan.pool_pages  # one page more than the table can name
        self.c128_width = s.c128_width(plan.max_context)
        self.index_logits = torch.empty(batch, s.index_width(plan.max_context), device=device)
        self.plain_frequency = frequencies(s, False, device)
        self.frequency = frequencies(s, True, device)
        self.hadamard = hadamard(INDEX_DIM, device)
        self._templates: dict = {}
        self.caches = tuple(self._layer(kind) for kind in s.kinds)
        self._templates.clear()

    def _layer(self, kind: str) -> LayerCaches:
        batch, pages = self.plan.batch, self.plan.pool_pages + 1
        swa = self._cache(batch * SWA_PAGES_PER_ROW, SWA_PAGE)
        if kind == "swa":
            return LayerCaches(swa)
        extra = self._cache(pages, EXTRA_PAGE[kind])
        if kind == "c128":
            return LayerCaches(swa, extra, self._ring(128, HEAD_DIM))
        return LayerCaches(
            swa, extra, self._ring(8, 2 * HEAD_DIM), self._index(pages), self._ring(8, 2 * INDEX_DIM)
        )

    def _ring(self, slots: int, width: int) -> Ring:
        shape = (self.plan.batch, slots, width)
        return Ring(torch.randn(shape, **self._random), torch.randn(shape, **self._random))

    def _cache(self, pages: int, page_size: int) -> torch.Tensor:
        """A cache of random entries."""
        cache = allocate_cache(pages, page_size, device=self.device)
        if page_size not in self._templates:
            distinct = min(pages, TEMPLATE_PAGES)
            entries = distinct * page_size
            template = allocate_cache(distinct, page_size, device=self.device)
            rows = torch.randn(entries, HEAD_DIM, **self._random).bfloat16()
            store_kv(template, torch.arange(entries, device=self.device), rows)
            self._templates[page_size] = template
        return self._repeat(cache, self._templates[page_size])

    def _index(self, pages: int) -> torch.Tensor:
        cache = allocate_index_cache(pages, device=self.device)
        if "index" not in self._templates:
            distinct = min(pages, TEMPLATE_PAGES)
            entries = distinct * PAGE_ENTRIES
            template = allocate_index_cache(distinct, device=self.device)
            keys = torch.randn(entries, INDEX_DIM, **self._random)
            store_index_keys(template, torch.arange(entries, device=self.device), keys)
            self._templates["index"] = template
        return self._repeat(cache, self._templates["index"])

    @staticmethod
    def _repeat(cache, template):
        for start in range(0, cache.shape[0], template.shape[0]):
            part = cache[start : start + template.shape[0]]
            part.copy_(template[: part.shape[0]])
        return cache

    def set_lengths(self, lengths) -> None:
        """Change every request's length in place; a captured step follows at its next replay.

        lengths: an integer, or one for each request, from 1 to what its pages hold. Reads a tensor on the
            host.
        """
        values = torch.as_tensor(lengths, dtype=torch.int32).expand(self.plan.batch).cpu()
        most = min(self.plan.row_pages * PAGE_TOKENS, self.plan.max_context)
        if int(values.min()) < 1 or int(values.max()) > most:
            reject(
                "lengths",
                f"{int(values.min())} to {int(values.max())}",
                f"1 to {most}, what a request's pages hold",
            )
        self.lengths.copy_(values)

    def advance(self) -> None:
        """One token more for every request, in place."""
        self.set_lengths(self.lengths + 1)
