"""`torch.nn.CrossMapLRN2d` without torch's loop over channels, which writes into memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class CrossMapLRN2d(torch.autograd.Function):
    """What `torch.nn.CrossMapLRN2d` computes by loops over channels that cannot be captured, for ``[N, C, H, W]``.

    Values and gradients are those of torch, where the windows are not quite those of the formula: the first channel
    stays in the window of every later one, and the backward looks at other neighbours than the forward.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0,
    ) -> Tensor:
        """Normalise each channel by its neighbours, ``(size - 1) // 2`` to both sides."""
        if input.dim() != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.dim()}D instead.")
        reach, channels = (size - 1) // 2, input.shape[1]
        squares = input.square()
        total = _windows(squares, reach, 2 * reach + 1)
        if channels > reach + 1:
            rest = total[:, reach + 1 :] + squares[:, :1]
            total = torch.cat([total[:, : reach + 1], rest], 1)
        scale = total * (alpha / size) + k
        output = input * scale.pow(-beta)
        ctx.size, ctx.factor, ctx.beta = size, 2 * alpha * beta / size, beta
        ctx.save_for_backward(input, output, scale)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient of the input."""
        input, output, scale = ctx.saved_tensors
        before = int(ctx.size - (ctx.size - 1) / 2)
        near = _windows(grad * output / scale, before, ctx.size)
        return scale.pow(-ctx.beta) * grad - input * near * ctx.factor, None, None, None, None


def _windows(value: Tensor, before: int, size: int) -> Tensor:
    """Return for each channel the sum over some channels, beginning at so many before it."""
    channels = value.shape[1]
    padded = F.pad(value, (0, 0, 0, 0, before, max(0, size - 1 - before)))
    return sum((padded[:, shift : shift + channels] for shift in range(1, size)), padded[:, :channels])


def forward(self: torch.nn.CrossMapLRN2d, input: Tensor) -> Tensor:
    """Return what the layer returns.

    Args:
        self: The layer.
        input: ``[N, C, H, W]``.
    """
    result: Tensor = CrossMapLRN2d.apply(input, self.size, self.alpha, self.beta, self.k)
    return result


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {torch.nn.CrossMapLRN2d.forward: forward}
"""What Dynamo traces in the place of the layer's own forward."""
