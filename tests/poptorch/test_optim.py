"""`poptorch.optim`: arguments, variable attributes, states by PopART's names, and training by torch's arithmetic."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from torchipu import poptorch
from torchipu.poptorch import optim


class Regressor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.linear(x)
        return out, torch.nn.functional.mse_loss(out, y)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)) for _ in range(count)]


def model() -> Regressor:
    torch.manual_seed(0)
    return Regressor()


def check_five_steps(training: poptorch.PoplarExecutor, exact: Regressor, reference: torch.optim.Optimizer) -> None:
    """Train both and compare their weights; the judge computes in float64."""
    for x, y in batches(5):
        training(x, y)
        reference.zero_grad()
        exact(x.double(), y.double())[1].backward()
        reference.step()
    for mine, theirs in zip(training.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=1e-6)


PAIRS = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, loss_scaling=16.0),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "SGD combined": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=2.0),
                     lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "Adam": (lambda p: optim.Adam(p, lr=0.02, betas=(0.8, 0.9), loss_scaling=128.0),
             lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.9))),
    "AdamW": (lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.1, bias_correction=False),
              lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1)),
    "RMSprop": (lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
                lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True)),
}


CLIPPED = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, max_grad_norm=0.5), torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9}),
    "Adam": (lambda p: optim.Adam(p, lr=0.02, max_grad_norm=0.5, loss_scaling=64.0), torch.optim.Adam, {"lr": 0.02}),
    "AdamW": (lambda p: optim.AdamW(p, lr=0.02, max_grad_norm=0.5), torch.optim.AdamW, {"lr": 0.02}),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_max_grad_norm_equals_clip_grad_norm(name: str) -> None:
    make, theirs, keywords = CLIPPED[name]
    ours, exact = model(), model().double()
    training = poptorch.trainingModel(ours, optimizer=make(ours.parameters()))
    reference = theirs(exact.parameters(), **keywords)
    for number, (x, y) in enumerate(batches(5)):
        training(x, y)
        reference.zero_grad()
        exact(x.double(), y.double())[1].backward()
        norm = torch.nn.utils.clip_grad_norm_(exact.parameters(), 0.5)
        assert norm > 0.5 or number > 0
        reference.step()
        if number == 2:  # another one like it
            training.setOptimizer(make(ours.parameters()))  # which keeps the moments
    for mine, exactly in zip(training.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), exactly.detach(), rtol=1e-4, atol=1e-6)


def test_gradients_of_weights_outside_the_optimiser_are_not_clipped_with_the_others() -> None:
    ours, exact = model(), model().double()
    training = poptorch.trainingModel(ours, optimizer=optim.SGD([*ours.parameters()][-2:], lr=0.1, max_grad_norm=0.1))
    trained = [*exact.parameters()][-2:]
    reference = torch.optim.SGD(trained, lr=0.1)
    for x, y in batches(3):
        training(x, y)
        exact.zero_grad()
        exact(x.double(), y.double())[1].backward()
        assert torch.nn.utils.clip_grad_norm_(trained, 0.1) > 0.1
        reference.step()
    for mine, exactly in zip(training.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), exactly.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_training_follows_the_optimiser_of_torch_in_float64(name: str) -> None:
    ours, exact = model(), model().double()
    training = poptorch.trainingModel(ours, optimizer=PAIRS[name][0](ours.parameters()))
    reference = PAIRS[name][1](exact.parameters())
    check_five_steps(training, exact, reference)
    training.destroy()


def test_lamb_trains() -> None:
    ours = model()
    training = poptorch.trainingModel(ours, optimizer=optim.LAMB(ours.parameters(), lr=0.05))
    x, y = batches(1)[0]
    losses = [training(x, y)[1].item() for _ in range(10)]
    assert losses[-1] < losses[0]
    training.destroy()


class TensorFlowRMSprop(torch.optim.Optimizer):
    """RMSprop as TensorFlow's documentation gives it: mean squares from 1, eps under the root, rate in the momentum."""

    def step(self, closure: object = None) -> None:
        group = self.param_groups[0]
        for p in group["params"]:
            state = self.state.setdefault(p, {"square": torch.ones_like(p), "mean": 0.0, "move": 0.0})
            gradient = p.grad + group["weight_decay"] * p.detach()
            fresh = 1 - group["alpha"]
            state["square"] = group["alpha"] * state["square"] + fresh * gradient**2
            state["mean"] = group["alpha"] * state["mean"] + fresh * gradient
            spread = state["square"] - state["mean"] ** 2 if group["centered"] else state["square"]
            state["move"] = group["momentum"] * state["move"] + group["lr"] * gradient / (spread + group["eps"]).sqrt()
            with torch.no_grad():
                p -= state["move"]


