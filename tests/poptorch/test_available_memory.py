"""How much of a tile's memory products and convolutions may use: less makes them smaller and slower, values stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import sgd
from torchipu import poptorch
from torchipu.ir.program import Execute, leaves_of

X = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 64, 16, 16, generator=torch.Generator().manual_seed(1))
MATRIX = ("mm", "addmm", "bmm", "convolution", "convolution_backward")


class Model(nn.Module):
    """A layer, a hint and a loss."""

    def __init__(self, layer: nn.Module, part: float | None) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.part = layer, part
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.1)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if self.part is not None:
            y = poptorch.set_available_memory(y, self.part)
        return poptorch.identity_loss(y.tanh(), "mean")


def run(model: Model, x: torch.Tensor, settings: dict[str, float] | None = None, training: bool = False) -> Any:
    """Run a model; return the loss, the cycles, the most temporary bytes of a product, and the parts of each."""
    options = poptorch.Options()
    options.logCycleCount(True)
    options._Popart.set("defaultBufferingDepth", 2)  # so that the host is not what such small models wait for
    if settings is not None:
        options.setAvailableMemoryProportion(settings)
    if training:
        step = poptorch.trainingModel(model, options, sgd(model))
    else:
        step = poptorch.inferenceModel(model, options)
    loss = step(x)
    compiled = step._executable.compiled
    sets = [leaf.compute_set for program in compiled.executable.functions.values() for leaf in leaves_of(program)
            if isinstance(leaf, Execute) and leaf.compute_set.op.kind in MATRIX]
    most = max(group.temporary_bytes for one in sets for group in one.groups)
    parts = [op.attrs.get("available_memory") for op in compiled.graph.ops if op.kind in MATRIX]
    return loss, step.cycleCount(), most, parts


@pytest.mark.parametrize(("layer", "x"), [
    (lambda: nn.Linear(1024, 1024), X), (lambda: nn.Linear(1024, 1024, bias=False), X.reshape(8, 32, 1024)),
    (lambda: nn.Conv2d(64, 64, 3), IMAGES), (lambda: nn.ConvTranspose2d(64, 64, 3, bias=False), IMAGES),
])
def test_less_memory_for_one_op_makes_it_smaller_and_slower(layer: Any, x: torch.Tensor) -> None:
    for training in (False, True):
        loss, cycles, most, parts = run(Model(layer(), None), x, training=training)
        assert set(parts) == {None}
        bounded = run(Model(layer(), 0.005), x, training=training)
        assert bounded[0].equal(loss)
        assert bounded[1] > cycles
        assert bounded[2] < most
        assert set(bounded[3]) == {0.005}  # in training, of the gradients too
        assert len(bounded[3]) >= 1 + training


def test_the_word_on_an_op_wins_over_that_on_its_ipu() -> None:
    of_ipu = run(Model(nn.Linear(1024, 1024), None), X, {"IPU0": 0.02})
    assert of_ipu[3] == [0.02]
    assert of_ipu[1:3] == run(Model(nn.Linear(1024, 1024), 0.02), X)[1:3]
    assert run(Model(nn.Linear(1024, 1024), 0.3), X, {"IPU0": 0.02})[3] == [0.3]
    assert run(Model(nn.Linear(1024, 1024), None), X, {"IPU1": 0.02})[3] == [None]


def test_the_word_on_what_no_product_made_is_lost() -> None:
    model = Model(nn.Tanh(), 0.1)
    step = poptorch.inferenceModel(model)
    torch.testing.assert_close(step(X), model(X).detach())
