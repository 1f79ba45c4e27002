"""Runs the reader's code: a function with its errors put into words, a kernel on guarded memory."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels import triton_mode
from kernels.lab.exercises.framework import Wrong
from kernels.lab.exercises.limits import TimeUp

GUARD = 4096  # elements before and after a buffer


def device() -> str:
    """Where kernels run: the CPU under the interpreter, the GPU otherwise."""
    return "cpu" if triton_mode.interpreted() else "cuda"


def as_number(answer: Any, unit: str = "") -> float:
    """The answer as a float.

    Raises `Wrong` for anything that is not one finite number.
    """
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    try:
        if isinstance(answer, (bool, str)):
            raise TypeError
        value = float(answer)
    except (TypeError, ValueError):
        raise Wrong(
            f"A single number{' of ' + unit if unit else ''} is asked for, and this is {brief(answer)}."
        ) from None
    if not math.isfinite(value):
        raise Wrong(f"A finite number is asked for, and this is {value}.")
    return value


def call(function: Callable, case: str, **arguments):
    """`function(**arguments)`, or by position if its parameters have other names; exceptions become `Wrong`.

    `case`: the inputs in words. The message of an exception carries the reader's own line.
    """
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = set()
    try:
        return function(**arguments) if names >= set(arguments) else function(*arguments.values())
    except (Wrong, TimeUp):
        raise
    except Exception as error:
        raise Wrong(**_explain(error, case)) from error


def need_function(answer: Any, signature: str) -> None:
    """Raise `Wrong` unless the answer can be called as a Python function."""
    if is_kernel(answer):
        raise Wrong("A plain Python function is asked for, and this is a Triton kernel.", expected=signature)
    if not callable(answer):
        raise Wrong(f"A function is asked for, and this is {brief(answer)}.", expected=signature)


def is_kernel(answer: Any) -> bool:
    """Whether the answer was decorated with @triton.jit, in either mode."""
    return any(kind.__name__ in ("JITFunction", "InterpretedFunction") for kind in type(answer).__mro__)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    meta: dict[str, Any],
    *,
    case: str,
    **options,
) -> None:
    """`kernel[grid](*arguments, **meta)`; another kind of answer, other arguments, exceptions become `Wrong`.

    arguments: in the signature's order. meta: compile-time constants, passed by name. options: num_warps etc.
    """
    if not is_kernel(kernel):
        hint = "Put @triton.jit above it." if callable(kernel) else None
        raise Wrong(f"A Triton kernel is asked for, and this is {brief(kernel)}.", hint=hint)
    if (type(kernel).__name__ == "InterpretedFunction") != triton_mode.interpreted():
        raise Wrong(
            "Your kernel was decorated in the other mode (compiled or interpreted) than this notebook runs "
            "in.",
            hint="Run the chapter's first two cells, then the cell with your kernel again.",
        )
    names = list(kernel.arg_names)
    if len(names) != len(arguments) + len(meta) or not set(meta) <= set(names[len(arguments) :]):
        raise Wrong(
            "The kernel's arguments are not those of the exercise.",
            expected=", ".join([*arguments, *(f"{name}: tl.constexpr" for name in meta)]),
            got=", ".join(names),
        )
    try:
        kernel[grid](*arguments.values(), **meta, **options)
        if device() == "cuda":
            torch.cuda.synchronize()
    except TimeUp:
        raise
    except Exception as error:
        raise Wrong(**_explain(error, case)) from error


def _explain(error: Exception, case: str) -> dict[str, Any]:
    inner = error
    while inner.__cause__ is not None and inner.__cause__ is not inner:
        inner = inner.__cause__
    if isinstance(inner, TimeUp):
        raise inner
    frames = [frame for frame in traceback.extract_tb(inner.__traceback__) if _is_readers(frame.filename)]
    where = f" at `{frames[-1].line}`" if frames and frames[-1].line else ""
    text = str(inner).strip().splitlines()
    message = f": {text[-1]}" if text else ""
    return {
        "what": f"Your code stopped with {type(inner).__name__}{message}{where}.",
        "case": case,
        "hint": _hint_for(inner, bool(frames)),
    }


def _hint_for(error: Exception, inside: bool) -> str | None:
    """A hint for an exception; inside: it came from a line of the reader's."""
    text = str(error).lower()
    if isinstance(error, ZeroDivisionError):
        return (
            "A divisor can be 0 here: an empty row, a split without candidates, or sizes below the divisor."
        )
    if isinstance(error, TypeError) and "argument" in text and not inside:
        return "The check calls your function as the exercise's signature says, in that order."
    if "power of 2" in text or "power of two" in text:
        return "tl.arange needs a power of two: round up, and mask what is too much."
    if "broadcast" in text or "shape" in text:
        return (
            "Two shapes do not fit: write each tensor's shape above its line, and add [:, None] or [None, :]."
        )
    return None


def _is_readers(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    path = Path(filename)
    library = {"site-packages", "dist-packages", "contextlib.py", "exercises"}
    return not library.intersection(path.parts) or "solutions" in path.parts or "ipykernel" in path.parts[-2:]


def brief(answer: Any) -> str:
    """What an answer is, in a few words."""
    if isinstance(answer, torch.Tensor):
        return f"a tensor of shape {list(answer.shape)}"
    text = repr(answer)
    kind = type(answer).__name__
    return f"{kind} {text}" if len(text) < 60 else f"of type {kind}"


class Guarded:
    """A buffer for a kernel to write, with canaries on both sides and NaN (or a fill) inside.

    `tensor` is what the kernel gets. `broken()` says on which side something was written past it.
    """

    def __init__(self, shape, dtype=torch.float32, fill=float("nan")):
        size = math.prod(shape)
        self._canary = 12_345 if dtype in (torch.int32, torch.int64, torch.float32) else 77
        self._storage = torch.full((size + 2 * GUARD,), self._canary, dtype=dtype, device=device())
        self.tensor = self._storage[GUARD : GUARD + size].view(shape)
        self.tensor.fill_(fill)

    def broken(self) -> str | None:
        """ "before", "after" or None."""
        if (self._storage[:GUARD] != self._canary).any():
            return "before"
        if (self._storage[-GUARD:] != self._canary).any():
            return "after"
        return None

    def check(self, name: str, case: str) -> None:
        """Raise `Wrong` if the kernel wrote past the buffer."""
        side = self.broken()
        if side:
            raise Wrong(
                f"The kernel wrote {side} {'the end of' if side == 'after' else 'the start of'} `{name}`.",
                case=case,
                hint="A store needs a mask, too: lanes past the last element write into a neighbour's "
                "memory.",
            )


def readable(values: torch.Tensor, past: float = float("nan")) -> torch.Tensor:
    """A copy of an input on the device, inside memory that wrong addresses may read: `past` on both sides."""
    storage = torch.full((values.numel() + 64 * GUARD,), past, dtype=values.dtype, device=device())
    inside = storage[GUARD : GUARD + values.numel()].view(values.shape)
    inside.copy_(values)
    return inside
