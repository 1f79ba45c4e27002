"""Chapter 5's algebra in float64, and what rounding the partial results costs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from kernels.lab import roofline
from kernels.lab.chapters.split_cases import case, errors, poisoned_workspace, reference
from kernels.sparse_mla import sparse_mla_decode, sparse_mla_decode_reference


def attend(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(normalised output [D], natural-log LSE) of scores [T] over values [T, D]; a partial of no tokens
    gives 0, -inf.
    """
    lse = torch.logsumexp(scores, 0)
    return torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)) @ values, lse


def merge(
    outputs: torch.Tensor, lses: torch.Tensor, sink: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge normalised partials [S, D] by their natural-log LSEs [S]; the sink joins the denominator only."""
    top = lses.max()
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(lses - top)
    total = weights.sum()
    if total == 0:
        return torch.zeros_like(outputs[0]), torch.tensor(torch.inf, dtype=torch.float64)
    live = torch.where((lses > -torch.inf)[:, None], outputs, 0.0)  # what nobody wrote may be NaN
    denominator = total if sink is None else total + torch.exp(torch.tensor(sink, dtype=torch.float64) - top)
    return weights @ live / denominator, top + torch.log(total)


def identities(tokens: int = 96, width: int = 64) -> pd.DataFrame:
    """Columns case, output_error, lse_error: merged partials against one softmax over all tokens, in
    float64.
    """
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(tokens, generator=generator, dtype=torch.float64) * 3
    values = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    whole, whole_lse = attend(scores, values)
    rows = []

    def judge(name, got, want=(whole, whole_lse)):
        rows.append({"case": name, "output_error": float((got[0] - want[0]).abs().max()),
                     "lse_error": 0.0 if got[1] == want[1] else float((got[1] - want[1]).abs())})  # fmt: skip

    judge("two halves", merge(*_parts(scores, values, (tokens // 2,))))
    judge("seven uneven parts", merge(*_parts(scores, values, (1, 4, 5, 40, 41, 90))))
    in_order, lses = _parts(scores, values, (20, 50))
    judge("parts in another order", merge(in_order.flip(0), lses.flip(0)))
    outputs, lses = _parts(scores, values, (tokens // 2, tokens))
    outputs[2] = torch.nan
    judge("two halves and a part that nobody wrote", merge(outputs, lses))
    shifted = _parts(scores + 2000.0, values, (tokens // 2,))
    judge("scores around 2,000", merge(*shifted), (whole, whole_lse + 2000.0))
    halves, lses = _parts(scores, values, (tokens // 2,))
    base_two = lses / np.log(2.0)
    weights = torch.exp2(base_two - base_two.max())
    lse = (base_two.max() + torch.log2(weights.sum())) * np.log(2.0)
    judge("two halves in base 2", (weights @ halves / weights.sum(), lse))
    sink = 1.5
    with_sink = torch.exp(scores - whole_lse) / (1 + torch.exp(sink - whole_lse)) @ values
    judge("two halves and a sink", merge(halves, lses, sink), (with_sink, whole_lse))
    return pd.DataFrame(rows)


def sink_per_split(tokens: int = 96, width: int = 64, sink: float = 1.5) -> float:
    """Relative error of the output when every one of two splits adds the sink to its own denominator."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(tokens, generator=generator, dtype=torch.float64)
    values = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    halves, lses = _parts(scores, values, (tokens // 2,))
    right, _ = merge(halves, lses, sink)
    with_sinks = torch.logaddexp(lses, torch.full_like(lses, sink))
    wrong = torch.exp(lses - torch.logsumexp(with_sinks, 0)) @ halves
    return float((wrong - right).norm() / right.norm())


def _parts(scores, values, cuts) -> tuple[torch.Tensor, torch.Tensor]:
    bounds = [0, *cuts, len(scores)]
    parts = [attend(scores[a:b], values[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])


@np.errstate(divide="ignore", invalid="ignore")  # the interpreter takes log2(0) of an empty split
def scratch_errors(device: str, splits: Iterable[int] = (1, 2, 5)) -> pd.DataFrame:
    """Columns splits, bf16, fp32: relative RMS error of the whole operator with either scratch, against
    float64.
    """
    batch, heads, topk = (16, 64, 512) if device == "cuda" else (2, 16, 160)
    made = case(device, batch, heads, topk)
    want = reference(made)
    rows = []
    for count in splits:
        row = {"splits": count}
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            got = sparse_mla_decode(
                **made.arguments(), impl="split_k", num_splits=count, scratch_dtype=dtype,
                workspace=poisoned_workspace(made, count, dtype),
            )  # fmt: skip
            row[name] = errors(*got, *want)[0]
        rows.append(row)
    return pd.DataFrame(rows)


@np.errstate(divide="ignore", invalid="ignore")
def combine_cases(device: str) -> pd.DataFrame:
    """Columns case, output_error, lse_error: the operator on rows with empty splits, sinks and no
    candidates at all.
    """
    batch, heads, topk = (8, 64, 512) if device == "cuda" else (2, 4, 64)
    found = []
    for name, lengths, sinks, splits in (
        ("more splits than tiles", [topk // 4] * batch, None, 8),
        ("an empty row beside a full one", [0, topk] * (batch // 2), None, 2),
        ("a sink of 0", [topk] * batch, 0.0, 3),
        ("a sink of -inf: none", [topk] * batch, float("-inf"), 3),
        ("a sink of +inf: zeros", [topk] * batch, float("inf"), 3),
    ):
        made = case(device, batch, heads, topk, lengths)
        sink = None if sinks is None else torch.full((heads,), sinks, device=device)
        arguments = made.arguments() | {"attn_sink": sink}
        got = sparse_mla_decode(
            **arguments, impl="split_k", num_splits=splits, workspace=poisoned_workspace(made, splits)
        )
        off, off_lse = errors(*got, *sparse_mla_decode_reference(**arguments))
        found.append({"case": name, "splits": splits, "output_error": off, "lse_error": off_lse})
    return pd.DataFrame(found)


def traffic(splits_of: dict[int, int], heads: int = 64, topk: int = 512, block_h: int = 32) -> pd.DataFrame:
    """Columns batch, splits, scratch_mb, both_ways_mb, kv_mb, over_kv: one layer's scratch beside the KV it
    reads.

    splits_of: batch -> splits. scratch_mb: bf16 partial outputs and LSEs, one way. kv_mb: distinct KV bytes.
    """
    rows = []
    for batch, splits in splits_of.items():
        one_way = sum(roofline.scratch(batch, heads, splits).values()) / 1e6 if splits > 1 else 0.0
        kv = roofline.attention(batch, heads, topk).parts["kv"] / 1e6
        rows.append({"batch": batch, "splits": splits, "scratch_mb": one_way, "both_ways_mb": 2 * one_way,
                     "kv_mb": kv, "over_kv": 2 * one_way / kv})  # fmt: skip
    return pd.DataFrame(rows)


def model_step_mb(
    batch: int = 16, heads: int = 64, splits: int = 6, tile_tokens: int = 32
) -> dict[str, float]:
    """Megabytes of scratch in one decode step of the real model at 8K live tokens, where no layer type is
    like another.

    A layer cannot have more useful splits than tiles: 128 window rows, plus up to 512 selected ones in the
    layers that select, plus one row for 128 tokens in the others. Layers whose type is unsplit count
    nothing.
    """
    live = 8192
    rows_of = {"swa": 128, "c4": 128 + min(512, live // 4), "c128": 128 + live // 128}
    layers = {"swa": 2, "c4": 21, "c128": 20}
    result = {}
    for kind, rows in rows_of.items():
        useful = min(splits, -(-rows // tile_tokens))
        result[kind] = layers[kind] * 2 * sum(roofline.scratch(batch, heads, useful).values()) / 1e6
    return result | {"step": sum(result.values())}
