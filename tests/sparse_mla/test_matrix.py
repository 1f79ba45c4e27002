"""The fault matrix over every rung: a pairwise cover in the interpreter, products of values on a GPU."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.sparse_mla import Plan, Tile, sparse_mla_decode
from tests.gpu import sanitize
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


def test_the_plan_for_a_gpu_has_the_tiles_of_other_kernels_at_little_cost():
    """Every width, length and pattern with each tile, final and partial; 7.5 % more calls and compilations a tile.

    Twice as many compilations for the wide tile, whose kernel is another for every share.
    """
    entries = matrix.gpu_points()
    of_tiles = [entry for entry in entries if entry[1]["route"][0] in cases.OTHER_KERNELS]
    others = [entry for entry in entries if entry not in of_tiles]
    for name in cases.runnable_tiles():
        mine = [entry for entry in of_tiles if entry[1]["route"][0] == name]
        for factor, values in {"width": matrix.WIDTHS, "sink": matrix.SINKS, "extra": matrix.EXTRAS,
                               "heads": (20, 64), "view": matrix.VIEWS, "scratch": matrix.SCRATCH}.items():  # fmt: skip
            assert {point[factor] for _, point, _ in mine} == set(values), (name, factor)
        for splits in ({1}, {2, 7, 64}):
            some = [entry for entry in mine if entry[1]["route"][1] in splits]
            seen = {row for _, _, rows in some for row in rows}
            assert seen >= set(matrix.ALL_ROWS) | {(pattern, None) for pattern in cases.PATTERNS}
            assert {point["width"] for _, point, _ in some} == set(matrix.WIDTHS)
    assert not any(matrix.unaligned(point) for _, point, _ in of_tiles)
    share = 0.075 * len(cases.runnable_tiles())
    assert len(of_tiles) <= share * len(others)
    assert len(matrix.groups_of(of_tiles)) <= (share + 0.075) * len(matrix.groups_of(others))


def test_a_plan_in_place_of_a_rung(monkeypatch):
    """What a GPU runs with the tiles of other kernels, with a plan that the interpreter runs in their place."""
    asked = []

    def plan_of(name, num_splits=None):
        asked.append((name, num_splits))
        return Plan("split_k", Tile(16, 16, 4), num_splits or 2)

    monkeypatch.setattr(cases, "tile_plan", plan_of)
    rows = [("dense", "K"), ("none", "K"), ("alternating", "tile+1"), ("last", -3)]
    for name, splits in matrix.tile_routes():
        point = matrix.DEFAULTS | {"route": (name, splits), "width": 37, "heads": 2, "extra": 1, "page": 53}
        assert matrix.run(point, rows) == []
        assert (name, splits) in asked
    calls = [
        name
        for name, _ in sanitize.attention_calls("cuda")
        if any(tile in name for tile in cases.OTHER_KERNELS)
    ]
    # Each tile at eight shapes; with one cache and two, the wide one with a rest and as a loop, and those for few heads
    # with a long share
    assert len(calls) == 8 * len(cases.runnable_tiles()) + 4 + 4
    out, lse = sparse_mla_decode(
        **case_of_two().arguments, **cases.how("staged-producers", batch_invariant=True)
    )
    assert cases.compare(out, lse, case_of_two().expected(), 2) == []


def case_of_two():
    side = cases.make_side(cases.make_cache(53, 20), [("dense", "K"), ("last", "K")], 20, 16)
    return cases.Case(cases.make_query(2, 2), side)


@pytest.mark.gpu
def test_the_whole_matrix(tmp_path, tally):
    """Processes share the work, because compiling a thousand variants takes most of it.

    $MATRIX_SECONDS bounds it; what ran until then is counted and judged, and what did not is a failure.
    """
    seconds = float(os.environ.get("MATRIX_SECONDS", "900"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.sparse_mla.matrix", "cuda", str(tmp_path)]
    begun = time.monotonic()
    with open(tmp_path / "log", "w+") as log:
        workers = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            for _ in range(min(16, len(os.sched_getaffinity(0))))
        ]
        codes = matrix.wait_for(workers, seconds)
        log.seek(0)
        output = log.read()[-4000:]
    calls, rows, failures = matrix.gather(tmp_path)
    for fault_class, count in rows.items():
        tally(fault_class, count, sum(failure["class"] == fault_class for failure in failures))
    planned = len(matrix.gpu_points())
    done = f"{calls.total()} of {planned} calls in {len(codes)} processes, {time.monotonic() - begun:.0f} s"
    print(done)
    assert not failures, "\n".join(f"{f['class']}: {f['point']}: {f['found']}" for f in failures[:20])
    assert set(codes) <= {0, None}, output
    assert calls.total() == planned, done


def test_a_worker_counts_and_records_failures(tmp_path, monkeypatch):
    """The worker of the GPU's test, interpreted: one right call, one with a finding, one that raises."""
    shapes = ((3, 1), (5, 1), (7, 2))
    points = [
        matrix.DEFAULTS | {"route": ("mma", None), "width": width, "heads": heads} for width, heads in shapes
    ]
    entries = [("small", point, (("dense", "K"), ("none", 1))) for point in points]
    run = matrix.run

    def broken(point, rows, **options):
        if point["width"] == 7:
            raise RuntimeError("launch failed")
        return run(point, rows, **options) + (["wrong"] if point["width"] == 5 else [])

    monkeypatch.setattr(matrix, "gpu_points", lambda impls: entries)
    monkeypatch.setattr(matrix, "run", broken)
    groups = matrix.groups_of(entries)
    assert sorted(len(group) for group in groups) == [1, 2]
    assert sorted(number for group in groups for number, _ in group) == [0, 1, 2]
    other = tmp_path / f"{[len(group) for group in groups].index(1)}.claim"
    other.touch()  # another process has it
    matrix.main("cpu", str(tmp_path))
    calls, rows, failures = matrix.gather(tmp_path)
    assert calls == {"small": 2} and rows == {"small": 4}
    assert [failure["found"] for failure in failures] == [["wrong"]]
    other.unlink()
    matrix.main("cpu", str(tmp_path))
    calls, _, failures = matrix.gather(tmp_path)
    assert calls == {"small": 3}, "nothing runs twice"
    assert "launch failed" in failures[1]["found"][0]


def test_processes_end_in_their_time():
    sleep = "import time; time.sleep(60)"
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", code]) for code in ("raise SystemExit(3)", sleep)
    ]
    assert matrix.wait_for(processes, 2) == [3, None]
    assert all(process.returncode is not None for process in processes)
