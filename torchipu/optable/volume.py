"""Sizes of convolutions, which the host's steps and the vertices of the device are made by."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Sizes = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Volume:
    """Sizes of a plain convolution of three dimensions; ``ic`` and ``oc`` count the channels of one of the groups.

    Attributes:
        n: Samples.
        g: Groups.
        ic: Channels of the input of a group.
        oc: Channels of its output.
        size: Of the input.
        out: Of the output.
        window: Of the weights.
        stride: From one window to the next.
        padding: Around the input.
        dilation: From one element of a window to the next.
    """

    n: int
    g: int
    ic: int
    oc: int
    size: Sizes
    out: Sizes
    window: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(self.window)

    @property
    def summands(self) -> int:
        """Products added up for one output."""
        return self.ic * self.taps

    @property
    def macs(self) -> int:
        """Multiply-accumulates in all."""
        return self.n * self.g * self.oc * prod(self.out) * self.summands
