"""Compares an answer with what is expected, and finds the mistake that would explain it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels.lab.exercises.framework import Wrong
from kernels.lab.exercises.running import as_number, brief, call, need_function

Mistakes = Sequence[tuple[str, Callable[..., Any]]]
"""Pairs of a hint and the function that someone with this misconception would have written."""


def describe(arguments: Mapping[str, Any]) -> str:
    """The inputs of a case in words: 'heads=64, block_h=32'."""
    return ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else f"{value}"


def check_scalar_function(
    answer: Any,
    signature: str,
    truth: Callable,
    cases,
    mistakes: Mistakes,
    *,
    whole: bool,
    what: str,
    otherwise: str,
    tolerance: float = 1e-6,
) -> None:
    """Compare a function of named numbers with `truth` on every case.

    Args:
        signature: shown when the answer is no function. cases: dicts of arguments.
        whole: the answer must be a whole number, otherwise within the relative `tolerance`.
        what: the meaning of the value, for the message. otherwise: the hint where no mistake fits.

    Raises:
        Wrong: at the first failing case; its hint is the first mistake that gives the same answers.
    """
    need_function(answer, signature)
    for arguments in cases:
        case = describe(arguments)
        value = _value(call(answer, case, **arguments), case)
        expected = truth(**arguments)
        if not _equal(value, expected, whole, tolerance):
            hint = _explanation(answer, cases, arguments, value, mistakes, tolerance) or otherwise
            raise Wrong(
                f"{what} is not right yet.",
                case=case,
                expected=number(expected),
                got=number(value),
                hint=hint,
            )


def _value(came: Any, case: str) -> float:
    if came is None:
        raise Wrong("The function returns nothing.", case=case, hint="Does it end in `return`?")
    if isinstance(came, float) and not math.isfinite(came):
        return came
    return as_number(came)


def _explanation(answer, cases, failing, value, mistakes: Mistakes, tolerance: float) -> str | None:
    """The hint of the mistake that gives the reader's value in every case, or else in the failing one."""
    seen = [(failing, value)]
    everywhere = list(seen)
    for arguments in cases:
        with contextlib.suppress(Wrong):  # an error in a later case says nothing about this one
            everywhere.append((arguments, _value(call(answer, "", **arguments), "")))
    for answers in (everywhere, seen):
        for hint, slip in mistakes:
            if _explains(slip, answers, tolerance):
                return hint
    return None


def _equal(value: float, expected: float, whole: bool, tolerance: float) -> bool:
    if whole:
        return value == expected
    return math.isclose(value, expected, rel_tol=tolerance, abs_tol=1e-12)


def _explains(slip: Callable, seen, tolerance: float) -> bool:
    try:
        return all(
            math.isclose(slip(**arguments), value, rel_tol=max(tolerance, 1e-9)) for arguments, value in seen
        )
    except (ArithmeticError, ValueError):
        return False


def number(value: Any) -> str:
    """A number as text: thousands separated, floats to six digits."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_tensor(value: Any, shape, name: str, case: str) -> torch.Tensor:
    """`value` as a float64 CPU tensor of `shape`; anything else is `Wrong`."""
    if value is None:
        raise Wrong(f"`{name}` is None.", case=case, expected=f"shape {list(shape)}", hint="Does it return?")
    try:
        tensor = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"`{name}` cannot be read as numbers.", case=case, got=brief(value)) from None
    if tuple(tensor.shape) != tuple(shape):
        raise Wrong(f"`{name}` has another shape.", case=case, expected=list(shape), got=list(tensor.shape))
    return tensor


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Where float64 `got` is within `tolerance`, absolute and relative; infinities of one sign are equal."""
    near = (got - expected).abs() <= tolerance * (1 + expected.abs())
    return torch.where(expected.isinf() | got.isinf(), got == expected, near & ~got.isnan())


def first_difference(good: torch.Tensor, names: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
    """Index of the first False, and the same in words: 'head 1, column 0'."""
    index = tuple(torch.nonzero(~good)[0].tolist())
    return index, ", ".join(f"{name} {place}" for name, place in zip(names, index, strict=True))


def matching_hint(
    got: torch.Tensor, mistakes: Sequence[tuple[str, Any]], tolerance: float, otherwise: str | None
):
    """The first hint whose wrong result is what came; else `otherwise`.

    mistakes: pairs of a hint and the wrong result (a tensor).
    """
    for hint, wrong in mistakes:
        same = got.isnan() & wrong.isnan() | close(got, wrong, tolerance)
        if same.all():
            return hint
    return otherwise
