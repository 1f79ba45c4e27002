"""Ideas for the sm_120 tile, one file each, in the place of rung `split_k`: compiled, checked, timed, kept or rejected.

    decode("scaled_scores", q, kv_cache, indices)

Nothing here is launched by the operator. `plan` lists the variants with their accuracy class, `_frame` is what they
share, `launch` runs one, `signatures` gives it to the compiler, `emulation` computes in PyTorch what the FP8 ones
must. Chapter 2 shows what came of each.
"""

from kernels.lab.variants.launch import decode
from kernels.lab.variants.plan import VARIANTS, Variant, variant_of

__all__ = ["VARIANTS", "Variant", "decode", "variant_of"]
