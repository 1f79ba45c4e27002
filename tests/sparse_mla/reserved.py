"""Where Triton puts a kernel's own buffers beside the one that PTX addresses itself: needs compiled kernels."""

import json
import re


def main() -> None:
    """Print, for each tile for few heads, the reserved bytes and the offsets at which other buffers begin."""
    import triton
    from triton.backends.compiler import GPUTarget

    from kernels.lab.compile import worker
    from kernels.sparse_mla import few_heads, signatures
    from tests.sparse_mla import cases

    found = []
    for tile in cases.OTHER_KERNELS.values():
        if not tile.few:
            continue
        spec = signatures.signature("staged", tile, heads=8, num_splits=1, extra_topk=128, has_length=True)
        target, options = GPUTarget("cuda", 90, 32), worker.options_of(spec)
        kernel = triton.compile(worker.source_of(spec), target=target, options=options)
        # Without a number behind it, a buffer begins at 0
        begins = {
            int(at or 0) for at in re.findall(r"@global_smem(?! = )(?:, i32 (\d+))?", kernel.asm["llir"])
        }
        places = few_heads.places(tile.block_t, tile.num_stages, tile.pair)
        found.append((places[-1], sorted(begins)))
    print(json.dumps(found))
