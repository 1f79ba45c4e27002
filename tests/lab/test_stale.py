"""Stale is a record of which a timed kernel has changed, or a launch; nothing else makes it so."""

import json

import pytest

from kernels.lab.records import RecordError, judge, launches, place, schema, source, store
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla import tiles
from tests.lab.described import DEVICE

FILES = source.kernels_files()
RUN = {
    "schema_version": 1, "run_id": "r", "utc": "", "device": DEVICE, "driver": None, "cuda": None, "torch": "",
    "triton": "", "python": "", "git_commit": None, "git_dirty": None, "kernels_sha256": "0" * 64,
    "state_before": {}, "state_after": None, "profile": "full", "chapters": {}, "experiments": {}, "peers": {},
    "complete": True,
}  # fmt: skip


def row(impl, **changes):
    shape = {"tile_class": "sm120", "batch": 4, "heads": 64, "topk": 512, "swa_tokens": 0, "page_size": 64}
    times = {"samples": 21, "median_us": 10.0, "p20_us": 9.0, "p80_us": 11.0, "rel_error": 1e-3}
    names = {"run_id": "r", "experiment": "ladder", "op": "sparse_mla_decode", "timer": "chain"}
    return {**names, **shape, **times, "impl": impl, "tolerance": 3e-3, "status": "ok", **changes}


def step(stage="split_k"):
    shape = {"swa_tokens": 128, "page_size": None, "context": 8192, "max_context": 131072}
    return row(stage, op="decode_step", experiment="decode_step", stage=stage, tokens_per_s=1.0, **shape)


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Makes a record of rows, as kept from the tree as it is; its files can be given."""

    def make(*rows, files=FILES, launched=True, profile=()):
        folder = tmp_path / "r"
        folder.mkdir(exist_ok=True)
        schema.frame(list(rows)).to_csv(folder / "measurements.csv", index=False)
        if profile:
            schema.frame(list(profile), "profile").to_csv(folder / "profile.csv", index=False)
        info = RUN | {"experiments": {given["experiment"]: {} for given in rows}, "files": files}
        found = store.Record(folder, info)
        if launched:
            info["launches"] = launches.of_record(found)
        return found

    monkeypatch.setattr(store, "_current", {})
    return make


@pytest.fixture
def changed(monkeypatch):
    """Gives files of the tree other hashes."""

    def change(*names):
        assert set(names) <= set(FILES)
        monkeypatch.setattr(store, "_current", {"files": FILES | dict.fromkeys(names, "changed")})

    return change


@pytest.mark.parametrize(
    ("impl", "changes", "is_stale"),
    [
        ("simt", ["sparse_mla/simt.py"], True),
        ("simt", ["sparse_mla/serial.py"], True),  # one kernel's file imports both
        ("simt", ["sparse_mla/_per_head_loads.py"], True),
        ("simt", ["sparse_mla/mma.py", "sparse_mla/split_k.py", "sparse_mla/combine.py"], False),
        ("mma", ["sparse_mla/_tile.py"], True),
        ("split_k", ["sparse_mla/combine.py"], True),
        ("split_k", ["sparse_mla/staged.py", "sparse_mla/specialised.py", "sparse_mla/wide.py"], False),
        ("split_k", ["sparse_mla/few_heads.py", "sparse_mla/_operands.py"], False),
        ("split_k", ["sparse_mla/tiles.py:RELEASES"], False),
        ("staged", ["sparse_mla/staged.py"], True),
        ("staged", ["sparse_mla/_rows.py"], True),
        ("staged", ["sparse_mla/_dequantize.py"], True),
        ("staged", ["sparse_mla/tiles.py:RELEASES"], True),
        ("staged", ["sparse_mla/split_k.py", "sparse_mla/_tile.py"], False),
        ("staged", ["sparse_mla/layout.py"], True),
        ("simt", ["sparse_mla/validate.py", "sparse_mla/reference.py", "sparse_mla/flash_mla.py"], False),
        ("staged", ["sparse_mla/api.py", "sparse_mla/launch.py", "sparse_mla/plan.py"], False),
        ("staged", ["sparse_mla/tiles.py", "sparse_mla/tuned.json", "sparse_mla/signatures.py"], False),
        ("simt", ["indexer/paged.py", "decode_step/step.py"], False),
    ],
)
def test_a_kernel_counts_where_it_was_timed(record, changed, impl, changes, is_stale):
    found = record(row(impl))
    changed(*changes)
    reason = store.stale(found)
    assert (reason is not None) == is_stale
    assert reason is None or reason.startswith("the kernels have changed since this run (sparse_mla/")


def test_a_row_without_a_time_does_not_count(record, changed):
    lost = row("split_k", status="failed", reason="no", median_us=None, p20_us=None, p80_us=None)
    found = record(row("simt"), lost, row("flash_mla"))
    changed("sparse_mla/split_k.py")
    assert store.stale(found) is None


def test_every_kind_of_staged_tile_has_its_kernel(record, changed):
    wide = record(row("staged", tile_class="native", experiment="x"))
    noted = launches.Launcher(DEVICE)
    for tile, kernel in {
        "64x128x8x1x1x0": "wide_kernel",
        "64x64x8x2x1x4": "specialised_kernel",
        "16x32x4x1x0x0": "staged_kernel",
        "8x32x8x4x0x4x0": "few_heads_kernel",
        "8x32x8x8x0x4x1": "few_heads_kernel",
    }.items():
        call = launches.Call("staged", splits=2, tile=tile)
        wide.info["launches"] = {str(call): noted.launches(call)}
        assert launches.kernels_of(wide.info["launches"].values()) == {kernel, "combine_kernel"}
        for module in ("staged", "specialised", "wide", "few_heads", "_candidates"):
            changed(f"sparse_mla/{module}.py")
            counts = module in (kernel.removesuffix("_kernel"), "_candidates")
            counts |= (
                module == "staged" and kernel == "specialised_kernel"
            )  # which multiplies by its `multiply_rows`
            assert (store.stale(wide) is not None) == counts


def replan(monkeypatch, **changes):
    """The planner's choice of split counts, by batch, is another one."""
    given = planning.default_num_splits

    def other(batch, *shape):
        return changes.get(f"batch_{batch}") or given(batch, *shape)

    monkeypatch.setattr(planning, "default_num_splits", other)


