"""``torch.ops.poptorch``: the same operators as those of the package."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from torchipu import poptorch


def test_operators_are_there_below_torch_ops() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x = torch.ops.poptorch.recomputation_checkpoint(torch.ops.poptorch.nop(x))
        x = torch.ops.poptorch.set_available_memory(x @ x, 0.3)
        return torch.ops.poptorch.internal_cast(x, "FLOAT16")

    step = poptorch.inferenceModel(forward)
    result = step(torch.eye(2))
    assert result.dtype is torch.float16
    assert torch.equal(result.float(), torch.eye(2))
    assert {"Nop", "Checkpoint"} <= {op["type"] for op in json.loads(step._debugGetPopartIR())["maingraph"]}


@pytest.mark.parametrize(("reduction", "expected"), [(0, 6.0), (1, 3.0)])
def test_the_reduction_of_a_loss_goes_by_its_number(reduction: int, expected: float) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.poptorch.identity_loss(x * self.weight, reduction)

    model = Model()
    loss = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=1.0))(torch.full((2,), 3.0))
    assert loss.item() == expected
    torch.testing.assert_close(model.weight.detach(), torch.full((2,), 1 - expected / 2))
