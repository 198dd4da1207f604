"""Memory of the caller's as tensors, for steps that call torch: where it lies differs from call to call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from torchipu.host.generic import TORCH_DTYPES
from torchipu.optable.host_tensor import HostTensor


class Lent:
    """Inputs and results of the call that runs, by number of the engine's buffer."""

    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}

    def lend(self, first: int, tensors: Sequence[torch.Tensor]) -> None:
        """Have tensors, the first of which is the buffer of a number, until they are given back."""
        self._tensors.update(enumerate(tensors, first))

    def give_back(self) -> None:
        """Forget what was lent."""
        self._tensors.clear()

    def view(self, number: int, begin_bytes: int, held: HostTensor) -> torch.Tensor:
        """Return a value as a tensor with a storage of its own, which is good until its memory is given back.

        Args:
            number: Of the buffer that it lies in.
            begin_bytes: Where in the buffer it begins.
            held: How it lies, without gaps.
        """
        dtype = TORCH_DTYPES[held.dtype]
        if held.num_elements == 0:
            return torch.empty(held.shape, dtype=dtype)
        num_bytes = held.num_elements * held.dtype.host_bytes
        memory = (ctypes.c_char * num_bytes).from_address(self._tensors[number].data_ptr() + begin_bytes)
        return torch.frombuffer(memory, dtype=dtype).as_strided(held.shape, held.strides)
