"""Chapter 6: bytes to read, a ladder of caps, a result that keeps its stride, a top-k of live entries."""

from __future__ import annotations

import math

import torch

from kernels.lab.exercises import drawing
from kernels.lab.exercises.compare import check_scalar_function, number
from kernels.lab.exercises.framework import Praise, Wrong, exercise
from kernels.lab.exercises.running import brief, call, need_function

ENTRY_BYTES = 132
RUNGS_ALLOWED = 12
SMALLEST = 2048


@exercise(6, "a function", "How many bytes of the index cache must a step read in one layer?")
def check_index_bytes(f):
    """Check `f(batch, context) -> int`: bytes of live index entries; 4 tokens an entry."""
    cases = [{"batch": b, "context": c} for b, c in ((1, 8192), (64, 8192), (8, 1 << 20), (1, 7), (2, 1000))]
    mistakes = [
        (
            "One entry stands for four tokens in these layers.",
            lambda batch, context: batch * context * ENTRY_BYTES,
        ),
        (
            "An entry has a float32 scale beside its 128 e4m3 values.",
            lambda batch, context: batch * (context // 4) * 128,
        ),
        (
            "Pages are allocated whole, but only live entries must be read.",
            lambda batch, context: batch * -(-(context // 4) // 64) * 64 * ENTRY_BYTES,
        ),
        (
            "Four tokens become an entry once all four are there: round down.",
            lambda batch, context: batch * -(-context // 4) * ENTRY_BYTES,
        ),
        (
            "Entries are whole: round down to entries before counting bytes.",
            lambda batch, context: batch * context * ENTRY_BYTES // 4,
        ),
        (
            "That is for one row; each row of the batch has its own entries.",
            lambda batch, context: context // 4 * ENTRY_BYTES,
        ),
        (
            "All rows read their own entries, rounded down for each.",
            lambda batch, context: batch * context // 4 * ENTRY_BYTES,
        ),
        (
            "Index entries have 132 bytes; 584 is a token of the attention's cache.",
            lambda batch, context: batch * (context // 4) * 584,
        ),
    ]
    check_scalar_function(
        f,
        "f(batch, context) -> int",
        lambda batch, context: batch * (context // 4) * ENTRY_BYTES,
        cases,
        mistakes,
        whole=True,
        what="The number of bytes",
        otherwise="Live entries of a row, times 132 bytes, times the rows.",
    )
    return Praise("It follows the live context; what the uncapped path moves follows the configured one.")


@exercise(6, "a policy", "For which widths should a graph be captured?")
def check_cap_ladder(f):
    """Check `f(max_entries) -> list[int]`: ascending, last max_entries, few, never too wide."""
    need_function(f, "f(max_entries) -> list[int]")
    for largest in (2048, 2049, 32_768, 65_536, 262_144, 1):
        case = f"max_entries={largest:,}"
        ladder = _as_ladder(call(f, case, max_entries=largest), largest, case)
        allowed = RUNGS_ALLOWED if largest <= 262_144 else None
        if allowed and len(ladder) > allowed:
            raise Wrong(
                f"{len(ladder)} rungs are too many.",
                case=case,
                expected=f"at most {allowed}",
                got=str(len(ladder)),
                hint="Each rung is a captured graph with its own memory. Steps that grow by a factor need "
                "far fewer than steps of one size.",
            )
        bad = _too_wide(ladder, largest)
        if bad is not None:
            live, rung = bad
            raise Wrong(
                f"With {live:,} live entries the rung is {rung:,} wide.",
                case=case,
                expected=f"at most {max(SMALLEST, 2 * live):,} (the larger of 2,048 and twice the live "
                "length)",
                got=f"{rung:,}",
                hint="The gap between this rung and the one below it is too wide: a length just above the "
                "lower rung pays for the whole upper one.",
                draw=lambda r=ladder, m=largest: _draw_ladder(r, m),
            )
    final = _as_ladder(f(262_144), 262_144, "")
    return Praise(
        f"{len(final)} graphs cover every length up to 262,144 entries, and none does more than twice the "
        "work (or 2,048 entries).",
        lambda: _draw_ladder(final, 262_144),
    )


def _as_ladder(got, largest: int, case: str) -> list[int]:
    try:
        ladder = [int(rung) for rung in got]
        exact = all(int(rung) == rung and not isinstance(rung, bool) for rung in got)
    except (TypeError, ValueError):
        raise Wrong("A list of whole numbers is asked for.", case=case, got=brief(got)) from None
    if not ladder or not exact:
        raise Wrong("A list of whole numbers is asked for.", case=case, got=brief(got))
    shown = str(ladder) if len(ladder) < 16 else f"{str(ladder[:6])[:-1]}, … {ladder[-1]}]"
    if ladder[0] < 1:
        raise Wrong("A width is at least 1.", case=case, got=shown)
    if any(a >= b for a, b in zip(ladder, ladder[1:], strict=False)):
        raise Wrong(
            "The widths must grow strictly.",
            case=case,
            got=shown,
            hint="Is the last width in the list twice when max_entries is itself a step of your ladder?",
        )
    if ladder[-1] != largest:
        hint = (
            "A row may be as long as max_entries: the last rung must hold it."
            if ladder[-1] < largest
            else "No row is longer than max_entries: a wider rung only costs."
        )
        raise Wrong(
            "The last width is not max_entries.", case=case, expected=f"{largest:,}", got=shown, hint=hint
        )
    return ladder


def _too_wide(ladder: list[int], largest: int) -> tuple[int, int] | None:
    """The live length with the worst rung, and the rung, if it breaks the rule; lengths from 512 on."""
    below = 0
    for rung in ladder:
        live = max(512, below + 1)  # the shortest length that gets this rung pays most for it
        if live <= min(rung, largest) and rung > max(SMALLEST, 2 * live):
            return live, rung
        below = rung
    return None


def _draw_ladder(ladder: list[int], largest: int):
    edges = sorted({max(512, min(largest, v)) for rung in [0, *ladder] for v in (rung, rung + 1)} | {largest})
    lives = [live for live in edges if live <= largest]
    rungs = [next(rung for rung in ladder if rung >= live) for live in lives]
    over = [live for live, rung in zip(lives, rungs, strict=True) if rung > max(SMALLEST, 2 * live)]
    return drawing.curves(
        lives,
        {"your rung": rungs, "allowed": [max(SMALLEST, 2 * live) for live in lives], "live": lives},
        title=f"The width that a length gets; graphs captured: {len(ladder)}",
        x_label="longest live row (entries)",
        y_label="entries computed",
        steps=True,
        alt=f"Rungs are wider than allowed at {', '.join(f'{v:,}' for v in over[:4]) or 'no length'}.",
    )


GUARD_VALUE = 777.0


@exercise(6, "a function", "Write capped scores so that a reader with the old stride finds every row.")
def check_stride(f):
    """Check `f(out, scores)`: writes scores [B, cap] into out [B, S] in place, and -inf behind them."""
    need_function(f, "f(out, scores) -> None")
    for batch, width, row_stride, cap in ((3, 24, 32, 16), (4, 24, 24, 8), (2, 16, 20, 16), (1, 12, 12, 5)):
        case = f"out [{batch}, {width}] with row stride {row_stride}, scores [{batch}, {cap}]"
        scores = torch.randn(batch, cap, generator=torch.Generator().manual_seed(cap))
        storage = torch.full((8 + batch * row_stride + 8,), GUARD_VALUE)
        geometry = ((batch, width), (row_stride, 1), 8)
        storage.as_strided(*geometry).fill_(math.nan)  # what an earlier step left there
        expected = storage.clone()
        expected.as_strided(*geometry)[:, :cap] = scores
        expected.as_strided(*geometry)[:, cap:] = -math.inf
        before = storage.clone()
        call(f, case, out=storage.as_strided(*geometry), scores=scores.clone())
        if torch.equal(storage, expected):
            continue
        _explain_stride(case, storage, expected, before, geometry, scores)
    return Praise("The cap bounds the work, and the rows stay where a captured reader looks for them.")


def _explain_stride(case, storage, expected, before, geometry, scores) -> None:
    (batch, width), (row_stride, _), offset = geometry
    cap = scores.shape[1]
    seen, wanted = storage.as_strided(*geometry), expected.as_strided(*geometry)
    same = (seen == wanted) | (seen.isnan() & wanted.isnan())
    outside = torch.ones_like(storage, dtype=torch.bool)
    outside.as_strided(*geometry)[:] = False

    def draw():
        pieces = [piece.any(1) for piece in (~same).split(2, dim=1)]
        return drawing.rows_in_memory(
            torch.stack(pieces, 1),
            title="What the captured reader finds (hatched: wrong)",
            width_label="columns of a row, two a cell",
        )

    packed = storage[offset : offset + batch * cap].view(batch, cap)
    if same.all() or (storage[outside] != GUARD_VALUE).any() and same[:, :cap].all():
        raise Wrong(
            "Memory between or behind the rows was overwritten.",
            case=case,
            hint="A row ends at its width; what lies between two rows belongs to somebody else.",
        )
    unchanged = torch.equal(storage.nan_to_num(), before.nan_to_num())
    if unchanged:
        what, hint = (
            "Nothing was written.",
            "Write into the memory of `out`; assigning to the name `out` makes another.",
        )
    elif batch > 1 and torch.equal(packed, scores):
        what = "Row 0 is right and every other row is not."
        hint = "The rows were packed at a stride of cap. Which stride does the reader's graph still use?"
    elif same[:, :cap].all():
        what = "The scores are right and the columns behind them are not -inf."
        hint = "What an earlier, longer step left there would win the top-k."
    else:
        row, column = torch.nonzero(~same)[0].tolist()
        what, hint = (
            f"Row {row}, column {column} is wrong.",
            "The first cap columns of each row, then -inf to its end.",
        )
    index = tuple(torch.nonzero(~same)[0].tolist())
    raise Wrong(
        what,
        case=case,
        expected=number(wanted[index].item()),
        got=number(seen[index].item()),
        hint=hint,
        draw=draw,
    )


def _topk_cases():
    generator = torch.Generator().manual_seed(12)
    k, width = 4, 12

    def rows(lengths, change=None):
        logits = torch.randn(len(lengths), width, generator=generator)
        if change:
            change(logits)
        for row, length in enumerate(lengths):
            tail = logits[row, max(0, min(length, width)) :]
            tail[0::2], tail[1::2] = math.inf, math.nan
        return logits, torch.tensor(lengths, dtype=torch.int32), k

    yield "all rows full", rows([width, width])
    yield "rows longer than k, with +inf and NaN behind their length", rows([k + 1, 7])
    yield "every live logit negative", rows([6, 9], lambda x: x.copy_(-x.abs() - 1))
    yield "as many live entries as k", rows([k])
    yield "fewer live entries than k, and none", rows([k - 1, 1, 0])
    yield (
        "equal logits",
        rows([8, 6], lambda x: x.copy_(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0] + [0.0] * 4))),
    )
    yield "lengths below 0 and above the width", rows([-3, width + 5])


@exercise(6, "a function", "Select the k best live entries of each row.")
def check_topk(f):
    """Check `f(logits, lengths, k) -> positions` [B, k]: each row's k largest live logits, then -1."""
    need_function(f, "f(logits, lengths, k) -> positions")
    for case, (logits, lengths, k) in _topk_cases():
        got = call(f, case, logits=logits.clone(), lengths=lengths.clone(), k=k)
        if (
            not isinstance(got, torch.Tensor)
            or tuple(got.shape) != (len(lengths), k)
            or got.is_floating_point()
        ):
            raise Wrong("A tensor of whole numbers [B, k] is asked for.", case=case, got=brief(got))
        for row in range(len(lengths)):
            _judge_topk(case, row, logits[row], int(lengths[row]), k, got[row].tolist())
    return Praise(
        "Garbage behind the end, rows that are too short, ties and odd lengths: only live entries come back."
    )


def _judge_topk(case, row: int, logits, length: int, k: int, got: list[int]) -> None:
    live = max(0, min(length, logits.numel()))
    order = torch.sort(logits[:live].double(), descending=True, stable=True).indices[:k].tolist()
    expected = sorted(order) + [-1] * (k - len(order))
    present = [position for position in got if position != -1]
    if sorted(present) == sorted(order) and got[len(present) :] == [-1] * (k - len(present)):
        return
    if any(position >= live for position in present):
        hint = (
            "A position at or past the length came back: what stands there must not compete, and NaN wins "
            "a sort."
        )
        if live < k:
            hint = (
                "This row has fewer live entries than k: dead ones filled it up. Which of the chosen are "
                "live?"
            )
    elif any(position < -1 for position in present):
        hint = "Absent places are -1, and no position is negative."
    elif len(set(present)) < len(present):
        hint = "A position came back twice."
    elif sorted(present) == sorted(order):
        hint = "The positions are right; the places without an entry belong at the end."
    elif len(present) < len(order):
        hint = "Live entries are missing: may a logit be negative, and is a length above the width clamped?"
    elif sorted(logits[p].item() for p in present) == sorted(logits[p].item() for p in order):
        hint = "Among equal logits the smaller position wins, on every machine: is your sort stable?"
    else:
        hint = (
            "Not the largest live logits: is it the largest k that were asked for, and the row's own length?"
        )
    raise Wrong(
        f"Row {row} (length {length}) is wrong.", case=case, expected=str(expected), got=str(got), hint=hint
    )
