"""Host steps of convolutions over channels in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from torchipu._kernels.table.conv_blocked import (
    CONV_BLOCKED,
    FOLD_BLOCKED,
    PACK_BLOCKED,
    Activation,
    BlockedEnding,
    BlockedTarget,
    BlockedWindow,
    ConvBlockedInts,
    FoldBlockedInts,
    PackBlockedInts,
)
from torchipu._kernels.table.conv_product import ConvEnding, ConvProductScalars
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import blocked_ints
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor, Rounding
from torchipu.optable.planner import HostPlanner

SUMMANDS = 256  # of a chunk: sums so short round about as those of eager PyTorch; with half of it a tenth is lost
PIXELS = 128  # of an item that reads in place, at most: each fetches all weights; its channels fill the second cache
PLACED_FLOATS = 1 << 16  # of such an item's input where sums stay in registers: results are written in longer runs
MOST_PIXELS = 2048  # of it
LAID_OUT_PIXELS = 224  # of an item whose rows are laid out
MOST_PHASES = 4


@dataclass(frozen=True, slots=True)
class OpRounding:
    """How a result that is half is rounded among others that are computed together.

    Attributes:
        rounding: To nearest or stochastically.
        has_channels_last: Whether the result has its channels last, by which its elements are numbered.
    """

    rounding: Rounding
    has_channels_last: bool = False


class Ending:
    """What becomes of the sums of a convolution.

    Args:
        bias: Added to each channel.
        norm: Operands of a normalisation, which the flags tell of.
        addend: Added to each element, in the blocked layout.
        gate: Where it is not above 0, results are 0; in the blocked layout.
        factor: By which each channel's sum and bias are multiplied before that.
        flags: Those of ``ConvEnding`` that tell of the normalisation.
        epsilon: Of the normalisation.
        activation: At last.
        rounded: How results of the ops become half that the ending stands for: the sum with its bias, the
            normalisation or the product with the factor, the sum with the addend, the activation; None for one that
            is no half, or whose values all are halves.
        affine: What is added first, then scales and shifts, each as `fold_blocked` makes them; in place of a bias, a
            normalisation and a factor. Only `end_blocked` adds it where nothing is rounded.
    """

    def __init__(
        self, *, bias: HostTensor | None = None, norm: Sequence[HostTensor] = (), addend: HostTensor | None = None,
        gate: HostTensor | None = None, factor: HostTensor | None = None, flags: int = 0, epsilon: float = 0.0,
        activation: Activation = Activation.NONE, rounded: Sequence[OpRounding | None] = (),
        affine: tuple[HostTensor, HostTensor] | None = None,
    ) -> None:
        self.rounded = [each for each in rounded if each is not None]
        # A bias that is rounded before a normalisation cannot be folded with it.
        self.first = bias if self.rounded else None
        folded = (None if self.rounded else bias, *norm, factor)
        self.folded = [held for held in folded if held is not None]
        self.fold_flags = flags | (ConvEnding.HAS_BIAS if folded[0] is not None else 0)
        self.fold_flags |= ConvEnding.HAS_FACTOR if factor is not None else 0
        self.addend, self.gate, self.epsilon, self.activation = addend, gate, epsilon, activation
        self.round_flags, self.affine = _round_flags(rounded), affine

    @property
    def flags(self) -> int:
        """Those of ``BlockedEnding``."""
        flags = BlockedEnding.HAS_FIRST if self.first is not None or self.affine is not None else 0
        flags |= BlockedEnding.HAS_AFFINE if self.folded or self.affine is not None else 0
        flags |= BlockedEnding.HAS_ADDEND if self.addend else 0
        return flags | (BlockedEnding.HAS_GATE if self.gate else 0) | self.round_flags

    @property
    def is_short(self) -> bool:
        """Whether sums are ended in the registers that hold them, as the kernel's ``is_short`` says."""
        return self.activation <= Activation.HARDSIGMOID and not self.rounded

    def operands(self, plan: HostPlanner, channels: int) -> list[HostTensor]:
        """Return what the kernels read of so many channels; bias and normalisation are folded by a step of its own."""
        affine = [*(self.affine or ())]
        if self.first is not None:
            affine.append(_folded(plan, channels, [self.first], ConvEnding.HAS_BIAS, 0.0))
        if self.folded:
            affine.append(_folded(plan, channels, self.folded, self.fold_flags, self.epsilon))
        random = [each.rounding.random for each in self.rounded if each.rounding.random is not None]
        return [*affine, *(held for held in (self.addend, self.gate) if held is not None), *random]


