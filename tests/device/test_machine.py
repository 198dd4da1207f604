"""Whole training calls on the machine, against eager PyTorch in float64."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops import scan, while_loop

import torchipu
from mnist_pipelined import PipelinedNetwork
from tests.device.trained import Classifier, Trained
from torchipu import TensorLocation
from torchipu.device.machine import Machine
from torchipu.emulation.eager import evaluate

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


@functools.cache
def trained(ipus: tuple[int, ...] = (0,), optimizer: Any = SGD, **options: Any) -> Trained:
    """Compile a training, once for all tests: machines begin with its weights and leave them as they are."""
    torch.manual_seed(1)
    settings = torchipu.Options(**{"gradient_accumulation": 1, **options})
    samples = 2 * settings.gradient_accumulation * settings.replicas * settings.device_iterations
    return Trained(Chain(ipus), optimizer, settings, (torch.randn(samples, 5), torch.randint(0, 5, (samples,))))


def close(run: Trained, seed: int = 0) -> None:
    found, expected = run.by_machine(seed=seed), run.by_eager()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


THREE = {"ipus": (0, 1, 2), "gradient_accumulation": 6}
PHASES = {"ipus": (0, 0, 0), "gradient_accumulation": 2, "execution": "serial_phased"}
OFF = TensorLocation(on_chip=False, min_elements_off_chip=0)
SHARED = TensorLocation(replicated_sharding=True, min_elements_sharding=0)
OFF_AND_SHARED = TensorLocation(
    on_chip=False, min_elements_off_chip=0, replicated_sharding=True, min_elements_sharding=0,
)
ALL_SHARED = {"weight_location": SHARED, "accumulator_location": SHARED, "optimiser_state_location": SHARED}

CASES: dict[str, dict[str, Any]] = {
    "one ipu": {},
    "accumulation": {"gradient_accumulation": 4},
    "device iterations": {"gradient_accumulation": 2, "device_iterations": 3},
    "adamw": {"optimizer": ADAMW, "device_iterations": 3},
    "replicas": {"replicas": 4, "gradient_accumulation": 2},
    "pipelined": THREE,
    "pipelined over replicas": {"ipus": (0, 1), "gradient_accumulation": 3, "device_iterations": 2, "replicas": 2},
    "back to the first": {"ipus": (0, 1, 0), "gradient_accumulation": 6},
    "sharded": {"ipus": (0, 1, 2), "gradient_accumulation": 3, "execution": "sharded"},
    "1f1b": {**THREE, "execution": "1f1b"},
    "interleaved": {"ipus": (0, 1, 0, 1), "gradient_accumulation": 8, "execution": "interleaved"},
    "phases": PHASES,
    "phases on two": {**PHASES, "ipus": (0, 1, 0, 1), "execution": "parallel_phased"},
    "phases that leave all on chip": {**PHASES, "liveness": "always_live"},
    "phases that wait for the backward": {**PHASES, "liveness": "off_chip_after_forward"},
    "phases with a backward of their own": {**PHASES, "separate_backward_phase": True},
    "nothing recomputed": {**THREE, "recompute": "none"},
    "one block recomputed": {**THREE, "recompute": ("stage1",)},
    "activations off chip": {**THREE, "activation_location": OFF},
    "activations off chip, nothing recomputed": {**THREE, "activation_location": OFF, "recompute": "none"},
    "activations off chip, sharded": {**THREE, "activation_location": OFF, "execution": "sharded"},
    "weights off chip": {**THREE, "weight_location": OFF},
    "accumulators off chip": {**THREE, "accumulator_location": OFF},
    "states off chip": {"optimizer": ADAMW, "offload_optimiser_state": True, "device_iterations": 2},
    "all off chip": {**THREE, "weight_location": OFF, "accumulator_location": OFF, "optimiser_state_location": OFF,
                     "activation_location": OFF, "device_iterations": 2},
    "states shared out": {"replicas": 4, "optimizer": ADAMW, "optimiser_state_location": SHARED},
    "states shared out off chip": {"replicas": 2, "optimizer": ADAMW, "optimiser_state_location": OFF_AND_SHARED},
    "weights shared out": {**THREE, "replicas": 2, "weight_location": SHARED, "device_iterations": 2},
    "accumulators shared out": {**THREE, "replicas": 2, "accumulator_location": SHARED, "device_iterations": 2},
    "all shared out": {**THREE, "replicas": 2, "optimizer": ADAMW, "device_iterations": 2, **ALL_SHARED},
    "loss scale": {**THREE, "loss_scaling": 64.0},
    "clipped by norm": {**THREE, "replicas": 2, "max_grad_norm": 0.05},
    "clipped by value": {**THREE, "max_grad_value": 0.01},
    "clipped by norms of shares": {"replicas": 2, "max_grad_norm": 0.05, "optimiser_state_location": SHARED},
    "clipped by norms of shared accumulators": {"replicas": 2, "max_grad_norm": 0.05, "accumulator_location": SHARED},
    "streams beside computation": {"gradient_accumulation": 4, "io_tiles": 32,
                                   "overlap_inputs": "device_iteration_loop", "overlap_outputs": "accumulation_loop"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_trains_as_eager_does(case: str) -> None:
    close(trained(**CASES[case]))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_order_ipus_run_in(seed: int) -> None:
    close(trained((0, 1, 2, 3), gradient_accumulation=8), seed)


# ---------------------------------------------------------------------- other models
class Images(torch.nn.Module):
    """Convolutions with batch normalisation on two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.second = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(64, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("first", ipu_id=0):
            x = self.first(x)
        with torchipu.Block("second", ipu_id=1):
            return torch.nn.functional.cross_entropy(self.second(x), target)


class Words(torch.nn.Module):
    """An embedding on the first IPU whose weight is that of the head on the last."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, 6)
        self.mixing = torch.nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("words", ipu_id=0):
            x = self.words(tokens)
        with torchipu.Block("mixing", ipu_id=1):
            x = x + self.mixing(x, x, x, need_weights=False)[0]
        with torchipu.Block("head", ipu_id=0):
            return torch.nn.functional.cross_entropy((x @ self.words.weight.T).flatten(0, 1), target.flatten())


def test_convolutions_and_normalisation_train_as_in_eager() -> None:
    torch.manual_seed(2)
    options = torchipu.Options(gradient_accumulation=4, device_iterations=2)
    close(Trained(Images(), SGD, options, (torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,)))))


@pytest.mark.parametrize("execution", ["pipelined", "sharded"])
def test_a_weight_that_two_stages_share_trains_as_in_eager(execution: str) -> None:
    torch.manual_seed(3)
    options = torchipu.Options(gradient_accumulation=6, execution=execution)
    tokens = torch.randint(0, 11, (12, 5))
    close(Trained(Words(), ADAMW, options, (tokens, tokens.roll(1, 1))))


class Digits(torch.nn.Module):
    """The demo's network, on four IPUs; gives its loss alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PipelinedNetwork()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x, target)[1]
        return loss


def test_the_demo_trains_as_in_eager() -> None:
    torch.manual_seed(5)
    options = torchipu.Options(gradient_accumulation=8)
    run = Trained(Digits(), ADAMW, options, (torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))))
    assert run.executable.num_ipus == 4
    close(run)