@pytest.mark.parametrize(("momentum", "centered"), [(0.0, False), (0.9, False), (0.9, True)])
def test_rmsprop_of_tensorflow_follows_its_formula_in_float64(momentum: float, centered: bool) -> None:
    ours, exact = model(), model().double()
    numbers = {"lr": 0.05, "alpha": 0.9, "eps": 1e-2, "weight_decay": 0.1, "momentum": momentum, "centered": centered}
    optimizer = optim.RMSprop(ours.parameters(), use_tf_variant=True, **numbers)
    training = poptorch.trainingModel(ours, optimizer=optimizer)
    reference = TensorFlowRMSprop(exact.parameters(), numbers)
    check_five_steps(training, exact, reference)
    assert optimizer.state_dict()["ipu_state"]["Accl2___linear.bias"].shape == (3,)


def test_what_is_given_is_variable_and_what_is_left_out_is_constant() -> None:
    attributes = optim.AdamW(model().parameters(), lr=0.1).variable_attrs
    assert not attributes.isConstant("lr")
    assert attributes.isConstant("betas")
    assert attributes.isConstant("loss_scaling")
    attributes.markAsConstant("lr")
    assert attributes.isConstant("lr")
    attributes.markAsVariable("eps")
    assert not attributes.isConstant("eps")
    with pytest.raises(AssertionError, match="Unknown attribute momentum, allowed values"):
        attributes.isConstant("momentum")


def test_states_go_from_one_run_to_the_next() -> None:
    def trained(start: int, stop: int, states: dict[str, dict[str, object]] | None) -> dict[str, dict[str, object]]:
        module = model()
        optimizer = optim.Adam(module.parameters(), lr=0.05, loss_scaling=2.0)
        if states is not None:
            module.load_state_dict(states["model"])
            optimizer.load_state_dict(states["optimizer"])
        training = poptorch.trainingModel(module, optimizer=optimizer)
        for x, y in batches(6)[start:stop]:
            training(x, y)
        found = {"optimizer": copy.deepcopy(optimizer.state_dict()), "model": copy.deepcopy(training.state_dict())}
        training.destroy()
        return found

    whole, half = trained(0, 6, None), trained(0, 3, None)
    again = trained(3, 6, half)
    for name, value in whole["model"].items():
        torch.testing.assert_close(again["model"][name], value, rtol=1e-6, atol=1e-7)
    moments = half["optimizer"]["ipu_state"]
    assert isinstance(moments, dict)
    assert {"Accl1___linear.weight", "Accl2___linear.bias", "Step___linear.weight"} <= set(moments)
    numbers = half["optimizer"]["ipu_param"]
    assert isinstance(numbers, dict)
    assert numbers["learningRate___specific___linear.bias"] == torch.tensor(0.05)
    assert numbers["lossScaling_FLOAT"] == 2.0
    assert not any(name.startswith("scaled") for name in numbers)
    assert not any(name.startswith("weightDecay") for name in numbers)


