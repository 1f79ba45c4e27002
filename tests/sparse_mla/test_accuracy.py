"""Accuracy of every rung against float64 at the campaign's shapes, as a table (`pytest -m gpu -s`).

Over a whole result, roundings average out. Rounding to bfloat16 is off by up to 2**-8 of a value just above a
power of two, evenly spread: 2**-8 / sqrt(3) at root mean square, and less elsewhere. Independent roundings of
weights and partial outputs add in squares, each in proportion to the absolute values that are summed.
"""

import pytest

from kernels.sparse_mla import sparse_mla_decode
from tests.sparse_mla import cases

ONE_ROUNDING = 2**-8 / 3**0.5
SCORES = {"ordinary": None, "tiny": 1e-6, "+-300": 300.0, "+-5,000": 5000.0}
SHAPES = [(1, 512, 128), (16, 512, 128), (64, 512, 128), (16, 2048, 0)]


def relative_rms(out, expected) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def a_case(batch, heads, topk, swa, score, device):
    rows = [("dense", "K")] * batch
    live = 4096 if device == "cuda" else 64
    caches = [cases.make_cache(page, live, seed=page, device=device) for page in (64, 256)]
    main = cases.make_side(caches[0], rows, topk, 64)
    extra = cases.make_side(caches[1], rows, swa, 64, seed=1) if swa else None
    case = cases.Case(cases.make_query(batch, heads, device=device), main, extra)
    if score is not None:  # the largest |score| is `score`
        reach = (case.q.double() @ caches[0].values.T * case.scale).abs().max()
        case.scale *= score / float(reach)
    return case


def measure(impl, batch, heads, topk, swa, score, device):
    """Relative RMS error of out, largest error of lse, and the largest lse error that float32 explains."""
    case = a_case(batch, heads, topk, swa, score, device)
    out, lse = sparse_mla_decode(**case.arguments, **cases.how(impl))
    expected = case.expected()
    _, bound = cases.bounds(expected, 0)
    error = (lse.double() - expected.lse).abs()
    return relative_rms(out, expected.out), float(error.max()), bool((error <= bound).all()), expected


def limit(impl, expected) -> float:
    """Roundings, independent of each other, and the scores' float32 error as it reaches the weights."""
    roundings = 1 + cases.rounded_factors(impl)
    magnitude = float(expected.magnitude.norm() / expected.out.norm())
    scores = 2 * 2**-19 * float(expected.score_size.max())
    return ONE_ROUNDING * roundings**0.5 * max(1.0, magnitude if roundings > 1 else 1.0) + scores * magnitude


@cases.on_every_device
@pytest.mark.parametrize("score", SCORES)
def test_accuracy(impl, device, score, tally, capsys):
    shapes = SHAPES if device == "cuda" else [(1, 40, 9)]
    heads = 64 if device == "cuda" else 1
    tally("accuracy against float64", len(shapes))
    lines, wrong = [], []
    for batch, topk, swa in shapes:
        error, lse_error, lse_right, expected = measure(impl, batch, heads, topk, swa, SCORES[score], device)
        lines.append(
            f"{impl:8} {score:9} B={batch:<3} K={topk:<5} SWA={swa:<4} out {error:.2e}  lse {lse_error:.1e}"
        )
        if not (lse_right and error <= limit(impl, expected)):
            wrong.append(f"{lines[-1]}; accepted is out {limit(impl, expected):.2e}")
    if device == "cuda":
        with capsys.disabled():
            print("\n" + "\n".join(lines), end="")
    assert not wrong, wrong
