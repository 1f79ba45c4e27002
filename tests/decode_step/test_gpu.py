"""On a GPU: every stage is captured and replayed, at small size, and follows lengths in place."""

import pytest
import torch

from kernels import decode_step
from kernels.decode_step import compare, tiny

pytestmark = pytest.mark.gpu
SHAPE = dict(batch=4, context=1024, max_context=4096, device="cuda")


@pytest.fixture
def on_gpu():
    """A step and its recording, fresh for each test: a step writes its caches and moves its lengths."""
    step = decode_step.build("baseline", shapes=tiny(4), **SHAPE)
    return step, compare.record(step)


@pytest.mark.parametrize("stage", decode_step.STAGES)
def test_a_stage_is_right_captured_and_replayed(on_gpu, stage):
    base, recording = on_gpu
    step = base.at_stage(stage)
    worst = max(compare.sublayers(step, recording), key=lambda found: found.error)
    assert worst.error <= compare.SUBLAYER_TOLERANCE, worst
    whole = compare.whole_step(step, recording)
    assert whole.error <= compare.STEP_TOLERANCE, whole

    step.capture()
    for length in (1024, 1025, 128, 3):
        step.state.set_lengths(length)
        replayed = step.run().clone()
        eager = step.forward()
        torch.cuda.synchronize()
        error = compare.relative(replayed, eager)
        assert error <= compare.STEP_TOLERANCE, f"{stage} at length {length}: replay differs by {error:.3g}"
    step.release()
    base.state.set_lengths(SHAPE["context"])


@pytest.mark.parametrize("stage", ["baseline", "split_k", "fused_glue"])
def test_a_profile_names_every_group(on_gpu, stage):
    from kernels.lab import profile

    base, _ = on_gpu
    rows = profile.measured(base.at_stage(stage))
    groups = profile.by_group(rows)
    assert groups["share"].sum() == pytest.approx(1)
    wanted = {"attention", "indexer", "topk", "gemm_fp32", "gemm", "experts", "glue"}
    wanted |= {"combine"} if stage != "baseline" else set()
    assert wanted <= set(groups.index), profile.text_table(rows)
    assert groups.loc["attention", "launches"] == 4, profile.text_table(rows)
    if stage == "baseline":
        assert any(row["kernel"].startswith("indexer: ") for row in rows), profile.text_table(rows, 40)


def test_fused_glue_launches_less(on_gpu):
    from kernels.lab import profile

    base, _ = on_gpu
    glue = {
        stage: profile.by_group(profile.measured(base.at_stage(stage))).loc["glue", "launches"]
        for stage in ("bf16_gemm", "fused_glue")
    }
    assert glue["fused_glue"] < glue["bf16_gemm"] / 2, glue


def test_the_experiment_measures_small_steps():
    from kernels.lab.experiments import decode_step as experiment
    from kernels.lab.records import schema

    points = [experiment.Shape(2, 1024, 4096)]
    found = experiment.measure_shapes(points, model=tiny(3))
    for table, rows in (("measurements", found.times), ("profile", found.profile)):
        frame = schema.frame([row | {"run_id": "r", "experiment": "e"} for row in rows], table)
        schema.validate(frame, table)
        assert (frame["status"] == "ok").all(), frame[frame["status"] != "ok"]["reason"].tolist()
    assert [row["stage"] for row in found.times] == list(decode_step.STAGES)
