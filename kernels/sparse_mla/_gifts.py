"""What teams give each other through shared memory, in Gluon: in the same block, or in the other of a cluster.

Into another block, values go by `st.async`: they arrive by themselves, and count their bytes down on a barrier there.
Within a block alone they are stored, and the giver's threads arrive.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

COME = gl.constexpr("barrier.cluster.arrive.relaxed.aligned; // dummy $0")
AWAIT = gl.constexpr("barrier.cluster.wait.acquire.aligned; // dummy $0")


@gluon.jit
def come_to_cluster():
    """Every thread of both blocks says that its block has begun, and that its barriers are set up."""
    gl.inline_asm_elementwise(COME, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_cluster():
    """Wait until all have said so: before, nothing may be written into the other block."""
    gl.inline_asm_elementwise(AWAIT, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def address_in(address, block):
    """An address of this block's shared memory as that of the same place in a block of the cluster."""
    return gl.inline_asm_elementwise(
        "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, block], dtype=gl.int32, is_pure=True, pack=1
    )  # fmt: skip


# PTX that sends `count` values: addresses, values and barriers are that many operands each, after the outputs
@gluon.constexpr_function
def give_text(count, mask, cluster):
    x = ", ".join(f"${2 * count + i}" for i in range(count))
    vector = {1: "", 2: ".v2", 4: ".v4"}[count]
    unused = " ".join(f"${i}" for i in range(count))
    if not cluster:
        return f"st.shared{vector}.b32 [${count}], {{{x}}}; // {unused}"
    return f"""
{{
.reg .pred mine;
.reg .u32 thread;
mov.u32 thread, %tid.x;
and.b32 thread, thread, {mask};
setp.eq.u32 mine, thread, 0;
@mine st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [${count}], {{{x}}}, [${3 * count}];
}}
// {unused}
"""


# What registers `give_text` takes
@gluon.constexpr_function
def give_constraints(count):
    return ",".join(["=r"] * count + ["r"] * (3 * count) + ["~{memory}"])


@gluon.jit
def give(address, x, barrier, COUNT: gl.constexpr, MASK: gl.constexpr, CLUSTER: gl.constexpr):
    """Send x, float32, and count its bytes on a barrier, as many values at once as a thread has in a row. Of threads
    that hold the same, only those whose numbers have none of the bits of MASK may send: bytes are counted once each.
    """
    TEXT: gl.constexpr = give_text(COUNT, MASK, CLUSTER)
    CONSTRAINTS: gl.constexpr = give_constraints(COUNT)
    gl.inline_asm_elementwise(
        TEXT, CONSTRAINTS, [address, x, address - address + barrier],
        dtype=gl.int32, is_pure=False, pack=COUNT,
    )  # fmt: skip


# PTX that reads `count` values from the first of as many addresses
@gluon.constexpr_function
def take_text(count):
    x = ", ".join(f"${i}" for i in range(count))
    vector = {1: "", 2: ".v2", 4: ".v4"}[count]
    return f"ld.shared{vector}.b32 {{{x}}}, [${count}];"


# What registers `take_text` takes
@gluon.constexpr_function
def take_constraints(count):
    return ",".join(["=r"] * count + ["r"] * count)


@gluon.jit
def take(address, COUNT: gl.constexpr):
    """What was given there, likewise."""
    TEXT: gl.constexpr = take_text(COUNT)
    CONSTRAINTS: gl.constexpr = take_constraints(COUNT)
    return gl.inline_asm_elementwise(
        TEXT, CONSTRAINTS, [address], dtype=gl.float32, is_pure=False, pack=COUNT
    )
