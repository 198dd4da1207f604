"""`TrainingStepper`: trains a model on the CPU and as a program side by side, and compares them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torchipu import poptorch


class TrainingStepper:
    """Trains two copies of a model on the same batches, one eagerly and one as a program.

    Args:
        model: Returns its results and a loss, the loss last; it is copied.
        lr: Learning rate.
        optimizer: Makes an optimiser of parameters and ``lr``: of poptorch.optim or torch.optim.
        options: Of the program; one replica and micro-batch a step, since the CPU takes a batch as it is.
        rtol: Relative tolerance of losses and weights.
        atol: Absolute tolerance of losses and weights.
        enable_fp_exception: Stop at the first overflow or invalid value of the program.

    Attributes:
        cpu_model: Trained eagerly.
        ipu_model: Its weights are those of the program after each comparison.
        training_model: The program.
    """

    def __init__(
        self, model: torch.nn.Module, lr: float = 0.001,
        optimizer: Callable[..., torch.optim.Optimizer] = poptorch.optim.Adam, options: poptorch.Options | None = None,
        rtol: float = 1e-4, atol: float = 1e-4, enable_fp_exception: bool = True,
    ) -> None:
        self.rtol, self.atol = rtol, atol
        self.cpu_model = copy.deepcopy(model).train()
        self.ipu_model = copy.deepcopy(model).train()
        self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr)
        options = (options or poptorch.Options()).clone()
        options.Precision.enableFloatingPointExceptions(enable_fp_exception)
        self.training_model = poptorch.trainingModel(
            self.ipu_model, options, optimizer(self.ipu_model.parameters(), lr=lr)
        )

    def run(self, num_steps: int, batch: Any) -> None:
        """Train on a batch, and compare the loss of each step and the weights in the end.

        Args:
            num_steps: Steps of training.
            batch: An argument of the model, or a tuple or list of arguments.

        Raises:
            AssertionError: They differ by more than the tolerances.
        """
        for step in range(num_steps):
            expected, found = self._step_on_cpu(batch), self._step_on_ipu(batch)
            torch.testing.assert_close(
                found, expected, rtol=self.rtol, atol=self.atol, check_dtype=False,
                msg=partial(_named, f"loss of step {step}"),
            )
        self.check_parameters()

    def check_parameters(self) -> None:
        """Compare the weights of both copies.

        Raises:
            AssertionError: They differ by more than the tolerances.
        """
        self.training_model.copyWeightsToHost()
        expected = dict(self.cpu_model.named_parameters())
        for name, found in self.ipu_model.named_parameters():
            torch.testing.assert_close(
                found, expected[name], rtol=self.rtol, atol=self.atol, msg=partial(_named, name),
            )

    def _step_on_cpu(self, batch: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.cpu_model(*_arguments(batch))[-1]
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _step_on_ipu(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.training_model(*_arguments(batch))[-1]
        return loss.reshape(())


def _named(name: str, text: str) -> str:
    return f"{name}: {text}"


def _arguments(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
