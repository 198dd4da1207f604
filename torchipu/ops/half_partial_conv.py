"""Host steps of convolutions with half partials: products of windows laid out in full.

Values matter here, not time. Channels of a window's element are summed first, then the elements of the window.
"""

from __future__ import annotations

from math import prod

from torchipu.ops.half_partials import HALF_GROUP, emit_half_product
from torchipu.ops.spec import HostPlanner, HostTensor, Rounding, contiguous_strides
from torchipu.ops.view import emit_copy, emit_fill
from torchipu.ops.volume import Volume


def _view(held: HostTensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> HostTensor:
    return HostTensor(held.buffer, held.offset + offset, shape, strides, held.dtype)


def _laid_out(plan: HostPlanner, source: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    """Copy a view to row-major storage of another shape of as many elements."""
    fresh = plan.scratch(shape)
    emit_copy(plan, _view(fresh, source.shape, contiguous_strides(source.shape)), source)
    return fresh


def _spread(
    plan: HostPlanner, held: HostTensor, size: tuple[int, ...], first: tuple[int, ...], step: tuple[int, ...],
) -> HostTensor:
    """Return [N, C, *size] of zeros with the elements of a [N, C, ...] from ``first`` on, ``step`` apart.

    What would lie outside is left away.
    """
    given = held.shape[2:]
    skipped = tuple(max(0, -(f // s)) for f, s in zip(first, step, strict=True))
    begin = tuple(f + k * s for f, k, s in zip(first, skipped, step, strict=True))
    count = tuple(
        max(0, min(n - k, -(-(z - b) // s))) for n, k, z, b, s in zip(given, skipped, size, begin, step, strict=True)
    )
    fresh = plan.scratch((*held.shape[:2], *size))
    emit_fill(plan, fresh, 0.0)
    source = contiguous_strides(held.shape)
    target = contiguous_strides(fresh.shape)
    shape = (*held.shape[:2], *count)
    emit_copy(
        plan,
        _view(fresh, shape, (*target[:2], *(t * s for t, s in zip(target[2:], step, strict=True))),
              sum(b * t for b, t in zip(begin, target[2:], strict=True))),
        _view(held, shape, source, sum(k * s for k, s in zip(skipped, source[2:], strict=True))),
    )
    return fresh


def _windows(
    plan: HostPlanner, v: Volume, held: HostTensor, channels: int, out: tuple[int, ...], stride: tuple[int, ...],
) -> HostTensor:
    """Return [G, N, *out, *window, C]: what each window reads."""
    sample, channel, *space = contiguous_strides(held.shape)
    shape = (v.g, v.n, *out, *v.window, channels)
    strides = (
        channels * channel, sample, *(a * s for a, s in zip(space, stride, strict=True)),
        *(a * d for a, d in zip(space, v.dilation, strict=True)), channel,
    )
    return _view(held, shape, strides)


def _padded(plan: HostPlanner, v: Volume, x: HostTensor) -> HostTensor:
    """Return the input in three dimensions with zeros around."""
    held = _view(x, (v.n, v.g * v.ic, *v.size), contiguous_strides((v.n, v.g * v.ic, *v.size)))
    size = tuple(n + 2 * p for n, p in zip(v.size, v.padding, strict=True))
    return _spread(plan, held, size, v.padding, (1, 1, 1))


def _unfolded_result(plan: HostPlanner, v: Volume, out: HostTensor, product: HostTensor, size: tuple[int, ...]) -> None:
    """Copy [G, N x positions, C] to [N, G x C, *size]."""
    channels, positions = product.shape[-1], prod(size)
    shape = (v.n, v.g, channels, positions)
    rows = v.n * positions
    strides = (positions * channels, rows * channels, 1, channels)
    emit_copy(plan, _view(out, shape, contiguous_strides(shape)), _view(product, shape, strides))


def emit_forward(
    plan: HostPlanner, v: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
    rounding: Rounding, *, alpha: float = 1.0, group: int = HALF_GROUP,
) -> None:
    """Emit a plain convolution; ``alpha`` and ``group`` here and below as of `emit_half_product`."""
    taps, positions = prod(v.window), prod(v.out)
    windows = _windows(plan, v, _padded(plan, v, x), v.ic, v.out, v.stride)
    left = _laid_out(plan, windows, (v.g, v.n * positions, taps * v.ic))
    turned = _view(weight, (v.g, taps, v.ic, v.oc), (v.oc * v.ic * taps, 1, taps, v.ic * taps))
    right = _laid_out(plan, turned, (v.g, taps * v.ic, v.oc))
    product = plan.scratch((v.g, v.n * positions, v.oc))
    addend = None if bias is None else _view(bias, (v.g, 1, v.oc), (v.oc, 0, 1))
    emit_half_product(plan, product, left, right, rounding, taps=taps, addend=addend, alpha=alpha, group=group)
    _unfolded_result(plan, v, out, product, v.out)


def emit_input_gradient(
    plan: HostPlanner, v: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor, rounding: Rounding, *,
    alpha: float = 1.0, group: int = HALF_GROUP,
) -> None:
    """Emit the gradient of a plain convolution's input: a convolution of the spread output with the turned window."""
    taps, positions = prod(v.window), prod(v.size)
    held = _view(dy, (v.n, v.g * v.oc, *v.out), contiguous_strides((v.n, v.g * v.oc, *v.out)))
    reach = tuple(d * (w - 1) for d, w in zip(v.dilation, v.window, strict=True))
    first = tuple(r - p for r, p in zip(reach, v.padding, strict=True))
    size = tuple(n + r for n, r in zip(v.size, reach, strict=True))
    spread = _spread(plan, held, size, first, v.stride)
    windows = _windows(plan, v, spread, v.oc, v.size, (1, 1, 1))
    left = _laid_out(plan, windows, (v.g, v.n * positions, taps * v.oc))
    turned = _view(
        weight, (v.g, taps, v.oc, v.ic), (v.oc * v.ic * taps, -1, v.ic * taps, taps), taps - 1,
    )
    right = _laid_out(plan, turned, (v.g, taps * v.oc, v.ic))
    product = plan.scratch((v.g, v.n * positions, v.ic))
    emit_half_product(plan, product, left, right, rounding, taps=taps, alpha=alpha, group=group)
    _unfolded_result(plan, v, dx, product, v.size)


def emit_weight_gradient(
    plan: HostPlanner, v: Volume, dw: HostTensor, dy: HostTensor, x: HostTensor, rounding: Rounding, *,
    alpha: float = 1.0, group: int = HALF_GROUP,
) -> None:
    """Emit the gradient of a plain convolution's weights: positions are the channels that are summed."""
    taps, positions = prod(v.window), prod(v.out)
    rows = v.n * positions
    by_group = _view(
        dy, (v.g, v.oc, v.n, positions), (v.oc * positions, positions, v.g * v.oc * positions, 1),
    )
    left = _laid_out(plan, by_group, (v.g, v.oc, rows))
    windows = _windows(plan, v, _padded(plan, v, x), v.ic, v.out, v.stride)
    # Channels before the window's elements, as the weights lie.
    order = (*range(5), 8, 5, 6, 7)
    turned = _view(
        windows, tuple(windows.shape[k] for k in order), tuple(windows.strides[k] for k in order),
    )
    right = _laid_out(plan, turned, (v.g, rows, v.ic * taps))
    result = _view(dw, (v.g, v.oc, v.ic * taps), contiguous_strides((v.g, v.oc, v.ic * taps)))
    emit_half_product(plan, result, left, right, rounding, alpha=alpha, group=group)
