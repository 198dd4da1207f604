"""Three-dimensional convolutions as two-dimensional ones over channels in blocks.

The input lies by depth, and the channels of a depth in blocks, with depths of zeros as padding: then the blocks of all
depths that a window covers adjoin, and are the channels of one image. Images of neighbouring windows share some.
"""

from __future__ import annotations

from math import prod

from torchipu.host.emit import conv_blocked, conv_weight_blocked
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.conv_product import emit_reduce
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.volume import Volume

LEAST_MACS = 1_000_000  # of which laying out takes a small part
MOST_SAMPLES = 64  # each has a step of its own
LEAST_CHANNELS = 8
"""Fewer of them, and of results, leave blocks more than half empty, or are done before they are laid out."""
MOST_GRADIENT_FLOATS = 1 << 24  # of the weights' gradients by all samples, before they are added up


def serves(v: Volume) -> bool:
    """Whether a convolution takes less time so."""
    return (
        v.g == 1 and v.dilation[0] == 1 and v.n <= MOST_SAMPLES and v.macs >= LEAST_MACS
        and min(v.ic, v.oc) >= LEAST_CHANNELS and conv_blocked.serves(_planar(v))
    )


def serves_input(v: Volume) -> bool:
    """Whether the gradient of the input does: a convolution itself where strides are 1."""
    return v.stride == (1, 1, 1) and min(_turned(v).padding) >= 0 and serves(_turned(v))


def serves_weight(v: Volume) -> bool:
    """Whether the gradient of the weights does."""
    s = _planar(v)
    return serves(v) and v.n * s.oc * s.summands <= MOST_GRADIENT_FLOATS


