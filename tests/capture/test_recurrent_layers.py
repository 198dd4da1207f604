"""Recurrent layers are traced for our backend, and left to eager for any other, in whatever order they come."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from tests.releases import COMPILES_AT_ONCE
from torchipu.backend import ipu_backend
from torchipu.capture import recurrent_layers
from torchipu.capture.backends import is_ours

OTHERS = ("eager", "aot_eager", "inductor")


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


class Tagger(nn.Module):
    """A recurrent layer between others."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer, self.behind = nn.Linear(6, 6), layer, nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.behind(self.layer(self.before(x))[0]),)


class Stack(nn.Module):
    """Layers that forward goes through in a loop, of which Dynamo can leave no part to eager."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        for layer in self.layers:
            x = layer(x)[0]
        return (x,)


MODELS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "alone": lambda layer: layer, "in Sequential": nn.Sequential, "among others": Tagger, "in a loop": Stack,
}


def judge(run: Callable[..., Any], model: nn.Module) -> torch.Tensor:
    """Train a step, and compare gradients with eager's."""
    x = torch.randn(3, 7, 6)
    model.zero_grad()
    result: torch.Tensor = run(x)[0]
    result.square().sum().backward()
    found = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    expected = model(x)[0]
    expected.square().sum().backward()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    for weight, gradient in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-4)
    return result


def is_compiled(result: torch.Tensor) -> bool:
    return "Compiled" in type(result.grad_fn).__name__


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("first", ["ipu", "other"])
def test_backends_take_turns(name: str, kind: type[nn.RNNBase], other: str, first: str) -> None:
    model = MODELS[name](kind(6, 5, batch_first=True))
    ours, theirs = (torch.compile(model, backend=backend) for backend in ("ipu", other))
    for run in (ours, theirs, ours, theirs) if first == "ipu" else (theirs, ours, theirs, ours):
        result = judge(run, model)
        assert run is not ours or is_compiled(result)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_other_backends_are_handed_nothing_of_a_forward_with_a_recurrent_layer(kind: type[nn.RNNBase]) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = Tagger(kind(6, 5, batch_first=True))
    run = torch.compile(model, backend=counter)
    for _ in range(3):
        judge(run, model)
    assert counter.frame_count == 0  # as without torchipu
    with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU, or LSTM"):
        torch.compile(model, backend=counter, fullgraph=True)(torch.randn(3, 7, 6))
    assert torch._dynamo.config.allow_rnn is False


def test_what_was_left_to_eager_is_forgotten_when_dynamo_is_reset() -> None:
    counter = CompileCounterWithBackend("eager")
    model = Stack(nn.GRU(6, 5, batch_first=True))
    judge(torch.compile(model, backend=counter), model)
    assert recurrent_layers._left.reason(Stack.forward.__code__)
    torch._dynamo.reset()
    torch.compile(Stack(nn.Linear(6, 5)), backend=counter)(torch.randn(3, 6))
    assert counter.frame_count == 1
    assert not recurrent_layers._left.reason(Stack.forward.__code__)


@COMPILES_AT_ONCE
def test_backends_take_turns_in_threads() -> None:
    failed: list[BaseException] = []

    def train(backend: str) -> None:
        try:
            model = Tagger(nn.LSTM(6, 5, batch_first=True))
            result = judge(torch.compile(model, backend=backend), model)
            assert backend != "ipu" or is_compiled(result)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=train, args=(backend,)) for backend in ("ipu", "aot_eager", "eager", "ipu")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


BEFORE = """
import torch
model = torch.nn.Sequential(torch.nn.LSTM(4, 3))
torch.compile(model, backend="eager")(torch.randn(2, 1, 4))[0].sum().backward()
print(type(torch.compile(model, backend="ipu")(torch.randn(2, 1, 4))[0].grad_fn).__name__)
"""


def test_a_layer_is_traced_that_another_backend_met_before_torchipu_was_loaded() -> None:
    made = subprocess.run([sys.executable, "-c", BEFORE], capture_output=True, text=True, timeout=300, check=False)
    assert "Compiled" in made.stdout, made.stderr


