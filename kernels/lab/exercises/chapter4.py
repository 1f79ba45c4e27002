"""Chapter 4: waves, who takes which tiles, and two policies for the number of splits."""

from __future__ import annotations

import itertools
import math

from kernels.lab.exercises import drawing
from kernels.lab.exercises.compare import describe, number
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.running import as_number, brief, call, need_function
from kernels.lab.occupancy import Waves

POLICY = "f(batch, head_groups, tiles, sm_count) -> int"
NAMES = ("batch", "head_groups", "tiles", "sm_count")
SCORED_BATCHES = (1, 4, 16, 64, 128)
ASKED_BATCHES = (1, 2, 7, 16, 64, 100, 128)
SLACK, INVARIANT_SLACK = 1.02, 1.05


@exercise(4, "a function", "How many waves has a grid, and how full are they?")
def check_waves(f):
    """Check `f(blocks, sm_count) -> (waves, share of their places that hold a block)`, one block an SM."""
    need_function(f, "f(blocks, sm_count) -> tuple[int, float]")
    for blocks, sm_count in ((2, 188), (188, 188), (192, 188), (376, 188), (377, 188), (1, 188), (133, 132)):
        case = f"blocks={blocks}, sm_count={sm_count}"
        grid = Waves(blocks, sm_count, 1)
        got = call(f, case, blocks=blocks, sm_count=sm_count)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("Two numbers are asked for: waves and share.", case=case, got=brief(got))
        waves, share = as_number(got[0]), as_number(got[1])
        if waves == grid.waves and abs(share - grid.efficiency) <= 1e-9:
            continue
        raise Wrong(
            "The waves are not right yet.",
            case=case,
            expected=f"({grid.waves}, {grid.efficiency:.4f})",
            got=f"({number(waves)}, {share:.4f})",
            hint=_waves_hint(waves, share, grid),
        )
    return Praise("Four blocks more than a wave holds cost a whole further wave.")


def _waves_hint(waves: float, share: float, grid: Waves) -> str:
    if waves == grid.full != grid.waves:
        return (
            f"{grid.tail} blocks wait for a wave of their own: a wave that is not full takes as long as a "
            "full one."
        )
    if waves == grid.full + 1 != grid.waves:
        return "A grid that fills its last wave to the last place does not start another."
    if waves != grid.waves:
        return "A wave is as many blocks as there are multiprocessors; the rest waits for the next."
    if abs(share * 100 - 100 * grid.efficiency * 100) < 1e-6:
        return "A share between 0 and 1, not percent."
    if math.isclose(share, grid.blocks / grid.sm_count):
        return "A share of the places in all waves, not in one."
    if math.isclose(share, grid.tail / grid.sm_count):
        return "That is how full the last wave is; the places of all waves are asked for."
    if math.isclose(share, 1 - grid.efficiency, abs_tol=1e-9):
        return "That is the share of the places that stay empty."
    return "There are waves x sm_count places, and `blocks` of them hold a block."


SPLIT_CASES = ((16, 8), (16, 4), (33, 6), (5, 4), (7, 7), (130, 64), (1, 8), (0, 4))


@exercise(4, "a function", "Share a row's tiles among its splits.")
def check_split_ranges(f):
    """Check `f(tiles, num_splits) -> [(first, last), ...]`: half-open ranges, one a split, in order."""
    need_function(f, "f(tiles, num_splits) -> list[tuple[int, int]]")
    for tiles, num_splits in SPLIT_CASES:
        case = f"tiles={tiles}, num_splits={num_splits}"
        got = call(f, case, tiles=tiles, num_splits=num_splits)
        ranges = _as_ranges(got, num_splits, case)
        wrong = _ranges_fault(ranges, tiles, num_splits)
        if wrong:
            what, hint = wrong
            shown = str(ranges) if len(ranges) <= 8 else f"{str(ranges[:4])[:-1]}, … {str(ranges[-2:])[1:]}"
            raise Wrong(
                what,
                case=case,
                got=shown,
                hint=hint,
                draw=lambda t=tiles, r=ranges: drawing.coverage(
                    t, r, title="Which split takes which tile (– nobody, + twice)"
                ),
            )
    return Praise(
        "Every tile has one split, sizes differ by one at most, and more splits than tiles leave empty "
        "ranges.",
        lambda: drawing.coverage(33, _as_ranges(f(33, 6), 6, ""), title="33 tiles, 6 splits"),
    )


