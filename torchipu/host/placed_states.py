"""States of a program that lie in the user's tensors, where these will do: nothing is copied to it and back."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Sequence

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
        self._own: dict[int, Tensor] = {}  # by place among the states
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
        return sum(len(memory) for memory in self._own.values())

    def overlap(self, begin: int, end: int) -> bool:
        """Whether a state lies, in part at least, between two addresses."""
        place = bisect_left(self._begins, end)  # the last of those that begin before the end reaches furthest
        return place > 0 and begin < self._ends[place - 1]

    def place(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Let each state lie in the user's tensor; where that will not do, in memory of the plan's own.

        Args:
            tensors: One for each state; they stay where they are until the next call.

        Returns:
            For each whether it lies in the user's.
        """
        are_users = list(map(operator.and_, _are_apart(tensors), map(_is_as, tensors, self._states)))
        self._own = {place: self._own_memory(place) for place, is_users in enumerate(are_users) if not is_users}
        self.views = [
            tensor.detach() if is_users else typed_view(self._own[place], 0, self._states[place])
            for place, (tensor, is_users) in enumerate(zip(tensors, are_users, strict=True))
        ]
        for index, view in enumerate(self.views):
            self._engine.bind(self._first + index, view.data_ptr())
        taken = sorted(filter(None, map(_stretch, self.views)))
        self._begins, self._ends = [begin for begin, _ in taken], [end for _, end in taken]
        return are_users

    def _own_memory(self, place: int) -> Tensor:
        return self._own[place] if place in self._own else aligned_bytes(self._num_bytes[place])


def _is_as(tensor: Tensor, held: HostTensor) -> bool:
    """Whether a tensor is as the program has its state."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    is_same = tensor.dtype is TORCH_DTYPES[held.dtype] and tuple(tensor.shape) == tuple(held.shape)
    return is_same and tensor.is_contiguous() and not tensor.is_neg() and bool(tensor.data_ptr() or not tensor.numel())


def _are_apart(tensors: Sequence[Tensor]) -> list[bool]:
    """Return for each tensor whether it shares memory with no other."""
    found = sorted((*stretch, place) for place, tensor in enumerate(tensors) if (stretch := _stretch(tensor)))
    are_apart, furthest, of = [True] * len(tensors), 0, 0
    for begin, end, place in found:
        if begin < furthest:
            are_apart[place] = are_apart[of] = False
        if end > furthest:
            furthest, of = end, place
    return are_apart


def _stretch(tensor: Tensor) -> tuple[int, int] | None:
    """Return where the memory of a tensor begins and ends; None for one without."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
