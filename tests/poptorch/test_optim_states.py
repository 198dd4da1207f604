"""States of optimisers by PopART's names: which there are, and what is written before a compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.poptorch.models import Classifier, batch, options
from torchipu import poptorch
from torchipu.poptorch import optim

BATCH = batch(4)
NAMES = [name for name, _ in Classifier().named_parameters()]


def wrapped(kind: str, settings: Any = None, **more: Any) -> tuple[Any, Any]:
    model = Classifier()
    optimizer = getattr(optim, kind)(model.parameters(), lr=0.1, **more)
    return poptorch.trainingModel(model, settings or options(), optimizer), optimizer


STATES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("SGD", {}, set()), ("SGD", {"momentum": 0.9}, {"Accl1"}),
    *((kind, {}, {"Accl1", "Accl2", "Step"}) for kind in ("Adam", "AdamW", "LAMB", "RMSprop")),
    ("RMSprop", {"centered": True}, {"Accl1", "Accl2", "Step"}),
    ("RMSprop", {"momentum": 0.9}, {"Accl1", "Accl2", "Accl3", "Step"}),
    ("RMSprop", {"momentum": 0.9, "centered": True}, {"Accl1", "Accl2", "Accl3", "Step"}),
]


@pytest.mark.parametrize(("kind", "arguments", "kinds"), STATES)
def test_states_are_there_from_the_compilation_on_and_come_back(
    kind: str, arguments: Any, kinds: set[str], capsys: pytest.CaptureFixture[str],
) -> None:
    step, optimizer = wrapped(kind, **arguments)
    assert optimizer.state_dict()["ipu_state"] is None
    step.compile(*BATCH)
    expected = {f"{state}___{name}" for state in kinds for name in NAMES}
    assert set(optimizer.state_dict()["ipu_state"]) == expected
    for _ in range(2):
        step(*BATCH)
    state = optimizer.state_dict()
    assert set(state["ipu_state"]) == expected
    other, second = wrapped(kind, **arguments)
    other.load_state_dict(step.state_dict())
    second.load_state_dict(state)
    assert "The optimizer state that is loaded" not in capsys.readouterr().err
    other.compile(*BATCH)
    for name, value in second.state_dict()["ipu_state"].items():
        assert torch.equal(value, state["ipu_state"][name]), name
    assert torch.equal(other(*BATCH)[1], step(*BATCH)[1])
    assert torch.equal(other(*BATCH)[1], step(*BATCH)[1])


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("kind", "arguments"), [
    *((kind, arguments) for kind, arguments, _ in STATES), ("SGD", {"momentum": 0.9, "use_combined_accum": True}),
])
def test_training_goes_on_from_a_state_loaded_before_or_after_the_compilation(
    kind: str, arguments: Any, is_compiled: bool,
) -> None:
    step, optimizer = wrapped(kind, **arguments)
    for _ in range(3):
        step(*BATCH)
    other, second = wrapped(kind, **arguments)
    other.load_state_dict(step.state_dict())
    if is_compiled:
        other.compile(*BATCH)
    second.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        assert torch.equal(other(*BATCH)[1], step(*BATCH)[1])


def test_the_states_of_rmsprop_are_those_that_torch_computes() -> None:
    for arguments in ({"centered": True, "momentum": 0.9}, {}):
        step, optimizer = wrapped("RMSprop", **arguments)
        twin = Classifier()
        reference = torch.optim.RMSprop(twin.parameters(), lr=0.1, **arguments)
        for _ in range(2):
            step(*BATCH)
            reference.zero_grad()
            twin(*BATCH)[1].backward()
            reference.step()
        found = optimizer.state_dict()["ipu_state"]
        for name, parameter in twin.named_parameters():
            mean = reference.state[parameter].get("grad_avg", torch.zeros_like(parameter))
            torch.testing.assert_close(found[f"Accl1___{name}"], mean)
            torch.testing.assert_close(found[f"Accl2___{name}"], reference.state[parameter]["square_avg"])


@pytest.mark.parametrize(("kind", "arguments", "kinds"), STATES[1:])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_what_is_missing_of_a_state_keeps_its_initial_value_with_a_warning(
    kind: str, arguments: Any, kinds: set[str], is_wrapped: bool, capsys: pytest.CaptureFixture[str],
) -> None:
    model = Classifier()
    optimizer = getattr(optim, kind)(model.parameters(), lr=0.1, **arguments)
    prefix = "Accl2" if "Accl2" in kinds else "Accl1"
    given = {f"{prefix}___head.bias": torch.full((3,), 7.0)}
    step = poptorch.trainingModel(model, options(), optimizer) if is_wrapped else None
    optimizer.load_state_dict({"ipu_state": given, "ipu_param": None})
    step = step or poptorch.trainingModel(model, options(), optimizer)
    told = capsys.readouterr().err
    assert told.count("The optimizer state that is loaded has no ") == 1
    step.compile(*BATCH)
    found = optimizer.state_dict()["ipu_state"]
    for name, value in found.items():
        assert (value == (7.0 if name in given else 0.0)).all(), name


def test_what_is_missing_when_a_program_is_there_stays_as_the_device_has_it() -> None:
    step, optimizer = wrapped("Adam")
    step(*BATCH)
    before = optimizer.state_dict()["ipu_state"]
    optimizer.load_state_dict({"ipu_state": {"Accl1___head.bias": torch.full((3,), 7.0)}, "ipu_param": None})
    after = optimizer.state_dict()["ipu_state"]
    assert (after.pop("Accl1___head.bias") == 7.0).all()
    for name, value in after.items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("choose", [
    lambda settings: settings.useOfflineIpuTarget(),
    lambda settings: settings.connectionType(poptorch.ConnectionType.Never),
])
def test_a_program_without_a_device_has_no_states(choose: Any) -> None:
    settings = options()
    choose(settings)
    step, optimizer = wrapped("Adam", settings)
    step.compile(*BATCH)
    state = optimizer.state_dict()
    assert (state["ipu_state"], state["ipu_param"]) == (None, None)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "LAMB"])
def test_the_factor_of_automatic_loss_scaling_is_a_state_from_the_compilation_on(kind: str) -> None:
    settings = options()
    settings.Training.setAutomaticLossScaling(True)
    settings.anchorTensor("scale", "finalLossScale")
    step, optimizer = wrapped(kind, settings, loss_scaling=16.0)
    step.compile(*BATCH)
    for _ in range(3):
        factor = optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"]
        step(*BATCH)
        assert step.getAnchoredTensor("scale") == 16.0 * factor
    plain, without = wrapped(kind, loss_scaling=16.0)
    plain.compile(*BATCH)
    assert "lossScaleUpdateFactor" not in without.state_dict()["ipu_state"]
