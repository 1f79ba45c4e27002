"""What a compiler needs to know to build a kernel exactly as its launcher would."""

from dataclasses import dataclass, field
from typing import Any

import torch

_POINTERS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.uint8: "*u8", torch.int8: "*i8", torch.int32: "*i32", torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip


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


def specialise(
    name: str, fn: Any, arguments: dict[str, Any], *, num_warps: int, num_stages: int
) -> KernelSpec:
    """The specialisation that launching `fn` with `arguments` would compile.

    Triton's launcher turns an integer 1 and an absent pointer into constants, marks addresses and integers that
    are multiples of 16, and takes 64 bits only where the value needs them. Tensors on the "meta" device stand for
    aligned memory.

    Args:
        arguments: every argument of `fn` by name: tensors, integers, floats, None, and its constexprs.
    """
    constexpr_names = {parameter.name for parameter in fn.params if parameter.is_constexpr}
    signature, constexprs, attrs = {}, {}, {}
    for position, argument in enumerate(fn.arg_names):
        value = arguments[argument]
        if argument in constexpr_names or value is None or (type(value) is int and value == 1):
            signature[argument], constexprs[argument] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[argument] = _POINTERS[value.dtype]
            divisible = value.device.type == "meta" or value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[argument], divisible = "fp32", False
        else:
            signature[argument] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = value % 16 == 0
        if divisible:
            attrs[(position,)] = [["tt.divisibility", 16]]
    return KernelSpec(name, fn, signature, constexprs, attrs, num_warps, num_stages)
