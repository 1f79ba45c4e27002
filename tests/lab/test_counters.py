"""ncu's CSV is parsed whatever surrounds it, and its absence or refusal becomes a reason."""

import pytest

from kernels.lab import counters
from kernels.lab.experiments import Point
from kernels.lab.records import schema

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Metric Name","Metric Unit","Metric Value"\n'
)


def line(number, kernel, metric, value, unit=""):
    return f'"{number}","9","python","box","{kernel}","1","7","{metric}","{unit}","{value}"\n'


SAMPLE = (
    "==PROF== Connected to process 9\nsome print of the program, with, commas\n==PROF== Disconnected\n"
    + HEAD
    + line(0, "spin_kernel(long)", "lts__t_bytes.sum", "0", "byte")
    + line(1, "simt_kernel", "lts__t_bytes.sum", "1,234,567", "byte")
    + line(1, "simt_kernel", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "0.00", "%")
    + line(2, "void at::native::spin_kernel(long)", "lts__t_bytes.sum", "0", "byte")
    + line(3, "split_kernel", "lts__t_bytes.sum", "100", "byte")
    + line(3, "split_kernel", "dram__bytes.sum", "n/a", "byte")
    + line(4, "void ns::combine<float, 4>(float*, int)", "lts__t_bytes.sum", "50", "byte")
    + "==WARNING== something\n"
)
POINTS = [Point("sparse_mla_decode", "simt", 16), Point("sparse_mla_decode", "split_k", 16)]


def test_parse_reads_numbers_and_ignores_the_rest():
    launches = counters.parse(SAMPLE)
    assert [launch["kernel"] for launch in launches] == [
        "spin_kernel",
        "simt_kernel",
        "spin_kernel",
        "split_kernel",
        "combine",
    ]
    assert launches[1]["metrics"]["lts__t_bytes.sum"] == 1234567.0
    assert "dram__bytes.sum" not in launches[3]["metrics"]


def test_markers_separate_the_points():
    groups = counters.by_marker(counters.parse(SAMPLE))
    assert [[launch["kernel"] for launch in group] for group in groups] == [
        ["simt_kernel"],
        ["split_kernel", "combine"],
    ]


def test_no_table_gives_no_launches():
    assert counters.parse("nothing\nhere") == []


def _with_ncu(monkeypatch, output):
    monkeypatch.setattr(counters.shutil, "which", lambda _: "ncu")
    monkeypatch.setattr(
        counters, "available", lambda _: {names[0]: name for name, names in counters.METRICS.items()}
    )
    monkeypatch.setattr(counters, "_profile", lambda *_: output)
    return counters.read(POINTS)


def test_rows_are_valid_and_added_up(monkeypatch):
    rows = _with_ncu(monkeypatch, SAMPLE)
    frame = schema.frame(
        [{**row, "run_id": "r", "experiment": "counters_ladder"} for row in rows], "counters"
    )
    schema.validate(frame, "counters", run_id="r")
    totals = counters.totals(frame).set_index("impl")
    assert totals.loc["simt", "l2_bytes"] == 1234567.0 and totals.loc["split_k", "l2_bytes"] == 150.0
    assert totals.loc["simt", "tensor_pipe_pct"] == 0.0


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
        ("==ERROR== Failed to open /some/file for reading", "Failed to open"),
        ("", "no table"),
        (HEAD + line(0, "spin_kernel", "lts__t_bytes.sum", "0"), "1 of 2 points"),
    ],
)
def test_refusals_become_reasons_without_paths(monkeypatch, output, words):
    rows = _with_ncu(monkeypatch, output)
    assert len(rows) == 2 and all(row["status"] != "ok" and words in row["reason"] for row in rows)
    assert not any("/" in row["reason"] for row in rows)


def test_without_ncu_rows_say_so(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda _: None)
    assert {row["reason"] for row in counters.read(POINTS)} == {"ncu is not installed"}


def test_totals_of_nothing_has_the_columns():
    assert "l2_bytes" in counters.totals(schema.frame([], "counters")).columns