def test_hyper_parameters_are_not_shared_out_with_a_weight_of_as_many_elements() -> None:
    """There are 16 of them, as the first bias has elements."""

    torch.manual_seed(6)
    wide = Classifier(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    options = torchipu.Options(replicas=2, gradient_accumulation=2, optimiser_state_location=SHARED)
    close(Trained(wide, ADAMW, options, (torch.randn(8, 5), torch.randint(0, 3, (8,)))))


# ---------------------------------------------------------------------- loops and branches
class Gated(torch.nn.Module):
    """A loop over rows that carries a state and stacks results, and a branch on what it ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
            following = torch.tanh(self.first(carry) + row)
            return following, following * 2

        rows = x.movedim(1, 0)
        last, all_of_them = scan(step, torch.zeros_like(rows[0]), rows)
        chosen = torch.cond(last.sum() > 0, lambda a: a.sin(), lambda a: a * 3, (last,))
        return self.second(chosen + all_of_them.mean(0)).square().mean()


@pytest.mark.parametrize("offset", [-1.0, 1.0])
def test_loops_over_rows_and_branches_train_as_in_eager(offset: float) -> None:
    torch.manual_seed(4)
    options = torchipu.Options(gradient_accumulation=2, device_iterations=2)
    close(Trained(Gated(), SGD, options, (torch.randn(8, 5, 6) + offset,)))


class Halving(torch.nn.Module):
    """A loop whose body is a single op, as often as a test says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda a: a.abs().sum() > 1, lambda a: (a * 0.5,), (x,))[0]


def test_a_loop_ends_when_its_test_says_so() -> None:
    x = torch.randn(3, 4)
    step = torchipu.InferenceStep(Halving())
    step.compile(x)
    machine = Machine(step.compiled.executable, evaluate, lambda *_: x.double().numpy())
    built = step._built
    assert built is not None
    machine.load({tensor.name: value.double().numpy() for tensor, value in built.capture.constants.items()})
    machine.run()
    expected = x.double()
    while expected.abs().sum() > 1:
        expected = expected * 0.5
    (found,) = machine.results.values()
    np.testing.assert_allclose(found[0], expected.numpy(), 1e-12)
