"""Attributes of optimisers: which may change, which the device does not know, and what the log says of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.poptorch.models import Classifier, batch, eager_training, options, twin_of
from torchipu import poptorch
from torchipu.poptorch import optim

BATCH = batch(4)


def trained(make: Callable[[Any], torch.optim.Optimizer], **more: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = Classifier()
    optimizer = make(model.parameters())
    step = poptorch.trainingModel(model, options(**more), optimizer)
    step(*BATCH)
    return step, optimizer


# --------------------------------------------------------------------------- constants
@pytest.mark.parametrize(("make", "name", "value"), [
    (lambda p: optim.SGD(p, lr=0.1), "weight_decay", 0.1), (lambda p: optim.Adam(p, lr=0.1), "betas", (0.5, 0.9)),
    (lambda p: optim.Adam(p), "lr", 0.5), (lambda p: torch.optim.SGD(p, lr=0.1), "weight_decay", 0.1),
    (lambda p: torch.optim.AdamW(p, lr=0.1, eps=1e-8), "eps", 1e-6),
    (lambda p: torch.optim.RMSprop(p, lr=0.1), "alpha", 0.5), (lambda p: torch.optim.AdamW(p), "weight_decay", 0.2),
])
def test_a_constant_that_changed_is_refused(make: Any, name: str, value: Any) -> None:
    step, optimizer = trained(make)
    optimizer.param_groups[0][name] = value
    with pytest.raises(poptorch.Error, match=f"Trying to update a constant optimizer value: {name} of group 0 was"):
        step.setOptimizer(optimizer)


@pytest.mark.parametrize(("make", "name", "value"), [
    (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "momentum", 0.5),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum", 0.5),
    (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2), "weight_decay", 0.0),
    (lambda p: optim.AdamW(p, lr=0.1, betas=(0.9, 0.99)), "betas", (0.5, 0.9)),
])
def test_a_variable_changes_the_next_update(make: Any, name: str, value: Any) -> None:
    step, optimizer = trained(make)
    twin = twin_of(Classifier())
    reference = make(twin.parameters())
    eager_training(twin, reference, BATCH)
    for one in (optimizer, reference):
        one.param_groups[0][name] = value
    step.setOptimizer(optimizer)
    step(*BATCH)
    eager_training(twin, reference, BATCH)
    torch.testing.assert_close(dict(step.state_dict()), dict(twin.state_dict()))


def test_marks_decide_what_is_constant_when_the_model_is_compiled() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = optim.SGD(parameters, lr=0.1)
        optimizer.variable_attrs.markAsVariable("weight_decay")
        optimizer.variable_attrs.markAsConstant("lr")
        return optimizer

    step, optimizer = trained(make)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step.setOptimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(poptorch.Error, match=r"lr of group 0 was 0.1 when the model was compiled and is 0.2"):
        step.setOptimizer(optimizer)
    step.destroy()
    step.setOptimizer(optimizer)  # compiled anew
    step(*BATCH)


def test_another_constant_loss_scale_is_refused() -> None:
    step, optimizer = trained(lambda p: optim.SGD(p, lr=0.1))
    optimizer.loss_scaling = 8.0
    with pytest.raises(poptorch.Error, match=r"loss_scaling was 1.0 when the model was compiled and is 8.0"):
        step.setOptimizer(optimizer)


def test_another_loss_scale_is_that_of_the_next_backward() -> None:
    chosen = options()
    chosen.anchorTensor("gradient", "Gradient___body.weight")
    model = Classifier()
    twin = twin_of(model)
    optimizer = optim.Adam(model.parameters(), lr=0.1, loss_scaling=4.0)
    reference = torch.optim.Adam(twin.parameters(), lr=0.1)
    step = poptorch.trainingModel(model, chosen, optimizer)
    for scaling in (4.0, 64.0, 64.0, 2.0):
        optimizer.loss_scaling = scaling
        step.setOptimizer(optimizer)
        step(*BATCH)
        eager_training(twin, reference, BATCH)
        torch.testing.assert_close(step.getAnchoredTensor("gradient"), twin.body.weight.grad * scaling)
        torch.testing.assert_close(dict(step.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-6)
    other = optim.Adam(model.parameters(), lr=0.1, loss_scaling=16.0)
    other.load_state_dict(optimizer.state_dict())
    step.setOptimizer(other)
    step(*BATCH)
    eager_training(twin, reference, BATCH)
    torch.testing.assert_close(step.getAnchoredTensor("gradient"), twin.body.weight.grad * 16.0)


def test_half_accumulators_need_another_program() -> None:
    step, _ = trained(lambda p: optim.SGD(p, lr=0.1, momentum=0.5), accumulation=2)
    half = optim.SGD(step.model.parameters(), lr=0.1, momentum=0.5, accum_type=torch.float16)
    with pytest.raises(ValueError, match=r"is already compiled with accum_type=torch.float32"):
        step.setOptimizer(half)
    step.destroy()
    step.setOptimizer(half)
    assert step.options.Training.meanAccumulationAndReplicationReductionStrategy is (
        poptorch.MeanReductionStrategy.Running
    )


def test_a_combined_accumulator_has_the_mean_after_the_sum_alone() -> None:
    mean = poptorch.MeanReductionStrategy
    options = poptorch.Options()
    options.Training.gradientAccumulation(2).setMeanAccumulationAndReplicationReductionStrategy(mean.Running)
    model = Classifier()

    def chosen(step: poptorch.PoplarExecutor) -> object:
        return step.options.Training.meanAccumulationAndReplicationReductionStrategy

    combined = optim.SGD(model.parameters(), lr=0.1, momentum=0.5, use_combined_accum=True)
    assert chosen(poptorch.trainingModel(model, options, combined)) is mean.Post
    assert options.Training.meanAccumulationAndReplicationReductionStrategy is mean.Running  # the program's own
    model.destroy()
    separate = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    assert chosen(poptorch.trainingModel(model, options, separate)) is mean.Running


def test_an_inference_model_has_no_optimiser() -> None:
    model = Classifier()
    with pytest.raises(AssertionError, match=r"setOptimizer is for models wrapped by poptorch.trainingModel"):
        poptorch.inferenceModel(model).setOptimizer(optim.SGD(model.parameters(), lr=0.1))


# --------------------------------------------------------------------------- attributes nobody reads
@pytest.mark.parametrize(("make", "kind"), [
    (lambda p: optim.SGD(p, lr=0.1), "SGD2"), (lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True), "SGD1"),
    (lambda p: torch.optim.Adam(p, lr=0.1), "ADAM"), (lambda p: optim.AdamW(p, lr=0.1), "ADAMW"),
    (lambda p: optim.AdamW(p, lr=0.1, bias_correction=False), "ADAMW_NO_BIAS"),
    (lambda p: torch.optim.RMSprop(p, lr=0.1), "RMSPROP"),
    (lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True), "RMSPROP_CENTERED"),
    (lambda p: optim.LAMB(p, lr=0.1), "LAMB"), (lambda p: optim.LAMB(p, bias_correction=False), "LAMB_NO_BIAS"),
])
def test_later_attributes_are_told_of_once(make: Any, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = Classifier()
    optimizer = make(model.parameters())
    step = poptorch.trainingModel(model, options(), optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.colour = "red"
    optimizer.defaults["shape"] = 1
    for _ in range(2):
        step.setOptimizer(optimizer)
    lines = [line.partition("[warning] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        f"Ignoring unexpected optimizer attribute in {kind} optimizer: ['colour']",
        f"Ignoring unexpected default group variable in {kind} optimizer: ['shape']",
        f"Ignoring unexpected group 0 attribute in {kind} optimizer: ['initial_lr']",
    ]


def test_attributes_from_before_and_relaxed_checks_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    for relaxed in (False, True):
        model = Classifier()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        if not relaxed:
            optimizer.colour = "red"
        step = poptorch.trainingModel(model, options().relaxOptimizerAttributesChecks(relaxed), optimizer)
        optimizer.colour = "red"
        step.setOptimizer(optimizer)
    assert capsys.readouterr().err == ""


def test_the_step_of_a_subclass_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise AssertionError("never run")

    step, _ = trained(lambda p: Own(p, lr=0.1))
    twin = twin_of(Classifier())
    eager_training(twin, torch.optim.SGD(twin.parameters(), lr=0.1), BATCH)
    torch.testing.assert_close(dict(step.state_dict()), dict(twin.state_dict()))
    assert "subclassed from classes in poptorch.optim or torch.optim are unlikely to behave as intended" in (
        capsys.readouterr().err
    )


def test_the_log_tells_of_updates_and_of_states_that_are_fetched(debug_log: Callable[[], str]) -> None:
    step, optimizer = trained(lambda p: optim.Adam([{"params": [next(p)], "lr": 0.2}, {"params": list(p)}]))
    debug_log()
    step.setOptimizer(optimizer)
    lines = debug_log()
    assert all(words in lines for words in (
        "Updating graph optimizer", "Updating group 0 optimizer", "Updating group 1 optimizer",
    ))
    optimizer.state_dict()
    assert "Writing optimiser state tensors from IPU to host." in debug_log()
    optimizer.state_dict()
    assert "Using cached optimiser state dict" in debug_log()


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1), lambda p: optim.LAMB(p, lr=0.1),
])
def test_a_value_in_place_of_a_method_is_told_of_and_a_wrapped_method_is_not(
    make: Any, capsys: pytest.CaptureFixture[str],
) -> None:
    model = Classifier()
    optimizer = make(model.parameters())
    step = poptorch.trainingModel(model, options(), optimizer)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)  # puts a method of its own in place of `step`
    step.setOptimizer(optimizer)
    assert "optimizer attribute" not in capsys.readouterr().err
    optimizer.step = 0
    for _ in range(2):
        step.setOptimizer(optimizer)
    told = capsys.readouterr().err
    assert told.count("unexpected optimizer attribute") == 1
    assert "['step']" in told


# --------------------------------------------------------------------------- types and what chooses the ops
TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


@pytest.mark.parametrize(("kind", "name"), [
    ("SGD", "accum_type"), ("SGD", "velocity_accum_type"),
    *((kind, name) for kind in ("Adam", "AdamW", "RMSprop", "LAMB") for name in TYPES),
])
@pytest.mark.parametrize("first", [torch.float32, torch.float16])
def test_the_types_of_a_program_stay_until_it_is_destroyed(kind: str, name: str, first: torch.dtype) -> None:
    second = torch.float16 if first == torch.float32 else torch.float32
    make = getattr(optim, kind)
    step, optimizer = trained(lambda p: make(p, lr=0.1, **{name: first}))
    other = make(step.model.parameters(), lr=0.1, **{name: second})
    setattr(optimizer, name, second)
    for changed in (optimizer, other):
        with pytest.raises(ValueError, match=f"{name}={second} cannot be set: the model is already compiled with"):
            step.setOptimizer(changed)
    setattr(optimizer, name, first)
    step.setOptimizer(optimizer)  # nothing is lost
    step(*BATCH)
    step.destroy()
    step.setOptimizer(other)
    step(*BATCH)


@pytest.mark.parametrize(("make", "name", "value"), [
    (lambda p, **more: optim.SGD(p, lr=0.1, momentum=0.9, **more), "use_combined_accum", True),
    (lambda p, **more: optim.SGD(p, lr=0.1, **more), "max_grad_norm", 1.0),
    (lambda p, **more: optim.AdamW(p, lr=0.1, **more), "max_grad_norm", 2.5),
    (lambda p, **more: optim.AdamW(p, lr=0.1, **more), "bias_correction", False),
    (lambda p, **more: optim.RMSprop(p, lr=0.1, **more), "use_tf_variant", True),
])
def test_what_chooses_the_ops_of_a_program_stays_until_it_is_destroyed(make: Any, name: str, value: Any) -> None:
    step, _ = trained(make)
    other = make(step.model.parameters(), **{name: value})
    with pytest.raises(poptorch.Error, match=f"constant optimizer value: {name} was .* is {value}.*destroy"):
        step.setOptimizer(other)
    step.destroy()
    step.setOptimizer(other)
    step(*BATCH)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
@pytest.mark.parametrize("package", [optim, torch.optim])
def test_a_subclass_is_told_that_its_python_is_not_run(
    kind: str, package: Any, capsys: pytest.CaptureFixture[str],
) -> None:
    base = getattr(package, kind, optim.LAMB)

    class Mine(base):  # type: ignore[misc,valid-type]
        def step(self, closure: Any = None) -> None:
            raise AssertionError("run on the host")

    model = Classifier()
    poptorch.trainingModel(model, options(), Mine(model.parameters(), lr=0.1))(*BATCH)
    assert capsys.readouterr().err.count("Poptorch does not run Python optimizer code directly") == 1


def test_the_names_of_attributes_can_be_listed() -> None:
    for kind in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB"):
        attributes = getattr(optim, kind)(Classifier().parameters(), lr=0.1).variable_attrs
        assert "lr" in attributes._allowed_attributes
        for name in attributes._allowed_attributes:
            attributes.markAsVariable(name)
            assert not attributes.isConstant(name)
