"""Numbers of an optimiser that are none: refused by name, with weights and moments as they were."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import torchipu
import torchipu.poptorch as poptorch


class MeanOfSquares(torch.nn.Module):
    """A loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(x.square(), reduction="mean")


@pytest.mark.parametrize("bad", ["0.1", None, [0.1], 1j], ids=repr)
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_a_hyper_parameter_that_is_no_number_is_refused_by_name_and_nothing_is_lost(name: str, bad: object) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 3), MeanOfSquares()), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    step = torchipu.TrainStep(model, optimizer)
    step(x)
    good, before = optimizer.param_groups[0][name], [weight.clone() for weight in model.parameters()]
    optimizer.param_groups[0][name] = bad
    with pytest.raises(torchipu.OptionsError, match=rf"^SGD: {name} of a parameter group must be a number, got "):
        step(x)
    assert all(map(torch.equal, model.parameters(), before))
    optimizer.param_groups[0][name] = good
    twin = copy.deepcopy(model)
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # which shares moments else
    step(x)
    twin(x).backward()
    other.step()
    for ours, eager in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, eager)


def test_a_hyper_parameter_may_be_a_tensor_or_a_number_of_numpy() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), MeanOfSquares())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step, x = torchipu.TrainStep(model, optimizer), torch.randn(4, 8)
    for rate in (torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.float16(0.5), np.array(0.5), 1, True):
        before, gradient = model[0].bias.detach().clone(), None
        optimizer.param_groups[0]["lr"] = rate
        (gradient,) = torch.autograd.grad(model(x), [model[0].bias])
        step(x)
        torch.testing.assert_close(model[0].bias.detach(), before - float(rate) * gradient)


@pytest.mark.parametrize(("kind", "given"), [
    (poptorch.optim.SGD, {"lr": "0.1"}), (poptorch.optim.Adam, {"lr": "0.1"}), (poptorch.optim.AdamW, {"eps": b"1"}),
    (poptorch.optim.RMSprop, {"alpha": "0.9"}), (poptorch.optim.LAMB, {"betas": (0.9, "0.99")}),
])
def test_an_optimiser_of_poptorch_names_the_argument_that_is_text(
    kind: type[torch.optim.Optimizer], given: dict[str, object],
) -> None:
    (name,) = given
    with pytest.raises(TypeError, match=f"^{name} must be a number, got (str|bytes) "):
        kind([torch.nn.Parameter(torch.zeros(2))], **given)


def test_a_training_model_is_as_before_when_a_rate_is_text() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), MeanOfSquares())
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    trained = poptorch.trainingModel(model, poptorch.Options().showCompilationProgressBar(False), optimizer)
    x = torch.randn(4, 8)
    trained(x)
    before = model[0].weight.detach().clone()
    optimizer.param_groups[0]["lr"] = "0.1"

    def train_on() -> None:
        trained.setOptimizer(optimizer)
        trained(x)

    with pytest.raises(Exception, match=r"lr of a parameter group must be a number, got str '0\.1'"):
        train_on()
    torch.testing.assert_close(model[0].weight.detach(), before, rtol=0, atol=0)
    optimizer.param_groups[0]["lr"] = 0.1
    trained.setOptimizer(optimizer)
    trained(x)
    assert not torch.equal(model[0].weight, before)


@pytest.mark.parametrize("seed", [2**64, 2**70, -(2**63) - 1])
def test_a_seed_that_torch_does_not_take_is_refused_and_torchs_generator_stays(seed: int) -> None:
    options, before = poptorch.Options(), torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"-2\*\*63 to 2\*\*64 - 1.*not {seed}$"):
        options.randomSeed(seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert not options.exists("random_seed")
    options.randomSeed(2**64 - 1)
