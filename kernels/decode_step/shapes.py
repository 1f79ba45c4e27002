"""The model's numbers. `flash()` is DeepSeek-V4-Flash, `tiny()` the same layers shrunk for a CPU.

Source of `flash()`: the checkpoint's config.json and inference/model.py (deepseek-ai/DeepSeek-V4-Flash). What
the operators fix (512 columns a head, 64 index heads of 128) is the same in both.
"""

from dataclasses import dataclass

from kernels.indexer import INDEX_DIM, INDEX_HEADS, PAGE_ENTRIES
from kernels.sparse_mla.layout import HEAD_DIM, NOPE_DIM, ROPE_DIM

PAGE_TOKENS = 256  # a page of the block table: 64 entries of ratio 4, 2 entries of ratio 128
SWA_PAGE = 128
INDEX_WIDTH_STEP = 64  # engines pad rows of indices to a multiple of 64
KINDS = {0: "swa", 4: "c4", 128: "c128"}

__all__ = [
    "HEAD_DIM",
    "INDEX_DIM",
    "INDEX_HEADS",
    "KINDS",
    "NOPE_DIM",
    "PAGE_ENTRIES",
    "PAGE_TOKENS",
    "ROPE_DIM",
    "SWA_PAGE",
    "Shapes",
    "flash",
    "tiny",
]


@dataclass(frozen=True)
class Shapes:
    """Sizes of the model, and of the share of it that one rank holds.

    Attributes:
        ratios: for each layer 0 (sliding window only), 4 or 128 (also compressed entries of so many tokens).
        experts, experts_per_token: routed experts of a layer, and how many a token chooses.
        expert_ranks: ranks that share the routed experts; the step is one of them. 1 holds all.
        min_pool_pages: least pages of the caches, so that what a step reads does not stay in the L2.
        weight_sets: distinct sets of weights that layers of a kind take in turns.
    """

    hidden: int
    heads: int
    q_lora: int
    o_groups: int
    o_lora: int
    window: int
    index_topk: int
    ratios: tuple[int, ...]
    experts: int
    experts_per_token: int
    expert_ranks: int
    moe_intermediate: int
    vocab: int
    hash_layers: int = 3
    streams: int = 4
    sinkhorn_iterations: int = 20
    eps: float = 1e-6
    routed_scale: float = 1.5
    swiglu_limit: float = 10.0
    rope_theta: float = 1e4
    compress_theta: float = 160000.0
    yarn_factor: float = 16.0
    yarn_original: int = 65536
    yarn_beta: tuple[float, float] = (32.0, 1.0)
    min_pool_pages: int = 1
    weight_sets: int = 3

    @property
    def layers(self) -> int:
        return len(self.ratios)

    @property
    def kinds(self) -> tuple[str, ...]:
        """'swa', 'c4' or 'c128' for each layer."""
        return tuple(KINDS[ratio] for ratio in self.ratios)

    @property
    def mix(self) -> int:
        """Outputs of the hyper-connection projection: pre, post and a square of the streams."""
        return (2 + self.streams) * self.streams

    @property
    def local_experts(self) -> int:
        """Routed experts that one rank holds."""
        return self.experts // self.expert_ranks

    def active_experts(self, batch: int) -> int:
        """Distinct local experts that a batch is expected to touch, rounded up, when tokens choose at random.

        What the experts cost at decode is reading their weights, so the step multiplies with so many of them.
        """
        missed = (1 - self.experts_per_token / self.experts) ** batch
        expected = self.local_experts * (1 - missed)
        return min(self.local_experts, max(1, -int(-expected // 1)))

    def table_width(self, max_context: int) -> int:
        """Pages of a block table's row."""
        return -(-max_context // PAGE_TOKENS)

    def c128_width(self, max_context: int) -> int:
        """Places in a row of ratio-128 indices, padded as engines pad it."""
        entries = 2 * self.table_width(max_context)
        return -(-entries // INDEX_WIDTH_STEP) * INDEX_WIDTH_STEP

    def index_width(self, max_context: int) -> int:
        """Columns of the indexer's logits: every entry that the block table could name."""
        return self.table_width(max_context) * PAGE_ENTRIES


def flash() -> Shapes:
    """DeepSeek-V4-Flash: 43 layers (2 sliding-window, 21 of ratio 4, 20 of ratio 128), one rank of eight's
    experts.
    """
    return Shapes(
        hidden=4096,
        heads=64,
        q_lora=1024,
        o_groups=8,
        o_lora=1024,
        window=128,
        index_topk=512,
        ratios=(0, 0, *((4, 128) * 20), 4),
        experts=256,
        experts_per_token=6,
        expert_ranks=8,
        moe_intermediate=2048,
        vocab=129280,
        min_pool_pages=8192,
    )


def tiny(layers: int = 3) -> Shapes:
    """Two to four layers of every kind, small enough for the interpreter: 2 heads, a window of 16, 8
    experts.
    """
    return Shapes(
        hidden=128,
        heads=2,
        q_lora=64,
        o_groups=2,
        o_lora=32,
        window=16,
        index_topk=16,
        ratios=(0, 4, 128, 4)[:layers],
        experts=8,
        experts_per_token=2,
        expert_ranks=2,
        moe_intermediate=64,
        vocab=64,
        hash_layers=1,
        sinkhorn_iterations=5,
        weight_sets=2,
    )
