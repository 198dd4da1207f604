"""Normalisation by the statistics of the batches of all processes."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchipu.horovod.exchange import allreduce
from torchipu.horovod.processes import size
from torchipu.horovod.reductions import Sum


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all processes, as one batch; batches may differ in length.

    Inputs are ``[N, C, ...]``. Gradients of weight and bias are of this process's batch: `DistributedOptimizer` puts
    them together. One process, and evaluation, compute what `torch.nn.BatchNorm2d` does.

    Args:
        num_features: ``C``.
        eps: Added to the variance.
        momentum: Share of a new batch in the running statistics; None for the mean of all batches.
        affine: Whether there are a weight and a bias.
        track_running_stats: Whether there are running statistics, which evaluation then takes.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``[N, C, ...]``.

        Raises:
            ValueError: The input has fewer than two dimensions, all processes together have one value for each
                feature, or `init` has not been called.
        """
        self._check_input_dim(input)
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        others = [dim for dim in range(input.dim()) if dim != 1]
        as_channels = [1, -1, *[1] * (input.dim() - 2)]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        own = values.new_full((1,), input.numel() / max(1, input.shape[1]))
        summed = allreduce(torch.cat([values.sum(others), own]), op=Sum)
        count = summed[-1].detach()
        if count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
        mean = summed[:-1] / count
        centred = values - mean.reshape(as_channels)
        # By the differences: the mean of squares less the square of the mean loses digits where the mean is large.
        variance = allreduce(centred.square().sum(others), op=Sum) / count
        self._follow(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).reshape(as_channels)
        if self.weight is not None:
            normalised = normalised * self.weight.reshape(as_channels) + self.bias.reshape(as_channels)
        return normalised.to(input.dtype)

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)