def test_another_plan_of_a_timed_call(record, changed, monkeypatch):
    found = record(row("split_k"), row("split_k", batch=8), row("mma"))
    changed("sparse_mla/plan.py")
    replan(monkeypatch, batch_16=3)
    assert store.stale(found) is None, "no row has that batch"
    changed("sparse_mla/plan.py")
    replan(monkeypatch, batch_8=3)
    assert store.stale(found) == (
        "1 of the 3 calls that it timed are launched otherwise now, e.g. split_k, tile_class sm120, batch 8"
    )
    changed("sparse_mla/mma.py", "sparse_mla/plan.py")
    assert "mma.py" in store.stale(found), "a changed kernel is the better reason"


def test_what_a_point_gives_is_not_planned(record, changed, monkeypatch):
    tile = {"num_splits": 8, "block_h": 16, "block_t": 16, "num_warps": 4, "num_stages": 1}
    found = record(row("split_k", experiment="tile_sweep", **tile))
    assert list(found.info["launches"]) == ["split_k, tile_class sm120, batch 4, splits 8, tile 16x16x4x1"]
    changed("sparse_mla/plan.py")
    replan(monkeypatch, batch_4=3)
    assert store.stale(found) is None


def test_a_row_of_the_table_counts_with_what_no_column_holds(record, changed, monkeypatch):
    found = record(row("auto", tile_class="native", batch=1, timer="cold"))
    rows = tiles.choices()

    def release(name):
        return tuple(tiles.Choice(**vars(given) | {"release": name}) for given in rows)

    there = tiles.staged_choice(1, 64, 512, planning.Device(132, (9, 0), 232448), "native")
    for name in tiles.RELEASES:
        monkeypatch.setattr(tiles, "choices", lambda name=name: release(name))
        changed("sparse_mla/tuned.json")
        assert (store.stale(found) is None) == (name == there.release or there.num_splits == 1)


