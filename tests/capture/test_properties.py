"""Properties of inputs, weights and buffers are results like any other, also where nothing else reads them."""

import contextlib

import pytest
import torch
from torch import nn

import torchipu
from tests.releases import not_before
from torchipu.capture import dynamo_export
from torchipu.errors import CaptureError


class Reading(nn.Module):
    """Returns a property as it is, beside a loss."""

    def __init__(self, owner: str, name: str):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))
        self.register_buffer("counts", torch.randn(3, 2))
        self.owner, self.name = owner, name

    def forward(self, x):
        owner = x if self.owner == "input" else getattr(self, self.owner)
        return getattr(owner, self.name), (self.weight * x).square().sum()


@pytest.mark.parametrize("name", ["mT", "T", "H", "mH", "data", "real"])
@pytest.mark.parametrize("owner", ["input", "weight", "counts"])
def test_a_property_that_is_returned_has_its_values(owner, name):
    model, x = Reading(owner, name), torch.randn(3, 2)
    expected, loss = (value.detach().clone() for value in model(x))
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=1)
    returned, its_loss = step(x)
    torch.testing.assert_close(returned, expected)
    torch.testing.assert_close(its_loss, loss)
    now = getattr({"input": x}.get(owner, getattr(model, owner, None)), name).detach().clone()
    torch.testing.assert_close(step(x)[0], now)  # of a weight, what it has been updated to


@not_before((2, 11), "a property that is read beside the graph has its values")
def test_what_only_looks_like_a_value_is_refused(monkeypatch):
    """Read beside the graph, it is a tensor of torch's tracing, whose class does not tell that it is hollow."""
    monkeypatch.setattr(dynamo_export, "properties_as_calls", contextlib.nullcontext)
    model = Reading("weight", "mT")
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=1)
    with pytest.raises(CaptureError, match=r"of size \[2, 3\], was made by an earlier run"):
        step(torch.randn(3, 2))
