"""Do the indexer's rungs select the same entries, and who reads a captured row stride rightly?"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from kernels.indexer import (
    INDEX_DIM,
    INDEX_HEADS,
    PAGE_ENTRIES,
    allocate_index_cache,
    indexer_logits,
    indexer_logits_reference,
    indexer_topk,
    store_index_keys,
    topk_reference,
)
from kernels.indexer.capped import capped_columns, repacked_columns
from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import box, canvas, say


def inputs(device: str, lengths, width: int, seed: int = 6) -> dict[str, torch.Tensor]:
    """Arguments of `indexer_logits` for rows of `lengths` entries in a table `width` entries wide; dead
    bytes are NaN.

    Table entries past a row's pages name a page full of NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, columns = len(lengths), width // PAGE_ENTRIES
    needed = [-(-length // PAGE_ENTRIES) for length in lengths]
    cache = allocate_index_cache(sum(needed) + 1, device=device, fill=0xFF)
    order = torch.randperm(sum(needed), generator=generator)
    table = torch.full((batch, columns), sum(needed), dtype=torch.int32)
    start = 0
    for row, (length, pages) in enumerate(zip(lengths, needed, strict=True)):
        mine = order[start : start + pages]
        table[row, :pages] = mine.to(torch.int32)
        slots = (mine[:, None] * PAGE_ENTRIES + torch.arange(PAGE_ENTRIES)).reshape(-1)[:length]
        if length:
            store_index_keys(
                cache, slots.to(device), torch.randn(length, INDEX_DIM, generator=generator).to(device)
            )
        start += pages
    q = torch.randn(batch, INDEX_HEADS, INDEX_DIM, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.randn(batch, INDEX_HEADS, generator=generator) * (INDEX_HEADS * INDEX_DIM) ** -0.5
    return {
        "q": q.to(device), "index_cache": cache, "weights": weights.to(device),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device), "block_table": table.to(device),
    }  # fmt: skip


def same_selection(device: str) -> pd.DataFrame:
    """Columns impl, product, logits_error, selected, shared: every rung's top-k against the float64
    reference's.

    shared: selected indices that the reference selects, too. The product of the two PyTorch rungs is
    computed as the campaign met it (bf16) and in float32, so that rounding and capping can be told apart.
    """
    lengths, width, k = (
        ([8192, 2048, 700, 1], 65536, 512) if device == "cuda" else ([1000, 300, 65, 1], 4096, 64)
    )
    given = inputs(device, lengths, width)
    want = indexer_logits_reference(**given, max_seq_len=width)
    best = topk_reference(want, given["seq_lens"], given["block_table"], k)
    live = torch.isfinite(want)
    rows = []
    for impl, dtype in (("uncapped", torch.bfloat16), ("uncapped", torch.float32),
                        ("capped", torch.bfloat16), ("capped", torch.float32), ("paged", None)):  # fmt: skip
        options = {} if dtype is None else {"compute_dtype": dtype}
        logits = indexer_logits(**given, impl=impl, max_seq_len=width, **options)
        error = (logits.double() - want)[live].pow(2).mean().sqrt() / want[live].pow(2).mean().sqrt()
        got = indexer_topk(logits, given["seq_lens"], given["block_table"], k)
        pairs = [(set(a.tolist()) - {-1}, set(b.tolist()) - {-1}) for a, b in zip(got, best, strict=True)]
        product = {None: "fp8 keys", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
        rows.append({"impl": impl, "product": product,
                     "logits_error": float(error), "selected": sum(len(b) for _, b in pairs),
                     "shared": sum(len(a & b) for a, b in pairs), "logits": logits})  # fmt: skip
    return pd.DataFrame(rows)


def bit_equal(table: pd.DataFrame, product: str) -> bool:
    """Whether the capped logits are the uncapped ones, bit for bit, with the same product type."""
    rows = table[table["product"] == product].set_index("impl")["logits"]
    return torch.equal(rows["uncapped"], rows["capped"])


def stride_trap(device: str) -> pd.DataFrame:
    """Columns row, kept, repacked: share of each row's top-k that a consumer captured at full width gets
    right.

    The consumer is a top-k over a buffer whose row stride it knew when it was captured. Then the same
    scores arrive in the first `cap` columns of every row (kept), or packed at stride `cap` (repacked). On
    CUDA the consumer is a real captured graph that is replayed; on a CPU it is the same call again.
    """
    batch, width, cap, k = (4, 65536, 4096, 512) if device == "cuda" else (4, 4096, 1024, 64)
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(batch, cap, generator=generator).to(device)
    lengths = torch.full((batch,), cap, dtype=torch.int32, device=device)
    table = torch.arange(batch * width // PAGE_ENTRIES, dtype=torch.int32, device=device).reshape(batch, -1)
    buffer = torch.full((batch, width), -torch.inf, device=device)
    found = torch.empty(batch, k, dtype=torch.int32, device=device)

    def consumer():
        indexer_topk(buffer, lengths, table, k, out=found)

    if device == "cuda":
        from kernels.lab.timing import capture

        replay = capture([consumer]).replay
    else:
        replay = consumer
    want = topk_reference(scores, lengths, table, k)
    shares = {}
    for name, view in (("kept", capped_columns), ("repacked", repacked_columns)):
        buffer.fill_(-torch.inf)
        view(buffer, cap).copy_(scores)
        replay()
        shares[name] = [len(set(a.tolist()) & set(b.tolist())) / k for a, b in zip(found, want, strict=True)]
    return pd.DataFrame({"row": range(batch), **shares})


def stride_diagram(rows: int = 4) -> Figure:
    """One buffer written twice: at the captured row stride, and packed; arrows show where the reader
    looks.
    """
    fig, ax = canvas(3.5, (-3.2, 16.6), (-0.4, 8.2))
    wide, cap = 4.0, 1.0
    tints = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)
    for y, title, stride in ((5.2, "stride kept", wide), (1.0, "stride\nnarrowed", cap)):
        say(ax, -3.2, y + 0.6, title, bold=True, size=10)
        box(ax, 0, y, wide * rows, 1.2, "#e9edf1", edge=style.RULE)
        for row in range(rows):
            box(
                ax,
                row * stride,
                y,
                cap,
                1.2,
                tints[row],
                str(row),
                ink="white" if row % 2 == 0 else "black",
                bold=True,
            )
            x = row * wide
            ax.plot([x, x], [y - 0.25, y + 1.45], color=style.INK, linewidth=1.2)
            right = row == 0 or stride == wide
            text = f"reader's row {row}" if right else f"row {row}: nothing"
            say(ax, x + 0.1, y + 1.9, text, size=8.5, colour=style.INK if right else style.VERMILLION)
    text = "memory of one [rows, width] buffer; numbers are the rows whose scores lie there"
    say(ax, 0, -0.1, text, size=8.5, colour=style.MUTED)
    plt.close(fig)
    return fig
