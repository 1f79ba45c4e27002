"""Every stage computes what the baseline computes: sublayer by sublayer, and over a step."""

import pytest
import torch

from kernels import decode_step
from kernels.decode_step import attention, compare
from kernels.decode_step.probe import Playback, agreement

LATER = [name for name in decode_step.STAGES if name != "baseline"]


@pytest.mark.parametrize("stage", LATER)
def test_a_stage_agrees_with_the_baseline(baseline, recording, stage):
    step = baseline.at_stage(stage)
    parts = compare.sublayers(step, recording)
    for found in parts:
        assert found.error <= compare.SUBLAYER_TOLERANCE, found
    assert compare.mean_agreement(parts) >= compare.SUBLAYER_AGREEMENT
    whole = compare.whole_step(step, recording)
    assert whole.error <= compare.STEP_TOLERANCE
    assert whole.agreement >= compare.STEP_AGREEMENT


def test_the_recording_is_not_trivial(recording):
    assert torch.isfinite(recording.logits).all() and recording.logits.float().std() > 0.1
    for part in recording.sublayers:
        change = compare.relative(part.written, part.streams)
        assert change > 0.05, f"layer {part.layer} {part.name} leaves the streams as they were"
    for name, value in recording.sublayers[2].recorder.seen:
        assert value.float().std() > 1e-3, name


@pytest.mark.parametrize("fault", ["no sink", "no extra cache", "one candidate less"])
def test_the_tolerance_catches_a_wrong_attention(baseline, recording, monkeypatch, fault):
    right = attention.sparse_mla_decode

    def wrong(q, cache, indices, length, *, attn_sink, extra_topk_length=None, **others):
        if fault == "no sink":
            attn_sink = None
        elif fault == "one candidate less":
            length = length - 1
        elif extra_topk_length is not None:
            extra_topk_length = torch.zeros_like(extra_topk_length)
        if extra_topk_length is not None:
            others["extra_topk_length"] = extra_topk_length
        return right(q, cache, indices, length, attn_sink=attn_sink, **others)

    monkeypatch.setattr(attention, "sparse_mla_decode", wrong)
    found = compare.sublayers(baseline.at_stage("mma"), recording)
    assert max(part.error for part in found) > compare.SUBLAYER_TOLERANCE


def test_a_stage_that_selects_otherwise_is_noticed(baseline, recording, monkeypatch):
    from kernels.decode_step import indexing

    right = indexing.indexer_logits
    monkeypatch.setattr(indexing, "indexer_logits", lambda *a, **k: right(*a, **k).neg_())
    parts = compare.sublayers(baseline.at_stage("indexer_cap"), recording)
    assert compare.mean_agreement(parts) < compare.SUBLAYER_AGREEMENT


def test_agreement_counts_sets():
    rows = torch.tensor([[3, 1, -1], [5, 6, 7]])
    assert agreement(rows, torch.tensor([[1, 3, -1], [7, 5, 6]])) == 1
    assert agreement(rows, torch.tensor([[1, 2, -1], [7, 5, 6]])) == pytest.approx(4 / 5)
    played = Playback([rows])
    assert torch.equal(played.choose("topk", rows + 1), rows) and played.agreement[0][1] < 1


def test_stages_are_cumulative():
    stages = list(decode_step.STAGES.values())
    assert [stage.name for stage in stages] == [
        "baseline", "mma", "split_k", "indexer_cap", "bf16_gemm", "fused_glue"
    ]  # fmt: skip
    for before, after in zip(stages, stages[1:], strict=False):
        changed = {
            name
            for name in ("attention", "logits", "topk", "gemm_dtype", "fused")
            if getattr(before, name) != getattr(after, name)
        }
        assert len(changed) == (2 if after.name == "indexer_cap" else 1), (after.name, changed)
