"""Where values lie on the host, and how they are rounded to half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.ir.types import DType


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A strided view of a host buffer.

    Attributes:
        buffer: Number of the buffer in the plan.
        offset: Elements from the beginning of the buffer.
        shape: Sizes.
        strides: Elements between neighbours along each dimension; 0 where expanded.
        dtype: Element type in memory.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def num_elements(self) -> int:
        """Product of the sizes."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie row-major without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a result becomes half.

    Attributes:
        random: LONG[4] of a random op (see ``HostPlanner.random_state``) to round stochastically; None to round to
            nearest.
        overflow: What becomes of values beyond 65504.
    """

    random: HostTensor | None = None
    overflow: HalfOverflow = HalfOverflow.INFINITY


TO_NEAREST = Rounding()


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
