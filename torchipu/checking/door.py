"""``torchipu.check``: a call of a model on the host and on the machine that runs its device program, compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torchipu.capture.built import Built
from torchipu.checking.comparison import Check, Compared, compared
from torchipu.checking.differences import first_difference
from torchipu.checking.tile_differences import first_difference_on_tiles
from torchipu.device.machine import Evaluate, Machine
from torchipu.emulation.eager import evaluate, evaluate_as_typed
from torchipu.emulation.loading import initial, machine_of, wide
from torchipu.emulation.refusals import refuse_ops, refuse_options
from torchipu.emulation.results import moments_of, of_all_replicas, whole
from torchipu.emulation.tiles import shown, tile_machine
from torchipu.ir.graph import Tensor
from torchipu.options import Options, given_or_default
from torchipu.step import InferenceStep, TrainStep
from torchipu.step.base import ProgramStep

MOVED_RUNS = 2
"""In the types of the program with moved operands: where rounding carries far, one run alone may be right by chance."""


def check(
    model: torch.nn.Module, *inputs: Any, optimizer: torch.optim.Optimizer | None = None,
    options: Options | None = None, seed: int = 0, **keywords: Any,
) -> Check:
    """Run one call of a model on the host, and its device program on the tiles of emulated IPUs; compare.

    The tiles run the program in the order of its schedule, each vertex on the bytes of its own tile, and refuse what no
    IPU may do: values that nobody has written, stashes that are lost, two live variables on the same bytes, vertices
    that touch each other's, missing syncs, streams read twice. Both are compared with the program computed op by op in
    float64; further runs in its types, with operands moved by a unit in the last place, say how much rounding alone may
    change. The model and the optimiser are left as they are. A bar on stderr shows how far it is.

    Args:
        model: Its forward returns the loss where it is trained.
        *inputs: Of a whole call, as for `TrainStep` or `InferenceStep`.
        optimizer: What trains the model; None for inference.
        options: Of the step. Results of all micro-batches are compared, whatever ``output_mode`` says.
        seed: Chooses in which order IPUs run that no sync orders.
        **keywords: Further inputs, by name.

    Returns:
        What was compared, and the first difference; ``print`` shows both, and ``raise_for_difference()`` refuses it.

    Raises:
        DeviceProgramError: The program does what no IPU may.
        OptionsError: The model is one that the machine does not run, or runs in several processes.
    """
    options = replace(given_or_default(options), output_mode="all")
    # Together: the optimiser's parameters are those of the model.
    model, optimizer = copy.deepcopy((model, optimizer))
    step = InferenceStep(model, options) if optimizer is None else TrainStep(model, optimizer, options)
    step.compile(*inputs, **keywords)
    tensors = [leaf for leaf in pytree.tree_leaves((inputs, keywords)) if isinstance(leaf, torch.Tensor)]
    finished = begin_check(step, tensors, seed)
    return finished(step(*inputs, **keywords))


def begin_check(step: ProgramStep, inputs: Sequence[torch.Tensor], seed: int = 0) -> Callable[[Any], Check]:
    """Run a call on the machine, before the host does, and return what compares the two.

    Args:
        step: Compiled for the call.
        inputs: Tensors of the call, in their order.
        seed: Chooses in which order IPUs run that no sync orders.

    Returns:
        A function that is given what the call has returned, when it has written the states back.

    Raises:
        DeviceProgramError: The program does what no IPU may.
        OptionsError: The step is one that the machine does not run, or runs in several processes.
    """
    built, options, executable = step._built, step.options, step.compiled.executable
    assert built is not None
    refuse_options(options, has_members=step._members is not None)
    refuse_ops(built.graph, options)
    seeding = step._seeding_of_next_call()
    ways: list[tuple[Evaluate, np.random.Generator | None]] = [(evaluate, None), (evaluate_as_typed, None)]
    ways += [(evaluate_as_typed, np.random.default_rng(number)) for number in range(MOVED_RUNS)]
    machines = [
        machine_of(executable, built, options, inputs, step.micro_batches, how, seed, moved, seeding=seeding)
        for how, moved in ways
    ]
    tiles = tile_machine(
        executable, built, options, inputs, step.micro_batches, step.compiled.target, seed=seed, seeding=seeding,
    )
    name = step.compiled.graph.name
    for number, machine in enumerate(machines):
        with shown(machine, f"{name}, run {number + 1} of {len(machines)} op by op"):
            machine.run()
    with shown(tiles, f"{name} on tiles"):
        tiles.run()
    before = initial(built)

    def finished(given: Any) -> Check:
        exact, *typed = ([*_outputs(step, built, one), *_states(built, one)] for one in machines)
        on_tiles = [*_outputs(step, built, tiles), *_states(built, tiles)]
        tiles.forget_values()
        found = [*_given(step, built, given), *_host_states(step, built)]
        results = compared([
            Compared(name, kind, value, tuple(run[number][2] for run in typed), on_tiles[number][2], host)
            for number, ((name, kind, value), host) in enumerate(zip(exact, found, strict=True))
        ])
        host_differs = not all(result.is_host_right for result in results)
        tiles_differ = not all(result.are_tiles_right for result in results)
        return Check(
            results, tiles.supersteps, tiles.whole,
            first_difference(step, inputs, before, seeding) if host_differs else None,
            first_difference_on_tiles(step, inputs, before, seeding) if tiles_differ else None, tiles,
        )

    return finished


Named = tuple[str, str, np.ndarray]


SHOWN = ("all", "final")
"""Output modes by which a call hands results back as they are."""


def _outputs(step: ProgramStep, built: Built, machine: Machine) -> Iterator[Named]:
    """Yield results as a call returns them: of all micro-batches, joined along the first dimension, or of the last."""
    if step.output_mode not in SHOWN:
        return
    moments = moments_of(machine)
    shown = moments if step.output_mode == "all" else moments[-1:]
    for number, (tensor, placed) in enumerate(zip(built.graph.outputs, step.compiled.graph.outputs, strict=True)):
        pieces = [piece for moment in shown for piece in of_all_replicas(placed, machine, moment)]
        joined = np.stack(pieces) if not tensor.shape else np.concatenate(pieces)
        yield f"output {number}", "output", joined


def _given(step: ProgramStep, built: Built, given: Any) -> list[np.ndarray]:
    """Return what the host gave for each output of the graph."""
    if step.output_mode not in SHOWN:
        return []
    by_tensor = dict(zip(built.capture.leaves, pytree.tree_leaves(given), strict=True))
    return [wide(by_tensor[tensor]) for tensor in built.graph.outputs]


def _written(built: Built) -> list[Tensor]:
    return [tensor for tensor, host in built.states.items() if host is not None and tensor in built.written]


def _states(built: Built, machine: Machine) -> Iterator[Named]:
    """Yield the states that the program changes, by the names that the model has for them."""
    states = machine.states()
    for tensor in _written(built):
        yield tensor.name, tensor.role.value, whole(states[tensor.name], tensor.shape)


def _host_states(step: ProgramStep, built: Built) -> list[np.ndarray]:
    held = step.states_on_device()
    return [wide(held[tensor]) for tensor in _written(built)]
