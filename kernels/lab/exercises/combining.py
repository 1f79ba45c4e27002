"""The cases and the diagnosis of `check_combine`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.lab.exercises import drawing
from kernels.lab.exercises.compare import close, first_difference, matching_hint, number
from kernels.lab.exercises.framework import Praise, Wrong
from kernels.lab.exercises.running import Guarded, device, launch, readable

BATCH, HEADS, DIM = 2, 2, 512
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """partial_out float32 [B, S, H, 512] and partial_lse float32 [B, S, H], base 2."""

    name: str
    out: torch.Tensor
    lse: torch.Tensor

    @property
    def splits(self) -> int:
        return self.out.shape[1]

    @property
    def empty(self) -> bool:
        return bool((self.lse == -math.inf).any())


def cases() -> list[Case]:
    """The same cases on every run, from the plainest on."""
    generator = torch.Generator().manual_seed(11)

    def make(name: str, splits: int, height: float = 0.0, empty=()) -> Case:
        out = torch.randn(BATCH, splits, HEADS, DIM, generator=generator)
        lse = 2 * torch.randn(BATCH, splits, HEADS, generator=generator) + height
        for row, split in empty:
            out[row, split] = math.nan
            lse[row, split] = -math.inf
        return Case(f"batch {BATCH}, heads {HEADS}, {name}", out, lse)

    return [
        make("1 split", 1),
        make("2 splits", 2),
        make("3 splits (BLOCK_S 4)", 3),
        make("8 splits", 8),
        make("2 splits, LSEs around +1000", 2, 1000.0),
        make("2 splits, LSEs around -1000", 2, -1000.0),
        make("3 splits, the last of row 0 and the first of row 1 empty", 3, 0.0, [(0, 2), (1, 0)]),
        make("2 splits, row 1 all empty", 2, 0.0, [(1, 0), (1, 1)]),
    ]


def merge(out: torch.Tensor, lse: torch.Tensor, *, base: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The merged output [B, H, D] and natural LSE [B, H], float64."""
    out, lse = out.double(), lse.double()
    m = lse.amax(1)
    top = torch.where(m == -math.inf, 0.0, m)
    weight = base ** (lse - top[:, None])
    total = weight.sum(1)
    parts = torch.where(weight[..., None] > 0, out * weight[..., None], 0.0).sum(1)
    merged = parts / torch.where(total > 0, total, 1.0)[..., None]
    natural = (m + torch.log2(total)) * math.log(2) if base == 2.0 else m + torch.log(total)
    return merged, torch.where(total > 0, natural, math.inf)


def check_combine_kernel(kernel) -> Praise:
    """Run a combine kernel on every case; `Wrong` at the first that fails."""
    for case in cases():
        out, lse = Guarded((BATCH, HEADS, DIM)), Guarded((BATCH, HEADS))
        arguments = {
            "partial_out_ptr": readable(case.out),
            "partial_lse_ptr": readable(
                case.lse, past=1100.0
            ),  # a lane that is not masked would rule the sum
            "out_ptr": out.tensor,
            "lse_ptr": lse.tensor,
            "heads": HEADS,
            "num_splits": case.splits,
        }
        meta = {"BLOCK_S": 1 << (case.splits - 1).bit_length()}
        launch(kernel, (BATCH, HEADS), arguments, meta, case=case.name, num_warps=4)
        out.check("out", case.name)
        lse.check("lse", case.name)
        _judge(case, out.tensor.cpu().double(), lse.tensor.cpu().double())
    return Praise(
        f"{len(cases())} cases agree on {device()}: odd numbers of splits, LSEs far from 0, partials never "
        "written."
    )


def _judge(case: Case, out: torch.Tensor, lse: torch.Tensor) -> None:
    expected_out, expected_lse = merge(case.out, case.lse)
    good = close(out, expected_out, TOLERANCE)
    if not good.all():
        index, place = first_difference(good, ("row", "head", "column"))
        raise Wrong(
            f"out is wrong at {place}.",
            case=case.name,
            expected=number(expected_out[index].item()),
            got=number(out[index].item()),
            hint=_out_hint(case, out, expected_out),
            draw=lambda: _draw(out, expected_out),
        )
    good = close(lse, expected_lse, TOLERANCE)
    if not good.all():
        index, place = first_difference(good, ("row", "head"))
        raise Wrong(
            f"out is right, and lse is wrong at {place}.",
            case=case.name,
            expected=number(expected_lse[index].item()),
            got=number(lse[index].item()),
            hint=_lse_hint(case, lse, expected_lse),
        )


