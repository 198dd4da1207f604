"""How tensors of torch lie in memory that kernels read, and how memory is shown as tensors."""

from __future__ import annotations

import torch

from torchipu.fp8.torch_types import NAMES as FLOAT8
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.output_memory import OutputMemory
from torchipu.optable.host_tensor import HostTensor


def resolved(value: torch.Tensor) -> torch.Tensor:
    """Return the value as its memory holds it: torch may leave a sign to the reader, or zeros without memory.

    Complex numbers become pairs, ``[..., 2]``, floats of 8 bits bytes.
    """
    if value._is_zerotensor():
        value = value.clone()
    if value.dtype in FLOAT8:
        return value.view(torch.uint8)
    if value.is_complex():
        return torch.view_as_real(value.resolve_conj().resolve_neg())
    return value.resolve_neg()


def as_pairs(state: torch.Tensor) -> torch.Tensor:
    """Return a state, or the same memory as pairs, ``[..., 2]``, or bytes: of complex numbers, or floats of 8 bits."""
    if state.dtype in FLOAT8:
        return state.detach().view(torch.uint8)
    return torch.view_as_real(state.detach()) if state.is_complex() else state


def as_type(value: torch.Tensor, dtype: torch.dtype, memory: OutputMemory | None = None) -> torch.Tensor:
    """Return a result in the type that the caller knows it by; pairs, ``[..., 2]``, become complex numbers.

    Args:
        value: The result.
        dtype: The type.
        memory: Where numbers that are converted lie; in memory of torch's unless given.
    """
    if value.dtype is dtype:
        return value
    if dtype in FLOAT8:
        return value.view(dtype)
    if not dtype.is_complex or value.is_complex():
        return value.to(dtype) if memory is None else memory.copies([value], [dtype])[0]
    pairs = value.to(dtype.to_real()).contiguous()
    if pairs.dim() == 1 and len(pairs) > 2:  # numbers of several micro-batches, joined
        pairs = pairs.view(-1, 2)
    return torch.view_as_complex(pairs)


def typed_view(memory: torch.Tensor, offset_bytes: int, held: HostTensor) -> torch.Tensor:
    """Return a torch tensor over part of a byte buffer."""
    dtype = TORCH_DTYPES[held.dtype]
    start = offset_bytes + held.offset * held.dtype.host_bytes
    extent = 1 + sum((n - 1) * s for n, s in zip(held.shape, held.strides, strict=True)) if held.num_elements else 0
    flat = memory[start : start + extent * held.dtype.host_bytes].view(dtype)
    return flat.as_strided(held.shape, held.strides)
