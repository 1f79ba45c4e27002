"""The named experiments: which points each one measures in the quick and in the full profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from kernels.lab.experiments.point import Point

SPARSE, LOGITS, TOPK = "sparse_mla_decode", "indexer_logits", "indexer_topk"
BATCHES = {"quick": (1, 8, 64), "full": (1, 2, 4, 8, 16, 32, 64, 128)}
BOTH = ("chain", "cold")
K = 1024


@dataclass(frozen=True)
class Experiment:
    """A name, what it asks, and its points by profile.

    module: of this package, whose `build` makes the points' cases; None where their op says it.
    """

    name: str
    question: str
    points: Callable[[str], list[Point]]
    module: str | None = None


def _trio(batch: int, **shape) -> list[Point]:
    """What `auto` does natively and within sm_120's limits, beside FlashMLA, all timed both ways."""
    return [
        Point(SPARSE, "auto", batch, timers=BOTH, **shape),
        Point(SPARSE, "auto", batch, tile_class="sm120", timers=BOTH, **shape),
        Point(SPARSE, "flash_mla", batch, timers=BOTH, **shape),
    ]


def ladder(profile: str) -> list[Point]:
    """Every rung over the batch at K=512."""
    points = []
    for batch in BATCHES[profile]:
        if batch <= 32:
            points.append(Point(SPARSE, "serial", batch, tile_class="sm120"))
        stages = {"simt": "baseline", "mma": "mma", "split_k": "split_k"}
        points += [Point(SPARSE, rung, batch, tile_class="sm120", stage=stages[rung]) for rung in stages]
        points += _trio(batch)
    return points


def split_sweep(profile: str) -> list[Point]:
    """Split-K's time over batch and splits, with tiles that are legal on sm_120."""
    splits = {"quick": (1, 2, 4, 8, 16), "full": (1, 2, 3, 4, 6, 8, 16, 32)}[profile]
    batches = {"quick": (1, 16, 64), "full": (1, 4, 16, 32, 64)}[profile]
    return [
        Point(SPARSE, "split_k", batch, num_splits=split, tile_class="sm120")
        for batch, split in product(batches, splits)
    ]


def combine(profile: str) -> list[Point]:
    """Partial outputs in bf16 or in fp32, at the same splits: time and error."""
    batches = {"quick": (1, 16), "full": (1, 4, 16, 32, 64)}[profile]
    return [
        Point(SPARSE, "split_k", batch, num_splits=splits, tile_class="sm120", scratch=scratch)
        for batch, splits, scratch in product(batches, (2, 8), ("bfloat16", "float32"))
    ]


def topk_width(profile: str) -> list[Point]:
    """64 live candidates in an index row of 64, 512 or 8,192 places."""
    batches = {"quick": (1,), "full": (1, 16)}[profile]
    return [
        Point(SPARSE, impl, batch, topk=width, context=64, tile_class="sm120")
        for batch, width, impl in product(batches, (64, 512, 8192), ("simt", "mma", "split_k", "auto"))
    ]


def heads(profile: str) -> list[Point]:
    """Tensor-parallel ranks: fewer heads a call."""
    batches = {"quick": (1, 64), "full": (1, 16, 64)}[profile]
    return [
        point for batch, count in product(batches, (8, 16, 32, 64)) for point in _trio(batch, heads=count)
    ]


def swa(profile: str) -> list[Point]:
    """128 sliding-window rows and 512 selected ones, two caches in one call."""
    return [point for batch in BATCHES[profile] for point in _trio(batch, swa_tokens=128)]


def k2048(profile: str) -> list[Point]:
    """2,048 selected rows."""
    return [point for batch in BATCHES[profile] for point in _trio(batch, topk=2048)]


TILES = (
    (16, 16, 4),
    (16, 32, 4),
    (32, 16, 4),
    (32, 32, 4),
    (32, 32, 8),
    (64, 16, 8),
    (64, 32, 8),
    (64, 64, 8),
)


PRODUCER_TILES = ((64, 64, 8, 2, True, 4), (64, 16, 8, 2, False, 4), (16, 32, 4, 2, False, 4))


def tile_sweep(profile: str) -> list[Point]:
    """Tiles by batch by splits: what predictions are validated against. Last, the staged tiles with producers."""
    tiles = {"quick": TILES[1:6:2], "full": TILES}[profile]
    shapes = {
        "quick": [(1, 512, 1), (1, 512, 8), (16, 512, 4), (64, 512, 2)],
        "full": [
            (1, 512, 1),
            (1, 512, 8),
            (4, 512, 8),
            (16, 512, 1),
            (16, 512, 4),
            (64, 512, 1),
            (64, 512, 2),
            (1, 2048, 16),
            (16, 2048, 4),
        ],
    }[profile]
    points = [
        Point(
            SPARSE,
            "split_k",
            batch,
            topk=topk,
            num_splits=splits,
            tile=(h, t, warps, 1),
            tile_class=_tile_class(h, t),
        )
        for (h, t, warps), (batch, topk, splits) in product(tiles, shapes)
    ]
    # (batch, splits) by heads of a block: as many blocks as the planner would give it
    filled = {
        ("quick", 64): [(16, 8), (64, 2)],
        ("full", 64): [(16, 4), (16, 8), (64, 1), (64, 2), (128, 1), (128, 2)],
        ("quick", 16): [(1, 16), (8, 4)],
        ("full", 16): [(1, 8), (1, 16), (4, 4), (4, 8), (8, 4)],
    }
    for tile in PRODUCER_TILES:
        kind = "native" if tile[4] else "sm120"
        for batch, splits in filled[profile, tile[0]]:
            points.append(Point(SPARSE, "staged", batch, num_splits=splits, tile=tile, tile_class=kind))
    return points