def _out_hint(case: Case, out: torch.Tensor, expected: torch.Tensor) -> str:
    if case.splits == 1:  # the plainest case: what is wrong with it is wrong with the stores
        flat = out.view(-1, DIM)
        if out.isnan().all():
            return "Nothing was written, or all is NaN: is there a store for every column?"
        if flat[1:].isnan().all() and not flat[0].isnan().any():
            return "Only the first row and head were written: out's address needs (row * heads + head) * 512."
        if out[..., DIM // 2 :].isnan().all():
            return "Some columns were never written: a head has 512."
    if "all empty" in case.name and (out[1].isnan() | (out[1] == 0)).all():
        return (
            "-inf minus -inf is NaN, and 0 / 0 is, too: a row of which no split has a candidate needs its "
            "own answer, 0."
        )
    if case.empty and out.isnan().any():
        return (
            "The output of an empty partial was never written and holds NaN; a weight of 0 does not "
            "silence it (0 * NaN is NaN). A partial of LSE -inf must not be read, or must be replaced "
            "before the product."
        )
    if "+1000" in case.name:
        return "2**1000 overflows float32: subtract the largest LSE of the row before the exponential."
    if "-1000" in case.name:
        return "2**-1000 is 0 in float32, for every split: subtract the largest LSE of the row first."
    return matching_hint(out, _out_slips(case), 1e-4, _stray_hint(case))


def _out_slips(case: Case) -> list[tuple[str, torch.Tensor]]:
    out, lse = case.out.double(), case.lse.double()
    weight = torch.exp2(lse - lse.amax(1, keepdim=True))
    share = weight / weight.sum(1, keepdim=True)
    sums = (out * weight[..., None]).sum(1)
    by_head = (BATCH, HEADS, case.splits)
    swapped = out.reshape(*by_head, DIM).transpose(1, 2)
    swapped_lse = lse.reshape(by_head).transpose(1, 2)
    slips = [
        ("The partial LSEs are in base 2 and your weights are powers of e.", merge(out, lse, base=math.e)[0]),
        ("A plain mean gives a split with few candidates as much say as one with many.", out.mean(1)),
        ("The partials are normalised already: each needs its weight before they are added.", out.sum(1)),
        ("The sum must be divided by the sum of the weights.", sums),
        (
            "The sum is divided by the sum of the weights once: those weights are not normalised before.",
            (out * share[..., None]).sum(1) / weight.sum(1)[..., None],
        ),
        ("In partial_out the split is outside of the head: [B, S, H, 512].", merge(swapped, lse)[0]),
        (
            "The split is outside of the head: (row * num_splits + split) * heads + head.",
            merge(swapped, swapped_lse)[0],
        ),
    ]
    if case.splits > 1:
        largest = lse.argmax(1)[:, None, :, None].expand(-1, 1, -1, DIM)
        slips += [
            ("The last split is lost: the loop ends one too early.", merge(out[:, :-1], lse[:, :-1])[0]),
            (
                "Only the first split was merged: the loop, or BLOCK_S lanes, must take all of them.",
                out[:, 0],
            ),
            (
                "The largest partial was taken alone; the others have a share, too.",
                out.gather(1, largest).squeeze(1),
            ),
        ]
    return slips


def _stray_hint(case: Case) -> str:
    if case.splits & (case.splits - 1):
        return (
            "BLOCK_S is the next power of two: lanes at num_splits and past it belong to another row. A "
            "masked load fills in 0, and 2**0 = 1 is a weight: what must an absent LSE be?"
        )
    return "Check the addresses: an LSE lies at (row * num_splits + split) * heads + head."


def _lse_hint(case: Case, lse: torch.Tensor, expected: torch.Tensor) -> str:
    if lse.isnan().all():
        return "lse was never written, or is NaN."
    natural, two = math.log(2), case.lse.double()
    slips = [
        ("That is in base 2; a natural logarithm is asked for.", expected / natural),
        (
            "The conversion goes the other way: log2 times ln(2) is a natural logarithm.",
            expected / natural / natural,
        ),
        (
            "That is the largest partial LSE; the logarithm of the sum of the weights is missing.",
            two.amax(1) * natural,
        ),
        (
            "log of the sum is natural already and the maximum is not: bring both to one base before adding.",
            two.amax(1) + torch.log(torch.exp2(two - two.amax(1, keepdim=True)).sum(1)),
        ),
        (
            "The sum of the weights lacks the maximum that was subtracted.",
            torch.log(torch.exp2(two - two.amax(1, keepdim=True)).sum(1)),
        ),
    ]
    if "all empty" in case.name:
        return (
            "A final result without a candidate has LSE +inf here (a partial has -inf): readers test for it."
        )
    if lse.isnan().any():
        return "lse is NaN, or was not written, for some rows and heads: its address is row * heads + head."
    return matching_hint(lse, slips, 1e-4, "lse is the logarithm of the sum of 2**(partial LSE), in base e.")


def _draw(out: torch.Tensor, expected: torch.Tensor):
    error = (out - expected).abs().view(BATCH * HEADS, DIM // 64, 64)
    parts = torch.where(error.isnan().any(-1), math.nan, error.amax(-1))
    rows = [f"row {row}, head {head}" for row in range(BATCH) for head in range(HEADS)]
    columns = [f"{64 * part}–{64 * part + 63}" for part in range(DIM // 64)]
    return drawing.error_map(
        parts,
        rows,
        columns,
        title="Largest error by row, head and columns",
        x_label="columns",
        y_label="row and head",
        tolerance=TOLERANCE * 10,
    )
