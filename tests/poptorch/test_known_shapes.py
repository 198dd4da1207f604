"""Calls whose result has a shape that constants decide: masks, counts and lengths that are no inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

Y = torch.arange(24.0).reshape(4, 6).sin()
MASK, COUNTS = torch.tensor([True, False, True, True, False, True]), torch.tensor([1, 0, 2, 1])
LENGTHS = torch.tensor([2, 4, 3, 4])
Body = Callable[[torch.Tensor], Any]


class Called(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> Any:
        result = self.body(x * self.weight)
        return result, poptorch.identity_loss(result.square().sum(), "sum")


def with_doubled(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[:, MASK] *= 2
    return y


@pytest.mark.parametrize("body", [
    lambda y: y[:, MASK], lambda y: y[MASK[:4]], lambda y: y[1:3, MASK], lambda y: y[None, COUNTS > 0, ..., 2:],
    lambda y: y[:, torch.arange(6) % 2 == 0], lambda y: y[[True, False, True, True]],
    lambda y: y[torch.ones(4, 6).triu().bool()], lambda y: y.masked_select(MASK), with_doubled,
    lambda y: y[:, MASK.nonzero().squeeze(1)], lambda y: y[:, torch.where(MASK)[0]], lambda y: y[torch.unique(COUNTS)],
    lambda y: y.repeat_interleave(COUNTS, 0), lambda y: torch.repeat_interleave(y, COUNTS[2:3], dim=1),
    lambda y: y.repeat_interleave(torch.arange(24)), lambda y: torch.tensor_split(y, torch.tensor([1, 3]), dim=1)[1],
    lambda y: torch.combinations(y[0], 3), lambda y: torch.combinations(y[0], with_replacement=True),
    torch.cov, lambda y: y[0].cov(correction=0), torch.corrcoef,
    lambda y: torch.cov(y, fweights=torch.arange(6), aweights=torch.arange(6) / 7),
    lambda y: y[:, MASK] + Y[1, MASK].to(y.device), lambda y: y + Y[MASK[:4]][:1].type_as(y),
    lambda y: y[:, :3] * Y[Y > 0.9][:3].to(y.device), lambda y: y + Y[0][torch.where(MASK)[0]].sum().to(y),
    lambda y: y + Y[COUNTS.nonzero().flatten()].to(y.device).sum(0), lambda y: y[0] + Y[1].masked_select(MASK).to(y)[0],
    lambda y: y * Y[0].repeat_interleave(COUNTS.sum()).to(y.device)[:6],
    lambda y: y[:, : len(Y[0][MASK])], lambda y: y * Y[0, MASK].max().item(),
    lambda y: nn.utils.rnn.pack_sequence([y[0], y[1, :3]]).data,
])
def test_what_constants_pick_has_their_shape(body: Body) -> None:
    model = Called(body)
    expected, loss = model(Y)
    gradient, = torch.autograd.grad(loss, model.weight)
    torch.testing.assert_close(poptorch.inferenceModel(model)(Y)[0], expected.detach())
    trained = copy.deepcopy(model)
    poptorch.trainingModel(trained, optimizer=torch.optim.SGD(trained.parameters(), lr=1.0))(Y)
    torch.testing.assert_close(1 - trained.weight.detach(), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("body", [
    lambda y: y[y > 0], lambda y: y.masked_select(y > 0), lambda y: y.repeat_interleave(y[0].long(), 1), torch.unique,
])
def test_what_inputs_pick_is_refused(body: Body) -> None:
    with pytest.raises(poptorch.Error, match="is not known before the program runs"):
        poptorch.inferenceModel(Called(body))(Y)


class Recurrent(nn.Module):
    """A layer over sequences of unlike lengths."""

    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.layer: nn.RNNBase = kind(3, 5, batch_first=True, **settings)

    def forward(self, x: torch.Tensor) -> Any:
        pack = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
        output, states = self.layer(pack)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(output, True, padding_value=-1.0, total_length=5)
        loss = padded.square().sum() + sum(state.sin().sum() for state in states)
        return padded, states, lengths, poptorch.identity_loss(loss, "sum")


@pytest.mark.parametrize(("kind", "settings"), [
    (nn.LSTM, {}), (nn.LSTM, {"proj_size": 2}), (nn.GRU, {}), (nn.GRU, {"bias": False}), (nn.RNN, {}),
])
def test_recurrent_layers_take_packed_sequences_of_known_lengths(
    kind: type[nn.RNNBase], settings: dict[str, Any],
) -> None:
    torch.manual_seed(1)
    model, x = Recurrent(kind, **settings), torch.randn(4, 4, 3)
    judge = copy.deepcopy(model).double()
    expected = judge(x.double())
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    expected[-1].backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))(x)
    found = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    torch.testing.assert_close(found, [p.grad for p in judge.parameters()], check_dtype=False, rtol=1e-4, atol=1e-4)


def test_sequences_of_lengths_that_do_not_fall_are_refused_in_torchs_words() -> None:
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        poptorch.inferenceModel(lambda x: nn.utils.rnn.pack_padded_sequence(x, LENGTHS, True).data)(Y[..., None])


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (0.5, 0.7), (-9.0, -3.0)])
def test_truncated_normal_numbers_of_forward_lie_within_their_bounds(low: float, high: float) -> None:
    drawn = poptorch.inferenceModel(lambda x: x + nn.init.trunc_normal_(torch.empty(5000), 0.1, 0.9, low, high))
    found = drawn(torch.zeros(1))
    judge = nn.init.trunc_normal_(torch.empty(100_000), 0.1, 0.9, low, high)
    assert low <= found.min() <= found.max() <= high
    shares = torch.arange(1, 10) / 10
    torch.testing.assert_close(found.quantile(shares), judge.quantile(shares), rtol=0.02, atol=0.08)
