"""Models whose parts were made by TorchScript or wrapped by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

X = torch.randn(2, 3)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, X)])
def test_parts_of_torchscript_run_unless_they_hold_parameters(make: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), make(nn.SiLU()))
    torch.testing.assert_close(poptorch.inferenceModel(model)(X), model(X).detach())
    scripted = nn.Sequential(make(nn.Linear(3, 3)))
    for wrap in (poptorch.inferenceModel, poptorch.trainingModel):
        with pytest.raises(poptorch.Error, match=r"The module 0 was made by torch.jit.script .* Use the module"):
            wrap(scripted)


def test_a_module_that_torch_compile_has_wrapped_runs_as_it_was_written() -> None:
    layer: Any = nn.Linear(3, 3)
    expected = layer(X).detach().tanh()
    compiled: Any = torch.compile(layer, backend="eager")
    model = nn.Sequential(compiled, nn.Tanh())
    torch.testing.assert_close(poptorch.inferenceModel(model)(X), expected)
    torch.testing.assert_close(poptorch.inferenceModel(compiled)(X).tanh(), expected)
