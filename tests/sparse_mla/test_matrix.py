"""The fault matrix over every rung: a pairwise cover in the interpreter, products of values on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sparse_mla import cases, matrix
from tests.sparse_mla.pairwise import covering

ROOT = Path(__file__).parents[2]
POINTS, UNMET = matrix.cpu_points()


def _name(point: dict) -> str:
    return "-".join(str(value) for value in point.values()).replace("'", "").replace(" ", "")


@pytest.mark.parametrize("number", range(len(POINTS)), ids=[_name(point) for point in POINTS])
def test_pairwise_on_the_interpreter(number, tally):
    point = POINTS[number]
    tally("matrix, interpreted")
    assert matrix.run(point, [(point["pattern"], point["length"])], seed=number) == []


@pytest.mark.parametrize("impl", cases.interpretable_impls())
def test_rows_of_every_kind_side_by_side(impl, tally):
    """Full, empty and negative rows in one call, so that one row's poison can reach another."""
    rows = [("dense", "K"), ("none", "K"), ("last", "K"), ("dense", 0), ("alternating", "K+5"), ("dense", -3)]
    point = matrix.DEFAULTS | {"route": (impl, None), "width": 37, "heads": 2, "extra": 0}
    tally("matrix, interpreted", len(rows))
    assert matrix.run(point, rows) == []


def test_the_cover_is_a_cover():
    """Every pair of values meets in a combination, or is named as too dear for the interpreter."""
    for name, values in matrix.FACTORS.items():
        if name != "route":
            assert {point[name] for point in POINTS} == set(values), name
    assert {point["route"][0] for point in POINTS} >= set(cases.interpretable_impls())
    sizes = [len(values) for name, values in matrix.FACTORS.items() if name != "route"]
    sizes.append(len({point["route"] for point in POINTS}))
    pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    assert len(UNMET) < 0.1 * pairs
    small, unmet = covering({"a": (1, 2), "b": (3, 4), "c": (5, 6)})
    assert unmet == [] and len(small) < 8
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        assert len({(case[first], case[second]) for case in small}) == 4


def test_the_plan_for_a_gpu_covers_every_value():
    entries = matrix.gpu_points()
    for name, values in matrix.FACTORS.items():
        if name not in ("route", "pattern", "length"):
            assert {point[name] for _, point, _ in entries} == set(values), name
    seen = {row for _, _, rows in entries for row in rows}
    assert seen >= set(matrix.ALL_ROWS) | {(pattern, None) for pattern in cases.PATTERNS}
    assert {point["route"] for _, point, _ in entries} >= {("split_k", splits) for splits in matrix.SPLITS}


@pytest.mark.gpu
def test_the_whole_matrix(tmp_path, tally):
    """Processes share the work, because compiling several hundred variants takes most of it."""
    parts = min(12, len(os.sched_getaffinity(0)))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    workers = []
    for part in range(parts):
        path = tmp_path / f"{part}.json"
        command = [sys.executable, "-m", "tests.sparse_mla.matrix", "cuda", str(part), str(parts), str(path)]
        log = (tmp_path / f"{part}.log").open("w+")
        workers.append(
            (subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log), path, log)
        )
    failures, seconds, calls = [], [], 0
    try:
        for worker, path, log in workers:
            code = worker.wait(timeout=900)
            log.seek(0)
            assert code == 0, log.read()[-4000:]
            result = json.loads(path.read_text())
            seconds.append(result["seconds"])
            calls += sum(result["calls"].values())
            failures += result["failures"]
            for fault_class, rows in result["rows"].items():
                failed = sum(failure["class"] == fault_class for failure in result["failures"])
                tally(fault_class, rows, failed)
    finally:
        for worker, _, log in workers:
            worker.kill()
            log.close()
    print(f"{calls} calls in {parts} processes, {max(seconds):.0f} s")
    assert calls == len(matrix.gpu_points())
    assert not failures, "\n".join(f"{f['class']}: {f['point']}: {f['found']}" for f in failures[:20])


def test_a_worker_counts_and_records_failures(tmp_path, monkeypatch):
    """The worker of the GPU's test, interpreted: one right call, one with a finding, one that raises."""
    points = [matrix.DEFAULTS | {"route": ("mma", None), "width": width, "heads": 1} for width in (3, 5, 7)]
    entries = [("small", point, (("dense", "K"), ("none", 1))) for point in points]
    run = matrix.run

    def broken(point, rows, **options):
        if point["width"] == 7:
            raise RuntimeError("launch failed")
        return run(point, rows, **options) + (["wrong"] if point["width"] == 5 else [])

    monkeypatch.setattr(matrix, "gpu_points", lambda impls: entries)
    monkeypatch.setattr(matrix, "run", broken)
    for part in ("0", "1"):
        matrix.main("cpu", part, "2", str(tmp_path / part))
    first, second = (json.loads((tmp_path / part).read_text()) for part in ("0", "1"))
    assert first["calls"] == {"small": 2} and first["rows"] == {"small": 4}
    assert [failure["found"] for failure in first["failures"]] == [["wrong"]]
    assert second["calls"] == {"small": 1}
    assert "launch failed" in second["failures"][0]["found"][0]
