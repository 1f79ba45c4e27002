"""The ledger: its rules, its checks against changed inputs, and its page."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from kernels.lab.ledger import STATUSES, build, counts, load_claims
from kernels.lab.ledger.build import CHECKS
from kernels.lab.ledger.combine import combine, to_bfloat16, two_pass_error
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import Finding, compare, judge_ratio, judge_share, number
from kernels.lab.ledger.recorded import load
from kernels.lab.pages import ledger as page
from kernels.lab.records import schema

CLAIMS = load_claims()


def context(changes=None, **tables):
    """A context without compilation and without records, unless a test brings some."""
    claims = [replace(c, **(changes or {}).get(c.id, {})) for c in CLAIMS]
    made = Context(claims, compile_kernels=False)
    made.__dict__.update({"measurements": pd.DataFrame(), "profile": pd.DataFrame()} | tables)
    return made


def find(id, changes=None, **tables):
    made = context(changes, **tables)
    claim = made.claim(id)
    return CHECKS[claim.check_name](claim, made)


def steps(rows, capability="9.0"):
    """Recorded decode steps: stage, batch, max_context, median_us."""
    names = ["stage", "batch", "max_context", "median_us"]
    return pd.DataFrame(rows, columns=names).assign(
        op="decode_step", context=8192, device_name="card", capability=capability, stale=False, rank=0
    )


CLAIM = next(c for c in CLAIMS if c.id == "a2-attention-speedup")


@pytest.mark.parametrize(
    ("value", "low", "high", "status"),
    [
        (6.34, None, None, "reproduced"),
        (6.36, None, None, "differs"),
        (6.36, 6.30, 6.42, "consistent"),
        (7.0, 6.9, 7.1, "differs"),
    ],
)
def test_computed_figures_are_judged_by_rounding(value, low, high, status):
    assert compare(CLAIM, value, low, high).status == status


def test_approximate_figures_have_five_percent():
    claim = replace(CLAIM, value="530", about="about")
    assert compare(claim, 550).status == "reproduced"
    assert compare(claim, 560).status == "differs"
    assert compare(replace(claim, about=""), 550).status == "differs"


@pytest.mark.parametrize(
    ("ratio", "same_card", "status"),
    [
        (6.3, True, "reproduced"),
        (7.5, True, "consistent"),
        (6.3, False, "consistent"),
        (3.2, False, "consistent"),
        (3.1, False, "differs"),
        (12.7, False, "differs"),
        (0.9, False, "differs"),
    ],
)
def test_measured_ratios_are_judged_by_direction_and_size(ratio, same_card, status):
    assert judge_ratio(CLAIM, ratio, same_card=same_card, found="").status == status


def test_measured_shares_are_judged_by_distance():
    claim = replace(CLAIM, value="57", unit="%")
    assert judge_share(claim, 60, same_card=True, found="").status == "reproduced"
    assert judge_share(claim, 44, same_card=False, found="").status == "consistent"
    assert judge_share(claim, 30, same_card=False, found="").status == "differs"


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="accepted: reproduced"):
        Finding("fine", "")


def test_numbers_for_readers():
    assert [number(v) for v in (64.0, 5350, 1.9395, 442.4, 0.00390625)] == [
        "64",
        "5,350",
        "1.94",
        "442",
        "0.00391",
    ]


# A check that cannot fail is none: each of these statuses changes when its inputs change.
@pytest.mark.parametrize(
    ("id", "status", "changes"),
    [
        ("a2-attention-share", "reproduced", {"a2-attention-ms-before": {"value": "5000"}}),
        ("a2-attention-speedup", "reproduced", {"a2-attention-ms-after": {"value": "1000"}}),
        ("a2-total-halved", "reproduced", {"a2-total-ms-after": {"value": "2000"}}),
        ("a1-glue-share", "reproduced", {"a2-glue-share-after": {"value": "40"}}),
        ("a2-fp32-share-after", "reproduced", {"a1-fp32-share": {"value": "5.0"}}),
        ("a3-attention-share-after", "differs", {"a2-attention-ms-after": {"value": "480"}}),
        ("a1-gain-indexer", "differs", {"a3-gain-total": {"value": "45.0"}}),
        ("a2-regression", "consistent", {"a2-tok-after": {"value": "5.0"}}),
        ("a2-gain-total", "differs", {"a3-gain-total": {"value": "17.2"}}),
        ("a2-attention-seconds", "reproduced", {"a2-attention-ms-before": {"value": "5200"}}),
        ("a2-splits-c16", "reproduced", {"a2-splits-c16": {"value": "7"}}),
        ("a2-blocks-c64", "reproduced", {"a2-blocks-c64": {"value": "192"}}),
        ("a3-full-at-c1", "differs", {"a3-full-at-c1": {"value": "9", "about": "about"}}),
        ("a2-full-c16", "differs", {"a2-full-c16": {"value": "51"}}),
        ("a2-scratch-step", "reproduced", {"a2-scratch-step": {"value": "270"}}),
        ("a3-page-bytes", "differs", {"a3-page-bytes": {"value": "37376"}}),
        ("a3-ncu-name", "differs", {"a3-ncu-name": {"value": "nsight compute"}}),
        ("a1-cufall-name", "differs", {"a1-cufall-name": {"value": "ncu"}}),
        ("a3-block-t-large", "differs", {"a3-block-t-large": {"check": "tile_fits:64/32/yes"}}),
        (
            "a2-target-low",
            "consistent",
            {"a2-target-low": {"value": "10"}, "a2-target-high": {"value": "400"}},
        ),
        ("a3-rewrite-alone", "differs", {"a3-rewrite-alone": {"value": "2"}}),
        ("a2-sms", "reproduced", {"a2-sms": {"value": "170"}}),
    ],
)
def test_a_status_follows_its_inputs(id, status, changes):
    assert find(id).status == status
    assert find(id, changes).status != status


def test_without_records_every_measured_claim_is_pending_and_says_what_it_needs():
    for row in build(context()):
        if row.claim.kind == "measured":
            assert row.finding.status == "pending", row.claim.id
            assert "recorded run of" in row.finding.reason, row.claim.id


@pytest.mark.parametrize(
    ("after_us", "status"), [(1000, "consistent"), (8000, "differs"), (30000, "differs")]
)
def test_the_total_gain_is_judged_on_the_widest_context(after_us, status):
    table = steps(
        [
            ("baseline", 64, 1048576, 18000),
            ("indexer_cap", 64, 1048576, after_us),
            ("baseline", 64, 131072, 900),
            ("indexer_cap", 64, 131072, 900),
        ]
    )
    assert find("a3-gain-total", measurements=table).status == status


def test_a_run_on_the_campaigns_card_can_reproduce_and_comes_first():
    other = steps([("baseline", 64, 1048576, 900), ("indexer_cap", 64, 1048576, 900)])
    own = steps([("baseline", 64, 1048576, 18000), ("indexer_cap", 64, 1048576, 1000)], "12.0").assign(rank=1)
    assert find("a3-gain-total", measurements=pd.concat([other, own])).status == "reproduced"


def test_the_loss_at_batch_one_needs_its_direction():
    slower = steps([("baseline", 1, 1048576, 700), ("mma", 1, 1048576, 1000)])
    faster = steps([("baseline", 1, 1048576, 1000), ("mma", 1, 1048576, 700)])
    assert find("a2-regression-measured", measurements=slower).status == "consistent"
    assert find("a2-regression-measured", measurements=faster).status == "differs"


@pytest.mark.parametrize(("mma_us", "status"), [(160, "consistent"), (700, "differs"), (2000, "differs")])
def test_the_kernels_speedup_is_read_from_the_ladder(mma_us, status):
    rows = [("simt", 8, 500), ("mma", 8, 500), ("simt", 64, 1000), ("mma", 64, mma_us)]
    table = pd.DataFrame(rows, columns=["impl", "batch", "median_us"]).assign(
        experiment="ladder", op="sparse_mla_decode", timer="chain", tile_class="sm120", device_name="card"
    )
    table = table.assign(capability="9.0", stale=True, rank=0)
    found = find("a2-attention-speedup-measured", measurements=table)
    assert found.status == status and "batch 64" in found.found and "(stale)" in found.found
    assert find("a2-attention-speedup-measured", measurements=table[table["batch"] < 16]).status == "pending"


def test_a_recorded_run_on_disk_reaches_the_claims(tmp_path):
    folder = tmp_path / "runs" / "nvidia-h200" / "r"
    folder.mkdir(parents=True)
    row = dict(
        run_id="r", experiment="ladder", op="sparse_mla_decode", tile_class="sm120", batch=16, heads=64
    )
    row |= dict(topk=512, timer="chain", samples=21, rel_error=1e-3, tolerance=3e-3, status="ok", reason="")
    rows = [
        row | dict(impl=impl, median_us=time, p20_us=time, p80_us=time)
        for impl, time in (("simt", 60.0), ("mma", 10.0))
    ]
    schema.frame(rows).to_csv(folder / "measurements.csv", index=False)
    parts = dict(
        run_id="r", experiment="decode_step", stage="baseline", batch=16, context=8192, max_context=1048576
    )
    parts |= dict(group="attention", kernel="k", launches=43, gpu_us=500.0, share=0.5, status="ok", reason="")
    schema.frame([parts], "profile").to_csv(folder / "profile.csv", index=False)
    filled = {str: "x", int: 1, dict: {}, bool: True}
    info = {
        key: filled[kind[0] if isinstance(kind, tuple) else kind] for key, kind in schema.RUN_KEYS.items()
    }
    device = {key: filled[kind] for key, kind in schema.DEVICE_KEYS.items()}
    device |= {"name": "NVIDIA H200", "capability": "9.0", "uuid_sha256": "0123456789ab"}
    info |= {
        "schema_version": schema.SCHEMA_VERSION,
        "run_id": "r",
        "utc": "2026-01-01T00:00:00Z",
        "device": device,
    }
    info |= {"profile": "full", "kernels_sha256": "0" * 64}
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    measurements, profile = (load(tmp_path / "runs", name) for name in ("measurements", "profile"))
    found = find("a2-attention-speedup-measured", measurements=measurements)
    assert found.status == "consistent" and found.found == "6× on NVIDIA H200 (stale) at batch 16"
    assert find("a3-attention-share", profile=profile).status == "consistent"


def test_a_share_is_read_from_the_profile():
    profile = pd.DataFrame(
        {"group": ["attention", "attention", "glue"], "share": [0.3, 0.2, 0.5], "launches": [40, 3, 5900]}
    ).assign(
        stage="baseline",
        batch=16,
        max_context=1048576,
        device_name="card",
        capability="9.0",
        stale=False,
        rank=0,
    )
    assert find("a3-attention-share", profile=profile).status == "consistent"
    assert find("a2-launches", profile=profile.assign(stage="mma")).status == "consistent"
    assert find("a3-glue-share", profile=profile).status == "differs"


@pytest.mark.parametrize(("power", "status"), [(1.0, "consistent"), (0.3, "differs")])
def test_the_indexers_slope(power, status):
    widths = [8192, 131072, 1048576]
    table = pd.DataFrame({"max_context": widths, "median_us": [w**power for w in widths]}).assign(
        experiment="indexer_context",
        impl="uncapped",
        batch=32,
        context=8192,
        device_name="card",
        capability="9.0",
    )
    assert find("a3-indexer-linear", measurements=table.assign(stale=False, rank=0)).status == status


def test_the_combine_merges_exactly_and_bfloat16_rounds():
    assert two_pass_error(6, 64) < 1e-12
    assert to_bfloat16(pd.Series([1 + 2.0**-8, 1 + 3 * 2.0**-8]).to_numpy()).tolist() == [1.0, 1 + 2.0**-6]
    assert combine(pd.Series([1.0, 3.0]).to_numpy()[:, None], pd.Series([0.0, 0.0]).to_numpy()).tolist() == [
        2.0
    ]


def test_the_baseline_compiles_without_tensor_instructions():
    made = Context(CLAIMS)
    claim = made.claim("a1-tensor-pipe")
    found = CHECKS[claim.check_name](claim, made)
    assert (found.status, found.evidence) == ("reproduced", "compiled")


def test_every_claim_is_judged():
    rows = build(context())
    assert len(rows) == len(CLAIMS)
    assert [row.claim.chapter for row in rows] == sorted(row.claim.chapter for row in rows)
    assert sum(counts(rows).values()) == len(rows) and set(counts(rows)) == set(STATUSES)
    for row in rows:
        if row.finding.status == "differs":
            assert row.finding.reason or row.claim.note, f"{row.claim.id} differs and nobody says why"


def test_an_unknown_check_is_refused():
    with pytest.raises(ValueError, match="accepted: .*attention_speedup"):
        build(context({"a2-sms": {"check": "guess"}}))


def test_the_page_gets_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "build", lambda: build(context()))
    staged = tmp_path / "book" / "ledger.md"
    staged.parent.mkdir()
    staged.write_text(f"# Title\n\n{page.MARKER}\n", encoding="utf-8")
    page.write(tmp_path, {})
    text = staged.read_text(encoding="utf-8")
    assert page.MARKER not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 6]
    tables = text.count(":::{table}")
    assert tables == 8
    claims = [line for line in rows if not line.startswith("| Claim (article)")]
    summary = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 7]
    assert len(claims) == len(CLAIMS) and len(summary) == 9
    with pytest.raises(ValueError, match="no line"):
        page.write(tmp_path, {})
