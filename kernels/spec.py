"""What a compiler needs to know to build a kernel exactly as its launcher would."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class KernelSpec:
    """One specialisation of a Triton kernel.

    Attributes:
        name: the kernel's name, for tables and file names.
        fn: the `@triton.jit` function.
        signature: argument name to Triton type ("*bf16", "i32", "constexpr"), in the function's order.
        constexprs: values of the "constexpr" arguments.
        attrs: argument attributes as `triton.compiler.ASTSource` takes them, such as
            `{(0,): [["tt.divisibility", 16]]}` for a pointer that is 16-byte aligned.
        num_warps, num_stages: launch options.
    """

    name: str
    fn: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    attrs: dict[tuple[int, ...], list] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2


def make_spec(name: str, fn: Any, types: dict[str, str], constexprs: dict[str, Any], *, divisible=(), num_warps=4,
              num_stages=2) -> KernelSpec:
    """Build a `KernelSpec` from the run-time arguments' types; every other argument must be a constexpr.

    Args:
        types: run-time argument name to Triton type.
        constexprs: constexpr argument name to value.
        divisible: names of the run-time arguments that the launcher would see as multiples of 16.

    Raises:
        ValueError: an argument of `fn` is in neither, or in both.
    """
    names = list(fn.arg_names)
    missing = [n for n in names if (n in types) == (n in constexprs)]
    if missing:
        raise ValueError(f"{name}: arguments {missing} must be given once, as a type or as a constexpr")
    signature = {n: types.get(n, "constexpr") for n in names}
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in divisible}
    return KernelSpec(name, fn, signature, {n: constexprs[n] for n in names if n in constexprs}, attrs, num_warps,
                      num_stages)
