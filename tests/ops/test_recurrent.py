"""Recurrent layers and cells against eager float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.ops.judge import judge, recorded
from torchipu.capture.running import Running, capture_by_running
from torchipu.errors import CaptureError
from torchipu.optable.spec import spec_of
from torchipu.step import TrainStep

LAYERS = {
    "rnn_tanh": lambda **k: nn.RNN(4, 6, nonlinearity="tanh", **k),
    "rnn_relu": lambda **k: nn.RNN(4, 6, nonlinearity="relu", **k),
    "lstm": lambda **k: nn.LSTM(4, 6, **k),
    "gru": lambda **k: nn.GRU(4, 6, **k),
}
# Together, as Dynamo's tracing takes seconds for each.
SETTINGS: list[dict[str, Any]] = [{"bidirectional": True, "bias": False}, {"num_layers": 2, "batch_first": True}]


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}


def run(layer: nn.Module) -> Any:
    return lambda state, *args: torch.func.functional_call(layer, state, args)


def states(layer: Any, batch: int | None, grad: bool = True) -> Any:
    """Return random first states of a layer."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    middle = () if batch is None else (batch,)
    h0 = torch.randn(count, *middle, layer.proj_size or layer.hidden_size).requires_grad_(grad)
    if not isinstance(layer, nn.LSTM):
        return h0
    return h0, torch.randn(count, *middle, layer.hidden_size).requires_grad_(grad)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("settings", [*SETTINGS, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_and_their_gradients_equal_eager(kind: str, settings: dict[str, Any]) -> None:
    layer = LAYERS[kind](**settings)
    x = torch.randn(*((3, 5) if settings.get("batch_first") else (5, 3)), 4, requires_grad=True)
    judge(run(layer), state_of(layer), x, states(layer, 3))


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_in_half_and_of_one_step(kind: str) -> None:
    layer = LAYERS[kind]()
    judge(run(layer), state_of(layer), torch.randn(5, 3, 4, requires_grad=True), dtype=torch.float16)
    judge(run(layer), state_of(layer), torch.randn(1, 3, 4, requires_grad=True), states(layer, 3))


@pytest.mark.parametrize("kind", ["rnn_tanh", "lstm"])  # with one state, and with two
def test_unbatched_layers_and_those_without_gradients(kind: str) -> None:
    layer = LAYERS[kind]()
    judge(run(layer), state_of(layer), torch.randn(5, 4, requires_grad=True), states(layer, None))
    with torch.no_grad():
        judge(run(layer), state_of(layer), torch.randn(5, 3, 4), states(layer, 3, grad=False))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_lstm_with_a_projection(settings: dict[str, Any]) -> None:
    layer = nn.LSTM(4, 6, proj_size=3, **settings)
    x = torch.randn(*((3, 5) if settings.get("batch_first") else (5, 3)), 4, requires_grad=True)
    judge(run(layer), state_of(layer), x, states(layer, 3))


@pytest.mark.parametrize("kind", LAYERS)
def test_sizes_beyond_one_register_tile(kind: str) -> None:
    layer = {"rnn_tanh": nn.RNN, "rnn_relu": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}[kind](
        9, 37, **({"nonlinearity": kind[4:]} if kind.startswith("rnn") else {}))
    judge(run(layer), state_of(layer), torch.randn(7, 33, 9, requires_grad=True), states(layer, 33), rtol=5e-5)


@pytest.mark.parametrize("cell", [nn.RNNCell(4, 6), nn.RNNCell(4, 6, nonlinearity="relu"), nn.GRUCell(4, 6),
                                  nn.LSTMCell(4, 6), nn.LSTMCell(4, 6, bias=False)], ids=str)
def test_cells_and_their_gradients_equal_eager(cell: nn.Module) -> None:
    x, h = torch.randn(3, 4, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    hx = (h, torch.randn(3, 6, requires_grad=True)) if isinstance(cell, nn.LSTMCell) else h
    judge(run(cell), state_of(cell), x, hx)


@pytest.mark.parametrize("kind", ["rnn_tanh", "lstm", "gru"])
def test_dropout_between_layers_is_drawn_in_training_only(kind: str) -> None:
    layer = LAYERS[kind](num_layers=2, dropout=0.5)
    x = torch.randn(5, 3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="ipu", fullgraph=True)
    assert not torch.equal(compiled(x)[0], compiled(x)[0])
    judge(run(layer.eval()), state_of(layer), x)


def test_a_long_layer_is_one_op_for_each_direction() -> None:
    layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True)
    torch._dynamo.reset()
    with recorded() as executors:
        torch.compile(layer, backend="ipu", fullgraph=True)(torch.randn(100, 3, 4))[0].sum().backward()
    kinds = [op.kind for executor in executors for op in executor.graph.ops]
    assert kinds.count("recurrence") == 4
    assert kinds.count("recurrence_backward") == 4
    assert len(kinds) < 150
    assert all(spec_of(op) for executor in executors for op in executor.graph.ops)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.gru(self.layer(x)[0])[1][0]), labels)


def test_a_training_step_follows_eager() -> None:
    model = Tagger()
    exact = copy.deepcopy(model).double()
    x, labels = torch.randn(8, 5, 4), torch.randint(0, 3, (8,))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5))
    optimiser = torch.optim.SGD(exact.parameters(), lr=0.5)
    for _ in range(3):
        value = step(x, labels)
        optimiser.zero_grad()
        wanted = exact(x.double(), labels)
        wanted.backward()
        optimiser.step()
        torch.testing.assert_close(value.double().reshape(()), wanted.detach(), rtol=1e-5, atol=1e-5)


class Run(Running):
    """Runs a model that takes one tensor."""

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int | None]:
        return [self.inner(*tensors)], 0


def test_capture_by_running_finds_one_op_for_each_layer_and_direction() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)[0]
            return nn.functional.gaussian_nll_loss(y, torch.zeros(7, 3, 12), y * y)

    captured = capture_by_running(Run(Model(), loss_scale=1.0), [torch.randn(7, 3, 4)], name="run")
    kinds = [op.kind for op in captured.graph.ops]
    assert kinds.count("recurrence") == kinds.count("recurrence_backward") == 4
    assert not captured.generic_targets


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
        return self.layer(packed)[0].data.sum()


def test_packed_sequences_are_refused_by_a_step() -> None:
    model = Packed()
    with pytest.raises(CaptureError, match=r"pack_padded_sequence|packed sequences") as caught:
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))(torch.randn(5, 3, 4))
    assert "pad" in caught.value.remedy