def _folded(
    plan: HostPlanner, channels: int, operands: Sequence[HostTensor], flags: int, epsilon: float,
) -> HostTensor:
    """Return scale and shift of each channel."""
    held = plan.scratch((2, -(-channels // vector_lanes()) * vector_lanes()))
    plan.step(
        FOLD_BLOCKED, [held], operands, ints=FoldBlockedInts(channels, flags), scalars=ConvProductScalars(epsilon),
    )
    return held


def _round_flags(rounded: Sequence[OpRounding | None]) -> int:
    """Return the flags of ``BlockedEnding`` that tell of rounding."""
    flags = 0
    for number, each in enumerate(rounded):
        if each is None:
            continue
        flags |= BlockedEnding.ROUNDS << number | each.rounding.overflow * BlockedEnding.OVERFLOW
        flags |= BlockedEnding.IS_RANDOM << number if each.rounding.random is not None else 0
        flags |= BlockedEnding.CHANNELS_LAST << number if each.has_channels_last else 0
    return flags


@dataclass(frozen=True, slots=True)
class Part:
    """Results that one call of the kernel computes: all of a convolution, or a phase of the gradient of its input.

    Attributes:
        shape: Sizes; those of a phase of stride 1.
        weights: Where its weights lie.
        target: Where its results lie.
    """

    shape: Shape
    weights: PackBlockedInts
    target: BlockedTarget


def forward_part(s: Shape) -> Part:
    """Return a convolution itself."""
    taps = s.kh * s.kw
    weights = PackBlockedInts(s.oc, s.ic, s.kh, s.kw, s.oc * s.summands, s.summands, taps, 0, s.kw, 1)
    return Part(s, weights, BlockedTarget(s.oh * s.ow, 0, s.ow, 1))


def input_parts(s: Shape) -> list[Part]:
    """Return the gradient of the input: a convolution for each phase of the strides, over the taps that reach it."""
    parts = []
    for row in range(min(s.sh, s.h)):
        for column in range(min(s.sw, s.w)):
            down, across = _taps(s.kh, s.sh, s.ph, s.dh, row), _taps(s.kw, s.sw, s.pw, s.dw, column)
            height, width = -(-(s.h - row) // s.sh), -(-(s.w - column) // s.sw)
            shape = Shape(
                s.n, s.g, s.oc, s.ic, s.oh, s.ow, height, width, down.count, across.count, 1, 1, down.padding,
                across.padding, down.dilation, across.dilation,
            )
            weights = PackBlockedInts(
                s.ic, s.oc, down.count, across.count, s.oc * s.summands, s.kh * s.kw, s.summands,
                down.last * s.kw + across.last, -down.step * s.kw, -across.step,
            )
            parts.append(Part(shape, weights, BlockedTarget(s.h * s.w, row * s.w + column, s.sh * s.w, s.sw)))
    return parts


@dataclass(frozen=True, slots=True)
class _Taps:
    """Taps of a dimension that reach a phase: the last comes first, ``step`` taps lie between two."""

    count: int
    last: int
    step: int
    padding: int
    dilation: int


def _taps(window: int, stride: int, padding: int, dilation: int, phase: int) -> _Taps:
    reaching = [tap for tap in range(window) if (phase + padding - tap * dilation) % stride == 0]
    if not reaching:
        return _Taps(0, 0, 1, 0, 1)
    common = gcd(stride, dilation)
    first = (phase + padding - reaching[-1] * dilation) // stride
    return _Taps(len(reaching), reaching[-1], stride // common, -first, dilation // common)


def serves(s: Shape) -> bool:
    """Whether the kernel takes a convolution: groups fill blocks, and places fit 32 bits.

    One window of many pixels is a row of a matrix, which is multiplied faster as it lies.
    """
    if s.is_of_whole_images and s.kh * s.kw > 1:
        return False
    lanes = vector_lanes()
    fills = s.g == 1 or (s.ic % lanes == 0 and s.oc % lanes == 0)
    blocked = s.n * s.g * max(s.ic + lanes, s.oc + lanes) * max(s.h * s.w, s.oh * s.ow)
    return fills and blocked < 2**31 and min(s.ic, s.oc, s.oh, s.ow, s.n) > 0


def serves_input(s: Shape) -> bool:
    """Whether the kernel takes the gradient of the input: with long strides its phases have few pixels and taps."""
    return serves(s) and s.sh * s.sw <= MOST_PHASES


def emit(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: Ending, *,
    is_plain: bool = False, apart: int | None = None,
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
        apart: Blocks of channels from an image of the input to the next where images share some; None for all of one.
    """
    operands = [x, weight, *ending.operands(plan, s.g * s.oc)]
    _emit_part(plan, forward_part(s), out, operands, ending, is_plain=is_plain, apart=apart)


def emit_input_gradient(
    plan: HostPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor, ending: Ending
) -> None:
    """Emit the gradient of the input.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        dx: Gradient of its input, in the blocked layout.
        dy: Gradient of its results, likewise.
        weight: Weights, row-major.
        ending: What becomes of the sums.
    """
    operands = [dy, weight, *ending.operands(plan, s.g * s.ic)]
    for part in input_parts(s):
        _emit_part(plan, part, dx, operands, ending)


def _emit_part(
    plan: HostPlanner, part: Part, out: HostTensor, operands: Sequence[HostTensor], ending: Ending, *,
    is_plain: bool = False, apart: int | None = None,
) -> None:
    s, lanes = part.shape, vector_lanes()
    x, weight, *others = operands
    taps, blocks_in, blocks_out = s.kh * s.kw, -(-s.ic // lanes), -(-s.oc // lanes)
    chunk = max(1, min(blocks_in, SUMMANDS // (lanes * max(1, taps))))
    chunk = -(-blocks_in // -(-blocks_in // chunk))
    pixels, images, rows, width = 0, 0, 0, 0
    if stays_within(s) and not is_plain:
        pixels = _pixels_in_place(s, is_at_once=chunk == blocks_in and ending.is_short)
    else:
        images, rows, width = _laid_out(s)
    if pixels:
        blocks, floats, most = -(-s.n * s.oh * s.ow // pixels), 0, pixels
    else:
        blocks, most = -(-s.n // images) * -(-s.oh // rows) * -(-s.ow // width), images * rows * width
        span, columns = (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1, (width - 1) * s.sw + (s.kw - 1) * s.dw + 1
        floats = images * span * columns * chunk * lanes
    parts = min(blocks_out, max(1, -(-LEAST_ITEMS // (blocks * s.g))))
    results = -(-blocks_out // parts)
    items = blocks * s.g * -(-blocks_out // results)
    window = window_of(s)
    plan.step(
        CONV_BLOCKED, [out], [x, _packed(plan, part, weight) if taps else weight, *others],
        ints=ConvBlockedInts(
            window=window, target=part.target, pixels=pixels, images=images, rows=rows, columns=width, chunk=chunk,
            results=results, is_plain=is_plain, flags=ending.flags, activation=ending.activation,
            apart=s.g * blocks_in if apart is None else apart,
        ),
        items=items, grain=grain_for(items, s.macs, LEAST_CHUNK_MACS),
        scratch_bytes=4 * (2 * most + taps + 16 + floats),
    )


def packed(plan: HostPlanner, s: Shape, weight: HostTensor, *, is_turned: bool = False) -> HostTensor:
    """Return the weights of a convolution, in either order, as ``conv_blocked`` and the kernels beside it read them.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        weight: Weights, row-major or with their channels last.
        is_turned: Whether the last tap comes first, as the gradient of the input has it.
    """
    part, last = forward_part(s), s.kh * s.kw - 1
    if is_turned:
        turned = part.weights._replace(first=last, down=-part.weights.down, across=-part.weights.across)
        part = replace(part, weights=turned)
    return _packed(plan, part, weight)


def _packed(plan: HostPlanner, part: Part, weight: HostTensor) -> HostTensor:
    """Return the weights as the kernel reads them."""
    s, lanes = part.shape, vector_lanes()
    blocks_out, taps = -(-s.oc // lanes), s.kh * s.kw
    held = plan.scratch((s.g, blocks_out, s.ic * taps * lanes))
    items = s.g * blocks_out
    plan.step(
        PACK_BLOCKED, [held], [weight], ints=blocked_ints(part.weights, weight), items=items,
        grain=grain_for(items, s.g * s.oc * s.summands, LEAST_CHUNK_MACS),
    )
    return held


def window_of(s: Shape) -> BlockedWindow:
    """Return the sizes of a convolution as kernels in the blocked layout read them."""
    return BlockedWindow(
        s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.kh, s.kw, s.sh, s.sw, s.ph, s.pw, s.dh, s.dw,
    )


def stays_within(s: Shape) -> bool:
    """Whether no window reaches beyond the image, or there are no taps."""
    if s.kh * s.kw == 0:
        return True
    bottom, right = (s.oh - 1) * s.sh + (s.kh - 1) * s.dh, (s.ow - 1) * s.sw + (s.kw - 1) * s.dw
    return (s.ph, s.pw) == (0, 0) and bottom < s.h and right < s.w


def _pixels_in_place(s: Shape, *, is_at_once: bool) -> int:
    """Return the pixels of an item that reads its input where it lies.

    Args:
        s: Sizes of the convolution.
        is_at_once: Whether registers hold each sum until it is ended. Others are read again, from a near cache.
    """
    pixels, most = s.n * s.oh * s.ow, PIXELS
    if is_at_once:
        most = max(PIXELS, min(MOST_PIXELS, PLACED_FLOATS // s.ic, pixels // LEAST_ITEMS))
    return -(-pixels // -(-pixels // most))


def readings(s: Shape) -> int:
    """Return how often the weights are read of a convolution whose rows are laid out."""
    images, rows, columns = _laid_out(s)
    return -(-s.n // images) * -(-s.oh // rows) * -(-s.ow // columns)


def _laid_out(s: Shape) -> tuple[int, int, int]:
    """Return the images of an item whose rows are laid out, the rows of each, and the columns of each of these."""
    if s.oh * s.ow <= LAID_OUT_PIXELS:
        images = max(1, min(s.n, LAID_OUT_PIXELS // (s.oh * s.ow)))
        return -(-s.n // -(-s.n // images)), s.oh, s.ow
    rows = max(1, min(s.oh, LAID_OUT_PIXELS // s.ow))
    return 1, -(-s.oh // -(-s.oh // rows)), parts_of_rows(s.ow, LAID_OUT_PIXELS)


def parts_of_rows(columns: int, pixels: int) -> int:
    """Return how many columns of long rows are computed at a time; all of those that are not much longer."""
    return columns if columns < 2 * pixels else -(-columns // -(-columns // pixels))
