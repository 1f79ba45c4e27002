"""Refuses arguments that the kernels would misread, before anything is launched or written."""

from dataclasses import dataclass

import torch

from kernels import triton_mode
from kernels.sparse_mla.layout import BYTE_DTYPES, ENTRY_BYTES, HEAD_DIM

MAX_PAGE_SIZE = (2**31 - 1) // ENTRY_BYTES  # a token's place in its page is computed in 32 bits

MAX_HEADS = 65_535  # programs in a grid's second dimension


class ArgumentError(ValueError):
    """An argument has a shape, dtype, stride, device or value that the operator does not accept."""


def reject(name: str, got, accepted: str):
    """Raise an `ArgumentError` that names the argument, what came and what is accepted."""
    raise ArgumentError(f"{name}: got {got}, accepted is {accepted}")


@dataclass(frozen=True)
class Candidates:
    """One cache and the rows of slots that select from it.

    Attributes:
        cache: uint8 `[pages, P, 1, 584]`.
        indices: int32 `[B, K]`.
        length: int32 `[B]` or None.
    """

    cache: torch.Tensor
    indices: torch.Tensor
    length: torch.Tensor | None

    @property
    def topk(self) -> int:
        return self.indices.shape[1]

    @property
    def page_size(self) -> int:
        return self.cache.shape[1]

    @property
    def page_stride(self) -> int:
        return self.cache.stride(0)


@dataclass(frozen=True)
class Inputs:
    """Checked arguments: q bfloat16 `[B, H, 512]`, one or two `Candidates`, and the sink float32 `[H]` or None."""

    q: torch.Tensor
    main: Candidates
    extra: Candidates | None
    attn_sink: torch.Tensor | None
    softmax_scale: float

    @property
    def extra_topk(self) -> int:
        return 0 if self.extra is None else self.extra.topk


def _tensor(name, value, device):
    if not isinstance(value, torch.Tensor):
        reject(name, type(value).__name__, "a torch.Tensor")
    if value.device != device:
        reject(name, f"device {value.device}", f"the device of q, {device}")


def _shape(value) -> list[int]:
    return list(value.shape)


def check_query(q) -> torch.Tensor:
    """`q` as `[B, H, 512]`; `[B, 1, H, 512]` is accepted, too."""
    if not isinstance(q, torch.Tensor):
        reject("q", type(q).__name__, "a torch.Tensor")
    if q.device.type != "cuda" and not (q.device.type == "cpu" and triton_mode.interpreted()):
        reject("q", f"device {q.device}", "cuda, or cpu where Triton interprets (TRITON_INTERPRET=1)")
    # Triton launches on the current device's current stream, whatever device a pointer belongs to
    if q.device.type == "cuda" and q.device.index != torch.cuda.current_device():
        reject("q", f"device {q.device}", f"the current device, cuda:{torch.cuda.current_device()}")
    if q.dtype != torch.bfloat16:
        reject("q", f"dtype {q.dtype}", "torch.bfloat16")
    if q.dim() == 4 and q.shape[1] == 1:
        q = q[:, 0]
    if q.dim() != 3 or q.shape[2] != HEAD_DIM:
        reject("q", f"shape {_shape(q)}", f"[batch, heads, {HEAD_DIM}] or [batch, 1, heads, {HEAD_DIM}]")
    if not 1 <= q.shape[1] <= MAX_HEADS:
        reject("q", f"shape {_shape(q)}", f"1 to {MAX_HEADS:,} heads")
    if q.stride(2) != 1:
        reject("q", f"strides {q.stride()}", "a last stride of 1")
    return q


def check_cache(name, cache, device) -> torch.Tensor:
    """`cache` as uint8 `[pages, P, 1, 584]`."""
    _tensor(name, cache, device)
    if cache.dtype not in BYTE_DTYPES:
        reject(name, f"dtype {cache.dtype}", "torch.uint8 (or int8, or float8_e4m3fn)")
    if cache.dim() == 3:
        cache = cache[:, :, None]
    if cache.dim() != 4 or cache.shape[2] != 1 or cache.shape[3] != ENTRY_BYTES or cache.shape[1] < 1:
        reject(name, f"shape {_shape(cache)}", f"[pages, page_size, 1, {ENTRY_BYTES}]")
    page_size = cache.shape[1]
    if page_size > MAX_PAGE_SIZE:
        reject(name, f"a page of {page_size} tokens", f"at most {MAX_PAGE_SIZE}")
    if cache.stride(3) != 1 or (page_size > 1 and cache.stride(1) != ENTRY_BYTES):
        reject(name, f"strides {cache.stride()}", f"strides (page bytes, {ENTRY_BYTES}, {ENTRY_BYTES}, 1)")
    if cache.shape[0] > 1 and cache.stride(0) < ENTRY_BYTES * page_size:
        reject(name, f"a page stride of {cache.stride(0)} bytes", f"at least {ENTRY_BYTES} * {page_size}")
    return cache.view(torch.uint8)


