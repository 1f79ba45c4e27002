"""Chapter 3: the grid of the rewrite, where it fills a GPU, the online softmax, a kernel that shares."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap

import numpy as np

from kernels.lab.exercises import drawing
from kernels.lab.exercises.compare import check_scalar_function, describe, number
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.gathering import BLOCK_T, WIDTH, check_scores
from kernels.lab.exercises.running import brief, call, is_kernel, need_function

HEADS = 16


@exercise(3, "a function", "How many blocks has the grid, and how many multiprocessors get none?")
def check_grid(f):
    """Check `f(batch, heads, block_h, sm_count) -> (blocks, idle SMs)` for a grid (batch, head groups)."""
    need_function(f, "f(batch, heads, block_h, sm_count) -> tuple[int, int]")
    names = ("batch", "heads", "block_h", "sm_count")
    for values in (
        (1, 64, 32, 188),
        (16, 64, 32, 188),
        (128, 64, 32, 188),
        (4, 20, 16, 132),
        (2, 8, 16, 132),
    ):
        arguments = dict(zip(names, values, strict=True))
        case = describe(arguments)
        batch, heads, block_h, sm_count = values
        blocks = batch * -(-heads // block_h)
        expected = (blocks, max(0, sm_count - blocks))
        got = call(f, case, **arguments)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(
                "Two numbers are asked for.", case=case, expected="(blocks, idle SMs)", got=brief(got)
            )
        if tuple(got) != expected:
            raise Wrong(
                "The grid is not right yet.",
                case=case,
                expected=str(expected),
                got=str(tuple(got)),
                hint=_grid_hint(tuple(got), values, expected),
            )
    return Praise(
        "Also when there are more blocks than multiprocessors, and when the last head group is not full."
    )


def _grid_hint(got, values, expected) -> str:
    batch, heads, block_h, sm_count = values
    if got[0] == batch * (heads // block_h) != expected[0]:
        return "A last head group that is not full needs a block, too: round up."
    if got[0] == batch * heads:
        return "The rewrite has one block a head group, not one a head."
    if got[0] != expected[0]:
        return "One block for each pair of a row and a head group."
    if got[1] < 0:
        return "More blocks than multiprocessors leave none idle; they do not leave fewer than none."
    return (
        "A multiprocessor is idle if no block is left for it; each takes one block before any takes a second."
    )


@exercise(3, "a function", "From which batch on has every multiprocessor a block?")
def check_break_even(f):
    """Check `f(heads, block_h, sm_count) -> int`: the smallest batch whose grid has a block for every SM."""
    cases = [
        {"heads": h, "block_h": block_h, "sm_count": sm}
        for h, block_h, sm in ((64, 32, 188), (64, 64, 188), (64, 1, 188), (8, 16, 132), (20, 16, 188))
    ]
    mistakes = [
        (
            "Rounded down, the last multiprocessors have no block.",
            lambda heads, block_h, sm_count: sm_count // -(-heads // block_h),
        ),
        (
            "The head groups must be rounded up: a group that is not full is a block.",
            lambda heads, block_h, sm_count: -(-sm_count * block_h // heads),
        ),
        ("One block a head group, not one a head.", lambda heads, block_h, sm_count: -(-sm_count // heads)),
        ("Each row brings as many blocks as it has head groups.", lambda heads, block_h, sm_count: sm_count),
    ]
    check_scalar_function(
        f,
        "f(heads, block_h, sm_count) -> int",
        lambda heads, block_h, sm_count: -(-sm_count // -(-heads // block_h)),
        cases,
        mistakes,
        whole=True,
        what="The batch",
        otherwise="How many blocks does one row bring? How many rows make sm_count of them?",
    )
    return Praise("The better heads share, the larger the batch must be: that is the price of the rewrite.")


def _softmax_cases() -> list[tuple[str, list[np.ndarray], list[np.ndarray]]]:
    rng = np.random.default_rng(7)
    absent = -np.inf

    def tiles(*scores, poison=False):
        arrays = [np.array(s, dtype=np.float64) for s in scores]
        values = [rng.standard_normal((len(s), 6)) for s in arrays]
        if poison:
            for s, v in zip(arrays, values, strict=True):
                v[np.isneginf(s)] = np.nan
        return arrays, values

    none = [absent] * 4
    one, two = rng.standard_normal(4), rng.standard_normal(4)
    listed = [
        ("one tile", *tiles(one)),
        ("two ordinary tiles", *tiles(one, two)),
        ("the largest score in the last tile", *tiles(one, two, two + 6)),
        ("scores of +10,000", *tiles(one + 1e4, two + 1e4)),
        ("scores of -10,000", *tiles(one - 1e4, two - 1e4)),
        ("an absent token in a tile", *tiles([0.3, absent, -1.0, 0.8], two)),
        ("an absent token whose value row is NaN", *tiles([0.3, absent, -1.0, 0.8], two, poison=True)),
        ("the last tile all absent", *tiles(one, none, poison=True)),
        ("the middle tile all absent", *tiles(one, none, two, poison=True)),
        ("the first tile all absent", *tiles(none, one, poison=True)),
        ("every tile absent", *tiles(none, none, poison=True)),
    ]
    return listed


def _expected_output(scores, values) -> tuple[np.ndarray, float]:
    score, value = np.concatenate(scores), np.concatenate(values)
    valid = ~np.isneginf(score)
    if not valid.any():
        return np.zeros(value.shape[1]), 0.0
    weights = np.exp(score[valid] - score[valid].max())
    return weights @ value[valid] / weights.sum(), 1.0


def _fold(scores, values, *, rescale_acc=True, rescale_total=True):
    """Online softmax with one fault built in; what someone with that misconception gets."""
    m, total, acc = -np.inf, 0.0, np.zeros(values[0].shape[1])
    for s, v in zip(scores, values, strict=True):
        new = max(m, s.max())
        reference = new if np.isfinite(new) else 0.0
        weights = np.exp(s - reference)
        factor = np.exp(m - reference)
        acc = acc * (factor if rescale_acc else 1.0) + weights @ np.where(np.isneginf(s)[:, None], 0.0, v)
        total = total * (factor if rescale_total else 1.0) + weights.sum()
        m = new
    return acc / total if total else acc


@exercise(3, "a function", "Fold one tile into a running softmax.")
def check_online_softmax(f):
    """Check `f(scores, values, m, total, acc) -> (m, total, acc)` in NumPy float64, natural exponent.

    scores [T], -inf where absent; values [T, D], possibly NaN where absent; m starts at -inf, total at 0, acc
    [D] at 0. At the end acc / total is softmax(scores) @ values over what is present.
    """
    need_function(f, "f(scores, values, m, total, acc) -> (m, total, acc)")
    for name, scores, values in _softmax_cases():
        m, total, acc = -np.inf, 0.0, np.zeros(values[0].shape[1])
        for tile, (s, v) in enumerate(zip(scores, values, strict=True)):
            case = f"{name}; tile {tile}: scores {np.array2string(s, precision=2)}"
            came = call(f, case, scores=s.copy(), values=v.copy(), m=m, total=total, acc=acc.copy())
            if not isinstance(came, (tuple, list)) or len(came) != 3:
                raise Wrong("Three things are asked for: m, total, acc.", case=case, got=brief(came))
            m, total, acc = float(came[0]), float(came[1]), np.asarray(came[2], dtype=np.float64)
            if acc.shape != (v.shape[1],):
                raise Wrong(
                    "acc has another shape.", case=case, expected=str((v.shape[1],)), got=str(acc.shape)
                )
        _judge_softmax(name, scores, values, total, acc)
    return Praise(
        "Large scores, absent tokens, NaN in rows that do not count, and whole tiles of nothing: all exact."
    )


def _judge_softmax(name, scores, values, total, acc) -> None:
    expected, live = _expected_output(scores, values)
    if not live:
        if total == 0 and (acc == 0).all():
            return
        got = f"total {total:g}, acc {np.array2string(acc, precision=3)}"
        hint = (
            "-inf minus -inf is NaN: with nothing seen so far, what may be subtracted instead?"
            if math.isnan(total) or np.isnan(acc).any()
            else "An absent token got a weight. A finite stand-in for -inf makes exp(stand-in - stand-in) "
            "= 1."
        )
        raise Wrong(
            "Nothing is present, so nothing may be accumulated.",
            case=name,
            expected="total 0, acc 0",
            got=got,
            hint=hint,
        )
    with np.errstate(all="ignore"):
        out = acc / total
    if np.allclose(out, expected, rtol=1e-12, atol=1e-12):
        return
    worst = int(np.nanargmax(np.where(np.isnan(out), np.inf, np.abs(out - expected))))
    raise Wrong(
        f"acc / total is not the softmax-weighted sum (column {worst}).",
        case=name,
        expected=number(expected[worst]),
        got=number(float(out[worst])),
        hint=_softmax_hint(scores, values, total, acc, out),
        draw=lambda: drawing.values_and_expected(
            out, expected, title=f"acc / total: {name}", x_label="column", y_label="output"
        ),
    )


def _softmax_hint(scores, values, total, acc, out) -> str:
    poisoned = any(np.isnan(v).any() for v in values)
    empty_tile = any(np.isneginf(s).all() for s in scores)
    if math.isinf(total) or (np.isnan(out).any() and max(s.max() for s in scores) > 700):
        return "exp overflows: subtract the running maximum before the exponential."
    if total == 0:
        return "exp underflows to 0 for every token: subtract the running maximum before the exponential."
    if np.isnan(total) and empty_tile:
        return "-inf minus -inf is NaN: with nothing seen so far, what may be subtracted instead?"
    if np.isnan(acc).any() and poisoned:
        return (
            "A weight of 0 does not silence a NaN: 0 * NaN is NaN. The value must be left out before the "
            "product."
        )
    slips = [
        (
            "What was accumulated before belongs to the old maximum: acc must be rescaled when the maximum "
            "grows.",
            {"rescale_acc": False},
        ),
        ("total must be rescaled when the maximum grows, as acc is.", {"rescale_total": False}),
        (
            "Neither acc nor total is rescaled when the maximum grows.",
            {
                "rescale_acc": False,
                "rescale_total": False,
            },
        ),
    ]
    with np.errstate(all="ignore"):
        for hint, slip in slips:
            if np.allclose(_fold(scores, values, **slip), out, rtol=1e-9, equal_nan=True):
                return hint
        counted = [np.where(np.isneginf(s), -1e30, s) for s in scores]
        if np.allclose(_fold(counted, values), out, rtol=1e-9) and empty_tile:
            return "A finite stand-in for -inf gives every token of an absent tile the weight exp(0) = 1."
    if len(scores) == 1:
        return (
            "One tile is plain softmax: m its maximum, total the sum of exp(scores - m), acc those weights "
            "@ values."
        )
    return "When the maximum grows from m to m_new, what was summed before is too large by exp(m_new - m)."


@exercise(3, "a kernel", "Write a kernel that gathers a tile of rows once and scores it for all heads.")
def check_shared_scores(kernel):
    """Check `(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, HEADS, WIDTH, BLOCK_T: tl.constexpr)`.

    Grid (cdiv(count, 16),). q float32 [16, 64], rows float32 [R, 64], slots int32 [count], scores float32
    [16, count]: scores[h, i] = q[h] . rows[slots[i]], and -inf where slots[i] < 0. With tl.dot, and no loop
    over heads.
    """
    if is_kernel(kernel):
        _check_source(kernel)
    return check_scores(kernel, HEADS, {"HEADS": HEADS, "WIDTH": WIDTH, "BLOCK_T": BLOCK_T})


def _check_source(kernel) -> None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    except (OSError, TypeError, SyntaxError):
        return
    calls = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")
    }
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))]
    for loop in loops:
        head = ast.unparse(loop.iter if isinstance(loop, ast.For) else loop.test)
        if "HEADS" in head or str(HEADS) in head:
            raise Wrong(
                f"The kernel loops over heads (`{head}`): a tile of rows is then used by one head at a time.",
                hint="A product of two matrices scores all heads at once: [HEADS, WIDTH] times [WIDTH, "
                "BLOCK_T].",
            )
    if "dot" not in calls:
        raise Wrong(
            "The kernel does not call tl.dot, so no tensor instruction can come of it.",
            hint="A product of two matrices scores all heads at once: [HEADS, WIDTH] times [WIDTH, BLOCK_T].",
        )
