"""Host steps of convolutions over channels in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.conv_blocked import (
    CONV_BLOCKED,
    FOLD_BLOCKED,
    PACK_BLOCKED,
    Activation,
    BlockedEnding,
    BlockedWindow,
    ConvBlockedInts,
    FoldBlockedInts,
    PackBlockedInts,
)
from torchipu._kernels.table.conv_product import ConvEnding, ConvProductScalars
from torchipu.host.emit.blocked_layout import vector_lanes
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.matmul import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

SUMMANDS = 256  # of a chunk: sums so short round about as those of eager PyTorch; with half of it a tenth is lost
PIXELS = 64  # of an item that reads the input in place: with its channels of a chunk they fill a first-level cache
LAID_OUT_PIXELS = 224  # of an item whose rows are laid out


class Ending:
    """What becomes of the sums of a convolution.

    Args:
        bias: Added to each channel.
        norm: Operands of a normalisation, which the flags tell of.
        addend: Added to each element, in the blocked layout.
        factor: By which each channel's sum and bias are multiplied before that.
        flags: Those of ``ConvEnding`` that tell of the normalisation.
        epsilon: Of the normalisation.
        activation: At last.
    """

    def __init__(
        self, *, bias: HostTensor | None = None, norm: Sequence[HostTensor] = (), addend: HostTensor | None = None,
        factor: HostTensor | None = None, flags: int = 0, epsilon: float = 0.0,
        activation: Activation = Activation.NONE,
    ) -> None:
        self.folded = [held for held in (bias, *norm, factor) if held is not None]
        self.fold_flags = flags | (ConvEnding.HAS_BIAS if bias is not None else 0)
        self.fold_flags |= ConvEnding.HAS_FACTOR if factor is not None else 0
        self.addend, self.epsilon, self.activation = addend, epsilon, activation

    @property
    def flags(self) -> int:
        """Those of ``BlockedEnding``."""
        return (BlockedEnding.HAS_AFFINE if self.folded else 0) | (BlockedEnding.HAS_ADDEND if self.addend else 0)

    def operands(self, plan: HostPlanner, channels: int) -> list[HostTensor]:
        """Return what the kernels read of so many channels; bias and normalisation are folded by a step of its own."""
        affine = []
        if self.folded:
            affine = [plan.scratch((2, -(-channels // vector_lanes()) * vector_lanes()))]
            plan.step(
                FOLD_BLOCKED, affine, self.folded, ints=FoldBlockedInts(channels, self.fold_flags),
                scalars=ConvProductScalars(self.epsilon),
            )
        return [*affine, *([] if self.addend is None else [self.addend])]


def serves(s: Shape) -> bool:
    """Whether the kernel takes a convolution: groups fill blocks, and places fit 32 bits."""
    lanes = vector_lanes()
    fills = s.g == 1 or (s.ic % lanes == 0 and s.oc % lanes == 0)
    blocked = s.n * s.g * max(s.ic + lanes, s.oc + lanes) * max(s.h * s.w, s.oh * s.ow)
    return fills and blocked < 2**31 and min(s.ic, s.oc, s.oh, s.ow, s.n) > 0


def emit(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: Ending, *,
    is_plain: bool = False,
) -> None:
    """Emit a convolution.

    Args:
        plan: The planner.
        s: Its sizes.
        out: Results in the blocked layout.
        x: Input, in the blocked layout as well unless ``is_plain``.
        weight: Weights, row-major.
        ending: What becomes of the sums.
        is_plain: Whether the input is row-major.
    """
    lanes = vector_lanes()
    taps, blocks_in, blocks_out = s.kh * s.kw, -(-s.ic // lanes), -(-s.oc // lanes)
    chunk = max(1, min(blocks_in, SUMMANDS // (lanes * taps)))
    chunk = -(-blocks_in // -(-blocks_in // chunk))
    pixels, images, rows = _cut(s, in_place=(s.ph, s.pw) == (0, 0) and not is_plain)
    if pixels:
        blocks, floats, most = -(-s.n * s.oh * s.ow // pixels), 0, pixels
    else:
        blocks, most = -(-s.n // images) * -(-s.oh // rows), images * rows * s.ow
        span, columns = (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1, (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1
        floats = images * span * columns * chunk * lanes
    parts = min(blocks_out, max(1, -(-LEAST_ITEMS // (blocks * s.g))))
    results = -(-blocks_out // parts)
    items = blocks * s.g * -(-blocks_out // results)
    window = BlockedWindow(
        s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw,
    )
    plan.step(
        CONV_BLOCKED, [out], [x, packed(plan, s, weight), *ending.operands(plan, s.g * s.oc)],
        ints=ConvBlockedInts(
            window=window, pixels=pixels, images=images, rows=rows, chunk=chunk, results=results, is_plain=is_plain,
            flags=ending.flags, activation=ending.activation,
        ),
        items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (2 * most + taps + 16 + floats),
    )


def packed(plan: HostPlanner, s: Shape, weight: HostTensor) -> HostTensor:
    """Return the weights as the kernel reads them."""
    lanes = vector_lanes()
    blocks_out, taps = -(-s.oc // lanes), s.kh * s.kw
    held = plan.scratch((s.g, blocks_out, s.ic * taps * lanes))
    items = s.g * blocks_out
    plan.step(
        PACK_BLOCKED, [held], [weight], ints=PackBlockedInts(s.oc, s.ic, taps), items=items,
        grain=grain_for(items, s.g * s.oc * s.summands, LEAST_CHUNK_MACS),
    )
    return held


def _cut(s: Shape, *, in_place: bool) -> tuple[int, int, int]:
    """Return the pixels of an item, or its images and rows of each."""
    if in_place:
        return min(PIXELS, s.n * s.oh * s.ow), 0, 0
    if s.oh * s.ow <= LAID_OUT_PIXELS:
        images = max(1, min(s.n, LAID_OUT_PIXELS // (s.oh * s.ow)))
        return 0, -(-s.n // -(-s.n // images)), s.oh
    rows = max(1, min(s.oh, LAID_OUT_PIXELS // s.ow))
    return 0, 1, -(-s.oh // -(-s.oh // rows))
