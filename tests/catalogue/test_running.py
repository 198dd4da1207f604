"""Running: values that are no numbers, inputs that change, programs that do not fit, calls from within."""

from __future__ import annotations

import poptorch
import pytest
import torch

from tests.catalogue.unharmed import unharmed
from tests.releases import CHANGED_CONTAINERS
from torchipu import InferenceStep, Options, OutOfTileMemoryError, TrainStep
from torchipu.backend import COUNTS


def compiled(function, **options):
    return torch.compile(function, backend="ipu", options=options or None)


@pytest.mark.case(62)
def test_exceptions_that_are_off():
    given = torch.tensor([0.0, -1.0, 100.0])
    for function in (lambda x: 1 / x, torch.sqrt, lambda x: torch.exp(x * 10), lambda x: x / x):
        torch.testing.assert_close(
            InferenceStep(Calling(function))(given), function(given), equal_nan=True,
        )


class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.case(62)
def test_values_that_are_no_numbers_are_counted():
    step = InferenceStep(Calling(lambda x: torch.sqrt(x) * 2), Options(statistics=True))
    step(torch.tensor([4.0, -1.0, -2.0]))
    assert any(found.nans == 2 for found in step.statistics)


@pytest.mark.case(64)
def test_inputs_of_another_shape_and_type():
    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softmax(-1))
    run, before = compiled(model), COUNTS.programs
    for given in (torch.randn(2, 4), torch.randn(3, 4), torch.randn(5), torch.randn(2, 4).half()):
        torch.testing.assert_close(run(given), model(given), rtol=2e-3, atol=2e-3)
    assert COUNTS.programs >= before + 3


class Wide(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = torch.nn.Linear(features, features)

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.linear(x), labels)


@pytest.mark.slow
@pytest.mark.case(66)
def test_a_program_that_does_not_fit(told):
    model = Wide(9000)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = TrainStep(model, optimiser)
    with unharmed(model, optimiser), pytest.raises(OutOfTileMemoryError) as caught:
        step(torch.zeros(1, 9000), torch.tensor([1]))
    error = caught.value
    told(error, "tile", f"needs {error.needed_bytes} B")
    assert error.needed_bytes > error.available_bytes > 0
    assert error.remedy
    assert error.tried


class Nested(torch.nn.Module):
    """Calls what runs it from a hook of its own, once."""

    def __init__(self):
        super().__init__()
        self.run, self.calls = None, []
        self.register_forward_hook(self.again)

    def forward(self, x):
        return x * 2

    def again(self, module, args, result):
        self.calls.append(result)
        if self.run is not None and len(self.calls) < 2:
            self.run(torch.ones(2))


@pytest.mark.case(72)
@CHANGED_CONTAINERS
def test_a_step_that_its_own_model_calls(told):
    model = Nested()
    model.run = step = InferenceStep(model)
    with pytest.raises(Exception, match="within") as caught:
        step(torch.ones(2))
    told(caught.value, "a step is a whole program and cannot be called within a model")
    model.calls = [0, 1]
    assert step(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.case(72)
def test_an_executor_that_its_own_model_calls(told):
    model = Nested()
    model.run = executor = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error) as caught:
        executor(torch.ones(2))
    told(caught.value, "is being compiled", "it cannot be called within itself")
    model.calls = [0, 1]
    assert executor(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.case(72)
def test_a_compiled_model_that_its_own_hook_calls():
    model, calls = Calling(torch.neg), []
    run = compiled(model)
    model.register_forward_hook(lambda *_: calls.append(1) or (run(torch.ones(2)) if len(calls) < 3 else None))
    assert run(torch.ones(2)).tolist() == [-1, -1]
