"""Calls of the records of losses and norms, with their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls; eager has all of them for floating types alone."""
    if draw.dtype.is_floating_point:
        yield from classified(draw)
        yield from regressed(draw)
        yield from normalised(draw)
        yield from batch_normalised(draw)


def classified(draw: Draw) -> Iterator[Call]:
    """Yield negative log-likelihoods of rows and of images, some rows ignored."""
    n = draw.batch
    for name, behind in (("nll_loss", ()), ("nll_loss2d", (4, 3))):
        x, target = draw(n, 6, *behind), draw.index(6, n, *behind)
        for reduction, weight in itertools.product((NONE, MEAN, SUM), (None, draw.within(0.5, 2, 6))):
            told = target, weight, reduction, 2
            yield call(f"{name}_forward.default", x, *told)
            wide = None if weight is None else weight.float()
            value, total = getattr(aten, f"{name}_forward")(x.float(), target, wide, reduction, 2)
            yield call(f"{name}_backward.default", draw(*value.shape), x, *told, total.to(draw.dtype))


def regressed(draw: Draw) -> Iterator[Call]:
    """Yield losses of elements against elements."""
    shape = draw.batch, 7, 3
    x, target, weight = draw(*shape), draw(*shape), draw.within(0.5, 2, *shape)
    chance, label = draw.within(0.1, 0.9, *shape), draw.within(0, 1, *shape)
    for reduction in (NONE, MEAN, SUM):
        gradient = draw(*(shape if reduction == NONE else ()))
        for name, more in (("mse_loss", ()), ("smooth_l1_loss", (0.7,)), ("huber_loss", (0.7,))):
            yield call(f"{name}.default", x, target, reduction, *more)
            yield call(f"{name}_backward.default", gradient, x, target, reduction, *more)
        for given in (None, weight):
            yield call("binary_cross_entropy.default", chance, label, given, reduction)
            yield call("binary_cross_entropy_backward.default", gradient, chance, label, given, reduction)
            yield call("binary_cross_entropy_with_logits.default", x, label, given, None, reduction)
        yield call("binary_cross_entropy_with_logits.default", x, label, None, draw.within(0.5, 2, 3), reduction)


def normalised(draw: Draw) -> Iterator[Call]:
    """Yield layer and group normalisation."""
    n, x = draw.batch, draw(draw.batch, 6, 5)
    for weight, bias in ((None, None), (draw(5), draw(5))):
        yield call("native_layer_norm.default", x, [5], weight, bias, 1e-5)
        mean, rstd = _moments(x, [5])
        mask = [True, weight is not None, bias is not None]
        yield call("native_layer_norm_backward.default", draw(n, 6, 5), x, [5], mean, rstd, weight, bias, mask)
    image = draw(n, 6, 4, 3)
    for groups, (weight, bias) in itertools.product((1, 3), ((None, None), (draw(6), draw(6)))):
        sizes = n, 6, 12, groups
        yield call("native_group_norm.default", image, weight, bias, *sizes, 1e-5)
        mean, rstd = _moments(image.reshape(n, groups, -1) if n else image.new_zeros(0, groups, 4), [1])
        mean, rstd = mean.reshape(n, groups), rstd.reshape(n, groups)
        mask = [True, weight is not None, bias is not None]
        yield call("native_group_norm_backward.default", draw(n, 6, 4, 3), image, mean, rstd, weight, *sizes, mask)


def _moments(x: torch.Tensor, shape: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and inverse deviation over the last dimension, as eager keeps them for the gradient."""
    wide = x.double()
    deviation = (wide.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return wide.mean(-1, keepdim=True).to(x.dtype), deviation.to(x.dtype)


def batch_normalised(draw: Draw) -> Iterator[Call]:
    """Yield batch normalisation in training and inference."""
    for behind in ((4, 3), ()):
        x = draw(draw.batch, 5, *behind)
        running = draw(5), draw.within(0.5, 2, 5)
        for weight, bias in ((None, None), (draw(5), draw(5))):
            numbers = 0.1, 1e-5
            yield call("_native_batch_norm_legit_functional.default", x, weight, bias, *running, True, *numbers)
            yield call("_native_batch_norm_legit.no_stats", x, weight, bias, True, *numbers)
            yield call("_native_batch_norm_legit_no_training.default", x, weight, bias, *running, *numbers)
            rows = x.transpose(0, 1).reshape(5, -1).double() if draw.batch else torch.zeros(5, 1).double()
            saved = rows.mean(1).to(x.dtype), (rows.var(1, correction=0) + 1e-5).rsqrt().to(x.dtype)
            for trains in (True, False) if draw.batch else ():  # eager divides by the size of an empty batch, and dies
                yield call(
                    "native_batch_norm_backward.default", draw(*x.shape), x, weight, *running, *saved, trains, 1e-5,
                    [True, weight is not None, bias is not None],
                )
