"""A machine for the device program of a compiled step, with its states, constants and inputs in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from torchipu.capture.built import Built
from torchipu.device.machine import Evaluate, Machine
from torchipu.device.stores import Moment
from torchipu.ir.graph import Tensor
from torchipu.ir.program import Executable
from torchipu.ir.types import DType, Role
from torchipu.optable.random_streams import Seeding
from torchipu.options import Options

COUNTERS = (Role.ACCUMULATOR, Role.OPTIMISER_STATE)
"""What whole numbers that begin at zero are; those of random bits begin elsewhere."""


def machine_of(
    executable: Executable, built: Built, options: Options, inputs: Sequence[torch.Tensor], micro_batches: int,
    evaluate: Evaluate, seed: int = 0, moved: np.random.Generator | None = None,
    states: Mapping[str, np.ndarray] | None = None, kind: Callable[..., Machine] = Machine,
    seeding: Seeding | None = None,
) -> Machine:
    """Return a machine that is ready to run.

    Args:
        executable: The program.
        built: What was captured.
        options: Of the step.
        inputs: Tensors of a whole call, in the order of the captured arguments.
        micro_batches: Micro-batches of an iteration.
        evaluate: Computes ops.
        seed: Chooses in which order IPUs run that no sync orders.
        states: What states, constants and hyper-parameters hold, by name; None reads them as they are now.
        kind: Makes the machine of program, evaluation, feed and seed.
        seeding: From what the streams of random bits begin; None where nothing draws.
        moved: Moves every float of inputs and states by at most one unit in the last place of a float32.
    """
    names = [tensor.name for tensor in built.capture.arguments if tensor is not None]
    streams = _moved({name: wide(value) for name, value in zip(names, inputs, strict=True)}, moved)
    iterations = options.device_iterations if built.optimiser is not None else 1

    def feed(name: str, moment: Moment, replica: int) -> np.ndarray:
        assert moment.micro_batch is not None
        groups, size = options.input_groups, options.input_group_size
        group = replica % groups if options.input_grouping == "orthogonal" else replica // size
        place = (moment.iteration * micro_batches + moment.micro_batch) * groups + group
        pieces = iterations * micro_batches * groups
        value = streams[name]
        return value if pieces == 1 else value.reshape(pieces, -1, *value.shape[1:])[place]

    machine = kind(executable, evaluate, feed, seed)
    machine.seeding = seeding or Seeding()
    machine.load(_moved(dict(initial(built) if states is None else states), moved))
    return machine


def _moved(values: dict[str, np.ndarray], by: np.random.Generator | None) -> dict[str, np.ndarray]:
    if by is None:
        return values
    return {
        name: value * (1 + 2.0**-23 * by.integers(-1, 2, value.shape)) if value.dtype.kind == "f" else value
        for name, value in values.items()
    }


def initial(built: Built) -> dict[str, np.ndarray]:
    """Return what states, constants and hyper-parameters hold before the program runs, by name."""
    loaded = {tensor.name: wide(host) for tensor, host in built.states.items() if host is not None}
    loaded |= {
        tensor.name: np.zeros(tensor.shape, np.int64 if tensor.dtype is DType.LONG else np.float64)
        for tensor, host in built.states.items()
        if host is None and (tensor.dtype is not DType.LONG or tensor.role in COUNTERS)
    }
    constants: Mapping[Tensor, torch.Tensor] = built.capture.constants
    if built.optimiser is not None:
        hyper = built.optimiser.hyperparameters
        loaded |= {tensor.name: value.view(torch.int64).numpy().copy() for tensor, value in hyper.items()}
    return loaded | {tensor.name: wide(value) for tensor, value in constants.items()}


def wide(value: torch.Tensor) -> np.ndarray:
    """Return a value as an array of its own, floats in float64."""
    value = value.detach().clone()
    return np.asarray(value.double() if value.is_floating_point() else value)