def test_a_constant_of_the_launch_counts(record, changed, monkeypatch):
    found = record(row("split_k"), row("simt"))
    given = launches._copy_of

    def other(module):
        copy = given(module)
        copy.COMBINE_WARPS = 8
        return copy

    monkeypatch.setattr(launches, "_copy_of", other)
    changed("sparse_mla/launch.py")
    assert store.stale(found).startswith("1 of the 2 calls")


def test_a_call_that_is_no_longer_accepted(record, changed, monkeypatch):
    found = record(row("split_k"))
    monkeypatch.setattr(planning, "MAX_SPLITS", 0)
    found.info["launches"]["staged, batch 1, splits 3"] = "staged_kernel 0"
    changed("sparse_mla/plan.py")
    assert "launched otherwise" in store.stale(found)


@pytest.mark.parametrize("op", ["indexer_logits", "indexer_topk"])
def test_the_indexer_counts_whole(record, changed, op):
    found = record(row("paged", op=op, experiment="indexer_context"))
    changed("sparse_mla/layout.py", "decode_step/step.py", "sparse_mla/simt.py")
    assert store.stale(found) is None
    changed("indexer/plan.py")
    assert "indexer/plan.py" in store.stale(found)


@pytest.mark.parametrize(
    ("name", "is_stale"),
    [
        ("decode_step/glue.py", True),
        ("indexer/topk.py", True),
        ("sparse_mla/layout.py", True),
        ("sparse_mla/split_k.py", True),
        ("sparse_mla/combine.py", True),
        ("sparse_mla/simt.py", False),
        ("sparse_mla/staged.py", False),
        ("sparse_mla/tuned.json", False),
    ],
)
def test_the_decode_step_counts_with_the_rungs_of_its_stages(record, changed, name, is_stale):
    found = record(step("split_k"), step("indexer_cap"))
    changed(name)
    assert (store.stale(found) is not None) == is_stale


def test_the_decode_step_is_planned_again(record, changed, monkeypatch):
    found = record(step())
    assert len(found.info["launches"]) == 3, "a layer of each kind"
    changed("sparse_mla/plan.py")
    assert store.stale(found) is None
    replan(monkeypatch, batch_4=3)
    changed("sparse_mla/plan.py")
    assert store.stale(found).startswith("3 of the 3 calls")


def test_a_profile_alone_is_of_the_decode_step(record, changed):
    profile = {
        "run_id": "r",
        "experiment": "decode_step_profile",
        "stage": "mma",
        "kernel": "k",
        "share": 1.0,
    }
    found = record(row("simt"), profile=[profile | {"status": "ok"}])
    changed("decode_step/glue.py")
    assert "decode_step/glue.py" in store.stale(found)


def test_the_calls_of_the_decode_step_are_those_that_it_makes(monkeypatch):
    """On the tiny model: rung, widths, page sizes and lengths of every call."""
    from kernels import decode_step
    from kernels.decode_step import attention

    made = set()
    decode = attention.sparse_mla_decode

    def seen(q, cache, indices, length, *, impl, attn_sink, **extra):
        other = {"extra": 0}
        if extra:
            pages = extra["extra_kv_cache"].shape[1]
            other = {
                "extra": extra["extra_indices"].shape[1],
                "extra_page": pages,
                "extra_length": extra["extra_topk_length"] is not None,
            }
        shape = {"batch": q.shape[0], "heads": q.shape[1], "topk": indices.shape[1], "page": cache.shape[1]}
        made.add(launches.Call(impl, **shape, length=length is not None, **other))
        return decode(q, cache, indices, length, impl=impl, attn_sink=attn_sink, **extra)

    monkeypatch.setattr(attention, "sparse_mla_decode", seen)
    model = decode_step.tiny()
    made_step = decode_step.build("mma", batch=1, context=300, max_context=1024, device="cpu", shapes=model)
    made_step.run()
    given = {"batch": 1, "heads": model.heads, "topk": model.index_topk, "max_context": 1024}
    wanted = launches._of_step(given | {"stage": "mma", "swa_tokens": model.window})
    assert made == set(wanted)


