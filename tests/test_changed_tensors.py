"""Weights that are given another shape or lose their memory after a compilation, and inputs that have no values."""

from __future__ import annotations

from collections.abc import Callable

import poptorch
import pytest
import torch
from torch import nn

import torchipu
from torchipu.errors import ExecutionError

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0, 1, 0])


class Classified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.last(self.first(x).relu())
        return logits, nn.functional.cross_entropy(logits, y)


def step_of(model: nn.Module) -> torchipu.TrainStep:
    return torchipu.TrainStep(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def trainer_of(model: nn.Module) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))


def eager_losses(model: nn.Module, count: int) -> list[float]:
    model, losses = model.double(), []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimiser.zero_grad()
        loss = model(X.double(), Y)[1]
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("shape", [(3, 8), (1, 8), (8,), (2, 8, 1)])
def test_a_weight_of_another_shape_is_refused_and_not_spread_out(shape: tuple[int, ...]) -> None:
    """A single row would fit all rows of the program's, and so would a vector: eager computes with it as it is."""
    model = Classified()
    step = step_of(model)
    losses = [step(X, Y)[1].item()]
    kept = model.last.weight.data
    before = [parameter.clone() for parameter in model.parameters() if parameter is not model.last.weight]
    model.last.weight.data = torch.ones(shape)
    with pytest.raises(ExecutionError, match=r"last\.weight has shape .*made for \[2, 8\]") as refused:
        step(X, Y)
    assert "assign values of that shape" in str(refused.value)
    after = [parameter for parameter in model.parameters() if parameter is not model.last.weight]
    assert all(map(torch.equal, before, after))
    model.last.weight.data = kept
    losses.append(step(X, Y)[1].item())
    assert losses == pytest.approx(eager_losses(Classified(), 2), rel=1e-5)


def test_a_weight_without_memory_is_named() -> None:
    model = Classified()
    step = step_of(model)
    step(X, Y)
    storage = model.first.weight.untyped_storage()
    kept, num_bytes = model.first.weight.detach().clone(), storage.nbytes()
    storage.resize_(0)
    with pytest.raises(ExecutionError, match=r"first\.weight, of shape \[8, 4\], has no memory"):
        step(X, Y)
    storage.resize_(num_bytes)
    with torch.no_grad():
        model.first.weight.copy_(kept)
    assert step(X, Y)[1].item() == pytest.approx(eager_losses(Classified(), 2)[1], rel=1e-5)


def _of_another_shape(weight: nn.Parameter) -> Callable[[], None]:
    kept = weight.data
    weight.data = torch.ones(1, 8)
    return lambda: setattr(weight, "data", kept)


def _without_memory(weight: nn.Parameter) -> Callable[[], None]:
    storage = weight.untyped_storage()
    num_bytes = storage.nbytes()
    storage.resize_(0)
    return lambda: storage.resize_(num_bytes) and None


@pytest.mark.parametrize(("change", "told"), [
    (_of_another_shape, r"last\.weight has shape \[1, 8\], and the program was made for \[2, 8\]"),
    (_without_memory, r"last\.weight, of shape \[2, 8\], has no memory"),
])
def test_a_weight_that_cannot_come_to_the_host_holds_up_no_other(
    change: Callable[[nn.Parameter], Callable[[], None]], told: str,
) -> None:
    model = Classified()
    trainer = trainer_of(model)
    losses = [trainer(X, Y)[1].item()]
    weight = model.last.weight  # reading it brings all weights to the host
    undo = change(weight)
    losses.append(trainer(X, Y)[1].item())
    with pytest.raises(poptorch.Error, match=told):
        trainer.copyWeightsToHost()
    judged = Classified()
    wanted = eager_losses(judged, 2)
    torch.testing.assert_close(model.first.weight.detach().double(), judged.first.weight.detach())
    with pytest.raises(poptorch.Error, match=told):
        trainer.copyWeightsToDevice()
    undo()
    trainer.copyWeightsToHost()
    torch.testing.assert_close(model.last.weight.detach().double(), judged.last.weight.detach())
    losses.append(trainer(X, Y)[1].item())
    assert losses == pytest.approx([*wanted, eager_losses(Classified(), 3)[2]], rel=1e-5)


OTHERS = {
    "meta": (lambda x: x.to("meta"), "meta tensors, which have no values, cannot be held", "make it on the CPU"),
    "sparse": (torch.Tensor.to_sparse, "tensors of layout torch.sparse_coo cannot be held", r"to_dense\(\)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_tensor_of_another_kind_after_plain_ones_is_named(name: str) -> None:
    change, told, remedy = OTHERS[name]
    step, trainer = step_of(Classified()), trainer_of(Classified())
    losses = [[call(X, Y)[1].item()] for call in (step, trainer)]
    for call, error in ((step, ExecutionError), (trainer, poptorch.Error)):
        with pytest.raises(error, match=told) as refused:
            call(change(X), Y)
        refused.match(remedy)
    for call, found in zip((step, trainer), losses, strict=True):
        found.append(call(X, Y)[1].item())
        assert found == pytest.approx(eager_losses(Classified(), 2), rel=1e-5)


def test_poptorch_names_what_has_no_values_in_a_first_call() -> None:
    trainer = trainer_of(Classified())
    with pytest.raises(poptorch.Error, match="input x: meta tensors, which have no values, cannot be held by the IPU"):
        trainer(X.to("meta"), Y)
    assert trainer(X, Y)[1].item() == pytest.approx(eager_losses(Classified(), 1)[0], rel=1e-5)
    with torch.device("meta"):
        model = Classified()
    with pytest.raises(poptorch.Error, match=r"parameter first\.weight: meta tensors.*to_empty"):
        trainer_of(model)(X, Y)
