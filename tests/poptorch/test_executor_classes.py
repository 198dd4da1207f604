"""What the user's module becomes while an executor wraps it, and what an executor does without a device."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, training, twin_of


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
