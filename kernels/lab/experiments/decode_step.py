"""The decode step's experiments: time and throughput of every stage, and where the time goes.

Weights are drawn once, caches once for each batch and configured context, and all stages share them. A
stage is timed only after its result was compared with the baseline's; a step that does not fit is a row
with the reason. Both experiments come out of one pass where one process asks for both.

The pass can be cut short, for a machine that is at hand for minutes only. BOOK_STEP_SECONDS bounds it: a point that
would not end in that time, judged by those before it, is a row that says so. So is every point after an interrupt
(Ctrl-C). The points that the book needs most come first; finished ones of a run that BOOK_RUN_ID names are kept in
its folder, and the next pass of that run goes on behind them.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernels.lab.records import place, source

K = 1024
LIVE = 8 * K
CAPPED = ("baseline", "indexer_cap", "fused_glue")
MIN_SAMPLES, MAX_SAMPLES, BUDGET_S = 3, 15, 1.0
TIMES, PROFILE = "decode_step", "decode_step_profile"


@dataclass(frozen=True)
class Shape:
    """One batch at one live and one configured context; which stages run, and whether they are profiled."""

    batch: int
    context: int
    max_context: int
    stages: tuple[str, ...] | None = None
    profiled: bool = True


@dataclass
class Found:
    """Rows of both tables."""

    times: list[dict[str, Any]] = field(default_factory=list)
    profile: list[dict[str, Any]] = field(default_factory=list)


def shapes(profile: str) -> list[Shape]:
    """The points of a profile, 'quick' or 'full', the most important first."""
    if profile == "quick":
        return [Shape(batch, LIVE, 128 * K) for batch in (1, 16)]
    capped = [Shape(batch, LIVE, LIVE, CAPPED, profiled=False) for batch in (64, 16, 1)]
    widest = [Shape(batch, LIVE, 1024 * K) for batch in (64, 16, 1, 4, 32)]
    usual = [Shape(batch, LIVE, 128 * K, profiled=batch == 16) for batch in (16, 1, 64, 4, 32)]
    return widest[:1] + capped[:1] + widest[1:3] + usual[:2] + capped[1:] + widest[3:] + usual[2:]


def time_step(step, samples: int = MAX_SAMPLES, budget_s: float = BUDGET_S):
    """Capture a step and time its replays -> `timing.Timing` in microseconds a step.

    samples: at most; slow steps get fewer, at least 3, so that they take about `budget_s` seconds.
    """
    import torch

    from kernels.lab import timing

    step.capture(warmups=1)  # it ran eagerly just before, to be judged
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once() -> float:
        begin.record()
        step.run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    once()
    samples = max(MIN_SAMPLES, min(samples, int(budget_s * 1e6 / max(once(), 1.0))))
    return timing.summarise([once() for _ in range(samples)])


def _columns(shape: Shape, stage: str, model) -> dict[str, Any]:
    return {
        "op": "decode_step",
        "impl": stage,
        "stage": stage,
        "tile_class": "native",
        "batch": shape.batch,
        "heads": model.heads,
        "topk": model.index_topk,
        "swa_tokens": model.window,
        "context": shape.context,
        "max_context": shape.max_context,
        "timer": "chain",
    }


def _keys(shape: Shape, stage: str) -> dict[str, Any]:
    names = ("batch", "context", "max_context")
    return {"stage": stage, **{name: getattr(shape, name) for name in names}}


def reason_of(error: Exception) -> tuple[str, str]:
    """(status, reason) of a step that could not run."""
    import torch

    from kernels.decode_step import DoesNotFit
    from kernels.lab.experiments import _clean

    if isinstance(error, DoesNotFit):
        return "skipped", str(error)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "skipped", "does not fit into the device's memory, though the estimate said so"
    return "failed", f"{type(error).__name__}: {_clean(error)}"


def judge(step, recording) -> dict[str, Any]:
    """Compare a stage with the baseline's recording: rel_error, tolerance, and status 'ok' or 'wrong'."""
    from kernels.decode_step import compare

    whole = compare.whole_step(step, recording)
    parts = compare.sublayers(step, recording)
    worst = max(parts, key=lambda found: (found.error != found.error, found.error))
    agreement = compare.mean_agreement(parts)
    row = {"rel_error": whole.error, "tolerance": compare.STEP_TOLERANCE, "status": "ok", "reason": ""}
    if not worst.error <= compare.SUBLAYER_TOLERANCE:
        row |= {"status": "wrong", "reason": f"{worst.place}: relative error {worst.error:.3g}"}
    elif not whole.error <= compare.STEP_TOLERANCE:
        row |= {"status": "wrong", "reason": f"the step: relative error {whole.error:.3g}"}
    elif agreement < compare.SUBLAYER_AGREEMENT or whole.agreement < compare.STEP_AGREEMENT:
        shares = f"{agreement:.1%} a sublayer, {whole.agreement:.1%} over the step"
        row |= {"status": "wrong", "reason": f"too few of the baseline's choices are made: {shares}"}
    if row["rel_error"] != row["rel_error"]:
        row["rel_error"] = None
    return row