@pytest.mark.parametrize("name", PAIRS)
def test_states_loaded_while_the_program_is_on_the_device_are_those_it_goes_on_from(name: str) -> None:
    mine, theirs = PAIRS[name]
    module = model()
    exact = copy.deepcopy(module).double()
    optimizer, reference = mine(module.parameters()), theirs(exact.parameters())
    training = poptorch.trainingModel(module, optimizer=optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        training(x, y)
        reference.zero_grad()
        exact(x.double(), y.double())[1].backward()
        reference.step()

    first, second, third, *others = batches(5)
    step(*first)
    kept = copy.deepcopy((optimizer.state_dict(), training.state_dict()))
    kept_reference = copy.deepcopy((reference.state_dict(), exact.state_dict()))
    step(*second)
    step(*third)
    training.load_state_dict(kept[1])
    optimizer.load_state_dict(kept[0])
    exact.load_state_dict(kept_reference[1])
    reference.load_state_dict(kept_reference[0])
    for batch in others:
        step(*batch)
    for weight, judge in zip(training.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(weight.detach().double(), judge.detach(), rtol=1e-4, atol=1e-6)


def test_states_outlive_the_program() -> None:
    module = model()
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    training = poptorch.trainingModel(module, optimizer=optimizer)
    training(*batches(1)[0])
    before = copy.deepcopy(optimizer.state_dict())
    training.destroy()
    after = optimizer.state_dict()
    assert after["ipu_param"] == before["ipu_param"]
    assert after["ipu_state"].keys() == before["ipu_state"].keys()
    assert all(torch.equal(after["ipu_state"][name], value) for name, value in before["ipu_state"].items())


def test_numbers_of_sgd_have_the_names_and_the_scaling_of_popart() -> None:
    module = model()
    optimizer = optim.SGD(module.parameters(), lr=0.5, momentum=0.9, dampening=0.2, weight_decay=0.1, loss_scaling=4.0)
    training = poptorch.trainingModel(module, optimizer=optimizer)
    training.compile(*batches(1)[0])
    numbers = optimizer.state_dict()["ipu_param"]
    assert float(numbers["scaledLearningRate0___specific___linear.weight"]) == pytest.approx(0.5 * 0.8 / 4)
    assert float(numbers["weightDecayScaleFactor0___specific___linear.bias"]) == pytest.approx(1 - 0.5 * 0.8 * 0.1)
    assert float(numbers["lossScaling_FLOAT"]) == 4.0


def test_states_are_none_before_a_program_exists_and_bad_ones_are_refused() -> None:
    optimizer = optim.SGD(model().parameters(), lr=0.1)
    found = optimizer.state_dict()
    assert found["ipu_state"] is None
    assert found["ipu_param"] is None
    optimizer.load_state_dict(found)
    with pytest.raises(RuntimeError, match="because it is empty"):
        optimizer.load_state_dict({})
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded"):
        optimizer.load_state_dict(torch.optim.SGD(model().parameters(), lr=0.1).state_dict())


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, torch.optim.AdamW])
def test_rates_are_those_of_the_moment_when_the_optimiser_was_set(make: type[torch.optim.Optimizer]) -> None:
    trained, batch = model(), batches(1)[0]
    optimizer = make(trained.parameters(), lr=0.0)  # type: ignore[call-arg]
    step = poptorch.trainingModel(trained, None, optimizer)
    bias = trained.linear.bias

    def trains() -> bool:
        before = bias.detach().clone()
        step(*batch)
        return not torch.equal(bias.detach(), before)

    step.compile(*batch)
    optimizer.param_groups[0]["lr"] = 0.1
    assert not trains()
    step.setOptimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    assert trains()
    step.detachFromDevice()
    assert trains()
    step.setOptimizer(optimizer)
    assert not trains()


def test_a_scheduler_changes_the_rate_once_the_optimiser_is_set_anew() -> None:
    module = model()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0 if epoch else 1.0)
    training = poptorch.trainingModel(module, optimizer=optimizer)
    (x, y), = batches(1)
    training(x, y)
    before = training.linear.weight.detach().clone()
    optimizer.step()  # touches nothing: torch warns if a scheduler steps before its optimiser
    scheduler.step()
    training.setOptimizer(optimizer)
    training(x, y)
    assert torch.equal(training.linear.weight.detach(), before)
    training.destroy()


@pytest.mark.parametrize(("make", "kind", "words"), [
    (lambda p: torch.optim.Adagrad(p), AssertionError, "Unsupported optimizer type Adagrad"),
    (lambda p: optim.Adam(p, amsgrad=True), ValueError, "Only non-amsgrad Adam/AdamW optimizers are supported."),
    (lambda p: optim.SGD(p, lr=0.1, max_grad_norm=math.nan), poptorch.Error, "max_grad_norm must not be NaN"),
    (lambda p: optim.SGD(p, lr=0.1, accum_type=torch.int32), AssertionError, "accum_type must be one of"),
])
def test_what_cannot_run_is_refused(make: object, kind: type[Exception], words: str) -> None:
    module = model()
    with pytest.raises(kind, match=words):
        poptorch.trainingModel(module, optimizer=make(module.parameters()))  # type: ignore[operator]


