"""Layers that repeat are captured four times and written for the others: the graph is that of a capture of all."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.estimation.small import Layer, Tower, tokens
from torchipu import BeginBlock, Options, TrainStep
from torchipu.capture import repeated_layers
from torchipu.capture.captured import Captured
from torchipu.capture.repeated_layers import captured_once, runs_of
from torchipu.ir.verify import verify_graph

LAYERS = 9


class Stack(nn.Module):
    """Layers one after another, and a loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().sum()


class Normed(nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm, self.rate = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x + self.norm(self.conv(x)), self.rate, self.training)


class Checkpointed(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Counted(nn.Module):
    """Asks for its layers by number, so that it does not run with fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(LAYERS):
            x = self.layers[number](x)
        return x.sum()


class Joined(nn.Module):
    """Reads what every layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.layers:
            x = layer(x).relu()
            kept.append(x)
        return torch.cat(kept, 1).sum()


class Shared(nn.Module):
    """Adds between its layers, in its own forward, what has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.first(x)
        for layer in self.layers:
            x = (layer(x) + bias).relu()
        return x.sum()


def described(graph):
    """Return what each op is, which does not depend on the names of its results."""
    number = {tensor: f"input {tensor.name}" for tensor in graph.inputs}
    lines = []
    for position, op in enumerate(graph.ops):
        number.update({tensor: f"{position}.{place}" for place, tensor in enumerate(op.outputs)})
        shapes = [(tensor.shape, tensor.dtype) for tensor in op.outputs]
        attrs = {name: value for name, value in op.attrs.items() if name != "checkpoint_region"}
        lines.append((op.target, [number[t] for t in op.inputs], shapes, attrs, op.leg, op.source.module, op.block))
    updates = [(state.name, number[value]) for state, value in graph.updates]
    return lines, [t.name for t in graph.inputs if t.role.is_state], [number[t] for t in graph.outputs], updates


def both(model, example, monkeypatch):
    """Return the graph of few layers, that of all, each capture that the first one took, and what was stamped."""
    calls = []

    def once(capture) -> Captured:
        return captured_once(model, lambda: calls.append(1) or capture())

    step = TrainStep(model, torch.optim.Adam(model.parameters()), Options(gradient_accumulation=2))
    arguments = example if isinstance(example, tuple) else (example,)
    monkeypatch.setattr(repeated_layers, "stamped", spy := Spy(repeated_layers.stamped))
    return step.graph_of(arguments, {}, once), step.graph_of(arguments, {}), calls, spy.results


class Spy:
    def __init__(self, function):
        self.function, self.results = function, []

    def __call__(self, *arguments):
        self.results.append(self.function(*arguments))
        return self.results[-1]


def alternating():
    """Two kinds of layer in turn, of which one is more."""
    return Stack(*(nn.Linear(8, 8, bias=bool(number % 2)) for number in range(15)))


@pytest.mark.parametrize(("make", "example"), [
    (lambda: Tower(LAYERS), (tokens(), tokens())),
    (lambda: Stack(nn.Conv2d(3, 4, 3), *(Normed() for _ in range(LAYERS)), nn.ReLU()), torch.zeros(2, 3, 8, 8)),
    (lambda: Stack(*(Checkpointed() for _ in range(LAYERS))), torch.zeros(2, 32)),
    (alternating, torch.zeros(2, 8)),
], ids=["tower", "statistics", "checkpoints", "alternating"])
def test_a_graph_of_repeated_layers_is_that_of_all_of_them(make, example, monkeypatch):
    short, whole, calls, made = both(make(), example, monkeypatch)
    assert len(calls) == 1
    assert made[0] is not None
    verify_graph(short, "capture")
    assert described(short) == described(whole)


def test_rates_that_differ_from_layer_to_layer_do_not_matter(monkeypatch):
    model = Stack(*(Normed(rate=0.01 * (number + 1)) for number in range(LAYERS)))
    short, whole, calls, _ = both(model, torch.zeros(2, 4, 8, 8), monkeypatch)
    assert len(calls) == 1
    assert [op.target for op in short.ops] == [op.target for op in whole.ops]


def test_blocks_stay_where_they_begin(monkeypatch):
    model = Tower(LAYERS)
    for number in (0, 3, 6):
        BeginBlock(model.layers[number], f"from{number}", ipu_id=number // 3)
    short, whole, calls, _ = both(model, (tokens(), tokens()), monkeypatch)
    assert len(calls) == 1
    assert described(short) == described(whole)
    assert not any("__self__" in op.source.module for op in whole.ops), "modules have the user's paths within blocks"


@pytest.mark.parametrize("make", [Counted, Joined, Shared])
def test_a_model_that_does_not_show_how_its_layers_go_on_is_captured_whole(make, monkeypatch):
    short, whole, calls, _ = both(make(), torch.zeros(2, 8), monkeypatch)
    assert len(calls) == 2
    assert described(short) == described(whole)


def test_layers_that_differ_share_a_weight_or_hold_blocks_are_no_run():
    widths = Stack(*(nn.Linear(8, 8, bias=number == 4) for number in range(LAYERS)))
    tied = Stack(*(nn.Linear(8, 8) for _ in range(LAYERS)))
    for layer in tied.layers:
        layer.weight = tied.layers[0].weight
    within = Tower(LAYERS)
    for layer in within.layers:
        BeginBlock(layer.norm, "norm")
    assert [runs_of(model) for model in (widths, tied, within, Tower(5))] == [[], [], [], []]


def test_a_container_has_all_its_layers_again():
    model, seen = Tower(LAYERS), []

    def capture() -> Captured:
        seen.append(list(model.layers._modules))
        raise KeyError

    with pytest.raises(KeyError):
        captured_once(model, capture)
    assert seen == [["0", "1", "2", "3"]]
    assert len(model.layers) == LAYERS
