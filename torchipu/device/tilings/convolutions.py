"""Convolutions and their gradients as products: which elements of image, weights and result meet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from torchipu.device.tilings.products import Addend, Elements, Factor, Multiplication, plane
from torchipu.ir.region import PAD, Numbers
from torchipu.optable.volume import Sizes, Volume


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of the summands of an output: channel by channel, or window element by window element.

    Attributes:
        channels: How many there are.
        taps: Elements of a window.
        channels_first: Whether the elements of a window are summed up one after the other, each with all channels.
    """

    channels: int
    taps: int
    channels_first: bool

    def of(self, inputs: Numbers) -> tuple[Numbers, Numbers]:
        """Return the channel and the element of the window that a summand is."""
        if self.channels_first:
            return inputs % self.channels, inputs // self.channels
        return inputs // self.taps, inputs % self.taps


# --------------------------------------------------------------------------- products
def output_product(
    v: Volume, image: str, weight: str, result: str, bias: str | None = None, *, channels_first: bool = False,
) -> Multiplication:
    """Return the output of the plain convolution.

    Args:
        v: Sizes.
        image: Label of the input.
        weight: Of the weights.
        result: Of the result.
        bias: Of what is added to each channel, if anything.
        channels_first: Whether the elements of a window are summed up one after the other, each with all channels.
    """
    order = _Order(v.ic, v.taps, channels_first)

    def left(groups: Numbers, positions: Numbers, inputs: Numbers, phase: int) -> Numbers:
        channel, tap = order.of(inputs)
        return _image_elements(v, groups, channel, positions, tap)

    def right(groups: Numbers, outputs: Numbers, inputs: Numbers, phase: int) -> Numbers:
        channel, tap = order.of(inputs)
        return ((groups * v.oc + outputs) * v.ic + channel) * v.taps + tap

    addend = None if bias is None else Addend(bias, plane(v.oc, 0, 1), (True, False, True))
    return Multiplication(
        Factor(image, left, inputs_first=True), Factor(weight, right), v.summands, result,
        _places(v.g, v.oc, prod(v.out)), outputs_first=True, addend=addend,
    )


def input_product(
    v: Volume, gradient: str, weight: str, result: str, bias: str | None = None, *, channels_first: bool = False,
) -> Multiplication:
    """Return the gradient of the input of the plain convolution, which is the output of a transposed one.

    Elements of the image at the same place between two windows meet the same elements of the weights: a phase.

    Args:
        v: Sizes of the plain convolution.
        gradient: Label of the gradient of its output.
        weight: Of the weights.
        result: Of the result.
        bias: Of what is added to each channel, if anything.
        channels_first: Whether the elements of a window are summed up one after the other, each with all channels.
    """
    phases = _Phases.of(v)
    most, area = phases.taps.shape[1], prod(v.out)
    order = _Order(v.oc, most, channels_first)

    def left(groups: Numbers, positions: Numbers, inputs: Numbers, phase: int) -> Numbers:
        channel, number = order.of(inputs)
        tap = phases.taps[phase][number]
        sample, at = np.divmod(phases.order[positions], prod(v.size))
        place, is_inside = np.zeros_like(at), tap >= 0
        axes = zip(
            _digits(at, v.size), _digits(tap, v.window), v.out, v.stride, v.padding, v.dilation, strict=True,
        )
        for here, within, out, stride, padding, dilation in axes:
            window = (here + padding - within * dilation) // stride
            is_inside = is_inside & (window >= 0) & (window < out)
            place = place * out + window
        return np.where(is_inside, ((sample * v.g + groups) * v.oc + channel) * area + place, PAD)

    def right(groups: Numbers, outputs: Numbers, inputs: Numbers, phase: int) -> Numbers:
        channel, number = order.of(inputs)
        tap = phases.taps[phase][number]
        return np.where(tap >= 0, ((groups * v.oc + channel) * v.ic + outputs) * v.taps + tap, PAD)

    along = _places(v.g, v.ic, prod(v.size))

    def elements(groups: Numbers, positions: Numbers, outputs: Numbers) -> Numbers:
        return along(groups, phases.order[positions], outputs)

    addend = None if bias is None else Addend(bias, plane(v.ic, 0, 1), (True, False, True))
    return Multiplication(
        Factor(gradient, left, inputs_first=True), Factor(weight, right, inputs_first=True), v.oc * most, result,
        elements, outputs_first=True, addend=addend, phases=phases.borders,
    )


