"""Host steps of convolutions of bfloat16 that are products of matrices: windows of one pixel, and windows side by side.

Each image is a matrix of `[channels of a window, windows]`, as it lies or copied so once: no pixel is in two windows.
"""

from __future__ import annotations

from torchipu.host.emit.bfloat_matmul import emit_bfloat_product
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.packing import rows_apart
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

MOST_IMAGES = 16
"""Images whose parts of the weights' gradient are added up one after another."""


def serves(s: Shape) -> bool:
    """Whether no pixel is in two windows, of a convolution with one group and without padding."""
    is_apart = (s.kh <= s.sh or s.kh == s.h) and (s.kw <= s.sw or s.kw == s.w)
    return s.g == 1 and (s.ph, s.pw, s.dh, s.dw) == (0, 0, 1, 1) and is_apart and s.oc > 1 and s.oh * s.ow > 1


def serves_gradients(s: Shape) -> bool:
    """Whether gradients are such products too, which write each pixel of the input once."""
    return serves(s) and s.is_pointwise


def serves_weight(s: Shape) -> bool:
    """Whether the gradient of the weights is a few products, one for each image."""
    return serves_gradients(s) and s.n <= MOST_IMAGES


def emit_forward(
    plan: HostPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
) -> None:
    """Emit a convolution.

    Args:
        plan: The planner.
        s: Its sizes.
        out: Results, row-major or with their channels last, floats or bfloats.
        x: Input, bfloats, in any order.
        weight: Weights, bfloats, row-major.
        bias: Floats; added to each plane of results.
    """
    windows = _windows(plan, s, x)
    images, pixels = s.n, s.oh * s.ow
    if _has_channels_last(out):  # a row for each pixel
        rows = windows.permuted((0, 2, 1))
        row = None if bias is None else HostTensor(bias.buffer, bias.offset, (s.oc,), bias.strides, bias.dtype)
        of_rows = rows.strides[0] == pixels * rows.strides[1] or images == 1
        turned = HostTensor(weight.buffer, weight.offset, (s.summands, s.oc), (1, s.summands), weight.dtype)
        if of_rows:
            rows = HostTensor(rows.buffer, rows.offset, (images * pixels, s.summands), rows.strides[1:], rows.dtype)
            emit_bfloat_product(plan, _shown(out, (images * pixels, s.oc)), rows, turned, row)
            return
        shared = HostTensor(turned.buffer, turned.offset, (images, *turned.shape), (0, *turned.strides), turned.dtype)
        emit_bfloat_product(plan, _shown(out, (images, pixels, s.oc)), rows, shared, row)
        return
    shape = (images, s.oc, s.summands)
    shared = HostTensor(weight.buffer, weight.offset, shape, (0, s.summands, 1), weight.dtype)
    column = None
    if bias is not None:
        column = HostTensor(bias.buffer, bias.offset, (s.oc, 1), (bias.strides[0], 1), bias.dtype)
    emit_bfloat_product(plan, _shown(out, (images, s.oc, pixels)), shared, windows, column)


def emit_input_gradient(plan: HostPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor) -> None:
    """Emit the gradient of the input, row-major, of a convolution that `serves_gradients` names.

    Args:
        plan: The planner.
        s: Sizes of the convolution.
        dx: The gradient, floats or bfloats.
        dy: That of the results, bfloats in any order.
        weight: Weights, bfloats, row-major.
    """
    shape = (s.n, s.ic, s.oc)
    turned = HostTensor(weight.buffer, weight.offset, shape, (0, 1, s.ic), weight.dtype)
    emit_bfloat_product(plan, _shown(dx, (s.n, s.ic, s.h * s.w)), turned, _planes(plan, dy))


def emit_weight_gradient(plan: HostPlanner, s: Shape, dw: HostTensor, dy: HostTensor, x: HostTensor) -> None:
    """Emit the gradient of the weights, row-major floats, likewise; images are added up in their order."""
    left, right = _planes(plan, dy), _planes(plan, x).permuted((0, 2, 1))
    for image in range(s.n):
        first, second = (
            HostTensor(held.buffer, held.offset + image * held.strides[0], held.shape[1:], held.strides[1:], held.dtype)
            for held in (left, right)
        )
        emit_bfloat_product(plan, _shown(dw, (s.oc, s.ic)), first, second, adds=image > 0)


def _has_channels_last(held: HostTensor) -> bool:
    """Whether results lie with their channels last and not row-major as well."""
    return not held.is_contiguous


def _shown(held: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    """Return dense storage as a matrix, or one for each image, whose rows lie one behind another."""
    strides = (shape[1], 1) if len(shape) == 2 else (shape[1] * shape[2], shape[2], 1)
    return HostTensor(held.buffer, held.offset, shape, strides, held.dtype)


def _planes(plan: HostPlanner, held: HostTensor) -> HostTensor:
    """Return `[N, C, ...]` as `[N, C, pixels]`, whose last strides suit a product."""
    images, channels, *size = held.shape
    apart = held.strides[2:]
    pixels, step = 1, 1
    for each, stride in zip(reversed(size), reversed(apart), strict=True):
        if each > 1:
            step = stride if pixels == 1 else step
            if stride != step * pixels:
                return _copied(plan, held, (images, channels, *size))
            pixels *= each
    shown = HostTensor(held.buffer, held.offset, (images, channels, pixels), (*held.strides[:2], step), held.dtype)
    return shown if rows_apart(shown) else _copied(plan, held, (images, channels, *size))


def _copied(plan: HostPlanner, held: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    fresh = plan.scratch(shape, DType.BFLOAT)
    emit_copy(plan, fresh, held)
    images, channels, *_ = shape
    return _shown(fresh, (images, channels, fresh.num_elements // (images * channels)))


def _windows(plan: HostPlanner, s: Shape, x: HostTensor) -> HostTensor:
    """Return the input as `[N, channels of a window, windows]`."""
    if s.is_pointwise:
        return _planes(plan, x)
    image, channel, *apart = x.strides
    row, column = apart if len(apart) == 2 else (0, *apart)
    taken = HostTensor(
        x.buffer, x.offset, (s.n, s.oh, s.ow, s.ic, s.kh, s.kw),
        (image, s.sh * row, s.sw * column, channel, row, column), x.dtype,
    )
    fresh = plan.scratch(taken.shape, DType.BFLOAT)
    emit_copy(plan, fresh, taken)
    return _shown(fresh, (s.n, s.oh * s.ow, s.summands)).permuted((0, 2, 1))
