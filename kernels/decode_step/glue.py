"""The elementwise functions between products and operators: one launch an operation, or compiled.

Unfused, each PyTorch operation is a launch that reads and writes memory for a few instructions' work, as the
campaign met them. Fused, `torch.compile` makes a kernel or two of each function. Both run the same functions.
"""

from functools import cache

import torch

from kernels.decode_step import (
    attention,
    compressor,
    experts,
    hyper,
    indexing,
    norms,
    rope,
    store,
    tables,
)

FUNCTIONS = {
    function.__name__: function
    for function in (
        tables.step_tables,
        hyper.gates,
        hyper.read_streams,
        hyper.write_streams,
        hyper.head_mix,
        norms.split_latents,
        attention.prepare_query,
        rope.rotate,
        rope.unrotate,
        store.turn_and_quantize,
        store.quantize_index_keys,
        compressor.split_rows,
        compressor.pool_overlapping,
        compressor.pool_group,
        indexing.quantize_index_query,
        experts.choose_experts,
        experts.expert_mask,
        experts.clamped_swiglu,
        experts.masked_swiglu,
        experts.add,
    )
}
RECOMPILES = 256  # a function meets several shapes and every batch; the default limit would end the run


@cache
def compiled(name: str, backend: str):
    """`FUNCTIONS[name]` through torch.compile, one for the process. It has to be one graph, or it is an
    error.
    """
    config = torch._dynamo.config
    for limit in ("recompile_limit", "cache_size_limit"):
        if hasattr(config, limit):
            setattr(config, limit, max(RECOMPILES, getattr(config, limit)))
            break
    return torch.compile(FUNCTIONS[name], fullgraph=True, backend=backend)


class Glue:
    """The functions as attributes, plain or compiled.

    On a CPU the compiler traces the functions and runs them as they are: a kernel count would say nothing
        there.
    """

    def __init__(self, fused: bool, device_type: str):
        backend = "inductor" if device_type == "cuda" else "eager"
        for name, function in FUNCTIONS.items():
            setattr(self, name, compiled(name, backend) if fused else function)
