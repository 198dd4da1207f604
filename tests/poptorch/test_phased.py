"""Phased execution: the same values, phases by number in the log, and which IPUs a phase may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.poptorch.models import eager_training, options, sgd, twin_of
from torchipu import poptorch
from torchipu.ir.types import Role


class Phases(nn.Module):
    """Three layers, each in a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"B{number}"):
                x = torch.tanh(layer(x))
                loss = None if target is None or number < 2 else F.mse_loss(x, target)
        return x if loss is None else (x, loss)


def parallel(*ipus: int) -> poptorch.ParallelPhasedExecution:
    phases = [poptorch.Phase(f"B{number}") for number in range(3)]
    strategy = poptorch.ParallelPhasedExecution(*phases)
    for number, ipu in enumerate(ipus):
        strategy.phase(number).ipus(ipu)
    return strategy


def serial(liveness: poptorch.Liveness = poptorch.Liveness.AlwaysLive) -> poptorch.SerialPhasedExecution:
    return poptorch.SerialPhasedExecution("B0", "B1", "B2").setTensorsLiveness(liveness)


@pytest.mark.parametrize("strategy", [
    lambda: serial(), lambda: serial(poptorch.Liveness.OffChipAfterEachPhase), lambda: parallel(0, 1, 0),
    lambda: parallel(2, 3, 0), lambda: parallel(), lambda: serial().useSeparateBackwardPhase(),
    lambda: poptorch.SerialPhasedExecution(poptorch.Phase(poptorch.Stage("B0"), poptorch.Stage("B1")).ipus(0, 1), "B2"),
])
def test_training_follows_eager(strategy: Callable[[], Any]) -> None:
    model = Phases()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(accumulation=2).setExecutionStrategy(strategy()), sgd(model))
    x, target = torch.randn(4, 4), torch.randn(4, 4)
    optimizer = sgd(twin)
    for _ in range(2):
        step(x, target)
        eager_training(twin, optimizer, (x, target), micro_batches=2)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize(("strategy", "words"), [
    (lambda: serial(), ["phases set to value 5", "B2", "phase(0)", "phase(2)", "phase(3)", "phase(4)"]),
    (lambda: serial().useSeparateBackwardPhase(), ["phases set to value 7", "phase(6)"]),
    (lambda: serial(poptorch.Liveness.OffChipAfterFwdNoOverlap), ["phases set to value 9", "phase(8)"]),
    (lambda: parallel(0, 3, 2), ["phases set to value 5", "ipu(3), phase(1)", "ipu(2), phase(2)", "ipu(3), phase(3)"]),
])
def test_the_log_numbers_phases(strategy: Any, words: list[str], debug_log: Callable[[], str]) -> None:
    model = Phases()
    step = poptorch.trainingModel(model, options().setExecutionStrategy(strategy()), sgd(model))
    step.compile(torch.randn(2, 4), torch.randn(2, 4))
    lines = debug_log()
    assert "mode(Phased)" in lines
    assert all(word in lines for word in words)


def test_inference_has_forward_phases_only(debug_log: Callable[[], str]) -> None:
    step = poptorch.inferenceModel(Phases(), options().setExecutionStrategy(parallel(0, 1, 0)))
    x = torch.randn(2, 4)
    torch.testing.assert_close(step(x), Phases()(x))
    lines = debug_log()
    assert "executionPhaseSettings.phases set to value 3" in lines
    assert "phase(3)" not in lines


@pytest.mark.parametrize(("strategy", "leaves"), [
    (lambda: serial(), False), (lambda: serial(poptorch.Liveness.OffChipAfterFwd), True),
    (lambda: serial(poptorch.Liveness.OffChipAfterEachPhase), True), (lambda: parallel(0, 1, 0), False),
    (lambda: parallel(0, 1, 0).sendTensorsOffChipAfterFwd(), True),
])
def test_liveness_says_whether_activations_leave_the_chip(strategy: Callable[[], Any], leaves: bool) -> None:
    model = Phases()
    step = poptorch.trainingModel(model, options().setExecutionStrategy(strategy()), sgd(model))
    step(torch.randn(8, 4), torch.randn(8, 4))
    variables = step._executable.compiled.executable.variables
    assert any(variable.off_chip and variable.role is Role.ACTIVATION for variable in variables) == leaves


def test_stages_of_a_phase_run_one_after_another_with_weights_off_chip() -> None:
    strategy = poptorch.ParallelPhasedExecution(poptorch.Phase(poptorch.Stage("B0"), poptorch.Stage("B1")), "B2")
    strategy.phase(0).ipus(2, 0)
    strategy.phase(1).ipus(3)
    step = poptorch.inferenceModel(Phases(), options().setExecutionStrategy(strategy))
    x = torch.randn(2, 4)
    torch.testing.assert_close(step(x), Phases()(x))
    compiled = step._executable.compiled
    ipus = [[ipu for ipu, cell in enumerate(row) if cell] for row in compiled.schedule.steps]
    assert ipus == [[2], [0], [3]]
    weights = [variable for variable in compiled.executable.variables if variable.name.endswith("weight")]
    assert weights
    assert all(variable.off_chip for variable in weights)


def test_stages_without_an_ipu_take_those_of_the_parity_of_their_phase() -> None:
    first = poptorch.Phase(poptorch.Stage("B0"), poptorch.Stage("B1"))
    settings = options().autoRoundNumIPUs().setExecutionStrategy(poptorch.ParallelPhasedExecution(first, ["B2"]))
    step = poptorch.inferenceModel(Phases(), settings)
    x = torch.randn(2, 4)
    torch.testing.assert_close(step(x), Phases()(x))
    assert [[ipu for ipu, cell in enumerate(row) if cell] for row in step._executable.compiled.schedule.steps] == [
        [0], [2], [1],
    ]


@pytest.mark.parametrize(("ipus", "words"), [
    ((1, 0, 1), "Phase 0 uses IPU 1, but in poptorch.ParallelPhasedExecution an even phase must use even IPUs"),
    ((0, 2, 0), "Phase 1 uses IPU 2, but in poptorch.ParallelPhasedExecution an odd phase must use odd IPUs"),
])
def test_phases_and_ipus_are_both_even_or_both_odd(ipus: tuple[int, ...], words: str) -> None:
    step = poptorch.inferenceModel(Phases(), options().setExecutionStrategy(parallel(*ipus)))
    with pytest.raises(poptorch.Error, match=words):
        step(torch.randn(2, 4))
