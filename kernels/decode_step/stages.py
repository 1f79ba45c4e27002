"""The campaign's stages as switches: each keeps what the one before it gained.

`baseline` is the campaign's first profile: one program a head that walks the padded index width, the
indexer in PyTorch over the whole block table, its product, its head weights and the hyper-connections'
projection in forced FP32, and every elementwise operation a launch of its own.
"""

from dataclasses import dataclass, replace

import torch

from kernels.decode_step.errors import reject


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        attention: rung of `sparse_mla_decode`.
        logits, topk: rungs of the indexer.
        gemm_dtype: type of the products that the campaign found in forced FP32.
        fused: glue through torch.compile.
    """

    name: str
    attention: str
    logits: str
    topk: str
    gemm_dtype: torch.dtype
    fused: bool
    change: str


BASELINE = Stage("baseline", "simt", "uncapped", "torch", torch.float32, False, "as the campaign met it")
MMA = replace(
    BASELINE, name="mma", attention="mma", change="attention on tensor cores, tokens shared by heads"
)
SPLIT_K = replace(MMA, name="split_k", attention="split_k", change="a row's candidates shared by programs")
INDEXER_CAP = replace(
    SPLIT_K,
    name="indexer_cap",
    logits="paged",
    topk="radix",
    change="indexer and top-k follow the live lengths",
)
BF16_GEMM = replace(
    INDEXER_CAP, name="bf16_gemm", gemm_dtype=torch.bfloat16, change="forced-FP32 products in bfloat16"
)
FUSED_GLUE = replace(
    BF16_GEMM, name="fused_glue", fused=True, change="elementwise chains compiled into few kernels"
)

STAGES = {stage.name: stage for stage in (BASELINE, MMA, SPLIT_K, INDEXER_CAP, BF16_GEMM, FUSED_GLUE)}


def stage_named(stage) -> Stage:
    """A `Stage` by its name, or the stage itself.

    Raises:
        StepError: no such stage.
    """
    if isinstance(stage, Stage):
        return stage
    if stage not in STAGES:
        reject("stage", repr(stage), f"one of {', '.join(STAGES)}")
    return STAGES[stage]
