"""Transforms of ``torch.func`` within a model: maps, gradients and Jacobians that ``forward`` takes itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func, nn

from torchipu import poptorch


class Model(nn.Module):
    """A layer under a transform.

    Args:
        transform: Called with the model and ``x`` ``[3, 4]``.
    """

    def __init__(self, transform: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.transform = nn.Linear(4, 4), transform
        self.register_buffer("weight", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.transform(self, x)


def gradients_by_sample(model: Any, x: torch.Tensor) -> torch.Tensor:
    def loss(parameters: Any, row: torch.Tensor) -> torch.Tensor:
        return func.functional_call(model.layer, parameters, (row,)).pow(2).sum()

    return func.vmap(func.grad(loss), (None, 0))(dict(model.layer.named_parameters()), x)["weight"]


TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "functional_call": lambda m, x: func.functional_call(m.layer, {"weight": m.weight, "bias": m.weight[0]}, (x,)),
    "grad beside a tensor made in forward": lambda m, x: func.grad(lambda y: (y * torch.ones(4)).sum().sin())(x),
    "jacrev": lambda m, x: func.jacrev(lambda y: m.layer(y).tanh().sum(0))(x),
    "hessian": lambda m, x: func.hessian(lambda y: (m.layer(y) ** 3).sum())(x[0]),
    "gradients by sample": gradients_by_sample,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_what_they_give_on_the_host(name: str) -> None:
    model, x = Model(TRANSFORMS[name]), torch.randn(3, 4)
    expected = model(x).detach()
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), expected, rtol=1e-4, atol=1e-5)


class Forces(nn.Module):
    """An energy whose derivative by the positions is fitted too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(3, 8), nn.Linear(8, 1)

    def energy(self, positions: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(positions).tanh()).sum()

    def forward(self, positions: torch.Tensor) -> Any:
        force = -func.grad(self.energy)(positions)
        return force, poptorch.identity_loss(force.pow(2).mean() + self.energy(positions), "none")


def test_a_loss_of_a_gradient_trains() -> None:
    model, x = Forces(), torch.randn(4, 3)
    reference = copy.deepcopy(model)
    step = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    reference(x)[1].backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    step(x)
    torch.testing.assert_close(model.layer.weight.detach(), reference.layer.weight.detach())


class MolecularForces(nn.Module):
    """Energies and forces, as eager code computes them without naming gradients; also counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        x = x.detach().requires_grad_()
        energy = self.energy(x).sum()
        slope, = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -slope, torch.autograd.grad(slope.square().sum(), x)[0], self.calls.clone()


def test_inference_computes_the_gradients_that_forward_asks_for() -> None:
    model, x = MolecularForces().eval(), torch.randn(5, 3)
    expected = copy.deepcopy(model).double()(x.double())
    wrapped = poptorch.inferenceModel(model)
    torch.testing.assert_close(wrapped(x), tuple(one.detach().float() for one in expected), rtol=1e-4, atol=1e-5)
    again = wrapped(x)
    assert again[3] == 2
    assert not any(one.requires_grad for one in again)


def test_backward_within_forward_is_refused_with_what_to_do() -> None:
    def forward(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        x.square().sum().backward()
        return x.grad

    with pytest.raises(poptorch.Error, match=r"backward\(\) within forward .* torch.autograd.grad"):
        poptorch.inferenceModel(forward)(torch.ones(2))
