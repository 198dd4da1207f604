"""Calls of the records that reduce, scan, normalise exponentials and order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    yield from reduced(draw)
    yield from scanned(draw)
    yield from ordered(draw)
    yield from searched(draw)


def reduced(draw: Draw) -> Iterator[Call]:
    """Yield reductions."""
    x = draw.apart(draw.batch, 7, 5)
    for name in ("sum.default", "mean.default", "prod.default", "max.default", "min.default", "any.default",
                 "all.default", "argmax.default", "argmin.default", "var.default", "std.default"):
        yield call(name, draw.within(-1, 1, draw.batch, 7, 2) if name == "prod.default" else x)
        yield call(name, draw())
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dims", "all.dims", "var.dim",
                 "std.dim", "logsumexp.default"):
        yield call(name, x, [0, 2])
        yield call(name, x, [-1])
        yield call(name, draw(), [0])
    for name in ("prod.dim_int", "any.dim", "all.dim", "max.dim", "min.dim", "argmax.default", "argmin.default"):
        yield call(name, x, 1)
        yield call(name, x, -1, True)
        yield call(name, draw(), 0)
    for name in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"):
        yield call(name, x, [0, 1], correction=0, keepdim=True)
        yield call(name, x, [2], correction=1.5)
    for order in (2, 1, math.inf):
        yield call("linalg_vector_norm.default", x, order, [1])
        yield call("norm.ScalarOpt_dim", x, order, [0, 2], True)
        yield call("norm.Scalar", x, order)
    yield call("linalg_vector_norm.default", draw())
    yield call("sum.dim_IntList", x, None, dtype=torch.float32)
    yield call("logsumexp.default", x, [1], True)


def scanned(draw: Draw) -> Iterator[Call]:
    """Yield scans and softmaxes, along the last dimension and another."""
    n, x = draw.batch, draw(draw.batch, 6, 9)
    for name in ("cumsum.default", "cumprod.default", "logcumsumexp.default", "cummax.default", "cummin.default"):
        for dim in (1, -1):
            yield call(name, draw.apart(n, 6, 9) if "cumm" in name else draw.within(-1, 1, n, 6, 9), dim)
        yield call(name, draw(), 0)
    gradient, half = draw(n, 6, 9), draw.dtype is torch.float16
    for dim in (1, 2):
        for name in ("_softmax", "_log_softmax"):
            yield call(f"{name}.default", x, dim, False)
            if draw.dtype.is_floating_point:
                result = getattr(torch, name[1:])(x.float(), dim).to(draw.dtype)
                yield call(f"{name}_backward_data.default", gradient, result, dim, draw.dtype)
        yield call("_safe_softmax.default", x, dim)
    yield call("_softmax.default", draw(), 0, False)
    if half:
        yield call("_softmax.default", x, -1, False)


def ordered(draw: Draw) -> Iterator[Call]:
    """Yield sorts and what is found by sorting; equal elements do not occur in floating types."""
    x = draw.apart(draw.batch, 6, 9)
    for dim in (1, -1):
        yield call("sort.default", x, dim)
        yield call("sort.stable", x, stable=True, dim=dim, descending=True)
        yield call("kthvalue.default", x, 3, dim)
        yield call("topk.default", x, 4, dim)
        yield call("topk.default", x, 2, dim, False)
        for name in ("median.dim", "nanmedian.dim", "mode.default"):
            yield call(name, x, dim)
            yield call(name, x, dim, True)
    for name in ("median.default", "nanmedian.default"):
        yield call(name, x)
    for name in ("sort.default", "median.default", "mode.default"):
        yield call(name, draw())


def searched(draw: Draw) -> Iterator[Call]:
    """Yield searches in sorted rows, and histograms."""
    rows = draw(draw.batch, 11).sort(-1).values
    for right in (False, True):
        yield call("searchsorted.Tensor", rows, draw(draw.batch, 5), right=right)
        yield call("searchsorted.Tensor", draw(13).sort().values, draw(draw.batch, 5), right=right, out_int32=True)
        yield call("bucketize.Tensor", draw(draw.batch, 5), draw(13).sort().values, right=right)
    yield call("searchsorted.Scalar", draw(13).sort().values, 0.4)
    yield call("bucketize.Scalar", 0.4, draw(13).sort().values)
    yield call("histc.default", draw(draw.batch, 40), 7, -2, 2)
