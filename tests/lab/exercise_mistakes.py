"""Wrong answers that people give, each with words of the hint that it must get."""

import math

import numpy as np
import torch

from kernels.lab.exercises.solutions import chapter2, chapter4, chapter6


def fold_without_rescaling(scores, values, m, total, acc):
    present = scores > -np.inf
    if not present.any():
        return m, total, acc
    m_new = max(m, scores[present].max())
    weights = np.exp(scores[present] - m_new)
    return m_new, total * np.exp(m - m_new) + weights.sum(), acc + weights @ values[present]


def fold_without_maximum(scores, values, m, total, acc):
    weights = np.exp(scores)
    return m, total + weights.sum(), acc + weights @ np.where(weights[:, None] > 0, values, 0)


def fold_with_nan_rows(scores, values, m, total, acc):
    m_new = max(m, scores.max())
    top = m_new if m_new > -np.inf else 0.0
    weights, rescale = np.exp(scores - top), np.exp(m - top)
    return m_new, total * rescale + weights.sum(), acc * rescale + weights @ values


def fold_with_infinite_difference(scores, values, m, total, acc):
    values = np.where(np.isnan(values), 0, values)
    m_new = max(m, scores.max())
    weights, rescale = np.exp(scores - m_new), np.exp(m - m_new)
    return m_new, total * rescale + weights.sum(), acc * rescale + weights @ values


def fold_with_finite_sentinel(scores, values, m, total, acc):
    scores, m = np.maximum(scores, -1e30), max(m, -1e30)
    return fold_with_infinite_difference(scores, values, m, total, acc)


def merge_without_maximum(out_a, lse_a, out_b, lse_b):
    a, b = torch.exp(lse_a), torch.exp(lse_b)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], torch.log(a + b)


def merge_with_nan(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    return out_a * torch.exp(lse_a - lse)[:, None] + out_b * torch.exp(lse_b - lse)[:, None], lse


def merge_in_base_two(out_a, lse_a, out_b, lse_b):
    a, b = torch.exp2(lse_a), torch.exp2(lse_b)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], torch.log2(a + b)


def packed_rows(out, scores):
    batch, cap = scores.shape
    out.as_strided((batch, cap), (cap, 1), out.storage_offset()).copy_(scores)


def forgotten_tail(out, scores):
    out[:, : scores.shape[1]] = scores


def assigned_name(out, scores):
    out = torch.full_like(out, -math.inf)
    out[:, : scores.shape[1]] = scores


def wrote_between_rows(out, scores):
    chapter6.stride(out, scores)
    whole = out.as_strided((out.shape[0], out.stride(0)), (out.stride(0), 1), out.storage_offset())
    whole[:, out.shape[1] :] = -math.inf


def topk_without_mask(logits, lengths, k):
    return torch.topk(torch.nan_to_num(logits, nan=-1e9), k, dim=1).indices


def topk_without_absent(logits, lengths, k):
    live = torch.arange(logits.shape[1])[None, :] < lengths[:, None]
    return torch.where(live, logits, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :k]


def topk_of_zeroed(logits, lengths, k):
    live = torch.arange(logits.shape[1])[None, :] < lengths[:, None]
    zeroed = torch.where(live, logits, torch.zeros(()))
    order = zeroed.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return torch.where(live.gather(1, order), order, -1)


def spilling_choice(rows):
    return chapter2.choose_tile([{**row, "spill_bytes": 0} for row in rows]) and next(
        row
        for row in rows
        if {**row, "spill_bytes": 0} == chapter2.choose_tile([{**row, "spill_bytes": 0} for row in rows])
    )


def endless(heads, heads_per_program):
    while True:
        pass


