"""Turns checked inputs and a plan into kernel arguments and grids. No checks, no choices, no reads from the device."""

from math import gcd

import torch
import triton

from kernels import triton_mode
from kernels.sparse_mla.combine import combine_kernel
from kernels.sparse_mla.mma import mma_kernel
from kernels.sparse_mla.per_head import per_head_kernel
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.split_k import split_k_kernel
from kernels.sparse_mla.tiles import RELEASES, WIDE_SHARE, Tile, wide_share
from kernels.sparse_mla.validate import Candidates, Inputs

STAGED_SEGMENT = 256
LOG2_E = 1.4426950408889634
# Registers a thread of the multiplying warps; the fetching ones get the rest of a multiprocessor's 65,536
CONSUMER_REGISTERS = 192
# Of the teams for few heads
TEAM_REGISTERS = 200
COMBINE_WARPS = 4
# Splits whose loads the combine kernel has on their way at once
COMBINE_CHUNK = 16


def _words(candidates: Candidates) -> bool:
    """Whether every token starts at a multiple of 4, so that it can be read by 32-bit words."""
    return candidates.cache.data_ptr() % 4 == 0 and candidates.page_stride % 4 == 0


def misaligned(inputs: Inputs) -> str | None:
    """Why rung `staged` cannot read these tensors; None where it can."""
    row, head = inputs.q.stride(0), inputs.q.stride(1)
    # Copies of 16 bytes need strides that the compiler knows to be multiples of them, and it knows multiples of 16
    if inputs.q.data_ptr() % 16 or row % 16 or head % 16:
        return "a row of q does not start at a multiple of 32 bytes"
    if not all(_words(source) for source in (inputs.main, inputs.extra) if source is not None):
        return "a cache does not start at a multiple of 4 bytes, or its page stride is none"
    return None


def copies_rows(inputs: Inputs) -> bool:
    """Whether every token starts at a multiple of 16 bytes, as the copy engine needs it."""
    return _unit(inputs) == 16


def _unit(inputs: Inputs) -> int:
    """The largest power of two up to 16 that divides where every token starts."""
    sources = [source for source in (inputs.main, inputs.extra) if source is not None]
    together = 16
    for source in sources:
        together = gcd(together, source.cache.data_ptr(), source.page_stride)
    return together


def source_arguments(inputs: Inputs) -> dict:
    """The arguments that describe queries and caches, the same for every rung."""
    main, extra = inputs.main, inputs.extra or inputs.main
    # A pointer that a constexpr switches off still needs an address: the indices are always there
    return {
        "q_ptr": inputs.q,
        "kv_ptr": main.cache,
        "indices_ptr": main.indices,
        "length_ptr": main.indices if main.length is None else main.length,
        "extra_kv_ptr": extra.cache,
        "extra_indices_ptr": extra.indices,
        "extra_length_ptr": extra.indices if extra.length is None else extra.length,
        "topk": main.topk,
        "extra_topk": inputs.extra_topk,
        "scale_log2": inputs.softmax_scale * LOG2_E,
        "stride_q_row": inputs.q.stride(0),
        "stride_q_head": inputs.q.stride(1),
        "stride_page": main.page_stride,
        "stride_indices": main.indices.stride(0),
        "stride_length": 0 if main.length is None else main.length.stride(0),
        "stride_extra_page": extra.page_stride,
        "stride_extra_indices": extra.indices.stride(0),
        "stride_extra_length": 0 if extra.length is None else extra.length.stride(0),
        "PAGE_SIZE": main.page_size,
        "EXTRA_PAGE_SIZE": extra.page_size,
        "ALIGNED": _words(main) and _words(extra),
        "HAS_LENGTH": main.length is not None,
        "HAS_EXTRA": inputs.extra is not None,
        "HAS_EXTRA_LENGTH": inputs.extra is not None and extra.length is not None,
    }


