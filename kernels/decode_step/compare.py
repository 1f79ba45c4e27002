"""Is a stage right? Against the baseline, sublayer by sublayer on the same inputs, and over the whole step.

Top-k and routing are discrete: a rounding may tip one near equal over another, and after 43 layers two
right steps have gone different ways. So the baseline's choices are played back to the other stage, and how
many of them it would have made itself is checked beside. What remains is rounding, and it has a bound.
"""

from dataclasses import dataclass

import torch

from kernels.decode_step.layers import SUBLAYERS, embed, head
from kernels.decode_step.probe import Playback, Recorder
from kernels.decode_step.step import DecodeStep, forced_fp32

# Relative Frobenius norms. The sharp bound is the sublayer's: it rounds a dozen results to bfloat16 (2**-9).
# Over a step errors add up: 43 layers of the shrunken model end near 0.04, three layers near 0.01.
SUBLAYER_TOLERANCE = 3e-2
STEP_TOLERANCE = 0.1
# Shares of the baseline's choices that a stage makes itself: on the same inputs, and where errors add up.
SUBLAYER_AGREEMENT = 0.97
STEP_AGREEMENT = 0.9


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """|got - wanted| / |wanted| in Frobenius norms; NaN where either is not finite."""
    got, wanted = got.double(), wanted.double()
    return float((got - wanted).norm() / wanted.norm().clamp_min(1e-30))


@dataclass
class Sublayer:
    """One sublayer of a recorded step: streams in and out, its results by name, its choices."""

    name: str
    layer: int
    streams: torch.Tensor
    written: torch.Tensor
    recorder: Recorder


@dataclass
class Recording:
    """A step of the baseline, taken apart."""

    sublayers: list[Sublayer]
    logits: torch.Tensor

    @property
    def choices(self) -> list[torch.Tensor]:
        return [choice for sublayer in self.sublayers for choice in sublayer.recorder.choices]


@dataclass(frozen=True)
class Difference:
    """How far a stage is from the recording at one place: relative error, and the share of choices that
    agree.
    """

    place: str
    error: float
    agreement: float = 1.0
    choices: int = 0


def record(step: DecodeStep) -> Recording:
    """Run a step eagerly and keep every sublayer's input, output, results and choices."""
    sublayers = []
    run = step.inner
    with torch.no_grad(), forced_fp32():
        step.prepare()
        streams = embed(run)
        for number in range(run.shapes.layers):
            for sublayer in SUBLAYERS:
                run.probe = Recorder()
                written = sublayer(run, number, streams)
                sublayers.append(Sublayer(sublayer.__name__, number, streams, written, run.probe))
                streams = written
        logits = head(run, streams)
    return Recording(sublayers, logits)


def sublayers(step: DecodeStep, recording: Recording) -> list[Difference]:
    """Feed each sublayer the recording's streams and choices; the worst of its results by name."""
    found = []
    run = step.inner
    with torch.no_grad(), forced_fp32():
        step.prepare()
        for part, function in zip(recording.sublayers, SUBLAYERS * run.shapes.layers, strict=True):
            run.probe = probe = Playback(part.recorder.choices)
            written = function(run, part.layer, part.streams)
            errors = [relative(written, part.written)]
            for (name, got), (known, wanted) in zip(probe.seen, part.recorder.seen, strict=True):
                assert name == known
                errors.append(relative(got, wanted))
            worst = max(errors, key=lambda error: (error != error, error))
            agreement = min((share for _, share in probe.agreement), default=1.0)
            found.append(
                Difference(f"layer {part.layer} {part.name}", worst, agreement, len(probe.agreement))
            )
    return found


def mean_agreement(found: list[Difference]) -> float:
    """Mean over the sublayers that choose."""
    shares = [part.agreement for part in found if part.choices]
    return sum(shares) / len(shares) if shares else 1.0


def whole_step(step: DecodeStep, recording: Recording) -> Difference:
    """Run the step freely but for the recording's choices, and compare the logits."""
    probe = Playback(recording.choices)
    logits = step.forward(probe)
    shares = [share for _, share in probe.agreement]
    return Difference(
        "step", relative(logits, recording.logits), sum(shares) / len(shares) if shares else 1.0
    )
