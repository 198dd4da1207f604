"""Whether inputs that a program writes into overlap others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from torchipu.ir.graph import Tensor


class Apartness:
    """Looks at where the inputs of a call lie.

    Args:
        inputs: Of the graph.
        written: Numbers of those that are written into.
    """

    def __init__(self, inputs: Sequence[Tensor], written: Collection[int]) -> None:
        self.written = frozenset(written)
        self.sizes = [tensor.num_elements * tensor.dtype.host_bytes for tensor in inputs]
        self._last: tuple[list[int], bool] | None = None  # most calls bring the tensors of the one before

    def holds(self, values: Sequence[torch.Tensor]) -> bool:
        """Whether none of those that are written into overlaps another one.

        Args:
            values: Of all inputs; False where one that is written into is not row-major.
        """
        if not all(value.is_contiguous() for value in values):
            return False
        begins = [value.data_ptr() for value in values]
        last = self._last
        if last is not None and last[0] == begins:
            return last[1]
        are_apart = self._are_apart(begins)
        self._last = begins, are_apart
        return are_apart

    def _are_apart(self, begins: Sequence[int]) -> bool:
        end, end_of_written = 0, 0
        for begin, size, number in sorted(zip(begins, self.sizes, range(len(begins)), strict=True)):
            is_written = number in self.written
            if size and begin < (end if is_written else end_of_written):
                return False
            end = max(end, begin + size)
            if is_written:
                end_of_written = max(end_of_written, begin + size)
        return True
