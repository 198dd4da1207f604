"""`custom_op` and `CPU`: functions that a program brings along, as ops of the program and on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options, sgd
from torchipu import poptorch
from torchipu.poptorch.operators import custom_ops

X = torch.arange(6.0).reshape(2, 3) - 2


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Register a leaky ReLU and three cubes; forget them afterwards."""
    before = dict(custom_ops._OPS)
    poptorch.registerCustomOp("Leaky", "test.ops", 1, _leaky)
    poptorch.registerCustomOp("Cube", "test.ops", 1, lambda inputs, _: [inputs[0] ** 3], _slope)
    poptorch.registerCustomOp(
        "HostCube", "test.ops", 1, lambda inputs, _: torch.from_numpy(inputs[0].numpy() ** 3), _slope, on_host=True,
    )
    poptorch.registerCustomOp("HostOnly", "test.ops", 1, lambda inputs, _: inputs[0].numpy() and None, on_host=True)
    yield
    custom_ops._OPS.clear()
    custom_ops._OPS.update(before)


def _leaky(inputs: Any, attributes: Any) -> torch.Tensor:
    """Return the result alone, without a list."""
    return torch.where(inputs[0] > 0, 1, attributes["alpha"]) * inputs[0]


def _slope(gradients: Any, inputs: Any, outputs: Any, attributes: Any) -> Any:
    """Return a gradient that torch would not give, to tell the two apart."""
    assert torch.is_tensor(outputs[0])
    return [gradients[0] * attributes["factor"] * inputs[0]]


