"""Batch normalisation with `momentum=None`: running statistics that are the mean of those of all batches so far."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from torchipu.capture.process_wide import replaced

_plain = types.FunctionType(_BatchNorm.forward.__code__, _BatchNorm.forward.__globals__)
"""torch's own forward as another function: what Dynamo traces in its place calls it."""


@contextmanager
def counted_on_the_device() -> Iterator[None]:
    """Let such layers weigh a batch by a count of batches that is a tensor; torch reads it as a number of the host."""
    with replaced(_BatchNorm, "forward", forward):
        yield


def forward(self: _BatchNorm, input: Tensor) -> Tensor:
    """Return what the layer returns.

    Args:
        self: The layer.
        input: ``[N, C]`` or more dimensions.
    """
    is_counted = self.training and self.momentum is None and self.num_batches_tracked is not None
    result: Tensor = _cumulative(self, input) if is_counted else _plain(self, input)
    return result


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {_BatchNorm.forward: forward}
"""What Dynamo traces in the place of the layer's own forward."""


def _cumulative(layer: _BatchNorm, input: Tensor) -> Tensor:
    layer._check_input_dim(input)
    mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    if mean is None or variance is None or count is None:
        raise AssertionError("a layer that counts batches has running statistics")
    # With a momentum of 1 the statistics are those of this batch.
    batch_mean, batch_variance = torch.zeros_like(mean), torch.ones_like(variance)
    result = F.batch_norm(input, batch_mean, batch_variance, layer.weight, layer.bias, True, 1.0, layer.eps)
    with torch.no_grad():
        count.add_(1)
        share = count.to(torch.float32).reciprocal()
        mean.add_(((batch_mean - mean) * share).to(mean.dtype))
        variance.add_(((batch_variance - variance) * share).to(variance.dtype))
    return result
