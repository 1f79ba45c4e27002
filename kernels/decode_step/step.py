"""The whole: build once, capture once, replay while lengths change in place.

On a GPU a step is a CUDA graph: thousands of launches without Python between them. Without one the same
code runs eagerly, with the kernels interpreted.
"""

from contextlib import contextmanager

import torch

from kernels.decode_step import layers, memory
from kernels.decode_step import tables as step_tables
from kernels.decode_step.errors import reject
from kernels.decode_step.glue import Glue
from kernels.decode_step.probe import Probe
from kernels.decode_step.shapes import Shapes, flash, tiny
from kernels.decode_step.stages import stage_named
from kernels.decode_step.state import State, plan_state
from kernels.decode_step.weights import Weights, random_weights


class CaptureError(RuntimeError):
    """The step could not be captured into a CUDA graph."""


@contextmanager
def forced_fp32():
    """FP32 products really in FP32: no TF32 behind the stage's back."""
    before = torch.backends.cuda.matmul.allow_tf32
    if before:
        torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        if before:
            torch.backends.cuda.matmul.allow_tf32 = True


class Run:
    """What a layer sees of the step: shapes, weights, state, stage, this step's tables, glue functions,
    probe.
    """

    def __init__(self, weights: Weights, state: State, stage):
        self.shapes = weights.shapes
        self.weights = weights
        self.state = state
        self.stage = stage
        self.glue = Glue(stage.fused, state.device.type)
        self.rows = torch.arange(state.plan.batch, device=state.device)
        self.probe = Probe()
        self.tables = None


class DecodeStep:
    """One decode step at one stage, over weights and state that other stages may share."""

    def __init__(self, weights: Weights, state: State, stage):
        self.stage = stage_named(stage)
        self.inner = Run(weights, state, self.stage)
        self.graph = None
        self.logits = None

    @property
    def weights(self) -> Weights:
        return self.inner.weights

    @property
    def state(self) -> State:
        return self.inner.state

    @property
    def shapes(self) -> Shapes:
        return self.inner.shapes

    @property
    def batch(self) -> int:
        return self.state.plan.batch

    def prepare(self) -> None:
        """Compute the tables that follow from the present lengths."""
        with torch.no_grad():
            self.inner.tables = step_tables.prepare(self.inner)

    def forward(self, probe: Probe | None = None) -> torch.Tensor:
        """Run the step eagerly -> logits bfloat16 [B, vocab]. probe: looks on, see `probe`."""
        self.inner.probe = probe or Probe()
        with torch.no_grad(), forced_fp32():
            self.prepare()
            return layers.forward(self.inner)

    def capture(self, warmups: int = 2) -> "DecodeStep":
        """Record the step as a CUDA graph; `run` then replays it.

        Raises:
            CaptureError: no GPU, or something in the step cannot be captured; the message says what.
        """
        if self.state.device.type != "cuda":
            raise CaptureError(
                f"stage {self.stage.name}: a CUDA graph needs a CUDA device, the step is on a CPU"
            )
        self.release()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warmups):
                self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the warm-up left behind is not for the graph's own pool
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                logits = self.forward()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CaptureError(
                f"stage {self.stage.name}: the CUDA graph could not be captured: {first}"
            ) from error
        self.graph, self.logits = graph, logits
        return self

    def run(self) -> torch.Tensor:
        """One step at the present lengths: a replay where the step was captured, else eagerly -> logits."""
        if self.graph is None:
            return self.forward()
        self.graph.replay()
        return self.logits

    def release(self) -> None:
        """Give up the graph and its memory."""
        self.graph = self.logits = self.inner.tables = None
        if self.state.device.type == "cuda":
            torch.cuda.empty_cache()

    def tokens_per_s(self, step_us: float) -> float:
        """Throughput of a step that takes `step_us` microseconds: every request gains a token."""
        return self.batch * 1e6 / step_us

    def at_stage(self, stage) -> "DecodeStep":
        """The same weights and state at another stage."""
        return DecodeStep(self.weights, self.state, stage)


def check(batch: int, context: int, max_context: int, shapes: Shapes | None = None) -> None:
    """Refuse a batch and contexts that no device could run.

    Raises:
        StepError: names the argument, what came and what is accepted.
    """
    plan_state(shapes or flash(), batch, context, max_context)


def build(
    stage="baseline",
    *,
    batch: int = 1,
    context: int = 8192,
    max_context: int | None = None,
    device="cuda",
    shapes: Shapes | None = None,
    weights: Weights | None = None,
    pool_pages: int | None = None,
    seed: int = 0,
) -> DecodeStep:
    """Weights, caches and tables of one decode step.

    Args:
        stage: a name of `STAGES` or a `Stage`.
        batch: concurrent requests. context: tokens of each, including the current one.
        max_context: tokens that the block tables are wide enough for; the context when None.
        device: "cuda", "cpu" or a `torch.device`.
        shapes: the model; DeepSeek-V4-Flash on a GPU and the tiny one on a CPU when None.
        weights: an earlier step's, to share them.
        pool_pages: pages of 256 tokens in the cache; enough for the batch when None.

    Raises:
        StepError: an argument is not accepted. DoesNotFit: the device's memory is too small; says what
            would fit.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        reject("device", repr(str(device)), "'cpu', because torch sees no CUDA device")
    stage = stage_named(stage)
    if shapes is None:
        shapes = weights.shapes if weights is not None else (flash() if device.type == "cuda" else tiny())
    max_context = context if max_context is None else max_context
    plan = plan_state(shapes, batch, context, max_context, pool_pages)
    if device.type == "cuda":
        room = memory.free_bytes(device)
        memory.check_fits(shapes, stage, batch, context, max_context, room, weights is None, pool_pages)
    weights = random_weights(shapes, device, seed) if weights is None else weights
    return DecodeStep(weights, State(plan, device, seed + 1), stage)
