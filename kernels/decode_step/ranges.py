"""Names for parts of the step, so that a profile can say which kernel belongs to which.

Whatever runs outside a mark is glue. A mark is a `record_function` range: it costs nothing in a captured
graph.
"""

from contextlib import contextmanager

import torch

PREFIX = "step:"
GROUPS = ("attention", "combine", "indexer", "topk", "gemm_fp32", "gemm", "experts", "glue")
listeners: list = []


@contextmanager
def mark(group: str, launches: int | None = None):
    """Everything inside belongs to `group`.

    launches: kernels that our operators start inside, for a count without a GPU; None counts PyTorch's calls.
    """
    with torch.profiler.record_function(PREFIX + group):
        for listener in listeners:
            listener.enter(group, launches)
        try:
            yield
        finally:
            for listener in listeners:
                listener.leave(group)


def linear(x: torch.Tensor, weight: torch.Tensor, group: str = "gemm") -> torch.Tensor:
    """`x @ weight.T`, marked."""
    with mark(group):
        return torch.nn.functional.linear(x, weight)


def forced_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T` in the weight's type, result in float32: the products that the campaign met in FP32."""
    if weight.dtype == torch.float32:
        return linear(x.float(), weight, "gemm_fp32")
    return linear(x, weight).float()
