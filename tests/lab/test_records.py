"""Records: validated on write and on read, resumable, kept only by `keep`; test_stale judges them."""

import json

import pandas as pd
import pytest

from kernels.lab import records
from kernels.lab.records import RecordError, device_code, place, run, schema, source, store
from tests.lab.described import DEVICE


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A build folder and a data folder of their own, and a described device without a GPU."""
    monkeypatch.setenv("BOOK_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setattr(place, "recorded_runs", lambda: tmp_path / "data" / "runs")
    monkeypatch.setattr(run, "describe_device", lambda: dict(DEVICE))
    monkeypatch.setattr(store, "_current", {})
    return tmp_path


def good(**changes):
    row = {
        "op": "sparse_mla_decode",
        "impl": "simt",
        "tile_class": "sm120",
        "batch": 1,
        "heads": 64,
        "topk": 512,
        "timer": "chain",
        "samples": 21,
        "median_us": 10.0,
        "p20_us": 9.0,
        "p80_us": 11.0,
        "rel_error": 1e-3,
        "tolerance": 3e-3,
        "status": "ok",
        "reason": "",
        "run_id": "r",
        "experiment": "ladder",
    }
    return {**row, **changes}


def test_columns_are_the_design_s():
    design = (
        "run_id experiment op impl stage tile_class batch heads topk swa_tokens page_size context "
        "max_context num_splits block_h block_t num_warps num_stages timer samples median_us p20_us p80_us "
        "rel_error tolerance status reason"
    )
    assert (*design.split(), "tokens_per_s") == schema.MEASUREMENTS


def test_a_good_row_survives_the_csv(tmp_path):
    frame = schema.frame(
        [good(), good(status="skipped", reason="no peer", median_us=None, p20_us=None, p80_us=None)]
    )
    folder = tmp_path / "r"
    folder.mkdir()
    frame.to_csv(folder / "measurements.csv", index=False)
    back = run.read_table(folder, "measurements")
    pd.testing.assert_frame_equal(back, schema.typed(frame))


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"median_us": 20.0}, "median_us"),
        ({"rel_error": 0.5}, "rel_error"),
        ({"rel_error": None}, "rel_error"),
        ({"samples": None}, "samples"),
        ({"status": "fine"}, "status"),
        ({"timer": "wall"}, "timer"),
        ({"op": "attention"}, "op"),
        ({"tile_class": "sm90"}, "tile_class"),
        ({"batch": 1.5}, "batch"),
        ({"batch": "many"}, "batch"),
        ({"p20_us": -1.0}, "p20_us"),
        ({"run_id": "other"}, "run_id"),
        ({"status": "skipped", "reason": "no GPU"}, "median_us"),
        ({"status": "wrong", "reason": "", "median_us": None, "p20_us": None, "p80_us": None}, "reason"),
        ({"reason": "see /home/someone/log.txt"}, "reason"),
        ({"op": "decode_step"}, "tokens_per_s"),
    ],
)
def test_a_bad_row_names_column_and_row(changes, column):
    frame = pd.DataFrame([good(), good(**changes)], columns=list(schema.MEASUREMENTS))
    with pytest.raises(RecordError, match=rf"column {column}, row 1"):
        schema.validate(frame, "measurements", run_id="r")


def test_unknown_and_missing_columns_are_named():
    frame = schema.frame([good()])
    with pytest.raises(RecordError, match="column extra, row header"):
        schema.validate(frame.assign(extra=1), "measurements")
    with pytest.raises(RecordError, match="column timer, row header"):
        schema.validate(frame.drop(columns="timer"), "measurements")
    with pytest.raises(RecordError, match="column speed"):
        schema.frame([{"speed": 3}])


def test_run_json_is_complete_and_names_no_path(bench):
    info = records.open_run("quick", "r").info
    schema.validate_run(info)
    with pytest.raises(RecordError, match="key hostname is unknown"):
        schema.validate_run({**info, "hostname": "box"})
    with pytest.raises(RecordError, match="key triton is missing"):
        schema.validate_run({key: value for key, value in info.items() if key != "triton"})
    with pytest.raises(RecordError, match="holds a path"):
        schema.validate_run({**info, "peers": {"x": "/opt/wheels/x"}})
    assert len(info["device"]["uuid_sha256"]) == 12


def test_rows_are_written_by_experiment_and_replaced(bench):
    opened = records.open_run("quick", "r")
    opened.put("ladder", schema.frame([good()]), chapter="01")
    opened.put("swa", schema.frame([good(batch=2)]))
    opened.put("ladder", schema.frame([good(batch=4), good(batch=8)]))
    rows = records.open_run("quick", "r").table()
    assert sorted(zip(rows["experiment"], rows["batch"], strict=True)) == [
        ("ladder", 4),
        ("ladder", 8),
        ("swa", 2),
    ]
    assert not list((bench / "build" / "runs" / "r").glob("*.part"))


def test_a_broken_experiment_leaves_the_file_as_it_was(bench):
    opened = records.open_run("quick", "r")
    opened.put("ladder", schema.frame([good()]))
    before = (opened.folder / "measurements.csv").read_bytes()
    with pytest.raises(RecordError):
        opened.put("swa", schema.frame([good(rel_error=1.0)]))
    assert (opened.folder / "measurements.csv").read_bytes() == before and not opened.has("swa")


def test_a_new_run_takes_over_what_a_cut_off_one_finished(bench):
    first = records.open_run("full", "r1")
    first.put("ladder", schema.frame([good()]))
    first.finish_chapter("01", 12.0, "ok")
    second = records.open_run("full", "r2")
    assert list(second.table()["experiment"]) == ["ladder"] and set(second.table()["run_id"]) == {"r2"}
    assert second.info["chapters"]["01"]["run_id"] == "r1"
    assert not second.has("ladder"), "rows of another run are shown, but measured again when asked for"


def test_nothing_is_taken_over_from_other_kernels(bench, monkeypatch):
    records.open_run("full", "r1").put("ladder", schema.frame([good()]))
    monkeypatch.setattr(source, "kernels_sha256", lambda: "f" * 64)
    assert records.open_run("full", "r2").table().empty


def finished(chapters=("01", "02"), status="ok"):
    opened = records.open_run("full", "r1")
    opened.put("ladder", schema.frame([good()]))
    manifest = {"chapters": {name: {"seconds": 3.21, "status": status, "run_id": "r1"} for name in chapters}}
    records.finish_run(opened.folder, manifest)
    return opened


def test_keep_copies_a_finished_run_once(bench):
    finished()
    target = records.keep()
    assert target == bench / "data" / "runs" / "nvidia-h200" / "r1"
    assert sorted(path.name for path in target.iterdir()) == ["measurements.csv", "run.json"]
    assert json.loads((target / "run.json").read_text())["chapters"]["02"] == {
        "seconds": 3.2,
        "status": "ok",
        "run_id": "r1",
    }
    with pytest.raises(RecordError, match="already recorded"):
        records.keep()


def test_keep_refuses_an_incomplete_run_unless_asked(bench):
    finished(status="failed")
    with pytest.raises(RecordError, match="not complete.*--partial"):
        records.keep()
    assert records.keep(partial=True).is_dir()


def test_keep_without_runs_says_what_to_do(bench):
    with pytest.raises(RecordError, match="execute the book on a CUDA machine first"):
        records.keep()


def test_finish_run_without_a_record_does_nothing(tmp_path):
    records.finish_run(tmp_path, {"chapters": {}})
    assert not list(tmp_path.iterdir())


def test_staleness_follows_the_sources(bench, monkeypatch):
    finished()
    records.keep()
    record = records.newest("ladder")
    assert records.stale(record) is None and record.evidence().stale is None
    files = source.kernels_files()
    monkeypatch.setattr(store, "_current", {"hash": "0" * 64, "files": files})
    assert records.stale(record) is None, "no file that was timed has changed"
    files = files | {"sparse_mla/simt.py": "0"}
    monkeypatch.setattr(store, "_current", {"hash": "0" * 64, "files": files})
    assert records.stale(record) is None, "the file has changed, but nothing that its kernel consists of"
    monkeypatch.setattr(device_code, "digests", lambda: {"per_head_kernel": "0"})
    monkeypatch.setattr(store, "_current", {"hash": "0" * 64, "files": files})
    assert "kernels have changed" in records.stale(record)
    assert "stale" in record.evidence().line()


def test_newest_prefers_fresh_full_then_new(bench, monkeypatch):
    finished()
    records.keep()
    base = bench / "data" / "runs" / "nvidia-h200"
    info = json.loads((base / "r1" / "run.json").read_text())
    rows = pd.read_csv(base / "r1" / "measurements.csv", dtype=str, keep_default_na=False)
    for name, changes in {
        "quick-newer": {"profile": "quick", "utc": "2099-01-01T00:00:00Z"},
        "stale-newest": {"kernels_sha256": "0" * 64, "files": {}, "utc": "2099-02-01T00:00:00Z"},
    }.items():
        (base / name).mkdir()
        (base / name / "run.json").write_text(json.dumps({**info, "run_id": name, **changes}))
        rows.assign(run_id=name).to_csv(base / name / "measurements.csv", index=False)
    order = [record.info["run_id"] for record in records.load_all()]
    assert order == ["r1", "quick-newer", "stale-newest"]
    assert records.newest("ladder", device="another GPU") is None
    assert records.newest("swa") is None


def test_a_copied_checkout_is_judged_by_its_hash(bench, monkeypatch):
    """A machine with a copy of the files cannot ask git whether they are the commit's; `make record` can."""
    monkeypatch.setenv("KERNELS_COMMIT", "abc1234")
    assert source.git_commit() == "abc1234" and source.git_dirty() is None
    info = {"git_commit": "abc1234", "git_dirty": True, "kernels_sha256": "11"}
    for there, dirty in (("11", False), ("22", True), (None, None)):
        monkeypatch.setattr(source, "kernels_sha256_at", lambda commit, there=there: there)
        assert store._settled(info)["git_dirty"] is dirty
    assert store._settled(info | {"git_dirty": False}) == info | {"git_dirty": False}


def test_hash_of_a_commit():
    """That of the files as they were committed; None where there is no such commit."""
    if source.git_dirty() is False:
        assert source.kernels_sha256_at("HEAD") == source.kernels_sha256()
    assert source.kernels_sha256_at("no-such-commit") is None


def test_hash_sees_a_changed_kernel_only(tmp_path):
    for package in source.TIMED_PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("x = 1\n")
    before = source.kernels_sha256(tmp_path)
    (tmp_path / "lab.py").write_text("y = 2\n")
    (tmp_path / "indexer" / "notes.txt").write_text("z\n")
    assert source.kernels_sha256(tmp_path) == before
    (tmp_path / "indexer" / "a.py").write_text("x = 2\n")
    changed = source.kernels_sha256(tmp_path)
    assert changed != before
    (tmp_path / "sparse_mla" / "tuned.json").write_text("{}")  # the table decides what is launched
    assert source.kernels_sha256(tmp_path) != changed


def test_every_run_in_the_repository_is_valid():
    for record in store.load_all(place.root() / "data" / "runs"):
        for table in schema.TABLES:
            record.table(table)