@pytest.mark.parametrize(("types", "expected"), [
    ({}, ("float", "float", "float", "post")),
    ({"accum_type": torch.float16, "first_order_momentum_accum_type": torch.float16}, ("half", "half", "float",
                                                                                         "running")),
    ({"second_order_momentum_accum_type": torch.float16}, ("float", "float", "half", "post")),
])
def test_types_of_accumulators_and_moments_reach_the_program(
    types: dict[str, torch.dtype], expected: tuple[str, ...]
) -> None:
    module = model().half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = optim.Adam(module.parameters(), lr=0.01, **types)
    training = poptorch.trainingModel(module, options, optimizer=optimizer)
    x, y = batches(1)[0]
    training(x.half(), y.half())
    core = training._session().options
    assert (core.accumulator_type, core.first_moment_type, core.second_moment_type, core.mean_reduction) == expected
    states = optimizer.state_dict()["ipu_state"]
    names = {"half": torch.half, "float": torch.float32}
    for name, value in states.items():
        kind = {"Accl1": expected[1], "Accl2": expected[2], "Step_": "float"}[name[:5]]
        assert value.dtype is names[kind], name


NO_SCALES = [0.0, -2.0, math.inf, math.nan]
EVERY = ("SGD", "Adam", "AdamW", "RMSprop", "LAMB")
NO_SCALE = (
    r"'poptorch_cpp_error': the optimiser's loss_scaling must be a float above 0, got {0} \(float\)[\s\S]*use a power "
    r"of two such as 1024.0, or Options.Training.setAutomaticLossScaling\(True\), which finds one"
)


@pytest.mark.parametrize("scale", NO_SCALES)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("is_automatic", [False, True])
def test_loss_scales_that_make_no_sense_are_refused_when_the_program_is_made(
    name: str, scale: float, is_automatic: bool
) -> None:
    module = model()
    before = copy.deepcopy(module.state_dict())
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(is_automatic)
    optimizer = getattr(optim, name)(module.parameters(), lr=0.1, loss_scaling=scale)
    training = poptorch.trainingModel(module, options, optimizer=optimizer)
    with pytest.raises(poptorch.Error, match=NO_SCALE.format(scale)):
        training(*batches(1)[0])
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    optimizer.loss_scaling = 2.0
    training.setOptimizer(optimizer)
    training(*batches(1)[0])
    assert any(not torch.equal(value, before[key]) for key, value in training.state_dict().items())


@pytest.mark.parametrize("scale", NO_SCALES)
@pytest.mark.parametrize("name", EVERY)
def test_loss_scales_that_make_no_sense_are_refused_later_too_and_nothing_is_lost(name: str, scale: float) -> None:
    module = model()
    optimizer = getattr(optim, name)(module.parameters(), lr=0.1, loss_scaling=4.0)
    training = poptorch.trainingModel(module, optimizer=optimizer)
    batch = batches(1)[0]
    training(*batch)
    before = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for bad in (optimizer, getattr(optim, name)(module.parameters(), lr=0.1, loss_scaling=scale)):
        bad.loss_scaling = scale
        with pytest.raises(poptorch.Error, match=NO_SCALE.format(scale)):
            training.setOptimizer(bad)
    optimizer.loss_scaling = 4.0
    training.setOptimizer(optimizer)
    leaves = torch.utils._pytree.tree_leaves
    for mine, theirs in zip(leaves((module.state_dict(), optimizer.state_dict())), leaves(before), strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    training(*batch)
    assert any(not torch.equal(value, before[0][key]) for key, value in training.state_dict().items())


def test_automatic_scaling_does_not_go_on_from_a_scale_that_makes_no_sense() -> None:
    module = model()
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    optimizer = optim.SGD(module.parameters(), lr=0.1, loss_scaling=4.0)
    training = poptorch.trainingModel(module, options, optimizer=optimizer)
    training(*batches(1)[0])
    state = optimizer.state_dict()
    state["ipu_state"]["lossScaleUpdateFactor"] = math.nan
    with pytest.raises(poptorch.Error, match=r"cannot go on from a scale of nan: load the state of an optimiser whose"):
        optimizer.load_state_dict(state)


def test_a_group_added_after_compilation_is_refused_until_the_model_is_compiled_again() -> None:
    trained = model()
    parameters = list(trained.parameters())
    optimiser = poptorch.optim.SGD(parameters[:1], lr=0.1)
    executor = poptorch.trainingModel(trained, optimizer=optimiser)
    executor(*batches(1)[0])
    optimiser.add_param_group({"params": parameters[1:], "lr": 0.2})
    with pytest.raises(poptorch.Error, match=r"has 2 parameter groups now, where the program was compiled with 1"):
        executor.setOptimizer(optimiser)
    executor.destroy()
    before = parameters[-1].detach().clone()
    poptorch.trainingModel(trained, optimizer=optimiser)(*batches(1)[0])
    assert not torch.equal(parameters[-1], before)
