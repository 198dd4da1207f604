"""Transfers beside the computation: values stay, cycles go down, and marks are only where they may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import sgd
from torchipu import poptorch

LOOP, NONE = poptorch.OverlapMode.OverlapDeviceIterationLoop, poptorch.OverlapMode.NoOverlap
X = torch.arange(32.0).reshape(8, 4)
of_input, of_output = poptorch.set_overlap_for_input, poptorch.set_overlap_for_output


def settings(tiles: int = 32, mode: Any = poptorch.OutputMode.All) -> poptorch.Options:
    """Return options under which transfers may overlap."""
    found = poptorch.Options().deviceIterations(4).outputMode(mode)
    found.logCycleCount(True)
    if tiles:
        found.TensorLocations.numIOTiles(tiles)
    return found


def test_marked_transfers_cost_less_and_move_the_same_values() -> None:
    layer = nn.Linear(512, 512)
    x = torch.randn(64, 512)
    cycles = []
    for mode in (NONE, LOOP):
        step = poptorch.inferenceModel(lambda x, mode=mode: of_output(layer(of_input(x, mode)), mode), settings())
        torch.testing.assert_close(step(x), layer(x).detach(), rtol=1e-4, atol=1e-4)
        cycles.append(step.cycleCount())
    plain = poptorch.inferenceModel(layer, settings())
    plain(x)
    assert cycles[0] == plain.cycleCount() > cycles[1]


def test_marks_keep_structures_and_do_nothing_without_a_wrapper() -> None:
    held = {"a": [X, (X, X)]}
    assert of_input(held, LOOP) is held
    step = poptorch.inferenceModel(lambda h: of_output({"b": of_input(h, LOOP)["a"][1][0] + 1}, LOOP), settings())
    got = step({"a": [X, (X * 2, X)]})
    assert list(got) == ["b"]
    assert got["b"].equal(X * 2 + 1)


def test_training_with_marks_trains() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(of_input(x, LOOP))
            return of_output(y, LOOP), poptorch.identity_loss(y.square(), "mean")

    model, twin = Model(4, 4), nn.Linear(4, 4)
    twin.load_state_dict(model.state_dict())
    options = settings()
    options.Training.gradientAccumulation(2)
    step = poptorch.trainingModel(model, options, sgd(model))
    optimizer = sgd(twin)
    expected = []
    for update in (X / 32).chunk(4):
        optimizer.zero_grad()
        expected.append(twin(update).detach())
        twin(update).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(step(X / 32)[0], torch.cat(expected))
    torch.testing.assert_close(model.weight, twin.weight)


def _twice(x: torch.Tensor) -> Any:
    y = of_output(x + 1, LOOP)
    return y, y


def _both(x: torch.Tensor) -> Any:
    y = x + 1
    return of_output(y, LOOP), of_output(y, LOOP)


@pytest.mark.parametrize(("model", "words"), [
    (lambda x: of_input(x + 1, LOOP), "set_overlap_for_input applied on a node which is not a tensor input to the mod"),
    (lambda x: of_input(x, LOOP) + x, "set_overlap_for_input must be the only op applied to an input"),
    (lambda x: (of_input(x, LOOP), of_input(x, NONE)), "must be the only op applied to an input"),
    (lambda x: of_output(x + 1, LOOP) * 2, "set_overlap_for_output applied on a node which is not a tensor output"),
    (_twice, "set_overlap_for_output cannot be used with a tensor that is returned twice"),
    (_both, "set_overlap_for_output cannot be used with a tensor that is returned twice"),
    (lambda x: of_input([x, 3], LOOP), "set_overlap_for_input must be given tensors .* not <class 'int'>"),
    (lambda x: of_output("x", LOOP), "set_overlap_for_output must be given tensors .* not <class 'str'>"),
])
def test_marks_elsewhere_are_refused(model: Any, words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model, settings())(X)


def test_options_must_leave_room_for_overlaps() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return of_input(x, LOOP) + 1

    with pytest.raises(poptorch.Error, match=r"No IO tiles allocated. You must allocate at least 32 IO tiles"):
        poptorch.inferenceModel(model, settings(0))(X)
    with pytest.raises(poptorch.Error, match="Unsupported output mode for overlapped IO"):
        poptorch.inferenceModel(model, settings(mode=poptorch.OutputMode.Final))(X)
    assert poptorch.inferenceModel(model, settings(mode=poptorch.OutputMode.Sum))(X).shape == (2, 4)

    def halves(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = of_input(x, LOOP) + 1
        with poptorch.Block("b", ipu_id=1):
            return x * 2

    with pytest.raises(poptorch.Error, match=r"not supported with poptorch.PipelinedExecution"):
        poptorch.inferenceModel(halves, settings())(X)
    sharded = settings()
    sharded.setExecutionStrategy(poptorch.ShardedExecution("a", "b"))
    assert poptorch.inferenceModel(halves, sharded)(X).equal((X + 1) * 2)


def test_modes_are_checked() -> None:
    with pytest.raises(AssertionError, match=r"must be a poptorch.OverlapMode"):
        of_input(X, "overlap_accumulation_loop")  # type: ignore[arg-type]
