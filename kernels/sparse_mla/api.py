"""The operator's front door: check, plan, launch."""

import os
from itertools import product

import torch

from kernels import triton_mode
from kernels.sparse_mla import launch
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import IMPLS, Plan
from kernels.sparse_mla.tiles import RELEASES
from kernels.sparse_mla.validate import check_inputs, check_output, check_slots, check_workspace, reject

SCRATCH_DTYPES = (torch.bfloat16, torch.float32)


def _choose_impl(impl) -> str:
    """The asked rung; only "auto" gives way to the environment variable SPARSE_MLA_IMPL."""
    if impl == "auto":
        impl = os.environ.get("SPARSE_MLA_IMPL", "auto")
        name = "SPARSE_MLA_IMPL"
    else:
        name = "impl"
    if impl != "auto" and impl not in IMPLS:
        reject(name, repr(impl), f"'auto' or one of {IMPLS}")
    return impl


def plan_call(inputs, impl="auto", num_splits=None, batch_invariant=False, tile_class="native") -> Plan:
    """The plan that `sparse_mla_decode` follows for checked inputs."""
    batch, heads, _ = inputs.q.shape
    device = planning.device_of(inputs.q)
    shape = (heads, inputs.main.topk, inputs.extra_topk)
    sources = (source for source in (inputs.main, inputs.extra) if source is not None)
    options = {
        "device": device,
        "impl": impl,
        "tile_class": tile_class,
        "can_stage": why_not_staged(inputs) is None,
        "can_copy": launch.copies_rows(inputs),
        "ragged": any(source.length is not None for source in sources),
    }
    if batch_invariant:
        if num_splits is not None:
            reject("num_splits", num_splits, "None, because batch_invariant fixes the splits")
        return planning.batch_invariant_plan(*shape, **options)
    return planning.plan(max(batch, 1), *shape, num_splits=num_splits, **options)


def why_not_staged(inputs) -> str | None:
    """Why rung `staged` cannot run these inputs here; None where it can."""
    if triton_mode.interpreted() or inputs.q.device.type != "cuda":
        return "it has no interpreter and needs a CUDA device"
    if planning.device_of(inputs.q).capability < (9, 0):
        return "it needs compute capability 9.0 or later"
    return launch.misaligned(inputs)


def _check_num_splits(num_splits, impl: str) -> None:
    if num_splits is None:
        return
    if (
        isinstance(num_splits, bool)
        or not isinstance(num_splits, int)
        or not 1 <= num_splits <= planning.MAX_SPLITS
    ):
        reject("num_splits", repr(num_splits), f"None or an integer from 1 to {planning.MAX_SPLITS}")
    if impl not in ("auto", *planning.SPLITTING):
        reject("num_splits", f"{num_splits} with impl={impl!r}", "None for a rung that does not split")


def _check_plan(plan) -> Plan:
    """A plan that the caller made: the kernels would run an unknown rung as another one."""
    if not isinstance(plan, Plan):
        reject("plan", type(plan).__name__, "a Plan")
    if plan.impl not in IMPLS:
        reject("plan", f"impl={plan.impl!r}", f"one of {IMPLS}")
    if plan.impl in ("serial", "simt") and plan.tile.block_h != 1:
        reject("plan", f"block_h={plan.tile.block_h} with impl={plan.impl!r}", "1")
    most = planning.MAX_SPLITS if plan.impl in planning.SPLITTING else 1
    if not 1 <= plan.num_splits <= most:
        reject("plan", f"num_splits={plan.num_splits} with impl={plan.impl!r}", f"1 to {most}")
    if plan.release not in RELEASES:
        reject("plan", f"release={plan.release!r}", f"one of {tuple(RELEASES)}")
    return plan


