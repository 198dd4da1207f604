"""In which orders the weights of convolutions are read: row-major, or with their channels last, as they may lie."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchipu._kernels.table.conv_blocked import PackBlockedInts
from torchipu._kernels.table.winograd import PackWinogradInts
from torchipu.host.emit.pixel_product import Product
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner


def weights_as_held(plan: HostPlanner, weight: Tensor) -> HostTensor:
    """Return where weights, ``[results, channels, rows, columns]``, lie: row-major, or with their channels last.

    What is prepared once for many calls is row-major, for which there are more ways to pack.
    """
    if not plan.is_hoisting:
        held = plan.value_as_held(weight, DType.FLOAT)
        if held.has_channels_last:
            return held
    return plan.value(weight, DType.FLOAT)


def product_of(product: Product, weight: HostTensor) -> Product:
    """Return a product that reads row-major weights as one that reads these."""
    if not weight.has_channels_last:
        return product
    channels, taps = _sizes(weight)
    group, row, channel = (_strides(number, taps) for number in product.weights)
    at = tuple(tap._replace(weight=tap.weight * channels) for tap in product.taps)
    return replace(product, weights=(group, row, channel), taps=at)


def blocked_ints(ints: PackBlockedInts, weight: HostTensor) -> PackBlockedInts:
    """Return the way through row-major weights as that through these."""
    if not weight.has_channels_last:
        return ints
    channels, taps = _sizes(weight)
    return ints._replace(
        row=_strides(ints.row, taps), channel=_strides(ints.channel, taps), first=ints.first * channels,
        down=ints.down * channels, across=ints.across * channels,
    )


def winograd_ints(ints: PackWinogradInts, weight: HostTensor) -> PackWinogradInts:
    """Return the way through row-major weights as that through these."""
    if not weight.has_channels_last:
        return ints
    channels, taps = _sizes(weight)
    return ints._replace(row=_strides(ints.row, taps), channel=_strides(ints.channel, taps), tap=channels)


def _sizes(weight: HostTensor) -> tuple[int, int]:
    return weight.shape[1], prod(weight.shape[2:])


def _strides(number: int, taps: int) -> int:
    """Return a stride along results, groups or channels: neighbouring channels, ``taps`` apart before, adjoin."""
    return 1 if number == taps else number
