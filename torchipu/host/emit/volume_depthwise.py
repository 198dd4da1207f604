"""Host steps of three-dimensional convolutions whose groups have a single channel."""

from __future__ import annotations

from math import prod

from torchipu._kernels.table.volume_depthwise import DEPTHWISE_RUN, VOLUME_DEPTHWISE, VolumeDepthwiseInts
from torchipu.host.emit.items import LEAST_ITEMS, grain_for
from torchipu.ir.sizes import of_numbers
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.volume import Volume

LEAST_CHUNK_MACS = 200_000
MOST_HELD_BYTES = 1 << 20
"""Of the depths that a window reaches; larger ones would not stay in a cache."""


def serves(v: Volume) -> bool:
    """Whether a convolution takes less time so."""
    return v.ic == 1 and 4 * _held(v) * _plane(v) <= MOST_HELD_BYTES


def serves_input(v: Volume) -> bool:
    """Whether the gradient of the input does, which is a convolution itself where strides are 1."""
    return v.oc == 1 and v.stride == (1, 1, 1) and serves(_turned(v))


def emit_forward(
    plan: HostPlanner, v: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
) -> None:
    """Emit a convolution with row-major operands.

    Args:
        plan: Receives the step.
        v: Its sizes, with groups of one channel.
        out: [n, g * oc, *out].
        x: [n, g, *size].
        weight: [g * oc, 1, *window].
        bias: [g * oc], or None.
    """
    _emit(plan, v, out, x, weight, bias, is_turned=False)


def emit_input_gradient(plan: HostPlanner, v: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input: a convolution of the gradient with the windows the other way round."""
    _emit(plan, _turned(v), dx, dy, weight, None, is_turned=True)


def _emit(
    plan: HostPlanner, v: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None, *,
    is_turned: bool,
) -> None:
    depths = _depths(v.n * v.g, v.out[0])
    blocks = -(-v.out[0] // depths)
    items = v.n * v.g * blocks
    rows, columns = _laid_out(v)
    results = -(-((v.out[1] - 1) * columns + v.out[2]) // DEPTHWISE_RUN) * DEPTHWISE_RUN
    floats = _held(v) * _plane(v) + DEPTHWISE_RUN + results
    area = v.out[1] * v.out[2]
    plan.step(
        VOLUME_DEPTHWISE, [out], [x, weight] + ([bias] if bias is not None else []),
        ints=VolumeDepthwiseInts(
            groups=v.n * v.g, out_channels=v.oc, channels=v.g, size=v.size, out=v.out, window=v.window,
            stride=v.stride, padding=v.padding, dilation=v.dilation, laid_out=(rows, columns), held=_held(v),
            depths=depths, is_turned=is_turned, has_bias=bias is not None,
        ),
        items=items, grain=grain_for(items, v.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * floats + 8 * (v.taps + prod(v.window[1:])),
        writes=[Blocks.of((v.n * v.g, v.oc, v.out[0], area), (1, v.oc, depths, area))],
    )


@of_numbers
def _depths(groups: int, out: int) -> int:
    """Return how many depths of the output an item makes: not all only where there would be few items."""
    depths = out
    while depths > 4 and groups * -(-out // depths) < LEAST_ITEMS:
        depths = -(-depths // 2)
    return depths


def _laid_out(v: Volume) -> tuple[int, int]:
    """Return how many rows and columns of a depth are left over alike when they are divided by the strides."""
    reached = [(v.out[dim] - 1) * v.stride[dim] + (v.window[dim] - 1) * v.dilation[dim] + 1 for dim in (1, 2)]
    rows, columns = (-(-reach // stride) for reach, stride in zip(reached, v.stride[1:], strict=True))
    return rows, columns


def _plane(v: Volume) -> int:
    """Return the floats of a depth that is laid out."""
    return prod(_laid_out(v)) * v.stride[1] * v.stride[2]


def _held(v: Volume) -> int:
    """Return how many depths a window reaches."""
    return (v.window[0] - 1) * v.dilation[0] + 1


def _turned(v: Volume) -> Volume:
    """Return the convolution that the gradient of the input is."""
    padding = tuple(v.dilation[dim] * (v.window[dim] - 1) - v.padding[dim] for dim in range(3))
    return Volume(
        v.n, v.g, v.oc, v.ic, v.out, v.size, v.window, v.stride, (padding[0], padding[1], padding[2]), v.dilation,
    )
