"""Calls of the records that pool, resample, pad and slide windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call

aten = torch.ops.aten
SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    yield from pooled(draw)
    yield from adapted(draw)
    yield from resampled(draw)
    yield from padded(draw)
    yield from slid(draw)
    yield from sampled(draw)


def pooled(draw: Draw) -> Iterator[Call]:
    """Yield pooling over windows, its gradients, and what takes maxima back to their places."""
    for dims, (kernel, stride, padding, ceil) in itertools.product((2, 3), ((2, 2, 0, False), (3, 2, 1, True))):
        x = draw.apart(draw.batch, 2, *SIZES[dims])
        window = [kernel] * dims, [stride] * dims, [padding] * dims
        shape = getattr(aten, f"avg_pool{dims}d")(x.float(), *window, ceil).shape
        for divisor in (None, 5):
            yield call(f"avg_pool{dims}d.default", x, *window, ceil, padding == 0, divisor)
            yield call(f"avg_pool{dims}d_backward.default", draw(*shape), x, *window, ceil, padding == 0, divisor)
        for dilation in (1, 2) if dims == 2 else (1,):
            spread = *window, [dilation] * dims, ceil
            yield call(f"max_pool{dims}d_with_indices.default", x, *spread)
            values, indices = getattr(aten, f"max_pool{dims}d_with_indices")(x.float(), *spread)
            gradient = draw(*values.shape)
            yield call(f"max_pool{dims}d_with_indices_backward.default", gradient, x, *spread, indices)
        if padding:
            continue
        values, indices = getattr(aten, f"max_pool{dims}d_with_indices")(x.float(), *window)
        behind = () if dims == 2 else window[1:]
        yield call(f"max_unpool{dims}d.default", values.to(draw.dtype), indices, list(SIZES[dims]), *behind)


def sampled(draw: Draw) -> Iterator[Call]:
    """Yield images taken at the places that a grid says, and their gradients.

    Beyond the border there are zeros: with others eager PyTorch reads elsewhere for what is no number.
    """
    x, gradient = draw(draw.batch, 2, 7, 6), draw(draw.batch, 2, 3, 4)
    places = torch.tensor([[-0.93, -0.41], [0.13, 0.87], [0.61, -0.27], [1.29, 0.33]])
    grid = places.expand(draw.batch, 3, 4, 2).to(draw.dtype)
    for mode, outside, aligned in ((0, 0, False), (0, 0, True), (1, 0, False), (2, 0, True)):
        yield call("grid_sampler_2d.default", x, grid, mode, outside, aligned)
        yield call("grid_sampler_2d_backward.default", gradient, x, grid, mode, outside, aligned, [True, True])


def adapted(draw: Draw) -> Iterator[Call]:
    """Yield pooling to a size, and its gradients."""
    for dims, size in itertools.product((2, 3), (1, 3)):
        x = draw.apart(draw.batch, 2, *SIZES[dims])
        yield call(f"_adaptive_avg_pool{dims}d.default", x, [size] * dims)
        yield call(f"_adaptive_avg_pool{dims}d_backward.default", draw(draw.batch, 2, *(size,) * dims), x)
        yield call(f"adaptive_max_pool{dims}d.default", x, [size] * dims)
        if draw.batch:
            values, indices = getattr(aten, f"adaptive_max_pool{dims}d")(x.float(), [size] * dims)
            yield call(f"adaptive_max_pool{dims}d_backward.default", draw(*values.shape), x, indices)


def resampled(draw: Draw) -> Iterator[Call]:
    """Yield nearest and linear resampling to larger and smaller sizes, with and without given scales."""
    for dims, (factor, told) in itertools.product(SIZES, ((2.0, True), (0.6, False))):
        sizes = SIZES[dims]
        shape = [draw.batch, 2, *sizes]
        outer = [math.floor(size * factor) for size in sizes]
        scales = [factor if told else None] * dims
        linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
        names = [(f"upsample_nearest{dims}d", ()), (f"_upsample_nearest_exact{dims}d", ())]
        names += [(f"upsample_{linear}{dims}d", (align,)) for align in (False, True)]
        if dims == 2:
            names += [(f"{name}2d{end}", (align,)) for name, end in (
                ("upsample_bicubic", ""), ("_upsample_bilinear", "_aa"), ("_upsample_bicubic", "_aa"),
            ) for align in (False, True)]
        for name, align in names:
            yield call(f"{name}.default", draw(*shape), outer, *align, *scales)
            yield call(f"{name}_backward.default", draw(draw.batch, 2, *outer), outer, shape, *align, *scales)


def padded(draw: Draw) -> Iterator[Call]:
    """Yield reflection and replication at the borders, and their gradients."""
    for dims, kind in itertools.product(SIZES, ("reflection", "replication")):
        for padding in ([2, 1] + [1, 3] * (dims - 1), [-1, 2] + [1, -2] * (dims - 1)):
            x = draw(draw.batch, 2, *SIZES[dims])
            yield call(f"{kind}_pad{dims}d.default", x, padding)
            outer = [size + sum(padding[2 * place : 2 * place + 2]) for place, size in enumerate(reversed(SIZES[dims]))]
            yield call(f"{kind}_pad{dims}d_backward.default", draw(draw.batch, 2, *reversed(outer)), x, padding)


def slid(draw: Draw) -> Iterator[Call]:
    """Yield windows laid side by side, and their sums."""
    for kernel, dilation, padding, stride in ((3, 1, 1, 2), (2, 2, 0, 1)):
        window = [kernel, kernel], [dilation, dilation], [padding, padding], [stride, stride]
        x = draw(draw.batch, 2, 7, 6)
        yield call("im2col.default", x, *window)
        columns = aten.im2col(draw(1, 2, 7, 6).float(), *window).shape[-1]
        yield call("col2im.default", draw(draw.batch, 2 * kernel * kernel, columns), [7, 6], *window)
