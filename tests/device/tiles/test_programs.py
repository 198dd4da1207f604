"""Whole training calls on the tiles, against eager PyTorch in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

import torchipu
from mnist_pipelined import PipelinedNetwork
from tests.device import test_machine as machine_tests
from tests.device.test_machine import CASES, trained
from tests.device.trained import Classifier, Trained
from torchipu.device.tiles.machine import TileMachine, runs_of


def close(run: Trained, seed: int = 0) -> None:
    """Hold the weights after a call to those of eager: float32 rounds each op, so that sums of few terms are close."""
    machine = run.tile_machine(seed=seed)
    machine.run()
    found, expected = run.weights(machine), run.by_eager()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_the_program_trains_as_eager_does(case: str) -> None:
    close(trained(**CASES[case]))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_order_ipus_run_in(seed: int) -> None:
    close(trained((0, 1, 2, 3), gradient_accumulation=8), seed)


class Loss(torch.nn.Module):
    """The demo's network, of which the loss is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.network = PipelinedNetwork()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.network(x, labels)[1]


@functools.cache
def demo() -> tuple[Trained, TileMachine, dict[str, np.ndarray]]:
    """Return the demo, the machine that has trained it, and the weights that it has left."""
    torch.manual_seed(1)
    batch = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    options = torchipu.Options(gradient_accumulation=8)
    run = Trained(Loss(), partial(torch.optim.SGD, lr=0.05, momentum=0.9), options, batch)
    machine = run.tile_machine()
    machine.run()
    weights = run.weights(machine)
    machine.forget_values()
    return run, machine, weights


def test_the_demo_trains_on_four_ipus_vertex_by_vertex() -> None:
    run, machine, weights = demo()
    for name, value in run.by_eager().items():
        np.testing.assert_allclose(weights[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    assert not machine.whole


IN_PARTS = {
    "matrices": (lambda: Classifier(torch.nn.Linear(2001, 7)), (300, 2001), 0.0005),
    "convolutions": (
        lambda: Classifier(torch.nn.Conv2d(3, 9, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(2025, 7)),
        (6, 3, 32, 32), 0.001,
    ),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_products_that_tiles_take_in_parts_train_as_in_eager(name: str) -> None:
    """Runs of a set go on from the sums of the last one, and another set adds up what the tiles have."""
    make, shape, memory = IN_PARTS[name]
    torch.manual_seed(1)
    options = torchipu.Options(available_memory={0: memory})
    batch = torch.randn(shape), torch.randint(0, 7, (shape[0],))
    run = Trained(make(), partial(torch.optim.SGD, lr=0.1), options, batch)
    runs = [found for function in run.executable.functions.values() for found in runs_of(function)]
    in_parts = {group.op for group, repeats in runs if repeats > 1}
    assert in_parts
    if name == "matrices":
        assert any(group.op in in_parts and group.number for group, _ in runs)
    machine_tests.close(run)
    close(run)


class Remembering(torch.nn.Module):
    """Keeps a value in a buffer, which one IPU reads; another, or the same, makes what it holds next."""

    def __init__(self, writer: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.randn(4, 6))
        self.layer = torch.nn.Linear(6, 6)
        self.writer = writer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("reading", ipu_id=0):
            y = self.kept * x
        with torchipu.Block("writing", ipu_id=self.writer):
            z = self.layer(y)
            self.kept.copy_(z)
            return z * 2


@pytest.mark.parametrize("writer", [0, 1])
def test_a_buffer_is_returned_to_the_ipu_where_it_lives(writer: int) -> None:
    model, eager = Remembering(writer), Remembering(writer)
    eager.load_state_dict(model.state_dict())
    options = torchipu.Options(executor="tiles", execution="sharded")
    step, x = torchipu.InferenceStep(model, options), torch.randn(4, 6)
    for _ in range(2):
        torch.testing.assert_close(step(x), eager(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.kept, eager.kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("show", [torch.clone, torch.flatten, torch.nn.Identity()], ids=["copy", "view", "itself"])
def test_a_program_that_computes_nothing_returns_what_it_is_given(
    show: Callable[[torch.Tensor], torch.Tensor], iterations: int,
) -> None:
    class Showing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return show(x)

    options = torchipu.Options(executor="tiles", device_iterations=iterations)
    x = torch.randn(4, 6)
    parts = [show(part) for part in x.chunk(iterations)]
    torch.testing.assert_close(torchipu.InferenceStep(Showing(), options)(x), torch.cat(parts), rtol=0, atol=0)
