"""One point of an experiment: an implementation on a shape, and the columns that name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ENTRY_TOKENS = 4  # one indexer entry stands for four tokens of context


@dataclass(frozen=True)
class Point:
    """What to run.

    op, impl, tile_class: as in measurements.csv. batch, heads, topk, swa_tokens, page_size: the shape. context,
    max_context: tokens, live and configured (indexer); for sparse MLA `context` is the live candidates of a row
    where they are fewer than topk. num_splits: None lets the planner choose. tile: the fields of a `Tile` in their
    order, or None; release: that of the `Plan`, with a tile. scratch: 'bfloat16' or 'float32'. timers: how it is
    timed.
    """

    op: str
    impl: str
    batch: int
    heads: int = 64
    topk: int = 512
    swa_tokens: int = 0
    page_size: int = 64
    context: int | None = None
    max_context: int | None = None
    num_splits: int | None = None
    tile_class: str = "native"
    tile: tuple | None = None
    release: str = "start"
    scratch: str = "bfloat16"
    timers: tuple[str, ...] = ("chain",)
    stage: str = ""

    def row(self) -> dict[str, Any]:
        """The columns that describe the point; the builder adds what the planner chose."""
        sparse = self.op == "sparse_mla_decode"
        return {
            "op": self.op,
            "impl": f"{self.impl}_fp32" if self.scratch == "float32" else self.impl,
            "stage": self.stage,
            "tile_class": self.tile_class,
            "batch": self.batch,
            "heads": self.heads,
            "topk": self.topk,
            "swa_tokens": self.swa_tokens if sparse else None,
            "page_size": self.page_size,
            "context": self.context,
            "max_context": self.max_context,
            "num_splits": self.num_splits,
        }

    def skipped(self, reason: str, status: str = "skipped") -> list[dict[str, Any]]:
        """Rows without a time, one per timer."""
        return [{**self.row(), "timer": timer, "status": status, "reason": reason} for timer in self.timers]
