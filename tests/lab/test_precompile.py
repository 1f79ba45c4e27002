"""What is compiled ahead: every kernel that the experiments launch, each once."""

from dataclasses import astuple

import pytest

from kernels.lab import precompile
from kernels.lab.experiments import catalogue
from kernels.lab.experiments import decode_step as step
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.plan import Device
from kernels.sparse_mla.tiles import Tile

H200 = Device(132, (9, 0), 232_448)


def planned(point):
    main, extra = (point.swa_tokens, point.topk) if point.swa_tokens else (point.topk, 0)
    if point.tile is not None:
        return planning.Plan(point.impl, Tile(*point.tile), point.num_splits or 1)
    return planning.plan(
        point.batch, point.heads, main, extra, device=H200, impl=point.impl, tile_class=point.tile_class,
        num_splits=point.num_splits,
    )  # fmt: skip


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_planned_kernel_of_the_ladder_is_there_once(profile):
    names = ("ladder", "k2048", "swa", "ladder")
    found = precompile.tasks(names, profile, planned)
    assert len({repr(task) for task in found}) == len(found)
    compiled = {
        (t.point.impl, t.point.tile, t.point.num_splits, t.point.topk, t.point.swa_tokens) for t in found
    }
    for name in names:
        for point in catalogue.CATALOGUE[name].points(profile):
            if point.impl == "flash_mla":
                continue
            plan = planned(point)
            splits = plan.num_splits if plan.impl in planning.SPLITTING else None
            assert (plan.impl, astuple(plan.tile), splits, point.topk, point.swa_tokens) in compiled
    assert all(task.point.impl != "auto" and task.point.batch == precompile.BATCH for task in found)


def test_the_step_is_compiled_for_every_batch_and_first():
    found = precompile.tasks(("redesign", "decode_step", "decode_step_profile"), "full", planned)
    batches = {shape.batch for shape in step.shapes("full")}
    assert {task.batch for task in found[: len(batches)]} == batches
    assert {task.kind for task in found[len(batches) :]} == {"redesign"}


def test_what_fails_to_compile_is_said(monkeypatch):
    """Without a GPU nothing can be launched: the task comes back as a sentence, and the others go on."""
    task = precompile.tasks(("ladder",), "quick", planned)[0]
    assert str(task) in precompile.compile_one(task)
