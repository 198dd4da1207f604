"""Whole training calls on the machine, against eager PyTorch in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import torchipu
from tests.device.trained import Trained

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAMW = partial(torch.optim.AdamW, lr=0.01)


class Chain(torch.nn.Module):
    """Layers on as many IPUs as wanted, the loss on the last.

    Args:
        ipus: Of each stage.
    """

    def __init__(self, ipus: tuple[int, ...]) -> None:
        super().__init__()
        self.ipus = ipus
        self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in ipus)
        self.norm = torch.nn.LayerNorm(5)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for number, (ipu, layer) in enumerate(zip(self.ipus, self.layers, strict=True)):
            with torchipu.Block(f"stage{number}", ipu_id=ipu):
                x = torch.nn.functional.gelu(layer(x)) + x
                if number == len(self.ipus) - 1:
                    return torch.nn.functional.cross_entropy(self.norm(x), target)
        raise AssertionError


def trained(ipus: tuple[int, ...] = (0,), optimizer: Any = SGD, **options: Any) -> Trained:
    torch.manual_seed(1)
    settings = torchipu.Options(**{"gradient_accumulation": 1, **options})
    samples = 2 * settings.gradient_accumulation * settings.replicas * settings.device_iterations
    return Trained(Chain(ipus), optimizer, settings, (torch.randn(samples, 5), torch.randint(0, 5, (samples,))))


def close(run: Trained, seed: int = 0) -> None:
    found, expected = run.by_machine(seed=seed), run.by_eager()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


CASES: dict[str, dict[str, Any]] = {
    "one ipu": {},
    "accumulation": {"gradient_accumulation": 4},
    "device iterations": {"gradient_accumulation": 2, "device_iterations": 3},
    "adamw": {"optimizer": ADAMW, "device_iterations": 3},
    "replicas": {"replicas": 4, "gradient_accumulation": 2},
    "pipelined": {"ipus": (0, 1, 2), "gradient_accumulation": 6},
    "pipelined again": {"ipus": (0, 1), "gradient_accumulation": 3, "device_iterations": 2, "replicas": 2},
    "sharded": {"ipus": (0, 1, 2), "gradient_accumulation": 3, "execution": "sharded"},
    "back to the first": {"ipus": (0, 1, 0), "gradient_accumulation": 6},
    "off-chip states": {"optimizer": ADAMW, "gradient_accumulation": 2, "offload_optimiser_state": True,
                        "device_iterations": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_trains_as_eager_does(case: str) -> None:
    close(trained(**CASES[case]))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_order_ipus_run_in(seed: int) -> None:
    close(trained((0, 1, 2, 3), gradient_accumulation=8), seed)
