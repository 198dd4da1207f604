"""Host steps of convolutions over three dimensions."""

from __future__ import annotations

from math import prod

from torchipu._kernels.table import volume as kernels
from torchipu._kernels.table.volume import VOLUME_SUMMANDS, VolumeBiasInts, VolumeInts
from torchipu.host.emit import volume_blocked, volume_depthwise
from torchipu.host.emit.items import grain_for
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.volume import Volume

BLOCK_FLOATS = 64 * 1024  # of an expanded block
LEAST_CHUNK_MACS = 200_000
LEAST_ITEMS = 8


def _num_rows(v: Volume) -> int:
    """Return the rows of outputs in one image."""
    return v.out[0] * v.out[1]


def _rows_at_once(v: Volume, summands: int) -> int:
    """Return the rows of outputs whose ``summands`` fill a block."""
    return max(1, min(_num_rows(v), BLOCK_FLOATS // max(1, summands * v.out[2])))


def _ints(v: Volume, rows: int, *, block: int = 0, has_bias: bool = False) -> VolumeInts:
    """Return the integers of a kernel that lays out ``rows`` at a time."""
    return VolumeInts(
        samples=v.n, groups=v.g, in_channels=v.ic, out_channels=v.oc, size=v.size, out=v.out, window=v.window,
        stride=v.stride, padding=v.padding, dilation=v.dilation, rows=rows, block=block, has_bias=has_bias,
    )


def emit_forward(
    plan: HostPlanner, s: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
) -> None:
    """Emit a convolution with row-major operands."""
    if volume_blocked.serves(s):
        volume_blocked.emit_forward(plan, s, out, x, weight, bias)
        return
    if volume_depthwise.serves(s):
        volume_depthwise.emit_forward(plan, s, out, x, weight, bias)
        return
    summands = min(s.summands, VOLUME_SUMMANDS)
    rows = _rows_at_once(s, summands)
    while rows > 1 and s.n * s.g * -(-_num_rows(s) // rows) < LEAST_ITEMS:
        rows = -(-rows // 2)
    items = s.n * s.g * -(-_num_rows(s) // rows)
    plan.step(
        kernels.VOLUME_FORWARD, [out], [x, weight] + ([bias] if bias is not None else []),
        ints=_ints(s, rows, has_bias=bias is not None), items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * summands * rows * s.out[2],
        writes=[Blocks.of((s.n * s.g, s.oc, _num_rows(s), s.out[2]), (1, s.oc, rows, s.out[2]))],
    )


def emit_input_gradient(plan: HostPlanner, s: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input."""
    if volume_blocked.serves_input(s):
        volume_blocked.emit_input_gradient(plan, s, dx, dy, weight)
        return
    if volume_depthwise.serves_input(s):
        volume_depthwise.emit_input_gradient(plan, s, dx, dy, weight)
        return
    taps, channels = s.taps, s.ic
    while channels > 1 and (s.n * s.g * -(-s.ic // channels) < LEAST_ITEMS or channels * taps > VOLUME_SUMMANDS):
        channels = -(-channels // 2)
    rows = _rows_at_once(s, channels * taps)
    items = s.n * s.g * -(-s.ic // channels)
    plan.step(
        kernels.VOLUME_INPUT, [dx], [dy, weight], ints=_ints(s, rows, block=channels), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=4 * channels * taps * rows * s.out[2],
        writes=[Blocks.of((s.n * s.g, s.ic, prod(s.size)), (1, channels, prod(s.size)))],
    )


def emit_weight_gradient(plan: HostPlanner, s: Volume, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights."""
    if volume_blocked.serves_weight(s):
        volume_blocked.emit_weight_gradient(plan, s, dw, dy, x)
        return
    summands = min(s.summands, VOLUME_SUMMANDS)
    while summands > 32 and s.g * -(-s.summands // summands) < LEAST_ITEMS:
        summands = -(-summands // 2)
    rows = _rows_at_once(s, summands)
    items = s.g * -(-s.summands // summands)
    plan.step(
        kernels.VOLUME_WEIGHT, [dw], [dy, x], ints=_ints(s, rows, block=summands), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=8 * summands * rows * s.out[2],
        writes=[Blocks.of((s.g, s.oc, s.summands), (1, s.oc, summands))],
    )


def emit_bias(plan: HostPlanner, out: HostTensor, bias: HostTensor, channels: int) -> None:
    """Emit the addition of one value for each channel to ``[n, channels, ...]``."""
    rows = out.shape[0] * channels
    plan.step(
        kernels.VOLUME_BIAS, [out], [bias], ints=VolumeBiasInts(channels, out.num_elements // max(1, rows)), items=rows,
        grain=grain_for(rows, out.num_elements, 16384), reads_outputs=True,
        writes=[Blocks.rows(rows, out)],
    )
