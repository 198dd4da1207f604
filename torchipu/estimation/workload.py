"""A model with its inputs, captured once and compiled as often as there are options."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.captured import Captured
from torchipu.capture.repeated_layers import captured_once
from torchipu.capture.stand_ins import has_values, stand_in_of
from torchipu.compiler import try_graph
from torchipu.errors import OptionsError
from torchipu.estimation.figures import Estimate, estimate_of
from torchipu.ir.graph import Graph
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.report.garbage import collected_seldom
from torchipu.step import InferenceStep, TrainStep
from torchipu.step.base import ProgramStep
from torchipu.step.seen import capture_key
from torchipu.target import lookup_target

LEARNING_RATE = 0.1  # of the SGD that stands for an optimiser: no cycle depends on it


@dataclass(slots=True)
class Workload:
    """A step, and what it is called with for one micro-batch.

    Attributes:
        step: Of training or inference; nothing of it is run.
        arguments: Of one micro-batch.
        keywords: Of one micro-batch.
        sizes: The same step with micro-batches of other sizes.
    """

    step: ProgramStep
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    sizes: dict[int, Workload] = field(default_factory=dict)
    _captures: dict[tuple[object, ...], Captured] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What is done, to which model."""
        kind = "training" if isinstance(self.step, TrainStep) else "inference"
        return f"{kind} of {type(self.step.model).__name__}"

    def captured(self, options: Options) -> Captured:
        """Return the model as it is captured under these options."""
        self.graph(options)
        return self._captures[capture_key(options)]

    def graph(self, options: Options) -> Graph:
        """Return the graph of the whole step under these options."""
        step, given = self.step, self.step.options
        step.options, step.target = options, lookup_target(options.target)
        try:
            return step.graph_of(self.arguments, self.keywords, lambda capture: self._once(options, capture))
        finally:
            step.options, step.target = given, lookup_target(given.target)

    def estimate(self, options: Options) -> Estimate:
        """Compile for these options.

        Raises:
            IpuError: The model cannot be captured, or not be placed on the machine.
        """
        began = time.perf_counter()
        options = _by_itself(options)
        target = lookup_target(options.target)
        is_training = isinstance(self.step, TrainStep)
        if not is_training and options.gradient_accumulation != 1:
            raise OptionsError(
                f"gradient_accumulation must be 1 for inference, got {options.gradient_accumulation}",
                option="gradient_accumulation", value=options.gradient_accumulation, allowed="1",
                remedy="use device_iterations for several micro-batches",
            )
        micro_batches = options.gradient_accumulation if is_training else options.device_iterations
        with collected_seldom():
            compiled = try_graph(self.graph(options), options, target, micro_batches=micro_batches)
        profile = profile_of(compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles)
        return estimate_of(self.name, compiled, profile, time.perf_counter() - began)

    def _once(self, options: Options, capture: Callable[[], Captured]) -> Captured:
        key = capture_key(options)
        if key not in self._captures:
            self._captures[key] = captured_once(self.step.model, capture)
        return self._captures[key]


def workload_of(
    model: torch.nn.Module, example: Any, options: Options, optimizer: torch.optim.Optimizer | None,
    training: bool | None,
) -> Workload:
    """Return a model with an example.

    Args:
        model: A module, whose tensors may be without values.
        example: Inputs of one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments.
        options: Of the step.
        optimizer: What trains the model; None for plain SGD.
        training: Whether it is trained; None takes the mode that the model is in, and training with an optimiser.

    Raises:
        OptionsError: The model is no module, or is to be trained and has no parameter that is.
    """
    arguments, keywords = arguments_of(example)
    options = _by_itself(options)
    is_training = isinstance(model, torch.nn.Module) and model.training if training is None else training
    if not (is_training or (training is None and optimizer is not None)):
        step: ProgramStep = InferenceStep(model, replace(options, gradient_accumulation=1))
        return Workload(step, arguments, keywords)
    if optimizer is None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise OptionsError(
                f"{type(model).__name__} has no parameter that can be trained", option="training", value=True,
                allowed="False for this model", remedy="give training=False, or call eval() on the model",
            )
        optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE)
    return Workload(TrainStep(model, optimizer, options), arguments, keywords)


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keyword arguments of an example, in tensors of the host."""
    held = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor if has_values(tensor) else stand_in_of(tensor), example,
    )
    if isinstance(held, Mapping):
        return (), dict(held)
    return (tuple(held), {}) if isinstance(held, (tuple, list)) else ((held,), {})


def _by_itself(options: Options) -> Options:
    """Return options of one process that runs nothing."""
    return replace(
        options, process_group="alone", pipeline_group=None, ipus_per_process=None, executor="host",
        allow_out_of_memory=True, verify=False, dump=None,
    )

