"""Whether a compiled kernel can run on a device, and run without touching local memory."""

from kernels.lab.compile.classes import TCGEN_OPCODES, WARPGROUP_OPCODES
from kernels.lab.devices import device_of, target_of
from kernels.lab.occupancy import registers_per_block


def legal(compiled, device: str = "rtx-pro-6000") -> list[str]:
    """Reasons why a compiled kernel is no configuration for `device`; an empty list when it is.

    Args:
        compiled: a `Compiled`.
        device: key of a product in `data/devices.csv`, or a target such as "sm_120".
    """
    target = target_of(device) if str(device).startswith("sm_") else device_of(device).target
    if compiled.error:
        return [f"does not compile: {compiled.error}"]
    reasons = []
    if compiled.shared_bytes > target.shared_optin:
        over = compiled.shared_bytes - target.shared_optin
        reasons.append(
            f"shared memory: {compiled.shared_bytes:,} bytes are {over:,} over {target.shared_optin:,}"
        )
    if compiled.spill_bytes:
        reasons.append(
            f"spill: {compiled.spill_store_bytes} bytes stored, {compiled.spill_load_bytes} loaded a thread"
        )
    local = compiled.counts["local_load"] + compiled.counts["local_store"]
    if compiled.stack_bytes or local:
        reasons.append(f"local memory: {compiled.stack_bytes} bytes of stack, {local} instructions")
    if compiled.registers > target.registers_per_thread:
        reasons.append(f"registers: {compiled.registers} a thread are over {target.registers_per_thread}")
    block = registers_per_block(compiled.registers, compiled.max_threads)
    if block > target.registers_per_sm:
        reasons.append(f"registers: {block:,} a block are over {target.registers_per_sm:,}")
    if compiled.max_threads > 32 * target.warps_per_sm:
        reasons.append(f"threads: {compiled.max_threads} a block are over {32 * target.warps_per_sm}")
    opcodes = set(compiled.counts.opcodes)
    if not target.warpgroup_mma and opcodes & WARPGROUP_OPCODES:
        reasons.append(f"instructions: {sorted(opcodes & WARPGROUP_OPCODES)} do not exist on {target.name}")
    if not target.tensor_memory and opcodes & TCGEN_OPCODES:
        reasons.append(f"instructions: {sorted(opcodes & TCGEN_OPCODES)} do not exist on {target.name}")
    return reasons
