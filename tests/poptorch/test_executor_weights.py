"""Weights on the host and on the device: when they are copied, and by whom."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, training, twin_of


class Counting(nn.Module):
    """Adds one to a buffer in every micro-batch and returns what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


def count_copies(step: poptorch.PoplarExecutor) -> list[int]:
    """Let an executor note each copy of weights to the host."""
    copies: list[int] = []
    original = step.copyWeightsToHost

    def counted() -> None:
        copies.append(1)
        original()

    step.copyWeightsToHost = counted
    return copies


def test_ten_steps_give_the_weights_of_eager_training() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = training(model, momentum=0.9)
    optimizer = sgd(twin, momentum=0.9)
    x, labels = batch(8)
    for _ in range(10):
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


class Tied(nn.Module):
    """Two layers with one matrix; the second is a submodule of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.body = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6))
        self.body[0].weight = self.first.weight

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        out = self.body(self.first(x))
        return out, F.mse_loss(out, target)


def test_tied_weights_are_one_tensor_whose_gradients_are_added() -> None:
    model = Tied()
    twin = twin_of(model)
    step, optimizer = training(model), sgd(twin)
    x = batch(8)[0]
    for _ in range(3):
        step(x, -x)
        eager_training(twin, optimizer, (x, -x))
    assert model.body[0].weight is model.first.weight
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert step.state_dict()["first.weight"].data_ptr() == step.state_dict()["body.0.weight"].data_ptr()


@pytest.mark.parametrize("look", [
    lambda m: m.body.weight.data, lambda m: m.state_dict(), lambda m: next(m.named_parameters())[1] + 0,
    lambda m: torch.equal(m.body.weight, torch.zeros(8, 6)), lambda m: torch.equal(torch.zeros(8, 6), m.body.weight),
    lambda m: m(batch(4)[0]), lambda m: copy.deepcopy(m), lambda m: m.body.state_dict(), lambda m: m.head.bias.sum(),
    lambda m: torch.save(m.body.weight, io.BytesIO()), lambda m: m.body.weight.numpy(force=True),
])
def test_looking_at_the_host_model_copies_the_weights_once(look: Any) -> None:
    model = Classifier()
    step = training(model)
    copies = count_copies(step)
    look(model)
    assert not copies
    step(*batch(4))
    assert not copies
    look(model)
    look(model)
    assert len(copies) == 1
    step(*batch(4))
    look(model)
    assert len(copies) == 2


def test_the_device_has_weights_of_its_own() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = training(model)
    x, labels = batch(4)
    eager_training(twin, sgd(twin), (x, labels))
    step(x, labels)
    with torch.no_grad():
        model.body.weight.zero_()
        model.head.bias.fill_(7)
    expected = eager_training(twin, sgd(twin), (x, labels))
    torch.testing.assert_close(step(x, labels)[1], expected[0][1])
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize("write", [
    lambda model: model.body.weight.data.mul_(2), lambda model: model.body.weight.detach().numpy().fill(1),
    lambda model: nn.init.ones_(model.body.weight), lambda model: model.load_state_dict(Classifier().state_dict()),
    lambda model: setattr(model.body.weight, "data", torch.ones(8, 6)),
])
@pytest.mark.parametrize("is_training", [True, False])
def test_one_warning_tells_that_the_device_does_not_see_what_the_host_writes(
    write: Any, is_training: bool, caplog: pytest.LogCaptureFixture,
) -> None:
    model = Classifier()
    step = training(model) if is_training else poptorch.inferenceModel(model, options())
    arguments = batch(4) if is_training else batch(4)[:1]
    for _ in range(3):
        step(*arguments)
    model.state_dict()
    step(*arguments)
    assert not caplog.records
    write(model)
    step(*arguments)
    [record] = caplog.records
    assert "'body.weight'" in record.getMessage()
    assert "was written since it was last copied, and the device goes on with what it has" in record.getMessage()
    assert "Call copyWeightsToDevice()" in record.getMessage()
    write(model)
    step(*arguments)
    assert len(caplog.records) == 1


def test_a_write_that_is_copied_to_the_device_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier()
    step, inference = training(model), poptorch.inferenceModel(model, options())
    x, labels = batch(4)
    for factor in (1.0, 2.0):
        step(x, labels)
        inference(x)  # takes what was trained
        model.body.weight.data.mul_(factor)
        step.copyWeightsToDevice()
        inference.copyWeightsToDevice()
        step(x, labels)
        torch.testing.assert_close(inference(x), model(x).detach())
    assert not caplog.records


def test_a_copy_to_the_host_brings_frozen_weights_too() -> None:
    model = Classifier()
    frozen = model.body.weight.requires_grad_(False)
    used = frozen.clone()
    step = training(model)
    step(*batch(8))
    with torch.no_grad():
        frozen.mul_(2)  # the device goes on with what it has
    step(*batch(8))
    step.copyWeightsToHost()
    torch.testing.assert_close(frozen.detach(), used, rtol=0, atol=0)


def test_copying_to_the_device_overwrites_what_it_has_trained() -> None:
    model = Classifier()
    start = twin_of(model).state_dict()
    step = training(model)
    x, labels = batch(4)
    first = step(x, labels)[1]
    assert not torch.equal(step(x, labels)[1], first)
    step.load_state_dict(start)
    assert torch.equal(step(x, labels)[1], first)
    nn.Module.load_state_dict(model, start)  # not through the executor: the device keeps its own
    assert not torch.equal(step(x, labels)[1], first)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(start[name])
    step.copyWeightsToDevice()
    assert torch.equal(step(x, labels)[1], first)


def test_inference_of_a_trained_model_sees_the_trained_weights() -> None:
    model = Classifier()
    step, inference = training(model), poptorch.inferenceModel(model)
    x, labels = batch(4)
    copies = count_copies(step)
    for count in (1, 2):
        step(x, labels)
        found = inference(x)
        assert torch.equal(inference(x), found)
        assert len(copies) == count
        torch.testing.assert_close(found, twin_of(model)(x).detach())


def test_inference_of_a_plain_model_keeps_the_weights_that_it_began_with() -> None:
    model = Classifier()
    inference = poptorch.inferenceModel(model)
    x, _ = batch(4)
    first = inference(x)
    with torch.no_grad():
        model.head.bias += 1
    assert torch.equal(inference(x), first)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), first + 1)


def test_buffers_advance_with_every_micro_batch_and_come_back_when_asked() -> None:
    model = Counting()
    step = poptorch.inferenceModel(model, options(3))
    x = torch.zeros(3, 2)
    assert torch.equal(step(x), torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
    assert torch.equal(step(x)[-1], torch.tensor([6.0, 6]))
    assert torch.equal(model.count, torch.zeros(2))
    step.copyWeightsToHost()
    assert torch.equal(model.count, torch.full((2,), 6.0))


def test_a_weight_may_be_added_to_by_its_name() -> None:
    class Summing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert isinstance(self.total, nn.Parameter)
            with torch.no_grad():
                self.total += x  # assigns to the name, which takes parameters alone
            return self.total * 2

    model = Summing()
    step = poptorch.inferenceModel(model)
    assert step(torch.ones(2)).tolist() == [2, 2]
    assert step(torch.ones(2)).tolist() == [4, 4]
    step.copyWeightsToHost()
    assert model.total.tolist() == [2, 2]
    assert isinstance(model.total, nn.Parameter)


def test_named_buffers_are_copied_alone() -> None:
    model = Counting()
    settings = options()
    settings.updatableNamedBuffers(["count"])
    step = poptorch.inferenceModel(model, settings)
    step(torch.zeros(1, 2))
    model.count.fill_(10)
    assert torch.equal(step(torch.zeros(1, 2))[0], torch.tensor([2.0, 2]))
    step.copyNamedBuffersToDevice()
    assert torch.equal(step(torch.zeros(1, 2))[0], torch.tensor([11.0, 11]))
    other = poptorch.inferenceModel(Counting(), options())
    other(torch.zeros(1, 2))
    with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
        other.copyNamedBuffersToDevice()


def test_copy_weights_to_device_takes_what_another_executor_has_trained_of_a_part() -> None:
    class WithLoss(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.part(x).pow(2), "mean")

    part, x = nn.Linear(4, 2), torch.randn(3, 4)
    whole = WithLoss(part)
    inference = poptorch.inferenceModel(part)
    inference(x)
    training = poptorch.trainingModel(whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    training(x)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), part(x))
    training(x)
    inference.copyWeightsToDevice()  # nobody has looked at the trained weights in between
    torch.testing.assert_close(inference(x), part(x))
    before = part.weight.detach().clone()
    training(x)
    training.copyWeightsToDevice()  # of its own: what is on the host, as PopTorch has it
    torch.testing.assert_close(part.weight, before)
