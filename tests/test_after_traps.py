"""A call that stops halfway, by an index or an assertion, leaves weights, buffers, optimiser and generator alone."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchipu
from torchipu import InferenceStep, Options, TrainStep, poptorch
from torchipu.host.kept_states import written_before_the_end
from torchipu.ir.graph import Graph

Call = Callable[[Tensor, Tensor], Any]
CLASSES = 5


class Counting(nn.Module):
    """Counts what it sees in buffers, drops at random, and looks its targets up last.

    Args:
        block: Places the two halves, if they are to be placed.
        asserts: Whether it asserts that targets are classes; else the look-up refuses them.
    """

    def __init__(self, block: Any, asserts: bool) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)
        self.register_buffer("seen", torch.zeros(4))
        self.block, self.asserts = block, asserts

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        with self._within("body", 0):
            hidden = F.dropout(torch.relu(self.norm(self.body(x))), 0.3)
            self.seen.add_(hidden.detach().mean(0))
        with self._within("head", 1):
            result = self.head(hidden)
            if self.asserts:
                torch._assert_async((target < CLASSES).all(), "too large")
                target = target.clamp(max=CLASSES - 1)
            return result, poptorch.identity_loss(F.cross_entropy(result, target), "none")

    def _within(self, name: str, ipu: int) -> Any:
        return contextlib.nullcontext() if self.block is None else self.block(name, ipu_id=ipu)


def batch(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 3, generator=generator)
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def of_training_step(model: nn.Module, more: dict[str, Any]) -> Call:
    return TrainStep(model, optimiser(model), options=Options(broadcast_buffers=False, **more))


def of_inference_step(model: nn.Module, more: dict[str, Any]) -> Call:
    return InferenceStep(model, Options(broadcast_buffers=False, **{**more, "gradient_accumulation": 1}))


def of_poptorch(more: dict[str, Any], accumulation: int) -> poptorch.Options:
    options = poptorch.Options()
    options.deviceIterations(more.get("device_iterations", 1)).replicationFactor(more.get("replicas", 1))
    options.broadcastBuffers(False).randomSeed(5)
    options.Training.gradientAccumulation(accumulation)
    if more.get("execution") == "sharded":
        options.setExecutionStrategy(poptorch.ShardedExecution())
    return options


def of_poptorch_training(model: nn.Module, more: dict[str, Any]) -> Call:
    return poptorch.trainingModel(model, of_poptorch(more, more["gradient_accumulation"]), optimiser(model))


def of_poptorch_inference(model: nn.Module, more: dict[str, Any]) -> Call:
    return poptorch.inferenceModel(model, of_poptorch(more, 1))


def of_compile(model: nn.Module, more: dict[str, Any]) -> Call:
    torch._dynamo.reset()
    run, updates = torch.compile(model, backend="ipu"), optimiser(model)

    def call(x: Tensor, target: Tensor) -> Any:
        updates.zero_grad()
        result, loss = run(x, target)
        loss.backward()
        updates.step()
        return result, loss

    return call


PLACED: dict[str, dict[str, Any]] = {
    "several micro-batches": {"gradient_accumulation": 2},
    "several updates": {"gradient_accumulation": 2, "device_iterations": 2},
    "replicas": {"gradient_accumulation": 2, "device_iterations": 2, "replicas": 2},
    "pipeline": {"gradient_accumulation": 4, "device_iterations": 4},
    "shards": {"gradient_accumulation": 2, "device_iterations": 2, "execution": "sharded"},
    "tiles": {"gradient_accumulation": 2, "device_iterations": 2, "executor": "tiles"},
}
DOORS = [of_training_step, of_inference_step, of_poptorch_training, of_poptorch_inference]
CASES = [(door, name) for door in DOORS for name in PLACED if name != "tiles" or door is of_training_step]


def held(call: Call, model: nn.Module) -> dict[str, Tensor]:
    if isinstance(call, poptorch.PoplarExecutor):
        call.copyWeightsToHost()
    return copy.deepcopy(dict(model.state_dict()))


@pytest.mark.parametrize("asserts", [False, True])
@pytest.mark.parametrize(("door", "name"), [*CASES, (of_compile, "several micro-batches")])
def test_what_follows_is_as_if_it_had_not_been(door: Callable[..., Call], name: str, asserts: bool) -> None:
    more = PLACED[name]
    is_poptorch = door in (of_poptorch_training, of_poptorch_inference)
    is_inference = door in (of_inference_step, of_poptorch_inference)
    block = (poptorch.Block if is_poptorch else torchipu.Block) if name in ("pipeline", "shards") else None
    each = 4 * (1 if is_inference else more["gradient_accumulation"])
    samples = each * more.get("device_iterations", 1) * more.get("replicas", 1)
    torch.manual_seed(0)
    model = Counting(block, asserts)
    models, found = [model, copy.deepcopy(model)], []
    for fails, one in zip((True, False), models, strict=True):
        torch.manual_seed(1)
        call = door(one, more)
        call(*batch(0, samples))
        if fails:
            before = torch.get_rng_state()
            x, target = batch(1, samples)
            target[-1] = CLASSES + 2
            with pytest.raises((torchipu.IpuError, poptorch.Error), match="too large" if asserts else "out of range"):
                call(x, target)
            assert torch.equal(torch.get_rng_state(), before)
        results = call(*batch(2, samples))
        found.append((tuple(result.detach() for result in results), held(call, one)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_weights_are_kept_for_several_updates_alone() -> None:
    step = TrainStep(model := Counting(None, False), optimiser(model), options=Options())
    step(*batch(0, 4))
    graph: Graph = step.compiled.graph
    buffers = {"seen", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert {state.name for state in written_before_the_end(graph, 1)} <= buffers
    assert {state.name for state in written_before_the_end(graph, 2)} > buffers - {"norm.num_batches_tracked"}
