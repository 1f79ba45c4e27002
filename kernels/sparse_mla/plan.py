"""Which rung, tile and number of splits a shape gets on a device. Pure arithmetic on the host, from shapes alone.

Nothing here looks at lengths or at the clock, so a captured graph replays the plan it was captured with.
"""

from dataclasses import dataclass

import torch

from kernels.sparse_mla.tiles import (
    WIDE_SHARE,
    Choice,
    Tile,
    plain_tile,
    staged_choice,
    tile_candidates,
    wide_share,
)

MAX_SPLITS = 64
CAMPAIGN_SM_COUNT = 188
CAMPAIGN_MAX_SPLITS = 8
IMPLS = ("serial", "simt", "mma", "split_k", "staged")
SPLITTING = ("split_k", "staged")


@dataclass(frozen=True)
class Device:
    """What the planner knows of a device: multiprocessors, compute capability, shared bytes a block may use."""

    sm_count: int
    capability: tuple[int, int]
    smem_optin_bytes: int


RTX_PRO_6000 = Device(188, (12, 0), 101_376)


@dataclass(frozen=True)
class Plan:
    """How one call is launched: the rung, its tile, and how many programs share a row's candidates.

    `release` says when the combine kernel of rung `staged` may start beside it: at its "start", when a block has
    its "result", or at the blocks' "exit". Early is not always best: programs that wait crowd on idle SMs.
    """

    impl: str
    tile: Tile
    num_splits: int = 1
    release: str = "start"

    @property
    def scratch_splits(self) -> int:
        """Partial outputs a row leaves in scratch; 0 where a program writes the result itself."""
        if self.impl == "split_k":
            return self.num_splits
        return self.num_splits if self.impl == "staged" and self.num_splits > 1 else 0

    def blocks(self, batch: int, heads: int) -> int:
        """Programs in the grid of the attention kernel."""
        groups = heads if self.impl in ("serial", "simt") else -(-heads // self.tile.block_h)
        return batch * groups * self.num_splits * (2 if self.tile.pair else 1)


def campaign_num_splits(batch: int, head_groups: int = 2, sm_count: int = CAMPAIGN_SM_COUNT) -> int:
    """The campaign's policy: the fewest splits that put a block on every multiprocessor, at most eight."""
    return max(1, min(CAMPAIGN_MAX_SPLITS, -(-sm_count // (batch * head_groups))))


def device_of(tensor: torch.Tensor) -> Device:
    """The planner's view of a tensor's device. A CPU plans as the RTX PRO 6000, whose kernels it interprets."""
    if tensor.device.type != "cuda":
        return RTX_PRO_6000
    return _cuda_device(tensor.device.index)


_DEVICES: dict[int, Device] = {}


def _cuda_device(index: int) -> Device:
    if index not in _DEVICES:
        p = torch.cuda.get_device_properties(index)
        _DEVICES[index] = Device(p.multi_processor_count, (p.major, p.minor), p.shared_memory_per_block_optin)
    return _DEVICES[index]


def default_num_splits(batch: int, head_groups: int, tiles: int, sm_count: int) -> int:
    """Splits that give every multiprocessor one block, never more than there are tiles in a row."""
    return max(1, min(MAX_SPLITS, tiles, sm_count // (batch * head_groups)))


def plan(
    batch: int,
    heads: int,
    topk: int,
    extra_topk: int = 0,
    *,
    device: Device = RTX_PRO_6000,
    impl: str = "auto",
    policy: str = "default",
    tile_class: str = "native",
    num_splits: int | None = None,
    can_stage: bool = True,
    can_copy: bool = True,
    ragged: bool = False,
) -> Plan:
    """Choose how to run a shape.

    Args:
        batch, heads, topk, extra_topk: the shape; index widths, not live lengths.
        impl: "auto" or one of `IMPLS`; a named rung is never replaced by another.
        policy: "default", or "campaign" for the campaign's split count.
        tile_class: "native", or "sm120" to keep to tiles that are legal on sm_120 whatever the device.
        num_splits: overrides the policy (rungs `split_k` and `staged`).
        can_stage: whether "auto" may choose `staged`, which needs a GPU and aligned memory.
        can_copy: whether a tile may copy whole rows, which have to start at multiples of 16 bytes.
        ragged: whether a row may have fewer candidates than the widths say, because lengths are passed. A loop over
            wide tiles takes its time for a whole tile then, so that long shares get another one.

    Raises:
        ValueError: an unknown impl, policy or tile class, or `num_splits` outside 1..64.
    """
    if impl != "auto" and impl not in IMPLS:
        raise ValueError(f"impl: got {impl!r}, accepted are 'auto' and {IMPLS}")
    if policy not in ("default", "campaign"):
        raise ValueError(f"policy: got {policy!r}, accepted are 'default' and 'campaign'")
    if tile_class not in ("native", "sm120"):
        raise ValueError(f"tile_class: got {tile_class!r}, accepted are 'native' and 'sm120'")
    if num_splits is not None and not (isinstance(num_splits, int) and 1 <= num_splits <= MAX_SPLITS):
        raise ValueError(f"num_splits: got {num_splits!r}, accepted are integers from 1 to {MAX_SPLITS}")
    if impl in ("serial", "simt", "mma"):
        return Plan(impl, plain_tile(impl, heads))
    # The campaign had no staged rung: its policy counts the head groups of the rungs that it had
    if impl == "staged" or (impl == "auto" and can_stage and policy == "default"):

        def suits(row: Choice) -> bool:
            if row.tile.few and not can_copy:
                return False
            share = wide_share(topk, extra_topk, num_splits or row.num_splits)
            return not (row.tile.wide and ragged) or share <= WIDE_SHARE

        choice = staged_choice(batch, heads, topk + extra_topk, device, tile_class, suits)
        impl, tile, splits, release = "staged", choice.tile, choice.num_splits, choice.release
    else:
        release = "start"
        tile = plain_tile(impl, heads)
        tiles = -(-topk // tile.block_t) + -(-extra_topk // tile.block_t)
        splits = default_num_splits(batch, -(-heads // tile.block_h), tiles, device.sm_count)
    if policy == "campaign":
        splits = campaign_num_splits(batch, -(-heads // tile.block_h), device.sm_count)
    if num_splits is not None:
        splits = num_splits
    if impl == "auto":
        impl = "mma" if splits == 1 else "split_k"
    return Plan(impl, tile, splits, release)


def batch_invariant_plan(
    heads: int,
    topk: int,
    extra_topk: int = 0,
    *,
    device: Device = RTX_PRO_6000,
    impl: str = "auto",
    tile_class: str = "native",
    can_stage: bool = True,
    can_copy: bool = True,
    ragged: bool = False,
) -> Plan:
    """A plan that does not look at the batch, so that a row's bits do not depend on its neighbours.

    It splits as if the batch were 8: small batches leave multiprocessors idle and large ones write more partial
    outputs than they need. The chapter on split-K measures the price.
    """
    return plan(
        8, heads, topk, extra_topk,
        device=device, impl=impl, tile_class=tile_class, can_stage=can_stage, can_copy=can_copy, ragged=ragged,
    )  # fmt: skip


def workspace_bytes(
    batch: int, heads: int, num_splits: int, scratch_dtype: torch.dtype = torch.bfloat16
) -> int:
    """Bytes of scratch that a split-K call of this shape needs: partial outputs, then partial LSEs."""
    rows = batch * heads * num_splits
    return rows * 512 * scratch_dtype.itemsize + rows * 4


def every_plan(device: Device = RTX_PRO_6000, tile_class: str = "sm120") -> list[Plan]:
    """Every rung and tile that `plan` can choose for a device, each once, with one split."""
    return [Plan(impl, tile) for impl in IMPLS for tile in tile_candidates(impl, device, tile_class)]
