"""How a tensor of a captured model is printed: as PopTorch prints one of the IPU, without a class of the tracer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor


@contextlib.contextmanager
def tensors_shown(
    value_of: Callable[[torch.Tensor], torch.Tensor | None], on_host: Callable[[Callable[[], Any]], Any],
) -> Iterator[None]:
    """Let captured tensors be printed as ``tensor(<unavailable>, ...)``, those whose values are known with these.

    Args:
        value_of: Gives the value of a tensor that is known at capture, else None.
        on_host: Makes a call that is not captured.
    """
    def shown(tensor: torch.Tensor, **_options: Any) -> str:
        value = value_of(tensor)
        if value is not None:
            return str(on_host(lambda: repr(value)))
        sizes, kind = tuple(tensor.shape), tensor.dtype
        dtype = "" if kind == torch.float32 else f", dtype={kind}"
        return f"tensor(<unavailable>, device='ipu:0', size={sizes}{dtype})"

    tracer: Any = FunctionalTensor
    before = tracer.__repr__
    tracer.__repr__ = shown
    try:
        yield
    finally:
        tracer.__repr__ = before
