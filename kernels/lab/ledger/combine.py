"""The two-pass combine in NumPy, to check its algebra and its rounding without a GPU."""

from __future__ import annotations

import numpy as np

TOKENS = 96
SEED = 5


def _partials(splits: int, width: int):
    """Random scores and values, each split's normalised output, and its log-sum-exp; all float64."""
    random = np.random.default_rng(SEED)
    scores = random.normal(scale=2.0, size=(splits, TOKENS))
    values = random.normal(size=(splits, TOKENS, width))
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    lse = top[:, 0] + np.log(weights.sum(axis=1))
    outputs = np.einsum("st,std->sd", weights, values) / weights.sum(axis=1, keepdims=True)
    return scores, values, outputs, lse


def combine(outputs: np.ndarray, lse: np.ndarray) -> np.ndarray:
    """Merge normalised partial outputs [splits, width] by their log-sum-exp [splits]: maximum first, then the
    sum.
    """
    weights = np.exp(lse - lse.max())
    return (weights[:, None] * outputs).sum(axis=0) / weights.sum()


def two_pass_error(splits: int, width: int) -> float:
    """Largest difference between the combine and one softmax over all tokens."""
    scores, values, outputs, lse = _partials(splits, width)
    flat = np.exp(scores.ravel() - scores.max())
    direct = flat @ values.reshape(-1, width) / flat.sum()
    return float(np.abs(combine(outputs, lse) - direct).max())


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16, ties to even, and back."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def partial_rounding_error(splits: int, width: int) -> float:
    """Relative error (Euclidean norm) that bfloat16 partial outputs add to the combined output."""
    _, _, outputs, lse = _partials(splits, width)
    exact, rounded = combine(outputs, lse), combine(to_bfloat16(outputs), lse)
    return float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact))
