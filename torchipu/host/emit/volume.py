"""Host steps of convolutions over three dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torchipu._kernels.table import volume as kernels
from torchipu._kernels.table.volume import VOLUME_SUMMANDS, VolumeBiasInts, VolumeInts
from torchipu.host.emit.matmul import grain_for
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

BLOCK_FLOATS = 64 * 1024  # of an expanded block
LEAST_CHUNK_MACS = 200_000
LEAST_ITEMS = 8

Sizes = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Volume:
    """Sizes of a 3-d convolution; ``ic`` and ``oc`` count the channels of one of the ``g`` groups."""

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
    def summands(self) -> int:
        """Products added up for one output."""
        return self.ic * prod(self.window)

    @property
    def macs(self) -> int:
        """Multiply-accumulates in all."""
        return self.n * self.g * self.oc * prod(self.out) * self.summands

    @property
    def num_rows(self) -> int:
        """Rows of outputs in one image."""
        return self.out[0] * self.out[1]

    def rows_at_once(self, summands: int) -> int:
        """Rows of outputs whose ``summands`` fill a block."""
        return max(1, min(self.num_rows, BLOCK_FLOATS // max(1, summands * self.out[2])))

    def ints(self, rows: int, *, block: int = 0, has_bias: bool = False) -> VolumeInts:
        """Return the integers of a kernel that lays out ``rows`` at a time."""
        return VolumeInts(
            samples=self.n, groups=self.g, in_channels=self.ic, out_channels=self.oc, size=self.size, out=self.out,
            window=self.window, stride=self.stride, padding=self.padding, dilation=self.dilation, rows=rows,
            block=block, has_bias=has_bias,
        )


def emit_forward(
    plan: HostPlanner, s: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
) -> None:
    """Emit a convolution with row-major operands."""
    summands = min(s.summands, VOLUME_SUMMANDS)
    rows = s.rows_at_once(summands)
    while rows > 1 and s.n * s.g * -(-s.num_rows // rows) < LEAST_ITEMS:
        rows = -(-rows // 2)
    items = s.n * s.g * -(-s.num_rows // rows)
    plan.step(
        kernels.VOLUME_FORWARD, [out], [x, weight] + ([bias] if bias is not None else []),
        ints=s.ints(rows, has_bias=bias is not None), items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * summands * rows * s.out[2],
        writes=[Blocks.of((s.n * s.g, s.oc, s.num_rows, s.out[2]), (1, s.oc, rows, s.out[2]))],
    )


def emit_input_gradient(plan: HostPlanner, s: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input."""
    taps, channels = prod(s.window), s.ic
    while channels > 1 and (s.n * s.g * -(-s.ic // channels) < LEAST_ITEMS or channels * taps > VOLUME_SUMMANDS):
        channels = -(-channels // 2)
    rows = s.rows_at_once(channels * taps)
    items = s.n * s.g * -(-s.ic // channels)
    plan.step(
        kernels.VOLUME_INPUT, [dx], [dy, weight], ints=s.ints(rows, block=channels), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=4 * channels * taps * rows * s.out[2],
        writes=[Blocks.of((s.n * s.g, s.ic, prod(s.size)), (1, channels, prod(s.size)))],
    )


def emit_weight_gradient(plan: HostPlanner, s: Volume, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights."""
    summands = min(s.summands, VOLUME_SUMMANDS)
    while summands > 32 and s.g * -(-s.summands // summands) < LEAST_ITEMS:
        summands = -(-summands // 2)
    rows = s.rows_at_once(summands)
    items = s.g * -(-s.summands // summands)
    plan.step(
        kernels.VOLUME_WEIGHT, [dw], [dy, x], ints=s.ints(rows, block=summands), items=items,
        grain=grain_for(items, s.macs, LEAST_CHUNK_MACS), scratch_bytes=4 * summands * rows * s.out[2],
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
