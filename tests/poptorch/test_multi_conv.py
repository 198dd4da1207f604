"""Convolutions of a MultiConv share the tiles: fewer cycles than one after another, and the same values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options, sgd
from torchipu import poptorch
from torchipu.device.lower.side_by_side import shares_of
from torchipu.ir.program import Execute, leaves_of

X = torch.randn(4, 8, 12, 12, generator=torch.Generator().manual_seed(0))
Scope = Callable[[], contextlib.AbstractContextManager[Any]]


def serial() -> poptorch.MultiConv:
    """Return a MultiConv whose convolutions run one after another."""
    return poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial)


class Branches(nn.Module):
    """Independent convolutions with ops between them, and a loss."""

    def __init__(self, scope: Scope, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(count))
        self.scope = scope

    def forward(self, x: torch.Tensor) -> Any:
        results = []
        with self.scope():
            for convolution in self.convolutions:
                results.append(convolution(x + len(results)).tanh())
        return poptorch.identity_loss(torch.stack(results).prod(0), "mean")


def run(scope: Scope, training: bool = False, count: int = 3) -> Any:
    """Return loss, cycles, weights and the executor after a call."""
    settings = options(1, 2 if training else 1)
    settings.logCycleCount(True)
    model = Branches(scope, count)
    step = poptorch.trainingModel(model, settings, sgd(model)) if training else poptorch.inferenceModel(model, settings)
    loss = step(X)
    return loss, step.cycleCount(), [p.detach().clone() for p in model.parameters()], step


def sets_of(step: Any) -> list[Any]:
    """Return the compute sets that hold convolutions."""
    functions = step._executable.compiled.executable.functions.values()
    executed = [leaf.compute_set for program in functions for leaf in leaves_of(program) if isinstance(leaf, Execute)]
    return [one for one in executed if one.op.kind.startswith("convolution")]


@pytest.mark.parametrize("training", [False, True])
def test_convolutions_side_by_side_are_faster_and_values_stay(training: bool) -> None:
    loss, cycles, weights, step = run(contextlib.nullcontext, training)
    for scope in (poptorch.MultiConv, lambda: poptorch.MultiConv().perConvReservedTiles(100).cycleBackOff(0.2)):
        together = run(scope, training)
        assert together[0].equal(loss)
        assert all(one.equal(other) for one, other in zip(together[2], weights, strict=True))
        assert together[1] < cycles
        assert max(len(one.groups) for one in sets_of(together[3])) == 3
    one_by_one = run(serial, training)
    assert one_by_one[1] == cycles
    assert max(len(one.groups) for one in sets_of(step)) == 1


def test_vertices_of_neighbours_lie_on_tiles_of_their_own() -> None:
    _, _, _, step = run(lambda: poptorch.MultiConv().perConvReservedTiles(200))
    first = next(one for one in sets_of(step) if len(one.groups) == 3)
    tiles = [set(group.runs.tiles) for group in first.groups]
    assert not tiles[0] & tiles[1]
    assert not (tiles[0] | tiles[1]) & tiles[2]
    assert [min(some) for some in tiles] == sorted(min(some) for some in tiles)


def test_tiles_are_shared_in_proportion_to_work() -> None:
    assert shares_of(1472, [300, 100], [1, 1]) == [1103, 368]
    assert shares_of(1472, [1000, 0], [50, 50]) == [1422, 50]
    assert shares_of(10, [1, 1], [6, 6]) is None


def written(x: torch.Tensor) -> torch.Tensor:
    """Write a value into a part of another one."""
    into = torch.zeros(len(x), 8, 12, 12)
    into[:, :, 1:] = x[:, :, 1:]
    return into


@pytest.mark.parametrize("between", [
    lambda x: x, lambda x: x.relu() + 1, lambda x: torch.cat([x, x], 1)[:, ::2], lambda x: torch.zeros_like(X).add_(x),
    written, lambda x: torch.max(x.flatten(2), dim=2, keepdim=True).values[..., None].expand(4, 8, 12, 12),
], ids=["itself", "function", "part", "in place", "written", "expanded"])
@pytest.mark.parametrize("scope", [poptorch.MultiConv, serial], ids=["parallel", "serial"])
def test_a_convolution_that_needs_another_one_is_refused(scope: Scope, between: Callable[..., Any]) -> None:
    class Chain(Branches):
        def forward(self, x: torch.Tensor) -> Any:
            first, second, third = self.convolutions
            with self.scope():
                y = second(x * 2)
                return y, third(between(first(x)))

    model = Chain(scope, 3)
    with pytest.raises(poptorch.Error, match=r"poptorch\.MultiConv: its convolution 3 depends on one before it"):
        poptorch.inferenceModel(model)(X)
    assert poptorch.MultiConv._active is None
    model(X)  # elsewhere than on the IPU nothing runs side by side


def test_a_convolution_of_what_another_one_behind_the_block_has_made_is_free() -> None:
    class Two(Branches):
        def forward(self, x: torch.Tensor) -> Any:
            with self.scope():
                y = self.convolutions[0](x) + self.convolutions[1](x)
            with self.scope():
                z = self.convolutions[0](y) * self.convolutions[1](y.tanh())
            return self.convolutions[2](z)

    model = Two(poptorch.MultiConv, 3)
    torch.testing.assert_close(poptorch.inferenceModel(model)(X), model(X).detach(), rtol=1e-4, atol=1e-4)


def test_each_convolution_has_memory_and_partials_of_its_own() -> None:
    def scope() -> poptorch.MultiConv:
        return poptorch.MultiConv().availableMemoryProportions([0.1, 0.2, 0.3]).partialsTypes(
            [torch.float, torch.half, torch.float],
        )

    model = Branches(scope).half()
    step = poptorch.inferenceModel(model)
    step(X.half())
    found = [op.attrs for op in step._executable.compiled.graph.ops if op.kind == "convolution"]
    assert [attrs["available_memory"] for attrs in found] == [0.1, 0.2, 0.3]
    assert [attrs["partials"] for attrs in found] == ["float", "half", "float"]


def test_regions_run_apart_on_the_ipus_of_a_pipeline() -> None:
    class Split(nn.Module):
        def __init__(self, scope: Scope) -> None:
            super().__init__()
            self.first, self.second = Branches(scope, 2), Branches(scope, 2)

        def forward(self, x: torch.Tensor) -> Any:
            with poptorch.Block("a", ipu_id=0):
                x = x * self.first(x)
            with poptorch.Block("b", ipu_id=1):
                return self.second(x)

    results = []
    for scope in (contextlib.nullcontext, poptorch.MultiConv):
        model = Split(scope)
        settings = options(1, 4)
        settings.setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))
        step = poptorch.trainingModel(model, settings, sgd(model))
        results.append((step(X), [p.detach().clone() for p in model.parameters()], step))
    assert results[0][0].equal(results[1][0])
    assert all(one.equal(other) for one, other in zip(results[0][1], results[1][1], strict=True))
    sets = [one for one in sets_of(results[1][2]) if len(one.groups) > 1]
    assert {one.ipu for one in sets} == {0, 1}
    assert all(len(one.groups) == 2 for one in sets)