def _tile_class(block_h: int, block_t: int) -> str:
    """sm120 where the tile compiles for sm_120: its query and KV tile in bf16 stay within 99 KB."""
    return "sm120" if (block_h + block_t) * 1024 + block_h * block_t * 2 <= 101_376 else "native"


LIVE = 8 * K


def indexer_context(profile: str) -> list[Point]:
    """Logits over the configured context, at 8K live; in the full profile the rows of the published
    comparison.
    """
    shapes = {
        "quick": [(batch, LIVE, limit) for batch in (1, 8) for limit in (8 * K, 128 * K, 1024 * K)],
        "full": [
            *(
                (batch, LIVE, limit)
                for batch in (1, 8, 32)
                for limit in (8 * K, 32 * K, 128 * K, 512 * K, 1024 * K)
            ),
            (64, LIVE, 128 * K),
            (8, 1024 * K, 1024 * K),
        ],
    }[profile]
    return [
        Point(LOGITS, impl, batch, context=live, max_context=limit, stage=stage)
        for (batch, live, limit), (impl, stage) in product(
            shapes, (("uncapped", "baseline"), ("capped", "indexer_cap"), ("paged", ""), ("deep_gemm", ""))
        )
    ]


def indexer_topk(profile: str) -> list[Point]:
    """Top-512 over the configured context: PyTorch's against the one that follows the live length."""
    shapes = {
        "quick": [(1, LIVE, 8 * K), (8, LIVE, 1024 * K), (8, 1024 * K, 1024 * K)],
        "full": [
            *((batch, LIVE, limit) for batch in (1, 8, 32) for limit in (8 * K, 128 * K, 1024 * K)),
            (64, LIVE, 128 * K),
            (8, 128 * K, 1024 * K),
            (8, 1024 * K, 1024 * K),
        ],
    }[profile]
    return [
        Point(TOPK, impl, batch, context=live, max_context=limit)
        for (batch, live, limit), impl in product(shapes, ("torch", "radix"))
    ]


def padded_heads(profile: str) -> list[Point]:
    """Eight real heads alone, and padded to the 64 that FlashMLA takes."""
    batches = {"quick": (1, 64), "full": (1, 16, 64)}[profile]
    points = []
    for batch in batches:
        points += [
            Point(SPARSE, "auto", batch, heads=count, tile_class=kind)
            for count, kind in product((8, 64), ("native", "sm120"))
        ]
        points.append(Point(SPARSE, "flash_mla", batch, heads=64))
    return points


def redesign(profile: str) -> list[Point]:
    """The variants of the sm_120 tile beside the rungs that they would change; 16 heads a block have a control."""
    from kernels.lab.variants.plan import FEWER_HEADS, VARIANTS  # kernels: not before the device is chosen

    few = (FEWER_HEADS.block_h, FEWER_HEADS.block_t, FEWER_HEADS.num_warps, FEWER_HEADS.num_stages)
    points = []
    for batch in (1, 16, 64):
        points += [Point(SPARSE, rung, batch, tile_class="sm120") for rung in ("split_k", "staged")]
        points += [Point(SPARSE, name, batch, tile_class="sm120") for name in VARIANTS]
        points.append(Point(SPARSE, "byte_tiles", batch, tile=few, tile_class="sm120"))
    return points


CATALOGUE = {
    experiment.name: experiment
    for experiment in (
        Experiment("ladder", "what each rung gains over the batch", ladder),
        Experiment("split_sweep", "how many splits are best at each batch", split_sweep),
        Experiment("combine", "what fp32 partials cost and gain over bf16", combine),
        Experiment("topk_width", "whether dead index places cost time", topk_width),
        Experiment("heads", "whether time falls with the heads of a rank", heads),
        Experiment("swa", "what a second cache costs", swa),
        Experiment("k2048", "how the rungs scale to 2,048 rows", k2048),
        Experiment("tile_sweep", "how well the time of a tile is predicted", tile_sweep),
        Experiment("indexer_context", "what the configured context costs", indexer_context),
        Experiment("indexer_topk", "what top-k costs over the configured context", indexer_topk),
        Experiment("padded_heads", "what padding eight heads to 64 costs", padded_heads),
        Experiment("redesign", "what each idea for the sm_120 tile costs or gains", redesign, "redesign"),
    )
}
