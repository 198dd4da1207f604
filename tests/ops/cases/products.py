"""Calls of the records that multiply: matrices, convolutions, attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call

aten = torch.ops.aten


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    yield from multiplied(draw)
    yield from solved(draw)
    yield from convolved(draw)
    yield from attended(draw)


def multiplied(draw: Draw) -> Iterator[Call]:
    """Yield products of matrices and of a matrix with a vector."""
    n = draw.batch
    scales = {"beta": 0.5, "alpha": 2.0} if draw.dtype.is_floating_point else {"beta": 2, "alpha": 3}
    for rows, inner, columns in ((7, 5, 9), (1, 33, 17), (n, 4, 3), (4, n, 3)):
        left, right = draw(rows, inner), draw(inner, columns)
        yield call("mm.default", left, right)
        yield call("addmm.default", draw(columns), left, right)
        yield call("addmm.default", draw(rows, columns), left, right, **scales)
        yield call("mv.default", left, draw(inner))
        yield call("addmv.default", draw(rows), left, draw(inner), **scales)
        several = draw(n, rows, inner), draw(n, inner, columns)
        yield call("bmm.default", *several)
        yield call("baddbmm.default", draw(n, rows, columns), *several, **scales)
        yield call("baddbmm.default", draw(), *several, **scales)
        yield call("addmm.default", draw(), left, right)


def solved(draw: Draw) -> Iterator[Call]:
    """Yield systems of equations whose matrices are triangular."""
    if not draw.dtype.is_floating_point:
        return
    for upper, left, unit in itertools.product((False, True), repeat=3):
        matrices = draw(draw.batch, 5, 5) / 8 + 2 * torch.eye(5, dtype=draw.dtype)
        given = draw(draw.batch, 5, 7) if left else draw(draw.batch, 7, 5)
        yield call(
            "linalg_solve_triangular.default", matrices, given, upper=upper, left=left, unitriangular=unit,
        )


def convolved(draw: Draw) -> Iterator[Call]:
    """Yield convolutions of one to three dimensions, and their gradients."""
    if not draw.dtype.is_floating_point:
        return
    sizes = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
    settings = [  # stride, padding, dilation, groups
        (1, 1, 1, 1), (2, 0, 1, 2), (1, 2, 2, 4),
    ]
    for dims, transposed, (stride, padding, dilation, groups) in itertools.product(sizes, (False, True), settings):
        x = draw(draw.batch, 4, *sizes[dims])
        weight = draw(4, 8 // groups, *(3,) * dims) if transposed else draw(8, 4 // groups, *(3,) * dims)
        common = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [0] * dims, groups)
        bias = draw(8) if padding else None
        yield call("convolution.default", x, weight, bias, *common)
        shape = aten.convolution(x.float(), weight.float(), None, *common).shape
        yield call(
            "convolution_backward.default", draw(*shape), x, weight, [8] if padding else None, *common,
            [True, True, bool(padding)],
        )


def attended(draw: Draw) -> Iterator[Call]:
    """Yield attention and its gradient."""
    if not draw.dtype.is_floating_point or not draw.batch:  # eager takes no empty batch
        return
    query, key, value = draw(draw.batch, 2, 5, 8), draw(draw.batch, 2, 7, 8), draw(draw.batch, 2, 7, 8)
    mask = draw(draw.batch, 2, 5, 7)
    for causal, given in ((False, None), (True, None), (False, mask)):
        kept = {"attn_mask": given} if given is not None else {}
        yield call("_scaled_dot_product_flash_attention_for_cpu.default", query, key, value, 0.0, causal, **kept)
        wide = {name: m.float() for name, m in kept.items()}
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
            query.float(), key.float(), value.float(), 0.0, causal, **wide,
        )
        yield call(
            "_scaled_dot_product_flash_attention_for_cpu_backward.default", draw(*out.shape), query, key, value,
            out.to(draw.dtype), logsumexp, 0.0, causal, **kept,
        )