def weight_product(v: Volume, gradient: str, image: str, result: str) -> Multiplication:
    """Return the gradient of the weights: positions are their elements, inputs the places of the output.

    Args:
        v: Sizes of the plain convolution.
        gradient: Label of the gradient of its output.
        image: Of its input.
        result: Of the result.
    """
    area = prod(v.out)

    def left(groups: Numbers, positions: Numbers, inputs: Numbers, phase: int) -> Numbers:
        return _image_elements(v, groups, positions // v.taps, inputs, positions % v.taps)

    places = _places(v.g, v.oc, area)

    def right(groups: Numbers, outputs: Numbers, inputs: Numbers, phase: int) -> Numbers:
        return places(groups, inputs, outputs)

    return Multiplication(
        Factor(image, left), Factor(gradient, right), v.n * area, result, plane(v.oc * v.summands, 1, v.summands),
        outputs_first=True,
    )


# --------------------------------------------------------------------------- places
def _digits(number: Numbers, sizes: Sizes) -> tuple[Numbers, Numbers, Numbers]:
    """Return the place along each dimension that a number stands for."""
    rest, last = np.divmod(number, sizes[2])
    first, middle = np.divmod(rest, sizes[1])
    return first, middle, last


def _places(groups: int, channels: int, area: int) -> Elements:
    """Return the elements of ``[samples, groups, channels, area]``; positions are samples and places in the area."""

    def elements(group: Numbers, positions: Numbers, outputs: Numbers) -> Numbers:
        sample, place = np.divmod(positions, area)
        return ((sample * groups + group) * channels + outputs) * area + place

    return elements


def _image_elements(v: Volume, groups: Numbers, channel: Numbers, windows: Numbers, tap: Numbers) -> Numbers:
    """Return the element of the input that a window has at a tap; `PAD` beyond the image."""
    sample, at = np.divmod(windows, prod(v.out))
    place, is_inside = np.zeros_like(at), np.array(True)
    axes = zip(_digits(at, v.out), _digits(tap, v.window), v.size, v.stride, v.padding, v.dilation, strict=True)
    for window, within, size, stride, padding, dilation in axes:
        here = window * stride + within * dilation - padding
        is_inside = is_inside & (here >= 0) & (here < size)
        place = place * size + here
    return np.where(is_inside, ((sample * v.g + groups) * v.ic + channel) * prod(v.size) + place, PAD)


@dataclass(frozen=True, slots=True, eq=False)
class _Phases:
    """Places of an image by where they lie between two windows.

    Attributes:
        order: ``[samples x places]``, the places of all samples, phase by phase.
        borders: The first of each phase among them, and how many there are.
        taps: ``[phases, taps]``, which elements of a window meet the places of a phase; -1 behind the last one.
    """

    order: Numbers
    borders: tuple[int, ...]
    taps: Numbers

    @classmethod
    def of(cls, v: Volume) -> _Phases:
        """Return the phases of the input of a convolution."""
        at = _digits(np.arange(prod(v.size), dtype=np.int64), v.size)
        phase = np.zeros(prod(v.size), np.int64)
        for here, stride, padding in zip(at, v.stride, v.padding, strict=True):
            phase = phase * stride + (here + padding) % stride
        phase = np.tile(phase, v.n)
        counts = np.bincount(phase, minlength=prod(v.stride))
        meeting = [
            [
                number for number, taps in enumerate(product(*map(range, v.window)))
                if all((first - tap * dilation) % stride == 0 for first, tap, dilation, stride in zip(
                    places, taps, v.dilation, v.stride, strict=True))
            ]
            for places in product(*map(range, v.stride))
        ]
        taps = np.full((len(meeting), max(map(len, meeting))), -1, np.int64)
        for row, numbers in zip(taps, meeting, strict=True):
            row[: len(numbers)] = numbers
        borders = (0, *(int(end) for end in np.cumsum(counts)))
        return cls(np.argsort(phase, kind="stable").astype(np.int64), borders, taps)