class Custom(nn.Module):
    """A layer, a custom op, a loss."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.name, self.attributes = nn.Linear(3, 3), name, attributes

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layer(x)
        (x,) = poptorch.custom_op([x], self.name, "test.ops", 1, example_outputs=[x], attributes=self.attributes)
        return x, poptorch.identity_loss(x, "sum")


@pytest.mark.parametrize(("name", "attributes"), [
    ("Leaky", {"alpha": 0.1}), ("Cube", {"factor": 2.0}), ("HostCube", {"factor": 2.0}),
])
@pytest.mark.parametrize("replicas", [1, 2])
def test_custom_op_computes_and_differentiates_as_registered(name: str, attributes: Any, replicas: int) -> None:
    model, twin = Custom(name, **attributes), Custom(name, **attributes)
    settings = options(accumulation=2 // replicas)
    settings.replicationFactor(replicas)
    settings.outputMode(poptorch.OutputMode.All)
    step = poptorch.trainingModel(model, settings, sgd(model))
    got, _ = step(X)
    with torch.no_grad():
        hidden = twin.layer(X)
        expected = torch.where(hidden > 0, hidden, 0.1 * hidden) if name == "Leaky" else hidden**3
        slope = torch.where(hidden > 0, 1.0, 0.1) if name == "Leaky" else 2 * hidden
        torch.testing.assert_close(got, expected)
        # the mean over two micro-batches of a row each
        torch.testing.assert_close(model.layer.weight, twin.layer.weight - 0.1 * slope.T @ X / 2)
    poptorch.identity_loss(twin(X)[0], "sum").backward()  # without a wrapper the gradient is the registered one too
    torch.testing.assert_close(twin.layer.weight.grad, slope.T @ X)


def test_custom_op_in_inference_costs_what_its_operators_cost() -> None:
    def cycles(repeats: int) -> int:
        def forward(inputs: Any, attributes: Any) -> torch.Tensor:
            (x,) = inputs
            for _ in range(repeats):
                x = x @ x
            return x

        poptorch.registerCustomOp("Power", "test.ops", 2, forward)
        settings = poptorch.Options()
        settings.logCycleCount(True)
        step = poptorch.inferenceModel(lambda x: poptorch.custom_op([x], "Power", "test.ops", 2, [x])[0], settings)
        step(torch.eye(64))
        return step.cycleCount()

    assert cycles(4) > cycles(2)


def test_unknown_custom_op_is_refused_at_compilation_and_zeros_without_a_wrapper() -> None:
    model = Custom("Unknown")
    assert model(X)[0].equal(torch.zeros(2, 3))
    step = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match=r"No custom op 'Unknown' of domain 'test.ops', version 1, is registered"):
        step(X)
    step.destroy()
    assert type(model) is Custom
    other = Custom("Unknown")
    for parameter, same in zip(model.parameters(), other.parameters(), strict=True):
        assert parameter.equal(same)


def test_results_unlike_the_examples_are_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return poptorch.custom_op([x], "Leaky", "test.ops", 1, [x[0]], {"alpha": 0.1})[0]

    with pytest.raises(poptorch.Error, match=r"returned \[2, 3\] of torch.float32 where .* are \[3\]"):
        poptorch.inferenceModel(model)(X)


def test_host_op_without_a_gradient_says_so() -> None:
    with pytest.raises(poptorch.Error, match=r"test.ops.HostOnly:1 has no gradient. Register it with one"):
        poptorch.trainingModel(Custom("HostOnly"))(X)


@pytest.mark.parametrize(("attributes", "kind", "words"), [
    ({3: 1.0}, ValueError, "All attribute keys must be strings"),
    ({"a": None}, ValueError, "must be a float, an int, a str"),
    ({"a": [1, 2.0]}, ValueError, "must all be the same"),
    ({"a": []}, ValueError, "an empty list"),
    ({"a": "Übergrad"}, ValueError, "contains non-ASCII characters."),
    ({"a": ["ü"]}, ValueError, "contains non-ASCII characters."),
    ({"a": 1e300}, poptorch.Error, "is too high for a Popart float"),
    ({"a": -1e300}, poptorch.Error, "is too low for a Popart float"),
])
def test_attributes_are_numbers_and_texts(attributes: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        poptorch.custom_op([X], "Leaky", "test.ops", 1, [X], attributes)
    assert poptorch.custom_op([X], "None", "test.ops", 1, [X], {"a": (1, 2), "b": ["x"], "c": 1e38})[0].sum() == 0


def test_registering_takes_functions() -> None:
    with pytest.raises(poptorch.Error, match="must be functions"):
        poptorch.registerCustomOp("a", "b", 1, "c")  # type: ignore[arg-type]


# --------------------------------------------------------------------------- CPU
class OnHost(nn.Module):
    """Calls of the host between layers: a module, a function of NumPy, and one that uses the model's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(3, 3), nn.Linear(3, 2)
        self.module = poptorch.CPU(self.middle, "module")
        self.several = poptorch.CPU(lambda a, b: (torch.from_numpy(a.numpy() + 1), (b > 0).sum()), "several")
        self.method = poptorch.CPU(lambda a: self.first(a) * 2, "method")

    def forward(self, x: torch.Tensor) -> Any:
        y = self.module(self.first(x)) * 2
        one, two = self.several(y, x)
        return y, one, two, self.method(x)


@pytest.mark.parametrize("iterations", [1, 2])
def test_functions_run_on_the_host_amid_the_model(iterations: int) -> None:
    model = OnHost()
    assert not model.middle.weight.requires_grad
    step = poptorch.inferenceModel(model, options(iterations))
    with torch.no_grad():
        pieces = [model(piece) for piece in X.chunk(iterations)]
        for place, got in enumerate(step(X)):
            expected = [torch.as_tensor(piece[place], dtype=torch.float32) for piece in pieces]
            expected = [value if value.dim() else value[None] for value in expected]
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.reshape(-1), torch.cat(expected).reshape(-1))


def test_host_function_sees_weights_of_the_run_and_cannot_change_its_arguments() -> None:
    cpu = poptorch.CPU(lambda a: a.add_(1), "add")
    step = poptorch.inferenceModel(lambda x: (cpu(x), x))
    got, x = step(X)
    assert got.equal(X + 1)
    assert x.equal(X)


def test_host_call_costs_the_way_there_and_back() -> None:
    def cycles(function: Any) -> int:
        settings = poptorch.Options()
        settings.logCycleCount(True)
        step = poptorch.inferenceModel(lambda x: function(x.exp()) + 1, settings)
        step(torch.ones(64, 64))
        return step.cycleCount()

    assert cycles(poptorch.CPU(lambda x: x, "identity")) > 1.8 * cycles(lambda x: x)


