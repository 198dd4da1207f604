"""The largest of what torch.utils.checkpoint computes again, to whose element the gradient goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "largest of images": lambda y: y.amax((2, 3)), "least, kept": lambda y: y.amin((2, 3), keepdim=True),
    "largest of all": lambda y: y.max(), "of a view": lambda y: y.flatten(2).amax(-1),
    "of a part": lambda y: y[:, 1:].permute(0, 2, 3, 1).amax(-1), "of one channel": lambda y: y[:, 3].amin((1, 2)),
    "of a part that is read otherwise": lambda y: y[:, 1:].amax((2, 3)) * y[:, 1:].mean(),
    "with its place": lambda y: y.max(-1).values,
}


def judged(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, tolerance: float) -> None:
    """Compare gradients with those of eager PyTorch in float64."""
    exact = [one.double().requires_grad_() for one in (x, weight)]
    given = [one.clone().requires_grad_() for one in (x, weight)]
    found = torch.autograd.grad(torch.compile(loss, backend="ipu", dynamic=False)(*given), given)
    for mine, wanted in zip(found, torch.autograd.grad(loss(*exact), exact), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("activation", [F.silu, F.hardswish])
def test_gradients_go_to_what_is_computed_again(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    """What follows a convolution is computed with it in the forward, and by itself in the backward, to other bits."""
    torch.manual_seed(0)
    torch._dynamo.reset()

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        y = checkpoint(lambda a, b: activation(F.conv2d(a, b, groups=16)), x, weight, use_reentrant=False)
        return EXTREMES[name](y).square().sum()

    judged(loss, torch.randn(2, 16, 16, 2), torch.randn(16, 1, 1, 1), 1e-4)


@pytest.mark.parametrize("where", ["within", "behind a norm", "of one checkpoint within another"])
def test_gradients_go_to_what_is_computed_again_elsewhere(where: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()

    def part(a: Tensor, b: Tensor) -> Tensor:
        y = F.silu(F.conv2d(a, b, padding=1))
        if where == "behind a norm":
            y = F.batch_norm(y, None, None, training=True)
        return y.amax((2, 3)) if where == "within" else y

    def again(a: Tensor, b: Tensor) -> Tensor:
        return checkpoint(part, a, b, use_reentrant=False).amin((2, 3))  # type: ignore[no-any-return]

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        if where == "of one checkpoint within another":
            y = checkpoint(again, x, weight, use_reentrant=False)
        else:
            y = checkpoint(part, x, weight, use_reentrant=False)
        return (y.amax((2, 3)) if y.dim() == 4 else y).square().sum()

    judged(loss, torch.randn(2, 16, 16, 12), torch.randn(16, 16, 3, 3), 1e-3)
