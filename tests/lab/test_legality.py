"""What makes a kernel illegal, and that no kernel which the planners can launch on sm_120 is."""

import re

import pytest

from kernels.lab import compile as lab
from kernels.lab.compile import CLASSES, Compiled, Counts
from kernels.lab.compile.classes import class_of
from kernels.lab.compile.plans import OPERATORS, every_configuration
from kernels.lab.occupancy import registers_per_block
from kernels.sparse_mla.launch import CONSUMER_REGISTERS, TEAM_REGISTERS
from kernels.sparse_mla.tiles import Tile


def _compiled(**changes):
    counts = Counts(dict.fromkeys(CLASSES, 0) | changes.pop("classes", {}), {}, changes.pop("opcodes", {}))
    plain = {"shared_bytes": 101_376, "registers": 255, "max_threads": 256, "stack_bytes": 0}
    plain |= {"spill_store_bytes": 0, "spill_load_bytes": 0, "counts": counts}
    return Compiled("sparse_mla", "mma", {}, "sm_120", {}, **plain | changes)


def test_the_largest_block_that_fits_is_legal():
    assert lab.legal(_compiled()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shared_bytes": 101_377}, "shared memory: 101,377 bytes are 1 over 101,376"),
        ({"spill_store_bytes": 4}, "spill: 4 bytes stored"),
        ({"stack_bytes": 8}, "local memory: 8 bytes of stack"),
        ({"classes": {"local_load": 2}}, "local memory: 0 bytes of stack, 2 instructions"),
        ({"max_threads": 512}, "registers: 131,072 a block are over 65,536"),
        ({"registers": 16, "max_threads": 2048}, "threads: 2048 a block are over 1536"),
        ({"opcodes": {"HGMMA": 3}}, r"instructions: \['HGMMA'\] do not exist on sm_120"),
        ({"opcodes": {"UTCHMMA": 3}}, r"instructions: \['UTCHMMA'\] do not exist on sm_120"),
        ({"error": "OutOfResources"}, "does not compile: OutOfResources"),
    ],
)
def test_each_limit_is_a_reason(changes, reason):
    (found,) = lab.legal(_compiled(**changes))
    assert re.match(reason, found)


def test_a_target_can_be_named_instead_of_a_product():
    compiled = _compiled(shared_bytes=150_000, opcodes={"HGMMA": 1})
    assert lab.legal(compiled, "sm_90") == lab.legal(compiled, "h200") == []
    assert len(lab.legal(compiled, "sm_120")) == 2


def _legality(op: str, thorough: bool) -> dict[str, list[str]]:
    results = lab.compile_many(every_configuration("sm_120", [op], thorough))
    names = [f"{r.impl} {r.tile} {r.options}" for r in results]
    return {name: lab.legal(r) for name, r in zip(names, results, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_120", "sm_90"])
def test_every_instruction_of_a_shipped_kernel_has_a_class(target):
    results = lab.compile_many(every_configuration(target))
    assert len(results) > 20
    unknown = {o for r in results for o in r.counts.opcodes if class_of(o) == "other"}
    assert unknown == set()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_120", "sm_90"])
def test_a_block_with_producers_has_its_registers_at_the_launch(target):
    """Registers move between warps later, within those that the block was given: none may spill at any count."""
    found = [r for r in lab.compile_many(every_configuration(target, ["sparse_mla"])) if r.producer_warps]
    assert found
    for one in found:
        assert one.num_warps == one.producer_warps, "Triton is asked for the producers"
        assert one.max_threads == 32 * (one.tile["num_warps"] + one.producer_warps)
        few = Tile(**one.tile).few
        if few and target == "sm_120":
            continue  # which moves no registers, and gives every thread of such a block enough
        [most] = {int(count) for count in re.findall(r"\.maxnreg (\d+)", one.ptx)}
        assert one.registers == min(most, 255)
        moved = {int(c) for c in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", one.ptx)}
        consumers = TEAM_REGISTERS if few else CONSUMER_REGISTERS
        assert consumers in moved
        producers = min(moved - {consumers})  # while the consumers have theirs
        held = 32 * (consumers * one.main_warps + producers * one.producer_warps)
        assert held <= registers_per_block(one.registers, one.max_threads)
        assert lab.legal(one, target) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_every_configuration_is_legal_on_sm_120(op):
    verdicts = _legality(op, thorough=False)
    assert verdicts
    assert {name: reasons for name, reasons in verdicts.items() if reasons} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPERATORS)
def test_the_compiler_of_a_gpu_machine_agrees(op):
    """The second compiler: a GPU machine may carry another Triton than the pinned one, and all specialisations."""
    verdicts = _legality(op, thorough=True)
    assert verdicts
    assert {name: reasons for name, reasons in verdicts.items() if reasons} == {}
