"""Recurrent layers are traced for our backend, and left to eager for any other, in whatever order they come."""

from __future__ import annotations

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
