"""Does a step fit? Arithmetic on sizes, before anything is allocated."""

import torch

from kernels.decode_step.errors import DoesNotFit
from kernels.decode_step.shapes import HEAD_DIM, Shapes
from kernels.decode_step.stages import Stage
from kernels.decode_step.state import plan_state
from kernels.decode_step.weights import weight_bytes

MARGIN = 1 << 30  # what PyTorch, cuBLAS and a captured graph keep for themselves


def transient_bytes(shapes: Shapes, stage: Stage, batch: int, max_context: int) -> int:
    """The largest intermediate results of a step that live at the same time."""
    hidden = 4 * shapes.streams * shapes.hidden * 6
    experts = shapes.active_experts(batch) * shapes.moe_intermediate * 16
    row = hidden + experts + 4 * shapes.vocab + shapes.heads * HEAD_DIM * 24
    if stage.logits == "uncapped" and "c4" in shapes.kinds:
        # An entry's key in the product's type, its 64 products, and beside them their ReLU or float32 terms
        size = stage.gemm_dtype.itemsize
        entry = 128 * size + 64 * size + max(64 * size, 64 * 4) + 24
        row += shapes.index_width(max_context) * entry
    return batch * row


def step_bytes(
    shapes: Shapes, stage: Stage, batch: int, context: int, max_context: int, pool_pages=None
) -> int:
    """Caches and intermediate results of a step; the weights come on top (`weight_bytes`)."""
    plan = plan_state(shapes, batch, context, max_context, pool_pages)
    return plan.cache_bytes() + transient_bytes(shapes, stage, batch, max_context)


def check_transient(step) -> None:
    """Raise `DoesNotFit` when a built step's stage lacks room for its intermediate results."""
    plan, stage = step.state.plan, step.stage
    room = free_bytes(step.state.device)
    needed = transient_bytes(step.shapes, stage, plan.batch, plan.max_context) + MARGIN
    if needed > room:
        each = transient_bytes(step.shapes, stage, 1, plan.max_context)
        raise DoesNotFit(
            f"batch: {plan.batch} at max_context {plan.max_context:,} needs {needed / 1e9:.1f} GB of "
            f"intermediate results at stage {stage.name}, {room / 1e9:.1f} GB are free; batch "
            f"{max(0, int((room - MARGIN) // each))} fits"
        )


def free_bytes(device) -> int:
    """What the device has free, memory that PyTorch keeps unused included."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def largest_batch(shapes: Shapes, stage: Stage, context: int, max_context: int, room: int) -> int:
    """The largest batch whose step takes at most `room` bytes; 0 if not even one request's does."""
    low, high = 0, 1
    while high <= 1 << 16 and step_bytes(shapes, stage, high, context, max_context) <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = step_bytes(shapes, stage, middle, context, max_context) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def check_fits(
    shapes, stage, batch, context, max_context, room: int, with_weights: bool, pool_pages=None
) -> None:
    """Raise `DoesNotFit` when the step needs more than `room` bytes.

    with_weights: the weights are yet to be allocated.
    """
    weights = weight_bytes(shapes) if with_weights else 0
    needed = step_bytes(shapes, stage, batch, context, max_context, pool_pages) + weights + MARGIN
    if needed <= room:
        return
    best = largest_batch(shapes, stage, context, max_context, room - weights - MARGIN)
    fits = (
        f"batch {best} fits at max_context {max_context:,}"
        if best
        else "not even batch 1 fits at this max_context"
    )
    raise DoesNotFit(
        f"batch: {batch} at context {context:,} and max_context {max_context:,} needs {needed / 1e9:.1f} GB "
        f"at stage {stage.name}, {room / 1e9:.1f} GB are free; {fits}"
    )