def wrapped(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    return ipu_backend(gm, inputs)


def test_wrappings_of_our_backend_are_ours() -> None:
    def enclosing(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return within(gm, inputs)

    within = ipu_backend
    for backend in (ipu_backend, wrapped, enclosing, functools.partial(wrapped), lambda gm, x: ipu_backend(gm, x)):
        assert is_ours(backend)
    for backend in (print, CompileCounterWithBackend("eager"), lambda gm, x: gm.forward, None, "ipu"):
        assert not is_ours(backend)
    counted = CompileCounterWithBackend(ipu_backend)
    model = Tagger(nn.GRU(6, 5, batch_first=True))
    assert is_compiled(judge(torch.compile(model, backend=counted, fullgraph=True), model))


CELLS = {
    "LSTM": (nn.LSTM, {}), "LSTM of two layers both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "LSTM with a projection": (nn.LSTM, {"proj_size": 2}), "GRU": (nn.GRU, {}),
    "GRU both ways": (nn.GRU, {"bidirectional": True}), "RNN": (nn.RNN, {"bias": False}),
}


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_gradients_are_those_of_eager_in_float64(cell: str) -> None:
    kind, settings = CELLS[cell]
    layer = kind(3, 4, batch_first=True, **settings)
    twin = copy.deepcopy(layer).double()

    def penalty(model: nn.Module, values: torch.Tensor) -> torch.Tensor:
        values = values.detach().requires_grad_()
        results, states = model(values)
        total = results.square().sum() + sum(state.sin().sum() for state in torch.utils._pytree.tree_leaves(states))
        (gradient,) = torch.autograd.grad(total, values, create_graph=True)
        loss: torch.Tensor = gradient.square().sum() + results.sum()
        return loss

    x = torch.randn(2, 5, 3)
    found = torch.compile(penalty, backend="ipu", fullgraph=True)(layer, x)
    expected = penalty(twin, x.double())
    found.backward()
    expected.backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3), ("tanh", 1)])
def test_the_operator_has_first_and_second_derivatives(cell: str, gates: int, reverse: bool) -> None:
    torch.manual_seed(0)
    make = functools.partial(torch.randn, dtype=torch.float64, requires_grad=True)
    operands = (make(3, 2, gates * 2), make(2, 2), make(2, 2), make(gates * 2, 2), make(gates * 2))

    def run(projected: Any, h0: Any, c0: Any, weight: Any, bias: Any) -> Any:
        only = {"lstm": (c0, None), "gru": (None, bias)}.get(cell, (None, None))
        return torch.ops.ipu.recurrence(projected, h0, only[0], weight, only[1], None, cell, reverse)[:2]

    taken = operands if cell != "tanh" else operands[:2] + operands[3:4]
    function = run if cell != "tanh" else lambda p, h, w: run(p, h, None, w, None)[0]
    assert torch.autograd.gradcheck(function, taken)
    assert torch.autograd.gradgradcheck(function, taken)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_transformations_and_checkpoints_of_layers_are_those_of_eager(kind: type[nn.RNNBase]) -> None:
    layer, x = kind(3, 4, batch_first=True), torch.randn(2, 5, 3)
    derivative = torch.func.grad(lambda values: layer(values)[0].sin().sum())
    torch.testing.assert_close(torch.compile(derivative, backend="ipu")(x), derivative(x), rtol=1e-4, atol=1e-5)

    def again(values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(lambda one: layer(one)[0], values, use_reentrant=False)
        return result

    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(again, backend="ipu", fullgraph=True)(ours).square().sum().backward()
    again(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_types_under_autocast_are_those_of_eager(kind: type[nn.RNNBase]) -> None:
    layer, x = kind(3, 4, batch_first=True), torch.randn(2, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = torch.compile(layer, backend="ipu")(x), layer(x)
    for ours, theirs in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=3e-2, atol=3e-2)
