"""What the step leaves out or does otherwise than an engine, with an estimate of what it would change.

Estimates are arithmetic on the model's sizes and a memory of 4.3 TB/s (H200), for batch 16 and a step of
about 30 ms; none is measured here.
"""

LEFT_OUT = (
    ("communication", "two all-reduces a layer of [B, 4096] bf16 (86 a step)",
     "5 to 15 % of a step: 86 latencies of 10 to 30 µs, more over PCIe"),
    ("sampling", "from the logits [B, 129280]", "under 1 %: one pass over 4 MB at batch 16"),
    ("FP4 experts", "the checkpoint's experts are MXFP4, here bf16: 3.8 times the bytes",
     "experts take about 4 ms too long at batch 16, so their share is overstated"),
    ("FP8 projections", "the checkpoint's are FP8 in blocks of 128 x 128, here bf16: twice the bytes",
     "projections take about 1.1 ms too long, at every batch"),
    ("tensor parallelism", "projections and attention at all 64 heads, experts at one rank's share of eight",
     "a rank of eight reads an eighth of wq_b, wo_a, wo_b: about 2 ms less"),
    ("MTP layer", "the model's 44th layer, which drafts tokens", "about one part in 44 when it is used"),
    ("pooling at every step", "ratio-128 pooling is computed each step and kept every 128th",
     "about 0.5 ms of glue at batch 64; an engine's kernel returns early"),
    ("separate embedding", "lm_head's matrix is also the embedding", "none in time, 1 GB less memory"),
)  # fmt: skip
