"""Models with PopTorch's annotations are one graph of torch.compile and of a step too, where these say nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchipu
from torchipu import poptorch

X = torch.arange(24.0).square().sin().reshape(4, 6)


def blocks(x: Tensor) -> Tensor:
    with poptorch.Block("first", ipu_id=0):
        x = x * 2
    poptorch.Block.start("second", ipu_id=1)
    return poptorch.BlockFunction("third", ipu_id=2)(torch.tanh)(x)


def regions(x: Tensor) -> Tensor:
    with poptorch.autocast(), poptorch.Attribute(__outline={"layer": "one"}), poptorch.NameScope("name"):
        return x @ x.T


def hints(x: Tensor) -> Tensor:
    x = poptorch.nop(poptorch.ipu_print_tensor(x, "x"))
    x = poptorch.set_available_memory(x @ x.T, 0.3)
    x = poptorch.recomputationCheckpoint(x)
    return poptorch.serializedMatMul(x, x, poptorch.MatMulSerializationMode.OutputChannels, 2)


def overlaps(x: Tensor) -> Tensor:
    taken = poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapDeviceIterationLoop)
    return poptorch.set_overlap_for_output(taken + 1, poptorch.OverlapMode.OverlapDeviceIterationLoop)


def loops(x: Tensor) -> Tensor:
    return poptorch.for_loop(3, lambda y: [y * 2], [x])[0]


def choices(x: Tensor) -> Tensor:
    first = poptorch.cond(x.sum() > 0, lambda y: y * 2, [x], lambda y, z: y - z, [x, x + 1])[0]
    return first + poptorch.cond(x.sum() < 0, lambda y: [y], [x], lambda y: y.sin(), [x])[0]


def told(x: Tensor) -> Tensor:
    return poptorch.identity_loss(x * (3 if poptorch.isRunningOnIpu() else 2), "mean")


@pytest.mark.parametrize("function", [blocks, regions, hints, overlaps, loops, choices, told])
def test_annotations_are_traced(function: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", fullgraph=True)
    for given in (X, -X):
        torch.testing.assert_close(compiled(given), function(given), rtol=1e-5, atol=1e-6)


def test_a_block_begins_with_a_module_in_a_step() -> None:
    model = nn.Sequential(poptorch.BeginBlock(nn.Linear(6, 6), "body", ipu_id=0), nn.Linear(6, 2))
    torch.testing.assert_close(torchipu.InferenceStep(model)(X), model(X).detach())
