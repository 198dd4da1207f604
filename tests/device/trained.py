"""A training step on the machine beside the same training by eager PyTorch in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import torchipu
from torchipu.capture.built import Built
from torchipu.device.machine import Machine
from torchipu.device.tiles.machine import TileMachine
from torchipu.emulation.eager import evaluate
from torchipu.emulation.loading import machine_of
from torchipu.emulation.tiles import tile_machine
from torchipu.ir.program import Executable


class Classifier(torch.nn.Module):
    """Layers one after the other, with the loss of the classes that they give.

    Args:
        layers: Give ``[N, classes]``.
    """

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(x), target)


@dataclass
class Trained:
    """A compiled step, with what the machine needs of it.

    Attributes:
        model: As it was before.
        step: Compiled, and not run.
        options: Of the step.
        batch: Of a whole call.
    """

    model: torch.nn.Module
    optimizer: Any
    options: torchipu.Options
    batch: tuple[torch.Tensor, ...]

    def __post_init__(self) -> None:
        model = copy.deepcopy(self.model)
        self.step = torchipu.TrainStep(model, self.optimizer(model.parameters()), self.options)
        self.step.compile(*self.batch)

    @property
    def executable(self) -> Executable:
        return self.step.compiled.executable

    @property
    def built(self) -> Built:
        assert self.step._built is not None
        return self.step._built

    def machine(self, executable: Executable | None = None, seed: int = 0) -> Machine:
        """Return a machine with the weights, states and inputs in place."""
        return machine_of(
            executable or self.executable, self.built, self.options, self.batch, self.options.gradient_accumulation,
            evaluate, seed,
        )

    def tile_machine(self, executable: Executable | None = None, seed: int = 0) -> TileMachine:
        """Return a machine of tiles with the weights, states and inputs in place."""
        return tile_machine(
            executable or self.executable, self.built, self.options, self.batch, self.options.gradient_accumulation,
            self.step.target, seed=seed,
        )

    def by_machine(self, executable: Executable | None = None, seed: int = 0) -> dict[str, np.ndarray]:
        """Return the weights after the machine has run the program."""
        machine = self.machine(executable, seed)
        machine.run()
        return self.weights(machine)

    def weights(self, machine: Machine) -> dict[str, np.ndarray]:
        """Return the weights that a machine has left."""
        states = machine.states()
        weights = {}
        for name, parameter in self.model.named_parameters():
            held = states[name]
            if held[0].size < parameter.numel():  # each replica has its share
                weights[name] = held.reshape(-1)[: parameter.numel()].reshape(parameter.shape)
                continue
            np.testing.assert_allclose(held, held[:1].repeat(len(held), 0), 1e-12, err_msg=f"replicas go apart: {name}")
            weights[name] = held[0]
        return weights

    def by_eager(self) -> dict[str, np.ndarray]:
        """Return the weights after eager PyTorch has trained in float64."""
        model = copy.deepcopy(self.model).double()
        optimizer = self.optimizer(model.parameters())
        pieces = self.options.gradient_accumulation * self.options.replicas
        chunks = [value.chunk(pieces * self.options.device_iterations) for value in self.batch]
        for number, micro_batch in enumerate(zip(*chunks, strict=True), start=1):
            given = [value.double() if value.is_floating_point() else value for value in micro_batch]
            (model(*given) / pieces).backward()
            if number % pieces == 0:
                if self.options.max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), self.options.max_grad_norm)
                if self.options.max_grad_value is not None:
                    torch.nn.utils.clip_grad_value_(model.parameters(), self.options.max_grad_value)
                optimizer.step()
                optimizer.zero_grad()
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
