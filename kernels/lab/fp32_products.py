"""The products that the campaign found in forced FP32: size, bound, and what bf16 does to their result."""

from __future__ import annotations

import pandas as pd
import torch

from kernels.decode_step import DecodeStep, Shapes, compare
from kernels.lab.devices import device_of

BF16, FP32 = 2, 4


def sizes(shapes: Shapes, batch: int, card: str = "rtx-pro-6000") -> pd.DataFrame:
    """Each kind of product in a step: how many, bytes and FLOP of one, its bounds in FP32 and bf16 (µs).

    A bound is the larger of the weights' time in memory and the arithmetic's, on FP32 lanes or tensor
    cores.
    """
    facts = device_of(card)
    memory = float(facts["dram_bandwidth"]) * 1e9
    rates = {FP32: float(facts["fp32"]) * 1e12, BF16: float(facts["bf16_tensor"]) * 1e12}
    streams = shapes.streams * shapes.hidden
    kinds = [
        ("hyper-connection", 2 * shapes.layers, shapes.mix, streams),
        ("indexer's head weights", shapes.kinds.count("c4"), 64, shapes.hidden),
        ("the head's streams", 1, shapes.streams, streams),
        ("gate (stays FP32)", shapes.layers, shapes.experts, shapes.hidden),
    ]
    rows = []
    for name, count, outputs, inputs in kinds:
        flop = 2 * batch * outputs * inputs
        bounds = {
            size: 1e6 * max(size * outputs * inputs / memory, flop / rate) for size, rate in rates.items()
        }
        rows.append(
            {
                "product": name,
                "count": count,
                "outputs": outputs,
                "inputs": inputs,
                "kbytes": FP32 * outputs * inputs / 1e3,
                "mflop": flop / 1e6,
                "fp32_us": bounds[FP32],
                "bf16_us": bounds[BF16],
            }
        )
    return pd.DataFrame(rows)


def rounding(shapes: Shapes, batch: int = 16, seed: int = 0) -> pd.DataFrame:
    """Error of one hyper-connection projection against float64, by the type of operands and result."""
    generator = torch.Generator().manual_seed(seed)
    inputs = shapes.streams * shapes.hidden
    x = torch.randn(batch, inputs, generator=generator).bfloat16()
    weight = torch.randn(shapes.mix, inputs, generator=generator) * inputs**-0.5
    wanted = x.double() @ weight.double().T
    found = {
        "FP32": x.float() @ weight.T,
        "bf16 operands, FP32 result": x.float() @ weight.bfloat16().float().T,
        "bf16 operands, bf16 result": (x.float() @ weight.bfloat16().float().T).bfloat16(),
    }
    return pd.DataFrame(
        [{"product": name, "error": compare.relative(value, wanted)} for name, value in found.items()]
    )


def stage_errors(step: DecodeStep, before: str, after: str) -> pd.DataFrame:
    """Relative error of stage `after` against `before`, for each sublayer of a step on the same inputs."""
    recording = compare.record(step.at_stage(before))
    found = compare.sublayers(step.at_stage(after), recording)
    return pd.DataFrame(
        [
            {"place": part.place.replace("_", " "), "error": part.error, "agreement": part.agreement}
            for part in found
        ]
    )