FUNCTIONS = {
    "check_redundancy": [
        (lambda h, g: h // g, "round up"),
        (lambda h, g: h, "count programs"),
        (lambda h, g: 64, "count programs"),
        (lambda h, g: h / 0, "divisor"),
        (64, None),
    ],
    "check_amdahl": [
        (lambda p, f: 1 - p + p / f, "inverse"),
        (lambda p, f: 1 / (p + (1 - p) / f), "swapped"),
        (lambda p, f: 1 / (1 - p), "limit"),
    ],
    "check_intensity": [
        (lambda b, h, c, g: 2048 * h / 584, "requested"),
        (lambda b, h, c, g: 2048 * h / 576 / -(-h // g), "scale"),
        (lambda b, h, c, g: 1024 * h / 584 / -(-h // g), "twice"),
    ],
    "check_count_instructions": [
        (lambda sass: {"tensor": sass.count("HMMA"), "fma": sass.count("FFMA")}, "FFMA2"),
        (
            lambda sass: {
                "tensor": sum(" HMMA" in line for line in sass.splitlines()),
                "fma": sum(" FFMA " in line or " FFMA." in line for line in sass.splitlines()),
            },
            "comments",
        ),
        (lambda sass: 3, None),
    ],
    "check_tile_bytes": [
        (lambda bh, bt, st: 1024 * st * (bh + bt), "only the K tiles"),
        (lambda bh, bt, st: 512 * (bh + st * bt), "two bytes"),
    ],
    "check_blocks_per_sm": [
        (
            lambda s, r, n: min(102_400 // max(1, s), 65_536 // (r * n), 48 // -(-n // 32), 24),
            "1,024 bytes",
        ),
        (
            lambda s, r, n: (s <= 101_376) * min(102_400 // (s + 1024), 65_536 // (r * n), 48 * 32 // n, 24),
            "units of 256",
        ),
        (
            lambda s, r, n: 102_400 // (s + 1024) if s <= 101_376 else 0,
            "Only shared memory",
        ),
    ],
    "check_largest_block_t": [
        (lambda bh, lim: max([t for t in (16, 32, 64, 128, 256) if 1024 * (bh + t) <= lim] or [0]), "P,"),
        (lambda bh, lim: chapter2.largest_block_t(bh, lim) or 16, "answer is 0"),
    ],
    "check_choose_tile": [
        (spilling_choice, None),
        (lambda rows: rows[0] if rows else None, None),
        (lambda rows: None, "refuses"),
        (lambda rows: {"block_h": 32}, None),
    ],
    "check_grid": [
        (lambda b, h, bh, sm: (b * h, 0), "one a head"),
        (
            lambda b, h, bh, sm: (
                b * -(-h // bh),
                sm - b * -(-h // bh),
            ),
            "fewer than none",
        ),
        (
            lambda b, h, bh, sm: (
                b * (h // bh),
                max(0, sm - b * (h // bh)),
            ),
            "round up",
        ),
    ],
    "check_break_even": [
        (lambda h, bh, sm: sm // -(-h // bh), "Rounded down"),
        (lambda h, bh, sm: sm, "head groups"),
    ],
    "check_online_softmax": [
        (fold_without_rescaling, "acc must be rescaled"),
        (fold_without_maximum, "subtract the running maximum"),
        (fold_with_nan_rows, "0 * NaN"),
        (fold_with_infinite_difference, "-inf minus -inf"),
        (fold_with_finite_sentinel, "stand-in"),
        (lambda scores, values, m, total, acc: None, None),
    ],
    "check_waves": [
        (lambda bl, sm: (bl // sm, 1.0), "wave of their own"),
        (lambda bl, sm: (bl // sm + 1, bl / (bl // sm + 1) / sm), "last place"),
        (lambda bl, sm: (-(-bl // sm), bl / sm), "not in one"),
    ],
    "check_split_ranges": [
        (lambda t, ns: [(s * (t // ns), (s + 1) * (t // ns)) for s in range(ns)], "remainder is lost"),
        (lambda t, ns: [(s * -(-t // ns), (s + 1) * -(-t // ns)) for s in range(ns)], "past the last tile"),
        (
            lambda t, ns: [(min(t, s * -(-t // ns)), min(t, (s + 1) * -(-t // ns))) for s in range(ns)],
            "longest split",
        ),
        (lambda t, ns: [r for r in chapter4.split_ranges(t, ns) if r[0] < r[1]], "grid is fixed"),
        (lambda t, ns: [(a, b - 1) for a, b in chapter4.split_ranges(t, ns)], "exclusive"),
        (lambda t, ns: [(0, t)] * ns, "twice its weight"),
    ],
    "check_split_policy": [
        (lambda b, g, t, sm: 1, "idles"),
        (lambda b, g, t, sm: 8, "without a tile"),
        (lambda b, g, t, sm: min(t, 64, sm // (b * g)), "rounded-down"),
        (lambda b, g, t, sm: max(1, min(t, 64, -(-sm // (b * g)))), "wave"),
    ],
    "check_batch_invariant_policy": [
        (chapter4.split_policy, "neighbours"),
        (lambda b, g, t, sm: 1, "starve"),
    ],
    "check_merge": [
        (lambda o_a, l_a, o_b, l_b: ((o_a + o_b) / 2, torch.logaddexp(l_a, l_b)), "plain mean"),
        (merge_in_base_two, "powers of e"),
        (merge_without_maximum, "larger LSE"),
        (merge_with_nan, "0 * NaN"),
    ],
    "check_sink": [
        (lambda out, lse, sink: out * (torch.exp(lse) / (torch.exp(lse) + sink))[:, None], "logit"),
        (lambda out, lse, sink: out / (1 + torch.exp(sink))[:, None], "divided by it already"),
        (
            lambda out, lse, sink: out * (lse.exp() / (lse.exp() + sink.exp()))[:, None],
            "difference",
        ),
        (lambda out, lse, sink: out * torch.sigmoid(lse - sink)[:, None], "-inf minus -inf"),
    ],
    "check_scratch_bytes": [
        (lambda b, h, ns, vb: 2 * b * h * ns * 512 * vb, "LSEs"),
        (lambda b, h, ns, vb: b * h * ns * (512 * vb + 4), "one way"),
        (lambda b, h, ns, vb: 2 * b * h * (512 * vb + 4), "splits are missing"),
    ],
    "check_index_bytes": [
        (lambda b, ctx: b * ctx * 132, "four tokens"),
        (lambda b, ctx: b * -(-ctx // 256) * 64 * 132, "whole"),
        (lambda b, ctx: b * (ctx // 4) * 128, "scale"),
    ],
    "check_cap_ladder": [
        (lambda me: list(range(2048, me, 2048)) + [me], "grow by a factor"),
        (lambda me: [me], "gap"),
        (lambda me: [c for c in (2048, 4096, 8192, 16384) if c <= me], "last rung"),
        (lambda me: [2**n for n in range(11, 19) if 2**n <= me] + [me], "twice"),
    ],
    "check_stride": [
        (packed_rows, "Which stride"),
        (forgotten_tail, "longer step"),
        (assigned_name, "assigning"),
        (wrote_between_rows, "somebody else"),
    ],
    "check_topk": [
        (topk_without_mask, "must not compete"),
        (topk_without_absent, "dead ones"),
        (topk_of_zeroed, "negative"),
        (lambda logits, lengths, k: [0] * k, None),
    ],
}
