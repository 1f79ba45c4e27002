"""How many splits? Grids, waves and a teaching model of their cost, for the campaign's policy and for others.

The model counts in the time of one tile: a block of a split-K grid starts up, walks its tiles, and later its
partial result is merged. It knows nothing of pipes or bandwidths, which `kernels.lab.predict` does; it is
small enough to argue with.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pandas as pd

from kernels.lab.occupancy import waves
from kernels.sparse_mla import plan as planning

START_UP = 2.0  # a block's query load, first gather and the write of its partial result
MERGE = 3.0  # the combine's launch
PARTIAL = 0.5  # one partial result, read and folded in, by one multiprocessor
MAX_SPLITS = planning.MAX_SPLITS

# (batch, head groups, tiles of a row, multiprocessors)
SHAPES = tuple(product((1, 2, 4, 8, 16, 32, 64, 96, 128), (1, 2, 4), (4, 16, 64), (132, 188)))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES = ("unsplit", "campaign", "default")


def cost(splits: int, batch: int, head_groups: int, tiles: int, sm_count: int) -> float:
    """Modelled time of one call, in tile-times, with one block a multiprocessor at a time.

    waves * (START_UP + tiles of the longest block), and for two splits or more
    MERGE + PARTIAL * blocks / sm_count.

    Raises:
        ValueError: an argument below 1.
    """
    blocks = waves(batch, head_groups, splits, sm_count)
    if tiles < 1:
        raise ValueError(f"tiles: got {tiles}, accepted is 1 or more")
    attend = blocks.waves * (START_UP + -(-tiles // splits))
    return attend if splits == 1 else attend + MERGE + PARTIAL * blocks.blocks / sm_count


def best_splits(batch: int, head_groups: int, tiles: int, sm_count: int) -> int:
    """The cheapest legal number of splits by `cost`, the smallest among equals."""
    return min(
        range(1, min(MAX_SPLITS, tiles) + 1), key=lambda s: cost(s, batch, head_groups, tiles, sm_count)
    )


def splits_of(policy: str, batch: int, heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000) -> int:
    """The number of splits that a policy gives a shape, within sm_120's tiles: 'unsplit', 'campaign',
    'default'.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy: got {policy!r}, accepted are {POLICIES}")
    if policy == "unsplit":
        return 1
    return planning.plan(
        batch, heads, topk, device=device, impl="split_k", policy=policy, tile_class="sm120"
    ).num_splits


def head_groups(heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000) -> int:
    """Blocks that share one row's heads under the planner's sm_120 tile."""
    tile = planning.plan(1, heads, topk, device=device, impl="split_k", tile_class="sm120").tile
    return -(-heads // tile.block_h)


def tiles_each(splits: int, heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000) -> int:
    """Tiles of the block that gets most of a full row, under the planner's sm_120 tile."""
    tile = planning.plan(1, heads, topk, device=device, impl="split_k", tile_class="sm120").tile
    tiles = -(-topk // tile.block_t)
    return -(-tiles // splits)


def grid_table(
    batches: Iterable[int] = BATCHES,
    policies: Iterable[str] = POLICIES,
    heads: int = 64,
    device=planning.RTX_PRO_6000,
) -> pd.DataFrame:
    """Columns batch, policy, splits, blocks, busy_sms, waves, filled: one row a batch and policy.

    waves and filled (share of the waves' places that hold a block, in percent) count one block a
    multiprocessor.
    """
    groups = head_groups(heads, device=device)
    rows = []
    for batch, policy in product(batches, policies):
        splits = splits_of(policy, batch, heads, device=device)
        grid = waves(batch, groups, splits, device.sm_count)
        rows.append(
            {
                "batch": batch,
                "policy": policy,
                "splits": splits,
                "blocks": grid.blocks,
                "busy_sms": grid.busy_sms,
                "waves": grid.waves,
                "filled": 100 * grid.efficiency,
            }
        )
    return pd.DataFrame(rows)


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """`grid_table` with one row a batch and one text a policy: '6 → 192 (2)' is splits, blocks and waves."""

    def words(row) -> str:
        grid = f"{row.blocks} ({row.waves})"
        return grid if row.policy == "unsplit" else f"{row.splits} → {grid}"

    texts = table.assign(text=[words(row) for row in table.itertuples()])
    return texts.pivot(index="batch", columns="policy", values="text").reset_index()


def tuned_table(
    batches: Iterable[int] = BATCHES, heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000
) -> pd.DataFrame:
    """Columns batch, block_h, block_t, splits, blocks: what the tuned rung `staged` takes within sm_120."""
    rows = []
    for batch in batches:
        plan = planning.plan(batch, heads, topk, device=device, impl="staged", tile_class="sm120")
        rows.append(
            {
                "batch": batch,
                "block_h": plan.tile.block_h,
                "block_t": plan.tile.block_t,
                "splits": plan.num_splits,
                "blocks": plan.blocks(batch, heads),
            }
        )
    return pd.DataFrame(rows)


def blocks_grid(
    splits: Iterable[int], batches: Iterable[int] = BATCHES, head_groups: int = 2, sm_count: int = 188
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(blocks, percent of the waves' places filled): rows are batches, columns are splits."""
    splits, batches = list(splits), list(batches)
    grids = [[waves(batch, head_groups, split, sm_count) for split in splits] for batch in batches]
    blocks = pd.DataFrame([[g.blocks for g in row] for row in grids], index=batches, columns=splits)
    filled = pd.DataFrame([[100 * g.efficiency for g in row] for row in grids], index=batches, columns=splits)
    return blocks, filled
