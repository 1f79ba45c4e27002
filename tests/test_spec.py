"""A kernel's specialisation without a device is the one that Triton's launcher would compile."""

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import BaseBackend
from triton.runtime import jit

from kernels.spec import KernelSpec, specialise


class Parameter:
    def __init__(self, name, is_constexpr):
        self.name, self.is_constexpr = name, is_constexpr


class Function:
    """What `specialise` reads of a kernel; the interpreter's functions have no parameter list."""

    def __init__(self, names, constexprs=()):
        self.arg_names = names
        self.params = [Parameter(name, name in constexprs) for name in names]


MEMORY = torch.zeros(4096, dtype=torch.uint8)
VALUES = [
    1, 0, 2, 16, 17, -16, -1, 2**31 - 1, 2**31, 2**31 + 16, -(2**31), -(2**31) - 16, 37_440, 0.5, None,
    *(MEMORY[offset : offset + 64].view(dtype) for offset in (0, 16, 64) for dtype in (
        torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8, torch.int32, torch.int64,
        torch.float8_e4m3fn, torch.float64,
    )),
    MEMORY[1:], MEMORY[4:68].view(torch.float32), MEMORY[8:72].view(torch.bfloat16),
]  # fmt: skip


@pytest.mark.skipif(not hasattr(jit, "native_specialize_impl"), reason="this Triton specialises in Python")
@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_value_is_specialised_as_triton_does(number):
    value = VALUES[number]
    spec = specialise("k", Function(["x"]), {"x": value}, num_warps=4, num_stages=1)
    kind, mark = jit.native_specialize_impl(BaseBackend, value, False, True, True)
    if kind == "constexpr":
        assert spec.signature == {"x": "constexpr"} and spec.constexprs == {"x": value}
        assert spec.attrs == {}
    else:
        assert spec.signature == {"x": kind} and spec.constexprs == {}
        assert spec.attrs == ({(0,): [["tt.divisibility", 16]]} if mark == "D" else {})


def test_arguments_keep_the_functions_order():
    function = Function(["a_ptr", "size", "BLOCK", "scale", "FLAG", "b_ptr"], {"BLOCK", "FLAG"})
    values = {
        "FLAG": True, "b_ptr": None, "a_ptr": torch.empty(4, device="meta"), "scale": 0.25, "BLOCK": 32,
        "size": 48,
    }  # fmt: skip
    spec = specialise("name", function, values, num_warps=8, num_stages=3)
    assert spec == KernelSpec(
        "name",
        function,
        {
            "a_ptr": "*fp32",
            "size": "i32",
            "BLOCK": "constexpr",
            "scale": "fp32",
            "FLAG": "constexpr",
            "b_ptr": "constexpr",
        },
        {"BLOCK": 32, "FLAG": True, "b_ptr": None},
        {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
        8,
        3,
    )
    assert list(spec.signature) == function.arg_names


def test_a_missing_argument_is_named():
    with pytest.raises(KeyError, match="size"):
        specialise("k", Function(["size"]), {}, num_warps=1, num_stages=1)


def test_a_real_kernels_parameters_are_read():
    @triton.jit
    def kernel(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), n)

    if not hasattr(kernel, "params"):
        pytest.skip("the interpreter's functions have no parameter list")
    spec = specialise("k", kernel, {"x_ptr": MEMORY, "n": 1, "BLOCK": 16}, num_warps=1, num_stages=1)
    assert spec.signature == {"x_ptr": "*u8", "n": "constexpr", "BLOCK": "constexpr"}
    assert spec.constexprs == {"n": 1, "BLOCK": 16}
