"""One dimension of an image in a convolution: which elements of a window meet real input at which outputs.

What falls on padding, or between the elements of an input that a stride has spread out, costs nothing: workers get the
positions that have an operand, window element by window element (``ipu_hardware.md`` 2.2, AMP nx1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers
from torchipu.optable.volume import Volume

NOWHERE = np.iinfo(np.int64).max // 2
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
    met = _Met.of(axis, of_taps=axis.taps > axis.outputs)
    return tuple(
        met.share(split, tap_split) for split in splits for tap_split in tap_splits if split * tap_split <= most
    )


@dataclass(frozen=True, slots=True)
class _Met:
    """Which outputs and elements of the window meet the input: at each of the fewer the range of the more numerous.

    Attributes:
        axis: The dimension.
        of_taps: Whether there are more elements of the window.
        step: Places of the input from one of the more numerous to the next.
        first: ``[others, 1]``, the place of the first of them.
        begin: ``[others, 1]``, the first that meets anything.
        end: The last.
        apart: How far apart those are that do.
        rest: ``[others, 1]``, what is left of their numbers, divided by this.
        is_any: Whether there are any.
    """

    axis: Axis
    of_taps: bool
    step: int
    first: Numbers
    begin: Numbers
    end: Numbers
    apart: int
    rest: Numbers
    is_any: Numbers

    @classmethod
    def of(cls, axis: Axis, *, of_taps: bool) -> _Met:
        """Return the ranges of a dimension.

        Args:
            axis: The dimension.
            of_taps: Whether of elements of the window; else of outputs.
        """
        step, other = (axis.tap_step, axis.step) if of_taps else (axis.step, axis.tap_step)
        others = axis.outputs if of_taps else axis.taps
        first = (np.arange(others) * other + axis.first)[:, None]
        last_place, divisor, shared = axis.inputs * axis.divisor - 1, axis.divisor, gcd(step, axis.divisor)
        count = axis.taps if of_taps else axis.outputs
        if step:
            low, high = (-first, last_place - first) if step > 0 else (first - last_place, first)
            begin, end = np.maximum(-(-low // abs(step)), 0), np.minimum(high // abs(step), count - 1)
            is_any = first % shared == 0
        else:
            begin, end = np.zeros_like(first), np.full_like(first, count - 1)
            is_any = (first % shared == 0) & (first >= 0) & (first <= last_place)
        apart = divisor // shared
        rest = -(first // shared) * pow(step // shared, -1, apart) % apart if apart > 1 else np.zeros_like(first)
        return cls(axis, of_taps, step, first, begin, end, apart, rest, is_any)

    def share(self, split: int, tap_split: int) -> Share:
        """Return what the busiest tile has.

        With zeros between the places of the input, tiles of few outputs would differ in what they meet. PopLibs'
        planner has them all meet as much, at every element of the window: these are the sizes of the partials that its
        regression tests report for gradients of strided depthwise convolutions.
        """
        axis = self.axis
        size, tap_size = ceil_div(axis.outputs, split), ceil_div(axis.taps, tap_split)
        begins, others = np.arange(0, axis.outputs, size), np.arange(0, axis.taps, tap_size)
        if self.of_taps:
            begins, others = others, begins
        begin, end = self._within(begins)
        is_met = self.is_any & (begin <= end)
        count = np.where(is_met, (end - begin) // self.apart + 1, 0)
        met = np.add.reduceat(count, others)
        low, high = (begin, end) if self.step >= 0 else (end, begin)
        lowest = np.minimum.reduceat(np.where(is_met, self._place(low), NOWHERE), others)
        highest = np.maximum.reduceat(np.where(is_met, self._place(high), -1), others)
        read = int(np.minimum(np.maximum(highest - lowest + 1, 0), met).max())
        if axis.divisor > 1:
            each = size * tap_size / axis.divisor
            return Share(split, size, min(float(met.max()), each), read, tap_size, tap_split)
        new = self._new(begin, end, is_met, others) if self.of_taps else is_met.astype(np.int64)
        # A window that lies in the padding everywhere has a tap all the same: plans divide by them.
        return Share(split, size, int(met.max()), read, max(1, int(np.add.reduceat(new, others).max())), tap_split)

    def _within(self, begins: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first and the last of each part that meet anything, ``[others, parts]``, in turn if none does."""
        begin = np.maximum(self.begin, begins)
        end = np.minimum(self.end, np.append(begins[1:], self.axis.taps if self.of_taps else self.axis.outputs) - 1)
        if self.apart > 1:
            begin, end = begin + (self.rest - begin) % self.apart, end - (end - self.rest) % self.apart
        return begin, end

    def _place(self, number: Numbers) -> Numbers:
        place = self.step * number + self.first
        return place // self.axis.divisor if self.axis.divisor > 1 else place

    def _new(self, begin: Numbers, end: Numbers, is_met: Numbers, others: Numbers) -> Numbers:
        """Return how many elements of the window meet anything at an output, and at none before it of the same tile.

        Ranges only rise, or only fall, from one output to the next.
        """
        is_rising = self.step < 0
        is_first = np.zeros((len(is_met), 1), bool)
        is_first[others if is_rising else np.append(others[1:], len(is_met)) - 1] = True
        neighbour = np.roll(np.where(is_met, end, -1), 1 if is_rising else -1, axis=0)
        before = np.where(is_first, -1, neighbour)
        return np.where(is_met, np.maximum(end - np.maximum(begin, before + 1) + 1, 0), 0)