def test_without_launches_any_file_of_the_operator_counts(record, changed):
    found = record(row("simt"), launched=False)
    changed("indexer/paged.py")
    assert store.stale(found) is None
    changed("sparse_mla/api.py")
    assert store.stale(found).endswith("(sparse_mla/api.py); the run does not tell what it launched")


def test_without_files_everything_counts(record):
    found = record(row("simt"))
    del found.info["files"]
    now = source.kernels_sha256()[:7]
    assert store.stale(found) == f"the kernels have changed since this run (0000000, now {now})"


def test_files_that_came_and_went(record, monkeypatch):
    found = record(step(), files=FILES | {"decode_step/gone.py": "0"})
    assert "decode_step/gone.py" in store.stale(found)
    found = record(row("simt"), files=FILES | {"sparse_mla/gone.py": "0"})
    monkeypatch.setattr(store, "_current", {})
    assert store.stale(found) is None


def test_a_judgement_is_made_once(record, changed, monkeypatch):
    found = record(row("simt"))
    changed("sparse_mla/simt.py")
    first = store.stale(found)
    monkeypatch.setattr(judge, "reason", None)
    assert store.stale(found) == first


@pytest.mark.parametrize(
    "call",
    [
        launches.Call("auto"),
        launches.Call("split_k", "sm120", 8, 16, topk=2048, splits=4, tile="16x32x8x1", scratch="float32"),
        launches.Call("mma", topk=128, page=128, length=True, extra=64, extra_page=2, extra_length=True),
        launches.Call("staged", tile="64x64x8x2x1x4", release="exit", invariant=True, in_turn=True),
    ],
)
def test_a_call_is_read_as_it_was_written(call):
    assert launches.Call.read(str(call)) == call


def test_labels_of_the_laboratory_stand_for_calls(record):
    found = record(
        row("simt", experiment="per_head_split", num_splits=4),
        row("split_k", experiment="batch_invariance", num_splits=1),
        row("split_k_fixed", experiment="batch_invariance", num_splits=8),
        row("split_k_in_turn", experiment="launch_overlap", num_splits=8),
        row("split_k_fp32", experiment="combine", num_splits=2),
        row("folded", experiment="redesign", num_splits=2, block_h=32, block_t=32, num_warps=8, num_stages=1),
        row("simt", experiment="swa", swa_tokens=128, context=64),
    )
    assert list(found.info["launches"]) == [
        "simt, tile_class sm120, batch 16, topk 128",
        "split_k, tile_class sm120, batch 4",
        "mma, tile_class sm120, batch 4",
        "split_k, tile_class sm120, batch 4, invariant True",
        "split_k, tile_class sm120, batch 4, splits 8, in_turn True",
        "split_k, tile_class sm120, batch 4, splits 2, scratch float32",
        "split_k, tile_class sm120, batch 4, splits 2, tile 32x32x8x1",
        "simt, tile_class sm120, batch 4, topk 128, page 128, extra 512, extra_length True",
    ]


def test_kernels_take_no_other_constant_from_the_host():
    """A constant that is not in `source.CONSTANTS` could change unseen."""
    known = {(path, name) for path, names in source.CONSTANTS.items() for name in names}
    assert all(f"{path}:{name}" in FILES for path, name in known)
    for path in judge._device_code(set(launches.kernel_modules())):
        if ":" not in path and path != judge.LAYOUT:
            taken = judge.imports(path)
            pairs = {(f"sparse_mla/{m}.py", name) for m in taken if m in judge.HOST for name in taken[m]}
            assert pairs <= known


def test_device_code_is_found_by_imports():
    found = judge._device_code({"specialised_kernel"})
    assert found == {
        "sparse_mla/specialised.py",
        "sparse_mla/staged.py",
        "sparse_mla/_candidates.py",
        "sparse_mla/_dequantize.py",
        "sparse_mla/_overlap.py",
        "sparse_mla/_result.py",
        "sparse_mla/_special.py",
        "sparse_mla/_rows.py",
        "sparse_mla/layout.py",
        "sparse_mla/tiles.py:RELEASES",
    }


