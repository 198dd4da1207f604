"""Which op gives another value on the tiles than it should, on the operands that the tiles had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from torchipu.checking.differences import Difference, DifferenceError, differing
from torchipu.device.stores import Place
from torchipu.device.tiles.machine import TileMachine
from torchipu.emulation.eager import evaluate, evaluate_as_typed
from torchipu.emulation.tiles import tile_machine
from torchipu.ir.program import Variable, VertexGroup
from torchipu.optable.random_streams import Seeding
from torchipu.step.base import ProgramStep


def first_difference_on_tiles(
    step: ProgramStep, inputs: Sequence[torch.Tensor], before: Mapping[str, np.ndarray], seeding: Seeding,
) -> Difference | None:
    """Run a call on the tiles once more; return the first op whose results differ from eager PyTorch's.

    Args:
        step: That has made the call.
        inputs: Tensors of the call.
        before: What states, constants and hyper-parameters held before it, by name.
        seeding: From what its streams of random bits began.
    """
    assert step._built is not None
    compiled = step.compiled
    machine = tile_machine(
        compiled.executable, step._built, step.options, inputs, step.micro_batches, compiled.target, states=before,
        seeding=seeding,
    )
    judging(machine)
    try:
        machine.run()
    except DifferenceError as end:
        return end.difference
    return None


def judging(machine: TileMachine) -> None:
    """Let a machine raise DifferenceError at the first op whose results differ from eager PyTorch's."""
    machine.judge = _judge


def _judge(
    machine: TileMachine, group: VertexGroup, place: Place, operands: Sequence[np.ndarray],
    results: Sequence[tuple[Variable, np.ndarray]],
) -> None:
    """Raise where the results of an op on the first replica are not what its operands give."""
    given = [value.astype(np.float64) if value.dtype.kind == "f" else value for value in operands]
    draw = machine.draw_for(group.op, place, replica=0)
    exact, typed = evaluate(group.op, given, draw), evaluate_as_typed(group.op, given, draw)
    found = differing(group.op, [value for _, value in results], exact, [typed])
    if found is None:
        return
    variable = results[found.result][0]
    element = int(np.ravel_multi_index(found.index, variable.shape)) if variable.shape else 0
    tile = int(machine.stores.held(variable).spread.tile[element])
    raise DifferenceError(replace(
        found, superstep=machine.supersteps, side=f"tile {tile} of ipu {variable.ipu}, after {place.step},",
    ))
