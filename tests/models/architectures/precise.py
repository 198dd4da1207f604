"""The reference: eager PyTorch in float64, also where a model asks for float32 by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class _Float64(TorchFunctionMode):
    """Turns float32 among the arguments of every call into float64, and ``.float()`` into ``.double()``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None,
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        elif func is torch._grouped_mm:  # has no kernel for float64; transformers comes with another
            func = _grouped_product
        args, kwargs = pytree.tree_map_only(torch.dtype, _widened, (args, kwargs or {}))
        return func(*args, **kwargs)


def _grouped_product(
    rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor, bias: None = None, out_dtype: None = None,
) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(rows, weights, offs)


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float32 else dtype


@contextmanager
def in_float64() -> Iterator[None]:
    """Compute in float64 whatever would be float32: norms and softmax of language models name float32 themselves."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(before)