def check_candidates(prefix, cache, indices, length, batch, device) -> Candidates:
    """One cache with its indices and lengths; `prefix` is "" or "extra_"."""
    cache = check_cache(f"{prefix}kv_cache", cache, device)
    name = f"{prefix}indices"
    _tensor(name, indices, device)
    if indices.dtype != torch.int32:
        reject(name, f"dtype {indices.dtype}", "torch.int32")
    if indices.dim() == 3 and indices.shape[1] == 1:
        indices = indices[:, 0]
    if indices.dim() != 2 or indices.shape[0] != batch:
        reject(name, f"shape {_shape(indices)}", f"[{batch}, topk] or [{batch}, 1, topk]")
    if indices.shape[1] < 1:
        reject(name, f"shape {_shape(indices)}", "topk of at least 1")
    if indices.shape[1] > 1 and indices.stride(1) != 1:
        reject(name, f"strides {indices.stride()}", "a last stride of 1")
    if length is not None:
        name = f"{prefix}topk_length"
        _tensor(name, length, device)
        if length.dtype != torch.int32:
            reject(name, f"dtype {length.dtype}", "torch.int32")
        if length.dim() == 2 and length.shape[1] == 1:
            length = length[:, 0]
        if length.dim() != 1 or length.shape[0] != batch:
            reject(name, f"shape {_shape(length)}", f"[{batch}] or [{batch}, 1]")
    return Candidates(cache, indices, length)


def check_inputs(
    q,
    kv_cache,
    indices,
    topk_length,
    softmax_scale,
    attn_sink,
    extra_kv_cache,
    extra_indices,
    extra_topk_length,
) -> Inputs:
    """Every tensor argument of the operator, checked and brought to one shape."""
    q = check_query(q)
    batch, heads, _ = q.shape
    main = check_candidates("", kv_cache, indices, topk_length, batch, q.device)
    extra = None
    if extra_kv_cache is not None:
        if extra_indices is None:
            reject("extra_indices", "None", "an int32 tensor, because extra_kv_cache is given")
        extra = check_candidates("extra_", extra_kv_cache, extra_indices, extra_topk_length, batch, q.device)
    elif extra_indices is not None or extra_topk_length is not None:
        reject("extra_kv_cache", "None", "a cache, because extra_indices or extra_topk_length is given")
    if attn_sink is not None:
        _tensor("attn_sink", attn_sink, q.device)
        if attn_sink.dtype != torch.float32 or attn_sink.dim() != 1 or attn_sink.shape[0] != heads:
            reject("attn_sink", f"{attn_sink.dtype} {_shape(attn_sink)}", f"torch.float32 [{heads}]")
        if heads > 1 and attn_sink.stride(0) != 1:
            reject("attn_sink", f"strides {attn_sink.stride()}", "a stride of 1")
    if isinstance(softmax_scale, torch.Tensor) or not isinstance(softmax_scale, (int, float)):
        reject("softmax_scale", type(softmax_scale).__name__, "a Python number")
    return Inputs(q, main, extra, attn_sink, float(softmax_scale))


def check_output(name, value, shape, dtype, device) -> torch.Tensor:
    """A tensor that the caller wants the result in."""
    _tensor(name, value, device)
    if value.dtype != dtype:
        reject(name, f"dtype {value.dtype}", str(dtype))
    if _shape(value) != list(shape):
        reject(name, f"shape {_shape(value)}", str(list(shape)))
    if value.stride(-1) != 1 and value.shape[-1] > 1:
        reject(name, f"strides {value.stride()}", "a last stride of 1")
    if _overlaps(value):
        reject(name, f"shape {_shape(value)} with strides {value.stride()}", "an address for each element")
    return value


def _overlaps(value) -> bool:
    """Whether two elements may share an address: a dimension steps by less than the ones inside it reach."""
    reach = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def check_workspace(workspace, needed: int, device) -> None:
    """Scratch of the caller's: flat bytes, enough of them, where 16-byte stores may start."""
    _tensor("workspace", workspace, device)
    accepted = f"torch.uint8 [{needed}] or more, contiguous, at a multiple of 16"
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or not workspace.is_contiguous():
        got = f"{workspace.dtype} {_shape(workspace)} with strides {workspace.stride()}"
        reject("workspace", got, accepted)
    if workspace.numel() < needed or workspace.data_ptr() % 16:
        reject("workspace", f"{workspace.numel()} bytes at address {workspace.data_ptr():#x}", accepted)


def check_slots(name: str, candidates: Candidates) -> None:
    """Every candidate that counts lies in the cache. Reads the indices on the host: not for a captured graph."""
    indices = candidates.indices
    counts = indices >= 0
    if candidates.length is not None:
        position = torch.arange(indices.shape[1], device=indices.device)
        counts &= position < candidates.length[:, None]
    capacity = candidates.cache.shape[0] * candidates.page_size
    outside = (counts & (indices >= capacity)).nonzero()
    if outside.numel():
        row, position = outside[0].tolist()
        reject(
            name,
            f"slot {int(indices[row, position])} at row {row}, position {position}",
            f"slots below {capacity} ({candidates.cache.shape[0]} pages of {candidates.page_size})",
        )
