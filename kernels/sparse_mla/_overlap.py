"""Programmatic dependent launch in Gluon: when a kernel starts behind another, and lets the next one start."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla.tiles import RELEASES

WAIT = gl.constexpr("griddepcontrol.wait; // dummy $0")
LAUNCH = gl.constexpr("griddepcontrol.launch_dependents; // dummy $0")
AT_START = gl.constexpr(RELEASES["start"])
AT_RESULT = gl.constexpr(RELEASES["result"])


@gluon.jit
def wait_for_predecessor(release, OVERLAP: gl.constexpr):
    """Wait for the kernel before this one; let the next one start, if it should as early as this."""
    if OVERLAP:
        gl.inline_asm_elementwise(WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        if release == AT_START:
            gl.inline_asm_elementwise(LAUNCH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def release_successor(release, OVERLAP: gl.constexpr):
    """Let the next kernel start, if it should when a block is about to write."""
    if OVERLAP:
        if release == AT_RESULT:
            gl.inline_asm_elementwise(LAUNCH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