def sparse_mla_decode(
    q,
    kv_cache,
    indices,
    topk_length=None,
    *,
    softmax_scale=HEAD_DIM**-0.5,
    attn_sink=None,
    extra_kv_cache=None,
    extra_indices=None,
    extra_topk_length=None,
    impl="auto",
    num_splits=None,
    plan: Plan | None = None,
    tile_class="native",
    batch_invariant=False,
    scratch_dtype=torch.bfloat16,
    workspace=None,
    validate=False,
    out=None,
    lse=None,
):
    """Decode attention of every head over the row's selected cache entries: one softmax over both caches.

    A candidate counts when its slot is not negative and its position is before the row's length; the memory of
    any other may hold anything. A slot past the cache is undefined behaviour unless `validate=True`.

    Args:
        q: `[B, H, 512]` or `[B, 1, H, 512]` bfloat16, any strides but the last; 448 nope, then 64 rotary columns.
        kv_cache, extra_kv_cache: uint8 `[pages, P, 1, 584]` (`layout`), any page size, page stride and offset.
        indices, extra_indices: int32 `[B, K]`, slots `page * P + offset`; negative means absent.
        topk_length, extra_topk_length: int32 `[B]` or `[B, 1]`, entries of the row that count; clamped to 0..K.
        softmax_scale: factor on the scores.
        attn_sink: float32 `[H]`: exp(sink) joins the denominator, not the LSE; -inf is no sink, +inf gives zeros.
        impl: "auto" or a rung ("serial", "simt", "mma", "split_k", "staged"). SPARSE_MLA_IMPL replaces "auto" only.
        num_splits: programs that share a row's candidates, 1 to 64; planned when None.
        plan: a whole plan instead of impl, num_splits, tile_class and batch_invariant.
        tile_class: "native", or "sm120" to use only tiles that are legal on sm_120.
        batch_invariant: a row's result does not depend on the batch around it, bit for bit.
        scratch_dtype: bfloat16 or float32, the partial outputs of split-K.
        workspace: uint8 scratch on q's device, `workspace_bytes(...)` or more; allocated when None.
        validate: also check every slot against the cache. Waits for the device: not for a captured graph.
        out, lse: results to write into: bfloat16 like q, float32 `[B, H]`.

    Returns:
        out, bfloat16 of q's shape, and lse, float32 `[B, H]`: natural logarithm, without the sink. A row without
        candidates gives 0 and +inf.

    Raises:
        ArgumentError: an argument that is not accepted; nothing was launched or written.

    The contract is FlashMLA's (deepseek-ai/FlashMLA, flash_mla_interface.py).
    """
    inputs = check_inputs(
        q,
        kv_cache,
        indices,
        topk_length,
        softmax_scale,
        attn_sink,
        extra_kv_cache,
        extra_indices,
        extra_topk_length,
    )
    batch, heads, _ = inputs.q.shape
    impl = _choose_impl(impl)
    _check_num_splits(num_splits, impl)
    if tile_class not in ("native", "sm120"):
        reject("tile_class", repr(tile_class), "'native' or 'sm120'")
    if scratch_dtype not in SCRATCH_DTYPES:
        reject("scratch_dtype", scratch_dtype, f"one of {SCRATCH_DTYPES}")
    if plan is None:
        chosen = plan_call(inputs, impl, num_splits, batch_invariant, tile_class)
    else:
        chosen = _check_plan(plan)
    if out is not None:
        out = check_output("out", out, q.shape, torch.bfloat16, q.device)
    if lse is not None:
        lse = check_output("lse", lse, (batch, heads), torch.float32, q.device)
    if chosen.impl == "staged" and (reason := why_not_staged(inputs)):
        reject("impl" if plan is None else "plan", "'staged'", f"another rung here: {reason}")
    if chosen.impl == "staged" and chosen.tile.few and not launch.copies_rows(inputs):
        reject(
            "plan",
            "a tile of 8 heads",
            "another tile here: a cache's rows do not start at multiples of 16 bytes",
        )
    needed = planning.workspace_bytes(batch, heads, chosen.scratch_splits, scratch_dtype)
    if workspace is not None:
        check_workspace(workspace, needed, q.device)
    if validate:
        check_slots("indices", inputs.main)
        if inputs.extra is not None:
            check_slots("extra_indices", inputs.extra)

    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    lse = torch.empty(batch, heads, dtype=torch.float32, device=q.device) if lse is None else lse
    if batch == 0:
        return out, lse
    if workspace is None and needed:
        workspace = torch.empty(needed, dtype=torch.uint8, device=q.device)
    launch.run(inputs, chosen, out[:, 0] if out.dim() == 4 else out, lse, workspace, scratch_dtype)
    return out, lse


def workspace_bytes(
    batch: int,
    heads: int,
    topk: int,
    extra_topk: int = 0,
    *,
    device=None,
    impl="auto",
    num_splits: int | None = None,
    tile_class="native",
    batch_invariant=False,
    scratch_dtype=torch.bfloat16,
) -> int:
    """Scratch bytes that `sparse_mla_decode` needs for a shape on a device; 0 where it does not split.

    Args:
        device: a `torch.device` or its name; "cpu" when None. The other arguments are those of the call.

    SPARSE_MLA_IMPL counts as in the call.
    """
    impl = _choose_impl(impl)
    _check_num_splits(num_splits, impl)
    target = planning.device_of(torch.empty(0, device=device or "cpu"))
    options = {"device": target, "impl": impl, "tile_class": tile_class}
    # "auto" leaves `staged`, or a tile, when the memory is not aligned, and another tile may follow from lengths. A
    # shape tells none of this: room for all
    can_be = (False, True)
    plans = []
    stages = can_be if target is not planning.RTX_PRO_6000 else (False,)
    for can_stage, can_copy, ragged in product(stages, can_be, can_be):
        seen = options | {"can_stage": can_stage, "can_copy": can_copy, "ragged": ragged}
        if batch_invariant:
            plans.append(planning.batch_invariant_plan(heads, topk, extra_topk, **seen))
        else:
            plans.append(planning.plan(max(batch, 1), heads, topk, extra_topk, num_splits=num_splits, **seen))
    return planning.workspace_bytes(batch, heads, max(plan.scratch_splits for plan in plans), scratch_dtype)
