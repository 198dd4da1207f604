"""Weights on the host and on the device: when they are copied, by whom, and what the user's module becomes."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of


class Counting(nn.Module):
    """Adds one to a buffer in every micro-batch and returns what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


def training(model: nn.Module, **more: Any) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(model, options(), sgd(model, **more))


def count_copies(step: poptorch.PoplarExecutor) -> list[int]:
    """Let an executor note each copy of weights to the host."""
    copies: list[int] = []
    original = step.copyWeightsToHost

    def counted() -> None:
        copies.append(1)
        original()

    step.copyWeightsToHost = counted
    return copies


# --------------------------------------------------------------------------- values
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


# --------------------------------------------------------------------------- classes
def test_wrapping_changes_the_classes_and_destroy_changes_them_back() -> None:
    model = Classifier()
    model.register_buffer("extra", torch.zeros(2))
    parameters = list(model.parameters())
    step = training(model)
    assert type(model).__name__ == "PoptorchClassifier"
    assert isinstance(model, Classifier)
    assert all(type(parameter).__name__ == "PoptorchParameter" for parameter in model.parameters())
    assert type(model.extra).__name__ == "PoptorchBuffer"
    step(*batch(4))
    trained = step.model.head.bias.detach().clone()
    model.destroy()
    assert type(model) is Classifier
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert type(model.extra) is torch.Tensor
    assert torch.equal(model.head.bias, trained)
    assert not step.isCompiled()
    step(*batch(4))


def test_a_second_training_wrapper_is_refused_until_destroy() -> None:
    model = Classifier()
    step = training(model)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in 'poptorch"):
        training(model)
    step.destroy()
    again = poptorch.trainingModel(step, options(), sgd(model))
    again(*batch(4))


def test_a_buffer_of_another_class_is_refused() -> None:
    class Special(torch.Tensor):
        pass

    model = Classifier()
    model.register_buffer("odd", torch.zeros(2).as_subclass(Special))
    with pytest.raises(poptorch.Error, match=r"All buffers must be an instance of torch\.Tensor"):
        training(model)


def test_copies_keep_the_class_and_pickles_are_plain(tmp_path: Path) -> None:
    model = Classifier()
    step = training(model)
    step(*batch(4))
    twin = copy.deepcopy(model)
    assert type(twin) is type(model)
    assert type(copy.copy(model)) is type(model)
    assert type(copy.deepcopy(model.head.bias)).__name__ == "PoptorchParameter"
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(type(value) is torch.Tensor for value in state.values())
    torch.testing.assert_close(dict(state), {name: value.detach() for name, value in model.named_parameters()})
    torch.save(model, tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=False)
    assert type(found) is Classifier
    assert type(found.head.bias) is nn.Parameter
    assert torch.equal(found.head.bias, model.head.bias)


def test_an_executor_can_be_pickled(tmp_path: Path) -> None:
    model = Classifier()
    step = training(model)
    x, labels = batch(4)
    step(x, labels)
    torch.save(step, tmp_path / "step.pt")
    found = torch.load(tmp_path / "step.pt", weights_only=False)
    assert torch.equal(found(x, labels)[1], step(x, labels)[1])


def test_the_module_outlives_its_executor() -> None:
    model = Classifier()
    step = training(model)
    step(*batch(4))
    del step
    gc.collect()
    model(batch(4)[0])
    model.state_dict()
    model.destroy()
    assert type(model) is Classifier


@pytest.mark.parametrize("wrap", [training, poptorch.inferenceModel])
def test_an_executor_goes_with_its_last_reference(wrap: Callable[[nn.Module], poptorch.PoplarExecutor]) -> None:
    step = wrap(Classifier())
    step(*batch(4))
    gc.collect()
    gc.disable()  # what it has trained reaches the module when it goes: nothing within may keep it
    try:
        reference = weakref.ref(step)
        del step
        assert reference() is None
    finally:
        gc.enable()


def test_attributes_are_those_of_the_users_module() -> None:
    model = Classifier()
    model.note = 1
    step = training(model)
    step.note = 2
    assert model.note == 2
    assert step.head is model.head
    assert repr(step) == repr(model)
    assert [name for name, _ in step.named_parameters()] == [name for name, _ in model.named_parameters()]
    model.weight = nn.Parameter(torch.ones(2))
    assert torch.equal(step.weight, torch.ones(2))
    with pytest.raises(AttributeError):
        _ = step.nothing


# --------------------------------------------------------------------------- the device
def test_detaching_brings_weights_and_attaching_takes_those_of_the_host() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = training(model)
    x, labels = batch(4)
    for call in (step.attachToDevice, step.detachFromDevice, step.copyWeightsToHost, step.copyWeightsToDevice):
        with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
            call()
    assert not step.isAttachedToDevice()
    step(x, labels)
    eager_training(twin, sgd(twin), (x, labels))
    assert step.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        step.attachToDevice()
    step.detachFromDevice()
    assert not step.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        step.detachFromDevice()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    with torch.no_grad():
        model.head.bias.fill_(1)
        twin.head.bias.fill_(1)
    expected = eager_training(twin, sgd(twin), (x, labels))
    torch.testing.assert_close(step(x, labels)[1], expected[0][1])


def test_an_offline_target_compiles_and_does_not_run() -> None:
    step = poptorch.inferenceModel(Classifier(), poptorch.Options().useOfflineIpuTarget())
    step.compile(batch(4)[0])
    assert step.isCompiled()
    assert not step.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        step(batch(4)[0])


