"""``Options(executor="tiles")``: a call of a step on the tile machine, in place of the host's plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchipu.capture.built import Built
from torchipu.compiler import Compiled
from torchipu.emulation.loading import initial
from torchipu.emulation.refusals import refuse_ops, refuse_options
from torchipu.emulation.results import moments_of, of_all_replicas, whole
from torchipu.emulation.tiles import shown, tile_machine
from torchipu.host.bound_plan import BoundPlan
from torchipu.ir.types import Role
from torchipu.optable.random_streams import Seeding
from torchipu.options import Options


def run_on_tiles(
    built: Built, compiled: Compiled, bound: BoundPlan, options: Options, inputs: Sequence[torch.Tensor],
    micro_batches: int, outputs: Sequence[torch.Tensor], seeding: Seeding, *, has_members: bool,
) -> None:
    """Run one call; states are read from, and written to, the memory that the host's plan would use.

    Args:
        built: What was captured.
        compiled: The device program.
        bound: Holds the states, which a failure leaves as they are.
        options: Of the step.
        inputs: Tensors of the call, in the order of the captured arguments.
        micro_batches: Micro-batches of an iteration.
        outputs: ``[micro-batches x replicas, ...]`` of each output, or ``[replicas, ...]`` of the last micro-batch.
        seeding: From what the streams of random bits begin.
        has_members: Whether other processes take part.

    Raises:
        DeviceProgramError: The program does what no IPU may.
        OptionsError: The machine does not run the model.
    """
    refuse_options(options, has_members=has_members)
    refuse_ops(built.graph, options)
    views = {  # an accumulator is empty between calls
        tensor: bound.state_view(tensor) for tensor in built.states
        if tensor in bound.host_plan.states and tensor.role is not Role.ACCUMULATOR
    }
    states = initial(built) | {tensor.name: view.detach().clone().numpy() for tensor, view in views.items()}
    machine = tile_machine(
        compiled.executable, built, options, inputs, micro_batches, compiled.target, states=states,
        seed=options.seed or 0, seeding=seeding,
    )
    with shown(machine, f"{compiled.graph.name} on tiles"):
        machine.run()
    moments = moments_of(machine)
    made = []
    for tensor, out in zip(compiled.graph.outputs, outputs, strict=True):
        pieces = [piece for moment in moments for piece in of_all_replicas(tensor, machine, moment)]
        made.append(np.stack(pieces[len(pieces) - len(out) :]))
    left = machine.states()
    for tensor, view in views.items():
        if tensor.name in left:
            held = left[tensor.name]
            value = held if bound.is_apart(tensor) else whole(held, tensor.shape)
            view.copy_(torch.from_numpy(np.ascontiguousarray(value)).reshape(view.shape))
    for out, value in zip(outputs, made, strict=True):
        out.copy_(torch.from_numpy(value).reshape(out.shape))
