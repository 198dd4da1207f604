"""States of a program that lie in the user's tensors: nothing is copied to it and back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torchipu._kernels.abi import Plan
from torchipu.host.arena import aligned_bytes
from torchipu.host.border import typed_view
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.storage import Allocation
from torchipu.optable.host_tensor import HostTensor


class PlacedStates:
    """States with an engine's buffer each, so that they can lie in any memory.

    Args:
        engine: Whose buffers they have, from number ``first`` on.
        first: Number of the first of them.
        states: What the program takes each for.
        allocations: Of the host plan, by number.
    """

    def __init__(
        self, engine: Plan, first: int, states: Sequence[HostTensor], allocations: Sequence[Allocation],
    ) -> None:
        self._engine, self._first, self._states = engine, first, states
        self._numbers = {held.buffer: first + index for index, held in enumerate(states)}
        self._num_bytes = [allocations[held.buffer].num_bytes for held in states]
        self._own: list[Tensor] = []
        self.views: list[Tensor] = []
        """Where they lie, one for each."""
        self._begins: list[int] = []  # of the memory that each takes, from low to high, and where that ends
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._states)

    def number(self, buffer: int) -> int | None:
        """Return the number of an allocation's buffer; None for what is no such state."""
        return self._numbers.get(buffer)

    def view(self, buffer: int) -> Tensor:
        """Return a state where it lies."""
        return self.views[self._numbers[buffer] - self._first]

    @property
    def num_bytes(self) -> int:
        """Memory that is not the user's."""
        return sum(len(memory) for memory in self._own)

    def overlap(self, begin: int, end: int) -> bool:
        """Whether a state lies, in part at least, between two addresses."""
        place = bisect_left(self._begins, end)  # the last of those that begin before the end reaches furthest
        return place > 0 and begin < self._ends[place - 1]

    def place(self, tensors: Sequence[Tensor]) -> bool:
        """Let the states lie in the user's tensors; where these will not do, in memory of the plan's own.

        Args:
            tensors: One for each state; they stay where they are until the next call.

        Returns:
            Whether they lie in the user's.
        """
        is_users = self._suits(tensors)
        if is_users:
            self._own = []
            self.views = [tensor.detach() for tensor in tensors]
        else:
            self._own = self._own or [aligned_bytes(num_bytes) for num_bytes in self._num_bytes]
            self.views = [typed_view(memory, 0, held) for memory, held in zip(self._own, self._states, strict=True)]
        for index, view in enumerate(self.views):
            self._engine.bind(self._first + index, view.data_ptr())
        taken = _stretches(self.views)
        self._begins, self._ends = [begin for begin, _ in taken], [end for _, end in taken]
        return is_users

    def _suits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether each tensor is as the program has its state, with memory that it shares with no other."""
        return all(map(_is_as, tensors, self._states)) and _are_apart(tensors)


def _is_as(tensor: Tensor, held: HostTensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    is_same = tensor.dtype is TORCH_DTYPES[held.dtype] and tuple(tensor.shape) == tuple(held.shape)
    return is_same and tensor.is_contiguous() and not tensor.is_neg() and bool(tensor.data_ptr() or not tensor.numel())


def _are_apart(tensors: Sequence[Tensor]) -> bool:
    """Whether no two tensors share memory."""
    return all(end <= after for (_, end), (after, _) in pairwise(_stretches(tensors)))


def _stretches(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return where the memory of tensors without gaps begins and ends, from low to high; of empty ones nothing."""
    return sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors if tensor.numel())
