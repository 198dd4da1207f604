"""What a model is made of, and where it lies, as it is looked at before each call of a step."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchipu._kernels.abi import Footprint, ModelMembers, members_of


class Shared(nn.Module):
    """A layer under two names, a parameter that is None, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = self.first
        self.inner = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
        self.register_buffer("held", torch.zeros(2))
        self.register_module("missing", None)


def _give_a_new_weight(model: Shared) -> None:
    model.first.weight = nn.Parameter(model.first.weight.detach())


CHANGES: list[Callable[[Shared], object]] = [
    lambda model: model.inner[1].eval(), lambda model: model.inner[0].weight.requires_grad_(False), _give_a_new_weight,
    lambda model: setattr(model, "held", torch.zeros(2)), lambda model: model.inner.append(nn.ReLU()),
    lambda model: setattr(model, "second", nn.Linear(3, 3)), lambda model: model.load_state_dict(
        {name: value.clone() for name, value in model.state_dict().items()}, assign=True,
    ),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_model_is_seen(change: Callable[[Shared], object]) -> None:
    model = Shared()
    before, members = members_of(model), ModelMembers(model)
    kept = [*model.parameters(), *model.buffers()]  # so that no other tensor is where one of them was
    assert members_of(model) == before == members.found
    assert members.are_same()
    change(model)
    assert members_of(model) != before
    assert not members.are_same()
    assert kept


def test_members_are_named_once_and_in_the_order_of_a_walk_by_breadth() -> None:
    model = Shared()
    modes, parameters, buffers = members_of(model.train())
    assert modes == (True,) * 5  # the model, the shared layer, the sequence, and its two
    norm = model.inner[0]
    assert parameters == tuple((id(one), True) for one in (model.first.weight, norm.weight, norm.bias))
    assert buffers == tuple(map(id, (model.held, *norm.buffers())))


def test_members_are_the_same_in_other_dictionaries_and_beside_other_attributes() -> None:
    model = Shared()
    members = ModelMembers(model)
    model.inner._parameters = dict(model.inner._parameters)
    model.first.__dict__["note"] = "not a member"
    model.__dict__["_modules"] = {"missing": None, **model._modules}
    assert members.are_same()
    model.inner[0].register_parameter("bias", None)
    assert not members.are_same()


class AskedForItsMode(nn.Linear):
    """Its mode is no attribute of the object: what is kept of it is asked for each time."""

    is_training = True
    training = property(lambda self: self.is_training, lambda self, mode: None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_another_make_are_asked() -> None:
    doubled = AskedForItsMode(2, 2)
    model = nn.Sequential(doubled, torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)))
    members = ModelMembers(model)
    assert members.are_same()
    doubled.is_training = False
    assert not members.are_same()


def test_a_footprint_is_fetched_though_what_was_there_is_gone() -> None:
    model = Shared()
    footprint = Footprint(model, [*model.parameters(), *model.buffers()])
    footprint.fetch()
    del model
    gc.collect()
    footprint.fetch()
    Footprint(nn.Module(), []).fetch()
