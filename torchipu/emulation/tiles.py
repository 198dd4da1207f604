"""A tile machine for a captured model, with a bar that shows how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from torchipu.capture.built import Built
from torchipu.device.machine import Machine, num_steps
from torchipu.device.tiles.machine import TileMachine, as_large_as_needed
from torchipu.emulation.eager import evaluate_as_typed
from torchipu.emulation.loading import machine_of
from torchipu.ir.program import Executable
from torchipu.optable.random_streams import Seeding
from torchipu.options import Options
from torchipu.target import Target

SHOWN_AFTER_S = 2.0
"""Seconds after which a run shows how far it is."""


def tile_machine(
    executable: Executable, built: Built, options: Options, inputs: Sequence[torch.Tensor], micro_batches: int,
    target: Target, *, seed: int = 0, states: Mapping[str, np.ndarray] | None = None,
    seeding: Seeding | None = None,
) -> TileMachine:
    """Return a tile machine that is ready to run; see ``machine_of``.

    Args:
        executable: The program.
        built: What was captured.
        options: Of the step; where they allow programs that do not fit, tiles are as large as the program needs.
        inputs: Tensors of a whole call.
        micro_batches: Micro-batches of an iteration.
        target: Whose tiles.
        seed: Chooses in which order IPUs run that no sync orders.
        states: What states, constants and hyper-parameters hold, by name; None reads them as they are now.
        seeding: From what the streams of random bits begin; None where nothing draws.
    """
    tile_bytes = as_large_as_needed(executable, target) if options.allow_out_of_memory else None
    kind = partial(TileMachine, target=target, tile_bytes=tile_bytes)
    machine = machine_of(
        executable, built, options, inputs, micro_batches, evaluate_as_typed, seed, states=states, kind=kind,
        seeding=seeding,
    )
    assert isinstance(machine, TileMachine)
    return machine


@contextmanager
def shown(machine: Machine, name: str) -> Iterator[None]:
    """Show on stderr how far a machine is, and how long it will take, where that is more than a moment.

    Args:
        machine: About to run.
        name: Of what runs.
    """
    with tqdm(total=num_steps(machine.executable), desc=name, unit="step", delay=SHOWN_AFTER_S, leave=False) as bar:
        machine.after_step = bar.update
        try:
            yield
        finally:
            machine.after_step = None
