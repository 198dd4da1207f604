"""Vertices of losses, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.device.tilings.judged import judge

SGD = partial(torch.optim.SGD, lr=0.1)
Loss = Callable[..., torch.Tensor]


class Labelled(torch.nn.Module):
    """A loss of labels, by classes of different weights or of one."""

    def __init__(self, shape: tuple[int, ...], *, weighted: bool, **arguments: object) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(shape))
        self.arguments = arguments
        classes = shape[1] if len(shape) > 1 else shape[0]
        self.register_buffer("weight", torch.rand(classes) + 0.5 if weighted else None)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.nll_loss(x * self.scale, labels, self.weight, **self.arguments)  # type: ignore[arg-type]
        return (loss * loss).sum()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), [
    ((5, 7), torch.float32), ((2, 5, 3, 4), torch.float16), ((300, 3), torch.float32),
])
def test_losses_of_labels(reduction: str, weighted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    labels.view(-1)[1] = 2
    module = Labelled(shape, weighted=weighted, reduction=reduction, ignore_index=2).to(dtype)
    machine = judge(module, torch.randn(shape).to(dtype), labels, optimizer=SGD)
    assert sum("nll_loss" in target for target in machine.tiled) == 2
    assert not machine.whole
    assert not machine.without_kernel


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_of_one_label(reduction: str) -> None:
    machine = judge(Labelled((4,), weighted=False, reduction=reduction), torch.randn(4), torch.tensor(1), optimizer=SGD)
    assert sum("nll_loss" in target for target in machine.tiled) == 2
    assert not machine.without_kernel


def _entropy(x: torch.Tensor, target: torch.Tensor, reduction: str) -> torch.Tensor:
    weight = target.detach().abs() + 0.5
    return F.binary_cross_entropy(x.sigmoid(), target.sigmoid(), weight, reduction=reduction)


def _entropy_of_logits(x: torch.Tensor, target: torch.Tensor, reduction: str) -> torch.Tensor:
    weight = target[0].abs() + 0.5
    return F.binary_cross_entropy_with_logits(x, target.sigmoid(), pos_weight=weight, reduction=reduction)


PAIRS: list[tuple[Loss, int]] = [
    (F.mse_loss, 2), (F.smooth_l1_loss, 2), (partial(F.smooth_l1_loss, beta=0.3), 2),
    (partial(F.huber_loss, delta=0.7), 2), (_entropy, 2), (_entropy_of_logits, 1),
    (lambda x, target, reduction: F.kl_div(x.log_softmax(1), target.softmax(1), reduction=reduction), 0),
]


class Paired(torch.nn.Module):
    """A loss of pairs."""

    def __init__(self, loss: Loss, reduction: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(shape))
        self.loss, self.reduction = loss, reduction

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x * self.scale, target, reduction=self.reduction)
        return (loss * loss).sum()


@pytest.mark.parametrize("number", range(len(PAIRS)))
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("dtype", "shape"), [(torch.float16, (7, 9)), (torch.float32, (1, 1))])
def test_losses_of_pairs(number: int, reduction: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    loss, records = PAIRS[number]
    machine = judge(Paired(loss, reduction, shape).to(dtype), *torch.randn(2, *shape).to(dtype), optimizer=SGD)
    assert sum("loss" in target or "entropy" in target for target in machine.tiled) >= records
    assert not {target for target in machine.whole if "loss" in target or "entropy" in target}
    assert not machine.without_kernel
