"""Capture of a model whose weights have no values: other processes have them, or nobody has."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor

NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # Python 3.13 names it
"""Asks the kernel for addresses only, more than there is memory."""


@contextlib.contextmanager
def standing_in(module: torch.nn.Module) -> Iterator[None]:
    """Put tensors of the host in the place of parameters and buffers without values, as long as it lasts.

    They have addresses and no memory: no page of theirs is ever written.
    """
    replaced: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    made: dict[int, torch.Tensor] = {}
    for member in module.modules():
        for tensors in (member._parameters, member._buffers):
            for name, tensor in tensors.items():
                if tensor is None or has_values(tensor):
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = stand_in_of(tensor)
                replaced.append((tensors, name, tensor))  # type: ignore[arg-type]
                tensors[name] = made[id(tensor)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for tensors, name, tensor in replaced:
            tensors[name] = tensor


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is neither of the meta device nor fake."""
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def stand_in_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the host like one without values, with pages that are not there until they are written."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    pages = mmap.mmap(-1, max(1, extent * tensor.element_size()), flags=flags)
    value = torch.frombuffer(pages, dtype=tensor.dtype, count=extent).as_strided(tensor.shape, tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value
