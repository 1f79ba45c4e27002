"""Shared memory by address, in Gluon: barriers that count, and loads, for what the copy engine and other blocks write.

Gluon has tensors in shared memory and no addresses. `cp.async.bulk` takes addresses, and so does everything that
works with what it wrote. So a kernel reserves one buffer for this, before any other, and `smem_base` says where it
begins. That no other buffer begins before its end is tested for every configuration
(tests/sparse_mla/test_few_heads.py).

A barrier (mbarrier) has a count of arrivals that it waits for, and of bytes that are owed to it. When both are met,
its phase ends and the next begins. Who waits names a phase by its parity. Triton does not know of these accesses and
puts no barriers of its own between them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

INIT = gl.constexpr("""
{
.reg .pred first;
.reg .u32 thread;
mov.u32 thread, %tid.x;
setp.eq.u32 first, thread, 0;
@first mbarrier.init.shared::cta.b64 [$1], $2;
}
// dummy $0
""")
PUBLISH = gl.constexpr("fence.mbarrier_init.release.cluster; // dummy $0")
OWE = gl.constexpr("""
{
.reg .pred first;
.reg .u32 thread;
mov.u32 thread, %tid.x;
setp.eq.u32 first, thread, 0;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;
}
// dummy $0
""")
WAIT = gl.constexpr("""
{
.reg .pred over;
again:
mbarrier.try_wait.parity.shared::cta.b64 over, [$1], $2;
@!over bra again;
}
// dummy $0
""")
ARRIVE = gl.constexpr("mbarrier.arrive.shared::cta.b64 _, [$1]; // dummy $0")
FENCE = gl.constexpr("fence.proxy.async.shared::cta; // dummy $0")


@gluon.jit
def smem_base():
    """Where the kernel's shared memory begins, and with it the buffer that it reserved first."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, global_smem;", "=r", [], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def init_barrier(address, count):
    """Set a barrier up for `count` arrivals a phase. Thread 0 of the block does it; the others have to meet it."""
    gl.inline_asm_elementwise(
        INIT, "=r,r,r,~{memory}", [address, gl.to_tensor(count)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def publish_barriers():
    """Let the copy engine and the cluster see the barriers that were set up."""
    gl.inline_asm_elementwise(PUBLISH, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def owe_bytes(address, count):
    """Thread 0 of the block arrives, and the phase does not end before `count` bytes have come."""
    gl.inline_asm_elementwise(
        OWE, "=r,r,r,~{memory}", [address, gl.to_tensor(count)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def arrive(address):
    """Every thread arrives."""
    gl.inline_asm_elementwise(ARRIVE, "=r,r,~{memory}", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait(address, parity):
    """Wait for the end of the phase of this parity; the first phase has 0."""
    gl.inline_asm_elementwise(
        WAIT, "=r,r,r,~{memory}", [address, gl.to_tensor(parity)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def fence_copies():
    """Let no copy that is asked for from here on overtake this thread's accesses before."""
    gl.inline_asm_elementwise(FENCE, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque(x):
    """x, but the compiler cannot tell what it is. It would keep every address that follows from a loop's counter in a
    register of its own, and count each of them up in every turn.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_float(address):
    """float32 at each address."""
    return gl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=r,r", [address], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def load_long(address):
    """int64 at each address."""
    return gl.inline_asm_elementwise(
        "ld.shared.b64 $0, [$1];", "=l,r", [address], dtype=gl.int64, is_pure=False, pack=1
    )


@gluon.jit
def load_2_words(address):
    """Two tensors of int32: the words at each address and behind it."""
    return gl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", [address],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_byte(address):
    """int32: the byte at each address."""
    return gl.inline_asm_elementwise(
        "ld.shared.u8 $0, [$1];", "=r,r", [address], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def load_2_floats(address):
    """Two tensors of float32: at each address and behind it."""
    return gl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];", "=r,=r,r", [address],
        dtype=(gl.float32, gl.float32), is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def store_2_floats(address, x, y):
    """Two tensors of float32, to each address and behind it."""
    gl.inline_asm_elementwise(
        "st.shared.v2.f32 [$1], {$2, $3}; // dummy $0", "=r,r,r,r,~{memory}", [address, x, y],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_4_words(address):
    """Four tensors of int32 likewise."""
    return gl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", [address],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
