"""``torchipu.estimate`` and ``torchipu.sweep``: what a model would take, by a program that is compiled and not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchipu.estimation.figures import Estimate
from torchipu.estimation.sweeps import Sweep, sweep_over
from torchipu.estimation.workload import workload_of
from torchipu.options import Options, given_or_default


def estimate(
    model: torch.nn.Module, example: Any, options: Options | None = None, *,
    optimizer: torch.optim.Optimizer | None = None, training: bool | None = None,
) -> Estimate:
    """Say what a model would take on a machine: cycles, throughput, memory of each IPU, and what holds it up.

    The model is captured and compiled as for a `TrainStep` or an `InferenceStep`, and never run, so that its weights
    need no values: make it under ``torch.device("meta")``. Layers that repeat are captured once. What does not fit is
    no error, but ``fits`` says so.

    Args:
        model: A module; it is left as it is.
        example: Inputs of one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments. Meta
            tensors and fake ones will do.
        options: Target, replicas, gradient accumulation and everything else; None for one IPU of the default machine.
        optimizer: What trains the model, for its states and its update; None stands for plain SGD.
        training: Whether it is trained; None takes the mode that the model is in, and training with an optimiser.

    Returns:
        The figures, with how far to trust each; ``print`` shows them.

    Raises:
        CaptureError: The model cannot be captured as one graph, for instance since its sizes depend on data.
        OptionsError: An option makes no sense.
        PlacementError: The machine does not hold that many replicas and IPUs.
    """
    given = given_or_default(options)
    return workload_of(model, example, given, optimizer, training).estimate(given)


def sweep(
    model: torch.nn.Module, example: Any, over: Mapping[str, Sequence[Any]], options: Options | None = None, *,
    optimizer: torch.optim.Optimizer | None = None, training: bool | None = None,
) -> Sweep:
    """Estimate all combinations of some values of options: a table, best first.

    The model is captured once for all of them, and once more for each size of a micro-batch. A combination that the
    machine cannot hold is a row with the reason.

    Args:
        model: As for `estimate`.
        example: As for `estimate`.
        over: Values by option: ``{"target": ("bow-pod16", "bow-pod64"), "replicas": (1, 4, 16)}``. Beside options,
            ``micro_batch``: samples of a micro-batch. One number for ``available_memory`` holds for all IPUs.
        options: What is not swept over.
        optimizer: As for `estimate`.
        training: As for `estimate`.

    Returns:
        The table: ``print`` shows it, ``csv()`` and ``write_csv(path)`` give it to others.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        OptionsError: An option is unknown.
    """
    given = given_or_default(options)
    return sweep_over(workload_of(model, example, given, optimizer, training), given, over)