def _as_ranges(got, num_splits: int, case: str) -> list[tuple[int, int]]:
    try:
        ranges = [(int(first), int(last)) for first, last in got]
    except (TypeError, ValueError):
        raise Wrong("A list of pairs (first, last) is asked for.", case=case, got=brief(got)) from None
    if len(ranges) != num_splits:
        raise Wrong(
            "One range for each split is asked for, empty ones included.",
            case=case,
            expected=f"{num_splits} ranges",
            got=f"{len(ranges)} ranges",
            hint="The grid is fixed before lengths are known: a split without tiles exists and must know it.",
        )
    return ranges


def _ranges_fault(ranges, tiles: int, num_splits: int) -> tuple[str, str] | None:
    if any(first > last for first, last in ranges):
        return "A range ends before it begins.", "Clamp: an empty range is (x, x)."
    if any(first < 0 or last > tiles for first, last in ranges):
        size = -(-tiles // num_splits)
        hint = "Ranges of a rounded-up size reach past the last tile." if size * num_splits > tiles else None
        return (
            "A range reaches past the row.",
            hint or "Tiles are numbered from 0 to tiles - 1; `last` is exclusive.",
        )
    taken = [0] * tiles
    for first, last in ranges:
        for tile in range(first, last):
            taken[tile] += 1
    lost = [tile for tile, times in enumerate(taken) if times == 0]
    twice = [tile for tile, times in enumerate(taken) if times > 1]
    if lost:
        base = tiles // num_splits
        if lost == list(range(base * num_splits, tiles)):
            return (
                f"The last {len(lost)} of {tiles} tiles belong to no split.",
                "The remainder is lost: tiles // num_splits for each leaves tiles % num_splits over. Who "
                "takes one more?",
            )
        inclusive = all(any(tile == last for _, last in ranges) for tile in lost)
        hint = (
            "`last` is exclusive here: (0, 4) are four tiles."
            if inclusive
            else "Each range begins where one ends."
        )
        return f"Tiles {lost[:6]} belong to no split.", hint
    if twice:
        return (
            f"Tiles {twice[:6]} are taken more than once.",
            "A token that is counted twice gets twice its weight.",
        )
    if any(a[1] > b[0] for a, b in itertools.pairwise(ranges)):
        return "The ranges are not in order.", "Split 0 takes the first tiles."
    sizes = [last - first for first, last in ranges]
    if max(sizes) - min(sizes) > 1:
        return (
            f"The sizes are uneven: from {min(sizes)} to {max(sizes)} tiles.",
            "The longest split decides the time: spread the remainder, one tile each, instead of giving it "
            "to one.",
        )
    return None


def _legal(answer, shape: tuple[int, ...], twice: bool = True) -> int:
    """The policy's answer for a shape; `Wrong` if it breaks a rule, or changes when asked `twice`."""
    arguments = dict(zip(NAMES, shape, strict=True))
    case = describe(arguments)
    got = call(answer, case, **arguments)
    value = as_number(got)
    if value != int(value):
        raise Wrong(
            "A whole number of splits is asked for.", case=case, got=number(value), hint="Round; which way?"
        )
    splits, limit = int(value), min(64, max(1, shape[2]))
    if splits < 1:
        raise Wrong(
            "There is always at least one split.",
            case=case,
            expected="1 or more",
            got=str(splits),
            hint="A rounded-down division gives 0 when there are more blocks than multiprocessors.",
        )
    if splits > limit:
        raise Wrong(
            "There are more splits than allowed.",
            case=case,
            expected=f"at most {limit}",
            got=str(splits),
            hint="A split without a tile does no work and still is merged; 64 is the most in any case.",
        )
    if twice and call(answer, case, **arguments) != got:
        raise Wrong(
            "The second call with the same arguments gives another answer.",
            case=case,
            hint="A captured graph holds one grid: the policy may follow shapes and nothing that changes.",
        )
    return splits


@exercise(4, "a policy", "How many splits for a batch on a device?")
def check_split_policy(f):
    """Check `f(batch, head_groups, tiles, sm_count) -> int` by `kernels.lab.chapters.split_policy.cost`."""
    from kernels.lab.chapters import split_policy as model

    need_function(f, POLICY)
    worst, worst_shape = 0.0, None
    for shape in model.SHAPES:
        splits = _legal(f, shape)
        ratio = model.cost(splits, *shape) / model.cost(model.best_splits(*shape), *shape)
        if ratio > worst:
            worst, worst_shape = ratio, shape
    splits, best = _legal(f, worst_shape), model.best_splits(*worst_shape)
    if worst > SLACK:
        batch, groups, tiles, sm_count = worst_shape
        raise Wrong(
            f"At its worst shape the policy costs {worst:.2f} times the best (allowed: {SLACK}).",
            case=describe(dict(zip(NAMES, worst_shape, strict=True))),
            expected=f"a cost of {model.cost(best, *worst_shape):.1f} tile-times is possible",
            got=f"{splits} splits cost {model.cost(splits, *worst_shape):.1f} tile-times",
            hint=_policy_hint(splits, best, worst_shape, model.cost),
            draw=lambda: _draw_costs(f, groups, tiles, sm_count),
        )
    return Praise(
        f"Within {SLACK} of the best for all {len(model.SHAPES)} shapes (worst: {worst:.3f}).",
        lambda: _draw_costs(f, 2, 16, 188),
    )


def _policy_hint(splits: int, best: int, shape, cost) -> str:
    batch, groups, tiles, sm_count = shape
    if splits == 1 and best > 1:
        return f"{batch * groups} blocks on {sm_count} multiprocessors: the rest of them idles."
    now = Waves(batch * groups * splits, sm_count, 1)
    then = Waves(batch * groups * best, sm_count, 1)
    if now.waves > then.waves:
        return (
            f"{now.blocks} blocks on {sm_count} multiprocessors are {now.waves} waves, the last with "
            f"{now.tail or sm_count} blocks: a few blocks too many cost a whole wave. Compare the waves "
            "before and after one split more."
        )
    if -(-tiles // splits) == -(-tiles // best) and splits > best:
        return (
            "The longest block has as many tiles as with fewer splits: the further splits only have to be "
            "merged."
        )
    if splits < best:
        return "More splits would shorten the longest block without another wave."
    return (
        "Starting a block and merging its partial result have a price: see `cost` for what each split adds."
    )


def _draw_costs(f, groups: int, tiles: int, sm_count: int):
    from kernels.lab.chapters import split_policy as model
    from kernels.sparse_mla.plan import campaign_num_splits

    batches = list(model.BATCHES)
    policies = {
        "yours": lambda *shape: _legal(f, shape),
        "best": model.best_splits,
        "campaign": lambda batch, groups, tiles, sm: min(
            campaign_num_splits(batch, groups, sm), max(1, tiles)
        ),
    }
    lines = {
        name: [model.cost(policy(b, groups, tiles, sm_count), b, groups, tiles, sm_count) for b in batches]
        for name, policy in policies.items()
    }
    ratios = [mine / best for mine, best in zip(lines["yours"], lines["best"], strict=True)]
    worst = max(range(len(batches)), key=ratios.__getitem__)
    return drawing.curves(
        batches,
        lines,
        title=f"{groups} head groups, {tiles} tiles, {sm_count} multiprocessors",
        x_label="batch",
        y_label="modelled cost (tile-times)",
        alt=f"Yours is at most {ratios[worst]:.2f} times the best, at batch {batches[worst]}.",
    )


@exercise(4, "a policy", "A number of splits that does not look at the batch.")
def check_batch_invariant_policy(f):
    """Check `f(batch, head_groups, tiles, sm_count) -> int` whose answer is the same for every batch."""
    from kernels.lab.chapters import split_policy as model

    need_function(f, POLICY)
    for groups, tiles, sm_count in sorted({shape[1:] for shape in model.SHAPES}):
        rest = (groups, tiles, sm_count)
        first = _constant(f, rest)
        best = {batch: model.cost(model.best_splits(batch, *rest), batch, *rest) for batch in SCORED_BATCHES}

        def worst(splits, rest=rest, best=best):
            return max(model.cost(splits, batch, *rest) / least for batch, least in best.items())

        mine = worst(first)
        possible = min(worst(splits) for splits in range(1, min(64, tiles) + 1))
        if mine > INVARIANT_SLACK * possible:
            raise Wrong(
                f"{first} splits for every batch cost up to {mine:.2f} times the best for that batch.",
                case=describe(dict(zip(NAMES[1:], rest, strict=True))),
                expected=f"another constant stays within {possible:.2f} times",
                got=f"{mine:.2f} times",
                hint="Few starve the small batches, many burden the large ones: weigh both by their ratio.",
            )
    return Praise("The same for every batch, and no constant number would be much better at its worst batch.")


def _constant(f, rest: tuple[int, ...]) -> int:
    """The policy's answer for every batch; `Wrong` if there is more than one."""
    first = None
    for batch in ASKED_BATCHES:
        splits = _legal(f, (batch, *rest), twice=False)
        first = splits if first is None else first
        if splits != first:
            raise Wrong(
                "The number of splits changes with the batch.",
                case=describe(dict(zip(NAMES, (batch, *rest), strict=True))),
                expected=f"{first}, as for batch 1",
                got=str(splits),
                hint="Another count sums in another order: a row's bits would depend on its neighbours.",
            )
    return first
