"""Random weights at true shapes, in bfloat16, as few sets as suffice.

Choice of types: bfloat16 for every projection and expert, float32 for what the model keeps in float32
(gate, norms, hyper-connections). The checkpoint has FP8 projections in blocks of 128 x 128 and MXFP4
experts; PyTorch multiplies neither on every device of this book, so both are read at more bytes than an
engine reads (`left_out`). Layers of a kind take `weight_sets` sets in turns: far more bytes than an L2 lie
between two uses.
"""

from dataclasses import dataclass, fields

import torch

from kernels.decode_step.shapes import HEAD_DIM, INDEX_DIM, INDEX_HEADS, Shapes


@dataclass(frozen=True)
class HyperWeights:
    """A hyper-connection: projection [24 (the head: 4), 4 * hidden] in both types, scale [3], base of the
    outputs.
    """

    projection: torch.Tensor
    projection_bf16: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor

    def in_type(self, dtype: torch.dtype) -> torch.Tensor:
        return self.projection if dtype == torch.float32 else self.projection_bf16


@dataclass(frozen=True)
class CompressorWeights:
    """KV and gate projections in one [2 * coff * width, hidden], position bias [ratio, coff * width], norm
    [width].
    """

    kv_gate: torch.Tensor
    position_bias: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True)
class IndexerWeights:
    """Query projection [64 * 128, q_lora], head weights [64, hidden] in both types, and the keys'
    compressor.
    """

    query: torch.Tensor
    heads: torch.Tensor
    heads_bf16: torch.Tensor
    compressor: CompressorWeights


@dataclass(frozen=True)
class AttentionWeights:
    """Norms, latent projections, sink [heads], grouped output projections, what the kind adds (or None)."""

    hyper: HyperWeights
    norm: torch.Tensor
    qkv_a: torch.Tensor
    q_norm: torch.Tensor
    kv_norm: torch.Tensor
    q_b: torch.Tensor
    sink: torch.Tensor
    o_a: torch.Tensor
    o_b: torch.Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True)
class FeedForwardWeights:
    """Gate [experts, hidden] float32 and its bias; shared expert as up [2 * inner, hidden] and down
    [hidden, inner].
    """

    hyper: HyperWeights
    norm: torch.Tensor
    gate: torch.Tensor
    gate_bias: torch.Tensor
    shared_up: torch.Tensor
    shared_down: torch.Tensor


@dataclass(frozen=True)
class ExpertWeights:
    """Local experts, one after the other: up [local * 2 * inner, hidden], down [local * inner, hidden]."""

    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class LayerWeights:
    kind: str
    attention: AttentionWeights
    feed_forward: FeedForwardWeights
    experts: ExpertWeights


@dataclass(frozen=True)
class Weights:
    """The model: its layers in order (sets repeat), and the hash layers' table, head; `vocabulary` [vocab,
    hidden] also embeds.
    """

    shapes: Shapes
    layers: tuple[LayerWeights, ...]
    hash_table: torch.Tensor
    head_hyper: HyperWeights
    head_norm: torch.Tensor
    vocabulary: torch.Tensor

    def nbytes(self) -> int:
        """Bytes of all distinct tensors."""
        return sum({t.data_ptr(): t.nbytes for t in _tensors(self)}.values())


def _tensors(node):
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from _tensors(item)
    elif hasattr(node, "__dataclass_fields__"):
        for field in fields(node):
            yield from _tensors(getattr(node, field.name))


