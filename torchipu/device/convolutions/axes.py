"""One dimension of an image in a convolution: which elements of a window meet real input at which outputs.

What falls on padding, or between the elements of an input that a stride has spread out, costs nothing: workers get the
positions that have an operand, window element by window element (``ipu_hardware.md`` 2.2, AMP nx1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers
from torchipu.optable.volume import Volume

MOST_SPLITS = 32  # of one dimension that are tried; longer lists are thinned out


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension: at output ``o`` the window's element ``t`` meets input ``(o step + t tap_step + first) / divisor``.

    Where that is no whole number, or lies outside the input, it meets nothing.

    Attributes:
        outputs: Places to compute.
        taps: Elements of the window.
        inputs: Places of the input.
        step: From one output to the next.
        tap_step: From one element of the window to the next.
        first: Of the first output and the first element.
        divisor: By how much the input is spread out.
    """

    outputs: int
    taps: int = 1
    inputs: int = 1
    step: int = 1
    tap_step: int = 0
    first: int = 0
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """What the busiest tile has of a dimension.

    Attributes:
        split: Tiles that share its outputs.
        outputs: Outputs of a tile.
        met: Pairs of an output and an element of the window that have an operand.
        read: Places of the input that it reads.
        taps: Elements of the window that meet anything; one where none does.
        tap_split: Tiles that share the elements of the window, and have partials each.
    """

    split: int
    outputs: int
    met: float
    read: int
    taps: int
    tap_split: int = 1


def plain_axis(count: int) -> Axis:
    """Return a dimension of which every output meets one input of its own."""
    return Axis(count, inputs=count)


def output_axis(v: Volume, axis: int) -> Axis:
    """Return a dimension of the plain convolution's output."""
    if v.window[axis] == 1:
        return plain_axis(v.out[axis])
    return Axis(v.out[axis], v.window[axis], v.size[axis], v.stride[axis], v.dilation[axis], -v.padding[axis])


def input_axis(v: Volume, axis: int) -> Axis:
    """Return a dimension of the input's gradient.

    With a window of one element only the places that a window has touched are computed; zeros are put between them
    behind (PopLibs' transform ``dilatePostConv``).
    """
    if v.window[axis] == 1:
        return plain_axis(v.out[axis])
    return Axis(v.size[axis], v.window[axis], v.out[axis], 1, -v.dilation[axis], v.padding[axis], v.stride[axis])


def weight_axis(v: Volume, axis: int) -> Axis:
    """Return a dimension of the weights' gradient: the gradient of the output is a window, with an element a place."""
    return Axis(v.window[axis], v.out[axis], v.size[axis], v.dilation[axis], v.stride[axis], -v.padding[axis])


def swapped_axis(v: Volume, axis: int) -> Axis:
    """Return a dimension of the input's gradient with operands swapped: the output's gradient is what slides."""
    return Axis(v.size[axis], v.out[axis], v.window[axis], 1, -v.stride[axis], v.padding[axis], v.dilation[axis])


def split_counts(pieces: int, most: int) -> tuple[int, ...]:
    """Return splits of at most ``most`` parts that differ in the size of the largest part."""
    found, last = [], 0
    for split in range(1, min(pieces, most) + 1):
        size = ceil_div(pieces, split)
        if size != last:
            found.append(split)
            last = size
    if len(found) <= MOST_SPLITS:
        return tuple(found)
    places = np.unique(np.linspace(0, len(found) - 1, MOST_SPLITS).round().astype(int))
    return tuple(found[place] for place in places.tolist())


@lru_cache(maxsize=512)
def shares_of(axis: Axis, most: int, tap_splits: tuple[int, ...] = (1,)) -> tuple[Share, ...]:
    """Return what the busiest tile has of a dimension for each way to split it.

    Args:
        axis: The dimension.
        most: Tiles that there are.
        tap_splits: Among how many of them the elements of the window may be split.
    """
    splits = split_counts(axis.outputs, most)
    if axis.taps == 1 and axis.inputs == axis.outputs:
        sizes = [ceil_div(axis.outputs, split) for split in splits]
        return tuple(Share(split, size, size, size, 1) for split, size in zip(splits, sizes, strict=True))
    output, tap = np.arange(axis.outputs)[:, None], np.arange(axis.taps)[None, :]
    place = output * axis.step + tap * axis.tap_step + axis.first
    meets = (place % axis.divisor == 0) & (place >= 0) & (place < axis.inputs * axis.divisor)
    table = _Table(axis, place // axis.divisor, meets)
    return tuple(
        table.share(split, tap_split) for split in splits for tap_split in tap_splits if split * tap_split <= most
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Which outputs meet what of the input at which elements of the window.

    Attributes:
        axis: The dimension.
        place: ``[outputs, taps]``, of the input.
        meets: Whether there is any.
    """

    axis: Axis
    place: Numbers
    meets: Numbers

    def share(self, split: int, tap_split: int) -> Share:
        """Return what the busiest tile has.

        With zeros between the places of the input, tiles of few outputs would differ in what they meet. PopLibs'
        planner has them all meet as much, at every element of the window: these are the sizes of the partials that its
        regression tests report for gradients of strided depthwise convolutions.
        """
        size, tap_size = ceil_div(self.axis.outputs, split), ceil_div(self.axis.taps, tap_split)
        begins, tap_begins = np.arange(0, self.axis.outputs, size), np.arange(0, self.axis.taps, tap_size)

        def of_tiles(operation: np.ufunc, values: Numbers) -> Numbers:
            found: Numbers = operation.reduceat(operation.reduceat(values, begins, axis=0), tap_begins, axis=1)
            return found

        met = of_tiles(np.add, self.meets.astype(np.int64))
        lowest = of_tiles(np.minimum, np.where(self.meets, self.place, np.iinfo(np.int64).max))
        highest = of_tiles(np.maximum, np.where(self.meets, self.place, -1))
        read = int(np.minimum(np.maximum(highest - lowest + 1, 0), met).max())
        if self.axis.divisor > 1:
            return Share(
                split, size, min(float(met.max()), size * tap_size / self.axis.divisor), read, tap_size, tap_split,
            )
        some = np.logical_or.reduceat(self.meets, begins, axis=0)
        # A window that lies in the padding everywhere has a tap all the same: plans divide by them.
        taps = max(1, int(np.add.reduceat(some.astype(np.int64), tap_begins, axis=1).max()))
        return Share(split, size, int(met.max()), read, taps, tap_split)