def test_gradient_accumulation_is_refused_for_inference() -> None:
    with pytest.raises(poptorch.Error, match=r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1"):
        poptorch.inferenceModel(Classifier(), options(1, 2))


def test_options_of_another_type_are_refused_and_those_given_are_frozen() -> None:
    with pytest.raises(poptorch.Error, match="Invalid type: 'options' is of"):
        poptorch.inferenceModel(Classifier(), {"deviceIterations": 2})
    settings = options()
    step = poptorch.inferenceModel(Classifier(), settings)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        settings.deviceIterations(2)
    assert step.options is not settings


# --------------------------------------------------------------------------- optimisers
def test_a_learning_rate_holds_until_setOptimizer() -> None:
    model = Classifier()
    optimizer = sgd(model, 0.0)
    step = poptorch.trainingModel(model, options(), optimizer)
    x, labels = batch(4)
    first = step(x, labels)[1]
    optimizer.param_groups[0]["lr"] = 0.1
    assert torch.equal(step(x, labels)[1], first)
    step.setOptimizer(optimizer)
    step(x, labels)
    assert not torch.equal(step(x, labels)[1], first)


KINDS = {
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr), "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "RMSprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.5),
    "poptorch": lambda p, lr: poptorch.optim.SGD(p, lr=lr, momentum=0.9),
}


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_outlive_another_optimiser_of_the_same_kind(kind: str, has_run: bool) -> None:
    make, model = KINDS[kind], Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(), make(model.parameters(), 0.1))
    x, labels = batch(4)
    optimizer = make(twin.parameters(), 0.1)
    if has_run:
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    else:
        step.compile(x, labels)
    step.setOptimizer(make(model.parameters(), 0.01))
    optimizer.param_groups[0]["lr"] = 0.01
    for _ in range(3):
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)


def test_another_optimiser_brings_the_state_that_it_was_given() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(), torch.optim.Adam(model.parameters(), lr=0.1))
    x, labels = batch(4)
    step(x, labels)
    eager_training(twin, torch.optim.Adam(twin.parameters(), lr=0.1), (x, labels))
    optimizer, other = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (twin, model))
    for one in (optimizer, other):
        for parameter in one.param_groups[0]["params"]:
            one.state[parameter] = {
                "step": torch.tensor(3.0), "exp_avg": torch.full_like(parameter, 0.01),
                "exp_avg_sq": torch.full_like(parameter, 0.5),
            }
    step.setOptimizer(other)
    for _ in range(3):
        step(x, labels)
        eager_training(twin, optimizer, (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)
    with pytest.raises(poptorch.Error, match="of another kind"):
        step.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))


class Carried(nn.Module):
    """Reads states and writes them before the backward has read them; ``keeps`` copies them first, as eager needs."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 3))
        self.cell = nn.LSTM(3, 3)
        for name in ("hidden", "inner"):
            self.register_buffer(name, torch.zeros(1, 2, 3))
        self.register_buffer("factor", torch.ones(3))
        self.register_buffer("steps", torch.ones(()))

    def read(self, state: torch.Tensor) -> torch.Tensor:
        return state.clone() if self.keeps else state

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = x * self.weight * self.read(self.factor)
        self.factor.mul_(1.5)
        y, (hidden, inner) = self.cell(scaled, (self.read(self.hidden), self.read(self.inner)))
        self.hidden.copy_(hidden.detach())
        self.inner[:, 0] = inner.detach()[:, 0]
        y = self.read(torch.tanh(y * self.read(self.steps)))
        self.steps += 1
        late = self.read(y) ** 2
        y.mul_(2.0)
        return y, poptorch.identity_loss(late.sum() + y.sum(), "sum")


def test_gradients_are_those_of_what_was_read_before_forward_wrote_it(recwarn: pytest.WarningsRecorder) -> None:
    twin, model = Carried(keeps=True), Carried(keeps=False)
    model.load_state_dict(twin.state_dict())
    step = poptorch.trainingModel(model, options(), sgd(model))
    judge = torch.optim.SGD(twin.parameters(), lr=0.1)
    for seed in range(3):
        x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed))
        y, loss = step(x)
        judge.zero_grad()
        expected, expected_loss = twin(x)
        expected_loss.backward()
        judge.step()
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(loss, expected_loss)
    for (name, value), (_, judged) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        torch.testing.assert_close(value, judged, msg=lambda words, name=name: f"{name}: {words}")
    assert not [warning for warning in recwarn if "Error detected in" in str(warning.message)]


class Staged(nn.Module):
    """Two stages, the first of which reads a state that it then writes, and takes a gradient of itself."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.first = poptorch.BeginBlock(nn.Linear(3, 3), ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(3, 3), ipu_id=1)
        self.register_buffer("state", torch.linspace(0.5, 1.5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) * (self.state.clone() if self.keeps else self.state)
        self.state.mul_(0.9)
        slope, = torch.autograd.grad(torch.tanh(y).sum(), y, create_graph=True)
        z = checkpoint(torch.exp, self.second(y), use_reentrant=False)
        return poptorch.identity_loss((z + slope).square().mean(), "mean")


def test_gradients_of_what_was_read_in_stages_with_checkpoints_and_second_derivatives() -> None:
    twin, model = Staged(keeps=True), Staged(keeps=False)
    model.load_state_dict(twin.state_dict())
    poptorch.removeBlocks(twin)
    step = poptorch.trainingModel(model, options(1, 3), sgd(model))
    judge = torch.optim.SGD(twin.parameters(), lr=0.1)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        step(x)
        judge.zero_grad()
        for part in x.chunk(3):
            (twin(part) / 3).backward()
        judge.step()
    for (name, value), (_, judged) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        torch.testing.assert_close(value, judged, msg=lambda words, name=name: f"{name}: {words}")


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