def test_a_constant_has_a_hash_of_its_value(tmp_path):
    for package in source.TIMED_PACKAGES:
        (tmp_path / package).mkdir()
    where, key = tmp_path / "sparse_mla" / "tiles.py", "sparse_mla/tiles.py:RELEASES"

    def now(text):
        where.write_text(text)
        return source.kernels_files(tmp_path)

    first = now("RELEASES = {'start': 2}\n")
    assert now("# why\nRELEASES = {'start': 2}\nX = 1\n")[key] == first[key]
    assert now("RELEASES = {'start': 3}\n")[key] != first[key]
    computed = now("RELEASES = dict(start=2)\n")
    assert computed[key] == computed["sparse_mla/tiles.py"], "what is no literal changes with its file"


def test_files_of_a_commit_are_proved_by_the_hash(monkeypatch):
    monkeypatch.setattr(source, "read_at", lambda commit: texts if commit == "known" else None)
    texts = {"indexer/a.py": b"x", "sparse_mla/tuned.json": b"{}"}
    files = source._short(texts)
    old = source._digest({"indexer/a.py": b"x"})  # the oldest hashes are over sources alone
    for sha256 in (None, source._digest(texts), old):
        assert source.kernels_files_at("known", sha256) == files
    assert source.kernels_files_at("known", "0" * 64) is None
    assert source.kernels_files_at("unknown") is None


def test_a_kept_run_names_files_and_launches(record, monkeypatch):
    found = record(row("mma"), launched=False)
    del found.info["files"]
    assert not {"files", "launches"} & set(store.described(found)), "nothing is proved"
    found.info["kernels_sha256"] = source.kernels_sha256()
    info = store.described(found)
    assert info["files"] == FILES and list(info["launches"]) == ["mma, tile_class sm120, batch 4"]
    found.info.update(kernels_sha256="1" * 64, git_commit="abc1234")
    monkeypatch.setattr(source, "kernels_files_at", lambda commit, sha256: {"a": "b"})
    monkeypatch.setattr(launches, "at_commit", lambda commit, folder: {"simt": commit})
    info = store.described(found)
    assert info["files"] == {"a": "b"} and info["launches"] == {"simt": "abc1234"}


def test_launches_of_a_commit(record, monkeypatch):
    """In a process of its own, with that commit's host code."""
    found = record(row("simt"), row("split_k"))
    (found.folder / "run.json").write_text(json.dumps(RUN | found.info))
    here = {
        name: (place.root() / "kernels" / name).read_bytes()
        for name in FILES
        if not name.endswith("RELEASES")
    }
    monkeypatch.setattr(source, "read_at", lambda commit: here)
    here["sparse_mla/launch.py"] = here["sparse_mla/launch.py"].replace(
        b"COMBINE_WARPS = 4", b"COMBINE_WARPS = 8"
    )
    then, now = launches.at_commit("abc1234", found.folder), found.info["launches"]
    assert then.keys() == now.keys() and launches.kernels_of(then.values()) == launches.kernels_of(
        now.values()
    )
    # What the other code launches otherwise differs, and the rest is the same
    assert {call.split(",")[0]: then[call] == now[call] for call in now} == {"simt": True, "split_k": False}
    monkeypatch.setattr(source, "read_at", lambda commit: None)
    assert launches.at_commit("unknown", found.folder) is None


def test_optional_keys_are_checked():
    schema.validate_run(RUN)
    for key in schema.OPTIONAL_KEYS:
        schema.validate_run(RUN | {key: {"sparse_mla/plan.py": "0"}})
        with pytest.raises(RecordError, match=f"key {key} is list"):
            schema.validate_run(RUN | {key: []})


def test_calls_are_planned_as_the_columns_of_fresh_records_say():
    """What each point gave and what it left to the planner is rightly told apart."""
    for found in store.load_all():
        assert all(str(launches.Call.read(text)) == text for text in found.info.get("launches", {}))
        if "launches" not in found.info or store.stale(found):
            continue
        launcher = launches.Launcher(found.info["device"])
        for row, call in launches.calls(found):
            if row.get("block_h") and row["experiment"] not in ("per_head_split", "batch_invariance"):
                plan = launcher.plan(call)
                chosen = (plan.num_splits, *(getattr(plan.tile, name) for name in launches.TILE))
                assert chosen == tuple(row[name] for name in ("num_splits", *launches.TILE)), str(call)
