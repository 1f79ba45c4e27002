"""Kernels of one decode step, each kept as a ladder of versions, and the instruments that study them.

`kernels.sparse_mla` and `kernels.indexer` are operators, `kernels.decode_step` chains them, `kernels.lab`
measures and explains them. Importing this package alone loads neither torch nor Triton.
"""

__version__ = "0.1.0"
