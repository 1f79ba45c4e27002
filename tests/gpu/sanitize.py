"""Runs every kernel once at small shapes, for NVIDIA's compute-sanitizer.

    for tool in memcheck racecheck initcheck synccheck; do
        compute-sanitizer --tool $tool --num-cuda-barriers 64 --error-exitcode 1 python tests/gpu/sanitize.py
    done

racecheck has been seen to end with 0 though it had printed hazards: read its last line. Without
`--num-cuda-barriers`, it prints two for the kernel with mbarriers (README.md): Triton's modules do not tell the tool
how many they use. No other hazard is known.

PyTorch's caching allocator hides reads past a tensor and of unwritten memory, so it is switched off here.
Results and scratch come from `torch.empty`, so that initcheck sees a read of what nobody wrote. The oracle is
computed on the CPU, so that only the kernels run under the tool. Without a GPU, `--device cpu` interprets the
same calls. `--only TEXT` runs the calls whose name holds TEXT.

Calls of a pair of blocks (`staged-few-pair`) are left out unless `--only` names them: without `--num-cuda-barriers` the
first one did not come to an end under any tool. With it, memcheck reported nothing; the others have not been tried.
"""

import argparse
import itertools
import os
import sys
import time
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    # Before PyTorch looks, and not where a test imports this: without its cache nothing can be allocated in a capture
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels import triton_mode  # noqa: E402

SPLITTING = ("split_k", "staged")
ENDLESS = "staged-few-pair"


def attention_calls(device):
    """(name, call) for every rung of sparse MLA: words and odd bytes, one and two caches, empty rows."""
    import torch

    from kernels.sparse_mla import IMPLS, sparse_mla_decode
    from tests.sparse_mla import cases

    rows = [("alternating", "K"), ("none", "K"), ("dense", 1), ("dense", 0)]

    def case_of(where, offset, caches, heads, width=35):
        main = cases.make_side(cases.make_cache(53, 40, offset=offset, device=where), rows, width, 16)
        extra = None
        if caches == 2:
            extra = cases.make_side(cases.make_cache(2, 20, device=where), rows[::-1], 9, 16)
        q = cases.make_query(len(rows), heads, device=where)
        return cases.Case(q, main, extra, torch.zeros(heads, device=where))

    def run(impl, num_splits, shape):
        chosen = cases.how(impl, num_splits=num_splits)
        out, lse = sparse_mla_decode(**case_of(device, *shape).arguments, **chosen)
        expected = case_of("cpu", *shape).expected()
        found = cases.compare(out.cpu(), lse.cpu(), expected, cases.rounded_factors(impl))
        assert not found, found

    impls = IMPLS if device == "cuda" else cases.interpretable_impls()
    heads_tried = (2, 20, 64) if device == "cuda" else (2,)
    for impl, offset, caches, heads in itertools.product(impls, (0, 3), (1, 2), heads_tried):
        if offset and impl not in cases.INTERPRETABLE:
            continue  # a rung that reads words only
        for splits in (1, 3) if impl in SPLITTING else (None,):
            shape = (offset, caches, heads)
            name = f"sparse_mla {impl} offset {offset} caches {caches} heads {heads} splits {splits}"
            yield name, partial(run, impl, splits, shape)
    if device != "cuda":
        return
    # So few rows get none of these tiles from the planner
    for impl, caches, heads, splits in itertools.product(cases.runnable_tiles(), (1, 2), (20, 64), (1, 3)):
        name = f"sparse_mla {impl} offset 0 caches {caches} heads {heads} splits {splits}"
        yield name, partial(run, impl, splits, (0, caches, heads))
    # A wide tile and a rest; a loop over wide tiles
    if "staged-wide" in cases.runnable_tiles():
        for width, caches in itertools.product((150, 290), (1, 2)):
            name = f"sparse_mla staged-wide offset 0 caches {caches} heads 64 splits 1 width {width}"
            yield name, partial(run, "staged-wide", 1, (0, caches, 64, width))
    # Shares of few heads that come back to room where there was a tile before
    for impl, caches in itertools.product(("staged-few", "staged-few-pair"), (1, 2)):
        if impl in cases.runnable_tiles():
            name = f"sparse_mla {impl} offset 0 caches {caches} heads 8 splits 1 width 1000"
            yield name, partial(run, impl, 1, (0, caches, 8, 1000))


def indexer_calls(device):
    """(name, call) for the indexer: logits with their tail, top-k of short rows and of sliced ones."""
    import torch

    from kernels.indexer import indexer_logits, indexer_topk, topk_reference
    from tests.indexer.cases import make_case

    def run(lengths, dtype):
        case = make_case(lengths, past=-1, query_dtype=dtype, device=device)
        logits = indexer_logits(*case.inputs, impl="paged")
        chosen = indexer_topk(logits, case.seq_lens, case.block_table, 64, impl="radix")
        expected = topk_reference(logits.cpu(), case.seq_lens.cpu(), case.block_table.cpu(), 64)
        assert torch.equal(chosen.cpu(), expected)

    for dtype in (torch.float8_e4m3fn, torch.bfloat16):
        yield f"indexer short rows {dtype}", partial(run, [0, 1, 63, 64, 65, 200], dtype)
    # Long enough that several programs share a row at the device's tiles
    longest = 20_000 if device == "cuda" else 700
    yield "indexer long rows", partial(run, [longest, 5, longest // 2], torch.float8_e4m3fn)


def asked_for(name: str, only: str) -> bool:
    """Whether `--only` asks for a call: those that do not end under the tools have to be named."""
    return only in name and (ENDLESS not in name or ENDLESS in only)


def main(arguments=None) -> int:
    """Run the calls and print each with its seconds; the number of calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    device = triton_mode.choose(options.device)
    import torch

    count = 0
    for name, call in (*attention_calls(device), *indexer_calls(device)):
        if not asked_for(name, options.only):
            continue
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        count += 1
    print(f"{count} calls on {device}")
    return count


if __name__ == "__main__":
    sys.exit(0 if main() else "no call matched --only")
