"""Programs over graphs and over frames of speech: batches of a class of the user's, messages along edges, loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import poptorch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

NODES, EDGES, FEATURES, CLASSES = 12, 30, 6, 3


# --------------------------------------------------------------------------- attention along edges
@dataclass
class Graphs:
    """Graphs one behind the other: features ``[N, F]``, edges ``[E, 2]``, labels ``[N]`` and which of them count."""

    x: torch.Tensor
    edges: torch.Tensor
    labels: torch.Tensor
    counted: torch.Tensor


class GraphsParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Graphs) -> Iterator[torch.Tensor]:
        yield from (struct.x, struct.edges, struct.labels, struct.counted)

    def reconstruct(self, original_structure: Graphs, tensor_iterator: Iterator[torch.Tensor]) -> Graphs:
        return Graphs(*(next(tensor_iterator) for _ in range(4)))


@pytest.fixture(autouse=True)
def _parser() -> Iterator[None]:
    poptorch.registerCustomArgParser(Graphs, GraphsParser())
    yield
    poptorch.registerCustomArgParser(Graphs, None)


class Drawn(torch.utils.data.Dataset[Graphs]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Graphs:
        draw = torch.Generator().manual_seed(index)
        return Graphs(
            torch.randn(NODES, FEATURES, generator=draw), torch.randint(NODES, (EDGES, 2), generator=draw),
            torch.randint(CLASSES, (NODES,), generator=draw), torch.rand(NODES, generator=draw) > 0.3,
        )


def together(graphs: list[Graphs]) -> Graphs:
    return Graphs(*(torch.cat([getattr(graph, name) for graph in graphs]) for name in vars(graphs[0])))


class AttentionAlongEdges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(FEATURES, 8)
        self.sent, self.received = (nn.Parameter(torch.linspace(-0.5, 0.5, 8) * sign) for sign in (1, -1))
        self.classify = nn.Linear(16, CLASSES)

    def forward(self, graphs: Graphs) -> Any:
        sources, targets = graphs.edges.t()
        h = self.project(graphs.x)
        scores = F.leaky_relu((h * self.sent).sum(-1)[sources] + (h * self.received).sum(-1)[targets], 0.2)
        highest = torch.full((NODES,), -1e4, dtype=h.dtype).scatter_reduce(0, targets, scores.detach(), "amax")
        weights = torch.exp(scores - highest[targets])
        totals = torch.zeros(NODES, dtype=h.dtype).scatter_add(0, targets, weights)
        passed = torch.zeros_like(h).index_add(0, targets, h[sources] * (weights / totals[targets]).unsqueeze(-1))
        mean = torch.zeros_like(h).scatter_reduce(
            0, targets.unsqueeze(-1).expand(-1, 8), h[sources], "mean", include_self=False,
        )
        logits = self.classify(torch.cat([passed, mean], dim=-1))
        labels = torch.where(graphs.counted, graphs.labels, -100)
        return logits, F.cross_entropy(logits, labels, ignore_index=-100)


def test_a_network_over_graphs_trains_from_a_loader_of_graphs_as_in_float64() -> None:
    iterations, accumulated, replicas = 2, 2, 2
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulated)
    torch.manual_seed(0)
    model = AttentionAlongEdges()
    exact = copy.deepcopy(model).double()
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.01))
    judge = torch.optim.Adam(exact.parameters(), lr=0.01)
    loader = poptorch.DataLoader(options, Drawn(), collate_fn=together)
    assert len(loader) == 4
    steps = iter(range(len(Drawn())))
    for graphs in loader:
        training(graphs)
        for _ in range(iterations):
            judge.zero_grad()
            for _ in range(accumulated * replicas):
                one = Drawn()[next(steps)]
                (exact(Graphs(one.x.double(), *list(vars(one).values())[1:]))[1] / (accumulated * replicas)).backward()
            judge.step()
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- a decoder that is a loop
class Decoder(nn.Module):
    """Reads a text, and speaks frame by frame: each looks where the last ones have looked."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.cell, self.look = nn.LSTMCell(12, 8), nn.Conv1d(1, 8, 3, padding=1, bias=False)
        self.score, self.frame, self.stop = nn.Linear(8, 1, bias=False), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, text: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor) -> Any:
        memory, _ = self.read(self.embed(text))
        hidden = cell = context = memory.new_zeros(len(text), 8)
        looked, last = memory.new_zeros(text.shape), torch.zeros_like(frames[:, 0])
        is_padding = torch.arange(text.shape[1])[None] >= lengths[:, None]
        spoken, stops = [], []
        for index in range(frames.shape[1]):
            hidden, cell = self.cell(torch.cat([last, context], dim=-1), (hidden, cell))
            keys = torch.tanh(hidden[:, None] + memory + self.look(looked[:, None]).transpose(1, 2))
            weights = F.softmax(self.score(keys).squeeze(-1).masked_fill(is_padding, -1e4), dim=-1)
            looked = looked + weights
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            state = torch.cat([hidden, context], dim=-1)
            spoken.append(self.frame(state))
            stops.append(self.stop(state))
            last = frames[:, index]
        ends = F.binary_cross_entropy_with_logits(torch.cat(stops, 1), torch.zeros_like(frames[..., 0]))
        heard = torch.stack(spoken, dim=1)
        return heard, poptorch.identity_loss(F.mse_loss(heard, frames) + ends, "none")


@pytest.mark.parametrize("make", [
    lambda p: poptorch.optim.Adam(p, lr=0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
])
def test_a_decoder_that_loops_over_frames_trains_as_in_float64(make: Callable[..., Any]) -> None:
    torch.manual_seed(1)
    model = Decoder()
    exact = copy.deepcopy(model).double()
    text, frames, lengths = torch.randint(20, (2, 6)), torch.randn(2, 5, 4), torch.tensor([6, 4])
    optimiser, judge = make(model.parameters()), make(exact.parameters())
    training = poptorch.trainingModel(model, optimizer=optimiser)
    for _ in range(3):
        heard, loss = training(text, frames, lengths)
        judge.zero_grad()
        expected, expected_loss = exact(text, frames.double(), lengths)
        expected_loss.backward()
        judge.step()
        torch.testing.assert_close(heard.double(), expected.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-3, atol=1e-5)