def emit_forward(
    plan: HostPlanner, v: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
) -> None:
    """Emit a convolution.

    Args:
        plan: The planner.
        v: Its sizes.
        out: [n, oc, *out], row-major.
        x: [n, ic, *size], row-major.
        weight: [oc, ic, *window], by its strides.
        bias: [oc], or None.
    """
    s, lanes = _planar(v), vector_lanes()
    laid_out = _laid_out(plan, x, v.n, v.ic, v.size, v.padding[0])
    weights = _weights(plan, v, weight)
    results = plan.scratch((v.n, v.out[0], -(-v.oc // lanes), s.oh, s.ow, lanes))
    for sample in range(v.n):
        conv_blocked.emit(
            plan, s, _sample(results, sample), _sample(laid_out, sample), weights, Ending(bias=bias),
            apart=v.stride[0] * laid_out.shape[2],
        )
    size = s.oh * s.ow
    held = _by_blocks(results, v.n, v.out[0], size)
    for first, count, across in _cuts(v.oc):
        shape = (v.n, count, across, v.out[0], size)
        emit_copy(
            plan, _view(out, first * lanes * v.out[0] * size, shape, (
                v.oc * v.out[0] * size, lanes * v.out[0] * size, v.out[0] * size, size, 1,
            )), _view(held, first * size * lanes, shape, (
                held.strides[0], held.strides[2], 1, held.strides[1], lanes,
            )),
        )


def emit_input_gradient(plan: HostPlanner, v: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input: the convolution of that of the results by the weights, turned about."""
    taps, (deep, high, wide) = v.taps, v.window
    turned = HostTensor(
        weight.buffer, weight.offset + taps - 1, (v.ic, v.oc, deep, high, wide),
        (taps, v.ic * taps, -high * wide, -wide, -1), weight.dtype,
    )
    emit_forward(plan, _turned(v), dx, dy, turned, None)


def emit_weight_gradient(plan: HostPlanner, v: Volume, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights: of each sample by itself, and their sum."""
    s = _planar(v)
    inputs = _laid_out(plan, x, v.n, v.ic, v.size, v.padding[0])
    results = _laid_out(plan, dy, v.n, v.oc, v.out, 0)
    count = s.oc * s.summands
    found = plan.scratch((v.n, count))
    for sample in range(v.n):
        conv_weight_blocked.emit(
            plan, s, _sample(found, sample), _sample(results, sample), _sample(inputs, sample),
            apart=v.stride[0] * inputs.shape[2],
        )
    total = found
    if v.n > 1:
        total = plan.scratch((count,))
        emit_reduce(plan, total, found, v.n, count)
    deep, high, wide = v.window
    taps, channels = high * wide, s.ic // deep
    emit_copy(
        plan, _view(dw, 0, (v.oc, v.ic, deep, taps), (v.ic * deep * taps, deep * taps, taps, 1)),
        _view(total, 0, (v.oc, v.ic, deep, taps), (deep * channels * taps, taps, channels * taps, 1)),
    )


def _turned(v: Volume) -> Volume:
    """Return the sizes of the convolution that gives the gradient of the input of one with strides of 1."""
    first, second, third = (
        dilation * (window - 1) - padding
        for dilation, window, padding in zip(v.dilation, v.window, v.padding, strict=True)
    )
    return Volume(v.n, v.g, v.oc, v.ic, v.out, v.size, v.window, v.stride, (first, second, third), v.dilation)


def _planar(v: Volume) -> Shape:
    """Return the sizes of the two-dimensional convolution of a sample: its images are the windows' depths."""
    channels = -(-v.ic // vector_lanes()) * vector_lanes()
    (_, h, w), (deep, kh, kw), (depths, oh, ow) = v.size, v.window, v.out
    return Shape(
        depths, 1, deep * channels, v.oc, h, w, oh, ow, kh, kw, *v.stride[1:], *v.padding[1:], *v.dilation[1:],
    )


def _cuts(channels: int) -> list[tuple[int, int, int]]:
    """Return the first block, the blocks and the lanes of what fills blocks, and of what does not."""
    whole, rest = divmod(channels, vector_lanes())
    return [cut for cut in ((0, whole, vector_lanes()), (whole, 1, rest)) if cut[1] and cut[2]]


def _view(held: HostTensor, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> HostTensor:
    return HostTensor(held.buffer, held.offset + first, shape, strides, held.dtype)


def _sample(held: HostTensor, sample: int) -> HostTensor:
    return _view(held, sample * held.strides[0], held.shape[1:], held.strides[1:])


def _by_blocks(held: HostTensor, samples: int, depths: int, plane: int) -> HostTensor:
    """Return blocked values as [n, depths, blocks, plane, lanes]."""
    blocks, lanes = held.shape[2], held.shape[-1]
    shape = (samples, depths, blocks, plane, lanes)
    return _view(held, 0, shape, tuple(prod(shape[dim + 1 :]) for dim in range(5)))


def _laid_out(
    plan: HostPlanner, x: HostTensor, samples: int, channels: int, size: tuple[int, int, int], before: int,
) -> HostTensor:
    """Emit row-major values by depth, [n, depths with zeros before and after, blocks, h, w, lanes]."""
    lanes, (depths, h, w) = vector_lanes(), size
    laid_out = plan.scratch((samples, depths + 2 * before, -(-channels // lanes), h, w, lanes))
    if before or channels % lanes:
        emit_fill(plan, laid_out, 0.0)
    held = _by_blocks(laid_out, samples, depths + 2 * before, h * w)
    volume = depths * h * w
    for first, count, across in _cuts(channels):
        shape = (samples, depths, count, h * w, across)
        emit_copy(
            plan, _view(held, before * held.strides[1] + first * held.strides[2], shape, held.strides),
            _view(x, first * lanes * volume, shape, (channels * volume, h * w, lanes * volume, 1, volume)),
        )
    return laid_out


def _weights(plan: HostPlanner, v: Volume, weight: HostTensor) -> HostTensor:
    """Emit the weights by depth, [oc, depths of the window, channels of whole blocks, kh, kw]."""
    lanes, (deep, high, wide) = vector_lanes(), v.window
    held = plan.scratch((v.oc, deep, -(-v.ic // lanes) * lanes, high, wide))
    if v.ic % lanes:
        emit_fill(plan, held, 0.0)
    shape = (v.oc, deep, v.ic, high, wide)
    result, channel, depth, *taps = weight.strides
    emit_copy(plan, _view(held, 0, shape, held.strides), _view(weight, 0, shape, (result, depth, channel, *taps)))
    return held
