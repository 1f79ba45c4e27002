"""What the indexer's rungs move and compute, and how much of it a request asked for."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kernels.indexer.plan import cap_ladder, context_cap
from kernels.lab import roofline
from kernels.lab.roofline import Work

IMPLS = ("uncapped", "capped", "paged")
ENTRY_TOKENS = 4  # one index entry stands for four tokens
CONTEXTS = tuple(2**power for power in range(13, 21))  # 8K to 1M tokens


def work(impl: str, batch: int, context: int, max_context: int) -> Work:
    """Operations and bytes of one layer's logits for `context` live tokens under `max_context` configured
    ones.

    Raises:
        ValueError: an unknown impl, or less configured than live.
    """
    if context > max_context:
        raise ValueError(f"context: got {context}, accepted is max_context={max_context} or less")
    live, configured = context // ENTRY_TOKENS, max_context // ENTRY_TOKENS
    if impl == "uncapped":
        return roofline.uncapped_indexer(batch, configured)
    if impl == "capped":
        return roofline.uncapped_indexer(batch, context_cap(live, configured))
    if impl == "paged":
        return roofline.indexer(batch, live)
    raise ValueError(f"impl: got {impl!r}, accepted are {IMPLS}")


def over_context(batch: int = 1, context: int = 8192, max_contexts: Iterable[int] = CONTEXTS) -> pd.DataFrame:
    """Columns impl, max_context, mbytes, gflop, roof_us (campaign's card): exact counts of one layer."""
    rows = []
    for limit in max_contexts:
        for impl in IMPLS:
            count = work(impl, batch, context, limit)
            roof = roofline.roof(
                count, "rtx-pro-6000", arithmetic="fp8_tensor" if impl == "paged" else "bf16_tensor"
            )
            rows.append({"impl": impl, "max_context": limit, "mbytes": count.bytes / 1e6,
                         "gflop": count.flops / 1e9, "roof_us": roof.us})  # fmt: skip
    return pd.DataFrame(rows)


def useful_share(context: int, max_context: int) -> float:
    """Live entries over scored entries of the uncapped indexer."""
    return (context // ENTRY_TOKENS) / (max_context // ENTRY_TOKENS)


def ladder_table(max_context: int = 1 << 20) -> pd.DataFrame:
    """Columns rung, cap_entries, cap_tokens, worst: every bucket, and scored over live entries just above
    the one below.
    """
    caps = cap_ladder(max_context // ENTRY_TOKENS)
    rows = []
    for number, cap in enumerate(caps):
        shortest = caps[number - 1] + 1 if number else 1
        rows.append({"rung": number + 1, "cap_entries": cap, "cap_tokens": cap * ENTRY_TOKENS,
                     "worst": cap / shortest if number else float("nan")})  # fmt: skip
    return pd.DataFrame(rows)


def parts_table(batch: int = 1, max_context: int = 1 << 20) -> pd.DataFrame:
    """Columns part, mbytes: where the uncapped indexer's bytes go in one layer."""
    parts = work("uncapped", batch, 8192, max_context).parts
    return pd.DataFrame(
        {"part": name.replace("_", " "), "mbytes": size / 1e6} for name, size in parts.items()
    )


def tail_bytes(batch: int, max_context: int) -> int:
    """Bytes of float32 logits that a fill of -inf up to the configured width writes, about all of them."""
    return 4 * batch * (max_context // ENTRY_TOKENS)