def _measure_stage(step, shape: Shape, recording, found: Found) -> Any:
    """One stage at one shape; returns the recording that later stages are compared with."""
    from kernels.decode_step import compare, memory
    from kernels.lab import profile

    stage = step.stage.name
    columns = _columns(shape, stage, step.shapes)
    try:
        memory.check_transient(step)
        recording = recording or compare.record(step)
        verdict = judge(step, recording)
        if verdict["status"] == "ok":
            timing = time_step(step)
            verdict |= {
                "samples": timing.samples,
                "median_us": timing.median_us,
                "p20_us": timing.p20_us,
                "p80_us": timing.p80_us,
                "tokens_per_s": step.tokens_per_s(timing.median_us),
            }
        found.times.append(columns | verdict)
    except Exception as error:
        status, reason = reason_of(error)
        found.times.append(columns | {"status": status, "reason": reason})
        verdict = {"status": status, "reason": reason}
    step.release()
    if not shape.profiled:
        return recording
    keys = _keys(shape, stage)
    try:
        if verdict["status"] != "ok":
            found.profile.append(keys | {"status": verdict["status"], "reason": verdict["reason"]})
        else:
            rows = profile.measured(step)
            found.profile += [keys | row | {"status": "ok", "reason": ""} for row in rows]
    except Exception as error:
        status, reason = reason_of(error)
        found.profile.append(keys | {"status": status, "reason": reason})
    return recording


def _leave_out(found: Found, shape: Shape, stages, model, status: str, reason: str) -> None:
    for stage in stages:
        found.times.append(_columns(shape, stage, model) | {"status": status, "reason": reason})
        if shape.profiled:
            found.profile.append(_keys(shape, stage) | {"status": status, "reason": reason})


def measure_shapes(
    points: list[Shape],
    device="cuda",
    model=None,
    say=None,
    seconds: float = float("inf"),
    kept: Path | None = None,
) -> Found:
    """Measure every stage at every point.

    model: the shapes; DeepSeek-V4-Flash when None. say: called with a line after each point. seconds: no
    point begins that would probably end after this time. kept: a file of finished points, one a line, read
    before and written behind each point.
    """
    from kernels import decode_step

    found = Found()
    finished = _finished(kept)
    weights, over = None, None
    first = time.perf_counter()
    taken: dict[int, float] = {}
    for shape in points:
        stages = shape.stages or tuple(decode_step.STAGES)
        if shape in finished:
            _add(found, finished[shape])
            continue
        begun = time.perf_counter()
        # A point takes no longer than one of as many requests has taken
        needs = min((took for batch, took in taken.items() if batch >= shape.batch), default=0.0)
        if over is None and begun - first + needs > seconds:
            over = f"not measured: the experiment's {seconds:.0f} seconds were over"
        if over is None:
            here = Found()
            try:
                weights = _measure_shape(shape, stages, device, model, weights, here)
            except KeyboardInterrupt:
                over = "not measured: the pass was interrupted"
            else:
                _add(found, here)
                taken[shape.batch] = max(taken.get(shape.batch, 0.0), time.perf_counter() - begun)
                if kept:
                    with kept.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([asdict(shape), asdict(here)]) + "\n")
                if say:
                    say(
                        f"batch {shape.batch}, max context {shape.max_context:,}: "
                        f"{time.perf_counter() - begun:.1f} s"
                    )
        if over is not None:
            _leave_out(found, shape, stages, model or decode_step.flash(), "skipped", over)
    return found


def _measure_shape(shape: Shape, stages, device, model, weights, found: Found):
    """Every stage at one point; returns the weights, for the next."""
    from kernels import decode_step

    try:
        # The last stage needs the least memory; each stage is checked again for its own
        step = decode_step.build(
            "fused_glue", batch=shape.batch, context=shape.context, max_context=shape.max_context,
            device=device, shapes=model, weights=weights,
        )  # fmt: skip
    except Exception as error:
        _leave_out(found, shape, stages, model or decode_step.flash(), *reason_of(error))
        return weights
    recording = None
    for stage in stages:
        recording = _measure_stage(step.at_stage(stage), shape, recording, found)
    step.release()
    return step.weights


def _add(found: Found, more: Found) -> None:
    found.times += more.times
    found.profile += more.profile


def _finished(kept: Path | None) -> dict[Shape, Found]:
    """Points that an earlier pass has finished. A line that was cut off counts as none."""
    finished = {}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept and kept.exists() else ():
        try:
            shape, found = json.loads(line)
        except ValueError:
            continue
        shape["stages"] = shape["stages"] and tuple(shape["stages"])
        finished[Shape(**shape)] = Found(**found)
    return finished


_found: dict[str, Found] = {}


def _pass(profile: str) -> Found:
    if profile not in _found:
        seconds = float(os.environ.get("BOOK_STEP_SECONDS", "inf"))
        run_id, kept = os.environ.get("BOOK_RUN_ID"), None
        if run_id:
            folder = place.build_runs() / run_id
            folder.mkdir(parents=True, exist_ok=True)
            kept = folder / f"decode_step-{profile}-{source.kernels_sha256()[:12]}.jsonl"
        _found[profile] = measure_shapes(shapes(profile), say=print, seconds=seconds, kept=kept)
    return _found[profile]


def measure_times(profile: str) -> list[dict[str, Any]]:
    """Rows of measurements.csv: every stage of every point."""
    return _pass(profile).times


def measure_profile(profile: str) -> list[dict[str, Any]]:
    """Rows of profile.csv: every kernel of every profiled step."""
    return _pass(profile).profile