class _Maker:
    """Draws tensors of one device from one seed."""

    def __init__(self, device, seed: int):
        self.device = device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def normal(self, *shape, std=1.0, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device=self.device).normal_(
            0.0, std, generator=self.generator
        )

    def matrix(self, rows, columns, dtype=torch.bfloat16):
        """A projection that keeps the variance of its input."""
        return self.normal(rows, columns, std=columns**-0.5, dtype=dtype)

    def norm(self, width):
        return 1.0 + self.normal(width, std=0.1)

    def hyper(self, outputs: int, s: Shapes):
        projection = self.matrix(outputs, s.streams * s.hidden, torch.float32)
        scale = torch.ones(3, device=self.device)
        return HyperWeights(projection, projection.bfloat16(), scale, self.normal(outputs, std=0.5))

    def compressor(self, s: Shapes, ratio: int, width: int):
        coff = 2 if ratio == 4 else 1
        return CompressorWeights(
            self.matrix(2 * coff * width, s.hidden),
            self.normal(ratio, coff * width, std=0.1),
            self.norm(width),
        )

    def indexer(self, s: Shapes):
        heads = self.matrix(INDEX_HEADS, s.hidden, torch.float32)
        return IndexerWeights(
            self.matrix(INDEX_HEADS * INDEX_DIM, s.q_lora),
            heads,
            heads.bfloat16(),
            self.compressor(s, 4, INDEX_DIM),
        )

    def attention(self, s: Shapes, kind: str):
        ratio = {"swa": 0, "c4": 4, "c128": 128}[kind]
        group = s.heads * HEAD_DIM // s.o_groups
        return AttentionWeights(
            hyper=self.hyper(s.mix, s),
            norm=self.norm(s.hidden),
            qkv_a=self.matrix(s.q_lora + HEAD_DIM, s.hidden),
            q_norm=self.norm(s.q_lora),
            kv_norm=self.norm(HEAD_DIM),
            q_b=self.matrix(s.heads * HEAD_DIM, s.q_lora),
            sink=self.normal(s.heads),
            # stored as bmm wants it: [groups, 8 heads x 512, o_lora]
            o_a=self.normal(s.o_groups, group, s.o_lora, std=group**-0.5, dtype=torch.bfloat16),
            o_b=self.matrix(s.hidden, s.o_groups * s.o_lora),
            compressor=self.compressor(s, ratio, HEAD_DIM) if ratio else None,
            indexer=self.indexer(s) if kind == "c4" else None,
        )

    def feed_forward(self, s: Shapes):
        return FeedForwardWeights(
            hyper=self.hyper(s.mix, s),
            norm=self.norm(s.hidden),
            gate=self.matrix(s.experts, s.hidden, torch.float32),
            gate_bias=self.normal(s.experts, std=0.1),
            shared_up=self.matrix(2 * s.moe_intermediate, s.hidden),
            shared_down=self.matrix(s.hidden, s.moe_intermediate),
        )

    def experts(self, s: Shapes):
        inner, local = s.moe_intermediate, s.local_experts
        up = torch.empty(local * 2 * inner, s.hidden, dtype=torch.bfloat16, device=self.device)
        up.normal_(0.0, s.hidden**-0.5, generator=self.generator)
        down = torch.empty(local * inner, s.hidden, dtype=torch.bfloat16, device=self.device)
        down.normal_(0.0, inner**-0.5, generator=self.generator)
        return ExpertWeights(up, down)


def random_weights(shapes: Shapes, device="cpu", seed: int = 0) -> Weights:
    """Draw the weights of a model; layer i of a kind takes set i modulo `shapes.weight_sets`."""
    make = _Maker(device, seed)
    with torch.no_grad():
        sets, layers, count = {}, [], {}
        expert_sets = [make.experts(shapes) for _ in range(shapes.weight_sets)]
        for number, kind in enumerate(shapes.kinds):
            turn = count.get(kind, 0) % shapes.weight_sets
            count[kind] = count.get(kind, 0) + 1
            if (kind, turn) not in sets:
                sets[kind, turn] = (make.attention(shapes, kind), make.feed_forward(shapes))
            attention, feed_forward = sets[kind, turn]
            experts = expert_sets[number % shapes.weight_sets]
            layers.append(LayerWeights(kind, attention, feed_forward, experts))
        hash_table = torch.randint(
            shapes.experts, (shapes.vocab, shapes.experts_per_token), device=device, generator=make.generator
        )
        return Weights(
            shapes=shapes,
            layers=tuple(layers),
            hash_table=hash_table,
            head_hyper=make.hyper(shapes.streams, shapes),
            head_norm=make.norm(shapes.hidden),
            vocabulary=make.matrix(shapes.vocab, shapes.hidden),
        )


def weight_bytes(shapes: Shapes) -> int:
    """Bytes of `random_weights(shapes)`, from arithmetic (norms and biases left aside)."""
    s = shapes
    hyper = s.mix * s.streams * s.hidden * 6
    attention = (s.q_lora + HEAD_DIM) * s.hidden + s.heads * HEAD_DIM * (s.q_lora + s.o_lora)
    attention += s.hidden * s.o_groups * s.o_lora
    common = 2 * attention + 2 * hyper + 6 * s.moe_intermediate * s.hidden + 4 * s.experts * s.hidden
    extra = {
        "swa": 0,
        "c4": 8 * s.hidden * (HEAD_DIM + INDEX_DIM) + INDEX_HEADS * (2 * INDEX_DIM * s.q_lora + 6 * s.hidden),
        "c128": 4 * s.hidden * HEAD_DIM + 4 * 128 * HEAD_DIM,
    }
    total = s.weight_sets * 6 * s.local_experts * s.moe_intermediate * s.hidden
    for kind in set(s.kinds):
        total += min(s.weight_sets, s.kinds.count(kind)) * (common + extra[kind])
    return total + 2 * s.vocab * s.hidden + 8 * s.vocab * s.experts_per_token
