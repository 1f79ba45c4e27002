"""One decode step of DeepSeek-V4-Flash with random weights at true shapes, in PyTorch and our operators.

`shapes` is the model's arithmetic, `weights` and `state` its memory, `layers` its order, `stages` the
campaign's switches and `step` the whole: built once, captured once, replayed while lengths change in place.
"""

from kernels import triton_mode

triton_mode.ensure()

from kernels.decode_step.errors import DoesNotFit, StepError  # noqa: E402
from kernels.decode_step.left_out import LEFT_OUT  # noqa: E402
from kernels.decode_step.shapes import Shapes, flash, tiny  # noqa: E402
from kernels.decode_step.stages import STAGES, Stage, stage_named  # noqa: E402
from kernels.decode_step.step import CaptureError, DecodeStep, build, check  # noqa: E402

__all__ = [
    "LEFT_OUT",
    "STAGES",
    "CaptureError",
    "DecodeStep",
    "DoesNotFit",
    "Shapes",
    "Stage",
    "StepError",
    "build",
    "check",
    "flash",
    "stage_named",
    "tiny",
]
