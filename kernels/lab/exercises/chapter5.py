"""Chapter 5: merging two partial softmaxes, the sink, scratch traffic, and the combine kernel itself."""

from __future__ import annotations

import math

import torch

from kernels.lab.exercises.combining import check_combine_kernel
from kernels.lab.exercises.compare import (
    as_tensor,
    check_scalar_function,
    close,
    first_difference,
    matching_hint,
    number,
)
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.running import brief, call, need_function

HEADS, DIM = 3, 8
TOLERANCE = 1e-9


def _merged(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    top = torch.where(m == -math.inf, 0.0, m)
    a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = a + b
    parts = torch.where(a[:, None] > 0, out_a * a[:, None], 0.0) + torch.where(
        b[:, None] > 0, out_b * b[:, None], 0.0
    )
    return parts / torch.where(total > 0, total, 1.0)[:, None], m + torch.log(total)


def _merge_cases():
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scores, values = draw(HEADS, 10), draw(10, DIM)
    halves = []
    for part in (slice(0, 7), slice(7, 10)):
        halves += [torch.softmax(scores[:, part], -1) @ values[part], torch.logsumexp(scores[:, part], -1)]
    yield "two halves of one softmax (7 and 3 candidates)", halves
    out_a, lse_a, out_b, lse_b = halves
    yield "LSEs around +800", [out_a, lse_a + 800, out_b, lse_b + 800]
    yield "LSEs around -800", [out_a, lse_a - 800, out_b, lse_b - 800]
    yield "one LSE +800, the other -800", [out_a, lse_a + 800, out_b, lse_b - 800]
    nothing, empty = torch.full_like(out_a, math.nan), torch.full_like(lse_a, -math.inf)
    yield "the second side is empty (LSE -inf, output never written: NaN)", [out_a, lse_a, nothing, empty]
    yield "the first side is empty (LSE -inf, output never written: NaN)", [nothing, empty, out_b, lse_b]
    yield "both sides are empty", [nothing, empty, nothing, empty]


def _merge_slips(out_a, lse_a, out_b, lse_b):
    a, b = torch.exp(lse_a)[:, None], torch.exp(lse_b)[:, None]
    a2, b2 = torch.exp2(lse_a)[:, None], torch.exp2(lse_b)[:, None]
    la, lb = lse_a[:, None], lse_b[:, None]
    return [
        ("A plain mean gives a side with few candidates as much say as one with many.", (out_a + out_b) / 2),
        ("Both sides are normalised already: their sum counts everything twice.", out_a + out_b),
        ("The weighted sum must be divided by the sum of the weights.", a * out_a + b * out_b),
        (
            "These LSEs are natural logarithms: the weights are powers of e, not of 2.",
            (a2 * out_a + b2 * out_b) / (a2 + b2),
        ),
        ("The weights are swapped: each output goes with its own LSE.", (b * out_a + a * out_b) / (a + b)),
        ("An LSE is a logarithm: the weight is its exponential.", (la * out_a + lb * out_b) / (la + lb)),
    ]


@exercise(5, "a function", "Merge two partial results by their log-sum-exps.")
def check_merge(f):
    """Check `f(out_a, lse_a, out_b, lse_b) -> (out, lse)`.

    torch float64, out [H, D] and lse [H], natural logarithm; an empty side has lse -inf and out NaN.
    """
    need_function(f, "f(out_a, lse_a, out_b, lse_b) -> (out, lse)")
    for case, tensors in _merge_cases():
        got = call(
            f,
            case,
            **dict(zip(("out_a", "lse_a", "out_b", "lse_b"), (t.clone() for t in tensors), strict=True)),
        )
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("Two tensors are asked for: out and lse.", case=case, got=brief(got))
        expected_out, expected_lse = _merged(*tensors)
        out = as_tensor(got[0], expected_out.shape, "out", case)
        lse = as_tensor(got[1], expected_lse.shape, "lse", case)
        _judge_merge(case, tensors, out, expected_out, lse, expected_lse)
    return Praise(
        "Merging halves gives the whole softmax, at any height of the LSEs, and an empty side changes "
        "nothing."
    )


def _judge_merge(case, tensors, out, expected_out, lse, expected_lse) -> None:
    good = close(out, expected_out, TOLERANCE)
    if not good.all():
        index, place = first_difference(good, ("head", "column"))
        if "empty" in case:
            hint = (
                "-inf minus -inf is NaN: with nothing on either side, what may be subtracted instead?"
                if "both" in case
                else "The empty side has weight 0, and 0 * NaN is NaN: leave its output out instead of "
                "weighing it."
            )
        elif out.isnan().any() or out.isinf().any() or (out == 0).all():
            hint = "exp of such an LSE leaves the range of numbers: subtract the larger LSE from both first."
        else:
            hint = matching_hint(
                out,
                _merge_slips(*tensors),
                1e-6,
                "Each output must be weighed by exp(its LSE), relative to the sum of both.",
            )
        raise Wrong(
            f"out is wrong at {place}.",
            case=case,
            expected=number(expected_out[index].item()),
            got=number(out[index].item()),
            hint=hint,
        )
    good = close(lse, expected_lse, TOLERANCE)
    if good.all():
        return
    index, place = first_difference(good, ("head",))
    slips = [
        (
            "The larger LSE is a lower bound; what the other side adds to the sum is missing.",
            torch.maximum(tensors[1], tensors[3]),
        ),
        ("LSEs do not add up; their exponentials do.", tensors[1] + tensors[3]),
        ("A natural logarithm is asked for.", expected_lse / math.log(2)),
    ]
    hint = matching_hint(
        lse, slips, 1e-6, "The merged LSE is the logarithm of the sum of exp(LSE) over both sides."
    )
    if "both" in case:
        hint = (
            "Nothing and nothing is nothing: this is a partial result again, and its LSE is that of an "
            "empty sum."
        )
    elif lse[index].isinf() or lse[index].isnan():
        hint = (
            "exp of such an LSE leaves the range of numbers: subtract the larger one first, and add it again."
        )
    raise Wrong(
        f"lse is wrong at {place}.",
        case=case,
        expected=number(expected_lse[index].item()),
        got=number(lse[index].item()),
        hint=hint,
    )


@exercise(5, "a function", "Apply an attention sink to a merged result.")
def check_sink(f):
    """Check `f(out, lse, sink) -> out`: the sink joins the denominator and no value.

    torch float64, out [H, D], lse and sink [H], natural logarithm.
    """
    need_function(f, "f(out, lse, sink) -> out")
    generator = torch.Generator().manual_seed(6)
    plain = torch.randn(HEADS, DIM, generator=generator, dtype=torch.float64)
    lse = torch.tensor([0.5, -2.0, 7.0], dtype=torch.float64)
    zero, empty = torch.zeros_like(plain), torch.full_like(lse, -math.inf)
    cases = [(f"sink {sink:g}", plain, lse, sink) for sink in (0.0, -5.0, 5.0, -math.inf, math.inf, 1e4)]
    cases += [("LSEs of 900, sink 899", plain, lse * 0 + 900, 899.0)]
    cases += [
        (f"an empty row (out 0, lse -inf), sink {sink:g}", zero, empty, sink) for sink in (0.0, -math.inf)
    ]
    for case, out, row_lse, value in cases:
        sink = torch.full_like(row_lse, value)
        if value == 0.0 and out is plain:
            sink = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
            case = "sinks 0, 1 and -1"
        factor = torch.where(row_lse == -math.inf, 0.0, torch.sigmoid(row_lse - sink))
        expected = out * factor[:, None]
        got = as_tensor(
            call(f, case, out=out.clone(), lse=row_lse.clone(), sink=sink.clone()), out.shape, "out", case
        )
        good = close(got, expected, TOLERANCE)
        if good.all():
            continue
        index, place = first_difference(good, ("head", "column"))
        raise Wrong(
            f"out is wrong at {place}.",
            case=case,
            expected=number(expected[index].item()),
            got=number(got[index].item()),
            hint=_sink_hint(got, out, row_lse, sink, expected),
        )
    return Praise("From no sink to an infinite one, and an empty row stays empty.")


def _sink_hint(got, out, lse, sink, expected) -> str:
    if got.isnan().any() and (lse == -math.inf).all():
        return "-inf minus -inf is NaN: an empty row needs no factor at all."
    if got.isnan().any() or got.isinf().any():
        return "exp(lse) or exp(sink) alone leaves the range of numbers; only their difference matters."
    e = torch.exp
    slips = [
        (
            "The sink has no value of its own: it joins the denominator only.",
            out + (1 - torch.sigmoid(lse - sink))[:, None],
        ),
        (
            "The factor is exp(lse) over exp(lse) + exp(sink); this is the sink's share.",
            out * torch.sigmoid(sink - lse)[:, None],
        ),
        (
            "The sink is a logit, not a weight: its exponential joins the denominator.",
            out * (e(lse) / (e(lse) + sink))[:, None],
        ),
        (
            "These logarithms are natural: powers of e, not of 2.",
            out * (torch.exp2(lse) / (torch.exp2(lse) + torch.exp2(sink)))[:, None],
        ),
        ("The denominator is exp(lse), not 1: out was divided by it already.", out / (1 + e(sink))[:, None]),
        ("The denominator was applied twice: out is normalised already.", out / (e(lse) + e(sink))[:, None]),
        ("Nothing has changed.", out),
    ]
    return matching_hint(
        got, slips, 1e-6, "Undo the division by exp(lse), then divide by exp(lse) + exp(sink)."
    )


@exercise(5, "a function", "How many bytes of scratch does split-K write and read again?")
def check_scratch_bytes(f):
    """Check `f(batch, heads, num_splits, value_bytes) -> int`: partial outputs and LSEs, written and read."""
    names = ("batch", "heads", "num_splits", "value_bytes")
    cases = [dict(zip(names, v, strict=True)) for v in ((16, 64, 6, 2), (1, 64, 8, 4), (64, 8, 2, 2))]

    def truth(batch, heads, num_splits, value_bytes):
        from kernels.lab import roofline

        return 2 * sum(roofline.scratch(batch, heads, num_splits, value_bytes).values())

    def rows(batch, heads, num_splits, value_bytes=0):
        return batch * heads * num_splits

    mistakes = [
        (
            "The partial LSEs are missing: one float32 for each row, head and split.",
            lambda value_bytes, **a: 2 * rows(**a) * 512 * value_bytes,
        ),
        (
            "That is one way: what is written is also read again.",
            lambda value_bytes, **a: rows(**a) * (512 * value_bytes + 4),
        ),
        ("One way only, and without the LSEs.", lambda value_bytes, **a: rows(**a) * 512 * value_bytes),
        (
            "The splits are missing: each leaves a partial result of its own.",
            lambda batch, heads, num_splits, value_bytes: 2 * batch * heads * (512 * value_bytes + 4),
        ),
        (
            "An LSE is float32 whatever the partial outputs are: 4 bytes.",
            lambda value_bytes, **a: 2 * rows(**a) * 513 * value_bytes,
        ),
        ("These are numbers, not bytes.", lambda **a: 2 * rows(**a) * 513),
    ]
    check_scalar_function(
        f,
        "f(batch, heads, num_splits, value_bytes) -> int",
        truth,
        cases,
        mistakes,
        whole=True,
        what="The traffic",
        otherwise="A partial result is 512 numbers and one LSE, for each row, head and split.",
    )
    return Praise(
        "The LSEs are less than half a percent of it: the outputs are what bfloat16 scratch halves."
    )


@exercise(5, "a kernel", "Write the combine kernel.")
def check_combine(kernel):
    """Check `(partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, heads, num_splits, BLOCK_S: tl.constexpr)`.

    Grid (batch, heads). partial_out float32 [B, S, H, 512], partial_lse float32 [B, S, H] in base 2; out
    float32 [B, H, 512], lse float32 [B, H] natural. A partial of LSE -inf was never written; a row of
    only such partials gives 0 and +inf.
    """
    return check_combine_kernel(kernel)
