"""Whether graphs run: while a script is only estimated none does, and results are zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Tensor

RESTING: list[None] = []
"""Has something in it while no graph runs."""


def is_resting() -> bool:
    """Whether no graph runs."""
    return bool(RESTING)


@contextmanager
def resting() -> Iterator[None]:
    """Let graphs give zeros instead of running meanwhile, in any thread."""
    RESTING.append(None)
    try:
        yield
    finally:
        RESTING.pop()


def zeros_of(tensors: Sequence[Tensor]) -> list[torch.Tensor]:
    """Return what graphs give that do not run."""
    return [torch.zeros(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype]) for tensor in tensors]
