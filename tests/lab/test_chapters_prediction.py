"""The appendix on predictions: its points, causes and tables."""

import matplotlib.pyplot as plt
import pytest

from kernels.lab import predict, validation
from kernels.lab.chapters import prediction

ROW = {
    "utc": "2026-01-02T00:00:00Z", "run_id": "r", "device": "h200", "target": "sm_90", "impl": "split_k",
    "block_h": 32, "block_t": 32, "num_warps": 8, "num_stages": 1, "wgmma": 0, "producer_warps": 0,
    "batch": 1, "heads": 64, "topk": 512, "extra_topk": 0, "num_splits": 8, "scratch_bytes": 2,
    "measured_us": 10.0, "predicted_us": 12.0, "error": 0.2, "split": "holdout", "bound": "latency",
    "unseen_us": 13.0,
}  # fmt: skip


@pytest.fixture
def written(tmp_path, monkeypatch):
    rows = [
        ROW,
        ROW | {"impl": "serial", "block_t": 1, "measured_us": 500.0, "predicted_us": 250.0, "error": -0.5},
        ROW
        | {
            "split": "fit",
            "batch": 2,
            "predicted_us": 10.1,
            "error": 0.01,
            "unseen_us": "",
            "producer_warps": 4,
        },
    ]
    validation.write(rows, tmp_path / "points.csv")
    monkeypatch.setattr(predict, "VALIDATION", tmp_path / "points.csv")
    return prediction.points()


def test_points_carry_their_device_and_cause(written):
    frame, evidence = written
    assert len(frame) == 3 and evidence.kind == "recorded" and "H200" in evidence.line()
    worst = prediction.worst(frame, 2)
    assert worst["impl"].tolist() == ["serial", "split_k"] and "conflict" in worst["cause"][0]
    assert set(frame["tile"]) == {"32 × 32, 8", "32 × 1, 8", "32 × 32, 8 + 4"}
    judged = prediction.judged(frame)
    assert judged.iloc[0]["split"] == "held out" and judged.iloc[0]["count"] == 2
    assert judged[judged["split"] == "kernel left out"].iloc[0]["count"] == 2
    figure = prediction.scatter(frame, evidence)
    assert len(figure.axes[0].get_legend_handles_labels()[1]) == 2
    plt.close(figure)


def test_causes_follow_from_what_the_model_leaves_out():
    assert "without a tile" in prediction.cause(ROW | {"candidates": 512, "num_splits": 32})
    assert "short" in prediction.cause(ROW | {"candidates": 64, "topk": 64, "num_splits": 1})
    assert "two blocks" in prediction.cause(ROW | {"candidates": 512, "num_warps": 4, "error": -0.2})
    assert prediction.cause(ROW | {"candidates": 512}) == "none known"


def test_without_a_record_nothing_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "VALIDATION", tmp_path / "none.csv")
    frame, evidence = prediction.points()
    assert frame.empty and not evidence.available
    assert prediction.judged(frame).empty and prediction.worst(frame).empty
    figure = prediction.scatter(frame, evidence)
    plt.close(figure)


def test_the_campaigns_card_has_every_rung_and_a_band():
    rows, evidence = prediction.campaign_card((1, 16))
    assert set(rows["impl"]) == set(prediction.RUNGS) and evidence.kind == "predicted"
    assert (rows["low"] < rows["median_us"]).all() and (rows["median_us"] < rows["high"]).all()
    table = prediction.over_batch(rows)
    assert table["batch"].tolist() == [1, 16] and " to " in table["staged"][0]
    grows = table["simt_over_mma"].tolist()
    assert grows[1] > grows[0] > 1
    assert (prediction.beside_published()["predicted_us"] > 1).all()
