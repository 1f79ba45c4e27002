"""The step as a whole: lengths in place, nothing on the host, errors that say what is accepted."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import decode_step
from kernels.decode_step import compare, memory, ranges, state
from kernels.decode_step.shapes import flash, tiny

HOST = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "item", "equal")


class Watch(TorchDispatchMode):
    """Lists every operation with the shapes of its results, outside our operators (interpreted ones use the
    host).
    """

    def __init__(self):
        super().__init__()
        self.operations = []
        self.inside = 0

    def enter(self, group, launches):
        self.inside += launches is not None

    def leave(self, group):
        self.inside = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not self.inside:
            shapes = [
                tuple(t.shape) for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)
            ]
            self.operations.append((function._schema.name.split("::")[-1], shapes))
        return out


def watched(step):
    watch = Watch()
    ranges.listeners.append(watch)
    try:
        with watch:
            step.forward()
    finally:
        ranges.listeners.remove(watch)
    return watch.operations


@pytest.mark.parametrize("stage", ["baseline", "bf16_gemm"])
def test_nothing_depends_on_a_length_on_the_host(stage):
    step = decode_step.build(stage, batch=2, context=256, max_context=512, device="cpu")
    first = watched(step)
    assert not [name for name, _ in first if name in HOST]
    step.state.set_lengths([3, 301])
    assert watched(step) == first, "another length runs other operations or shapes: a graph would be wrong"


def test_lengths_change_in_place():
    """Two steps over a group's end, with rows of other lengths, some without any entry, as the baseline
    does.
    """
    build = dict(
        batch=4, context=256, max_context=512, device="cpu", shapes=replace(tiny(2), ratios=(4, 128))
    )
    baseline, other = decode_step.build("baseline", **build), decode_step.build("bf16_gemm", **build)
    lengths = torch.tensor([2, 3, 127, 255])
    for step in (baseline, other):
        step.state.set_lengths(lengths)
    table = other.state.lengths
    for _ in range(2):
        recording = compare.record(baseline)
        found = compare.whole_step(other, recording)
        assert found.error <= compare.STEP_TOLERANCE
        baseline.state.advance()
        other.state.advance()
    assert table.data_ptr() == other.state.lengths.data_ptr()
    assert other.state.lengths.tolist() == [4, 5, 129, 257]


def test_a_step_is_repeatable(baseline, recording):
    assert torch.equal(baseline.run(), recording.logits)
    assert compare.whole_step(baseline, recording).error == 0


def test_a_request_does_not_depend_on_its_neighbours(baseline):
    step = baseline.at_stage("split_k")
    step.state.set_lengths([256, 256])
    together = step.run()
    step.state.set_lengths([256, 9])
    assert compare.relative(step.run()[:1], together[:1]) <= 2e-2
    step.state.set_lengths(256)


def test_dead_entries_of_the_table_are_not_read_once_capped(baseline):
    step = baseline.at_stage("indexer_cap")
    wanted = step.run()
    kept = step.state.block_table.clone()
    step.state.block_table[:, step.state.plan.row_pages :] = 2**30
    assert torch.equal(step.run(), wanted)
    step.state.block_table.copy_(kept)


REFUSED = [
    (dict(stage="fast"), "stage: got 'fast', accepted is one of baseline"),
    (dict(batch=0), "batch: got 0, accepted is an integer from 1"),
    (dict(batch=2.5), "batch: got 2.5"),
    (dict(context=600, max_context=512), "max_context: got 512, accepted is at least the context, 600"),
    (dict(batch=9, pool_pages=8), "batch: got 9 requests of 2 pages each, accepted is at most 4"),
    (dict(pool_pages=0), "pool_pages: got 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(arguments, message):
    given = dict(stage="baseline", batch=2, context=256, max_context=512, device="cpu") | arguments
    with pytest.raises(decode_step.StepError) as error:
        decode_step.build(given.pop("stage"), **given)
    assert message in str(error.value)


@pytest.mark.parametrize("lengths", [0, 600, [256, 513]])
def test_lengths_outside_the_pages_are_refused(baseline, lengths):
    with pytest.raises(decode_step.StepError, match="lengths: got .* accepted is 1 to 512"):
        baseline.state.set_lengths(lengths)


def test_a_cpu_captures_nothing(baseline):
    with pytest.raises(decode_step.CaptureError, match="baseline: a CUDA graph needs a CUDA device"):
        baseline.capture()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_missing_gpu_is_named():
    with pytest.raises(decode_step.StepError, match="device: got 'cuda'"):
        decode_step.build(device="cuda")


def test_cache_bytes_is_what_is_allocated(baseline):
    def tensors(node):
        if isinstance(node, torch.Tensor):
            yield node
        elif isinstance(node, tuple):
            for item in node:
                yield from tensors(item)
        elif hasattr(node, "__dataclass_fields__"):
            for name in node.__dataclass_fields__:
                yield from tensors(getattr(node, name))

    held = baseline.state
    everything = [*tensors(held.caches), held.block_table, held.index_logits]
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in everything)
    assert held.plan.cache_bytes() == pytest.approx(allocated, rel=0.01)


def test_what_does_not_fit_says_what_would():
    s, stage = flash(), decode_step.STAGES["baseline"]
    room = int(120e9)
    with pytest.raises(decode_step.DoesNotFit) as error:
        memory.check_fits(s, stage, 4096, 8192, 1 << 20, room, with_weights=True)
    message = str(error.value)
    assert (
        "batch: 4096 at context 8,192 and max_context 1,048,576 needs" in message
        and "120.0 GB are free" in message
    )
    best = int(message.rsplit("batch ", 1)[1].split()[0])
    assert best > 1
    memory.check_fits(s, stage, best, 8192, 1 << 20, room, with_weights=True)
    with pytest.raises(decode_step.DoesNotFit):
        memory.check_fits(s, stage, best + 1, 8192, 1 << 20, room, with_weights=True)
    with pytest.raises(decode_step.DoesNotFit, match="not even batch 1 fits"):
        memory.check_fits(s, stage, 1, 8192, 1 << 20, int(10e9), with_weights=True)


def test_the_planned_steps_fit_an_h200():
    s = flash()
    for stage in decode_step.STAGES.values():
        memory.check_fits(s, stage, 64, 8192, 1 << 20, int(135e9), with_weights=True)


def test_what_is_left_out_is_named():
    names = [name for name, _, _ in decode_step.LEFT_OUT]
    assert {"communication", "sampling", "FP4 experts"} <= set(names)
    assert all(effect for _, _, effect in decode_step.LEFT_OUT)
    assert state.EXTRA_PAGE == {"c4": 64, "c128": 2}
