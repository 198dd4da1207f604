"""Which elements of a result each item of a host step writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu.optable.host_tensor import HostTensor, contiguous_strides


@dataclass(frozen=True, slots=True)
class Along:
    """One dimension of the space that the items of a step share out.

    Attributes:
        size: Places.
        block: Places of an item; the last block may be shorter.
        inner: Places after which ``outer`` applies.
        step: Elements of the result from one place to the next.
        middle: How often ``outer`` applies before ``outmost`` does.
        outer: Elements from one run of ``inner`` places to the next.
        outmost: Elements from one run of ``inner * middle`` places to the next.
    """

    size: int
    block: int
    inner: int
    step: int
    middle: int = 1
    outer: int = 0
    outmost: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which elements of a result the items of a step write, counted from its first: blocks of a space, row-major.

    Where a result is rounded to half, that happens in the step itself, block by block; a step that does not say what
    its items write is followed by a copy that rounds.

    Attributes:
        dims: The space.
        first: Element that its first place is.
    """

    dims: tuple[Along, ...]
    first: int = 0

    @staticmethod
    def of(shape: Sequence[int], block: Sequence[int]) -> Blocks:
        """Return the blocks of a row-major result: ``block`` sizes along each dimension of ``shape``."""
        steps = contiguous_strides(shape)
        return Blocks(tuple(
            Along(size, max(1, part), max(1, size), step)
            for size, part, step in zip(shape, block, steps, strict=True)
        ))

    @staticmethod
    def rows(items: int, held: HostTensor) -> Blocks:
        """Return blocks for items that write equal shares of a result, one after another."""
        return Blocks.runs(held.num_elements // max(1, items), held)

    @staticmethod
    def runs(length: int, held: HostTensor) -> Blocks:
        """Return blocks for items that write ``length`` elements each, one after another; the last may write fewer."""
        return Blocks.of((held.num_elements,), (length,))

    @property
    def num_elements(self) -> int:
        """Elements that all items write."""
        count = 1
        for dim in self.dims:
            count *= dim.size
        return count

    @property
    def num_blocks(self) -> int:
        """Items."""
        count = 1
        for dim in self.dims:
            count *= -(-dim.size // dim.block)
        return count

    @property
    def item_floats(self) -> int:
        """Elements of an item where every item writes as many, side by side, in the order of the items; else 0."""
        expected, item, is_even = 1, 0, True
        for dim in reversed(self.dims):
            if dim.inner < dim.size or (dim.size > 1 and dim.step != expected) or self.first:
                return 0
            block = min(dim.block, dim.size)
            if item and (block > 1 or (dim.size > 1 and not is_even)):
                return 0
            if not item and block < dim.size:
                item, is_even = expected * block, dim.size % block == 0
            expected *= dim.size
        return item or expected
