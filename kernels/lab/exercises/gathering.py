"""Cases and diagnosis of the two gather kernels: scores of one head (chapter 1), of all (chapter 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.lab.exercises import drawing
from kernels.lab.exercises.compare import close, first_difference, number
from kernels.lab.exercises.framework import Praise, Wrong
from kernels.lab.exercises.running import Guarded, device, launch, readable

WIDTH, BLOCK_T, ROWS = 64, 16, 40
TOLERANCE = 1e-4
COUNTS = ((16, "mixed"), (32, "present"), (21, "mixed"), (1, "present"), (19, "absent"))


@dataclass(frozen=True)
class Case:
    """`count` slots into a table of 40 rows whose row 0 is NaN; expected float64 [heads, count]."""

    name: str
    q: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    expected: torch.Tensor


def cases(heads: int) -> list[Case]:
    """The same cases on every run."""
    made = []
    for number_of_case, (count, kind) in enumerate(COUNTS):
        generator = torch.Generator().manual_seed(31 + number_of_case)
        q = torch.randn(heads, WIDTH, generator=generator)
        rows = torch.randn(ROWS, WIDTH, generator=generator)
        rows[0] = float("nan")
        slots = torch.randint(1, ROWS, (count,), generator=generator, dtype=torch.int32)
        if kind == "absent":
            slots[:] = -1
        elif kind == "mixed":
            slots[torch.arange(2, count, 5)] = -1
            slots[-1] = -1
        expected = torch.full((heads, count), -math.inf, dtype=torch.float64)
        valid = slots >= 0
        expected[:, valid] = q.double() @ rows.double()[slots[valid].long()].T
        absent = int((~valid).sum())
        name = f"count={count}, {absent} of them absent (-1)"
        made.append(Case(name, q, rows, slots, expected))
    return made


def check_scores(kernel, heads: int, meta: dict) -> Praise:
    """Run a gather kernel on every case; `meta` are its compile-time constants."""
    for case in cases(heads):
        count = case.slots.numel()
        shape = (count,) if heads == 1 else (heads, count)
        scores = Guarded(shape)
        arguments = {
            "q_ptr": readable(case.q[0] if heads == 1 else case.q),
            "rows_ptr": readable(case.rows),
            "slots_ptr": readable(case.slots, past=1),  # behind the last slot: one that could be read
            "scores_ptr": scores.tensor,
            "count": count,
        }
        launch(kernel, (-(-count // BLOCK_T),), arguments, meta, case=case.name)
        scores.check("scores", case.name)
        got = scores.tensor.cpu().double().view(heads, count)
        diagnose(got, case)
    return Praise(
        f"{len(COUNTS)} cases agree on {device()}: full and partly filled tiles, absent slots, none present."
    )


def diagnose(got: torch.Tensor, case: Case) -> None:
    """Raise `Wrong` with the mechanism if `got` [heads, count] is not what the case expects."""
    good = close(got, case.expected, TOLERANCE)
    if good.all():
        return
    names = ("head", "candidate") if got.shape[0] > 1 else ("row", "candidate")
    (head, i), place = first_difference(good, names)
    place = place if got.shape[0] > 1 else f"candidate {i}"
    slot = int(case.slots[i])
    came, expected = got[head, i].item(), case.expected[head, i].item()
    raise Wrong(
        f"The score of {place} (slot {slot}) is wrong.",
        case=case.name,
        expected=number(expected),
        got=number(came),
        hint=_hint(got, case, good, came, i),
        draw=lambda: _draw(got, case),
    )


def _hint(got, case: Case, good, came: float, i: int) -> str:
    count = case.slots.numel()
    valid = case.slots >= 0
    unwritten = got.isnan().all(0)
    if count % BLOCK_T and unwritten[count - count % BLOCK_T :].all() and count > BLOCK_T:
        return (
            "The remainder, the last tile that is not full, was lost: it has fewer than BLOCK_T lanes, not "
            "none."
        )
    if i >= BLOCK_T and unwritten[BLOCK_T:].all() and count > BLOCK_T:
        return "Only the first tile was written: a later program starts at program_id * BLOCK_T."
    if unwritten.all():
        return (
            "Nothing was written, or everything is NaN: is there a store, and does its mask let lanes "
            "through?"
        )
    if not valid[i]:
        return _absent_hint(came)
    if math.isnan(came):
        return "A slot that is present gives NaN: was it written, and is its own row read, at slot * WIDTH?"
    if got.shape[0] > 1:
        swapped = case.expected[:1].expand_as(got)
        if close(got[:, valid], swapped[:, valid], TOLERANCE).all():
            return "Every head has head 0's scores: the rows of q, or of scores, need the head's own offset."
    dense = case.q.double() @ case.rows.double()[(torch.arange(count) % BLOCK_T)].T
    if close(got[:, valid], dense[:, valid], TOLERANCE).all():
        return "Row i was read instead of row slots[i]: the slot is an address, the position is not."
    if close(got[:, valid], got[:, valid][:, :1].expand(-1, int(valid.sum())), TOLERANCE).all():
        return "All candidates have one score: does the row's address follow the candidate (slot[:, None])?"
    return (
        "Check the address (slot * WIDTH + column), and that the sum runs over columns and not over "
        "candidates."
    )


def _absent_hint(came: float) -> str:
    if math.isnan(came):
        return (
            "An absent slot gives NaN: its address was followed to a row that holds NaN, and NaN times 0 "
            "is NaN. Mask the load, and choose between score and -inf by the slot, not by a product."
        )
    if came == 0.0:
        return (
            "A masked load gives 0, and 0 is a score like any other: a softmax would give it weight. "
            "Absent is -inf."
        )
    if came < -1e3 and math.isfinite(came):
        return (
            "A finite stand-in for -inf works until a whole tile is absent: then its maximum is the "
            "stand-in, and exp(0) = 1 gives every absent token a weight."
        )
    if came == math.inf:
        return "The sign: exp(+inf) is infinite; an absent candidate must have weight 0."
    return (
        "An absent slot (-1) has the score of a row: -1 was used as an address. Which lanes may load at all?"
    )


def _draw(got: torch.Tensor, case: Case):
    if got.shape[0] == 1:
        return drawing.values_and_expected(
            got[0],
            case.expected[0],
            title="Scores, candidate by candidate",
            x_label="candidate",
            y_label="score",
        )
    error = (got - case.expected).abs()
    error = torch.where(got == case.expected, 0.0, error)
    groups = list(range(0, got.shape[1], 4))
    parts = torch.stack([_worst(error[:, g : g + 4]) for g in groups], 1)
    return drawing.error_map(
        parts,
        [str(head) for head in range(got.shape[0])],
        [f"{g}…" for g in groups],
        title="Where the scores are wrong",
        x_label="candidates, four a cell",
        y_label="head",
        tolerance=1e-3,
    )


def _worst(error: torch.Tensor) -> torch.Tensor:
    worst = error.nan_to_num(nan=-1.0, posinf=math.nan).amax(1)
    return torch.where(error.isnan().any(1), math.nan, worst)
