"""The experiment's points: which, in which order, and what becomes of those that there was no time for."""

import itertools

from kernels import decode_step
from kernels.lab.experiments import decode_step as experiment
from kernels.lab.records import schema


def test_every_point_is_asked_for_once_and_the_most_important_first():
    points = experiment.shapes("full")
    asked = [(shape.batch, shape.max_context) for shape in points]
    assert len(asked) == len(set(asked)) == 13
    by_limit = {limit: {batch for batch, found in asked if found == limit} for _, limit in asked}
    assert by_limit == {8192: {1, 16, 64}, 131072: {1, 4, 16, 32, 64}, 1048576: {1, 4, 16, 32, 64}}
    assert asked[:2] == [(64, 1048576), (64, 8192)], "the campaign's total, and what the cap left of it"
    for shape in points:
        assert shape.profiled == (
            shape.max_context == 1048576 or asked.index((16, 131072)) == points.index(shape)
        )


def test_a_point_that_there_was_no_time_for_is_a_row_with_the_reason():
    points = [experiment.Shape(1, 256, 512, ("baseline",)), experiment.Shape(2, 256, 512, profiled=False)]
    found = experiment.measure_shapes(points, device="cpu", model=decode_step.tiny(1), seconds=-1)
    assert [row["batch"] for row in found.times] == [1] + [2] * len(decode_step.STAGES)
    assert [row["stage"] for row in found.profile] == ["baseline"]
    for table, rows in (("measurements", found.times), ("profile", found.profile)):
        frame = schema.frame([row | {"run_id": "r", "experiment": "e"} for row in rows], table)
        schema.validate(frame, table)
        assert set(frame["status"]) == {"skipped"}
        assert frame["reason"].str.contains("seconds were over").all()


POINTS = [experiment.Shape(batch, 256, 512, ("baseline",)) for batch in (8, 4, 2, 1)]


def a_pass(monkeypatch, **how):
    """A pass over POINTS whose clock and measurements are made up; (statuses by batch, batches begun)."""
    begun, clock = [], itertools.count()
    interrupted_at = how.pop("interrupted_at", None)

    def measure(shape, stages, device, model, weights, found):
        begun.append(shape.batch)
        if shape.batch == interrupted_at:
            raise KeyboardInterrupt
        keys = experiment._keys(shape, "baseline")
        found.times.append(experiment._columns(shape, "baseline", model) | {"status": "ok", "median_us": 1.5})
        found.profile.append(keys | {"status": "ok", "group": "GEMM"})

    monkeypatch.setattr(experiment, "_measure_shape", measure)
    monkeypatch.setattr(experiment.time, "perf_counter", lambda: float(next(clock)))
    found = experiment.measure_shapes(POINTS, device="cpu", model=decode_step.tiny(1), **how)
    assert [row["batch"] for row in found.profile] == [row["batch"] for row in found.times]
    return {row["batch"]: row["status"] for row in found.times}, begun


def test_what_a_cut_off_pass_finished_is_not_measured_again(monkeypatch, tmp_path):
    kept = tmp_path / "points.jsonl"
    status, begun = a_pass(monkeypatch, kept=kept, interrupted_at=2)
    assert begun == [8, 4, 2] and status == {8: "ok", 4: "ok", 2: "skipped", 1: "skipped"}
    with kept.open("a") as file:
        file.write('[{"batch": 2, "cont')
    status, begun = a_pass(monkeypatch, kept=kept)
    assert begun == [2, 1] and set(status.values()) == {"ok"}


def test_a_point_that_would_not_end_in_time_is_not_begun(monkeypatch):
    """The made-up clock counts its readings: the third point would begin in time, at 5, and end after it, at 6."""
    status, begun = a_pass(monkeypatch, seconds=5.5)
    assert begun == [8, 4] and status == {8: "ok", 4: "ok", 2: "skipped", 1: "skipped"}
