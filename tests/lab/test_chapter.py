"""A chapter starts from any folder, shows a kernel as it is, and leaves a note for the status page."""

import json
import warnings
from types import SimpleNamespace

import pytest

from kernels.lab import chapter, experiments
from kernels.lab.evidence import Evidence, missing
from kernels.lab.pages import WRITERS, status
from kernels.sparse_mla.tiles import Tile, choices


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "build"


def test_start_prints_a_badge_from_any_folder(build, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab = chapter.start("00-test", device="cpu")
    shown = capsys.readouterr().out
    assert lab.badge in shown and not lab.on_gpu and (lab.root / "kernels").is_dir()
    for word in ("Triton interpreter", "profile", "quick", "torch", "triton", "commit"):
        assert word in lab.badge


def test_unknown_profile_and_device_are_named(build):
    with pytest.raises(ValueError, match="profile='fast'.*quick, full"):
        chapter.start("00-test", device="cpu", profile="fast")
    with pytest.raises(ValueError, match="device"):
        chapter.start("00-test", device="gpu")


def test_close_leaves_a_note_and_start_removes_it(build, capsys):
    lab = chapter.start("00-test", device="cpu")
    lab.glue("x", 1.0, "{}", Evidence("compiled", "sm_120"))
    lab.glue("x", 1.0, "{}", Evidence("compiled", "sm_120"))
    lab.close()
    assert "00-test:" in capsys.readouterr().out
    note = json.loads((build / "chapters" / "00-test.json").read_text())
    assert note["device"] == "cpu" and [item["kind"] for item in note["evidence"]] == ["compiled"]
    chapter.start("00-test", device="cpu")
    assert not (build / "chapters" / "00-test.json").exists()


def test_a_glued_number_as_last_line_shows_nothing(build, capsys):
    lab = chapter.start("00-test", device="cpu")
    assert lab.glue("x", 1.0) is None


def test_a_warning_names_no_file(build, capsys):
    with warnings.catch_warnings(record=True) as shown:
        chapter.start("00-test", device="cpu")
        for module in ("triton.runtime.interpreter", "own"):
            warnings.warn_explicit("overflow", RuntimeWarning, f"/place/{module}.py", 1, module)
    assert [warning.filename for warning in shown] == ["/place/own.py"]
    assert warnings.formatwarning("odd", UserWarning, "/place/own.py", 1) == "UserWarning: odd\n"


def sample(x):
    """Doubles."""
    y = x + x

    return y


def test_source_block_numbers_lines_and_marks_them():
    text = chapter.source_block(sample, highlight=["y = x"])
    first = sample.__code__.co_firstlineno
    assert f":lineno-start: {first}" in text and ":emphasize-lines: 3" in text
    assert ":caption: tests/lab/test_chapter.py" in text and "    y = x + x" in text


def test_source_block_unwraps_jit_functions_and_cuts_excerpts():
    text = chapter.source_block(SimpleNamespace(fn=SimpleNamespace(fn=sample)), start="y = x", end="return")
    assert "Doubles" not in text and "return y" in text
    assert f":lineno-start: {sample.__code__.co_firstlineno + 2}" in text


@pytest.mark.parametrize(
    ("options", "name"),
    [({"highlight": "z ="}, "highlight"), ({"start": "z"}, "start"), ({"end": "z ="}, "end")],
)
def test_source_block_refuses_text_that_is_gone(options, name):
    with pytest.raises(ValueError, match=name):
        chapter.source_block(sample, **options)


def test_source_block_shows_a_kernel_of_the_package():
    from kernels.sparse_mla import combine

    kernel = next(value for value in vars(combine).values() if hasattr(value, "fn"))
    text = chapter.source_block(kernel)
    assert ":caption: kernels/sparse_mla/" in text and "tl." in text


def test_results_without_gpu_and_record_are_empty_and_say_so(monkeypatch):
    monkeypatch.setattr(experiments.records, "newest", lambda *_, **__: None)
    lab = SimpleNamespace(on_gpu=False)
    for name in experiments.names():
        frame, evidence = experiments.results(name, lab)
        assert frame.empty and not evidence.available and name in evidence.note
    with pytest.raises(KeyError, match="laddr.*ladder"):
        experiments.results("laddr", lab)


def test_every_experiment_has_points_that_are_described():
    for name, experiment in experiments.CATALOGUE.items():
        quick, full = experiment.points("quick"), experiment.points("full")
        assert 0 < len(quick) <= len(full), name
        assert len(set(full)) == len(full), name
        for point in full:
            assert point.row()["batch"] >= 1
    assert len(experiments.CATALOGUE["tile_sweep"].points("full")) >= 60


def test_the_model_is_validated_on_every_tile_with_producers():
    """Blocks of 64 heads at full batches, of 16 at small ones: where the planner chooses them."""
    sweep = experiments.CATALOGUE["tile_sweep"]
    swept = {(p.tile_class, Tile(*p.tile), p.batch) for p in sweep.points("full") if p.impl == "staged"}
    kinds = {"sm90": "native", "sm120": "sm120"}
    chosen = {(kinds[c.device_class], c.tile) for c in choices() if c.tile.producer_warps and not c.tile.few}
    batches = {64: (16, 64, 128), 16: (1, 4, 8)}
    assert chosen and swept == {(kind, t, batch) for kind, t in chosen for batch in batches[t.block_h]}
    assert {p.tile for p in sweep.points("quick") if p.impl == "staged"} == {
        p.tile for p in sweep.points("full") if p.impl == "staged"
    }


@pytest.mark.parametrize("op", ["sparse", "logits", "topk"])
def test_points_are_right_on_the_interpreter_at_small_shapes(op):
    from kernels.lab.experiments import Point, indexing, sparse

    if op == "sparse":
        shape = {"heads": 4, "topk": 32, "tile_class": "sm120"}
        points = [
            Point("sparse_mla_decode", "mma", 2, **shape),
            Point("sparse_mla_decode", "auto", 1, context=9, **shape),
        ]
        points.append(Point("sparse_mla_decode", "split_k", 1, swa_tokens=32, scratch="float32", **shape))
        cases = [sparse.build(point, "cpu", sets=2, pool_tokens=256) for point in points]
    else:
        build_case = indexing.build_logits if op == "logits" else indexing.build_topk
        impls = ("uncapped", "capped", "paged") if op == "logits" else ("torch", "radix")
        name = "indexer_logits" if op == "logits" else "indexer_topk"
        points = [Point(name, impl, 2, topk=32, context=300, max_context=1024) for impl in impls]
        cases = [build_case(point, "cpu", sets=2) for point in points]
    for case in cases:
        error, problem = case.check()
        assert problem is None and error <= case.tolerance, case.row


def test_a_wrong_kernel_is_noticed():
    from kernels.lab.experiments import Point, sparse

    case = sparse.build(
        Point("sparse_mla_decode", "mma", 1, heads=4, topk=32), "cpu", sets=1, pool_tokens=256
    )
    good = case.calls[0]
    case.calls[0] = lambda: tuple(part * 1.01 for part in good())
    error, problem = case.check()
    assert error > case.tolerance and "LSE" in problem


def test_status_page_shows_chapters_and_missing_records(build, tmp_path, capsys):
    lab = chapter.start("01-a", device="cpu")
    for experiment in ("ladder", "swa"):
        lab._note(missing(f"no run in data/runs holds the experiment {experiment}"), experiment)
    lab._note(Evidence("recorded", "NVIDIA H200", stale="the kernels have changed"), "swa")
    lab.close()
    manifest = {
        "chapters": {
            "01-a": {
                "status": "ok",
                "source": "book/01-a.ipynb",
                "seconds": 2.0,
                "executed_cells": 5,
                "versions": {"torch": "2.13.0"},
                "profile": "quick",
            },
            "02-b": {"status": "failed", "seconds": None},
        }
    }
    status.write(tmp_path / "staged", manifest)
    text = (tmp_path / "staged" / "book" / "status.md").read_text()
    assert "{warning}" in text and "the kernels have changed" in text and "experiment ladder, swa" in text
    assert "{doc}`01-a`" in text and "02-b" in text and "2.13.0" in text and status.write in WRITERS
