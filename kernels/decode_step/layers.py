"""The order of things: embedding, the layers' two sublayers each between a read and a write of the streams,
head.
"""

import torch

from kernels.decode_step.attention import attention
from kernels.decode_step.experts import feed_forward
from kernels.decode_step.hyper import after, before
from kernels.decode_step.ranges import forced_linear, linear


def embed(run) -> torch.Tensor:
    """The four streams of the current tokens, bfloat16 [B, 4, hidden]."""
    rows = run.weights.vocabulary[run.state.tokens] * run.shapes.hidden**0.5
    return rows[:, None].repeat(1, run.shapes.streams, 1)


def attention_sublayer(run, number: int, streams) -> torch.Tensor:
    """bfloat16 [B, 4, hidden] -> the same, through the layer's attention."""
    layer = run.weights.layers[number]
    x, post, mixing = before(run, streams, layer.attention.hyper, layer.attention.norm)
    y = attention(run, layer, run.state.caches[number], x)
    run.probe.see("attention_sublayer", y)
    return after(run, streams, y, post, mixing)


def feed_forward_sublayer(run, number: int, streams) -> torch.Tensor:
    """bfloat16 [B, 4, hidden] -> the same, through the layer's experts."""
    layer = run.weights.layers[number]
    x, post, mixing = before(run, streams, layer.feed_forward.hyper, layer.feed_forward.norm)
    y = feed_forward(run, layer, number, x)
    run.probe.see("feed_forward_sublayer", y)
    return after(run, streams, y, post, mixing)


SUBLAYERS = (attention_sublayer, feed_forward_sublayer)


def head(run, streams) -> torch.Tensor:
    """Logits of the vocabulary, bfloat16 [B, vocab]."""
    weights, s = run.weights, run.shapes
    flat = streams.flatten(1)
    hyper = weights.head_hyper
    mixes = forced_linear(flat, hyper.in_type(run.stage.gemm_dtype))
    x = run.glue.head_mix(flat, mixes, hyper.scale, hyper.base, weights.head_norm, s.streams, s.eps)
    return linear(x, weights.vocabulary)


def forward(run) -> torch.Tensor:
    """The whole step, from tokens and lengths to logits."""
    streams = embed(run)
    for number in range(run.shapes.layers):
        for sublayer in SUBLAYERS:
            streams = sublayer(run, number, streams)
    return head(run, streams)