def test_cpu_keeps_arguments_and_results_of_execute() -> None:
    cpu = poptorch.CPU(lambda a, b: a + b, "sum")
    cpu.createOperands(X, X)
    cpu.execute()
    assert cpu.outputs[0].equal(2 * X)
    assert cpu.ID == "sum"


def test_cpu_is_for_inference_and_functions() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return poptorch.identity_loss(poptorch.CPU(lambda a: a, "a")(super().forward(x)), "sum")

    with pytest.raises(poptorch.Error, match="CPU is only supported in inference"):
        poptorch.trainingModel(Model(3, 3))(X)
    with pytest.raises(poptorch.Error, match="takes a function or a module, not int"):
        poptorch.CPU(3, "three")  # type: ignore[arg-type]


def test_error_of_a_host_function_names_the_line() -> None:
    def refuse(a: torch.Tensor) -> torch.Tensor:
        if a.sum() != 0:
            raise ValueError("not zero")
        return a

    cpu = poptorch.CPU(refuse, "refuse")
    step = poptorch.inferenceModel(lambda x: cpu(x) + 1)
    assert step(torch.zeros(2)).equal(torch.ones(2))
    with pytest.raises(poptorch.Error, match="not zero"):
        step(torch.ones(2))
    assert step(torch.zeros(2)).equal(torch.ones(2))


def test_the_error_for_an_op_of_a_library_shows_how_to_give_it_in_torch() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return poptorch.custom_op([x, y], "Scaled\"Sum", "com.acme", 3, [x], {"scale": 2.0})[0]

    given = torch.ones(2, 3), torch.full((2, 3), 2.0)
    with pytest.raises(poptorch.Error, match=r"(?s)cdll.LoadLibrary.*Codelets in C\+\+ .* are out of scope") as e:
        poptorch.inferenceModel(Model())(*given)
    # What the message shows is Python, and once it is filled in the model runs.
    shown = [line[2:] for line in e.value.message.splitlines() if line.startswith("  ")]
    code = "\n".join(shown).replace("[...]", "[x + attributes['scale'] * y]")
    exec(code, {"poptorch": poptorch})
    torch.testing.assert_close(poptorch.inferenceModel(Model())(*given), torch.full((2, 3), 5.0))


class Gathered(nn.Module):
    """A layer, and elements of what it gives by the op that PopTorch brings along."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.axis = nn.Linear(3, 5), axis

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> Any:
        values = self.layer(x)
        (taken,) = poptorch.custom_op(
            [values, places], "FastGatherLastDim", "poptorch.custom_ops", 1,
            example_outputs=[torch.zeros_like(places).to(values.dtype)], attributes={"axis": self.axis},
        )
        return taken, poptorch.identity_loss(taken ** 2, "sum")


@pytest.mark.parametrize("axis", [-1, 1])
def test_poptorchs_own_gather_is_torchs_along_the_last_dimension(axis: int) -> None:
    x, places = torch.randn(4, 3), torch.tensor([[4, 0, 4], [1, 2, 3], [0, 0, 0], [3, 4, 1]])
    model, twin = Gathered(axis), Gathered(axis).double()
    step = poptorch.trainingModel(model, options(), sgd(model))
    taken, _ = step(x, places)
    expected = twin.layer(x.double()).gather(-1, places)
    (expected ** 2).sum().backward()
    torch.testing.assert_close(taken.double(), expected, rtol=1e-5, atol=1e-5)
    rate = sgd(model).param_groups[0]["lr"]
    moved = twin.layer.weight - rate * twin.layer.weight.grad
    torch.testing.assert_close(model.layer.weight.double(), moved, rtol=1e-5, atol=1e-5)


def test_poptorchs_own_gather_takes_no_other_dimension() -> None:
    with pytest.raises(poptorch.Error, match="FastGatherLastDim gathers along the last dimension, not axis=0"):
        poptorch.inferenceModel(Gathered(0))(torch.randn(4, 3), torch.zeros(4, 3, dtype=torch.long))
