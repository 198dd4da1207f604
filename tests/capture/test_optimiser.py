"""An imported optimiser updates weights and state as torch.optim does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchipu.capture.aot import capture_joint
from torchipu.capture.optimiser import import_optimiser
from torchipu.errors import OptionsError
from torchipu.ir.types import Leg, Role
from torchipu.step import TrainStep

MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.99)),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1),
    "adam_decoupled": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "rmsprop_centred": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, y):
        return F.cross_entropy(self.layers(x), y)


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)) for _ in range(count)
    ]


def eager_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same(model, optimizer, eager, eager_optimizer):
    torch.testing.assert_close(dict(model.named_parameters()), dict(eager.named_parameters()))
    ours, theirs = optimizer.state_dict(), eager_optimizer.state_dict()
    torch.testing.assert_close(ours["state"], theirs["state"])
    assert ours["param_groups"] == theirs["param_groups"]


def imported(optimizer, model):
    captured = capture_joint(model, batches(1)[0])
    return captured, import_optimiser(optimizer, model, captured.parameters, captured.gradients)


@pytest.mark.whole  # the first update of SGD with dampening is unlike all others
@pytest.mark.parametrize("kind", MAKERS)
def test_weights_and_state_follow_eager(kind):
    model = Model()
    eager = copy.deepcopy(model)
    optimizer, eager_optimizer = MAKERS[kind](model.parameters()), MAKERS[kind](eager.parameters())
    step = TrainStep(model, optimizer)
    for batch in batches(4):
        torch.testing.assert_close(step(*batch), eager_step(eager, eager_optimizer, batch))
    assert_same(model, optimizer, eager, eager_optimizer)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch watches its own step only
def test_a_scheduler_takes_effect_without_a_new_compilation():
    model = Model()
    eager = copy.deepcopy(model)
    optimizer, eager_optimizer = MAKERS["adamw"](model.parameters()), MAKERS["adamw"](eager.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.3) for o in (optimizer, eager_optimizer)]
    step = TrainStep(model, optimizer)
    compilations = set()
    for batch in batches(4):
        step(*batch)
        compilations.add(id(step.compiled))
        eager_step(eager, eager_optimizer, batch)
        for scheduler in schedulers:
            scheduler.step()
    assert len(compilations) == 1
    torch.testing.assert_close(dict(model.named_parameters()), dict(eager.named_parameters()))


@pytest.mark.parametrize("kind", ["sgd_momentum", "adam"])
def test_state_goes_from_eager_to_the_step_and_back(kind):
    model = Model()
    eager = copy.deepcopy(model)
    optimizer, eager_optimizer = MAKERS[kind](model.parameters()), MAKERS[kind](eager.parameters())
    first, second, third, fourth = batches(4)
    for net, made in ((model, optimizer), (eager, eager_optimizer)):
        eager_step(net, made, first)
    TrainStep(model, optimizer)(*second)
    eager_step(eager, eager_optimizer, second)
    for net, made in ((model, optimizer), (eager, eager_optimizer)):
        eager_step(net, made, third)
    TrainStep(model, optimizer)(*fourth)
    eager_step(eager, eager_optimizer, fourth)
    assert_same(model, optimizer, eager, eager_optimizer)


@pytest.mark.parametrize("kind", ["sgd_momentum", "adam"])
def test_load_state_dict_between_calls_is_taken_over(kind):
    model = Model()
    optimizer = MAKERS[kind](model.parameters())
    step = TrainStep(model, optimizer)
    data = batches(3)
    step(*data[0])
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    step(*data[1])
    expected = copy.deepcopy(dict(model.named_parameters()))
    step(*data[2])
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    step(*data[1])
    torch.testing.assert_close(dict(model.named_parameters()), expected, rtol=0, atol=0)


def test_each_group_has_its_own_hyper_parameters():
    model = Model()
    eager = copy.deepcopy(model)

    def make(net):
        weights, biases = [net.layers[0].weight, net.layers[2].weight], [net.layers[0].bias, net.layers[2].bias]
        return torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.3}], lr=0.01)

    optimizer, eager_optimizer = make(model), make(eager)
    step = TrainStep(model, optimizer)
    for batch in batches(3):
        step(*batch)
        eager_step(eager, eager_optimizer, batch)
    assert_same(model, optimizer, eager, eager_optimizer)


def test_update_ops_are_in_the_update_leg_and_write_each_weight_once():
    model = Model()
    captured, update = imported(torch.optim.AdamW(model.parameters()), model)
    assert {op.leg for op in update.ops} == {Leg.UPDATE}
    written = [state for state, _ in update.updates]
    assert len(set(written)) == len(written)
    assert set(captured.parameters.values()) <= set(written)
    assert all(tensor.role in (Role.OPTIMISER_STATE, Role.HYPERPARAMETER) for tensor in update.inputs)


def test_frozen_parameters_get_no_update_and_no_state():
    model = Model()
    model.layers[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    captured, update = imported(optimizer, model)
    assert captured.parameters["layers.0.weight"] not in dict(update.updates)
    assert model.layers[0].weight not in optimizer.state


def test_another_optimiser_is_refused_with_the_supported_ones():
    model = Model()
    with pytest.raises(OptionsError, match="LBFGS cannot run on the IPU") as caught:
        imported(torch.optim.LBFGS(model.parameters()), model)
    assert "torch.optim.AdamW" in str(caught.value)


class OwnStep(torch.optim.SGD):
    def step(self, closure=None):
        """Do something of its own."""


class OwnName(torch.optim.SGD):
    pass


def test_a_subclass_with_its_own_step_is_refused_and_one_without_is_not():
    model = Model()
    with pytest.raises(OptionsError, match="OwnStep cannot run"):
        imported(OwnStep(model.parameters(), 0.1), model)
    assert imported(OwnName(model.parameters(), 0.1), model)[1].ops


def test_parameters_of_another_model_are_refused():
    with pytest.raises(OptionsError, match="does not have"):
        imported(torch.optim.SGD(Model().parameters(), 0.1), Model())


def test_switching_momentum_on_after_compilation_is_refused():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = TrainStep(model, optimizer)
    step(*batches(1)[0])
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(OptionsError, match="needs other states"):
        step(*batches(1)[0])


@pytest.mark.parametrize(("change", "told"), [
    (
        lambda optimizer, model: optimizer.add_param_group({"params": model.frozen.parameters()}),
        "has 2 parameter groups now, where the program was compiled with 1",
    ),
    (lambda optimizer, model: optimizer.param_groups[0]["params"].pop(), "has other parameters in its groups"),
    (lambda optimizer, model: optimizer.param_groups[0]["params"].extend(model.frozen.parameters()), "has other"),
])
def test_groups_that_change_after_compilation_are_refused(change, told):
    model = Model()
    model.frozen = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.layers.parameters(), 0.1)
    step = TrainStep(model, optimizer)
    step(*batches(1)[0])
    change(optimizer, model)
    with pytest.raises(OptionsError, match=told) as caught:
        step(*batches(1)[0])
    assert "make a new TrainStep" in caught.value.remedy
