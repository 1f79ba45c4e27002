"""Kernels that may take a rung's place: compiled everywhere, checked and timed where a GPU is at hand.

Nothing here is launched by the operator. A candidate that a record shows to be faster moves to `kernels.sparse_mla`.
"""
