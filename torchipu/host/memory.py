"""The storage of a host plan while it is made: allocations by number, and what constants hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu.host.storage import Allocation, Place, lay_out
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, contiguous_strides


class Memory:
    """What the steps of a plan read and write.

    Attributes:
        allocations: By number; where each lies is decided when all steps are known.
        constants: Contents and type of constant allocations, by number.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.constants: dict[int, tuple[tuple[float, ...] | tuple[int, ...], DType]] = {}

    def allocate(self, num_bytes: int, place: Place, index: int = 0) -> Allocation:
        """Return a fresh allocation."""
        allocation = Allocation(len(self.allocations), num_bytes, place, index)
        self.allocations.append(allocation)
        return allocation

    def storage(
        self, shape: Sequence[int], dtype: DType, place: Place, index: int = 0, strides: Sequence[int] | None = None,
    ) -> HostTensor:
        """Return fresh storage for a tensor, row-major unless strides are given; one without elements gets a place too.

        Args:
            shape: Sizes.
            dtype: Element type.
            place: Which memory it is part of.
            index: Its number there.
            strides: In elements.
        """
        allocation = self.allocate(max(1, prod(shape)) * dtype.host_bytes, place, index)
        held = contiguous_strides(shape) if strides is None else tuple(strides)
        return HostTensor(allocation.number, 0, tuple(shape), held, dtype)

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return fresh row-major storage in the arena."""
        return self.storage(shape, dtype, Place.ARENA)

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        held = self.storage((len(values),), dtype, Place.CONSTANT)
        self.constants[held.buffer] = (tuple(values), dtype)
        return held

    def of(self, held: HostTensor) -> Allocation:
        """Return the allocation that a view shows."""
        return self.allocations[held.buffer]

    def is_all_of(self, held: HostTensor) -> bool:
        """Whether a view shows all of its allocation, row-major; one of nothing may be part of an element's."""
        num_bytes = held.num_elements * held.dtype.host_bytes
        return held.is_contiguous and held.offset == 0 and self.of(held).num_bytes == num_bytes

    def is_within(self, held: HostTensor) -> bool:
        """Whether all elements of a view lie in its allocation; what the user hands over has the user's strides."""
        allocation = self.of(held)
        if allocation.place not in (Place.ARENA, Place.CONSTANT):
            return True
        first = last = held.offset
        for size, stride in zip(held.shape, held.strides, strict=True):
            if size == 0:
                return True
            if stride < 0:
                first += (size - 1) * stride
            else:
                last += (size - 1) * stride
        return first >= 0 and (last + 1) * held.dtype.host_bytes <= allocation.num_bytes

    def at(self, place: Place) -> list[Allocation]:
        """Return the allocations of one memory."""
        return [allocation for allocation in self.allocations if allocation.place is place]

    def lay_out(self, place: Place) -> int:
        """Lay the allocations of one memory out one after another; return their bytes."""
        return lay_out(self.at(place))
