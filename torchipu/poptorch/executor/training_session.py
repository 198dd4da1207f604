"""The device side of a training executor: its optimiser and its loss scale besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

import torch

from torchipu.capture.captured import Captured
from torchipu.capture.gradient_scaling import LOSS_SCALE
from torchipu.capture.tracked_gradients import of_names
from torchipu.ir.graph import Tensor
from torchipu.poptorch.executor.session import Session
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.reports.anchors import tensor_names
from torchipu.step import TrainStep


class TrainingSession(Session, TrainStep):
    """A training program on the device."""

    ignores_own_step = True  # with a warning, when the model is wrapped
    always_damps = True

    def _compile(self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Any) -> None:
        super()._compile(arguments, keywords, progress)
        self._refresh()

    def _refresh(self) -> None:
        """Read hyper-parameters anew, but only at `take_optimiser`: until then the device keeps its own."""
        if not self.is_refreshed:
            super()._refresh()
            self.is_refreshed = True

    def _tracked(self, capture: Captured) -> tuple[Tensor, ...]:
        """Return the gradients that automatic loss scaling looks at; tensors may have the names of PopART too."""
        named = self.options.loss_scale_tensors
        if named is None:
            return super()._tracked(capture)
        return of_names(capture.graph, capture.gradients, named, tensor_names(capture.graph, capture.gradients))

    def set_loss_scale(self, scale: float) -> None:
        """Let automatic loss scaling go on from a scale.

        Raises:
            Error: It is not a positive number.
        """
        if not 0 < scale < float("inf"):
            raise createPoptorchError(
                f"Automatic loss scaling cannot go on from a scale of {scale}: load the state of an optimiser whose "
                "lossScaling_FLOAT times lossScaleUpdateFactor is a positive number, such as one saved before"
            )
        self._loss_scale.fill_(scale)
        self.upload(resident for resident in self.states if resident.host is self._loss_scale)

    def _current_scale(self) -> float:
        # That of the device: the host's is as old as the last download.
        if not self.options.automatic_loss_scaling or self.must_upload or self.capture.loss_scale is None:
            return super()._current_scale()
        return float(self.state_named(LOSS_SCALE))

    def take_optimiser(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the values of an optimiser from the next run on, and its states where they are other tensors now.

        Raises:
            OptionsError: The optimiser is of another kind than the one the program was compiled with.
        """
        is_replaced = optimizer is not self.optimizer or getattr(optimizer, "ipu_state_is_dirty", False)
        if self._built is not None and (is_replaced or self.changes_scale(optimizer)):
            self._rescale(optimizer)
            self._replace_optimiser(optimizer)
        self.optimizer = optimizer
        self.is_refreshed = False
        if self._bound is not None:
            self._refresh()  # what the user changes later is not meant for the next run

    def changes_scale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimiser asks for another factor on the loss than the program has."""
        scaling = getattr(optimizer, "loss_scaling", None)
        is_fixed = not self.options.automatic_loss_scaling and scaling is not None
        return is_fixed and float(scaling) != self.options.loss_scaling  # type: ignore[arg-type]

    def _rescale(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the backward begin from the factor of an optimiser."""
        assert self._built is not None
        if self.changes_scale(optimizer):
            capture, scaling = self._built.capture, float(optimizer.loss_scaling)  # type: ignore[attr-defined]
            self.options = dataclasses.replace(self.options, loss_scaling=scaling)
            if capture.loss_scale is not None:
                capture.constants[capture.loss_scale].fill_(self.options.backward_scale)

    def _replace_optimiser(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._built is not None and self._built.optimiser is not None
        built, before = self._built, self._built.optimiser
        capture = built.capture
        # The gradients are only names here: the ops exist already.
        gradients = {name: tensor for name, tensor in capture.parameters.items() if name in capture.gradients}
        scale = next((state for state in built.states if state.name == LOSS_SCALE), None)
        loaded = {id(value) for state in optimizer.state.values() for value in state.values()}
        after = self._scaled(self._import(optimizer, capture, gradients), gradients.values(), scale)
        pairs = list(zip(before.inputs, after.inputs, strict=False))
        if [op.target for op in after.ops] != [op.target for op in before.ops] or any(
            one.name != other.name for one, other in pairs
        ):
            raise createPoptorchError("The optimiser is of another kind than the one that the model was compiled with.")
        # The program knows the tensors of the first optimiser; the host's values are those of the new one.
        hosts = {one: after.host[other] for one, other in pairs}
        _keep_states(before.host, hosts, loaded)
        self._mirror(hosts)
        values = {
            one: after.hyperparameters[other] for one, other in pairs if other in after.hyperparameters
        }
        optimiser = dataclasses.replace(before, host=hosts, hyperparameters=values, refresh=after.refresh)
        self._built = dataclasses.replace(built, optimiser=optimiser, states={**built.states, **hosts})
        self.upload(self.states)


def _keep_states(
    before: Mapping[Tensor, torch.Tensor | None], after: Mapping[Tensor, torch.Tensor | None], loaded: Set[int],
) -> None:
    """Give an optimiser the states of the one before it: the device keeps them unless others were loaded.

    Args:
        before: States of the one before, of which the host's are up to date.
        after: Those of the other one, which are written.
        loaded: Ids of those that it had already.
    """
    with torch.no_grad():
        for tensor, state in after.items():
            kept = before.get(tensor)
            if state is not None and kept is not None and id(state) not in loaded:
                state.copy_(kept)
