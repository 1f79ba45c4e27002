"""The feed-forward sublayer: gate, the rank's share of the routed experts, and the shared expert.

Formulation. At decode an expert costs the reading of its weights, and which experts a batch touches is
known on the device alone. The step multiplies with as many distinct local experts as the batch is expected
to touch (`Shapes.active_experts`), all rows of the batch with each, and masks by the routing: two plain
products of a fixed shape, no gather of weights, nothing read on the host. A token's choices that belong to
this rank (one in `expert_ranks`) are folded onto those experts. A grouped product would pad its rows to a
tile in any case, so that both read the same bytes.
"""

import torch

from kernels.decode_step.ranges import linear, mark


def choose_experts(logits, bias, k: int):
    """The gate's scores and the `k` best experts by biased score, int64 [B, k]."""
    scores = torch.sqrt(torch.nn.functional.softplus(logits))
    return scores, torch.topk(scores + bias, k, dim=-1).indices


def expert_mask(scores, chosen, scale: float, ranks: int, active: int):
    """Weight of each active expert for each row, float32 [B, active]; 0 where it was not chosen.

    Expert e belongs to rank e modulo `ranks`; this is rank 0, whose expert e / ranks is folded onto
    `active` places.
    """
    weight = scores.gather(1, chosen)
    weight = weight / weight.sum(-1, keepdim=True) * scale
    weight = torch.where(chosen % ranks == 0, weight, 0.0)
    place = chosen // ranks % active
    hit = place[:, :, None] == torch.arange(active, device=scores.device)
    return (weight[:, :, None] * hit).sum(1)


def clamped_swiglu(both, limit: float):
    """silu(gate) * up with the gate at most `limit` and up within it; halves of the last dimension,
    bfloat16.
    """
    gate, up = both.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)).bfloat16()


def masked_swiglu(both, mask, limit: float):
    """`clamped_swiglu` of each expert's [B, active, 2 * inner], times its weight."""
    gate, up = both.float().chunk(2, -1)
    hidden = torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)
    return (hidden * mask[..., None]).bfloat16()


def add(a, b):
    """Routed and shared parts together."""
    return a + b


def feed_forward(run, layer, number: int, x) -> torch.Tensor:
    """bfloat16 [B, hidden] -> the same; `number` is the layer's, since the first ones route by token."""
    s, glue, weights = run.shapes, run.glue, layer.feed_forward
    batch, inner, active = x.shape[0], s.moe_intermediate, s.active_experts(x.shape[0])
    logits = linear(x.float(), weights.gate, "gemm_fp32")
    scores, chosen = glue.choose_experts(logits, weights.gate_bias, s.experts_per_token)
    if number < s.hash_layers:
        chosen = run.weights.hash_table[run.state.tokens]
    else:
        chosen = run.probe.choose("experts", chosen)
    mask = glue.expert_mask(scores, chosen, s.routed_scale, s.expert_ranks, active)
    with mark("experts"):
        both = torch.nn.functional.linear(x, layer.experts.up[: active * 2 * inner])
        hidden = glue.masked_swiglu(both.view(batch, active, 2 * inner), mask, s.swiglu_limit)
        routed = hidden.flatten(1) @ layer.experts.down[: active * inner]
        shared = torch.nn.functional.linear(x, weights.shared_up)
        shared = torch.nn.functional.linear(glue.clamped_swiglu(shared, s.swiglu_limit), weights.shared_down)
        return glue.add(routed, shared)
