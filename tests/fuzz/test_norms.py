"""Norms written out for the judge are torch's; roundings within them move a gradient that they take nearly all of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.fuzz.norms import DisturbedFunctional

NORMS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "batch": lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    "batch without weights": lambda f, x, w, b: f.batch_norm(x, None, None, training=True, eps=1e-3),
    "frozen": lambda f, x, w, b: f.batch_norm(x, w.detach(), w.detach().abs() + 1.0, w, b),
    "groups": lambda f, x, w, b: f.group_norm(x, 2, w, b),
    "instances": lambda f, x, w, b: f.instance_norm(x),
    "layers": lambda f, x, w, b: f.layer_norm(x, (4, 2, 3)),
    "layers with weights": lambda f, x, w, b: f.layer_norm(x.movedim(1, -1), (4,), w, b, 1e-3),
    "others": lambda f, x, w, b: f.silu(x),
}


def given() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4, 2, 3), (4,), (4,))]


@pytest.mark.parametrize("name", NORMS)
def test_norms_that_nothing_disturbs_are_torchs(name: str) -> None:
    results = []
    for functional in (F, DisturbedFunctional(lambda value: value)):
        operands = given()
        value = NORMS[name](functional, *operands)
        gradients = torch.autograd.grad(value.sin().sum(), operands, allow_unused=True, materialize_grads=True)
        results.append((value, *gradients))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


def test_running_statistics_are_torchs() -> None:
    kept = []
    for functional in (F, DisturbedFunctional(lambda value: value)):
        statistics = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
        functional.batch_norm(given()[0], *statistics, training=True, momentum=0.3)
        kept.append(statistics)
    torch.testing.assert_close(kept[1], kept[0], rtol=0, atol=0)


@pytest.mark.parametrize(("elements", "least", "most"), [(2, 1e-2, 10.0), (64, 1e-9, 1e-4)])
def test_a_gradient_that_a_norm_takes_nearly_all_of_moves_far(elements: int, least: float, most: float) -> None:
    """What is left of it over two elements is a hundred-thousandth, and roundings of a millionth count there."""
    generator = torch.Generator().manual_seed(1)

    def disturb(value: torch.Tensor) -> torch.Tensor:
        return value * (1 + 1e-6 * (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1))

    def gradient(functional: Any) -> torch.Tensor:
        torch.manual_seed(2)
        x = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(elements // 2)[:, None].repeat(1, 3).requires_grad_()
        weights = torch.randn(elements, 3, dtype=torch.float64)
        value = functional.batch_norm(x, None, None, training=True)
        return torch.autograd.grad((value * weights).sum(), x)[0]

    exact = gradient(F)
    moved = max(float((gradient(DisturbedFunctional(disturb)) - exact).abs().max()) for _ in range(4))
    assert least < moved / float(exact.abs().max()) < most
