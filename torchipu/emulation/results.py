"""What a machine has given in the end: results of micro-batches, and states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchipu.device.machine import Machine
from torchipu.device.stores import Moment
from torchipu.ir.graph import Tensor


def moments_of(machine: Machine) -> list[Moment]:
    """Return the micro-batches that have results, in their order; those that ran where all results are given."""
    found = {at for _, at in machine.results} or machine.micro_batches
    return sorted(found, key=lambda at: (at.iteration, at.micro_batch or 0))


def of_all_replicas(tensor: Tensor, machine: Machine, moment: Moment) -> Sequence[np.ndarray]:
    """Return a result of a micro-batch, which may be a view of what was streamed to the host.

    Args:
        tensor: The result, of the graph that was placed.
        machine: After its run.
        moment: Of the micro-batch.
    """
    streamed = machine.results.get((tensor.name, moment))
    if streamed is not None:
        return [value.reshape(tensor.shape) for value in streamed]
    if tensor not in machine.executable.views:
        known = machine.known(tensor, moment)
        if known[0].size == tensor.num_elements:
            return [value.reshape(tensor.shape) for value in known]
        return [whole(np.asarray(known), tensor.shape)] * len(known)
    op = machine.executable.views[tensor]
    place = op.outputs.index(tensor)
    return [
        np.asarray(machine.evaluate(op, [value])[place]) for value in of_all_replicas(op.inputs[0], machine, moment)
    ]


def whole(held: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return a state of which every replica has all, or its share.

    Args:
        held: ``[replicas, ...]``.
        shape: Of the state.
    """
    size = int(np.prod(shape))
    joined = held.reshape(-1)[:size] if held[0].size < size else held[0]
    return joined.reshape(shape)
