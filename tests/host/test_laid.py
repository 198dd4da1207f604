"""How tensors of the user's lie, and how often they were written, as it is asked before each call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchipu.host.laid import Laid
from torchipu.host.resident import Versions


def _set_data(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data


MOVES: list[Callable[[Tensor], object]] = [
    lambda x: _set_data(x, x.data.clone()),
    lambda x: _set_data(x, x.data.transpose(0, 1)),
    lambda x: _set_data(x, x.data.view(9, 4)),
    lambda x: _set_data(x, x.data[:, :8].reshape(4, 8)),
    lambda x: _set_data(x, x.data.view(torch.int32)),
    lambda x: _set_data(x, torch._neg_view(x.data)),
    lambda x: _set_data(x, x.data[:2]),
    lambda x: _set_data(x, x.data[::2, ::2]),
    lambda x: _set_data(x, x.data.flatten()[1:33].view(4, 8)),
]


@pytest.mark.parametrize("move", MOVES)
def test_tensors_that_lie_in_another_way_are_seen(move: Callable[[Tensor], object]) -> None:
    tensors = [torch.zeros(2), torch.zeros(4, 9), torch.zeros(())]
    laid = Laid(tensors)
    assert laid.holds(tensors)
    move(tensors[1])
    assert not laid.holds(tensors)


def test_values_gradients_and_modes_do_not_change_how_tensors_lie() -> None:
    weights = [nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(3))]
    laid = Laid(weights)
    with torch.no_grad():
        weights[0].add_(1)
    weights[1].requires_grad_(False)
    assert laid.holds(weights)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert laid.holds(weights)
            assert laid.holds(weights)
    assert not laid.holds(weights[:1])
    assert not laid.holds([*weights, torch.zeros(1)])


def test_tensors_of_inference_mode_and_none() -> None:
    with torch.inference_mode():
        made = torch.zeros(2, 3)
    assert Laid([made]).holds([made])
    assert not Versions([made]).hold()
    assert Laid([]).holds([])


def test_writes_are_seen() -> None:
    tensors = [torch.zeros(3), nn.Parameter(torch.zeros(2))]
    versions = Versions(tensors)
    assert versions.hold()
    with torch.no_grad():
        tensors[1].fill_(1)
    assert not versions.hold()
