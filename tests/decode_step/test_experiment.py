"""The experiment's points: which, in which order, and what becomes of those that there was no time for."""

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