def result_arguments(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> dict:
    """The arguments that describe the sink and the results."""
    return {
        "sink_ptr": lse if inputs.attn_sink is None else inputs.attn_sink,
        "out_ptr": out,
        "lse_ptr": lse,
        "stride_out_row": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_lse_row": lse.stride(0),
        "HAS_SINK": inputs.attn_sink is not None,
    }


def combine_arguments(inputs, partial_out, partial_lse, out, lse, num_splits: int, overlap: bool) -> dict:
    """Every argument of the combine kernel."""
    return result_arguments(inputs, out, lse) | {
        "partial_out_ptr": partial_out,
        "partial_lse_ptr": partial_lse,
        "heads": inputs.q.shape[1],
        "num_splits": num_splits,
        "CHUNK_S": min(COMBINE_CHUNK, triton.next_power_of_2(num_splits)),
        "OVERLAP": overlap,
    }


def split_k_arguments(inputs: Inputs, plan: Plan, partial_out, partial_lse, overlap: bool) -> dict:
    """Every argument of the split-K kernel."""
    return source_arguments(inputs) | {
        "partial_out_ptr": partial_out,
        "partial_lse_ptr": partial_lse,
        "heads": inputs.q.shape[1],
        "BLOCK_H": plan.tile.block_h,
        "BLOCK_T": plan.tile.block_t,
        "OVERLAP": overlap,
    }


def attention_arguments(inputs: Inputs, plan: Plan, out, lse) -> tuple:
    """Kernel and arguments of a rung that writes the result itself."""
    arguments = source_arguments(inputs) | result_arguments(inputs, out, lse)
    if plan.impl == "mma":
        return mma_kernel, arguments | {
            "heads": inputs.q.shape[1], "BLOCK_H": plan.tile.block_h, "BLOCK_T": plan.tile.block_t,
        }  # fmt: skip
    return per_head_kernel, arguments | {"SERIAL": plan.impl == "serial", "BLOCK_T": plan.tile.block_t}


def staged_arguments(inputs: Inputs, plan: Plan, out, lse, partial_out, partial_lse, overlap: bool) -> dict:
    """Every argument of the staged kernel. With one split it writes the result, with more the partial outputs."""
    tile, final = plan.tile, plan.num_splits == 1
    arguments = source_arguments(inputs) | result_arguments(inputs, out, lse)
    del arguments["ALIGNED"]
    if not final:
        arguments |= {"out_ptr": partial_out, "lse_ptr": partial_lse}
    arguments |= {
        "heads": inputs.q.shape[1],
        "release": RELEASES["start" if final else plan.release],
        "UNIT": _unit(inputs),
        "BLOCK_H": tile.block_h,
        "BLOCK_T": tile.block_t,
        "BUFFERS": tile.num_stages,
        "WGMMA": tile.wgmma,
        "FINAL": final,
        "OVERLAP": overlap,
    }
    if tile.wide:
        del arguments["BLOCK_T"], arguments["BUFFERS"], arguments["WGMMA"]
        share = wide_share(inputs.main.topk, inputs.extra_topk, plan.num_splits)
        return arguments | {"SHARE": share if share <= WIDE_SHARE else 0}
    if tile.few:
        for name in ("UNIT", "BLOCK_H", "BUFFERS", "WGMMA"):
            del arguments[name]
        return arguments | {
            "TILES": tile.num_stages,
            "PAIR": tile.pair,
            "TEAM_REGISTERS": TEAM_REGISTERS,
        }
    if tile.producer_warps:
        return arguments | {"CONSUMER_WARPS": tile.num_warps, "CONSUMER_REGISTERS": CONSUMER_REGISTERS}
    return arguments | {"SEGMENT": STAGED_SEGMENT}


def staged_kernel_of(tile: Tile):
    """The Gluon kernel of a tile. Imported late: Gluon is not there under the interpreter."""
    if tile.few:
        from kernels.sparse_mla.few_heads import few_heads_kernel

        return few_heads_kernel
    if tile.producer_warps:
        from kernels.sparse_mla.specialised import specialised_kernel

        return specialised_kernel
    if tile.wide:
        from kernels.sparse_mla.wide import wide_kernel

        return wide_kernel
    from kernels.sparse_mla.staged import staged_kernel

    return staged_kernel


def can_overlap(tensor: torch.Tensor) -> bool:
    """Whether a kernel may start while its predecessor ends (programmatic dependent launch, sm_90 and later)."""
    if triton_mode.interpreted() or tensor.device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(tensor.device)[0] >= 9


def in_pairs(kernel, grid, arguments: dict, options: dict) -> None:
    """Launch a kernel's blocks as clusters of two along the first axis.

    Triton launches clusters only of kernels that it distributes over their blocks itself. Here the kernel does that,
    so it is compiled as for single blocks, and the launcher is told that they come in pairs.
    """
    compiled = kernel.warmup(**arguments, grid=grid, **options)
    warps, _, *rest = compiled.packed_metadata
    compiled.packed_metadata = (warps, 2, *rest)
    compiled[grid](*(arguments[name] for name in kernel.arg_names))


def _start(kernel, grid, arguments, plan: Plan, overlap: bool = False) -> None:
    options = {"num_warps": plan.tile.launched_warps, "num_stages": plan.tile.num_stages}
    if overlap:
        options["launch_pdl"] = True
    if plan.tile.pair:
        in_pairs(kernel, grid, arguments, options)
    else:
        kernel[grid](**arguments, **options)


def run(
    inputs: Inputs,
    plan: Plan,
    out: torch.Tensor,
    lse: torch.Tensor,
    workspace: torch.Tensor | None,
    scratch_dtype: torch.dtype,
) -> None:
    """Launch the plan's kernels. `workspace` is uint8 scratch for split-K, of `plan.workspace_bytes`."""
    batch, heads, _ = inputs.q.shape
    grid = (batch, -(-heads // plan.tile.block_h), plan.num_splits)
    if plan.impl not in ("split_k", "staged"):
        kernel, arguments = attention_arguments(inputs, plan, out, lse)
        _start(kernel, grid, arguments, plan)
        return
    overlap = can_overlap(inputs.q)
    partial_out = partial_lse = None
    if plan.scratch_splits:
        rows = batch * plan.num_splits * heads
        partial_out = workspace[: rows * 512 * scratch_dtype.itemsize].view(scratch_dtype)
        partial_lse = workspace[partial_out.nbytes : partial_out.nbytes + rows * 4].view(torch.float32)
    if plan.impl == "staged":
        arguments = staged_arguments(inputs, plan, out, lse, partial_out, partial_lse, overlap)
        _start(staged_kernel_of(plan.tile), grid, arguments, plan, overlap)
    else:
        arguments = split_k_arguments(inputs, plan, partial_out, partial_lse, overlap)
        _start(split_k_kernel, grid, arguments, plan, overlap)
    if plan.scratch_splits:
        arguments = combine_arguments(inputs, partial_out, partial_lse, out, lse, plan.num_splits, overlap)
        given = {"launch_pdl": True} if overlap else {}
        combine_kernel[(batch, heads)](**arguments, num_warps=COMBINE_WARPS, num_stages=1, **given)
